"""Whether a replica with a damaged log leads, goes offline or starts empty: the decisions of `replication.damage`."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.damage import may_reset
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import ReplicaState, ReplicationConfig, Role
from minibroker.protocol.errors import ErrorCode

LAG_MS = ReplicationConfig(broker_id=1).replica_lag_time_max_ms + 1
DAMAGED = ev.LogDamaged(reason="a bit has flipped")


def order(leader: int | None, isr: tuple[int, ...], epoch: int = 0, version: int = 0) -> ev.LeaderAndIsrReceived:
    return ev.LeaderAndIsrReceived(
        now_ms=0,
        leader_id=leader,
        leader_epoch=epoch,
        partition_epoch=version,
        in_sync_replicas=isr,
        assignment=(1, 2, 3),
    )


def fetched(replica_id: int, offset: int = 0, epoch: int = 0, now_ms: int = 0) -> ev.FollowerFetched:
    return ev.FollowerFetched(
        now_ms=now_ms,
        replica_id=replica_id,
        broker_epoch=1,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=None,
        eligible=True,
        log_start_offset=0,
    )


def replica(broker_id: int = 1) -> ReplicaState:
    return ReplicaState(config=ReplicationConfig(broker_id=broker_id))


def leader(isr: tuple[int, ...]) -> ReplicaState:
    """Replica 1 leads epoch 0."""
    state = replica()
    step(state, order(1, isr))
    return state


def kinds(effects: list[ev.ReplicaEffect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def test_a_replica_that_is_offline_for_lack_of_room_is_taken_out_of_use_once() -> None:
    """Else its log is written to again, and nothing tells the next start of the damage."""
    state = replica(2)
    step(state, order(1, (1, 2)))
    step(state, ev.LogFailed())
    assert kinds(step(state, DAMAGED)) == ["DamageNoted", "TakeOutOfUse"]
    assert (state.role, state.damage) == (Role.OFFLINE, DAMAGED.reason)
    assert kinds(step(state, DAMAGED)) == []


def test_a_damaged_follower_goes_offline_alone() -> None:
    state = replica(2)
    step(state, order(1, (1, 2)))
    assert kinds(step(state, DAMAGED)) == ["DamageNoted", "TakeOutOfUse", "LeaderChanged"]
    assert (state.role, state.damage, state.leader_id) == (Role.OFFLINE, DAMAGED.reason, None)


def test_a_damaged_leader_goes_offline_once_another_isr_member_fetches() -> None:
    state = leader((1, 2))
    step(state, DAMAGED)
    assert state.is_leader, "replica 2 may be down: it has not fetched in this epoch"
    step_fetch(state, fetched(2))
    step(state, ev.LagChecked(now_ms=0))
    assert state.is_offline


def test_a_damaged_sole_isr_member_hands_over_once_another_has_joined() -> None:
    state = leader((1,))
    assert kinds(step(state, DAMAGED)) == ["DamageNoted"]
    step_fetch(state, fetched(2))
    assert state.pending_isr is not None
    step(state, ev.LagChecked(now_ms=0))
    assert state.is_leader, "a proposed replica is not a member yet"
    proposal = state.pending_isr.proposal_id
    answer = ev.AlterPartitionAnswered(
        proposal_id=proposal,
        error_code=ErrorCode.NONE,
        leader_epoch=0,
        in_sync_replicas=(1, 2),
        partition_epoch=1,
        now_ms=0,
    )
    effects = step(state, answer)
    assert state.is_offline
    assert "TakeOutOfUse" in kinds(effects)


def settled(state: ReplicaState, error_code: ErrorCode, isr: tuple[int, ...]) -> ev.AlterPartitionAnswered:
    """The controller's answer to the pending proposal."""
    assert state.pending_isr is not None
    return ev.AlterPartitionAnswered(
        proposal_id=state.pending_isr.proposal_id,
        error_code=error_code,
        leader_epoch=0,
        in_sync_replicas=isr,
        partition_epoch=1,
        now_ms=LAG_MS,
    )


