"""A follower adopts its leader's log start, below which nobody can compare the two logs any more.

After an alignment the logs are equal from the leader's start on. Below it they are equal only if the follower's log
reaches beyond: the epoch of its last record then proves all before it. A follower that ends where its leader starts may
hold anything there.
"""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.errors import ErrorCode
from minibroker.simulation.model.replica import header_for
from tests.broker.replication.stage import Stage

END = 2


def follower() -> ReplicaState:
    """Aligned; it holds two records, of which the second is committed."""
    stage = Stage(2)
    stage.elect(1)
    stage.produce(1, "a")
    stage.produce(1, "b")
    stage.fetch(2)
    stage.fetch(2)
    return stage.actors[2].state


def answer(log_start_offset: int, records: int = 0) -> ev.FetchAnswered:
    return ev.FetchAnswered(
        leader_epoch=0,
        fetch_offset=END,
        error_code=ErrorCode.NONE,
        high_watermark=END,
        log_start_offset=log_start_offset,
        batches=tuple(header_for(END + number, 0) for number in range(records)),
    )


def names(effects: list[ev.Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


@pytest.mark.invariant("I22")
def test_what_lies_below_the_leader_s_start_goes_before_anything_is_appended_to_it() -> None:
    found = names(step(follower(), answer(END, records=1)))
    assert found.index("TrimBefore") < found.index("AppendFetched")


def test_a_start_within_the_log_is_adopted_after_the_append() -> None:
    found = names(step(follower(), answer(1, records=1)))
    assert "TrimBefore" not in found[: found.index("AppendFetched")]


def test_nothing_is_trimmed_for_a_start_that_is_known() -> None:
    state = follower()
    step(state, answer(END))
    assert state.log_start_offset == END
    assert "TrimBefore" not in names(step(state, answer(END, records=1)))
