"""What an error of the disk does to the replicas in its directory, and what a description says of it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.disk_faults.disk_errors import BLOCKED_RETRY_MAX_MS, BLOCKED_RETRY_MS, DiskErrors
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas import partition as partition_module
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import Role
from minibroker.broker.requests.replica_description import describe_replicas
from minibroker.client.producer.producer import Producer
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.events.replica_events import ReplicaWaitsForDescriptor
from minibroker.protocol.files.checkpoints import NOTED_CHANGES
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import DescribeReplicaStateRequest
from minibroker.runtime.observer import UNOBSERVED
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, FileMissing, OutOfDescriptors
from minibroker.testing import simulated
from tests.broker.test_partition_shell import order
from tests.simulation.test_damage import FIRST, SETTINGS, TOPIC, disk, produce, replica

ENTRY, MISSING = BadEntry("it is a directory"), FileMissing("it is not there")
BROKEN, FULL = DiskError("input/output error"), DiskFull("no space left")
NO_DESCRIPTOR = OutOfDescriptors("too many open files")


def described_directory(c: SimulatedHarness) -> tuple[str, str | None]:
    broker = c.simulation.brokers[1]
    answer = describe_replicas(broker.manager, broker.registration, broker.image, DescribeReplicaStateRequest())
    return answer.log_directory, answer.log_directory_reason


@simulated(brokers=1, settings=SETTINGS)
async def test_a_description_says_how_the_directory_is_and_why(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    health = c.simulation.brokers[1].manager.log_directory.health
    assert described_directory(c) == ("online", None)
    health.record_error(DiskFull("no space left"))
    assert described_directory(c) == ("full", "no space left")
    assert health.try_heal()
    assert described_directory(c) == ("online", None)
    health.record_error(DiskError("input/output error"))
    assert described_directory(c) == ("offline", "input/output error")


@simulated(brokers=1, settings=SETTINGS)
async def test_a_directory_that_cannot_be_looked_up_when_a_file_is_missing_is_offline(c: SimulatedHarness) -> None:
    health = c.simulation.brokers[1].manager.log_directory.health
    health.record_error(FileMissing("no such segment"))
    assert described_directory(c) == ("online", None)
    with pytest.MonkeyPatch.context() as patch:

        def fails(path: str) -> bool:
            raise DiskError("input/output error")

        patch.setattr(health.disk, "exists", fails)
        health.record_error(FileMissing("no such segment"))
    assert described_directory(c) == ("offline", "no such segment; input/output error")


@simulated(brokers=1, settings=SETTINGS)
async def test_a_disk_that_is_full_when_changes_are_noted_is_full_and_not_lost(c: SimulatedHarness) -> None:
    """A full disk heals; a directory that is offline waits for a restart."""
    await c.create_topic(TOPIC)
    await asyncio.sleep(5)
    port = c.simulation.brokers[1].runtime.disk
    replace = port.replace_file
    with pytest.MonkeyPatch.context() as patch:

        def fails(path: str, data: bytes, sync: bool = True) -> None:
            if path.endswith(NOTED_CHANGES):
                raise DiskFull("no space left")
            replace(path, data, sync)

        patch.setattr(port, "replace_file", fails)
        await c.create_topic("another")
        await asyncio.sleep(1.5)
    assert described_directory(c) == ("full", "no space left")


@simulated(brokers=1, settings=SETTINGS)
async def test_an_error_that_only_the_scrubber_meets_takes_the_replicas_offline(c: SimulatedHarness) -> None:
    """Without it, an idle leader would keep a disk that can no longer be read, until a client reads."""
    await c.create_topic(TOPIC)
    await produce(c, 45)
    disk(c, 1).fail("read", path_prefix=f"/data/log/{TOPIC}-0/")
    await asyncio.sleep(130)
    assert described_directory(c)[0] == "offline"
    assert c.simulation.brokers[1].gauges().offline_replicas == 1


@pytest.mark.parametrize(
    ("error", "is_damage"),
    [(FileMissing("it is not there"), True), (BadEntry("it is a directory"), True), (DiskError("i/o error"), False)],
)
@simulated(brokers=1, settings=SETTINGS)
async def test_a_log_that_cannot_be_synced_counts_as_damaged_or_its_disk_as_broken(
    c: SimulatedHarness, error: DiskError, is_damage: bool
) -> None:
    """Otherwise records that count only once they are synced would wait for ever. The only copy, damaged, leads on."""
    await c.create_topic(TOPIC)
    broker, partition = c.simulation.brokers[1], replica(c, 1)
    with pytest.MonkeyPatch.context() as patch:

        async def fails(_: PartitionLog) -> int:
            raise error

        patch.setattr(PartitionLog, "flush", fails)
        broker.manager.sync(partition)
        await asyncio.sleep(0.1)
    assert (partition.state.damage is not None, partition.state.role is Role.OFFLINE) == (is_damage, not is_damage)
    assert described_directory(c)[0] == ("online" if is_damage else "offline")


@pytest.mark.parametrize(
    ("error", "is_damage"), [(CorruptLog("/data/log/00.log", 3, "a bit has flipped"), True), (BROKEN, False)]
)
@simulated(brokers=1, settings=SETTINGS)
async def test_a_step_that_the_log_cannot_perform_counts_as_its_damage_or_as_a_broken_disk(
    c: SimulatedHarness, error: Exception, is_damage: bool
) -> None:
    """Its state has changed already, and would claim for ever what its log does not hold."""
    await c.create_topic(TOPIC)
    partition = replica(c, 1)
    leader_epoch = partition.state.leader_epoch
    assert leader_epoch is not None

    def fails(*_: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "write_epoch_entries", fails)
        partition.handle(order(partition, leader_epoch + 1))
    assert (partition.state.damage is not None, partition.state.role is Role.OFFLINE) == (is_damage, not is_damage)
    assert described_directory(c)[0] == ("online" if is_damage else "offline")


@simulated(brokers=1, settings=SETTINGS)
async def test_a_head_that_cannot_be_deleted_is_the_damage_of_its_log_alone(c: SimulatedHarness) -> None:
    """Otherwise its old segments would stay, and no operator would know."""
    await c.create_topic(TOPIC)
    partition = replica(c, 1)
    with pytest.MonkeyPatch.context() as patch:

        def fails(*_: object) -> int:
            raise ENTRY

        patch.setattr(partition_module, "delete_head", fails)
        partition.delete_head()
    assert partition.state.damage == str(ENTRY)
    assert described_directory(c)[0] == "online"


class HealingReplica:
    """A replica whose steps after the healing of the directory fail with the given errors, one a time."""

    def __init__(self, index: int, *errors: Exception) -> None:
        self.topic_partition = TopicPartition(TOPIC, index)
        self.healed, self._errors = 0, list(errors)

    def log_healed(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
        self.healed += 1


class NotedErrors(DiskErrors):
    """Its directory does not fail: the errors are noted."""

    noted: list[DiskError]
    damaged: list[tuple[object, str]]

    def failed(self, error: DiskError) -> None:
        self.noted.append(error)


async def disk_errors(*replicas: HealingReplica) -> tuple[NotedErrors, SimpleNamespace]:
    directory = SimpleNamespace(full=False, offline=False, path="/data/log", require_descriptor=lambda: None)
    directory.health = SimpleNamespace(on_offline=[], is_impaired=False, offline=False, reason="", path="/data/log")
    errors = NotedErrors(
        log_directory=cast(Any, directory),
        partitions=cast(Any, {each.topic_partition: each for each in replicas}),
        partition_changed=lambda _: None,
        log_damaged=lambda partition, reason: errors.damaged.append((partition, reason)),
        now_ms=lambda: 0,
        counters=BrokerCounters(),
        observer=UNOBSERVED,
    )
    errors.noted, errors.damaged = [], []
    return errors, directory


class FailingReplica:
    """A replica whose log fails, and the events that it gets."""

    def __init__(self) -> None:
        self.topic_partition = TopicPartition(TOPIC, 0)
        self.events: list[object] = []
        self.state = SimpleNamespace(role=Role.LEADER)

    def report(self, kind: type[object]) -> None:
        self.events.append(kind)

    def handle(self, event: object) -> None:
        self.events.append(type(event))


@pytest.mark.parametrize("is_offline", [False, True])
@pytest.mark.parametrize("is_a_step", [False, True])
@pytest.mark.parametrize("error", [ENTRY, MISSING, BROKEN, FULL, NO_DESCRIPTOR], ids=lambda error: type(error).__name__)
async def test_an_error_of_one_log_stops_as_little_as_it_can(
    error: DiskError, is_a_step: bool, is_offline: bool
) -> None:
    """A bad file is the damage of its partition alone, and no descriptor is no damage at all: only a replica that could
    not perform its own step waits for one. Everything else is the directory's."""
    replica = FailingReplica()
    errors, directory = await disk_errors()
    directory.offline = is_offline
    if is_a_step:
        errors.log_failed(cast(Any, replica), error)
    else:
        errors.read_failed(cast(Any, replica), error)
    is_damage = error in (ENTRY, MISSING) and not is_offline
    waits = error is NO_DESCRIPTOR and is_a_step
    assert errors.damaged == ([(replica, str(error))] if is_damage else [])
    assert errors.noted == ([] if is_damage or waits else [error])
    assert replica.events == ([ReplicaWaitsForDescriptor, ev.LogFailed] if waits else [])


