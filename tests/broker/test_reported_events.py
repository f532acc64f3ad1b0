"""What a broker reports of its replicas, its disk and its place in the cluster, with all fields.

Operators and `minibroker changes` read these events, and no request fails if one is missing.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.broker import SHUTDOWN_STEP_MS, Broker
from minibroker.broker.configuration.config import load_config
from minibroker.broker.configuration.dynamic_config import DynamicConfig
from minibroker.broker.disk_faults.disk_errors import DESCRIPTOR_REPORT_INTERVAL_MS, DiskErrors
from minibroker.broker.disk_faults.repairs import Repairs
from minibroker.broker.log.loaded_log import RecoveryReport
from minibroker.broker.membership.cluster_secret import SharedSecret
from minibroker.broker.membership.controller_link import ControllerLink
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.alter_partition_sender import FAILURE_LOG_INTERVAL_MS, AlterPartitionSender
from minibroker.broker.replicas.partition import _PERFORMERS, Partition
from minibroker.broker.replicas.periodic_tasks import LONG_STALL_MS, TICK_MS, PeriodicTasks
from minibroker.broker.replicas.replica_fetcher import ReplicaFetcher
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import IsrKind, Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events import broker_events as of_broker
from minibroker.protocol.events import replica_events as of_replica
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionTopicResponse,
    ControlledShutdownResponse,
    FetchPartitionResponse,
    TopicPartitions,
)
from minibroker.protocol.znodes import broker_config_path
from minibroker.runtime.observer import Observers
from minibroker.simulation.world.world import SimulatedWorld

A3 = TopicPartition("a", 3)
NAME: dict[str, Any] = {"topic": "a", "partition": 3}


class Noted:
    """A replica as far as its events go, and what was reported and done."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.done: list[object] = []
        self.counters = BrokerCounters()
        self.observer = Observers(self.events.append)
        self.log = SimpleNamespace(log_end_offset=20, mark_damaged=self.done.append)
        self.log.truncate_to = lambda end: setattr(self.log, "log_end_offset", end - 1)  # a whole batch goes
        self.log.reset_to = lambda offset, producers: self.done.append(("reset", offset))
        self.log.lower_start = lambda offset: offset + 2
        state = SimpleNamespace(
            role=Role.FOLLOWER, leader_id=2, leader_epoch=4, partition_epoch=7, log_end_offset=9, high_watermark=8
        )
        services = SimpleNamespace(
            counters=self.counters,
            log_directory=SimpleNamespace(log_was_cut=lambda log: self.done.append("cut")),
            log_start_recorder=SimpleNamespace(record_soon=lambda partition: self.done.append("record")),
            leader_changed=lambda partition: self.done.append("leader"),
        )
        self.partition = cast(Any, SimpleNamespace(topic_partition=A3, log=self.log, state=state, services=services))
        self.partition._observer, self.partition.awaits_order = self.observer, False
        self.partition.handle = self.done.append
        for name in ("report", "_cut", "_producers_from_leader"):
            setattr(self.partition, name, partial(getattr(Partition, name), self.partition))


