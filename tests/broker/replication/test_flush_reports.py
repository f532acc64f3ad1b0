"""With flushing on nothing counts before it survives power loss, also after a restart: the page cache is no promise."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import Fetching
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.stage import Stage


def _kinds(effects: list[ev.ReplicaEffect]) -> set[str]:
    return {type(effect).__name__ for effect in effects}


def _restarted_with_unsynced_tail() -> Stage:
    """Replica 2 holds a record that it has not synced, and its process was killed."""
    stage = Stage(2, flush=True)
    stage.elect(1)
    stage.produce(1, "a")
    stage.fetch(2)
    stage.actors[2].restart()
    stage.actors[2].state.synced_end_offset = 0
    return stage


def _leadership(stage: Stage, leader: int, epoch: int) -> ev.LeaderAndIsrReceived:
    return ev.LeaderAndIsrReceived(
        now_ms=stage.now_ms,
        controller_epoch=1,
        leader_id=leader,
        leader_epoch=epoch,
        partition_epoch=epoch,
        in_sync_replicas=(leader,),
        assignment=stage.assignment,
    )


def test_a_restarted_follower_syncs_before_it_reports_its_end() -> None:
    stage = _restarted_with_unsynced_tail()
    state = stage.actors[2].state
    step(state, _leadership(stage, leader=1, epoch=1))
    aligned = ev.EpochEndAnswered(leader_epoch=1, asked_epoch=0, error_code=ErrorCode.NONE, epoch=0, end_offset=1)
    assert _kinds(step(state, aligned)) == {"SyncLog"}
    assert isinstance(state.phase, Fetching)
    assert _kinds(step(state, ev.PhaseRetried())) == {"SyncLog"}
    assert _kinds(step(state, ev.Synced(end_offset=1, now_ms=stage.now_ms))) == {"FetchNext"}
    assert _kinds(step(state, ev.PhaseRetried())) == {"FetchNext"}


@pytest.mark.invariant("I36")
def test_a_new_leader_syncs_what_it_holds_or_its_mark_stands_still_without_traffic() -> None:
    stage = _restarted_with_unsynced_tail()
    state = stage.actors[2].state
    assert "SyncLog" in _kinds(step(state, _leadership(stage, leader=2, epoch=1)))
    assert state.high_watermark == 0
    step(state, ev.Synced(end_offset=1, now_ms=stage.now_ms))
    assert state.high_watermark == 1


def test_without_flushing_nobody_waits_for_a_sync() -> None:
    stage = Stage(2)
    stage.elect(1)
    stage.produce(1, "a")
    stage.fetch(2)
    state = stage.actors[2].state
    assert state.synced_end_offset == 0
    assert _kinds(step(state, ev.PhaseRetried())) == {"FetchNext"}
