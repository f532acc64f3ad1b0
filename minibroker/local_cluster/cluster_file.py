"""`cluster.json`: the processes and ports of a local cluster, and the layout of its data directory.

Owns: the layout of the data directory, which of its files belong to the cluster and may be removed with it, the format
of the two JSON files, and the lock against two commands that change them at once. Leaves to others: processes.

    <data-dir>/cluster.json            processes and ports (this module)
    <data-dir>/cluster.lock            held by a command while it changes cluster.json
    <data-dir>/cluster-state.json      the cluster's state when it went down, for the audit
    <data-dir>/zookeeper/              ZooKeeper's configuration, data and log
    <data-dir>/broker-<id>.properties  configuration; broker-<id>.log the output of the process,
                                       broker-<id>.log.1 the output before that
    <data-dir>/broker-<id>/            the broker's log.dir
"""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec

from minibroker.command_line import NO_RIGHT_CURE
from minibroker.file_lock import try_lock
from minibroker.local_cluster.processes import ProcessIdentity, free_ports, wait_until
from minibroker.protocol.counted import counted, some_of
from minibroker.protocol.files.checkpoints import LOCK, parse_partition_directory_name
from minibroker.protocol.files.cluster_state import CLUSTER_STATE, ClusterState, format_cluster_state
from minibroker.protocol.ids import MAX_INT32

CLUSTER_FILE = "cluster.json"
START_CURE = "`minibroker cluster start` starts it again"
STATE_FILE = CLUSTER_STATE
LOCK_FILE = "cluster.lock"
LOCK_TIMEOUT_S = 10.0
"""A command holds the lock while it starts processes and writes the file, not while it waits for them."""
ZOOKEEPER_DIRECTORY = "zookeeper"
OF_ONE_BROKER = re.compile(r"broker-(0|[1-9]\d{0,9})(\.properties|\.log(\.[1-9])?|)")
OF_THE_CLUSTER = {CLUSTER_FILE, STATE_FILE, f"{CLUSTER_FILE}.tmp", f"{STATE_FILE}.tmp", LOCK_FILE}
PRIVATE_DIRECTORY, PRIVATE_FILE, PRIVATE_UMASK = 0o700, 0o600, 0o077
"""Only their owner may read records and settings, even on a machine with other users."""


Port: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=65_535)]
BrokerNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_INT32)]


class ClusterMissing(Exception):
    """The directory holds no cluster, or its file cannot be read. The message ends with the cure."""


class ClusterFailed(Exception):
    """The cluster is not in the requested state. The message names the problem and the cure."""


class ClusterBusy(Exception):
    """Another command has been changing the cluster for too long. The message ends with the cure."""


class NotWritten(ClusterFailed):
    """A file of the cluster could not be written. The message names the file, the reason and the cure."""


class BrokerRecord(msgspec.Struct, kw_only=True):
    """One broker of a local cluster."""

    port: Port
    process: ProcessIdentity | None = None
    ended_by: str | None = None
    """How a command ended it: 'stop', 'kill', 'power loss'; None while it should run."""
    settings: dict[str, str] = {}
    """Of this broker only."""


class ZooKeeperRecord(msgspec.Struct, kw_only=True):
    """The cluster's ZooKeeper: its own (with a port), or an external one (`cluster up --zookeeper`)."""

    connect: str
    port: Port | None = None
    process: ProcessIdentity | None = None


class ClusterRecord(msgspec.Struct, kw_only=True):
    """All that a later command needs to know."""

    version: int = 1
    zookeeper: ZooKeeperRecord
    brokers: Annotated[dict[BrokerNumber, BrokerRecord], msgspec.Meta(min_length=1)]
    settings: dict[str, str] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{self.brokers[broker_id].port}" for broker_id in sorted(self.brokers))


class RequestedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `cluster up`. None: as the cluster in this directory was, else the default."""

    brokers: int | None = None
    port: int | None = None
    """Of the first broker."""
    zookeeper_port: int | None = None
    zookeeper: str | None = None
    """An external one to use."""
    settings: dict[str, str] = {}
    """An empty value: the broker's default again."""


