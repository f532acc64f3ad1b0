"""How a leader handles the requests of producers, followers and consumers.

Owns: the order of checks for each request (replication rules, sections 3 to 5) and the leader's view of its
followers' ends. Leaves to others: changes of the ISR (`isr`) and of the high watermark (`high_watermark`). Pure.
"""

from typing import Any

from msgspec import Struct

from minibroker.broker.replication.events import (
    AnswerProduce,
    AppendBatches,
    BatchesAppended,
    FollowerFetched,
    ProduceExpired,
    ProduceReceived,
    ReplicaEffect,
    SyncLog,
)
from minibroker.broker.replication.high_watermark import add_waiter, advance_high_watermark, missing_replicas_message
from minibroker.broker.replication.isr import maybe_expand
from minibroker.broker.replication.log_starts import advance_low_watermark
from minibroker.broker.replication.producer_state import Duplicate, Refuse, continues
from minibroker.broker.replication.state import LEADER, ProduceWaiter, RemoteReplica, ReplicaState
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import NO_PRODUCER_ID, BatchHeader

ACKS_ALL = -1
ACKS_NONE = 0


class FetchGranted(Struct, frozen=True):
    """Records from `fetch_offset` up to `end_offset` (exclusive) may be read."""

    fetch_offset: int
    end_offset: int
    high_watermark: int
    log_start_offset: int
    low_watermark: int | None = None
    """For followers."""


class FetchRefused(Struct, frozen=True):
    """No records. `diverging`, if the follower's log differs from the leader's: (epoch, its exclusive end)."""

    error_code: ErrorCode
    diverging: tuple[int, int] | None = None


# ----------------------------------------------------------------------------------------------------------- produce
def on_produce_received(state: ReplicaState, event: ProduceReceived, effects: list[ReplicaEffect]) -> None:
    """Check before the append; a batch refused here leaves no byte in the log (I24). Refusals and repetitions change
    nothing. Each batch after the first new one continues it, so all of these are appended."""
    refusal = refuse_as_leader(state)
    if refusal is not None:
        effects.append(AnswerProduce(tokens=event.tokens, error_code=refusal))
        return
    if event.acks == ACKS_ALL and len(state.in_sync_replicas) < state.effective_min_insync_replicas:
        message = missing_replicas_message(state)
        effects.append(
            AnswerProduce(tokens=event.tokens, error_code=ErrorCode.NOT_ENOUGH_REPLICAS, error_message=message)
        )
        return
    assert all(map(continues, event.headers, event.headers[1:])), "a run goes on without a gap"
    tokens = event.tokens
    if event.headers[0].producer_id != NO_PRODUCER_ID:
        tokens = tokens[_count_settled(state, event, effects) :]
        if not tokens:
            return
    assert state.leader_epoch is not None
    effects.append(
        AppendBatches(tokens=tokens, acks=event.acks, base_offset=state.log_end_offset, leader_epoch=state.leader_epoch)
    )


def _count_settled(state: ReplicaState, event: ProduceReceived, effects: list[ReplicaEffect]) -> int:
    """How many batches at the front are answered and not written. A retry gets the offsets of its first attempt, once
    these are as safe as its acks demand (KAFKA-5494)."""
    for index, header in enumerate(event.headers):
        checked = event.producers.check(header, is_retry=event.is_retry and not index)
        tokens = event.tokens[index : index + 1]
        if isinstance(checked, Refuse):
            message = _sequence_message(header, checked.reason)
            effects.append(AnswerProduce(tokens=tokens, error_code=checked.error, error_message=message))
        elif isinstance(checked, Duplicate):
            _answer_when_safe(state, tokens, event.acks, checked.base_offset, checked.last_offset + 1, effects)
        else:
            return index
    return len(event.headers)


def _sequence_message(header: BatchHeader, reason: str) -> str:
    claim = f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence}"
    return f"{claim}; {reason}" if reason else claim


def on_batches_appended(state: ReplicaState, event: BatchesAppended, effects: list[ReplicaEffect]) -> None:
    """The bytes are written; only now does the log end move (KAFKA-698)."""
    assert state.role is LEADER
    assert event.base_offset == state.log_end_offset
    for remote in state.remotes.values():
        if remote.log_end_offset == event.base_offset:
            remote.last_caught_up_ms = event.now_ms  # it was at the log end until now
    state.log_end_offset = event.end_offset
    if state.counted_end < state.log_end_offset:
        effects.append(SyncLog())
    advance_high_watermark(state, event.now_ms, effects)  # the ISR may be this broker alone
    _answer_when_safe(state, event.tokens, event.acks, event.base_offset, event.end_offset, effects)


