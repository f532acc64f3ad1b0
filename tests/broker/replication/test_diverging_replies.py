"""A reply that says 'your log has parted from mine' teaches nothing else (KAFKA-14704)."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
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
