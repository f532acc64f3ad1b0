"""The doctor's checks: does this machine have what a cluster and the audit need, and is the cluster healthy?

Owns: each check, its result and its cure. Leaves to others: printing. It changes nothing. `doctor` runs all checks;
`cluster up`, `audit` and the demo run the ones they need before they start.
"""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import msgspec

from minibroker.local_cluster import zookeeper_jars, zookeeper_process
from minibroker.local_cluster.broker_process import was_killed
from minibroker.local_cluster.cluster_file import CLUSTER_FILE, ClusterMissing, read_cluster_file
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.pasteable_cures import with_data_directory
from minibroker.local_cluster.processes import PROC
from minibroker.local_cluster.zookeeper_process import OTHER_PORTS, PortOwner
from minibroker.observation import cures
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.observation.cluster_view import ClusterView, partition_problems, view_cluster
from minibroker.observation.cures import ZOOKEEPER_CURE
from minibroker.protocol.counted import counted
from minibroker.protocol.files.checkpoints import parse_partition_directory_name
from minibroker.protocol.wire.messages import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    MetadataBroker,
)
from minibroker.runtime.adapters.descriptors import hard_limit
from minibroker.runtime.descriptor_shares import LIMIT_MIN, UNLIMITED, share_out
from minibroker.runtime.server.server_limits import ServerLimits

PYTHON_MIN = (3, 11)
DISK_FREE_BYTES_MIN = 1_000_000_000
"""The demo writes 64 MB to three replicas; a broker without space refuses writes."""
BROKER_PACKAGES = ("uvloop", "msgpack", "msgspec", "kazoo", "crc32c", "click", "rich", "prometheus_client")
AUDIT_PACKAGES = {"pyspark": "4", "pyarrow": "18", "pandas": "2.2"}
HEALS_CURE = "start the brokers that are down; where another replica leads, it recovers by itself"
PARTITIONS_SHOWN = 10
INSTALL_CURE = "run `make setup`, or pip install 'minibroker[spark]'"


class DoctorFinding(msgspec.Struct, frozen=True):
    """The result of one check."""

    check: str
    well: bool
    what: str
    cure: str | None = None


# ------------------------------------------------------------------------------------------------------ this machine
def check_python() -> DoctorFinding:
    number = ".".join(map(str, sys.version_info[:3]))
    what = f"{number} at {sys.executable}"
    if sys.version_info[:2] < PYTHON_MIN:
        return DoctorFinding("python", False, what, "use Python 3.11 or newer: PYTHON=/path/to/python3 make setup")
    if not __debug__:
        return DoctorFinding(
            "python", False, f"{what}, with -O", "run without -O and PYTHONOPTIMIZE: invariants are asserts"
        )
    return DoctorFinding("python", True, what)


def check_packages() -> DoctorFinding:
    missing = [name for name in BROKER_PACKAGES if find_spec(name) is None]
    if missing:
        return DoctorFinding("packages", False, f"missing: {', '.join(missing)}", INSTALL_CURE)
    return DoctorFinding("packages", True, f"all {len(BROKER_PACKAGES)} are there")


def check_java() -> DoctorFinding:
    try:
        java = zookeeper_process.find_java()
    except zookeeper_process.MissingJava as error:
        what, _, cure = str(error).rpartition(": ")
        return DoctorFinding("java", False, what, cure)
    where = "JAVA_HOME" if os.environ.get("JAVA_HOME") else "PATH"
    return DoctorFinding("java", True, f"{java.version} at {java.path} (from {where}, as Spark finds it)")


def check_zookeeper_jars() -> DoctorFinding:
    try:
        jars = zookeeper_jars.zookeeper_jars()
    except zookeeper_jars.MissingZooKeeper as error:
        what, _, cure = str(error).partition(": ")
        return DoctorFinding("zookeeper", False, what, cure)
    return DoctorFinding("zookeeper", True, jars[0])