# ------------------------------------------------------------------------------------------------------------ replicas
@pytest.mark.parametrize(
    ("effect", "event", "done"),
    [
        (
            ev.TruncateTo(end_offset=15, reason="why", below_high_watermark=True),
            of_replica.ReplicaTruncated(**NAME, end_before=20, end_after=14, leader_epoch=4, reason="why"),
            ["cut"],
        ),
        (ev.ResetTo(offset=30), of_replica.ReplicaReset(**NAME, offset=30), [("reset", 30), "cut"]),
        (ev.LowerStart(log_start_offset=5), of_replica.LogStartLowered(**NAME, offset=7), ["record"]),
        (
            ev.IsrCommitted(before=(1, 2), after=(2,)),
            of_replica.IsrChanged(**NAME, before=[1, 2], after=[2], leader_epoch=4, partition_epoch=7),
            [],
        ),
        (ev.IsrCommitted(before=(), after=(2,)), None, []),
        (
            ev.LeaderChanged(),
            of_replica.ReplicaRoleChanged(
                **NAME, role="follower", leader_epoch=4, leader=2, log_end_offset=9, high_watermark=8
            ),
            ["leader"],
        ),
        (ev.Warn(message="strange"), of_replica.ReplicaWarned(**NAME, message="strange"), []),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_replica_reports_what_it_decided(effect: ev.ReplicaEffect, event: object, done: list[object]) -> None:
    noted = Noted()
    by_shell: dict[type, Callable[..., object]] = {
        ev.TruncateTo: Partition.truncate_to,
        ev.ResetTo: Partition.reset_to,
        ev.LowerStart: Partition.lower_start,
    }
    (by_shell.get(type(effect)) or _PERFORMERS[type(effect)])(noted.partition, effect)
    assert noted.events == ([] if event is None else [event])
    assert noted.done == done


@pytest.mark.parametrize("is_below", [False, True])
def test_truncations_are_counted_and_those_of_committed_records_apart(is_below: bool) -> None:
    noted = Noted()
    Partition.truncate_to(noted.partition, ev.TruncateTo(end_offset=15, reason="", below_high_watermark=is_below))
    assert (noted.counters.truncations, noted.counters.truncations_below_high_watermark) == (1, int(is_below))


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH])
def test_a_refused_proposal_is_reported_with_its_error(code: ErrorCode) -> None:
    noted = Noted()
    result = AlterPartitionResult(partition_index=3, error_code=code, isr=[1])
    response = AlterPartitionResponse(topics=[AlterPartitionTopicResponse(topic_name="a", partitions=[result])])
    proposal = ev.ProposeIsr(
        kind=IsrKind.SHRINK, proposal_id=5, leader_epoch=4, partition_epoch=7, new_isr_with_epochs=()
    )
    sender = cast(Any, SimpleNamespace(_now_ms=lambda: 1))
    AlterPartitionSender._settle(sender, [(noted.partition, proposal)], response)
    refused = of_replica.IsrProposalRefused(**NAME, error=code.name)
    assert noted.events == ([] if code is ErrorCode.NONE else [refused])
    assert len(noted.done) == 1, "the core hears of both"


def test_failed_proposals_are_reported_once_an_interval() -> None:
    noted, sender = Noted(), cast(Any, SimpleNamespace(_failure_logged_ms=None))
    sender._observer = noted.observer
    for at in (0, FAILURE_LOG_INTERVAL_MS - 1, FAILURE_LOG_INTERVAL_MS, FAILURE_LOG_INTERVAL_MS + 1):
        sender._now_ms = lambda at=at: at
        AlterPartitionSender._log_failure(sender, f"failed at {at}")
    expected = [f"failed at {at}" for at in (0, FAILURE_LOG_INTERVAL_MS)]
    assert noted.events == [of_replica.AlterPartitionFailed(problem=each) for each in expected]


def test_a_batch_that_arrived_damaged_is_reported_with_its_sender() -> None:
    noted = Noted()
    noted.partition.handle_fetched = lambda answer, buffers: noted.done.append((answer.error_code, buffers))
    fetcher = cast(Any, SimpleNamespace(partitions={A3: noted.partition}, _positions={A3: (4, 9, 1)}))
    fetcher.leader_id, fetcher.bytes_copied, fetcher._split = 2, 0, ReplicaFetcher._split
    answer = FetchPartitionResponse(partition_index=3, records=memoryview(b"\0" * 100))
    ReplicaFetcher._on_partition(fetcher, 1, A3, answer)
    (event,) = noted.events
    assert isinstance(event, of_replica.DamagedBatchReceived)
    assert (event.topic, event.partition, event.leader) == ("a", 3, 2)
    assert event.reason
    assert noted.done == [(ErrorCode.CORRUPT_MESSAGE, [])]
    assert (fetcher._positions, fetcher.bytes_copied) == ({}, 100), "the position is told again"