@pytest.mark.parametrize("was", ["online", "full", "offline"])
@pytest.mark.parametrize("error", [ENTRY, MISSING, BROKEN, FULL, NO_DESCRIPTOR], ids=lambda error: type(error).__name__)
async def test_an_error_that_belongs_to_no_replica_stops_all_of_them_or_none(error: DiskError, was: str) -> None:
    replica, marked = FailingReplica(), list[DiskError]()
    errors, directory = await disk_errors(cast(Any, replica))
    directory.full, directory.offline, directory.mark_offline = was == "full", was == "offline", marked.append
    DiskErrors.failed(errors, error)
    is_of_one_file = error in (ENTRY, MISSING) and was != "offline"
    stops_all = error is not NO_DESCRIPTOR and not is_of_one_file
    assert replica.events == ([ev.LogFailed] if stops_all else [])
    assert marked == ([error] if stops_all and was == "online" else [])


async def test_an_error_while_replicas_are_offered_again_fails_the_directory() -> None:
    error = DiskError("input/output error")
    first, second = HealingReplica(0, error), HealingReplica(1)
    errors, _ = await disk_errors(first, second)
    errors.healed()
    assert errors.noted == [error]
    assert (first.healed, second.healed) == (0, 0), "the directory is offline: nothing more is tried"


