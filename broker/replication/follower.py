"""How a follower aligns its log with the leader of an epoch, then copies it.

Owns: the phases of following (ask where my latest epoch ended, cut, fetch), where to cut, and which answers count.
Refuses to know connections and files. Pure. Source: replication rules 4.5; KIP-101, KIP-279, KIP-320, KIP-595;
hardening rule 9 (the epoch question comes before the first fetch).

Every answer carries the leader epoch it was asked under, and is dropped when that is not the current one any more
(KAFKA-8012, 13207, 18991).
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
    LogWasCut,
    LowerStart,
    ReplicaEffect,
    ReportDamage,
    ResetTo,
    StartLowered,
    SyncLog,
    TruncateTo,
    Warn,
    WriteEpochHistory,
)
from minibroker.broker.replication.log_starts import follow_log_start, follow_low_watermark
from minibroker.broker.replication.state import (
    AskingEpochEnd,
    AskingLeaderEnds,
    Fetching,
    Halted,
    ReplicaState,
    Role,
    TruncationRule,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import BatchHeader

ALIGNMENTS_WITHOUT_PROGRESS_MAX = 2
"""Alignments that changed nothing: one may come of an answer on its way, a second one of nothing but damage."""


def report_end(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """A fetch reports my end, and with flushing on never more of it than is synced (hardening rule 2)."""
    is_unsafe = state.config.counts_only_synced and state.synced_end_offset < state.log_end_offset
    effects.append(SyncLog() if is_unsafe else FetchNext())


def begin_following(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """A new leader epoch: never fetch before the log is aligned (Kip320 rules 1 and 2)."""
    state.diverged_at, state.alignments_without_progress = None, 0
    state.matches_leader = False
    if state.config.truncation_rule is TruncationRule.HIGH_WATERMARK:
        _truncate(state, state.high_watermark, "high-watermark rule", effects)
    _align(state, effects)


def _align(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """Ask where the latest epoch I know ended at the leader. An empty history means an empty log: just fetch."""
    assert state.leader_epoch is not None
    latest = state.epoch_history.latest_epoch
    if state.config.truncation_rule is TruncationRule.HIGH_WATERMARK:
        state.phase = Fetching()
        report_end(state, effects)
    elif latest is None:
        state.phase = Fetching()
        if state.log_end_offset > state.high_watermark:
            _truncate(state, state.high_watermark, "no epoch is known for this log", effects)
        report_end(state, effects)
    else:
        state.phase = AskingEpochEnd(latest)
        effects.append(AskEpochEnd(leader_epoch=state.leader_epoch, epoch=latest))


def _align_again(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """The leader found this log apart after it was aligned: once at once, then more slowly."""
    if _is_alignment_stuck(state, effects):
        return
    latest = state.epoch_history.latest_epoch
    if state.alignments_without_progress == 0 or latest is None:
        _align(state, effects)
        return
    state.phase = AskingEpochEnd(latest)
    effects.append(BackOff(error_code=ErrorCode.CORRUPT_MESSAGE))


def _is_alignment_stuck(state: ReplicaState, effects: list[ReplicaEffect]) -> bool:
    """Where the two logs do not fit at one place again and again, what one of them says of its epochs is not what its
    batches carry. The leader's word counts: this log is given up."""
    place = (state.log_end_offset, state.epoch_history.latest_epoch)
    state.alignments_without_progress = state.alignments_without_progress + 1 if place == state.diverged_at else 0
    state.diverged_at = place
    if state.alignments_without_progress < ALIGNMENTS_WITHOUT_PROGRESS_MAX:
        return False
    effects.append(ReportDamage(reason=f"at offset {place[0]} it does not fit its leader's, however it is cut"))
    return True


