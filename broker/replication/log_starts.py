"""Where a log starts, and what may be deleted in front of it (replication rules, section 11).

Owns: that only the leader raises a log start, that a follower starts where its leader does, and the low watermark: the
start up to which every in-sync replica has durably recorded that nothing is promised any more. Files are removed only
in front of it. So a leader elected from the ISR starts no earlier than what any member has deleted, and a log that
begins after its leader's start has lost its head. Leaves to others: files. Pure.
"""

from minibroker.broker.replication.events import (
    HeadDeleted,
    LogTrimmed,
    ReplicaEffect,
    StartsChanged,
    TrimBefore,
    WriteEpochHistory,
)
from minibroker.broker.replication.state import RemoteReplica, ReplicaState
from minibroker.protocol.files.checkpoints import LogStartReason

HEAD_MISSING = "its head is missing"
"""Ends the reason of such a damage."""


def on_log_trimmed(state: ReplicaState, event: LogTrimmed, effects: list[ReplicaEffect]) -> None:
    """Raise the start for retention or an operator, if this epoch's leader decided it, and only up to what is committed
    (KAFKA-5634)."""
    if not state.is_leader or state.fenced or event.leader_epoch != state.leader_epoch:
        return
    assert event.log_start_offset <= state.high_watermark, "I14: only what is committed may go"
    if event.log_start_offset > state.log_start_offset:
        state.log_start_offset = event.log_start_offset
        effects.append(TrimBefore(log_start_offset=event.log_start_offset, reason=event.reason))
        effects.append(StartsChanged())
        advance_low_watermark(state, effects)


def on_head_deleted(state: ReplicaState, event: HeadDeleted, effects: list[ReplicaEffect]) -> None:
    """Trim the epoch history to exactly what the files hold."""
    if state.epoch_history.trim_before(event.first_offset):
        effects.append(WriteEpochHistory())


# ------------------------------------------------------------------------------------------------------------ leader
def advance_low_watermark(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """Raise it to the smallest recorded start of all replicas that may lead next. It never falls, because what is
    deleted stays deleted."""
    low = state.log_start_offset
    for broker_id in state.maximal_in_sync_replicas:
        if broker_id == state.config.broker_id:
            continue
        remote = state.remotes.get(broker_id)
        if remote is None or remote.log_start_offset is None:
            return
        low = min(low, remote.log_start_offset)
    if low > state.low_watermark:
        state.low_watermark = low
        effects.append(StartsChanged())


def starts_like_leader(state: ReplicaState, remote: RemoteReplica) -> bool:
    """Whether a follower's start lets it join the ISR. It must not start after its leader: its copies of the records
    between would be missing. It must not start before what others have deleted: their logs would look damaged if it
    led. What earlier leaders deleted lies in front of this leader's start at its election."""
    assert state.elected_log_start is not None
    start, deleted = remote.log_start_offset, max(state.low_watermark, state.elected_log_start)
    return start is not None and deleted <= start <= state.log_start_offset


# ---------------------------------------------------------------------------------------------------------- follower
def follow_log_start(state: ReplicaState, leader_start: int | None, effects: list[ReplicaEffect]) -> None:
    """Start where the leader does, but not above what is committed here. If the log ends at that start and the leader
    has never compared it, all records are dropped: nothing can prove them any more, and no replica will start earlier.
    While the leader still has files in front of its start, it has compared the log by them: a log
    dropped then would be missed, because the next leader may start earlier (seed 17112752)."""
    if leader_start is None:
        return
    new_start = min(leader_start, state.high_watermark)
    if new_start > state.log_start_offset:
        state.log_start_offset = new_start
        drops_all = new_start == state.log_end_offset and not state.matches_leader
        effects.append(TrimBefore(log_start_offset=new_start, reason=LogStartReason.COPIED, drops_all=drops_all))


def follow_low_watermark(state: ReplicaState, leader_low: int) -> None:
    """Adopt the leader's low watermark, but not above this log's own start."""
    state.low_watermark = max(state.low_watermark, min(leader_low, state.log_start_offset))