def check_audit_packages(*, local_workers: bool = True) -> DoctorFinding:
    found = []
    for name, least in AUDIT_PACKAGES.items():
        try:
            installed = version(name)
        except PackageNotFoundError:
            return DoctorFinding("spark", False, f"{name} is not installed", INSTALL_CURE)
        if _number(installed) < _number(least):
            return DoctorFinding("spark", False, f"{name} is {installed}, {least} or newer is needed", INSTALL_CURE)
        found.append(f"{name} {installed}")
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if local_workers else ("PYSPARK_DRIVER_PYTHON",):
        other = os.environ.get(variable)
        if other and shutil.which(other) is None:
            return DoctorFinding("spark", False, f"{variable} is {other}, which does not exist", f"unset {variable}")
    return DoctorFinding("spark", True, ", ".join(found))


def check_spark() -> DoctorFinding:
    """The audit's other engine works without it, so that its absence is no fault."""
    if find_spec("pyspark") is None:
        what = "not installed, and not needed by `minibroker audit --engine local`; minibroker[spark] contains it"
        return DoctorFinding("spark", True, what)
    return check_audit_packages()


def _number(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())


def check_open_files(max_connections: int = ServerLimits().connections_max) -> DoctorFinding:
    """Of a broker started here, which raises its soft limit to the hard one."""
    limit = hard_limit()
    shares = share_out(limit, max_connections)
    return _open_files("open files", f"{_some_files(limit)} per process", shares.shortage)


def check_open_files_of_brokers(directory: Path) -> list[DoctorFinding]:
    """Compare the limit of each running broker of a local cluster with its settings and its partitions."""
    try:
        record = read_cluster_file(directory)
    except ClusterMissing:
        return []
    findings = []
    for broker_id, broker in sorted(record.brokers.items()):
        limit = _limit_of(broker.process.pid) if broker.process and broker.process.is_alive() else None
        if limit is None:
            continue
        settings = {**record.settings, **broker.settings}
        wanted = int(settings.get("max.connections", ServerLimits().connections_max))
        partitions = _count_partitions(directory / f"broker-{broker_id}")
        shares = share_out(limit, wanted, partitions)
        what = f"{_some_files(limit)}; max.connections={wanted}, {counted(partitions, 'partition')}"
        findings.append(_open_files(f"open files of broker {broker_id}", what, shares.shortage))
    return findings


def _open_files(name: str, what: str, shortage: str | None) -> DoctorFinding:
    if shortage is None:
        return DoctorFinding(name, True, what)
    why, _, cure = shortage.partition(": ")
    return DoctorFinding(name, False, why, cure)


def _some_files(limit: int) -> str:
    return "no limit" if limit >= UNLIMITED else f"at most {limit}"


def _limit_of(pid: int) -> int | None:
    """The soft limit of a process; None where it cannot be read."""
    try:
        lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("Max open files")), [])
    if len(words) < 4:
        return None
    return int(words[3]) if words[3].isdigit() else UNLIMITED


def _count_partitions(log_directory: Path) -> int:
    try:
        names = os.listdir(log_directory)
    except OSError:
        return 0
    return sum(parse_partition_directory_name(name) is not None for name in names)


def check_disk(directory: Path) -> DoctorFinding:
    place = next(path for path in (directory.absolute(), *directory.absolute().parents) if path.exists())
    if os.statvfs(place).f_flag & os.ST_RDONLY:
        cure = "mount it for writing, or choose another --data-dir"
        return DoctorFinding("disk", False, f"{place} is on a read-only file system", cure)
    if not os.access(place, os.W_OK):
        return DoctorFinding("disk", False, f"{place} cannot be written", "choose another --data-dir, or chown it")
    free = shutil.disk_usage(place).free
    what = f"{free / 1e9:.1f} GB free at {place}"
    if free < DISK_FREE_BYTES_MIN:
        return DoctorFinding("disk", False, what, "make room (1 GB at least), or choose another --data-dir")
    return DoctorFinding("disk", True, what)