@pytest.mark.parametrize("state", ["online", "full", "offline"])
async def test_replicas_that_went_offline_are_offered_again_once_when_there_is_room(state: str) -> None:
    """Not when the same full disk broke meanwhile."""
    errors, directory = await disk_errors()
    directory.full = True
    assert not errors.has_healed
    directory.health.reason = "no space left"
    DiskErrors.failed(errors, FULL)
    assert not errors.has_healed, "it is still full"
    directory.full, directory.offline = state == "full", state == "offline"
    assert errors.has_healed is (state == "online")
    errors.healed()
    assert not errors.has_healed


@pytest.mark.parametrize("error", [ENTRY, MISSING, CorruptLog("/data/log/00.log", 3, "a bit has flipped")])
async def test_a_log_that_cannot_be_used_when_replicas_are_offered_again_is_damaged_alone(error: Exception) -> None:
    """Nothing offers the others again: they stayed offline on a sound disk until the broker was started again."""
    first, second, third = HealingReplica(0), HealingReplica(1, error), HealingReplica(2)
    errors, _ = await disk_errors(first, second, third)
    told = list[bool]()
    errors.on_recovered = lambda: told.append(True)
    errors.healed()
    assert (first.healed, second.healed, third.healed) == (1, 0, 1)
    assert (errors.damaged, errors.noted, told) == ([(second, str(error))], [], [True])


async def test_the_controller_is_told_that_a_log_may_be_created_for_which_there_was_no_descriptor() -> None:
    """It took the replica for offline when the broker refused the order, and sends none before it is told."""
    errors, _ = await disk_errors()
    told = list[bool]()
    errors.on_recovered = lambda: told.append(True)
    errors.wait_for_descriptor(TopicPartition(TOPIC, 0), None)
    for _ in range(2):
        errors.offer_those_waiting_for_descriptor()
    assert told == [True]


@simulated(brokers=3, settings=SETTINGS)
async def test_a_log_is_created_though_an_entry_was_in_its_way(c: SimulatedHarness) -> None:
    """A mount point, for example, until an operator moves it away. The controller took the replica for offline, and was
    never told otherwise: it stayed out of the ISR until its broker was started again."""
    disk(c, 2).fail("make_directory", f"/data/log/{TOPIC}-0", times=1, is_bad_entry=True)
    async with c.admin() as admin:
        await admin.create_topic(TOPIC)
    await c.wait_in_sync(TOPIC, timeout_s=2 * BLOCKED_RETRY_MS / 1000)