def shrinking_leader() -> ReplicaState:
    """Replica 1 leads an ISR of 1 and 2, and has proposed to remove 2, which has fetched again since."""
    state = leader((1, 2))
    step_fetch(state, fetched(2))
    step(state, ev.BatchesAppended(tokens=(), acks=1, base_offset=0, end_offset=1, now_ms=0))
    step(state, ev.LagChecked(now_ms=LAG_MS))
    assert state.pending_isr is not None
    assert state.pending_isr.in_sync_replicas == (1,)
    step_fetch(state, fetched(2, now_ms=LAG_MS))
    return state


def test_a_damaged_leader_does_not_hand_over_to_a_member_it_proposed_to_remove() -> None:
    state = shrinking_leader()
    step(state, DAMAGED)
    step(state, ev.LagChecked(now_ms=LAG_MS))
    assert state.is_leader, "the proposal may be applied: then only replica 1 is in sync"
    step(state, settled(state, ErrorCode.NONE, (1,)))
    assert state.is_leader


def test_a_damaged_leader_hands_over_once_its_proposal_to_remove_the_other_is_refused() -> None:
    state = shrinking_leader()
    step(state, DAMAGED)
    step(state, settled(state, ErrorCode.INELIGIBLE_REPLICA, (1, 2)))
    assert state.is_offline


@pytest.mark.invariant("I4", "I8")
def test_a_damaged_leader_that_handed_over_does_not_lead_again_in_that_epoch() -> None:
    """A repeated order resets what it knows of the others: it would find that none can take over, and stay."""
    state = leader((1, 2))
    step_fetch(state, fetched(2))
    step(state, DAMAGED)
    assert state.is_offline
    assert step(state, order(1, (1, 2))) == []
    assert state.is_offline


def test_damage_is_reported_once() -> None:
    state = leader((1,))
    step(state, DAMAGED)
    assert step(state, DAMAGED) == []


def test_a_damaged_log_stays_offline_when_the_disk_has_room_again() -> None:
    state = replica(2)
    step(state, order(1, (1, 2)))
    step(state, DAMAGED)
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=0, epoch_entries=()))
    assert state.is_offline


@pytest.mark.invariant("I42")
def test_a_damaged_leader_that_had_no_room_for_a_while_can_lead_again() -> None:
    """No other replica could take over, so nothing had noted its damage. It stayed offline for ever, and the partition
    without a leader, until a restart forgot the damage. The next read of the damaged range finds it again."""
    state = leader((1,))
    step(state, DAMAGED)
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=0, epoch_entries=()))
    assert (state.role, state.damage) == (Role.NONE, None)
    step(state, order(1, (1,), epoch=1, version=1))
    assert kinds(step(state, DAMAGED)) == ["DamageNoted"]
    assert state.is_leader


def test_a_damaged_leader_does_not_become_a_follower() -> None:
    state = leader((1,))
    step(state, DAMAGED)
    effects = step(state, order(2, (1, 2), epoch=1, version=1))
    assert kinds(effects) == ["LeaderChanged", "TakeOutOfUse", "LeaderChanged"]  # as a follower it asks nothing
    assert state.is_offline


def may_begin_after(state: ReplicaState, received: ev.LeaderAndIsrReceived) -> bool:
    return may_reset(state, received.leader_id, received.in_sync_replicas, received.leader_epoch)


@pytest.mark.invariant("I40")
@pytest.mark.parametrize(
    ("received", "may"),
    [
        (order(1, (1,), epoch=1), True),
        (order(1, (1, 3), epoch=1), True),
        (order(1, (1, 2), epoch=1), False),  # the ISR counts on it
        (order(2, (2,), epoch=1), False),  # it is the only copy
        (order(None, (2,), epoch=1), False),
        (order(None, (3,), epoch=1), False),  # there is no leader to fetch from
        (order(1, (1,), epoch=0, version=9), False),  # a proposal of this epoch may still add it to the ISR
    ],
)
def test_a_damaged_replica_starts_empty_only_when_no_replica_can_count_on_it(
    received: ev.LeaderAndIsrReceived, may: bool
) -> None:
    state = replica(2)
    step(state, order(1, (1,)))
    step(state, DAMAGED)
    assert may_begin_after(state, received) is may


def test_after_a_restart_any_epoch_allows_an_empty_start() -> None:
    state = ReplicaState(config=ReplicationConfig(broker_id=2), role=Role.OFFLINE, damage="head missing")
    assert may_begin_after(state, order(1, (1,)))
    assert not may_begin_after(state, order(1, (1, 2)))
