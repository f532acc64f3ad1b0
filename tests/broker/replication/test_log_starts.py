"""A follower adopts its leader's log start, below which nobody can compare the two logs any more.

After an alignment the logs are equal from the leader's start on. Below it they are equal only if the follower's log
reaches beyond: the epoch of its last record then proves all before it. A follower that ends where its leader starts may
hold anything there.
"""

import msgspec
import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.log_starts import advance_low_watermark
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.checkpoints import LogStartReason
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


def answer(
    log_start_offset: int, records: int = 0, low_watermark: int | None = None, high_watermark: int = END
) -> ev.FetchAnswered:
    return ev.FetchAnswered(
        leader_epoch=0,
        fetch_offset=END,
        error_code=ErrorCode.NONE,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        low_watermark=low_watermark,
        batches=tuple(header_for(END + number, 0) for number in range(records)),
    )


def names(effects: list[ev.ReplicaEffect]) -> list[str]:
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


@pytest.mark.invariant("I39")
def test_a_log_that_was_compared_is_kept_when_its_leader_starts_at_its_end() -> None:
    """Only where nobody ever compared it must it go at once."""
    state = follower()
    step(state, answer(0))
    (trim,) = [each for each in step(state, answer(END)) if isinstance(each, ev.TrimBefore)]
    assert not trim.drops_all
    state = follower()
    state.matches_leader = False
    (trim,) = [each for each in step(state, answer(END)) if isinstance(each, ev.TrimBefore)]
    assert trim.drops_all


@pytest.mark.invariant("I39", "I44")
@pytest.mark.parametrize(("low_watermark", "drops_all"), [(0, False), (1, False), (END, True)])
def test_a_log_is_dropped_only_where_all_members_have_recorded_the_start(low_watermark: int, drops_all: bool) -> None:
    """Until then the leader's files reach further down than its start, and it has compared this log by them. Dropped,
    its head would be missing where a member leads next that starts earlier (seed 17112752)."""
    state = follower()
    state.matches_leader = False
    (trim,) = [
        each for each in step(state, answer(END, low_watermark=low_watermark)) if isinstance(each, ev.TrimBefore)
    ]
    assert trim.drops_all == drops_all


@pytest.mark.invariant("I39")
def test_an_answer_to_a_log_without_records_has_compared_nothing() -> None:
    state = follower()
    state.matches_leader = False
    step(state, answer(END, low_watermark=END))
    step(state, answer(END, low_watermark=1))
    assert not state.matches_leader


@pytest.mark.invariant("I39")
def test_no_replica_tells_a_lower_low_watermark_than_where_its_files_begin() -> None:
    """Else others would take its answers for comparisons with what it does not have."""
    state = follower()
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(
        leader_epoch=0,
        error_code=ErrorCode.NONE,
        log_start_offset=END + 6,
        log_end_offset=END + 9,
        low_watermark=END + 6,
    )
    step(state, ends)
    assert state.low_watermark == END + 6


@pytest.mark.invariant("I39")
def test_a_start_above_the_leader_s_is_lowered_before_anything_is_appended() -> None:
    state = follower()
    step(state, answer(1))
    assert state.log_start_offset == 1
    assert names(step(state, answer(0, records=1))) == ["LowerStart"]
    assert "FetchNext" in names(step(state, ev.StartLowered(wanted=0, log_start_offset=0)))
    assert state.log_start_offset == 0


@pytest.mark.invariant("I39")
def test_a_head_that_the_leader_has_and_this_log_not_is_damage() -> None:
    state = follower()
    step(state, answer(1))
    step(state, answer(0))
    assert names(step(state, ev.StartLowered(wanted=0, log_start_offset=1))) == ["ReportDamage"]


def test_a_log_that_holds_nothing_begins_where_its_leader_does() -> None:
    state = follower()
    state.matches_leader = False
    step(state, answer(END))
    step(state, answer(1))
    assert names(step(state, ev.StartLowered(wanted=1, log_start_offset=END))) == ["AskLeaderEnds"]


@pytest.mark.invariant("I10", "I36")
@pytest.mark.parametrize("absurd", [answer(0, 1, low_watermark=1), answer(END + 1, 1)])
def test_an_answer_whose_marks_contradict_each_other_is_refused(absurd: ev.FetchAnswered) -> None:
    """Believed, it would never be forgotten: a leader with a low watermark above its start lets nobody join."""
    state = follower()
    assert names(step(state, absurd)) == ["Warn", "BackOff"]
    assert (state.log_start_offset, state.low_watermark, state.log_end_offset) == (0, 0, END)


@pytest.mark.invariant("I10")
def test_a_low_watermark_is_followed_as_far_as_one_s_own_start() -> None:
    """A follower that is behind starts in front of its leader for a while, whose mark it cannot follow yet."""
    state = follower()
    step(state, answer(END + 5, low_watermark=END + 3, high_watermark=END + 8))
    assert (state.log_start_offset, state.low_watermark) == (END, END)
    batches = tuple(header_for(END + number, 0) for number in range(8))
    marks = {"high_watermark": END + 8, "log_start_offset": END + 5, "low_watermark": END + 3}
    step(state, ev.FetchedAppended(batches=batches, **marks))
    assert (state.log_start_offset, state.low_watermark) == (END + 5, END + 3)


