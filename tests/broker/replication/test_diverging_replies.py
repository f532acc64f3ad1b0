"""A reply that says 'your log has parted from mine' teaches nothing else (KAFKA-14704)."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import AskingLeaderEnds, Fetching, ReplicaState
from minibroker.protocol.errors import ErrorCode
from minibroker.simulation.model.replica import header_for
from tests.broker.replication.stage import Stage


@pytest.mark.invariant("I11", "I32")
def test_a_diverging_reply_does_not_move_the_mark() -> None:
    stage = Stage(2)
    stage.elect(1)
    stage.produce(1, "a")
    stage.produce(1, "b")
    stage.fetch(2)
    state = stage.actors[2].state
    assert (state.high_watermark, state.log_end_offset) == (0, 2)
    step(
        state,
        ev.FetchAnswered(leader_epoch=0, fetch_offset=2, error_code=ErrorCode.NONE, high_watermark=2, diverging=True),
    )
    assert state.high_watermark == 0


def _diverging(state: ReplicaState) -> list[str]:
    """Kinds of what follows from a reply that says so."""
    state.phase = Fetching()
    answer = ev.FetchAnswered(
        leader_epoch=0, fetch_offset=state.log_end_offset, error_code=ErrorCode.NONE, high_watermark=2, diverging=True
    )
    return [type(effect).__name__ for effect in step(state, answer)]


def test_alignment_that_changes_nothing_slows_down_and_then_gives_the_log_up() -> None:
    """A flipped epoch bit made it spin at round-trip speed for ever."""
    stage = Stage(2)
    stage.elect(1)
    stage.produce(1, "a")
    stage.fetch(2)
    state = stage.actors[2].state
    assert _diverging(state) == ["AskEpochEnd"]
    assert _diverging(state) == ["BackOff"]
    assert _diverging(state) == ["ReportDamage"]


def test_alignments_at_different_places_are_not_fruitless() -> None:
    stage = Stage(2)
    stage.elect(1)
    state = stage.actors[2].state
    for value in "abcd":
        stage.produce(1, value)
        stage.fetch(2)
        assert _diverging(state) == ["AskEpochEnd"]
        state.phase = Fetching()


def test_a_log_of_an_epoch_that_no_leader_had_is_given_up() -> None:
    """A bit of its last batch's epoch had flipped: its leader, of a lower epoch, never heard of that one."""
    stage = Stage(2)
    stage.elect(1)
    stage.produce(1, "a")
    stage.fetch(2)
    state = stage.actors[2].state
    state.epoch_history.entries = [(8, 0)]
    found = []
    for _ in range(3):
        state.phase = AskingLeaderEnds()
        answer = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=0, log_end_offset=1)
        found.append([type(effect).__name__ for effect in step(state, answer)])
    assert found == [["AskEpochEnd"], ["BackOff"], ["ReportDamage"]]


def test_a_log_that_its_leaders_batches_never_continue_is_given_up() -> None:
    """The same bit, and the leader's epoch happens to be that one: what comes behind is of a lower epoch."""
    stage = Stage(2)
    stage.elect(1)
    stage.produce(1, "a")
    stage.fetch(2)
    state = stage.actors[2].state
    state.phase, state.leader_epoch, state.epoch_history.entries = Fetching(), 2, [(2, 0)]
    end = state.log_end_offset
    answer = ev.FetchAnswered(
        leader_epoch=2, fetch_offset=end, error_code=ErrorCode.NONE, batches=(header_for(end, 0, None),)
    )
    found = [[type(effect).__name__ for effect in step(state, answer)] for _ in range(3)]
    assert found == [["Warn", "BackOff"], ["Warn", "BackOff"], ["Warn", "ReportDamage"]]
