"""The checkers for faulty disks: over-deletion, wrong offsets, copied damage, offline leaders that stay leaders, failed
syncs, sound logs reported as damaged."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.observations import BatchesLogged, RecordsRead
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.log_starts import HEAD_MISSING
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader, build_batch, read_header
from minibroker.protocol.wire.codec import FetchedRecords
from minibroker.protocol.wire.messages import FetchPartitionResponse
from minibroker.runtime.ports import DiskError
from minibroker.simulation.checks.checker import checking
from minibroker.simulation.checks.control.offline import BOUND_SECONDS, OfflineLeaderChecker
from minibroker.simulation.checks.control.wanted_settings import WantedSettings
from minibroker.simulation.checks.disks.failed_syncs import NOTICED_SECONDS, FailedSyncChecker
from minibroker.simulation.checks.disks.sound_logs import SoundLogChecker
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.checks.replication.log_starts import BatchSizes, LogStartChecker
from minibroker.simulation.checks.replication.served import ServedChecker
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster

A = TopicPartition("a", 0)
BATCH = build_batch([(None, b"value", 0, ())])
SIZE = len(BATCH)


class Case:
    """One broker that never starts, with a promised topic `a`."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(0, brokers=1)
        self.reference = ReferenceState(self.cluster, {"a": (1, 1, 1)})
        self.process = self.cluster.world.process("broker-1")

    def inside(self, call: Any, *args: Any) -> Any:
        """In the broker's process."""
        return self.process.context.run(call, *args)

    @property
    def found(self) -> list[str]:
        return [finding.invariant for finding in self.reference.findings]


def stamped(base_offset: int, epoch: int = 0) -> tuple[BatchHeader, bytes]:
    batch = bytearray(BATCH)
    batch[0:8], batch[12:16] = base_offset.to_bytes(8, "big"), epoch.to_bytes(4, "big")
    return read_header(batch), bytes(batch)


class Replica:
    """The part of a replica that the checkers read."""

    def __init__(self, start: int, is_leader: bool = True) -> None:
        self.topic_partition = A
        self.state = SimpleNamespace(log_start_offset=start, is_leader=is_leader, is_offline=False)
        segments = [SimpleNamespace(base_offset=start)]
        health = SimpleNamespace(offline=True)
        self.log = SimpleNamespace(health=health, damage=None, segments=segments, recorded_start_offset=start)


def replica(start: int, is_leader: bool = True) -> Partition:
    return cast(Partition, Replica(start, is_leader))


LOG = cast(PartitionLog, SimpleNamespace(topic_partition=A))
EVENT = cast(ev.ReplicaEvent, None)


# ---------------------------------------------------------------------------------------------------------- log starts
def test_bytes_of_a_fork_are_counted_once_for_each_offset() -> None:
    written = BatchSizes()
    for base, size in ((0, 10), (2, 30), (1, 20), (2, 5)):
        written.add(base, size)
    assert [written.bytes_from(offset) for offset in (0, 1, 2, 3)] == [60, 50, 30, 0]


def wanted(case: Case, settings: dict[str, str]) -> WantedSettings:
    return WantedSettings(case.cluster, Stability(case.cluster, case.reference), settings)


@pytest.mark.invariant("I43")
@pytest.mark.parametrize(
    ("settings", "start", "found"),
    [
        ({}, 1, ["I43"]),
        ({}, 0, []),
        ({"log.retention.bytes": str(2 * SIZE)}, 1, []),
        ({"log.retention.bytes": str(2 * SIZE)}, 2, ["I43"]),
    ],
)
def test_a_leaders_log_start_is_bounded_by_retention(settings: dict[str, str], start: int, found: list[str]) -> None:
    case = Case()
    checker = LogStartChecker(case.cluster, case.reference, wanted(case, settings))
    checker.appended(LOG, [stamped(offset)[0] for offset in range(3)])
    case.inside(checker.stepped, replica(start), EVENT, (), False)
    assert case.found == found


@pytest.mark.invariant("I43")
def test_a_follower_may_load_any_start_and_take_over_only_a_lawful_one() -> None:
    case = Case()
    checker = LogStartChecker(case.cluster, case.reference, wanted(case, {}))
    follower = replica(2, is_leader=False)
    checker.replica_loaded(follower)
    case.inside(checker.stepped, follower, EVENT, (), False)
    assert case.found == []
    cast(Any, follower.state).log_start_offset = 3
    case.inside(checker.stepped, follower, EVENT, (), False)
    assert case.found == ["I43"]


# --------------------------------------------------------------------------------------------------- served and copied
def serve(case: Case, asked: int, answer: bytes, written: list[tuple[BatchHeader, bytes]]) -> list[str]:
    """Findings when a leader gives this answer to a fetch at this offset."""
    found = FetchedRecords(FetchPartitionResponse(partition_index=0), [answer], len(answer))
    with checking(case.cluster, case.reference, ServedChecker(case.reference)):
        case.inside(case.cluster.world.observers.notify, BatchesLogged(replica(0), written))
        case.inside(case.cluster.world.observers.notify, RecordsRead(replica(0), asked, found))
    return case.found


@pytest.mark.invariant("I41")
def test_an_answer_holds_the_requested_offset_as_it_was_written() -> None:
    written = [stamped(offset) for offset in range(3)]
    assert serve(Case(), 1, written[1][1], written) == []
    assert serve(Case(), 1, written[2][1], written) == ["I41"]
    assert serve(Case(), 3, stamped(3)[1], written) == ["I41"]
    assert serve(Case(), 1, stamped(1, epoch=4)[1], written) == ["I41"]


