"""What retention must keep, and which settings a broker may use: the checkers, on a cluster that never starts."""

from types import SimpleNamespace
from typing import cast

import pytest

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader, build_batch, read_header
from minibroker.protocol.znodes import CONTROLLER, ConfigNode, topic_config_path
from minibroker.runtime.ports import CreateOp, SetOp
from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.control.topic_settings import TopicSettingsChecker
from minibroker.simulation.checks.control.wanted_settings import WantedSettings
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.replication.retention import RetentionChecker
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster

A = TopicPartition("a", 0)
HOUR_MS = 3_600_000


class Replica:
    """The part of a replica that the checker reads."""

    def __init__(self) -> None:
        self.topic_partition = A
        self.log = SimpleNamespace(topic_partition=A, topic_id="id")
        self.state = SimpleNamespace(log_start_offset=0)


class Case:
    """Broker 1 and a promised topic `a`."""

    def __init__(self, settings: dict[str, str]) -> None:
        self.cluster = SimulatedCluster(0, brokers=1)
        self.reference = ReferenceState(self.cluster, {"a": (1, 1, 1)})
        self.settings = WantedSettings(self.cluster, Stability(self.cluster, self.reference), settings)
        self.checker = RetentionChecker(self.cluster, self.reference, self.settings)
        self.process = self.cluster.world.process("broker-1")
        self.replica = Replica()

    def write(self, base_offset: int, at_ms: int = 0) -> None:
        self.cluster.world.machine("broker-1").clock_skew_ms = at_ms
        self.process.context.run(self.checker.appended, cast(PartitionLog, self.replica.log), [batch_at(base_offset)])

    def delete_to(self, start: int, at_ms: int = 0) -> list[str]:
        self.cluster.world.machine("broker-1").clock_skew_ms = at_ms
        self.replica.state.log_start_offset = start
        event = ev.LogTrimmed(leader_epoch=0, log_start_offset=start, reason=LogStartReason.RETENTION)
        self.process.context.run(self.checker.stepped, cast(Partition, self.replica), event, (), False)
        return [found.invariant for found in self.reference.findings]


def batch_at(base_offset: int) -> BatchHeader:
    batch = bytearray(build_batch([(None, b"value", 0, ())]))
    batch[0:8] = base_offset.to_bytes(8, "big")
    return read_header(batch)


SIZE = batch_at(0).size_bytes


@pytest.mark.invariant("I43")
@pytest.mark.parametrize(("start", "found"), [(1, []), (2, ["I43"])])
def test_a_leader_keeps_as_many_bytes_as_it_must(start: int, found: list[str]) -> None:
    case = Case({"log.retention.bytes": str(2 * SIZE)})
    for offset in (0, 1, 2):
        case.write(offset)
    assert case.delete_to(start) == found


@pytest.mark.invariant("I43")
def test_a_truncated_batch_is_not_counted() -> None:
    case = Case({"log.retention.bytes": str(2 * SIZE)})
    for offset in (0, 1, 2, 1):
        case.write(offset)
    assert case.delete_to(1) == ["I43"]


@pytest.mark.invariant("I43")
@pytest.mark.parametrize(("start", "found"), [(2, []), (3, ["I43"])])
def test_a_leader_keeps_young_records_by_its_own_clock(start: int, found: list[str]) -> None:
    case = Case({"log.retention.ms": str(HOUR_MS)})
    for offset, at_ms in ((0, 0), (1, 1), (2, HOUR_MS)):
        case.write(offset, at_ms)
    assert case.delete_to(start, at_ms=HOUR_MS + 2) == found