def retry_phase(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """The back-off ended: say again what this phase waits for."""
    if state.role is not Role.FOLLOWER:
        return
    assert state.leader_epoch is not None
    if isinstance(state.phase, AskingEpochEnd):
        effects.append(AskEpochEnd(leader_epoch=state.leader_epoch, epoch=state.phase.epoch))
    elif isinstance(state.phase, AskingLeaderEnds):
        effects.append(AskLeaderEnds(leader_epoch=state.leader_epoch))
    elif isinstance(state.phase, Fetching):
        report_end(state, effects)


def _is_stale(state: ReplicaState, leader_epoch: int) -> bool:
    return state.role is not Role.FOLLOWER or leader_epoch != state.leader_epoch


def on_epoch_end_answered(state: ReplicaState, event: EpochEndAnswered, effects: list[ReplicaEffect]) -> None:
    """Cut to where the histories part; ask once more if the leader named an epoch I do not have (KIP-279)."""
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
        report_end(state, effects)
    else:
        state.phase = AskingEpochEnd(next_question)
        _truncate(state, end_offset, f"epoch {event.asked_epoch} is unknown to the leader", effects)
        effects.append(AskEpochEnd(leader_epoch=state.leader_epoch, epoch=next_question))


def _truncation_point(state: ReplicaState, event: EpochEndAnswered) -> tuple[int, int | None]:
    """(where to cut, the epoch to ask about next or None when aligned): getOffsetTruncationState."""
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
        if my_epoch > event.epoch:  # nothing at or below the leader's epoch is left here
            return min(event.end_offset, my_end, log_end), None
        return min(my_end, log_end), my_epoch
    return min(my_end, event.end_offset, log_end), None


def on_leader_ends_answered(state: ReplicaState, event: LeaderEndsAnswered, effects: list[ReplicaEffect]) -> None:
    """Out of range is never fatal, and never a reason to start anew unless the leader's log starts behind my end
    (KAFKA-2143, KAFKA-7414).

    To begin anew at a start is to delete all in front of it. So it waits, as a deletion does, until every member of the
    ISR has recorded that start: otherwise one of them may lead next, from an earlier one (seed 9000346)."""
    if _is_stale(state, event.leader_epoch) or not isinstance(state.phase, AskingLeaderEnds):
        return
    if event.error_code is not ErrorCode.NONE:
        _on_error(state, event.error_code, effects)
        return
    if event.log_start_offset > event.log_end_offset:
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
        effects.append(WriteEpochHistory(sync=True))
        _begin_empty_at(state, event.log_start_offset)
    if (state.log_start_offset, state.log_end_offset) == before:
        _align_again(state, effects)  # in the leader's range, and yet refused: of an epoch it never heard of
    else:
        _align(state, effects)


def _is_empty_behind(state: ReplicaState, leader_start: int) -> bool:
    """Nothing is held, and what the leader has in front of that is lacking."""
    return leader_start < state.log_start_offset == state.log_end_offset


def on_fetch_answered(state: ReplicaState, event: FetchAnswered, effects: list[ReplicaEffect]) -> None:
    """Use an answer only if it was asked under this epoch, at this position, while aligned."""
    if _is_stale(state, event.leader_epoch) or not isinstance(state.phase, Fetching):
        return
    if event.fetch_offset != state.log_end_offset:
        return
    assert state.leader_epoch is not None
    if event.error_code is ErrorCode.OFFSET_OUT_OF_RANGE:
        state.phase = AskingLeaderEnds()
        effects.append(AskLeaderEnds(leader_epoch=state.leader_epoch))
    elif event.error_code is not ErrorCode.NONE:
        _on_error(state, event.error_code, effects)
    elif event.diverging:
        _align_again(state, effects)  # the mark stays as it is: cut first (KAFKA-14704)
    elif _contradicts_itself(event):
        marks = f"{event.low_watermark} <= {event.log_start_offset} <= {event.high_watermark}"
        effects.append(Warn(message=f"leader's answer is refused: low watermark <= log start <= mark is not {marks}"))
        effects.append(BackOff(error_code=ErrorCode.CORRUPT_MESSAGE))
    elif event.log_start_offset is not None and event.log_start_offset < state.log_start_offset:
        effects.append(LowerStart(log_start_offset=event.log_start_offset))  # before anything is appended behind a gap
    elif not _fits(state, event.batches):
        effects.append(Warn(message=f"leader sent batches that do not continue log end {state.log_end_offset}"))
        if not _is_alignment_stuck(state, effects):
            effects.append(BackOff(error_code=ErrorCode.CORRUPT_MESSAGE))
    elif event.batches:
        _note_comparison(state, event)
        if event.log_start_offset == state.log_end_offset:  # nobody can tell what lies below: it must not stay
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


def _contradicts_itself(event: FetchAnswered) -> bool:
    """I10 holds at whoever sends this. A low watermark never falls, so what is believed once would stay for ever."""
    low, start, mark = event.low_watermark, event.log_start_offset, event.high_watermark
    return start is not None and ((low is not None and low > start) or (mark is not None and start > mark))


def _note_comparison(state: ReplicaState, event: FetchAnswered) -> None:
    """An answer without an error: the leader's history has the epoch of the last record held, at this very end. That
    history reaches as far down as the leader's files do, and these go in front of the low watermark only."""
    compared_from = event.log_start_offset if event.low_watermark is None else event.low_watermark
    holds_records = state.log_start_offset < state.log_end_offset
    if holds_records and compared_from is not None and compared_from < state.log_end_offset:
        state.matches_leader = True


def on_start_lowered(state: ReplicaState, event: StartLowered, effects: list[ReplicaEffect]) -> None:
    """An earlier leader had raised the start, and its successor had not heard of it: nobody has deleted for it then. A
    log whose files do not reach so far has lost them, unless it holds nothing."""
    state.log_start_offset = min(state.log_start_offset, event.log_start_offset)
    state.low_watermark = min(state.low_watermark, state.log_start_offset)
    if event.log_start_offset <= event.wanted:
        report_end(state, effects)
    elif event.log_start_offset == state.log_end_offset:
        assert state.leader_epoch is not None
        state.phase = AskingLeaderEnds()
        effects.append(AskLeaderEnds(leader_epoch=state.leader_epoch))
    else:
        reason = f"it begins at {event.log_start_offset}, its leader's log at {event.wanted}: its head is missing"
        effects.append(ReportDamage(reason=reason))


def _fits(state: ReplicaState, batches: tuple[BatchHeader, ...]) -> bool:
    """Contiguous from my end on, epochs never falling, none above the epoch I follow (KAFKA-18723)."""
    expected = state.log_end_offset
    epoch = state.last_fetched_epoch or 0
    assert state.leader_epoch is not None
    for batch in batches:
        if batch.base_offset != expected or not epoch <= batch.partition_leader_epoch <= state.leader_epoch:
            return False
        expected = batch.end_offset
        epoch = batch.partition_leader_epoch
    return True


def on_fetched_appended(state: ReplicaState, event: FetchedAppended, effects: list[ReplicaEffect]) -> None:
    """The copies are written: the log end moves, new epochs are learned from them, then the marks follow."""
    assert state.role is Role.FOLLOWER
    learned = False
    for batch in event.batches:
        assert batch.base_offset == state.log_end_offset
        learned = state.epoch_history.assign(batch.partition_leader_epoch, batch.base_offset) or learned
        state.log_end_offset = batch.end_offset
    if learned:
        effects.append(WriteEpochHistory(sync=True))
    _follow_leader_offsets(state, event, effects)
    report_end(state, effects)


def _follow_leader_offsets(
    state: ReplicaState, event: FetchAnswered | FetchedAppended, effects: list[ReplicaEffect]
) -> None:
    """min(leader's mark, own end). It never falls here: what was committed once stays so, though a new leader's own
    mark may lag for a round (only a truncation lowers it)."""
    if event.high_watermark is not None:
        state.high_watermark = max(state.high_watermark, min(event.high_watermark, state.log_end_offset))
    if event.log_start_offset != state.log_start_offset:
        follow_log_start(state, event.log_start_offset, effects)
    if event.low_watermark is not None and event.low_watermark > state.low_watermark:
        follow_low_watermark(state, event.low_watermark)


def _on_error(state: ReplicaState, error_code: ErrorCode, effects: list[ReplicaEffect]) -> None:
    """Fenced under my own epoch: only a LeaderAndIsr can help. Everything else may pass."""
    if error_code is ErrorCode.FENCED_LEADER_EPOCH:
        state.phase = Halted()
        effects.append(Warn(message=f"fenced by the leader in epoch {state.leader_epoch}; waiting for the controller"))
    else:
        effects.append(BackOff(error_code=error_code))


def _truncate(state: ReplicaState, end_offset: int, reason: str, effects: list[ReplicaEffect]) -> None:
    """Cut log and history. The history is cut also when no record is (KAFKA-10706). The log comes first: if that fails,
    what is stored of the history still tells of all that the log holds."""
    is_history_cut = state.epoch_history.truncate_to(min(end_offset, state.log_end_offset))
    if end_offset < state.log_start_offset:
        effects.append(ResetTo(offset=end_offset))
        _begin_empty_at(state, end_offset)
    elif end_offset < state.log_end_offset:
        below = end_offset < state.high_watermark
        effects.append(TruncateTo(end_offset=end_offset, reason=reason, below_high_watermark=below))
        _log_is(state, state.log_start_offset, end_offset)
    if is_history_cut:
        effects.append(WriteEpochHistory(sync=True))


def on_log_truncated(state: ReplicaState, event: LogWasCut) -> None:
    """What the log really is after a cut: a cut inside a batch drops the whole batch."""
    state.epoch_history.truncate_to(event.log_end_offset)
    _log_is(state, event.log_start_offset, event.log_end_offset)


def _begin_empty_at(state: ReplicaState, offset: int) -> None:
    """No file is left, and the next one begins here."""
    _log_is(state, offset, offset)
    state.low_watermark = offset


def _log_is(state: ReplicaState, log_start_offset: int, log_end_offset: int) -> None:
    state.log_start_offset = log_start_offset
    state.low_watermark = min(state.low_watermark, log_start_offset)
    state.log_end_offset = log_end_offset
    state.synced_end_offset = min(state.synced_end_offset, log_end_offset)
    state.high_watermark = max(log_start_offset, min(state.high_watermark, log_end_offset))