@simulated(brokers=3, settings=SETTINGS)
async def test_a_log_is_deleted_though_an_entry_was_in_its_way(c: SimulatedHarness) -> None:
    """The deletion waited until some broker was started again, or another controller came."""
    await c.create_topic(TOPIC)
    disk(c, 2).fail("rename", f"/data/log/{TOPIC}-0", times=1, is_bad_entry=True)
    async with c.admin() as admin:
        deleting = asyncio.create_task(admin.delete_topic(TOPIC))
        await asyncio.sleep(1)
        assert c.simulation.replica(2, TOPIC) is not None
        await asyncio.sleep(2 * BLOCKED_RETRY_MS / 1000)
        assert c.simulation.replica(2, TOPIC) is None
        await deleting
    assert c.simulation.assignments() == {}


async def test_logs_that_an_entry_kept_from_being_made_are_offered_again_after_a_pause() -> None:
    """One pause for all of them: those that fail again and again hold up no other."""
    errors, directory = await disk_errors()
    now_ms, told = [0], list[int]()
    errors._now_ms = lambda: now_ms[0]
    errors.on_recovered = lambda: told.append(now_ms[0])
    for now_ms[0] in range(0, 3 * BLOCKED_RETRY_MS, 1_000):
        if now_ms[0] < BLOCKED_RETRY_MS:
            errors.log_blocked(FIRST, ENTRY)
        errors.offer_those_blocked()
    assert told == [BLOCKED_RETRY_MS]
    directory.offline = True
    errors.log_blocked(FIRST, ENTRY)
    errors.log_blocked(FIRST, BROKEN)
    now_ms[0] *= 2
    errors.offer_those_blocked()
    assert told == [BLOCKED_RETRY_MS], "a directory that is offline stays so"


async def test_logs_that_stay_blocked_are_tried_again_less_and_less_often() -> None:
    """Each order that is refused begins a leader epoch: an entry that stays for a day was ten thousand."""
    errors, _ = await disk_errors()
    now_ms, told = [0], list[int]()
    errors._now_ms = lambda: now_ms[0]
    errors.on_recovered = lambda: told.append(now_ms[0] // 1_000)
    errors.log_blocked(FIRST, ENTRY)
    for now_ms[0] in range(0, 2_000_000, 1_000):
        errors.offer_those_blocked()
        if told and now_ms[0] // 1_000 == told[-1] + 1:
            errors.log_blocked(FIRST, ENTRY)
    assert told == [10, 31, 72, 153, 314, 635, 1236, 1837]
    now_ms[0] = 3_000_000
    errors.offer_those_blocked()
    now_ms[0] += BLOCKED_RETRY_MS
    errors.log_blocked(FIRST, ENTRY)
    now_ms[0] += BLOCKED_RETRY_MS
    errors.offer_those_blocked()
    assert told[-2:] == [3_000, 3_020], "an entry that comes later is another one"


async def test_a_log_that_is_blocked_newly_does_not_wait_as_long_as_one_that_stays_blocked() -> None:
    """One entry that is never moved away let the next topic wait for ten minutes, too."""
    errors, _ = await disk_errors()
    now_ms, told = [0], list[int]()
    errors._now_ms = lambda: now_ms[0]
    errors.on_recovered = lambda: told.append(now_ms[0])
    for _ in range(8):
        errors.log_blocked(FIRST, ENTRY)
        now_ms[0] += BLOCKED_RETRY_MAX_MS
        errors.offer_those_blocked()
    errors.log_blocked(FIRST, ENTRY)
    now_ms[0] += BLOCKED_RETRY_MS
    errors.offer_those_blocked()
    assert len(told) == 8
    errors.log_blocked(TopicPartition("another", 0), ENTRY)
    now_ms[0] += BLOCKED_RETRY_MS
    errors.offer_those_blocked()
    assert len(told) == 9


@pytest.mark.parametrize("waits", [True, False])
@simulated(brokers=1, settings=SETTINGS)
async def test_replicas_are_offered_again_though_the_disk_was_full_for_less_than_one_maintenance(
    c: SimulatedHarness, waits: bool
) -> None:
    """One step of the maintenance finds the disk full, a later one finds room. Nothing else offers the replicas again:
    they stayed offline on a sound disk until the broker was started again."""
    await c.create_topic(TOPIC)
    directory, roles = c.simulation.brokers[1].manager.log_directory, list[Role]()
    found_room = asyncio.Event()

    async def is_full_now(_: LogDirectory, now_ms: int) -> None:
        directory.health.record_error(FULL)
        if waits:
            await asyncio.sleep(0.1)
        roles.append(replica(c, 1).state.role)
        found_room.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogDirectory, "_remove_deleted", is_full_now)
        await found_room.wait()
    assert roles == [Role.OFFLINE if waits else Role.LEADER]
    await asyncio.sleep(5)
    assert described_directory(c) == ("online", None)
    assert replica(c, 1).state.role is Role.LEADER


