"""The shell around a replica's core: it checks the fence before each decision, and adds nothing after it."""

import asyncio
import weakref
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.leader import FetchGranted
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import IsrKind, Role
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.replica_events import IsrProposed
from minibroker.protocol.files.checkpoints import EPOCH_CHECKPOINT
from minibroker.runtime.observer import UNOBSERVED, Observers
from minibroker.runtime.ports import DiskError, OutOfDescriptors
from minibroker.simulation.model.replica import header_for
from minibroker.testing import simulated
from tests.broker.log.machine import PARTITION, make_batch
from tests.broker.replication.core_cluster import CoreCluster
from tests.simulation.test_damage import TOPIC, disk, produce, replica

SETTINGS = {"auto.leader.rebalance.enable": "false"}


class Received(bytearray):
    """Bytes of a request; a test can see when nothing keeps them any more."""


def order(partition: Partition, leader_epoch: int) -> ev.LeaderAndIsrReceived:
    """The controller's order that this leader leads on."""
    state = partition.state
    return ev.LeaderAndIsrReceived(
        now_ms=partition.now_ms(),
        leader_id=state.config.broker_id,
        leader_epoch=leader_epoch,
        partition_epoch=state.partition_epoch + 1,
        in_sync_replicas=state.in_sync_replicas,
        assignment=state.assignment,
    )


@pytest.mark.invariant("I29")
@simulated(brokers=1, seed=41, settings=SETTINGS)
async def test_an_order_that_took_longer_than_the_session_lifts_no_fence(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    partition, registration = replica(c, 1), c.simulation.brokers[1].registration
    assert not partition.state.fenced
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registration, "is_fenced", lambda: True)
        assert partition.state.leader_epoch is not None
        partition.handle(order(partition, partition.state.leader_epoch))
    assert partition.state.fenced


