"""The doctor's checks."""

import asyncio
import os
import resource
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import structs

from minibroker import doctor_checks
from minibroker.commands.doctor import doctor
from minibroker.doctor_checks import DoctorFinding
from minibroker.local_cluster import zookeeper_process
from minibroker.local_cluster.cluster_file import (
    BrokerRecord,
    ClusterFailed,
    ClusterRecord,
    ZooKeeperRecord,
    write_cluster_file,
)
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.local_cluster.processes import ProcessIdentity, identify
from minibroker.local_cluster.zookeeper_process import PortOwner
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.protocol.wire.messages import (
    DescribeClusterResponse,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    MetadataBroker,
    MetadataRequest,
    MetadataResponse,
    Request,
    Response,
)
from tests.minibroker.test_cluster_view import broker, replica, view, without_replica


def test_this_machine_passes_all_checks() -> None:
    findings = [
        doctor_checks.check_python(),
        doctor_checks.check_packages(),
        doctor_checks.check_java(),
        doctor_checks.check_zookeeper_jars(),
    ]
    assert (
        doctor_checks.complaint([*findings, doctor_checks.check_audit_packages(), doctor_checks.check_open_files()])
        is None
    )


def test_an_external_zookeeper_needs_no_java_and_no_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert doctor_checks.complaint(doctor_checks.checks_for_cluster(tmp_path, [], own_zookeeper=False)) is None
    assert "JAVA_HOME" in (doctor_checks.complaint(doctor_checks.checks_for_cluster(tmp_path, [])) or "")


def test_too_few_open_files_are_named_with_a_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "hard_limit", lambda: 1_024)
    assert doctor_checks.check_open_files(max_connections=500).well
    finding = doctor_checks.check_open_files(max_connections=1_000)
    assert not finding.well
    assert "allow 576 connections, not max.connections=1000" in finding.what
    assert finding.cure is not None and "ulimit -n" in finding.cure
    assert doctor_checks.complaint(doctor_checks.checks_for_cluster(Path("/tmp"), [])) is None
    monkeypatch.setattr(doctor_checks, "hard_limit", lambda: 128)
    assert "128 open files are too few" in (
        doctor_checks.complaint(doctor_checks.checks_for_cluster(Path("/tmp"), [])) or ""
    )


def test_open_files_of_a_running_broker_are_compared_with_its_partitions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    me = identify(os.getpid())
    record = ClusterRecord(zookeeper=ZooKeeperRecord(connect="z:1"), brokers={1: BrokerRecord(port=9092, process=me)})
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(record))
    for number in range(300):
        (tmp_path / "broker-1" / f"t-{number}").mkdir(parents=True)
    monkeypatch.setattr(doctor_checks, "_limit_of", lambda pid: 1_600)
    (finding,) = doctor_checks.check_open_files_of_brokers(tmp_path)
    assert (finding.well, finding.what) == (True, "at most 1600; max.connections=1000, 300 partitions")
    record.brokers[1].settings["max.connections"] = "100"
    (tmp_path / "cluster.json").write_bytes(msgspec.json.encode(record))
    monkeypatch.setattr(doctor_checks, "_limit_of", lambda pid: 700)
    (finding,) = doctor_checks.check_open_files_of_brokers(tmp_path)
    assert not finding.well
    assert "180 segment files, and there are 300 partitions" in finding.what
    monkeypatch.undo()
    assert doctor_checks._limit_of(os.getpid()) == min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 1 << 30)


def test_held_port_is_named_with_its_owner_and_a_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (finding,) = doctor_checks.check_ports([port])
    assert not finding.well
    assert "held by pid" in finding.what
    assert finding.cure is not None and "--port" in finding.cure


def test_ports_of_another_cluster_are_one_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the doctor called them fine, and `cluster up` named the cluster once for each port."""
    ours, other = tmp_path / "ours", tmp_path / "our others"
    holders = {9092: other, 9093: other, 9094: other, 9192: ours, 2181: other}
    monkeypatch.setattr(doctor_checks, "_port_owner", lambda port: PortOwner(port, "python"))
    monkeypatch.setattr(doctor_checks, "cluster_of_process", holders.__getitem__)
    fine, wrong = doctor_checks.check_ports(list(holders), lambda holder: holder == ours)
    assert fine == DoctorFinding("port 9192", True, f"held by pid 9192, of the cluster in {ours}")
    assert doctor_checks.complaint([wrong]) == (
        f"ports 9092 to 9094 and 2181: held by the cluster in {other} (minibroker cluster down --data-dir '{other}', or"
        " choose other ports (--port, --zookeeper-port))"
    )


def test_a_port_of_a_container_is_no_process_to_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the cluster of docker-compose.yml the cure was to kill the proxy in front of its broker, even with -b."""
    proxy = PortOwner(77, "/usr/sbin/docker-proxy -proto tcp -host-ip 127.0.0.1 -host-port 9092 -contain...")
    monkeypatch.setattr(doctor_checks, "_port_owner", lambda port: proxy)
    monkeypatch.setattr(doctor_checks, "cluster_of_process", lambda pid: None)
    assert doctor_checks.complaint(doctor_checks.check_ports([9092])) == (
        "port 9092: held by a container (stop the container that `docker ps --filter publish=9092` names, or choose"
        " other ports (--port, --zookeeper-port))"
    )
    expected = [DoctorFinding("port 9092", True, "held by a container")]
    assert doctor_checks.check_ports([9092], others_may=True) == expected


