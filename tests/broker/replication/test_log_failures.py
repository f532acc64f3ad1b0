"""A disk that refuses in the middle of a step: what is believed of the log afterwards is what the log holds."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import ReplicaState, Role
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.stage import Stage


def _about_to_cut() -> tuple[ReplicaState, ev.EpochEndAnswered]:
    """Replica 2 has led epoch 1 and written in it; the leader of epoch 2 knows nothing of that."""
    stage = Stage(3)
    stage.elect(1)
    stage.produce(1, "a")
    stage.fetch(2)
    stage.elect(2)
    stage.produce(2, "b")
    stage.elect(1)
    state = stage.actors[2].state
    assert state.epoch_history.entries == [(0, 0), (1, 1)]
    answer = ev.EpochEndAnswered(leader_epoch=2, asked_epoch=1, error_code=ErrorCode.NONE, epoch=0, end_offset=1)
    return state, answer


def test_the_log_is_cut_before_its_history_is_stored() -> None:
    state, answer = _about_to_cut()
    kinds = [type(effect).__name__ for effect in step(state, answer)]
    assert kinds.index("TruncateTo") < kinds.index("WriteEpochHistory")


def test_a_cut_that_the_disk_refused_has_not_happened() -> None:
    state, answer = _about_to_cut()
    step(state, answer)
    assert state.log_end_offset == 1
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=2, epoch_entries=((0, 0), (1, 1))))
    assert state.role is Role.NONE
    assert (state.log_end_offset, state.epoch_history.entries) == (2, [(0, 0), (1, 1)])


@pytest.mark.invariant("I39")
def test_files_deleted_while_the_disk_was_full_raise_the_low_watermark() -> None:
    """Found by the swarm (seed 17121250): no replica may report a low watermark below the start of its files."""
    state, _ = _about_to_cut()
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=1, log_start_offset=2, log_end_offset=2, epoch_entries=((0, 0),)))
    assert (state.low_watermark, state.log_start_offset) == (1, 2)


def test_healing_changes_nothing_where_nothing_failed() -> None:
    state, _ = _about_to_cut()
    role = state.role
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=0, epoch_entries=()))
    assert (state.role, state.log_end_offset) == (role, 2)


@pytest.mark.invariant("I4", "I8")
def test_a_leader_whose_log_failed_leads_no_more_in_that_epoch() -> None:
    """A proposal that it has forgotten may still be applied: acting on the set it is told again would not count it."""
    stage = Stage(3)
    stage.elect(1)
    state = stage.actors[1].state
    step(state, ev.LogFailed())
    step(state, ev.LogHealed(first_offset=0, log_start_offset=0, log_end_offset=0, epoch_entries=()))
    stage.tell((1,))
    assert not state.is_leader
    stage.elect(1)
    assert state.role is Role.LEADER