# ------------------------------------------------------------------------------------------------------------- repairs
def repairs_of(noted: Noted, **fields: Any) -> Any:
    values = {"_counters": noted.counters, "_broker_id": 1, "_partitions": {A3: noted.partition}, "_unfinished": {}}
    values |= fields
    values["_partition_changed"] = lambda partition: noted.done.append("changed")
    values["_disk"] = SimpleNamespace(on_changed=lambda: noted.done.append("told"))
    return SimpleNamespace(**values)


def test_damage_is_reported_counted_and_told_to_the_controller() -> None:
    noted = Noted()
    repairs = repairs_of(noted, _image=SimpleNamespace(topic_id=lambda topic: None))
    Repairs.noted(repairs, noted.partition, "a bit flipped")
    Repairs.out_of_use(repairs, noted.partition)
    assert noted.events == [
        of_replica.ReplicaDamaged(**NAME, reason="a bit flipped"),
        of_replica.DamagedReplicaOffline(**NAME),
    ]
    assert (noted.counters.damaged_logs, noted.done) == (1, ["changed", "told"])


@pytest.mark.parametrize("damage", [None, "a bit flipped"])
def test_a_replica_that_was_loaded_damaged_is_reported_and_no_other(damage: str | None) -> None:
    noted: list[tuple[object, str]] = []
    partition: Any = SimpleNamespace(state=SimpleNamespace(damage=damage))
    repairs = cast(Any, SimpleNamespace(noted=lambda *args: noted.append(args)))
    Repairs.loaded(repairs, partition)
    assert noted == ([] if damage is None else [(partition, damage)])


@pytest.mark.parametrize("found", [None, memoryview(b"12345")])
def test_salvaged_records_are_reported_and_counted(found: memoryview | None) -> None:
    noted = Noted()
    directory = SimpleNamespace(set_aside={A3: "path"}, offline=False, read_set_aside=lambda *_: found)
    assert Repairs.salvage(repairs_of(noted, _directory=directory), noted.partition, 100) is found
    salvaged = of_replica.RecordsSalvaged(**NAME, size_bytes=5, offset=9)
    assert noted.events == ([] if found is None else [salvaged])
    assert noted.counters.salvaged_bytes == (0 if found is None else 5)


@pytest.mark.parametrize(
    ("isr", "leader_epoch", "damage", "is_repaired"),
    [
        ((1, 2), 4, None, True),
        ((2, 3), 4, None, False),
        ((1,), 4, None, False),
        ((1, 2), 5, None, False),
        ((1, 2), 4, "again", False),
    ],
    ids=["in-sync", "not-in-the-isr", "alone", "other-epoch", "damaged-again"],
)
def test_a_repair_ends_and_is_reported_once_the_replica_is_in_sync(
    isr: tuple[int, ...], leader_epoch: int, damage: str | None, is_repaired: bool
) -> None:
    noted = Noted()
    noted.partition.state.damage = damage
    directory = SimpleNamespace(set_aside={A3: "path"}, remove_set_aside=noted.done.append)
    image = SimpleNamespace(partition=lambda _: SimpleNamespace(isr=isr, leader_epoch=leader_epoch))
    Repairs.finish(repairs_of(noted, _directory=directory, _image=image))
    assert noted.events == ([of_replica.ReplicaRepaired(**NAME)] if is_repaired else [])
    assert (noted.done, noted.counters.repairs_done) == ([A3] if is_repaired else [], int(is_repaired))


# -------------------------------------------------------------------------------------------------------------- broker
def test_a_fence_and_its_end_are_reported_once() -> None:
    noted, fences = Noted(), [True]
    manager = cast(Any, SimpleNamespace(fenced=False, counters=noted.counters, observer=noted.observer))
    manager.registration = SimpleNamespace(broker_epoch=70, is_fenced=lambda: fences[0])
    manager.partitions, manager.now_ms = {A3: noted.partition}, lambda: 5
    manager.fetches = SimpleNamespace(partition_changed=lambda partition: noted.done.append("woken"))
    for _ in range(2):
        ReplicaManager.fence(manager)
        ReplicaManager.unfence(manager)
    assert (noted.events, noted.counters.fenced) == ([of_broker.LeadershipFenced()], 1)
    assert noted.done == [ev.BrokerFenced(), "woken"]
    fences[0] = False
    noted.done.clear()
    for _ in range(2):
        ReplicaManager.unfence(manager)
    assert noted.events[1:] == [of_broker.LeadershipUnfenced(broker_epoch=70)]
    assert noted.done == [ev.BrokerUnfenced(now_ms=5)]


