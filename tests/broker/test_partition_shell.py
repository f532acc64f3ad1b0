"""The shell around a replica's core: it checks the fence before each decision, and adds nothing after it."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.broker.replication.state import IsrKind
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.events.replica_events import IsrProposed
from minibroker.testing import simulated
from tests.broker.log.machine import PARTITION, make_batch
from tests.simulation.test_damage import TOPIC, replica

SETTINGS = {"auto.leader.rebalance.enable": "false"}


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


def test_a_reset_log_has_the_producers_that_the_leader_sent() -> None:
    """A retry of a record below the new start would be written a second time. What cannot be read gives none."""
    sent = ProducerStates()
    sent.update(make_batch(0, producer=(7, 0, 0))[0])
    shell = cast(Any, SimpleNamespace(topic_partition=PARTITION))
    for content, expected in ((sent.snapshot(), sent), (b"", ProducerStates()), (b"garbage", ProducerStates())):
        assert Partition._producers_from_leader(shell, ev.ResetTo(offset=9, producers=content)) == expected


def test_a_log_start_without_producers_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    Partition._producers_from_leader(cast(Any, None), ev.ResetTo(offset=9))
    assert not caplog.records