@pytest.mark.invariant("I29")
@pytest.mark.parametrize("kind", ["fetch", "produce"])
@pytest.mark.parametrize(
    ("is_over", "is_fenced", "is_leader", "checks"),
    [
        (False, False, True, 1),
        (True, False, True, 1),
        (True, True, True, 0),
        (True, False, False, 0),
    ],
)
def test_a_leader_checks_its_fence_before_it_decides(
    kind: str, is_over: bool, is_fenced: bool, is_leader: bool, checks: int
) -> None:
    """The session may have ended since the last check, and another replica lead: then even an answer that grants
    nothing new would move the high watermark."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    core = cluster.replicas[1 if is_leader else 2]
    if is_fenced:
        core.handle(ev.BrokerFenced())
    checked: list[bool] = []

    def check_fence() -> None:
        checked.append(core.state.fenced)
        if is_over:
            core.handle(ev.BrokerFenced())

    effects: list[ev.ReplicaEffect] = []
    services = SimpleNamespace(check_fence=check_fence, fenced=False)
    shell = cast(Any, SimpleNamespace(state=core.state, services=services, _observer=UNOBSERVED))
    shell._perform, shell.decide = effects.extend, lambda event: effects.extend(step(core.state, event))
    if kind == "fetch":
        fetch = ev.FollowerFetched(
            now_ms=cluster.now_ms,
            replica_id=2,
            broker_epoch=None,
            current_leader_epoch=0,
            fetch_offset=0,
            last_fetched_epoch=None,
            eligible=True,
        )
        is_served = isinstance(Partition.handle_fetch(shell, fetch), FetchGranted)
    else:
        header = header_for(0, -1)
        produced = ev.ProduceReceived(tokens=("a",), acks=1, headers=(header,), producers=core.producers)
        Partition.handle(shell, produced)
        is_served = any(isinstance(each, ev.AppendBatches) for each in effects)
    assert checked == [False] * checks
    assert is_served == (is_leader and not is_over and not is_fenced)


@pytest.mark.parametrize(("current_epoch", "is_refused"), [(0, False), (3, True)])
def test_each_step_is_shown_with_whether_a_fetch_was_refused(current_epoch: int, is_refused: bool) -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    seen: list[Any] = []
    observers = Observers()
    services = SimpleNamespace(check_fence=lambda: None)
    shell = cast(Any, SimpleNamespace(state=cluster.replicas[1].state, services=services, _observer=observers))
    shell._perform = lambda effects: None
    fetch = ev.FollowerFetched(
        now_ms=0,
        replica_id=2,
        broker_epoch=None,
        current_leader_epoch=current_epoch,
        fetch_offset=0,
        last_fetched_epoch=None,
        eligible=True,
    )
    checked = ev.LagChecked(now_ms=0)
    Partition.handle_fetch(shell, fetch)
    Partition.decide(shell, checked)
    with observers.subscribed(seen.append):
        Partition.handle_fetch(shell, fetch)
        Partition.decide(shell, checked)
    assert [(each.replica, each.event, each.is_refused) for each in seen] == [
        (shell, fetch, is_refused),
        (shell, checked, False),
    ]


@simulated(brokers=1, seed=43, settings=SETTINGS)
async def test_a_proposed_isr_is_reported_once_however_often_it_is_sent(c: SimulatedHarness) -> None:
    """While the controller does not answer, each leader repeats its proposals all the time."""
    await c.create_topic(TOPIC)
    partition, manager = replica(c, 1), c.simulation.brokers[1].manager
    proposal = ev.ProposeIsr(
        kind=IsrKind.SHRINK, proposal_id=1, leader_epoch=0, partition_epoch=0, new_isr_with_epochs=((1, None),)
    )
    seen: list[object] = []
    with c.world.observers.subscribed(seen.append), pytest.MonkeyPatch.context() as patch:
        sent: list[ev.ProposeIsr] = []
        patch.setattr(manager.alter_partition, "propose", lambda _, each: sent.append(each))
        manager.propose_isr(partition, proposal)
        manager.propose_isr(partition, replace(proposal, after_ms=50))
        manager.propose_isr(partition, replace(proposal, after_ms=50))
    assert len(sent) == 3
    reported = [each for each in seen if isinstance(each, IsrProposed)]
    assert reported == [IsrProposed(topic=TOPIC, partition=0, isr=[1], kind="pending-shrink")]


@pytest.mark.invariant("I5")
@simulated(brokers=2, seed=42, settings=SETTINGS)
async def test_a_fetch_changes_nothing_after_its_answer(c: SimulatedHarness) -> None:
    await c.create_topic(TOPIC)
    leader = await c.leader(TOPIC)
    assert leader is not None
    partition, follower = replica(c, leader), 3 - leader
    await c.kill(follower)
    epoch = partition.state.leader_epoch
    assert epoch is not None
    fetch = ev.FollowerFetched(
        now_ms=partition.now_ms(),
        replica_id=follower,
        broker_epoch=partition.state.remotes[follower].broker_epoch,
        current_leader_epoch=epoch,
        fetch_offset=0,
        last_fetched_epoch=None,
        eligible=True,
    )
    partition.handle_fetch(fetch)
    partition.handle(order(partition, epoch + 1))
    assert partition.state.remotes[follower].log_end_offset is None
    await asyncio.sleep(0.1)
    assert partition.state.remotes[follower].log_end_offset is None


@pytest.mark.parametrize(
    ("before", "after", "shrinks", "expands"),
    [((1, 2, 3), (1, 2), 1, 0), ((1, 2, 3), (1,), 1, 0), ((1,), (1, 2), 0, 1), ((), (1, 2), 0, 0)],
)
def test_a_committed_isr_is_counted_as_a_shrink_or_an_expansion(
    before: tuple[int, ...], after: tuple[int, ...], shrinks: int, expands: int
) -> None:
    """One without an earlier one is that of an order, and no change by this leader."""
    counters = BrokerCounters()
    state = SimpleNamespace(leader_epoch=0, partition_epoch=1)
    shell = SimpleNamespace(report=lambda *_, **__: None, state=state, services=SimpleNamespace(counters=counters))
    Partition._isr_committed(cast(Any, shell), ev.IsrCommitted(before=before, after=after))
    assert (counters.isr_shrinks, counters.isr_expands) == (shrinks, expands)


def test_an_append_that_the_disk_refuses_is_told_to_the_disk_s_owner_and_to_each_producer() -> None:
    told, failed, error = list[object](), list[str](), DiskError("the disk says so")

    def refuse(_: object) -> None:
        raise error

    disk = SimpleNamespace(log_failed=lambda partition, error: told.append(error))
    partition = SimpleNamespace(log=SimpleNamespace(append=refuse), services=SimpleNamespace(disk=disk))
    header, records = make_batch(0)
    tokens = tuple(SimpleNamespace(header=header, records=bytearray(records), fail_storage=failed.append) for _ in "ab")
    effect = SimpleNamespace(tokens=tokens, base_offset=5, leader_epoch=2)
    assert Partition.append_batches(cast(Any, partition), cast(Any, effect)) is None
    assert told == [error]
    assert failed == ["the disk says so"] * 2


def test_a_request_that_waits_for_followers_does_not_keep_the_records_that_are_written() -> None:
    """Of a hundred megabytes that wait for a slow follower, the log's cache keeps the newest only."""
    header, records = make_batch(0)
    token, received = SimpleNamespace(header=header), Received(records)
    token.records, kept, counters = received, weakref.ref(received), BrokerCounters()
    size_bytes = len(received)
    del received
    partition = SimpleNamespace(log=SimpleNamespace(append=lambda _: None), _observer=UNOBSERVED)
    partition.services = SimpleNamespace(counters=counters)
    effect = SimpleNamespace(tokens=(token,), base_offset=5, leader_epoch=2)
    assert Partition.append_batches(cast(Any, partition), cast(Any, effect)) == 5 + header.record_count
    assert kept() is None
    assert counters.bytes_in == size_bytes