def test_leaderships_of_an_earlier_registration_do_not_come_back_with_the_next_one() -> None:
    noted = Noted()
    manager = cast(Any, SimpleNamespace(fenced=True, _fenced_broker_epoch=70, observer=noted.observer))
    manager.registration = SimpleNamespace(broker_epoch=71, is_fenced=lambda: False)
    manager.partitions = {A3: noted.partition}
    ReplicaManager.unfence(manager)
    assert (noted.events, noted.done) == ([of_broker.LeadershipUnfenced(broker_epoch=71)], [])
    assert not manager.fenced


@pytest.mark.invariant("I18")
def test_a_second_fence_lifts_no_fence_of_an_earlier_registration() -> None:
    """ZooKeeper is late twice: the order to the new registration has not arrived, and another broker may lead. A former
    leader that was unfenced with the rest served its former leader epoch again."""
    noted, fences, served = Noted(), [False], ev.BrokerUnfenced(now_ms=5)
    manager = cast(Any, SimpleNamespace(fenced=False, counters=noted.counters, observer=noted.observer))
    manager.registration = SimpleNamespace(broker_epoch=70, is_fenced=lambda: fences[0])
    manager.partitions, manager.now_ms = {A3: noted.partition}, lambda: 5
    manager.fetches = SimpleNamespace(partition_changed=lambda partition: None)

    def pass_by(broker_epoch: int) -> list[object]:
        ReplicaManager.fence(manager)
        manager.registration.broker_epoch = broker_epoch
        noted.done.clear()
        ReplicaManager.unfence(manager)
        return noted.done

    assert pass_by(70) == [served]
    assert pass_by(71) == []
    assert pass_by(71) == []
    noted.partition.services = SimpleNamespace(check_fence=lambda: None, fenced=False)
    order = ev.LeaderAndIsrReceived(
        now_ms=0, leader_id=2, leader_epoch=9, partition_epoch=0, in_sync_replicas=(2,), assignment=(1, 2)
    )
    noted.partition._under_present_fence = partial(Partition._under_present_fence, noted.partition)
    noted.partition.decide = noted.done.append
    Partition.handle(noted.partition, order)
    assert pass_by(71) == [served]


@pytest.mark.invariant("I18")
def test_an_order_that_comes_before_the_fence_ends_counts() -> None:
    """The process stalls while it registers again, so its deadline has passed, and the order to the new registration
    comes before ZooKeeper's next answer. No second order follows: the replica stayed fenced until the next election."""
    noted, fences = Noted(), [True]
    manager = cast(Any, SimpleNamespace(fenced=True, _fenced_broker_epoch=70, observer=noted.observer))
    manager.registration = SimpleNamespace(broker_epoch=71, is_fenced=lambda: fences[0])
    manager.partitions, manager.now_ms = {A3: noted.partition}, lambda: 5
    ReplicaManager.unfence(manager)  # registered
    ReplicaManager.unfence(manager)  # the order is here
    assert noted.partition.awaits_order
    noted.partition.awaits_order = False  # and is carried out
    fences[0] = False
    ReplicaManager.unfence(manager)
    assert noted.done == [ev.BrokerUnfenced(now_ms=5)]


def test_replication_counts_the_milliseconds_of_the_loop() -> None:
    manager = cast(Any, SimpleNamespace(_loop=SimpleNamespace(time=lambda: 12.3459)))
    assert ReplicaManager.now_ms(manager) == 12_345