def new_record(
    brokers: int, port: int, zookeeper_port: int, zookeeper: str | None, settings: Mapping[str, str]
) -> ClusterRecord:
    """The record of a new cluster; a port of 0 is a free one."""
    free = iter(free_ports(brokers + 1))
    ports = {i + 1: port + i if port else next(free) for i in range(brokers)}
    zookeeper_port = zookeeper_port or next(free)
    return ClusterRecord(
        zookeeper=ZooKeeperRecord(connect=zookeeper)
        if zookeeper is not None
        else ZooKeeperRecord(connect=f"127.0.0.1:{zookeeper_port}", port=zookeeper_port),
        brokers={broker_id: BrokerRecord(port=number) for broker_id, number in ports.items()},
        settings=dict(settings),
    )


def continued(earlier: ClusterRecord, requested: RequestedCluster) -> ClusterRecord:
    """The record of a stopped cluster that is started again: as it was, except for what is requested. An added broker
    gets the port after the highest one."""
    brokers = dict(earlier.brokers)
    if requested.port is not None:
        brokers = {each: _on_port(brokers[each], requested.port + each - 1) for each in brokers}
    for each in range(1, (requested.brokers or 0) + 1):
        if each not in brokers:
            brokers[each] = BrokerRecord(port=max(broker.port for broker in brokers.values()) + 1)
    if requested.brokers is not None:  # `LocalCluster.up` refuses fewer than there are
        brokers = {each: brokers[each] for each in sorted(brokers) if each <= requested.brokers}
    zookeeper = earlier.zookeeper
    if requested.zookeeper is not None:
        zookeeper = ZooKeeperRecord(connect=requested.zookeeper)
    elif requested.zookeeper_port is not None:
        zookeeper = ZooKeeperRecord(connect=f"127.0.0.1:{requested.zookeeper_port}", port=requested.zookeeper_port)
    settings = {name: value for name, value in (earlier.settings | requested.settings).items() if value}
    return ClusterRecord(zookeeper=zookeeper, brokers=brokers, settings=settings)


def shared_port(record: ClusterRecord) -> str | None:
    """That two processes would have one port; None if each has its own."""
    users: dict[int, list[str]] = {}
    for broker_id, broker in record.brokers.items():
        users.setdefault(broker.port, []).append(f"broker {broker_id}")
    if record.zookeeper.port is not None:
        users.setdefault(record.zookeeper.port, []).append("ZooKeeper")
    several = [f"port {port} is for {' and '.join(names)}" for port, names in users.items() if len(names) > 1]
    return "; ".join(several) or None


def refuse_fewer_brokers(data_directory: Path, earlier: ClusterRecord, now: ClusterRecord) -> None:
    """Raise ClusterFailed if the directory holds the data of more brokers."""
    count = len(earlier.brokers)
    if count > len(now.brokers):
        raise ClusterFailed(
            f"{data_directory} holds the data of {counted(count, 'broker')}: give --brokers {count} or none,"
            " or remove the data with `minibroker cluster down --wipe`"
        )


def already_runs(data_directory: Path, earlier: ClusterRecord, now: ClusterRecord, down: list[str]) -> ClusterFailed:
    """The error of a start in the directory of a cluster that runs, but for what is `down`."""
    some = f"start what is down ({', '.join(down)}) with `minibroker cluster start`, " if down else ""
    changed = "; ".join(differences(earlier, now))
    other = f", and it is not changed while it runs ({changed})" if changed else ""
    return ClusterFailed(
        f"a cluster already runs in {data_directory} ({earlier.bootstrap_servers}){other}:"
        f" {some}stop it with `minibroker cluster down`, or choose another --data-dir"
    )


def differences(earlier: ClusterRecord, now: ClusterRecord) -> list[str]:
    """What `cluster up` changes of an earlier cluster, each as the option with its old and its new value."""
    before, after = _as_options(earlier), _as_options(now)
    if earlier.zookeeper.port is not None and now.zookeeper.port is not None:  # only its port may have changed
        for options, record in ((before, earlier), (after, now)):
            del options["--zookeeper"]
            options["--zookeeper-port"] = str(record.zookeeper.port)
    names = [*before, *(name for name in after if name not in before)]
    changed = [name for name in names if before.get(name) != after.get(name)]
    return [f"{name} {before.get(name, 'default')} -> {after.get(name, 'default')}" for name in changed]


def _as_options(record: ClusterRecord) -> dict[str, str]:
    zookeeper = record.zookeeper
    return {
        "--brokers": str(len(record.brokers)),
        "--port": str(record.brokers[min(record.brokers)].port),
        "--zookeeper": zookeeper.connect if zookeeper.port is None else f"of its own on port {zookeeper.port}",
    } | {f"--set {name}": value for name, value in record.settings.items()}


