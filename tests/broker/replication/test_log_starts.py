"""A follower adopts its leader's log start, below which the two logs can no longer be compared.

After an alignment the logs are equal from the leader's start on. Below it they are certainly equal only if the
follower's log reaches beyond that start: the epoch of its last record then proves all records before it. A follower
that ends where its leader starts may hold anything.
"""

import msgspec
import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.log_starts import advance_low_watermark
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.simulation.model.replica import header_for
from tests.broker.replication.core_cluster import CoreCluster

END = 2


def follower(end: int = END) -> ReplicaState:
    """An aligned follower with so many records, all committed."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    for number in range(end):
        cluster.produce(1, str(number))
    cluster.fetch(2)
    cluster.fetch(2)
    return cluster.replicas[2].state


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
def test_records_below_the_leaders_start_are_dropped_before_an_append() -> None:
    found = names(step(follower(), answer(END, records=1)))
    assert found.index("TrimBefore") < found.index("AppendFetched")


def test_a_leaders_start_within_the_log_is_adopted_after_the_append() -> None:
    found = names(step(follower(), answer(1, records=1)))
    assert "TrimBefore" not in found[: found.index("AppendFetched")]


def test_a_known_leaders_start_trims_nothing() -> None:
    state = follower()
    step(state, answer(END))
    assert state.log_start_offset == END
    assert "TrimBefore" not in names(step(state, answer(END, records=1)))


@pytest.mark.invariant("I39")
def test_a_compared_log_is_kept_if_its_leader_starts_at_its_end() -> None:
    """Only a log that was never compared must go at once."""
    state = follower()
    step(state, answer(0))
    (trim,) = [each for each in step(state, answer(END)) if isinstance(each, ev.TrimBefore)]
    assert not trim.drops_all
    state = follower()
    state.matches_leader = False
    (trim,) = [each for each in step(state, answer(END)) if isinstance(each, ev.TrimBefore)]
    assert trim.drops_all


@pytest.mark.invariant("I39")
def test_records_that_continue_the_log_have_compared_it_before_they_are_appended() -> None:
    state = follower()
    state.matches_leader = False
    step(state, answer(0, records=1))
    assert state.matches_leader


@pytest.mark.invariant("I39", "I44")
@pytest.mark.parametrize(("low_watermark", "drops_all"), [(0, False), (1, False), (END, True)])
def test_a_log_is_dropped_only_if_all_members_have_recorded_the_start(low_watermark: int, drops_all: bool) -> None:
    """Until then the leader's files reach further down than its start, and it has compared this log by them. If the log
    were dropped, its head would be missing once a member with an earlier start leads (seed 17112752)."""
    state = follower()
    state.matches_leader = False
    (trim,) = [
        each for each in step(state, answer(END, low_watermark=low_watermark)) if isinstance(each, ev.TrimBefore)
    ]
    assert trim.drops_all == drops_all


@pytest.mark.invariant("I39")
@pytest.mark.parametrize(("low_watermark", "matches"), [("299", True), ("300", False)])
def test_a_leader_whose_files_begin_at_the_end_of_a_long_log_has_not_compared_it(
    low_watermark: str, matches: bool
) -> None:
    state = follower(300)
    assert state.log_end_offset == 300
    state.matches_leader = False
    found = ev.FetchAnswered(
        leader_epoch=0,
        fetch_offset=300,
        error_code=ErrorCode.NONE,
        high_watermark=300,
        log_start_offset=300,
        low_watermark=int(low_watermark),  # equal, and another object
        batches=(),
    )
    (trim,) = [each for each in step(state, found) if isinstance(each, ev.TrimBefore)]
    assert trim.drops_all is not matches


@pytest.mark.invariant("I39")
def test_a_comparison_with_an_earlier_leader_does_not_count_for_the_next_one() -> None:
    cluster = CoreCluster(3)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    cluster.fetch(2)
    state = cluster.replicas[2].state
    assert state.matches_leader
    step(state, msgspec.structs.replace(cluster.order(), leader_id=3, leader_epoch=1, partition_epoch=1))
    assert not state.matches_leader


@pytest.mark.invariant("I39")
def test_an_answer_to_an_empty_log_does_not_count_as_a_comparison() -> None:
    state = follower()
    state.matches_leader = False
    step(state, answer(END, low_watermark=END))
    step(state, answer(END, low_watermark=1))
    assert not state.matches_leader


@pytest.mark.invariant("I39")
def test_the_low_watermark_is_never_below_the_first_offset_of_the_files() -> None:
    """Otherwise its answers would count as comparisons with records that it does not have."""
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
def test_ends_count_only_while_they_are_asked_for_and_under_the_epoch_of_the_question() -> None:
    state = follower()
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=0, log_end_offset=1)
    assert step(state, ends) == [], "nothing was asked"
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    assert step(state, msgspec.structs.replace(ends, leader_epoch=1)) == [], "another epoch"
    assert names(step(state, ends)) != []


@pytest.mark.invariant("I39")
def test_a_log_that_is_cut_below_its_start_is_empty_there_and_has_no_older_records() -> None:
    """The files reached down to 0, and go with the cut: a low watermark of 0 would promise records that are gone."""
    state = follower()
    step(state, answer(END))
    assert (state.log_start_offset, state.low_watermark) == (END, 0)
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=0, log_end_offset=1)
    assert names(step(state, ends)) == ["Warn", "ResetTo", "AskEpochEnd"]
    assert (state.log_start_offset, state.log_end_offset, state.high_watermark, state.low_watermark) == (1, 1, 1, 1)


@pytest.mark.invariant("I39")
def test_a_start_above_the_leaders_is_lowered_before_an_append() -> None:
    state = follower()
    step(state, answer(1))
    assert state.log_start_offset == 1
    assert names(step(state, answer(0, records=1))) == ["LowerStart"]
    assert "FetchNext" in names(step(state, ev.StartLowered(wanted=0, log_start_offset=0)))
    assert state.log_start_offset == 0


@pytest.mark.invariant("I39")
def test_a_head_missing_here_but_present_at_the_leader_is_damage() -> None:
    state = follower()
    step(state, answer(1))
    step(state, answer(0))
    assert names(step(state, ev.StartLowered(wanted=0, log_start_offset=1))) == ["ReportDamage"]


def test_a_log_that_ends_where_its_leaders_begins_is_not_reset() -> None:
    state = follower()
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=END, log_end_offset=9)
    assert "ResetTo" not in names(step(state, ends))
    assert (state.log_start_offset, state.log_end_offset) == (0, END)


def test_an_empty_log_that_begins_where_its_leaders_does_is_not_reset() -> None:
    state = follower()
    step(state, answer(END))
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=END, log_end_offset=9)
    assert "ResetTo" not in names(step(state, ends))
    assert state.epoch_history.latest_epoch == 0


def test_an_empty_log_adopts_its_leaders_start() -> None:
    state = follower()
    state.matches_leader = False
    step(state, answer(END))
    step(state, answer(1))
    assert names(step(state, ev.StartLowered(wanted=1, log_start_offset=END))) == ["AskLeaderEnds"]
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=1, log_end_offset=END)
    assert "ResetTo" in names(step(state, ends))
    assert (state.log_start_offset, state.log_end_offset) == (1, 1)


@pytest.mark.invariant("I10", "I36")
@pytest.mark.parametrize("absurd", [answer(0, 1, low_watermark=1), answer(END + 1, 1)])
def test_an_answer_with_contradictory_watermarks_is_refused(absurd: ev.FetchAnswered) -> None:
    """A wrong low watermark would stay for ever: a leader that has it above its log start lets no replica join."""
    state = follower()
    assert names(step(state, absurd)) == ["Warn", "BackOff"]
    assert (state.log_start_offset, state.low_watermark, state.log_end_offset) == (0, 0, END)


@pytest.mark.invariant("I10")
def test_the_low_watermark_is_adopted_only_up_to_the_own_log_start() -> None:
    """A lagging follower starts before its leader for a while, and cannot adopt the leader's low watermark yet."""
    state = follower()
    step(state, answer(END + 5, low_watermark=END + 3, high_watermark=END + 8))
    assert (state.log_start_offset, state.low_watermark) == (END, END)
    batches = tuple(header_for(END + number, 0) for number in range(8))
    offsets = {"high_watermark": END + 8, "log_start_offset": END + 5, "low_watermark": END + 3}
    step(state, ev.FetchedAppended(batches=batches, **offsets))
    assert (state.log_start_offset, state.low_watermark) == (END + 5, END + 3)