@pytest.mark.parametrize("late_ms", [LONG_STALL_MS, LONG_STALL_MS + 1])
def test_only_a_long_stall_is_reported(late_ms: int) -> None:
    noted = Noted()
    manager = SimpleNamespace(now_ms=lambda: 0, observer=noted.observer, partitions={})
    tasks = PeriodicTasks(cast(Any, manager), cast(Any, None), SimulatedWorld().runtime("broker").clock)
    manager.now_ms = lambda: TICK_MS + late_ms
    tasks._notice_stall()
    expected = [of_broker.ProcessStalled(stalled_ms=late_ms)] if late_ms > LONG_STALL_MS else []
    assert noted.events == expected


def test_the_state_of_the_log_directory_is_reported_once_each() -> None:
    noted = Noted()
    health = SimpleNamespace(path="/data", offline=False, reason="no space left")
    noted.partition.state.role = Role.OFFLINE
    errors = cast(Any, SimpleNamespace(_observer=noted.observer, _logged_reason=None, on_changed=lambda: None))
    errors._directory = SimpleNamespace(health=health, path="/data")
    errors._partitions, errors._offer_again = {A3: noted.partition}, lambda partitions: noted.done.append(partitions)
    for _ in range(2):
        DiskErrors._take_all_offline(errors)
    DiskErrors.healed(errors)
    DiskErrors._take_all_offline(errors)
    health.offline, health.reason = True, "input/output error"
    DiskErrors._take_all_offline(errors)
    full = of_broker.LogDirectoryFailed(path="/data", state="full", reason="no space left")
    assert noted.events == [
        full,
        of_broker.LogDirectoryHasRoom(path="/data"),
        full,
        of_broker.LogDirectoryFailed(path="/data", state="offline", reason="input/output error"),
    ]
    assert noted.done == [[noted.partition]], "all are offered again"


def test_a_lack_of_descriptors_is_counted_each_time_and_reported_once_an_interval() -> None:
    noted = Noted()
    errors = cast(Any, SimpleNamespace(_counters=noted.counters, _observer=noted.observer, _shortage_reported_ms=None))
    last = DESCRIPTOR_REPORT_INTERVAL_MS
    for at in (0, last - 1, last, last + 1):
        errors._now_ms = lambda at=at: at
        DiskErrors._note_no_descriptor(errors, f"at {at}")
    assert noted.events == [of_broker.DescriptorsExhausted(reason=f"at {at}") for at in (0, last)]
    assert noted.counters.descriptor_shortages == 4


@pytest.mark.parametrize("has_log", [True, False])
def test_the_controller_is_told_of_a_replica_that_waits_for_a_descriptor(has_log: bool) -> None:
    """Of one whose log could not be created it knows by the answer to its order."""
    noted = Noted()
    partition = noted.partition if has_log else None
    errors = cast(Any, SimpleNamespace(_waiting_for_descriptor={}, on_changed=lambda: noted.done.append("told")))
    errors._take_offline = noted.done.append
    DiskErrors.wait_for_descriptor(errors, A3, partition)
    assert errors._waiting_for_descriptor == {A3: partition}
    assert noted.done == ([partition, "told"] if has_log else [])


@pytest.mark.parametrize(
    ("scanned_bytes", "number", "is_reported"), [(0, 1, False), (9, 1, True), (0, 99, False), (0, 100, True)]
)
def test_a_loaded_log_is_reported_if_it_was_scanned_and_each_hundredth(
    scanned_bytes: int, number: int, is_reported: bool
) -> None:
    noted = Noted()
    broker = cast(Any, SimpleNamespace(events=noted.observer))
    Broker._log_loaded(broker, number, 200, A3, RecoveryReport(clean=False, bytes_scanned=scanned_bytes))
    assert noted.events == is_reported * [
        of_broker.LogScanned(
            topic=A3.topic,
            partition=A3.partition,
            loaded=number,
            logs=200,
            scanned_bytes=scanned_bytes,
            cut_bytes=0,
        )
    ]