@pytest.mark.invariant("I10")
def test_a_low_watermark_comes_down_with_the_start() -> None:
    """Only an unclean election brings that about: what the leader before said holds no more."""
    state = follower()
    step(state, answer(END, low_watermark=END))
    assert state.low_watermark == END
    step(state, answer(0))
    step(state, ev.StartLowered(wanted=0, log_start_offset=0))
    assert (state.log_start_offset, state.low_watermark) == (0, 0)


def test_ends_of_a_leader_that_contradict_each_other_are_refused() -> None:
    state = follower()
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=9, log_end_offset=3)
    assert names(step(state, ends)) == ["Warn", "BackOff"]
    assert state.log_end_offset == END


@pytest.mark.invariant("I39", "I44")
def test_a_log_begins_anew_only_where_all_members_have_recorded_that_the_leader_s_starts() -> None:
    """Otherwise a member that starts earlier may lead next, and what this log never had would look like damage."""
    state = follower()
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(
        leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=END + 6, log_end_offset=END + 9, low_watermark=0
    )
    assert names(step(state, ends)) == ["BackOff"]
    assert names(step(state, ev.PhaseRetried())) == ["AskLeaderEnds"]
    assert "ResetTo" in names(step(state, msgspec.structs.replace(ends, low_watermark=END + 6)))
    assert state.log_start_offset == END + 6


def leader_of(*reported: int | None) -> ReplicaState:
    """Two committed records; each follower reported that start."""
    stage = Stage(1 + len(reported))
    stage.elect(1)
    stage.produce(1, "a")
    stage.produce(1, "b")
    for number in range(len(reported)):
        stage.fetch(2 + number)
        stage.fetch(2 + number)
    state = stage.actors[1].state
    for number, start in enumerate(reported):
        state.remotes[2 + number].log_start_offset = start
    return state


def trimmed(epoch: int = 0) -> ev.LogTrimmed:
    return ev.LogTrimmed(leader_epoch=epoch, log_start_offset=1, reason=LogStartReason.RETENTION)


@pytest.mark.invariant("I14", "I39")
def test_files_go_only_when_every_in_sync_replica_has_recorded_the_start() -> None:
    state = leader_of(0, 0)
    assert names(step(state, trimmed())) == ["TrimBefore", "StartsChanged"]
    assert (state.log_start_offset, state.low_watermark) == (1, 0)
    for replica_id in (2, 3):
        step_fetch(state, fetched(replica_id, 1))
        assert state.low_watermark == (1 if replica_id == 3 else 0)


def fetched(replica_id: int, log_start_offset: int | None, epoch: int = 0) -> ev.FollowerFetched:
    return ev.FollowerFetched(
        now_ms=0,
        replica_id=replica_id,
        broker_epoch=None,
        current_leader_epoch=epoch,
        fetch_offset=END,
        last_fetched_epoch=0,
        eligible=True,
        log_start_offset=log_start_offset,
    )


def test_a_decision_of_an_epoch_that_is_over_changes_nothing() -> None:
    state = leader_of(0)
    assert step(state, trimmed(epoch=7)) == []
    assert step(follower(), trimmed()) == []
    assert state.log_start_offset == 0


@pytest.mark.invariant("I39")
@pytest.mark.parametrize(("start", "joins"), [(0, False), (1, True), (2, False), (None, False)])
def test_a_replica_joins_only_with_a_log_that_starts_like_its_leader_s(start: int | None, joins: bool) -> None:
    """D13: behind it records would be lost with the others; in front of the low watermark others have deleted."""
    state = leader_of(0, 0)
    step(state, trimmed())
    state.in_sync_replicas = (1,)
    advance_low_watermark(state, [])
    assert state.low_watermark == 1
    _, effects = step_fetch(state, fetched(2, start))
    assert ("ProposeIsr" in names(effects)) == joins


@pytest.mark.invariant("I39", "I44")
@pytest.mark.parametrize(("start", "joins"), [(0, False), (1, True)])
def test_a_new_leader_lets_nobody_in_that_starts_before_it(start: int, joins: bool) -> None:
    """The leader before had deleted up to the start of this one, which had not heard of it: with a log of an earlier
    start in the lead, that one's missing head would look like damage."""
    stage = Stage(3)
    stage.elect(1)
    stage.produce(1, "a")
    stage.produce(1, "b")
    for _ in range(2):
        stage.fetch(2)
        stage.fetch(3)
    state = stage.actors[2].state
    step(state, answer(1))
    stage.elect(2, isr=(1, 2), to=(2,))
    assert (state.log_start_offset, state.low_watermark) == (1, 0)
    _, effects = step_fetch(state, fetched(3, start, epoch=1))
    assert ("ProposeIsr" in names(effects)) == joins