def _answer_when_safe(
    state: ReplicaState,
    tokens: tuple[Any, ...],
    acks: int,
    base_offset: int,
    end_offset: int,
    effects: list[ReplicaEffect],
) -> None:
    """Answer now, or add a waiter."""
    assert state.leader_epoch is not None
    waiter = ProduceWaiter(tokens, base_offset, end_offset, state.leader_epoch)
    if acks == ACKS_ALL:
        if state.high_watermark >= end_offset:
            effects.append(AnswerProduce(tokens=tokens, base_offset=base_offset))
        else:
            add_waiter(state, waiter)
    elif state.config.counts_only_synced and state.synced_end_offset < end_offset:
        state.sync_waiters.append(waiter)
    else:
        effects.append(AnswerProduce(tokens=tokens, base_offset=base_offset))


def on_produce_expired(state: ReplicaState, event: ProduceExpired, effects: list[ReplicaEffect]) -> None:
    """The request timed out. The records stay in the log."""
    for waiters in (state.waiters, state.sync_waiters):
        for index, waiter in enumerate(waiters):
            if any(token is event.token for token in waiter.tokens):
                del waiters[index]
                message = (
                    f"written at offset {waiter.base_offset}, not replicated in time: high watermark "
                    f"{state.high_watermark}, ISR={list(state.in_sync_replicas)}"
                )
                effects.append(
                    AnswerProduce(tokens=waiter.tokens, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=message)
                )
                return


# ------------------------------------------------------------------------------------------------------------- fetch
def on_follower_fetched(
    state: ReplicaState, event: FollowerFetched, effects: list[ReplicaEffect]
) -> FetchGranted | FetchRefused:
    """Answer a follower and learn its log end, in one step. A refused fetch teaches nothing (KAFKA-13141, 8400)."""
    refusal = _refuse_follower(state, event) or _refuse_position(state, event.fetch_offset, event.last_fetched_epoch)
    if refusal is not None:
        return refusal
    remote = _remote_for(state, event)
    _note_progress(state, remote, event)
    if remote.log_start_offset != event.log_start_offset:
        remote.log_start_offset = event.log_start_offset
        advance_low_watermark(state, effects)
    maybe_expand(state, event.now_ms, effects)
    advance_high_watermark(state, event.now_ms, effects)
    return grant_follower(state, event.fetch_offset)


def grant_follower(state: ReplicaState, fetch_offset: int) -> FetchGranted:
    """A follower reads to the log end. The high watermark it gets includes its own report (hardening rule 10)."""
    return FetchGranted(
        fetch_offset, state.log_end_offset, state.high_watermark, state.log_start_offset, state.low_watermark
    )


def refuse_as_leader(state: ReplicaState) -> ErrorCode | None:
    """Why this broker cannot act as leader; None if it can."""
    if state.role is LEADER and not state.fenced:
        return None
    return ErrorCode.KAFKA_STORAGE_ERROR if state.is_offline else ErrorCode.NOT_LEADER_OR_FOLLOWER


def refuse_epoch(state: ReplicaState, current_leader_epoch: int | None) -> ErrorCode | None:
    """The fence of KIP-320. A lower epoch is one of a peer that missed an election; a higher one shows that this leader
    did."""
    if current_leader_epoch is None or state.leader_epoch is None:
        return None
    if current_leader_epoch < state.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if current_leader_epoch > state.leader_epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return None


def refuse_fetch(
    state: ReplicaState, current_leader_epoch: int | None, fetch_offset: int, last_fetched_epoch: int | None
) -> FetchRefused | None:
    """The checks that consumer and follower share, in Kafka's order (replication rules, section 4)."""
    fenced = refuse_epoch(state, current_leader_epoch) or refuse_as_leader(state)
    if fenced is not None:
        return FetchRefused(fenced)
    return _refuse_position(state, fetch_offset, last_fetched_epoch)


