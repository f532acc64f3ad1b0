"""The in-sync replicas: proposals to the controller, and how they are settled.

Owns: when the leader proposes to shrink or expand the ISR, that one proposal is in flight at a time, and how an answer,
its loss, or a LeaderAndIsr settles it (replication rules, section 6; KIP-497; hardening rules 4 to 6). Leaves to
others: sending proposals. Pure.
"""

from minibroker.broker.replication.events import (
    AlterPartitionAnswered,
    AlterPartitionLost,
    IsrCommitted,
    LagChecked,
    ProposeIsr,
    ReplicaEffect,
    Synced,
    SyncLog,
    Warn,
)
from minibroker.broker.replication.follower import fetch_once_synced
from minibroker.broker.replication.high_watermark import (
    advance_high_watermark,
    answer_synced_waiters,
    in_lag_limits,
    refuse_waiters_below_minimum,
)
from minibroker.broker.replication.log_starts import advance_low_watermark, starts_like_leader
from minibroker.broker.replication.state import Fetching, IsrKind, PendingIsr, ReplicaState
from minibroker.protocol.errors import ErrorCode

PROPOSAL_RETRY_MS = 50
"""Kafka's constant for resending AlterPartition."""

NOT_APPLIED = frozenset({ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED})
"""Answers that prove that the proposal was not applied: back to the committed ISR."""
OUTCOME_UNKNOWN = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)
"""Answers after which the proposal stays pending, which is safe either way, until the next LeaderAndIsr."""


def on_lag_checked(state: ReplicaState, event: LagChecked, effects: list[ReplicaEffect]) -> None:
    """Shrink the ISR if a follower lags, else propose followers that caught up while no proposal was possible."""
    if not state.is_leader or state.fenced:
        return
    if not _maybe_shrink(state, event.now_ms, synced=False, effects=effects):
        maybe_expand(state, event.now_ms, effects)
        advance_high_watermark(state, event.now_ms, effects)


def on_synced(state: ReplicaState, event: Synced, effects: list[ReplicaEffect]) -> None:
    """Bytes became safe from power loss: they may count now, and a shrink that waited for them goes on."""
    end_offset = min(event.end_offset, state.log_end_offset)
    state.synced_end_offset = max(state.synced_end_offset, end_offset)
    if not state.is_leader:
        if isinstance(state.phase, Fetching) and state.config.counts_only_synced:
            fetch_once_synced(state, effects)
        return
    answer_synced_waiters(state, effects)
    advance_high_watermark(state, event.now_ms, effects)
    if state.shrink_waits_for_sync is not None and state.synced_end_offset >= state.shrink_waits_for_sync:
        state.shrink_waits_for_sync = None
        _maybe_shrink(state, event.now_ms, synced=True, effects=effects)


def _maybe_shrink(state: ReplicaState, now_ms: int, synced: bool, effects: list[ReplicaEffect]) -> bool:
    """Propose the ISR without lagging followers. The leader never removes itself, so it is never empty (KAFKA-708)."""
    if state.proposal_in_flight is not None or state.pending_isr is not None:
        return False
    me = state.config.broker_id
    kept = tuple(
        b
        for b in state.in_sync_replicas
        if b == me or (b in state.remotes and in_lag_limits(state, state.remotes[b], now_ms))
    )
    if len(kept) == len(state.in_sync_replicas):
        return False
    below_minimum = len(kept) < state.effective_min_insync_replicas
    if below_minimum and state.synced_end_offset < (state.high_watermark if synced else state.log_end_offset):
        # Hardening rule 4: this copy may soon be the only complete one, so it must survive power loss first.
        if state.shrink_waits_for_sync is None:
            state.shrink_waits_for_sync = state.log_end_offset
            effects.append(SyncLog())
        return True
    _propose(state, IsrKind.SHRINK, kept, effects)
    if state.counted_end < state.log_end_offset:
        effects.append(SyncLog())  # appended meanwhile; it does not count before
    return True


def maybe_expand(state: ReplicaState, now_ms: int, effects: list[ReplicaEffect]) -> None:
    """Propose followers that hold all that may be visible: everything up to the high watermark and up to the start of
    this leader epoch (KAFKA-7128)."""
    if len(state.in_sync_replicas) == len(state.assignment):
        return
    if state.proposal_in_flight is not None or state.pending_isr is not None or state.fenced:
        return
    assert state.leader_epoch_start is not None
    floor = max(state.high_watermark, state.leader_epoch_start)
    joiners = tuple(
        b
        for b in state.assignment
        if b not in state.in_sync_replicas
        and (remote := state.remotes.get(b)) is not None
        and remote.log_end_offset is not None
        and remote.log_end_offset >= floor
        and remote.eligible
        and in_lag_limits(state, remote, now_ms)
        and starts_like_leader(state, remote)
    )
    if joiners:
        _propose(state, IsrKind.EXPAND, state.in_sync_replicas + joiners, effects)