def test_a_reset_log_has_the_producers_that_the_leader_sent() -> None:
    """A retry of a record below the new start would be written a second time. What cannot be read gives none."""
    sent = ProducerStates()
    sent.update(make_batch(0, producer=(7, 0, 0))[0])
    shell = cast(Any, SimpleNamespace(topic_partition=PARTITION))
    for content, expected in ((sent.snapshot(), sent), (b"", ProducerStates()), (b"garbage", ProducerStates())):
        assert Partition._producers_from_leader(shell, ev.ResetTo(offset=9, producers=content)) == expected


@pytest.mark.invariant("I25")
@pytest.mark.parametrize(("offset", "is_believed"), [(5, True), (4, False), (3, False)])
def test_producers_of_batches_that_a_reset_log_will_not_have_are_not_believed(offset: int, is_believed: bool) -> None:
    """A leader sends the batches in front of its log start, here those up to 4. A retry of any other batch would wait
    for an offset that this log has not reached, which is a failed assertion once it leads."""
    sent = ProducerStates()
    sent.update(make_batch(3, records=2, producer=(7, 0, 0))[0])
    shell = cast(Any, SimpleNamespace(topic_partition=PARTITION))
    known = Partition._producers_from_leader(shell, ev.ResetTo(offset=offset, producers=sent.snapshot()))
    assert (len(known) == 1, known.is_incomplete) == (is_believed, not is_believed)


@pytest.mark.invariant("I25")
def test_a_log_that_a_truncation_resets_does_not_know_who_wrote_in_front(caplog: pytest.LogCaptureFixture) -> None:
    """The leader was not asked for its producers: an unanswered retry may be in its log."""
    for offset, sent, is_incomplete in ((9, None, True), (0, None, False), (9, b"", False)):
        reset = ev.ResetTo(offset=offset, producers=sent)
        assert Partition._producers_from_leader(cast(Any, None), reset).is_incomplete == is_incomplete
    assert not caplog.records, "none is no error"


@pytest.mark.invariant("I13")
def test_the_epoch_history_that_the_core_decides_is_written_into_the_log() -> None:
    written: list[object] = []
    shell = SimpleNamespace(log=SimpleNamespace(write_epoch_entries=written.append))
    Partition.write_epoch_history(cast(Any, shell), [(0, 0), (3, 7)])
    assert written == [[(0, 0), (3, 7)]]