def _on_port(broker: BrokerRecord, port: int) -> BrokerRecord:
    return BrokerRecord(port=port, process=broker.process, ended_by=broker.ended_by, settings=broker.settings)


def read_cluster_file(data_directory: Path) -> ClusterRecord:
    """Raises ClusterMissing."""
    path = data_directory / CLUSTER_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterRecord)
    except FileNotFoundError:
        raise ClusterMissing(
            f"{data_directory} holds no cluster: start one with `minibroker cluster up`, or name its --data-dir"
        ) from None
    except PermissionError:
        raise ClusterMissing(f"{path} cannot be read (Permission denied): {NO_RIGHT_CURE}") from None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ClusterMissing(
            f"{path} cannot be read ({error}): remove it and start the cluster again with its former --brokers, --port,"
            " --zookeeper-port and --set (see broker-ID.properties next to it): its data is used again"
        ) from None


def write_cluster_file(data_directory: Path, record: ClusterRecord) -> None:
    """Raises NotWritten."""
    _replace(data_directory / CLUSTER_FILE, msgspec.json.encode(record))


def write_cluster_state(data_directory: Path, state: ClusterState) -> None:
    """Raises NotWritten."""
    _replace(data_directory / STATE_FILE, format_cluster_state(state))


def forget_cluster_state(data_directory: Path) -> None:
    """Remove the snapshot: it would mislead the audit once the cluster runs again."""
    (data_directory / STATE_FILE).unlink(missing_ok=True)


def has_cluster_state(data_directory: Path) -> bool:
    """Is there the snapshot of an earlier stop, since which no broker was started? A later stop knows less."""
    return (data_directory / STATE_FILE).exists()


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    with written(path):
        temporary.unlink(missing_ok=True)
        temporary.touch(PRIVATE_FILE)
        temporary.write_bytes(msgspec.json.format(content, indent=2) + b"\n")
        os.replace(temporary, path)


_CURES = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space of your quota",
    errno.EROFS: "mount its file system for writing",
    errno.EACCES: "give your user the right to write it",
}


def why_not_written(write: Callable[[], None], meaning: str) -> str | None:
    """Call `write`. Returns what was not written, and what that means: for a command that goes on without it."""
    try:
        write()
    except (NotWritten, ClusterBusy) as error:
        return f"{error}; {meaning}"
    return None


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Raise NotWritten where the block, which writes this file, cannot do so."""
    try:
        yield
    except OSError as error:
        cure = _CURES.get(error.errno or 0, "see whether its disk works")
        raise NotWritten(f"{path} could not be written ({error.strerror}): {cure}") from None


# ---------------------------------------------------------------------------------------------- the cluster's files
def refuse_foreign_directory(data_directory: Path) -> None:
    """Raise ClusterMissing for a directory with other files: `down --wipe` must not put them at risk."""
    names = sorted(os.listdir(data_directory)) if data_directory.is_dir() else []
    foreign = [name for name in names if not _belongs_to_a_cluster(name)]
    if foreign and CLUSTER_FILE not in names:
        raise ClusterMissing(
            f"{data_directory} holds no cluster, but other files ({some_of(foreign)}): choose a --data-dir"
            " that does not exist yet"
        )


def _belongs_to_a_cluster(name: str) -> bool:
    return name in OF_THE_CLUSTER or name == ZOOKEEPER_DIRECTORY or OF_ONE_BROKER.fullmatch(name) is not None


def is_unused(data_directory: Path) -> bool:
    """Has no cluster been started there, or only some whose first start failed?"""
    names = [CLUSTER_FILE, f"{ZOOKEEPER_DIRECTORY}/data"]
    return not any((data_directory / name).exists() for name in names) and not any(_log_directories(data_directory))


def _log_directories(data_directory: Path) -> list[Path]:
    paths = data_directory.glob("broker-*")
    return [path for path in paths if OF_ONE_BROKER.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]


def forget_failed_start(data_directory: Path) -> None:
    """Remove what a first start that failed leaves, so that the next one may have other brokers and ports. The output
    of its processes stays, because it says why; so does everything if a topic was created meanwhile."""
    logs = _log_directories(data_directory)
    if any(parse_partition_directory_name(path.name) is not None for log in logs for path in log.iterdir()):
        return
    for directory in (*logs, data_directory / ZOOKEEPER_DIRECTORY / "data"):
        shutil.rmtree(directory, ignore_errors=True)
    for path in (data_directory / CLUSTER_FILE, *data_directory.glob("broker-*.properties")):
        path.unlink(missing_ok=True)


def remove_failed_start(data_directory: Path) -> bool:
    """Remove the directory of a first start that failed: it holds the output of processes, and nothing else. Returns
    whether it was one."""
    if not (data_directory / LOCK_FILE).exists():
        return False
    with cluster_lock(data_directory):  # another start may be under way
        names = os.listdir(data_directory)
        if not is_unused(data_directory) or not all(map(_belongs_to_a_cluster, names)):
            return False
        _remove(data_directory, names)
    return True


def refuse_used(data_directory: Path) -> None:
    """Raise ClusterFailed if a process uses one of the logs, though all that this cluster's commands know have ended:
    the cluster is not down, and nothing may be removed under it."""
    used = [str(path / LOCK) for path in _log_directories(data_directory) if _is_locked(path / LOCK)]
    if used:
        raise ClusterFailed(
            f"a process that no command of this cluster started uses {some_of(used)}: end it (`fuser` names it), then"
            " repeat `minibroker cluster down`"
        )


def remove_cluster_files(data_directory: Path, record: ClusterRecord) -> str | None:
    """Remove this cluster's files, and the directory if nothing else is in it. Returns a sentence on other files, which
    stay. Raises ClusterFailed if some of the cluster's could not be removed."""
    ours = []
    for name in sorted(os.listdir(data_directory)):
        found = OF_ONE_BROKER.fullmatch(name)
        # a first start that failed may have left the output of more brokers
        is_brokers = found is not None and (int(found[1]) in record.brokers or found[2].startswith(".log"))
        is_zookeepers = name == ZOOKEEPER_DIRECTORY and record.zookeeper.port is not None
        if is_brokers or is_zookeepers or name in OF_THE_CLUSTER:
            ours.append(name)
    return _remove(data_directory, ours)


