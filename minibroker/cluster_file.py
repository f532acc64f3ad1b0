"""`cluster.json`: what a local cluster's data directory says of its processes and ports, and where its files are.

Owns: the layout of the data directory, which files in it are a cluster's and may be removed with it, the format of the
two JSON files, and that two commands do not change them at once. Refuses to start or stop anything.

    <data-dir>/cluster.json            processes and ports (this module)
    <data-dir>/cluster.lock            held by a command while it changes cluster.json
    <data-dir>/cluster-state.json      what the cluster said of itself when it went down, for the audit
    <data-dir>/zookeeper/              ZooKeeper's configuration, data and log
    <data-dir>/broker-<id>.properties  configuration; broker-<id>.log what the process printed,
                                       broker-<id>.log.1 what it printed before that
    <data-dir>/broker-<id>/            the broker's log.dir
"""

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from minibroker.processes import ProcessIdentity
from minibroker.protocol.cluster_state import CLUSTER_STATE, ClusterState, format_cluster_state

CLUSTER_FILE = "cluster.json"
STATE_FILE = CLUSTER_STATE
LOCK_FILE = "cluster.lock"
LOCK_TIMEOUT_S = 10.0
"""A command holds it while it starts processes and writes the file, not while it waits for them."""
ZOOKEEPER_DIRECTORY = "zookeeper"
OF_ONE_BROKER = re.compile(r"broker-(0|[1-9]\d{0,9})(\.properties|\.log(\.[1-9])?|)")
OF_THE_CLUSTER = {CLUSTER_FILE, STATE_FILE, f"{CLUSTER_FILE}.tmp", f"{STATE_FILE}.tmp", LOCK_FILE}
PRIVATE_DIRECTORY, PRIVATE_FILE, PRIVATE_UMASK = 0o700, 0o600, 0o077
"""Records and settings are for their owner alone, on a machine with other users, too."""


class ClusterMissing(Exception):
    """The directory holds no cluster, or its file cannot be read. One sentence with the cure."""


class ClusterBusy(Exception):
    """Another command is changing the cluster, and does not end. One sentence with the cure."""


class BrokerRecord(msgspec.Struct, kw_only=True):
    """One broker of a local cluster."""

    port: int
    process: ProcessIdentity | None = None
    ended_by: str | None = None
    """How we ended it: 'stop', 'kill', 'power loss'; None while it should run."""
    settings: dict[str, str] = {}
    """Of this broker alone."""


class ZooKeeperRecord(msgspec.Struct, kw_only=True):
    """Its ZooKeeper: ours (with a process), or another's (`cluster up --zookeeper`)."""

    connect: str
    port: int | None = None
    process: ProcessIdentity | None = None


class ClusterRecord(msgspec.Struct, kw_only=True):
    """All that a later command must know."""

    version: int = 1
    zookeeper: ZooKeeperRecord
    brokers: dict[int, BrokerRecord]
    settings: dict[str, str] = {}

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"127.0.0.1:{self.brokers[broker_id].port}" for broker_id in sorted(self.brokers))


