"""Who leads, follows and starts anew with a damaged log: the decisions of `replication.damage`."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.damage import may_start_empty
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import ReplicaState, ReplicationConfig, Role
from minibroker.protocol.errors import ErrorCode

LAG_MS = ReplicationConfig(broker_id=1).replica_lag_time_max_ms + 1
DAMAGED = ev.LogDamaged(reason="a bit is not what it was")


def order(leader: int | None, isr: tuple[int, ...], epoch: int = 0, version: int = 0) -> ev.LeaderAndIsrReceived:
    return ev.LeaderAndIsrReceived(
        now_ms=0,
        controller_epoch=1,
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


def test_a_damaged_follower_goes_offline_alone() -> None:
    state = replica(2)
    step(state, order(1, (1, 2)))
    assert kinds(step(state, DAMAGED)) == ["DamageNoted", "TakeOutOfUse", "LeaderChanged"]
    assert (state.role, state.damage) == (Role.OFFLINE, DAMAGED.reason)


def test_a_damaged_leader_goes_offline_where_another_member_of_the_isr_fetches() -> None:
    state = leader((1, 2))
    step(state, DAMAGED)
    assert state.is_leader, "replica 2 may be dead: it has not fetched in this epoch"
    step_fetch(state, fetched(2))
    step(state, ev.LagChecked(now_ms=0))
    assert state.is_offline


def test_the_only_member_of_the_isr_leads_on_and_hands_over_when_another_has_joined() -> None:
    state = leader((1,))
    assert kinds(step(state, DAMAGED)) == ["DamageNoted"]
    step_fetch(state, fetched(2))
    assert state.pending_isr is not None
    step(state, ev.LagChecked(now_ms=0))
    assert state.is_leader, "a proposal is no member yet"
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
    """The controller's answer to what is proposed."""
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
    """Replica 1 leads 1 and 2, and has proposed an ISR without 2, which has fetched again since."""
    state = leader((1, 2))
    step_fetch(state, fetched(2))
    step(state, ev.BatchesAppended(tokens=(), acks=1, base_offset=0, end_offset=1, now_ms=0))
    step(state, ev.LagChecked(now_ms=LAG_MS))
    assert state.pending_isr is not None
    assert state.pending_isr.in_sync_replicas == (1,)
    step_fetch(state, fetched(2, now_ms=LAG_MS))
    return state


def test_a_damaged_leader_counts_on_nobody_whom_its_pending_proposal_leaves_out() -> None:
    state = shrinking_leader()
    step(state, DAMAGED)
    step(state, ev.LagChecked(now_ms=LAG_MS))
    assert state.is_leader, "the proposal may be applied: then replica 1 alone is in sync"
    step(state, settled(state, ErrorCode.NONE, (1,)))
    assert state.is_leader


def test_a_damaged_leader_hands_over_once_its_proposal_to_leave_the_other_out_was_refused() -> None:
    state = shrinking_leader()
    step(state, DAMAGED)
    step(state, settled(state, ErrorCode.INELIGIBLE_REPLICA, (1, 2)))
    assert state.is_offline


def test_damage_is_noted_once() -> None:
    state = leader((1,))
    step(state, DAMAGED)
    assert step(state, DAMAGED) == []


def test_a_disk_that_has_room_again_makes_no_damaged_log_whole() -> None:
    state = replica(2)
    step(state, order(1, (1, 2)))
    step(state, DAMAGED)
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=0, epoch_entries=()))
    assert state.is_offline


def test_a_leader_that_was_damaged_and_is_deposed_does_not_follow_with_that_log() -> None:
    state = leader((1,))
    step(state, DAMAGED)
    step(state, order(2, (1, 2), epoch=1, version=1))
    assert state.is_offline


@pytest.mark.parametrize(
    ("said", "may"),
    [
        (order(1, (1,), epoch=1), True),
        (order(1, (1, 3), epoch=1), True),
        (order(1, (1, 2), epoch=1), False),  # somebody counts on it
        (order(2, (2,), epoch=1), False),  # it is the only one there is
        (order(None, (2,), epoch=1), False),
        (order(None, (3,), epoch=1), False),  # nobody to fetch from
        (order(1, (1,), epoch=0, version=9), False),  # a proposal of this epoch may still take it into the ISR
    ],
)
def test_it_starts_anew_when_nobody_can_count_on_it(said: ev.LeaderAndIsrReceived, may: bool) -> None:
    state = replica(2)
    step(state, order(1, (1,)))
    step(state, DAMAGED)
    assert may_start_empty(state, said) is may


def test_after_a_start_any_epoch_will_do() -> None:
    state = ReplicaState(config=ReplicationConfig(broker_id=2), role=Role.OFFLINE, damage="head missing")
    assert may_start_empty(state, order(1, (1,)))
    assert not may_start_empty(state, order(1, (1, 2)))