def _remove(data_directory: Path, names: list[str]) -> str | None:
    """Remove these entries, and the directory if nothing else is in it. Returns a sentence on other files, which stay.
    Raises ClusterFailed if some could not be removed."""
    for name in names:
        path = data_directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # it is missing, or is found below
                path.unlink()
    rest = sorted(os.listdir(data_directory))
    if kept := [name for name in rest if name in names]:
        raise ClusterFailed(f"{some_of(kept)} in {data_directory} could not be removed, the rest is: {NO_RIGHT_CURE}")
    if rest:
        return f"{data_directory} stays, because it holds files that are not the cluster's: {some_of(rest)}"
    with contextlib.suppress(OSError):  # a mount point stays
        data_directory.rmdir()
    return None


def _is_locked(path: Path) -> bool:
    """Does a process hold this lock of a log directory? It may be a broker that no command of this cluster started."""
    try:
        with path.open("rb") as file:
            return not try_lock(file.fileno())
    except OSError:
        return False


_HELD: set[Path] = set()
"""Locks that this process holds: it may take them again."""


@contextlib.contextmanager
def cluster_lock(data_directory: Path) -> Iterator[None]:
    """No other command changes cluster.json until the block ends. Raises ClusterBusy, NotWritten."""
    if data_directory in _HELD:
        yield
        return
    with written(data_directory / LOCK_FILE):
        descriptor = os.open(data_directory / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        _wait_for_lock(descriptor, data_directory)
        _HELD.add(data_directory)
        yield
    finally:
        _HELD.discard(data_directory)
        os.close(descriptor)


@contextlib.asynccontextmanager
async def only_stop(data_directory: Path, timeout_s: float) -> AsyncIterator[None]:
    """No other `cluster down` of this directory stops it meanwhile, as far as it ends in time: the later one would see
    brokers that have left the ISR, and write a snapshot that knows less."""
    try:
        descriptor = os.open(data_directory, os.O_RDONLY)
    except OSError:  # there is none
        yield
        return
    try:
        await wait_until(lambda: try_lock(descriptor), timeout_s)
        yield
    finally:
        os.close(descriptor)


def _wait_for_lock(descriptor: int, data_directory: Path) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ClusterBusy(
                    f"another command has been changing the cluster in {data_directory} for {LOCK_TIMEOUT_S:g} s:"
                    " wait for it, or end it"
                ) from None
        time.sleep(0.02)