def check_ports(
    ports: Sequence[int],
    may_hold: Callable[[Path], bool] = lambda directory: False,
    *,
    others_may: bool = False,
) -> list[DoctorFinding]:
    """One result for each port, naming the process that holds it; one for all that a local cluster holds which may
    not. `may_hold`: may the cluster in that directory? `others_may`: may any other process, a container among them? It
    may where the user asks about a cluster that runs: its brokers hold these ports."""
    findings = []
    of_others: dict[Path, list[int]] = {}
    for port in ports:
        owner = _port_owner(port)
        directory = cluster_of_process(owner.pid) if isinstance(owner, PortOwner) and owner.pid else None
        if directory is None:
            findings.append(_check_port(port, owner, others_may))
        elif may_hold(directory):
            assert isinstance(owner, PortOwner)
            what = f"held by pid {owner.pid}, of the cluster in {directory}"
            findings.append(DoctorFinding(f"port {port}", True, what))
        else:
            of_others.setdefault(directory, []).append(port)
    for directory, held in of_others.items():
        cure = f"minibroker cluster down --data-dir {shlex.quote(str(directory))}, or {OTHER_PORTS}"
        findings.append(DoctorFinding(_named_ports(held), False, f"held by the cluster in {directory}", cure))
    return findings


def _port_owner(port: int) -> PortOwner | str | None:
    """None: it is free. A text: why it cannot be used, though no process listens there."""
    try:
        zookeeper_process.refuse_taken_port(port)
    except zookeeper_process.PortTaken as error:
        return zookeeper_process.find_port_owner(port) or str(error)
    return None


def _check_port(port: int, owner: PortOwner | str | None, others_may: bool) -> DoctorFinding:
    name = f"port {port}"
    if owner is None:
        return DoctorFinding(name, True, "free")
    if isinstance(owner, str):
        return DoctorFinding(name, False, owner, OTHER_PORTS)
    if owner.pid is None:
        return DoctorFinding(name, others_may, f"held by {owner.command}", None if others_may else OTHER_PORTS)
    if Path(owner.command.partition(" ")[0]).name == "docker-proxy":  # to kill it would cut the container off
        cure = f"stop the container that `docker ps --filter publish={port}` names, or {OTHER_PORTS}"
        return DoctorFinding(name, others_may, "held by a container", None if others_may else cure)
    service = _service_of(owner.pid)
    if service is None or service == _service_of(os.getpid()):
        cure = f"kill {owner.pid}, or {OTHER_PORTS}"
    else:  # systemd would start it again, and it may be the broker of this host
        cure = f"systemctl stop {service}, or {OTHER_PORTS}, or give -b if it is the broker to check"
    what = f"held by pid {owner.pid} ({owner.command})"
    return DoctorFinding(name, others_may, what, None if others_may else cure)


def _service_of(pid: int) -> str | None:
    """The unit of systemd's that runs the process; None if none does, or if that cannot be read."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    paths = [line.rpartition(":")[2] for line in lines if ":/system.slice/" in line]
    return next((Path(path).name for path in paths if path.endswith(".service")), None)


def _named_ports(ports: Sequence[int]) -> str:
    """`port 2181`, `ports 9092 to 9094 and 2181`."""
    ranges: list[list[int]] = []
    for port in ports:
        if ranges and port == ranges[-1][-1] + 1:
            ranges[-1].append(port)
        else:
            ranges.append([port])
    names = [str(each[0]) if len(each) == 1 else f"{each[0]} to {each[-1]}" for each in ranges]
    return f"port{'s' if len(ports) > 1 else ''} {', '.join(names[:-1])}{' and ' if names[1:] else ''}{names[-1]}"


def cluster_of_process(pid: int) -> Path | None:
    """The data directory that a broker or ZooKeeper of a local cluster belongs to; None for any other process."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    for word in words:
        path = Path(os.fsdecode(word))
        directory = path.parent if path.suffix == ".properties" else path.parent.parent
        if path.suffix in (".properties", ".cfg") and (directory / CLUSTER_FILE).exists():
            return directory
    return None


def checks_for_cluster(directory: Path, ports: Sequence[int], *, own_zookeeper: bool = True) -> list[DoctorFinding]:
    """What `cluster up` needs. Only a ZooKeeper of its own needs Java and jars."""
    here = [check_python(), check_packages()]
    if own_zookeeper:
        here += [check_java(), check_zookeeper_jars()]
    if hard_limit() < LIMIT_MIN:  # between this and the limit it needs, a broker runs with a warning
        here.append(check_open_files())
    return [*here, check_disk(directory), *check_ports(ports)]


