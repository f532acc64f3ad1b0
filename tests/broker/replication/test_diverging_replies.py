"""A reply that says 'your log has parted from mine' teaches nothing else (KAFKA-14704)."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import Fetching, ReplicaState
from minibroker.protocol.errors import ErrorCode
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