@pytest.mark.parametrize("error", [ENTRY, CorruptLog("/data/log/00.log", 3, "a bit has flipped")])
@simulated(brokers=3, settings=SETTINGS)
async def test_every_replica_is_in_sync_again_after_a_full_disk_though_one_log_was_spoilt_meanwhile(
    c: SimulatedHarness, error: Exception
) -> None:
    """The damaged one refused the order to begin its repair while it was offline for lack of room."""
    topics = [TOPIC, "others"]
    for topic in topics:
        await c.create_topic(topic)
    async with Producer(bootstrap_servers=c.bootstrap_servers, acks="all") as producer:
        await c.fail_disk(1, "full")
        for _ in range(10):
            for topic in topics:
                await producer.send_and_wait(topic, b"x" * 500, partition=0)
    await asyncio.sleep(5)
    spoilt, finish_cut = replica(c, 1).log, PartitionLog.finish_cut

    def fails_once_spoilt(log: PartitionLog) -> None:
        if log is spoilt:
            raise error
        finish_cut(log)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartitionLog, "finish_cut", fails_once_spoilt)
        await c.mend_disk(1)
        for topic in topics:
            await c.wait_in_sync(topic)
    assert replica(c, 1).log is not spoilt
    assert spoilt.damage == str(error)


async def test_a_replica_that_finds_no_descriptor_when_it_is_offered_again_is_offered_later() -> None:
    first, second = HealingReplica(0, OutOfDescriptors("too many open files")), HealingReplica(1)
    errors, _ = await disk_errors(first, second)
    errors.healed()
    assert (first.healed, second.healed, errors.noted) == (0, 1, [])
    errors.offer_those_waiting_for_descriptor()
    assert (first.healed, second.healed) == (1, 1)
    errors.offer_those_waiting_for_descriptor()
    assert (first.healed, second.healed) == (1, 1), "once"


async def test_a_replica_that_finds_no_descriptor_again_and_again_is_still_offered() -> None:
    replica = HealingReplica(0, *[OutOfDescriptors("too many open files")] * 3)
    errors, _ = await disk_errors(replica)
    errors.healed()
    for _ in range(2):
        errors.offer_those_waiting_for_descriptor()
        assert replica.healed == 0
    errors.offer_those_waiting_for_descriptor()
    assert replica.healed == 1


@pytest.mark.parametrize("state", ["full", "offline"])
async def test_no_replica_is_offered_for_its_descriptor_while_the_directory_is_full_or_offline(state: str) -> None:
    replica = HealingReplica(0, OutOfDescriptors("too many open files"))
    errors, directory = await disk_errors(replica)
    errors.healed()
    setattr(directory, state, True)
    errors.offer_those_waiting_for_descriptor()
    assert replica.healed == 0
    setattr(directory, state, False)
    errors.offer_those_waiting_for_descriptor()
    assert replica.healed == 1


@pytest.mark.parametrize("error", [OutOfDescriptors("too many open files"), DiskError("input/output error")])
async def test_replicas_rest_until_there_is_a_descriptor(error: DiskError) -> None:
    replica = HealingReplica(0, OutOfDescriptors("too many open files"))
    errors, directory = await disk_errors(replica)
    errors.healed()

    def require_descriptor() -> None:
        raise error

    directory.require_descriptor = require_descriptor
    errors.offer_those_waiting_for_descriptor()
    assert replica.healed == 0
    assert errors.noted == ([] if isinstance(error, OutOfDescriptors) else [error])