def checks_for_audit(engine: str, master: str | None = None) -> list[DoctorFinding]:
    """What `audit` needs. PYSPARK_PYTHON is checked here only if Spark's workers run here."""
    if engine != "spark":
        return [check_python(), check_packages()]
    local_workers = (master or os.environ.get("SPARK_MASTER") or "local").startswith("local")
    return [check_python(), check_packages(), check_java(), check_audit_packages(local_workers=local_workers)]


def complaint(findings: Iterable[DoctorFinding]) -> str | None:
    """All problems in one sentence, each with its cure; None if there is none."""
    by_cure: dict[str | None, list[DoctorFinding]] = {}
    for finding in findings:
        if not finding.well:
            by_cure.setdefault(finding.cure, []).append(finding)
    return "; ".join(f"{_together(wrong)} ({cure})" for cure, wrong in by_cure.items()) or None


def _together(wrong: list[DoctorFinding]) -> str:
    """Findings with one cure; the same words are said once."""
    by_words: dict[str, list[str]] = {}
    for finding in wrong:
        by_words.setdefault(finding.what, []).append(finding.check)
    return ", ".join(f"{', '.join(checks)}: {what}" for what, checks in by_words.items())


# -------------------------------------------------------------------------------------------------------- a cluster
def ports_of_cluster_in(directory: Path) -> tuple[list[int], str | None]:
    """Ports of the live processes of a data directory, not of the one that it is a copy of, and its ZooKeeper's
    address; ([], None) if there is none."""
    try:
        local = LocalCluster.open(directory)
    except ClusterMissing:
        return [], None
    held = [local.record.brokers[each].port for each in local.running_brokers()]
    if local.record.zookeeper.port is not None and local.zookeeper.is_running():
        held.append(local.record.zookeeper.port)
    return held, local.record.zookeeper.connect


def check_local_brokers(directory: Path) -> list[DoctorFinding]:
    """Brokers of the cluster in this directory that ended by themselves, are paused, or are down while others run."""
    try:
        local = LocalCluster.open(directory)
    except ClusterMissing:
        return []
    found = []
    for broker_id in local.broker_ids:
        state = local.process_state(broker_id)
        if state in ("dead", "paused") or (state == "down" and local.is_running()):
            how = "is paused" if state == "paused" else "is down"
            what = "; ".join(local.ended_by_themselves(broker_id)) or f"broker {broker_id} {how}"
            verb = "resume" if state == "paused" else "start"
            cure = with_data_directory(f"`minibroker cluster {verb} {broker_id}`", directory).strip("`")
            is_refused = state == "dead" and not was_killed(local.process_log(broker_id))
            cure = f"repair that, then {cure}" if is_refused else cure
            found.append(DoctorFinding(f"broker {broker_id}", False, what, cure))
    return found


def known_ports(directory: Path) -> list[int]:
    """All ports of the cluster in this directory, also while it is down; ZooKeeper's last."""
    try:
        record = read_cluster_file(directory)
    except ClusterMissing:
        return []
    own = [record.zookeeper.port] if record.zookeeper.port else []
    return [broker.port for broker in record.brokers.values()] + own


async def check_zookeeper(connect: str, cure: str = ZOOKEEPER_CURE) -> DoctorFinding:
    """Whether one of the servers reports that it serves."""
    for server in connect.split("/")[0].split(","):
        host, _, port = server.strip().rpartition(":")
        if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65_536):
            return DoctorFinding("zookeeper", False, f"'{server}' is not HOST:PORT", "give --zookeeper HOST:PORT")
        answer = await zookeeper_process.ask_zookeeper(int(port), "srvr", host or "127.0.0.1")
        mode = next((line for line in answer.splitlines() if line.startswith("Mode:")), None)
        if mode is not None:
            return DoctorFinding("zookeeper", True, f"{server} answers ({mode})")
        if answer.strip():
            first = answer.strip().splitlines()[0]
            if "not executed because it is not in the whitelist" in first:
                return DoctorFinding("zookeeper", True, f"{server} answers (srvr is not in its 4lw.commands.whitelist)")
            return DoctorFinding("zookeeper", False, f"{server} says: {first}", "wait for its quorum, or see its log")
    return DoctorFinding(
        "zookeeper", False, f"{connect} does not answer", f"{cure}, or give another --zookeeper HOST:PORT"
    )