@pytest.mark.invariant("I10")
def test_the_low_watermark_falls_with_the_log_start() -> None:
    """Only an unclean election causes that: the offsets of the leader before no longer hold."""
    state = follower()
    step(state, answer(END, low_watermark=END))
    assert state.low_watermark == END
    step(state, answer(0))
    step(state, ev.StartLowered(wanted=0, log_start_offset=0))
    assert (state.log_start_offset, state.low_watermark) == (0, 0)


@pytest.mark.invariant("I10")
def test_the_low_watermark_falls_with_a_log_start_inside_the_batch_that_a_cut_drops() -> None:
    """Records were deleted up to the middle of a batch, and an unclean election cuts right behind them."""
    state = follower()
    step(state, answer(1, low_watermark=1))
    assert (state.log_start_offset, state.low_watermark) == (1, 1)
    step(state, ev.TailTruncated(log_start_offset=0, log_end_offset=0))
    assert (state.log_start_offset, state.low_watermark) == (0, 0)


def test_contradictory_ends_of_a_leader_are_refused() -> None:
    state = follower()
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=9, log_end_offset=3)
    assert names(step(state, ends)) == ["Warn", "BackOff"]
    assert state.log_end_offset == END


@pytest.mark.invariant("I39", "I44")
def test_a_log_is_reset_only_after_all_members_have_recorded_the_leaders_start() -> None:
    """Otherwise a member with an earlier start may lead next, and this log's missing records would look like damage."""
    state = follower()
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(
        leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=END + 6, log_end_offset=END + 9, low_watermark=0
    )
    assert names(step(state, ends)) == ["BackOff"]
    assert names(step(state, ev.PhaseRetried())) == ["AskLeaderEnds"]
    assert "ResetTo" in names(step(state, msgspec.structs.replace(ends, low_watermark=END + 6)))
    assert state.log_start_offset == END + 6