def _refuse_position(state: ReplicaState, fetch_offset: int, last_fetched_epoch: int | None) -> FetchRefused | None:
    """Whether the reader's log agrees with this one, and its position lies within it."""
    if last_fetched_epoch is not None:
        found = state.epoch_history.end_offset_for(last_fetched_epoch, state.log_end_offset)
        if found is None or fetch_offset < state.log_start_offset:
            return FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)
        epoch, end_offset = found
        if epoch < last_fetched_epoch or end_offset < fetch_offset:
            return FetchRefused(ErrorCode.NONE, diverging=found)
    if not state.log_start_offset <= fetch_offset <= state.log_end_offset:
        return FetchRefused(ErrorCode.OFFSET_OUT_OF_RANGE)
    return None


def check_consumer_fetch(
    state: ReplicaState, current_leader_epoch: int | None, fetch_offset: int, last_fetched_epoch: int | None
) -> FetchGranted | FetchRefused:
    """A consumer reads below the high watermark only."""
    refusal = refuse_fetch(state, current_leader_epoch, fetch_offset, last_fetched_epoch)
    if refusal is not None:
        return refusal
    return FetchGranted(fetch_offset, state.high_watermark, state.high_watermark, state.log_start_offset)


def answer_epoch_end(
    state: ReplicaState, current_leader_epoch: int | None, epoch: int | None
) -> tuple[ErrorCode, int | None, int | None]:
    """OffsetForLeaderEpoch: (error, largest known epoch <= asked, its exclusive end)."""
    refusal = refuse_epoch(state, current_leader_epoch) or refuse_as_leader(state)
    if refusal is not None:
        return refusal, None, None
    found = state.epoch_history.end_offset_for(epoch, state.log_end_offset)
    return (ErrorCode.NONE, None, None) if found is None else (ErrorCode.NONE, found[0], found[1])


def latest_offset_for_consumer(state: ReplicaState) -> tuple[ErrorCode, int | None, str | None]:
    """ListOffsets(latest). If a new leader's high watermark is below the start of its epoch, the end would go back
    (KIP-207)."""
    assert state.leader_epoch_start is not None
    if state.high_watermark < state.leader_epoch_start:
        message = (
            f"high watermark {state.high_watermark} is below the start {state.leader_epoch_start} of the leader's "
            f"epoch {state.leader_epoch}, ISR={list(state.in_sync_replicas)}"
        )
        return ErrorCode.OFFSET_NOT_AVAILABLE, None, message
    return ErrorCode.NONE, state.high_watermark, None


def _refuse_follower(state: ReplicaState, event: FollowerFetched) -> FetchRefused | None:
    refusal = refuse_epoch(state, event.current_leader_epoch) or refuse_as_leader(state)
    if refusal is not None:
        return FetchRefused(refusal)
    remote = state.remotes.get(event.replica_id)
    if remote is None:  # not in the known assignment; it gets no entry (KAFKA-13837)
        return FetchRefused(ErrorCode.UNKNOWN_LEADER_EPOCH)
    known = remote.broker_epoch
    if known is not None and event.broker_epoch is not None and event.broker_epoch < known:
        return FetchRefused(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # from an older incarnation (KAFKA-15221)
    return None


def _remote_for(state: ReplicaState, event: FollowerFetched) -> RemoteReplica:
    """The follower's entry. What an earlier incarnation fetched does not make a newer one caught up."""
    remote = state.remotes[event.replica_id]
    if event.broker_epoch is not None and event.broker_epoch != remote.broker_epoch:
        if remote.broker_epoch is not None:
            remote.leader_end_at_last_fetch = state.log_end_offset
        remote.broker_epoch = event.broker_epoch
    remote.eligible = event.eligible
    return remote


def _note_progress(state: ReplicaState, remote: RemoteReplica, event: FollowerFetched) -> None:
    """Replica.updateFetchState: caught up now, or at the last fetch, if this one reaches the leader's end of then."""
    if event.fetch_offset >= state.log_end_offset:
        remote.last_caught_up_ms = max(remote.last_caught_up_ms, event.now_ms)
    elif event.fetch_offset >= remote.leader_end_at_last_fetch:
        remote.last_caught_up_ms = max(remote.last_caught_up_ms, remote.last_fetch_ms)
    remote.log_end_offset = event.fetch_offset
    remote.leader_end_at_last_fetch = max(remote.leader_end_at_last_fetch, state.log_end_offset)
    remote.last_fetch_ms = event.now_ms
