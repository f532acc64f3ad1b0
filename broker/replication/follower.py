"""How a follower aligns its log with the leader of an epoch, then copies it.

Owns: the phases of following (ask where the latest epoch ended, truncate, fetch), where to truncate, and which answers
count. Leaves to others: connections and files. Pure. Source: replication rules, section 4; KIP-101, KIP-279, KIP-320,
KIP-595; hardening rule 9 (the epoch question comes before the first fetch).

Every answer carries the leader epoch under which it was asked, and is dropped when that epoch is over (KAFKA-8012,
13207, 18991).
"""

from minibroker.broker.replication.events import (
    AppendFetched,
    AskEpochEnd,
    AskLeaderEnds,
    BackOff,
    EpochEndAnswered,
    FetchAnswered,
    FetchedAppended,
    FetchNext,
    LeaderEndsAnswered,
    LowerStart,
    ReplicaEffect,
    ReportDamage,
    ResetTo,
    StartLowered,
    SyncEpochHistorySoon,
    SyncLog,
    TailTruncated,
    TruncateTo,
    Warn,
    WriteEpochHistory,
)
from minibroker.broker.replication.log_starts import HEAD_MISSING, follow_log_start, follow_low_watermark
from minibroker.broker.replication.state import (
    FOLLOWER,
    AskingEpochEnd,
    AskingLeaderEnds,
    Fetching,
    Halted,
    ReplicaState,
    Role,
    TruncationRule,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.files.checkpoints import MAX_SEGMENT_OFFSET
from minibroker.protocol.record_batch import BatchHeader

ALIGNMENTS_WITHOUT_PROGRESS_MAX = 2
"""Alignments that changed nothing: an answer in flight may cause one, only damage causes a second."""


def fetch_once_synced(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """Fetch next; with flushing on once everything is synced, for a fetch reports this log's end (hardening rule 2)."""
    is_unsafe = state.config.counts_only_synced and state.synced_end_offset < state.log_end_offset
    effects.append(SyncLog() if is_unsafe else FetchNext())


def begin_following(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """Start a new leader epoch; no fetch before the log is aligned (Kip320 rules 1 and 2)."""
    state.diverged_at, state.alignments_without_progress = None, 0
    state.matches_leader = False
    if state.config.truncation_rule is TruncationRule.HIGH_WATERMARK:
        _truncate(state, state.high_watermark, "high-watermark rule", effects)
    _align(state, effects)


def _align(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """Ask where the latest epoch known here ended at the leader. An empty history means an empty log: just fetch."""
    assert state.leader_epoch is not None
    latest = state.epoch_history.latest_epoch
    if state.config.truncation_rule is TruncationRule.HIGH_WATERMARK:
        state.phase = Fetching()
        fetch_once_synced(state, effects)
    elif latest is None:
        state.phase = Fetching()
        if state.log_end_offset > state.high_watermark:
            _truncate(state, state.high_watermark, "no epoch is known for this log", effects)
        fetch_once_synced(state, effects)
    else:
        state.phase = AskingEpochEnd(latest)
        effects.append(AskEpochEnd(leader_epoch=state.leader_epoch, epoch=latest))


def _align_again(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """The leader reported a divergence after an alignment: align at once the first time, then with a back-off."""
    if _report_if_stuck(state, effects):
        return
    latest = state.epoch_history.latest_epoch
    if state.alignments_without_progress == 0 or latest is None:
        _align(state, effects)
        return
    state.phase = AskingEpochEnd(latest)
    effects.append(BackOff(error_code=ErrorCode.CORRUPT_MESSAGE))


def _report_if_stuck(state: ReplicaState, effects: list[ReplicaEffect]) -> bool:
    """Count an alignment after which the logs diverge again. At one place again and again the epoch history of one of
    them contradicts its batches. The leader's log counts, so this one is reported as damaged; then True."""
    place = (state.log_end_offset, state.epoch_history.latest_epoch)
    state.alignments_without_progress = state.alignments_without_progress + 1 if place == state.diverged_at else 0
    state.diverged_at = place
    if state.alignments_without_progress < ALIGNMENTS_WITHOUT_PROGRESS_MAX:
        return False
    effects.append(ReportDamage(reason=f"at offset {place[0]} it does not fit its leader's, however it is cut"))
    return True


def retry_phase(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """The back-off ended: repeat the request of this phase."""
    if state.role is not Role.FOLLOWER:
        return
    assert state.leader_epoch is not None
    if isinstance(state.phase, AskingEpochEnd):
        effects.append(AskEpochEnd(leader_epoch=state.leader_epoch, epoch=state.phase.epoch))
    elif isinstance(state.phase, AskingLeaderEnds):
        effects.append(AskLeaderEnds(leader_epoch=state.leader_epoch))
    elif isinstance(state.phase, Fetching):
        fetch_once_synced(state, effects)


def _is_stale(state: ReplicaState, leader_epoch: int) -> bool:
    return state.role is not FOLLOWER or leader_epoch != state.leader_epoch


def on_epoch_end_answered(state: ReplicaState, event: EpochEndAnswered, effects: list[ReplicaEffect]) -> None:
    """Truncate to where the histories diverge; ask again if the leader named an epoch unknown here (KIP-279).

    A cut below the own high watermark is reported, not refused: after an unclean election it is right. That committed
    records stay is the election's task."""
    if _is_stale(state, event.leader_epoch) or state.phase != AskingEpochEnd(event.asked_epoch):
        return
    if event.error_code is not ErrorCode.NONE:
        _on_error(state, event.error_code, effects)
        return
    end_offset, next_question = _truncation_point(state, event)
    if end_offset < state.high_watermark:
        effects.append(Warn(message=f"leader's history cuts below the high watermark {state.high_watermark}"))
    assert state.leader_epoch is not None
    if next_question is None:
        state.phase = Fetching()
        _truncate(state, end_offset, f"epoch {event.asked_epoch} ended there at the leader", effects)
        fetch_once_synced(state, effects)
    else:
        state.phase = AskingEpochEnd(next_question)
        _truncate(state, end_offset, f"epoch {event.asked_epoch} is unknown to the leader", effects)
        effects.append(AskEpochEnd(leader_epoch=state.leader_epoch, epoch=next_question))


def _truncation_point(state: ReplicaState, event: EpochEndAnswered) -> tuple[int, int | None]:
    """(where to truncate, the epoch to ask about next or None when aligned): getOffsetTruncationState."""
    log_end = state.log_end_offset
    if event.end_offset is None:
        return min(state.high_watermark, log_end), None
    if event.epoch is None:
        return min(event.end_offset, log_end), None
    mine = state.epoch_history.end_offset_for(event.epoch, log_end)
    if mine is None:
        return min(event.end_offset, log_end), None
    my_epoch, my_end = mine
    if my_epoch != event.epoch:
        if my_epoch > event.epoch:  # no epoch here is at or below the leader's
            return min(event.end_offset, my_end, log_end), None
        return min(my_end, log_end), my_epoch
    return min(my_end, event.end_offset, log_end), None


def on_leader_ends_answered(state: ReplicaState, event: LeaderEndsAnswered, effects: list[ReplicaEffect]) -> None:
    """Out of range is never fatal. It resets the log only if the leader's log starts after this log's end (KAFKA-2143,
    KAFKA-7414).

    A reset to a start deletes everything in front of it. Like a deletion it therefore waits until every member of the
    ISR has recorded that start: otherwise a member with an earlier start may lead next (seed 9000346)."""
    if _is_stale(state, event.leader_epoch) or not isinstance(state.phase, AskingLeaderEnds):
        return
    if event.error_code is not ErrorCode.NONE:
        _on_error(state, event.error_code, effects)
        return
    if not 0 <= event.log_start_offset <= min(event.log_end_offset, MAX_SEGMENT_OFFSET):
        effects.append(Warn(message=f"leader claims a log from {event.log_start_offset} to {event.log_end_offset}"))
        effects.append(BackOff(error_code=ErrorCode.CORRUPT_MESSAGE))
        return
    before = state.log_start_offset, state.log_end_offset
    if event.log_end_offset < state.log_end_offset:
        message = f"log end {state.log_end_offset} is ahead of the leader's {event.log_end_offset}: cutting to it"
        effects.append(Warn(message=message))
        _truncate(state, event.log_end_offset, "the leader's log ends there", effects)
    elif event.log_start_offset > state.log_end_offset or _is_empty_behind(state, event.log_start_offset):
        if event.low_watermark is not None and event.low_watermark < event.log_start_offset:
            effects.append(BackOff(error_code=ErrorCode.OFFSET_NOT_AVAILABLE))
            return
        state.epoch_history.clear()
        effects.append(ResetTo(offset=event.log_start_offset, producers=event.producers))
        effects += (WriteEpochHistory(), SyncEpochHistorySoon())
        _note_reset(state, event.log_start_offset)
    if (state.log_start_offset, state.log_end_offset) == before:
        _align_again(state, effects)  # in the leader's range, and yet refused: the leader does not know the epoch
    else:
        _align(state, effects)


def _is_empty_behind(state: ReplicaState, leader_start: int) -> bool:
    """Whether this log is empty and starts after the leader's."""
    return leader_start < state.log_start_offset == state.log_end_offset


def on_fetch_answered(state: ReplicaState, event: FetchAnswered, effects: list[ReplicaEffect]) -> None:
    """Use an answer only if it was requested under this epoch, at this position, while aligned."""
    if _is_stale(state, event.leader_epoch) or not isinstance(state.phase, Fetching):
        return
    if event.fetch_offset != state.log_end_offset:
        return
    if event.error_code:
        _on_fetch_error(state, event.error_code, effects)
    elif event.diverging:
        _align_again(state, effects)  # truncate first; the high watermark of this answer is not used (KAFKA-14704)
    elif _contradicts_itself(event):
        offsets = f"{event.low_watermark} <= {event.log_start_offset} <= {event.high_watermark}"
        message = f"leader's answer is refused: low watermark <= log start <= high watermark does not hold: {offsets}"
        effects.append(Warn(message=message))
        effects.append(BackOff(error_code=ErrorCode.CORRUPT_MESSAGE))
    elif event.log_start_offset is not None and event.log_start_offset < state.log_start_offset:
        effects.append(LowerStart(log_start_offset=event.log_start_offset))  # before an append that would leave a gap
    elif event.batches and not _fits(state, event.batches):
        effects.append(Warn(message=f"leader sent batches that do not continue log end {state.log_end_offset}"))
        if not _report_if_stuck(state, effects):
            effects.append(BackOff(error_code=ErrorCode.CORRUPT_MESSAGE))
    elif event.batches:
        _note_comparison(state, event)
        if event.log_start_offset == state.log_end_offset:  # records below cannot be compared, so they must go first
            _follow_leader_offsets(state, event, effects)
        effects.append(
            AppendFetched(
                batches=event.batches,
                high_watermark=event.high_watermark,
                log_start_offset=event.log_start_offset,
                low_watermark=event.low_watermark,
            )
        )
    else:
        _note_comparison(state, event)
        _follow_leader_offsets(state, event, effects)


def _on_fetch_error(state: ReplicaState, error_code: ErrorCode, effects: list[ReplicaEffect]) -> None:
    if error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
        assert state.leader_epoch is not None
        state.phase = AskingLeaderEnds()
        effects.append(AskLeaderEnds(leader_epoch=state.leader_epoch))
    else:
        _on_error(state, error_code, effects)


def _contradicts_itself(event: FetchAnswered) -> bool:
    """Whether the answer violates I10. A low watermark never falls, so a wrong one would stay for ever."""
    low, start, high = event.low_watermark, event.log_start_offset, event.high_watermark
    return start is not None and ((low is not None and low > start) or (high is not None and start > high))


def _note_comparison(state: ReplicaState, event: FetchAnswered) -> None:
    """An answer without an error proves that the leader's history has the epoch of the last record here, at this end.
    That history reaches down as far as the leader's files, which are deleted only in front of the low watermark."""
    if state.matches_leader:
        return
    compared_from = event.log_start_offset if event.low_watermark is None else event.low_watermark
    holds_records = state.log_start_offset < state.log_end_offset
    if holds_records and compared_from is not None and compared_from < state.log_end_offset:
        state.matches_leader = True


def on_start_lowered(state: ReplicaState, event: StartLowered, effects: list[ReplicaEffect]) -> None:
    """An earlier leader had raised the start, and its successor never received it, so no replica has deleted anything
    for it. If this log's files do not reach so far down, they are lost, unless the log is empty."""
    state.log_start_offset = min(state.log_start_offset, event.log_start_offset)
    state.low_watermark = min(state.low_watermark, state.log_start_offset)
    if event.log_start_offset <= event.wanted:
        fetch_once_synced(state, effects)
    elif event.log_start_offset == state.log_end_offset:
        assert state.leader_epoch is not None
        state.phase = AskingLeaderEnds()
        effects.append(AskLeaderEnds(leader_epoch=state.leader_epoch))
    else:
        reason = f"it begins at {event.log_start_offset}, its leader's log at {event.wanted}: {HEAD_MISSING}"
        effects.append(ReportDamage(reason=reason))


def _fits(state: ReplicaState, batches: tuple[BatchHeader, ...]) -> bool:
    """Whether the batches continue this log: no gap, no falling epoch, none above the current one (KAFKA-18723)."""
    expected = state.log_end_offset
    epoch = state.last_fetched_epoch or 0
    assert state.leader_epoch is not None
    for batch in batches:
        if batch.base_offset != expected or not epoch <= batch.partition_leader_epoch <= state.leader_epoch:
            return False
        expected += batch.record_count
        epoch = batch.partition_leader_epoch
    return True


def on_fetched_appended(state: ReplicaState, event: FetchedAppended, effects: list[ReplicaEffect]) -> None:
    """The copies are written: move the log end, learn new epochs from them, then follow the leader's offsets."""
    assert state.role is FOLLOWER
    learned = False
    for batch in event.batches:
        assert batch.base_offset == state.log_end_offset
        learned = state.epoch_history.assign(batch.partition_leader_epoch, batch.base_offset) or learned
        state.log_end_offset += batch.record_count
    if learned:
        effects += (WriteEpochHistory(), SyncEpochHistorySoon())
    _follow_leader_offsets(state, event, effects)
    fetch_once_synced(state, effects)


def _follow_leader_offsets(
    state: ReplicaState, event: FetchAnswered | FetchedAppended, effects: list[ReplicaEffect]
) -> None:
    """The high watermark becomes min(the leader's, own end), and never falls here: records stay committed although a
    new leader's high watermark may lag for a round. Only a truncation lowers it."""
    if event.high_watermark is not None and event.high_watermark > state.high_watermark:
        state.high_watermark = min(event.high_watermark, state.log_end_offset)
    if event.log_start_offset != state.log_start_offset:
        follow_log_start(state, event.log_start_offset, effects)
    if event.low_watermark is not None and event.low_watermark > state.low_watermark:
        follow_low_watermark(state, event.low_watermark)


def _on_error(state: ReplicaState, error_code: ErrorCode, effects: list[ReplicaEffect]) -> None:
    """If fenced under the current epoch, wait for a LeaderAndIsr. All other errors are retried."""
    if error_code is ErrorCode.FENCED_LEADER_EPOCH:
        state.phase = Halted()
        effects.append(Warn(message=f"fenced by the leader in epoch {state.leader_epoch}; waiting for the controller"))
    else:
        effects.append(BackOff(error_code=error_code))


def _truncate(state: ReplicaState, end_offset: int, reason: str, effects: list[ReplicaEffect]) -> None:
    """Truncate log and history; the history even if no record goes (KAFKA-10706). The log comes first: if that fails,
    the stored history still covers everything in the log."""
    is_history_cut = state.epoch_history.truncate_to(min(end_offset, state.log_end_offset))
    if end_offset < state.log_start_offset:
        effects.append(ResetTo(offset=end_offset))
        _note_reset(state, end_offset)
    elif end_offset < state.log_end_offset:
        below = end_offset < state.high_watermark
        effects.append(TruncateTo(end_offset=end_offset, reason=reason, below_high_watermark=below))
        _set_log_offsets(state, state.log_start_offset, end_offset)
    if is_history_cut:
        effects += (WriteEpochHistory(), SyncEpochHistorySoon())


def on_tail_truncated(state: ReplicaState, event: TailTruncated) -> None:
    """Take over the log's actual offsets after a truncation: one inside a batch drops the whole batch."""
    state.epoch_history.truncate_to(event.log_end_offset)
    _set_log_offsets(state, event.log_start_offset, event.log_end_offset)


def _note_reset(state: ReplicaState, offset: int) -> None:
    """No file is left; the next one begins at `offset`."""
    _set_log_offsets(state, offset, offset)
    state.low_watermark = offset


def _set_log_offsets(state: ReplicaState, log_start_offset: int, log_end_offset: int) -> None:
    """The only place where a running replica's high watermark falls: a cut takes it along."""
    state.log_start_offset = log_start_offset
    state.low_watermark = min(state.low_watermark, log_start_offset)
    state.log_end_offset = log_end_offset
    state.synced_end_offset = min(state.synced_end_offset, log_end_offset)
    state.high_watermark = max(log_start_offset, min(state.high_watermark, log_end_offset))