def test_changed_and_ignored_settings_are_reported_once() -> None:
    noted = Noted()
    static = load_config(None, ["broker.id=1", "log.dirs=/d", "zookeeper.connect=zk:2181"])
    coordination = SimpleNamespace(add_session_listener=lambda _: None)
    dynamic = DynamicConfig(cast(Any, coordination), static, noted.observer)
    overrides = {"min.insync.replicas": "2", "log.retention.ms": "1000", "nonsense": "1"}
    for _ in range(2):
        dynamic._take(overrides)
    ignored, changed = noted.events
    assert isinstance(ignored, of_broker.SettingIgnored)
    assert ignored.path == broker_config_path(1)
    assert "'nonsense' is not a broker setting" in ignored.reason
    assert changed == of_broker.SettingsChanged(settings=["log.retention.ms", "min.insync.replicas"])
    dynamic._take({})
    assert noted.events[2:] == [changed], "the same two have their own values again"


@pytest.mark.parametrize(
    ("known", "key", "is_replaced"), [(b"", b"new", False), (b"old", b"old", False), (b"old", b"new", True)]
)
def test_only_another_secret_is_reported_and_ends_connections(known: bytes, key: bytes, is_replaced: bool) -> None:
    noted = Noted()
    secret = cast(Any, SimpleNamespace(key=known, _observer=noted.observer))
    secret._on_changed = lambda: noted.done.append("reconnect")
    SharedSecret._take(secret, key)
    assert noted.events == ([of_broker.ClusterSecretReplaced()] if is_replaced else [])
    assert (secret.key, noted.done) == (key, ["reconnect"] if is_replaced else [])


@pytest.mark.parametrize(
    ("answers", "asked", "is_done", "unfinished"),
    [
        ([[]], 1, True, None),
        ([None, []], 2, True, None),
        ([None, None, None, []], 3, False, "no controller took them in 3 attempts"),
        ([None, [0, 12]], 2, False, "no other replica can lead a-0, a-12"),
        ([list(range(11))], 1, False, "no other replica can lead a-0, a-1, a-2, a-3, a-4 and 6 more"),
    ],
    ids=["at-once", "second-attempt", "no-answer", "some-stay", "many-stay"],
)
def test_leaderships_that_stay_are_reported(
    answers: list[list[int] | None], asked: int, is_done: bool, unfinished: str | None
) -> None:
    noted, world, left = Noted(), SimulatedWorld(), list(answers)

    async def ask(_: object) -> ControlledShutdownResponse | None:
        numbers = left.pop(0)
        if numbers is None:
            return None
        remaining = [TopicPartitions(topic_name="a", partitions=numbers)] if numbers else []
        return ControlledShutdownResponse(remaining_partitions=remaining)

    async def play() -> tuple[bool, float]:
        began = world.loop.time()
        link = cast(Any, SimpleNamespace(_ask=ask, _observer=noted.observer))
        return await ControllerLink.shut_down(link, 3, 250), world.loop.time() - began

    found, seconds = world.run(play())
    assert (found, len(answers) - len(left)) == (is_done, asked)
    assert seconds == pytest.approx((asked - 1) * 0.25), "it pauses between attempts only"
    assert noted.events == ([] if unfinished is None else [of_broker.HandoverUnfinished(reason=unfinished)])


def test_a_handover_that_the_controller_never_takes_is_reported_and_ends() -> None:
    """The operator must know that clients will see a dead leader."""
    noted, world = Noted(), SimulatedWorld()

    async def shut_down(*_: object) -> None:
        await asyncio.Event().wait()

    config = SimpleNamespace(
        controlled_shutdown_enable=True, controlled_shutdown_max_retries=3, controlled_shutdown_retry_backoff_ms=1
    )
    stopping = SimpleNamespace(config=config, events=noted.observer, _link=SimpleNamespace(shut_down=shut_down))
    stopping.registration = SimpleNamespace(is_fenced=lambda: False)
    world.run(Broker._hand_over(cast(Any, stopping)))
    reason = f"the controller did not take them within {SHUTDOWN_STEP_MS} ms"
    assert noted.events == [of_broker.HandoverBegun(), of_broker.HandoverUnfinished(reason=reason)]