@pytest.mark.parametrize("is_reset", [False, True])
def test_the_directory_learns_the_end_that_a_cut_has_left(is_reset: bool) -> None:
    """It lowers the checkpointed high watermark to that: a start would take an end below it for damage."""
    log, learnt = SimpleNamespace(log_end_offset=9), list[int]()
    log.truncate_to = lambda offset: setattr(log, "log_end_offset", offset)
    log.reset_to = lambda offset, producers: setattr(log, "log_end_offset", offset)
    directory = SimpleNamespace(log_was_cut=lambda cut: learnt.append(cut.log_end_offset))
    shell = cast(Any, SimpleNamespace(log=log, topic_partition=PARTITION, state=SimpleNamespace(leader_epoch=0)))
    shell.services = SimpleNamespace(log_directory=directory, counters=BrokerCounters())
    shell._cut, shell.report = lambda cut: cut(), lambda *_, **__: None
    shell._producers_from_leader = lambda effect: ProducerStates()
    if is_reset:
        Partition.reset_to(shell, ev.ResetTo(offset=4))
    else:
        Partition.truncate_to(shell, ev.TruncateTo(end_offset=4, reason="a test says so", below_high_watermark=True))
    assert learnt == [4]


def test_a_log_whose_cut_cannot_be_finished_is_not_offered_again() -> None:
    """Its producer states still include what was cut: a batch that is gone would be acknowledged as a duplicate."""
    handled: list[object] = []

    def finish_cut() -> None:
        raise OutOfDescriptors("the test says so")

    shell = cast(Any, SimpleNamespace(log=SimpleNamespace(finish_cut=finish_cut), handle=handled.append))
    with pytest.raises(OutOfDescriptors):
        Partition.log_healed(shell)
    assert handled == []


def test_a_replica_that_goes_out_of_use_is_marked_in_its_directory_and_told_to_the_controller() -> None:
    """Without the mark, the next start would take the damaged log for a good one."""
    done: list[object] = []
    repairs = SimpleNamespace(out_of_use=done.append)
    shell = SimpleNamespace(log=SimpleNamespace(mark_damaged=done.append), services=SimpleNamespace(repairs=repairs))
    Partition._take_out_of_use(cast(Any, shell), ev.TakeOutOfUse(reason="a bad CRC"))
    assert done == ["a bad CRC", shell]


@pytest.mark.parametrize("fails", [False, True])
def test_a_replica_keeps_nothing_of_a_reply_that_it_has_handled(fails: bool) -> None:
    """An idle partition would keep the bytes of its last fetch for ever, a megabyte each."""
    reply, handled = memoryview(b"records"), list[object]()
    shell = cast(Any, SimpleNamespace())

    def handle(_: object) -> None:
        handled.extend(shell.fetched_buffers)
        if fails:
            raise AssertionError("a bug of ours")

    shell.handle = handle
    with pytest.raises(AssertionError) if fails else nullcontext():
        Partition.handle_fetched(shell, cast(Any, None), [reply])
    assert handled == [reply]
    assert not shell.fetched_buffers


@simulated(brokers=2, seed=43, settings=SETTINGS)
async def test_a_replica_that_fails_within_an_effect_performs_none_of_those_behind_it(c: SimulatedHarness) -> None:
    """It drops its log at its leader's start, and the epoch file cannot be written. With the records of that answer, it
    ended the broker by an assertion."""
    await c.create_topic(TOPIC)
    await produce(c, 3)
    await asyncio.sleep(1)
    leader = await c.wait_for_leader(TOPIC)
    partition = replica(c, 3 - leader)
    state, epoch = partition.state, partition.state.leader_epoch
    assert epoch is not None
    assert state.log_end_offset == state.high_watermark == 3
    state.matches_leader = False
    header, batch = make_batch(3, epoch=epoch)
    answer = ev.FetchAnswered(
        leader_epoch=epoch,
        fetch_offset=3,
        error_code=ErrorCode.NONE,
        high_watermark=3,
        log_start_offset=3,
        low_watermark=3,
        batches=(header,),
    )
    disk(c, 3 - leader).fail("replace_file", f"/data/log/{TOPIC}-0/{EPOCH_CHECKPOINT}", times=1, is_bad_entry=True)
    c.world.process(f"broker-{3 - leader}").context.run(partition.handle_fetched, answer, [batch])
    assert (state.role, partition.log.log_end_offset) == (Role.OFFLINE, 3)