@pytest.mark.invariant("I13")
def test_a_log_that_was_reset_knows_no_epoch_and_copies_at_once() -> None:
    """Epochs of the dropped records would be told to others if this replica led, and their end would be asked for."""
    state = follower()
    assert state.epoch_history.entries == [(0, 0)]
    step(state, ev.FetchAnswered(leader_epoch=0, fetch_offset=END, error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
    ends = ev.LeaderEndsAnswered(
        leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=END + 6, log_end_offset=END + 9
    )
    assert names(step(state, ends)) == ["ResetTo", "WriteEpochHistory", "SyncEpochHistorySoon", "FetchNext"]
    assert state.epoch_history.entries == []


def leader_of(*reported: int | None) -> ReplicaState:
    """A leader with two committed records; each follower has reported the given start."""
    cluster = CoreCluster(1 + len(reported))
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.produce(1, "b")
    for number in range(len(reported)):
        cluster.fetch(2 + number)
        cluster.fetch(2 + number)
    state = cluster.replicas[1].state
    for number, start in enumerate(reported):
        state.remotes[2 + number].log_start_offset = start
    return state


def trimmed(epoch: int = 0) -> ev.LogTrimmed:
    return ev.LogTrimmed(leader_epoch=epoch, log_start_offset=1, reason=LogStartReason.RETENTION)


@pytest.mark.invariant("I14", "I39")
def test_the_low_watermark_waits_until_every_in_sync_replica_recorded_the_start() -> None:
    state = leader_of(0, 0)
    assert names(step(state, trimmed())) == ["TrimBefore", "StartsChanged"]
    assert (state.log_start_offset, state.low_watermark) == (1, 0)
    for replica_id in (2, 3):
        step_fetch(state, fetched(replica_id, 1))
        assert state.low_watermark == (1 if replica_id == 3 else 0)


@pytest.mark.invariant("I44")
def test_each_rise_of_the_low_watermark_is_told_to_the_followers() -> None:
    """They delete files only up to it. Without another append nothing else would send it to them."""
    state = leader_of(0, 0)
    step(state, trimmed())
    found = [names(step_fetch(state, fetched(replica_id, 1))[1]) for replica_id in (2, 3, 3)]
    assert found == [[], ["StartsChanged"], []]
    alone = leader_of()
    assert names(step(alone, trimmed())) == ["TrimBefore", "StartsChanged", "StartsChanged"]


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


def test_a_trim_decided_in_an_older_epoch_changes_nothing() -> None:
    state = leader_of(0)
    assert step(state, trimmed(epoch=7)) == []
    assert step(follower(), trimmed()) == []
    assert state.log_start_offset == 0


def test_a_trim_up_to_the_present_start_does_nothing() -> None:
    state = leader_of(0, 0)
    step(state, trimmed())
    assert step(state, trimmed()) == []


@pytest.mark.invariant("I39")
@pytest.mark.parametrize(("start", "joins"), [(0, False), (1, True), (2, False), (None, False)])
def test_a_replica_joins_only_with_a_suitable_log_start(start: int | None, joins: bool) -> None:
    """D13: with a later start its copies of records are missing; before the low watermark others have deleted."""
    state = leader_of(0, 0)
    step(state, trimmed())
    state.in_sync_replicas = (1,)
    advance_low_watermark(state, [])
    assert state.low_watermark == 1
    _, effects = step_fetch(state, fetched(2, start))
    assert ("ProposeIsr" in names(effects)) == joins


@pytest.mark.invariant("I39", "I44")
@pytest.mark.parametrize(("start", "joins"), [(0, False), (1, True)])
def test_a_replica_that_starts_before_a_new_leader_does_not_join(start: int, joins: bool) -> None:
    """The leader before may have deleted up to this leader's start without this leader's knowledge. If a replica with
    an earlier start led later, the deleted head of that log would look like damage."""
    cluster = CoreCluster(3)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.produce(1, "b")
    for _ in range(2):
        cluster.fetch(2)
        cluster.fetch(3)
    state = cluster.replicas[2].state
    step(state, answer(1))
    cluster.elect(2, isr=(1, 2), to=(2,))
    assert (state.log_start_offset, state.low_watermark) == (1, 0)
    _, effects = step_fetch(state, fetched(3, start, epoch=1))
    assert ("ProposeIsr" in names(effects)) == joins
