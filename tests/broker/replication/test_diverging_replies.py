"""A follower learns nothing else from a reply that reports a divergence (KAFKA-14704)."""

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.replica import step
from minibroker.broker.replication.state import AskingEpochEnd, AskingLeaderEnds, Fetching, ReplicaState
from minibroker.protocol.errors import ErrorCode
from minibroker.simulation.model.replica import header_for
from tests.broker.replication.core_cluster import CoreCluster


@pytest.mark.invariant("I11", "I32")
def test_a_diverging_reply_does_not_move_the_high_watermark() -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.produce(1, "b")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    assert (state.high_watermark, state.log_end_offset) == (0, 2)
    step(
        state,
        ev.FetchAnswered(leader_epoch=0, fetch_offset=2, error_code=ErrorCode.NONE, high_watermark=2, diverging=True),
    )
    assert state.high_watermark == 0


@pytest.mark.parametrize(("leader_end", "is_below"), [(2, False), (1, True)])
def test_a_truncation_counts_as_one_below_the_high_watermark_only_below_it(leader_end: int, is_below: bool) -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    for value in "abc":
        cluster.produce(1, value)
        cluster.fetch(2)
    state = cluster.replicas[2].state
    state.high_watermark, state.phase = 2, AskingEpochEnd(0)
    answer = ev.EpochEndAnswered(
        leader_epoch=0, asked_epoch=0, error_code=ErrorCode.NONE, epoch=0, end_offset=leader_end
    )
    (cut,) = [each for each in step(state, answer) if isinstance(each, ev.TruncateTo)]
    assert (cut.end_offset, cut.below_high_watermark) == (leader_end, is_below)


def _diverging(state: ReplicaState) -> list[str]:
    """Kinds of the effects of a reply that reports a divergence."""
    state.phase = Fetching()
    answer = ev.FetchAnswered(
        leader_epoch=0, fetch_offset=state.log_end_offset, error_code=ErrorCode.NONE, high_watermark=2, diverging=True
    )
    return [type(effect).__name__ for effect in step(state, answer)]


def test_alignment_without_progress_backs_off_and_then_reports_damage() -> None:
    """A flipped epoch bit once made a follower repeat the alignment for ever, at round-trip speed."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    assert _diverging(state) == ["AskEpochEnd"]
    assert _diverging(state) == ["BackOff"]
    assert step(state, ev.PhaseRetried()) == [ev.AskEpochEnd(leader_epoch=0, epoch=0)], "it does not fetch unaligned"
    for _ in range(3):
        assert _diverging(state) == ["ReportDamage"], "also for an answer that was on its way"


def test_an_epoch_that_is_unknown_here_leads_to_a_question_whose_answer_counts() -> None:
    """KIP-279: two unclean elections left each log with an epoch that the other never had."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    for value in "ab":
        cluster.produce(1, value)
        cluster.fetch(2)
    state = cluster.replicas[2].state
    state.epoch_history.entries, state.phase = [(0, 0), (2, 1)], AskingEpochEnd(2)
    asked = ev.EpochEndAnswered(leader_epoch=0, asked_epoch=2, error_code=ErrorCode.NONE, epoch=1, end_offset=2)
    assert ev.AskEpochEnd(leader_epoch=0, epoch=0) in step(state, asked)
    asked = ev.EpochEndAnswered(leader_epoch=0, asked_epoch=0, error_code=ErrorCode.NONE, epoch=0, end_offset=1)
    assert ev.FetchNext() in step(state, asked)
    assert (state.log_end_offset, state.epoch_history.entries) == (1, [(0, 0)])


def test_alignments_at_different_offsets_count_as_progress() -> None:
    cluster = CoreCluster(2)
    cluster.elect(1)
    state = cluster.replicas[2].state
    for value in "abcd":
        cluster.produce(1, value)
        cluster.fetch(2)
        assert _diverging(state) == ["AskEpochEnd"]
        state.phase = Fetching()


def test_a_log_with_an_epoch_that_no_leader_had_is_reported_as_damaged() -> None:
    """A bit in the epoch of its last batch has flipped: the leader, of a lower epoch, does not know that epoch."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    state.epoch_history.entries = [(8, 0)]
    found = []
    for _ in range(3):
        state.phase = AskingLeaderEnds()
        answer = ev.LeaderEndsAnswered(leader_epoch=0, error_code=ErrorCode.NONE, log_start_offset=0, log_end_offset=1)
        found.append([type(effect).__name__ for effect in step(state, answer)])
    assert found == [["AskEpochEnd"], ["BackOff"], ["ReportDamage"]]


def test_a_log_that_its_leaders_batches_never_continue_is_reported_as_damaged() -> None:
    """The same bit, but the leader's epoch happens to be that one: the next batches are of a lower epoch."""
    cluster = CoreCluster(2)
    cluster.elect(1)
    cluster.produce(1, "a")
    cluster.fetch(2)
    state = cluster.replicas[2].state
    state.phase, state.leader_epoch, state.epoch_history.entries = Fetching(), 2, [(2, 0)]
    end = state.log_end_offset
    answer = ev.FetchAnswered(
        leader_epoch=2, fetch_offset=end, error_code=ErrorCode.NONE, batches=(header_for(end, 0, None),)
    )
    found = [[type(effect).__name__ for effect in step(state, answer)] for _ in range(3)]
    assert found == [["Warn", "BackOff"], ["Warn", "BackOff"], ["Warn", "ReportDamage"]]