@pytest.mark.parametrize(
    ("cgroup", "cure"),
    [
        ("0::/system.slice/minibroker-broker.service\n", "systemctl stop minibroker-broker.service"),
        ("1:name=systemd:/system.slice/kafka.service\n0::/\n", "systemctl stop kafka.service"),
        ("0::/user.slice/user-0.slice/session-1.scope\n", "kill 77"),
        ("0::/system.slice/ci.service\n", "kill 77"),
    ],
)
def test_a_service_is_no_process_to_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cgroup: str, cure: str
) -> None:
    """systemd starts it again. `ci.service` is the one that this process is in, too."""
    for pid, text in ((77, cgroup), (os.getpid(), "0::/system.slice/ci.service\n")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cgroup").write_text(text)
    monkeypatch.setattr(doctor_checks, "PROC", tmp_path)
    monkeypatch.setattr(doctor_checks, "_port_owner", lambda port: PortOwner(77, "python -m minibroker broker"))
    monkeypatch.setattr(doctor_checks, "cluster_of_process", lambda pid: None)
    (finding,) = doctor_checks.check_ports([9092])
    others = "choose other ports (--port, --zookeeper-port)"
    asked = "" if cure.startswith("kill") else ", or give -b if it is the broker to check"
    assert finding.cure == f"{cure}, or {others}{asked}"


def test_the_broker_that_was_asked_about_is_no_process_to_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a host of docs/DEPLOYMENT.md the doctor with -b found every port held by what it had just found healthy, and
    the cure was to kill the broker and ZooKeeper."""
    holders = {9092: PortOwner(77, "/opt/minibroker/bin/python minibroker broker"), 2181: PortOwner(None, "a process")}
    monkeypatch.setattr(doctor_checks, "_port_owner", holders.__getitem__)
    monkeypatch.setattr(doctor_checks, "cluster_of_process", lambda pid: None)
    assert "kill 77" in str(doctor_checks.complaint(doctor_checks.check_ports([9092])))
    findings = doctor_checks.check_ports([9092, 2181], others_may=True)
    assert [(each.well, each.cure) for each in findings] == [(True, None), (True, None)]


def test_partitions_are_counted_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once `all 0 have a leader`."""
    for count, what in ((0, "there is none yet"), (1, "the only one has a leader"), (2, "all 2 have a leader")):
        view: Any = SimpleNamespace(partitions=dict.fromkeys(range(count)))
        monkeypatch.setattr(doctor_checks, "partition_problems", lambda view: [])
        (finding,) = doctor_checks.partition_findings(view)
        assert finding.what.startswith(what)


def test_a_read_only_disk_is_to_be_mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the cure was chown."""
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    finding = doctor_checks.check_disk(tmp_path)
    assert (finding.well, finding.what) == (False, f"{tmp_path} is on a read-only file system")
    assert finding.cure == "mount it for writing, or choose another --data-dir"


def test_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    finding = doctor_checks.check_java()
    assert not finding.well
    assert str(tmp_path) in finding.what


def test_spark_that_is_not_installed_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_checks, "find_spec", lambda name: None)
    finding = doctor_checks.check_spark()
    assert finding.well and "--engine local" in finding.what


def test_worker_python_that_does_not_exist_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/not/there")
    finding = doctor_checks.check_audit_packages()
    assert (finding.well, finding.cure) == (False, "unset PYSPARK_PYTHON")


def test_disk_check_of_a_missing_directory_uses_its_parent(tmp_path: Path) -> None:
    finding = doctor_checks.check_disk(tmp_path / "not" / "yet")
    assert str(tmp_path) in finding.what


def test_complaint_joins_problems_with_the_same_cure() -> None:
    findings = [
        DoctorFinding("java", False, "no Java", "install it"),
        DoctorFinding("port 1", False, "held by x", "end x"),
        DoctorFinding("port 2", False, "held by x", "end x"),
        DoctorFinding("disk", True, "fine"),
    ]
    assert doctor_checks.complaint(findings) == "java: no Java (install it); port 1, port 2: held by x (end x)"


def test_a_broker_that_ended_by_itself_is_a_problem(tmp_path: Path) -> None:
    """Once the doctor found nothing wrong with a cluster whose brokers had all been killed."""
    assert doctor_checks.check_local_brokers(tmp_path) == []
    local = LocalCluster(tmp_path, 2, port=19_092, zookeeper_port=12_181)
    local.record.brokers[1].process = ProcessIdentity(1, "long ago")
    write_cluster_file(tmp_path, local.record)
    (dead,) = doctor_checks.check_local_brokers(tmp_path)  # broker 2 was stopped, with all others
    assert (dead.check, dead.well) == ("broker 1", False)
    assert dead.cure == f"minibroker cluster start 1 --data-dir {tmp_path}"
    assert doctor_checks.known_ports(tmp_path) == [19_092, 19_093, 12_181]


def test_the_commands_of_a_cure_can_be_pasted(tmp_path: Path) -> None:
    """A directory with a space was two words."""
    directory = tmp_path / "a b"
    directory.mkdir()
    local = LocalCluster(directory, 1, port=19_092, zookeeper_port=12_181)
    local.record.brokers[1].process = ProcessIdentity(1, "long ago")
    write_cluster_file(directory, local.record)
    (dead,) = doctor_checks.check_local_brokers(directory)
    assert dead.cure == f"minibroker cluster start 1 --data-dir '{directory}'"


def test_a_paused_broker_is_a_problem_with_its_own_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who had paused one was told to start it, and `cluster start` said that it runs."""
    local = LocalCluster(tmp_path, 2, port=19_092, zookeeper_port=12_181)
    write_cluster_file(tmp_path, local.record)
    monkeypatch.setattr(LocalCluster, "process_state", lambda _, broker_id: "paused" if broker_id == 2 else "running")
    (paused,) = doctor_checks.check_local_brokers(tmp_path)
    assert (paused.check, paused.well, paused.what) == ("broker 2", False, "broker 2 is paused")
    assert paused.cure == f"minibroker cluster resume 2 --data-dir {tmp_path}"
    text = "broker 2 is paused: `minibroker cluster resume 2` lets it go on"
    assert text in local.process_problems()
    with pytest.raises(ClusterFailed, match=text):
        local._refuse_running(2)
    with pytest.raises(
        ClusterFailed, match="already running: `minibroker cluster stop 1` and then `minibroker cluster start 1`"
    ):
        local._refuse_running(1)


def test_the_brokers_of_the_data_directory_are_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once `--data-dir` named one cluster, and the doctor asked localhost:9092 and found nothing wrong there."""
    asked = []

    async def listen(servers: str, *, must_answer: bool) -> list[DoctorFinding]:
        asked.append(servers)
        return []

    monkeypatch.setattr(doctor_checks, "check_listeners", listen)
    write_cluster_file(tmp_path, LocalCluster(tmp_path, 2, port=19_092, zookeeper_port=12_181).record)
    CliRunner().invoke(doctor, ["--data-dir", str(tmp_path)])
    CliRunner().invoke(doctor, ["--data-dir", str(tmp_path), "-b", "127.0.0.1:1"])
    assert asked == ["127.0.0.1:19092,127.0.0.1:19093", "127.0.0.1:1"]


def test_what_was_found_is_told_if_the_brokers_take_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it was thrown away, with the advice to run the doctor."""

    async def listen(servers: str, *, must_answer: bool) -> list[DoctorFinding]:
        await asyncio.Event().wait()
        return []

    monkeypatch.setattr(doctor_checks, "check_listeners", listen)
    run = CliRunner().invoke(doctor, ["--data-dir", str(tmp_path), "--timeout", "0.01"], standalone_mode=False)
    assert "fine   python: " in run.output
    assert "WRONG  time: the brokers at localhost:9092 had not answered all questions within 0.01 s" in run.output
    assert run.return_value == 10


async def test_brokers_are_asked_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten silent ones took longer than the doctor's time."""
    met = asyncio.Barrier(3)

    async def ask(_: BrokerQueries, server: str, request: Request, *__: object) -> Response:
        if isinstance(request, MetadataRequest):
            return MetadataResponse(brokers=[MetadataBroker(node_id=each, host="h", port=each) for each in (1, 2, 3)])
        async with asyncio.timeout(5):
            await met.wait()
        raise NoAnswer(f"{server} is silent")

    monkeypatch.setattr(BrokerQueries, "ask", ask)
    found = await doctor_checks.check_listeners("h:1")
    assert [finding.what.rpartition(": ")[2] for finding in found] == [f"h:{each} is silent" for each in (1, 2, 3)]


async def test_an_address_that_a_person_gave_must_answer() -> None:
    (finding,) = await doctor_checks.check_listeners("127.0.0.1:1", must_answer=True)
    assert (finding.well, finding.what) == (False, "no broker answers at 127.0.0.1:1")


def test_a_complaint_names_the_owner_of_each_port() -> None:
    """Once one pid was named for all ports."""
    held = [DoctorFinding(f"port {port}", False, f"held by pid {port}", "end it") for port in (1, 2)]
    assert doctor_checks.complaint(held) == "port 1: held by pid 1, port 2: held by pid 2 (end it)"


async def test_silent_zookeeper_is_named() -> None:
    finding = await doctor_checks.check_zookeeper("127.0.0.1:1")
    assert (finding.well, finding.what) == (False, "127.0.0.1:1 does not answer")


async def test_a_zookeeper_that_answers_with_an_empty_line_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an IndexError."""

    async def ask(port: int, word: str, host: str) -> str:
        return " \n"

    monkeypatch.setattr(zookeeper_process, "ask_zookeeper", ask)
    finding = await doctor_checks.check_zookeeper("127.0.0.1:1")
    assert (finding.well, finding.what) == (False, "127.0.0.1:1 does not answer")


async def test_a_broker_that_does_not_describe_the_cluster_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a traceback with NoAnswer."""

    async def ask(_: BrokerQueries, server: str, request: Request, *__: object) -> Response:
        if isinstance(request, MetadataRequest):
            return MetadataResponse(brokers=[MetadataBroker(node_id=1, host="h", port=1)])
        if isinstance(request, DescribeReplicaStateRequest):
            return DescribeReplicaStateResponse(broker_id=1)
        raise NoAnswer("h:1 answered UNSUPPORTED_VERSION")

    monkeypatch.setattr(BrokerQueries, "ask", ask)
    (finding,) = await doctor_checks.check_listeners("h:1")
    assert not finding.well
    assert finding.what == "advertises h:1, and does not describe the cluster: h:1 answered UNSUPPORTED_VERSION"


@pytest.mark.parametrize(
    ("broker_id", "fenced", "what"),
    [
        (2, True, ["h:2 answers, but is not registered: it has lost ZooKeeper"]),
        (2, False, ["h:2 answers, but is not registered"]),
        (1, False, []),  # another name of broker 1
    ],
)
async def test_a_broker_that_the_others_take_for_dead_is_named(
    monkeypatch: pytest.MonkeyPatch, broker_id: int, *, fenced: bool, what: list[str]
) -> None:
    """It runs, but lost ZooKeeper. The doctor, who was given its address, too, knew only that replicas are out of sync,
    and advised to start the brokers that are down."""

    async def ask(_: BrokerQueries, server: str, request: Request, *__: object) -> Response:
        if isinstance(request, MetadataRequest):
            return MetadataResponse(brokers=[MetadataBroker(node_id=1, host="h", port=1)])
        if server == "h:3":
            raise NoAnswer("h:3 refused")
        if isinstance(request, DescribeReplicaStateRequest):
            one = server == "h:1"
            return DescribeReplicaStateResponse(broker_id=1 if one else broker_id, fenced=fenced and not one)
        return DescribeClusterResponse()

    monkeypatch.setattr(BrokerQueries, "ask", ask)
    first, *others = await doctor_checks.check_listeners("h:1,h:2,h:3")
    assert first.well
    assert [each.what for each in others] == what
    assert not any(each.well for each in others)


async def test_listener_check_passes_without_a_cluster() -> None:
    (finding,) = await doctor_checks.check_listeners("127.0.0.1:1")
    assert finding.well


def test_a_partition_without_a_leader_is_a_problem() -> None:
    """Once the doctor found no problem although two partitions had no leader."""
    (led,) = doctor_checks.partition_findings(view())
    assert led.well
    (lost, silent) = doctor_checks.partition_findings(view(leader=-1, three=without_replica(3)))
    assert (lost.well, lost.what) == (False, "t-0 has no leader: replicas [1, 2, 3], ISR [1, 2, 3]")
    assert lost.cure is not None and "`minibroker partition elect t-0`" in lost.cure
    assert silent.what == "t-0: broker 3 answers, but has no replica of it"


def test_a_damaged_log_is_named_with_its_partition() -> None:
    damaged = structs.replace(replica("leader", 10), damage="a bit flipped")
    (finding,) = doctor_checks.partition_findings(view(one=broker(1, damaged)))
    assert finding.what.startswith("t-0: broker 1 leads with a damaged log") and "a bit flipped" in finding.what
    assert finding.cure is not None and "start the brokers that hold a copy" in finding.cure