@pytest.mark.invariant("I43")
@pytest.mark.parametrize("later_ms", [(HOUR_MS,), (2 * HOUR_MS + 1, HOUR_MS)])
@pytest.mark.parametrize(("seconds", "found"), [(0.1, []), (60, ["I43"])])
def test_a_start_may_be_older_than_the_clock_that_was_set_back_meanwhile(
    seconds: float, found: list[str], later_ms: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker decides by its clock, and records the start then (seed 17540027), also if the clock is set twice."""
    case = Case({"log.retention.ms": "1000"})
    case.write(0, 2 * HOUR_MS)
    case.write(1, 2 * HOUR_MS)
    case.cluster.world.machine("broker-1").clock_skew_ms += 2000
    case.checker.sample()
    for skew_ms in later_ms:
        case.cluster.world.machine("broker-1").clock_skew_ms = skew_ms
        case.checker.sample()
    monkeypatch.setattr(case.cluster.world.loop, "elapsed", seconds)
    assert case.delete_to(1, at_ms=HOUR_MS) == found


@pytest.mark.invariant("I43")
@pytest.mark.parametrize(("is_held", "found"), [(True, []), (False, ["I43"])])
def test_a_hanging_disk_keeps_a_start_that_was_decided_by_the_clock_before(
    is_held: bool, found: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the start waits for as long as the disk hangs, 4 s, and then the broker deletes."""
    case = Case({"log.retention.ms": "1000", "request.timeout.ms": "1000"})
    case.write(0, 2 * HOUR_MS)
    case.write(1, 2 * HOUR_MS)
    machine, loop, bound = case.cluster.world.machine("broker-1"), case.cluster.world.loop, case.settings.bound_seconds
    machine.clock_skew_ms += 2000
    case.checker.sample()
    machine.clock_skew_ms = HOUR_MS
    if is_held:
        machine.storage.hang(4.0)
    for seconds in (0.1, bound - 0.1):
        monkeypatch.setattr(loop, "elapsed", seconds)
        case.checker.sample()
    monkeypatch.setattr(loop, "elapsed", bound + 0.5)
    assert case.delete_to(1, at_ms=HOUR_MS) == found


@pytest.mark.invariant("I45")
@pytest.mark.parametrize("is_asked_before", [False, True])
def test_a_broker_may_use_a_value_until_it_must_have_heard_of_the_next(
    is_asked_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checker that asks for the first time after a change is told of the earlier values, too (seed 89102080018)."""
    case = Case({})
    tree, path = case.cluster.world.zookeeper.tree, topic_config_path("a")
    for parent in ("/config", "/config/topics"):
        if parent not in tree.nodes:
            tree.transact([CreateOp(path=parent, data=b"")], 0)
    if is_asked_before:
        assert case.settings.possible(1, "a", "segment.bytes") == {str(1 << 30)}
    with checking(case.cluster, case.reference, case.settings):
        for value in ("8192", "4096"):
            data = ConfigNode(config={"segment.bytes": value}).encode()
            write = SetOp(path=path, data=data) if path in tree.nodes else CreateOp(path=path, data=data)
            tree.transact([write], 0)
    assert case.settings.wanted(1, "a", "segment.bytes") == "4096"
    assert case.settings.possible(1, "a", "segment.bytes") == {"4096", "8192", str(1 << 30)}
    monkeypatch.setattr(case.cluster.world.loop, "elapsed", case.settings.bound_seconds + 1.0)
    case.settings.sample()
    assert case.settings.possible(1, "a", "segment.bytes") == {"4096", "8192", str(1 << 30)}, "it is not well"
    monkeypatch.setattr(case.settings, "could_know", lambda broker_id: True)
    case.settings.sample()
    assert case.settings.possible(1, "a", "segment.bytes") == {"4096"}


def test_nothing_is_judged_before_the_cluster_is_up() -> None:
    case = Case({})
    TopicSettingsChecker(case.cluster, case.reference, case.settings).sample()
    assert not case.settings.could_know(1)
    assert case.reference.findings == []


@pytest.mark.invariant("I45")
def test_nothing_is_judged_after_a_change_of_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two controllers a broker that starts is told no topic's settings (seed 17271494)."""
    case = Case({})
    long_ago = -2 * case.settings.bound_seconds
    monkeypatch.setattr(case.cluster, "controller", lambda: 1)
    always_well = SimpleNamespace(since=long_ago, fit_since=lambda broker_id: long_ago)
    monkeypatch.setattr(case.settings, "_stability", always_well)
    monkeypatch.setattr(case.settings, "_controller_since", long_ago)
    assert case.settings.could_know(1)
    with checking(case.cluster, case.reference, case.settings):
        case.cluster.world.zookeeper.tree.transact([CreateOp(path=CONTROLLER, data=b"")], 0)
    assert not case.settings.could_know(1)
