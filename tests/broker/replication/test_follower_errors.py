"""An error in an answer to a follower: it asks again later, whatever it asked, or waits for the controller."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import (
    AskingEpochEnd,
    AskingLeaderEnds,
    Fetching,
    FollowerPhase,
    Halted,
    ReplicaState,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.files.checkpoints import MAX_SEGMENT_OFFSET
from minibroker.protocol.ids import MAX_OFFSET
from tests.broker.replication.core_cluster import CoreCluster

RETRIED = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.KAFKA_STORAGE_ERROR)


def follower(phase: FollowerPhase) -> ReplicaState:
    """Replica 2 follows replica 1 in epoch 0, with one record."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    state.phase = phase
    return state


def answers(error_code: ErrorCode) -> list[tuple[FollowerPhase, str, ev.ReplicaEvent]]:
    """Each phase, the request that it repeats, and an answer that has this error."""
    return [
        (
            AskingEpochEnd(0),
            "AskEpochEnd",
            ev.EpochEndAnswered(leader_epoch=0, asked_epoch=0, error_code=error_code),
        ),
        (
            AskingLeaderEnds(),
            "AskLeaderEnds",
            ev.LeaderEndsAnswered(leader_epoch=0, error_code=error_code),
        ),
        (
            Fetching(),
            "FetchNext",
            ev.FetchAnswered(leader_epoch=0, fetch_offset=1, error_code=error_code),
        ),
    ]


@pytest.mark.parametrize("error_code", RETRIED)
@pytest.mark.parametrize("number", range(3), ids=["epoch-end", "leader-ends", "fetch"])
def test_a_question_that_was_answered_with_an_error_is_asked_again_after_a_pause(
    number: int, error_code: ErrorCode
) -> None:
    """Nothing else would ask: without it the replica copies nothing until the next order."""
    phase, request, answer = answers(error_code)[number]
    state = follower(phase)
    assert step(state, answer) == [ev.BackOff(error_code=error_code)]
    assert state.phase == phase
    assert [type(each).__name__ for each in step(state, ev.PhaseRetried())] == [request]


@pytest.mark.parametrize("number", range(3), ids=["epoch-end", "leader-ends", "fetch"])
def test_a_follower_that_its_leader_fences_asks_nothing_until_the_next_order(number: int) -> None:
    phase, _, answer = answers(ErrorCode.FENCED_LEADER_EPOCH)[number]
    state = follower(phase)
    (warning,) = step(state, answer)
    assert isinstance(warning, ev.Warn)
    assert isinstance(state.phase, Halted)
    assert step(state, ev.PhaseRetried()) == []


@pytest.mark.invariant("I10")
@pytest.mark.parametrize(
    ("start", "end"), [(-1, -1), (-5, -3), (-1, 0), (-1, 9), (MAX_SEGMENT_OFFSET + 1, MAX_OFFSET), (9, 3)]
)
def test_ends_that_no_log_has_are_asked_for_again(start: int, end: int) -> None:
    """A reset to an offset below 0 ended the process, and -1 is what a message without the field says. No file can
    begin above the largest offset of a name: a restart would not find what is copied behind it."""
    state = follower(AskingLeaderEnds())
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=start, log_end_offset=end)
    warning, pause = step(state, ends)
    assert isinstance(warning, ev.Warn)
    assert pause == ev.BackOff(error_code=ErrorCode.CORRUPT_MESSAGE)
    assert (state.phase, state.log_start_offset, state.log_end_offset) == (AskingLeaderEnds(), 0, 1)