async def check_listeners(servers: str, *, must_answer: bool = False) -> list[DoctorFinding]:
    """Whether every advertised address is reachable from here, and the right broker answers there. `must_answer`: a
    person has named these servers, so one without a broker is wrong."""
    async with BrokerQueries("minibroker-doctor") as queries:
        try:
            metadata = await queries.metadata(servers, [])
        except NoAnswer:
            if must_answer:
                cure = "correct the address, or start a broker there"
                return [DoctorFinding("brokers", False, f"no broker answers at {servers}", cure)]
            return [DoctorFinding("brokers", True, f"no broker answers at {servers}: no cluster to check")]
        listed = await asyncio.gather(*(_check_listener(queries, broker) for broker in metadata.brokers))
        addresses = {f"{broker.host}:{broker.port}" for broker in metadata.brokers}
        others = [server for server in servers.split(",") if server not in addresses]
        known = {broker.node_id for broker in metadata.brokers}
        unlisted = await asyncio.gather(*(_check_unlisted(queries, server, known) for server in others))
        return [*listed, *(finding for finding in unlisted if finding is not None)]


async def check_partitions(servers: str) -> list[DoctorFinding]:
    """The partition problems of `cluster status`, in the same words."""
    async with BrokerQueries("minibroker-doctor") as queries:
        try:
            return partition_findings(await view_cluster(queries, servers))
        except NoAnswer:
            return []  # `check_listeners` reports that


def partition_findings(view: ClusterView) -> list[DoctorFinding]:
    """One result per problem; only the first ones where there are many."""
    wrong = partition_problems(view)
    if not wrong:
        count, well = len(view.partitions), "a leader and all replicas in sync"
        texts = {0: "there is none yet", 1: f"the only one has {well}"}
        return [DoctorFinding("partitions", True, texts.get(count, f"all {count} have {well}"))]
    shown = [
        DoctorFinding("partitions", False, each.what, each.cure or HEALS_CURE) for each in wrong[:PARTITIONS_SHOWN]
    ]
    if len(wrong) > PARTITIONS_SHOWN:
        more = f"{counted(len(wrong) - PARTITIONS_SHOWN, 'more finding')} like these"
        shown.append(DoctorFinding("partitions", False, more, "see `minibroker replicas --check`"))
    return shown


async def _check_unlisted(queries: BrokerQueries, server: str, known: set[int]) -> DoctorFinding | None:
    """Of a broker that answers, and that the others do not know: they take it for dead."""
    (state,) = await queries.replica_states([server], [])
    if isinstance(state, NoAnswer) or state.broker_id in known:
        return None
    why, cure = "", "see its log"
    if state.fenced:
        why, cure = ": it has lost ZooKeeper", ZOOKEEPER_CURE
    return DoctorFinding(f"broker {state.broker_id}", False, f"{server} answers, but is not registered{why}", cure)


async def _check_listener(queries: BrokerQueries, broker: MetadataBroker) -> DoctorFinding:
    name, server = f"broker {broker.node_id}", f"{broker.host}:{broker.port}"
    (state,) = await queries.replica_states([server])
    if isinstance(state, NoAnswer):
        cure = "start that broker, or set its advertised.listeners to an address that can be reached from here"
        return DoctorFinding(name, False, f"advertises {server}, which cannot be reached from here: {state}", cure)
    if state.broker_id != broker.node_id:
        cure = f"set the advertised.listeners of broker {broker.node_id} to its own address"
        return DoctorFinding(name, False, f"advertises {server}, where broker {state.broker_id} answers", cure)
    if state.fenced:
        return DoctorFinding(name, False, f"{server} is fenced, because it has lost ZooKeeper", ZOOKEEPER_CURE)
    if state.log_directory != "online":
        cure = cures.of_log_directory(state.log_directory, state.log_directory_reason)
        return DoctorFinding(
            name, False, f"its log directory is {state.log_directory}: {state.log_directory_reason}", cure
        )
    try:
        await queries.ask(server, DescribeClusterRequest(), DescribeClusterResponse)
    except NoAnswer as error:
        cure = "run the same version on this machine and on all brokers, or see that broker's log"
        return DoctorFinding(name, False, f"advertises {server}, and does not describe the cluster: {error}", cure)
    return DoctorFinding(name, True, f"advertises {server}, reached from here")