class RequestedCluster(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster up` was told. None: what the cluster in this directory had, or the default."""

    brokers: int | None = None
    port: int | None = None
    """Of the first broker."""
    zookeeper_port: int | None = None
    zookeeper: str | None = None
    """Another's, instead of ours."""
    settings: dict[str, str] = {}


def continued(earlier: ClusterRecord, requested: RequestedCluster) -> ClusterRecord:
    """A stopped cluster is started again: ports, ZooKeeper and settings are what they were, but for what is requested.
    A broker that is added gets the port behind the last one's."""
    brokers = dict(earlier.brokers)
    if requested.port is not None:
        brokers = {each: _on_port(brokers[each], requested.port + each - 1) for each in brokers}
    for each in range(1, (requested.brokers or 0) + 1):
        if each not in brokers:
            brokers[each] = BrokerRecord(port=max(broker.port for broker in brokers.values()) + 1)
    if requested.brokers is not None:  # fewer than there are is refused where they are started
        brokers = {each: brokers[each] for each in sorted(brokers) if each <= requested.brokers}
    zookeeper = earlier.zookeeper
    if requested.zookeeper is not None:
        zookeeper = ZooKeeperRecord(connect=requested.zookeeper)
    elif requested.zookeeper_port is not None:
        zookeeper = ZooKeeperRecord(connect=f"127.0.0.1:{requested.zookeeper_port}", port=requested.zookeeper_port)
    settings = earlier.settings | requested.settings
    return ClusterRecord(zookeeper=zookeeper, brokers=brokers, settings=settings)


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
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ClusterMissing(
            f"{path} cannot be read ({error}): remove it and start the cluster anew, with the --brokers, --port,"
            " --zookeeper-port and --set that it had (broker-ID.properties beside it has them): its data is used again"
        ) from None


def write_cluster_file(data_directory: Path, record: ClusterRecord) -> None:
    _replace(data_directory / CLUSTER_FILE, msgspec.json.encode(record))


def write_cluster_state(data_directory: Path, state: ClusterState) -> None:
    _replace(data_directory / STATE_FILE, format_cluster_state(state))


def forget_cluster_state(data_directory: Path) -> None:
    """An old snapshot would mislead the audit once the cluster runs again."""
    (data_directory / STATE_FILE).unlink(missing_ok=True)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    temporary.touch(PRIVATE_FILE)
    temporary.write_bytes(msgspec.json.format(content, indent=2) + b"\n")
    os.replace(temporary, path)


# ---------------------------------------------------------------------------------------------- whose the files are
def refuse_foreign_directory(data_directory: Path) -> None:
    """Raise ClusterMissing where somebody keeps other files: a cluster there would be removed together with them."""
    names = sorted(os.listdir(data_directory)) if data_directory.is_dir() else []
    foreign = [name for name in names if not _is_a_clusters(name)]
    if foreign and CLUSTER_FILE not in names:
        raise ClusterMissing(
            f"{data_directory} holds no cluster, but other files ({_told(foreign)}): choose another --data-dir,"
            " one that does not exist yet"
        )


def _told(names: list[str]) -> str:
    return ", ".join([*names[:3], *([".."] if len(names) > 3 else [])])


def _is_a_clusters(name: str) -> bool:
    return name in OF_THE_CLUSTER or name == ZOOKEEPER_DIRECTORY or OF_ONE_BROKER.fullmatch(name) is not None


def remove_cluster_files(data_directory: Path, record: ClusterRecord) -> str | None:
    """Remove this cluster's files, and the directory if nothing else is in it. Returns what stays, in words."""
    for name in sorted(os.listdir(data_directory)):
        found = OF_ONE_BROKER.fullmatch(name)
        is_brokers = found is not None and int(found[1]) in record.brokers
        is_zookeepers = name == ZOOKEEPER_DIRECTORY and record.zookeeper.port is not None
        if is_brokers or is_zookeepers or name in OF_THE_CLUSTER:
            path = data_directory / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
    rest = sorted(os.listdir(data_directory))
    if rest:
        return f"{data_directory} stays, for it holds what is not the cluster's: {_told(rest)}"
    with contextlib.suppress(OSError):  # a mount point stays
        data_directory.rmdir()
    return None


_HELD: set[Path] = set()
"""Locks of this process: what holds one may take it again."""


@contextlib.contextmanager
def cluster_lock(data_directory: Path) -> Iterator[None]:
    """Nobody else changes cluster.json until the block ends. Raises ClusterBusy."""
    if data_directory in _HELD:
        yield
        return
    descriptor = os.open(data_directory / LOCK_FILE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        _wait_for_lock(descriptor, data_directory)
        _HELD.add(data_directory)
        yield
    finally:
        _HELD.discard(data_directory)
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