def _propose(state: ReplicaState, kind: IsrKind, members: tuple[int, ...], effects: list[ReplicaEffect]) -> None:
    assert state.pending_isr is None
    assert state.proposal_in_flight is None
    state.last_proposal_id += 1
    qualified = tuple((b, state.remotes[b].broker_epoch if b in state.remotes else None) for b in members)
    state.pending_isr = PendingIsr(kind, qualified, state.last_proposal_id)
    _send(state, effects, after_ms=0)


def _send(state: ReplicaState, effects: list[ReplicaEffect], after_ms: int) -> None:
    """Send the pending proposal; the controller answers a repetition of an applied one with success (KAFKA-14144)."""
    assert state.pending_isr is not None
    assert state.leader_epoch is not None
    state.proposal_in_flight = state.pending_isr.proposal_id
    effects.append(
        ProposeIsr(
            kind=state.pending_isr.kind,
            proposal_id=state.pending_isr.proposal_id,
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            new_isr_with_epochs=state.pending_isr.members,
            after_ms=after_ms,
        )
    )


def on_alter_partition_answered(
    state: ReplicaState, event: AlterPartitionAnswered, effects: list[ReplicaEffect]
) -> None:
    """No proposal is in flight any more; settle this one if it is still pending."""
    if state.proposal_in_flight != event.proposal_id:
        return
    state.proposal_in_flight = None
    pending = state.pending_isr
    if pending is None or pending.proposal_id != event.proposal_id or not state.is_leader:
        return
    if event.error_code is ErrorCode.NONE:
        if _answers(state, pending, event):
            commit_isr(state, event.in_sync_replicas, event.partition_epoch, event.now_ms, effects)
        else:
            answer = f"ISR {event.in_sync_replicas}, epoch {event.leader_epoch}, version {event.partition_epoch}"
            effects.append(
                Warn(message=f"the controller's answer does not fit the proposal: {answer}; sending it again")
            )
            _send(state, effects, after_ms=PROPOSAL_RETRY_MS)
    elif event.error_code in NOT_APPLIED:
        state.pending_isr = None
        advance_high_watermark(state, event.now_ms, effects)
    elif event.error_code not in OUTCOME_UNKNOWN:
        _send(state, effects, after_ms=PROPOSAL_RETRY_MS)


def _answers(state: ReplicaState, pending: PendingIsr, event: AlterPartitionAnswered) -> bool:
    """Whether the answer can mean success: this same ISR is committed, in this leader epoch, by at most one write,
    because any other write begins a new epoch. If this replica believed a partition epoch that is never reached, it
    would refuse each later order as stale."""
    return (
        event.leader_epoch == state.leader_epoch
        and sorted(event.in_sync_replicas) == sorted(pending.in_sync_replicas)
        and event.partition_epoch in (state.partition_epoch, state.partition_epoch + 1)  # equal: KAFKA-12751
    )


def on_alter_partition_lost(state: ReplicaState, event: AlterPartitionLost, effects: list[ReplicaEffect]) -> None:
    """Send the same proposal again: no wait for an answer is endless (hardening rule 6)."""
    if state.proposal_in_flight != event.proposal_id:
        return
    state.proposal_in_flight = None
    pending = state.pending_isr
    if pending is not None and pending.proposal_id == event.proposal_id and state.is_leader:
        _send(state, effects, after_ms=PROPOSAL_RETRY_MS)


def commit_isr(
    state: ReplicaState, members: tuple[int, ...], partition_epoch: int, now_ms: int, effects: list[ReplicaEffect]
) -> None:
    """Adopt the ISR that the controller committed, without brokers outside of the assignment (KAFKA-9672)."""
    before = state.in_sync_replicas
    after = tuple(b for b in members if b in state.assignment)
    assert state.config.broker_id in after, f"the leader {state.config.broker_id} is not in its own ISR {after}"
    state.in_sync_replicas = after
    state.pending_isr = None
    state.shrink_waits_for_sync = None
    state.partition_epoch = partition_epoch
    if sorted(before) != sorted(after):
        effects.append(IsrCommitted(before=before, after=after))
    if len(after) < state.effective_min_insync_replicas:
        effects.append(SyncLog())  # hardening rule 4, again for what was appended meanwhile
    advance_low_watermark(state, effects)
    refuse_waiters_below_minimum(state, effects)
    advance_high_watermark(state, now_ms, effects)  # also without traffic (KAFKA-13091)