@pytest.mark.invariant("I41")
def test_a_copy_is_what_the_leader_wrote() -> None:
    (header, batch), case = stamped(0), Case()
    damaged = batch[:-1] + bytes([batch[-1] ^ 1])
    assert serve(case, 0, batch, [(header, batch), (header, damaged)]) == ["I41"]
    assert "does not fit" in case.reference.findings[0].facts[1]


# ------------------------------------------------------------------------------------------------------ offline leaders
@pytest.mark.invariant("I42")
@pytest.mark.parametrize(("is_calm", "found"), [(True, ["I42"]), (False, [])])
def test_an_offline_leader_hands_over_in_bounded_time(is_calm: bool, found: list[str]) -> None:
    case = Case()
    actual = ReferencePartition(A, (1, 2), {}, 1, 0, 0, 0, 0, 0.0, 1)
    case.reference.states = lambda: [actual]  # type: ignore[method-assign]
    case.cluster.replica = lambda *where: replica(0)  # type: ignore[method-assign]
    checker = OfflineLeaderChecker(case.cluster, case.reference)
    case.reference.is_calm = lambda state: is_calm

    async def watch() -> None:
        for _ in range(3):
            checker.sample()
            await asyncio.sleep(BOUND_SECONDS / 1.5)

    case.cluster.world.run(watch())
    assert case.found == found


# --------------------------------------------------------------------------------------------------------- sound logs
@pytest.mark.invariant("I44")
@pytest.mark.parametrize(("faulty", "found"), [(set(), ["I44", "I44"]), ({2}, [])])
def test_no_log_is_reported_damaged_while_no_disk_is_faulty(faulty: set[int], found: list[str]) -> None:
    case, one, reason = Case(), Replica(0), "it does not fit its leader's"
    checker, loaded = SoundLogChecker(case.cluster, case.reference), cast(Partition, one)
    case.reference.faulty = faulty
    one.log.damage = None
    case.inside(checker.replica_loaded, loaded)
    case.inside(checker.stepped, loaded, EVENT, [ev.SyncLog()], False)
    assert case.found == []
    case.inside(checker.stepped, loaded, EVENT, [ev.DamageNoted(reason=reason)], False)
    one.log.damage = reason
    case.inside(checker.replica_loaded, loaded)
    assert case.found == found


@pytest.mark.invariant("I44")
@pytest.mark.parametrize(
    ("boots", "heads", "found"),
    [
        ((1, 2), (5, 5), []),
        ((1, 2, 2), (5, 5, 5), []),
        ((1, 2, 2), (5, 5, 7), ["I44"]),
        ((1, 1), (5, 5), ["I44"]),
        ((1, 2), (0, 0), ["I44"]),
    ],
)
def test_log_may_lack_its_head_after_a_power_loss_and_any_number_of_kills(
    boots: tuple[int, ...], heads: tuple[int, ...], found: list[str]
) -> None:
    """The hole in front of its recorded start is there until the log begins elsewhere (seed 17030454)."""
    case = Case()
    checker, storage = SoundLogChecker(case.cluster, case.reference), case.cluster.world.machine("broker-1").storage
    for boot, head in zip(boots, heads, strict=True):
        storage.boots, loaded = boot, replica(head)
        case.inside(checker.replica_loaded, loaded)
    case.inside(checker.stepped, loaded, EVENT, [ev.DamageNoted(reason=f"it begins late: {HEAD_MISSING}")], False)
    assert case.found == found


# -------------------------------------------------------------------------------------------------------- failed syncs
@pytest.mark.invariant("I15")
@pytest.mark.parametrize("is_full", [False, True])
def test_nothing_is_appended_long_after_a_failed_sync_whatever_its_error(is_full: bool) -> None:
    case = Case()
    checker = FailedSyncChecker(case.cluster, case.reference)
    storage = case.cluster.world.machine("broker-1").storage
    storage.fail("sync", is_full=is_full)
    with checking(case.cluster, case.reference, checker), pytest.raises(DiskError):
        case.inside(storage.check_fault, "sync", "/data/log/a-0/00000000000000000000.log")
    headers = [stamped(0)[0]]
    case.inside(checker.appended, LOG, headers)
    assert case.found == []

    async def later() -> None:
        await asyncio.sleep(2 * NOTICED_SECONDS)
        case.inside(checker.appended, LOG, headers)

    case.cluster.world.run(later())
    assert case.found == ["I15"]


@pytest.mark.invariant("I15")
def test_a_process_that_a_slow_disk_holds_notices_a_failed_sync_later() -> None:
    """What stands in its loop in front of the news may hold it, too: other appends, each 0.4 s long."""
    case = Case()
    checker, loop = FailedSyncChecker(case.cluster, case.reference), case.cluster.world.loop
    storage = case.cluster.world.machine("broker-1").storage
    storage.fail("sync")

    async def play() -> None:
        with checking(case.cluster, case.reference, checker), pytest.raises(DiskError):
            case.inside(storage.check_fault, "sync", "/data/log/a-0/00000000000000000000.log")
        loop.call_soon(loop.charge, 4 * NOTICED_SECONDS, context=case.process.context)
        await asyncio.sleep(3.8 * NOTICED_SECONDS)
        checker.sample()
        await asyncio.sleep(0.3 * NOTICED_SECONDS)
        case.inside(checker.appended, LOG, [stamped(0)[0]])
        assert case.found == []
        await asyncio.sleep(2 * NOTICED_SECONDS)
        case.inside(checker.appended, LOG, [stamped(0)[0]])

    case.cluster.world.run(play())
    assert case.found == ["I15"]
