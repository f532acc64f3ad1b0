"""Where a log starts, and what may go in front of it (replication rules, section 11).

Owns: that the leader alone raises a start, that a follower starts where its leader does, and the low watermark: up to
there every in-sync replica has durably recorded that nothing is promised any more. Only in front of it are files
removed. So whoever is elected from the in-sync set starts no earlier than anybody has deleted, and a log that begins
behind its leader's start has lost its head. Refuses to know files. Pure.
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
from minibroker.protocol.checkpoints import LogStartReason


def on_log_trimmed(state: ReplicaState, event: LogTrimmed, effects: list[ReplicaEffect]) -> None:
    """Retention or an operator, by the leader of this very epoch, and only what is committed (KAFKA-5634)."""
    if not state.is_leader or state.fenced or event.leader_epoch != state.leader_epoch:
        return
    assert event.log_start_offset <= state.high_watermark, "I14: only what is committed may go"
    if event.log_start_offset > state.log_start_offset:
        state.log_start_offset = event.log_start_offset
        effects.append(TrimBefore(log_start_offset=event.log_start_offset, reason=event.reason))
        effects.append(StartsChanged())
        advance_low_watermark(state, effects)


def on_head_deleted(state: ReplicaState, event: HeadDeleted, effects: list[ReplicaEffect]) -> None:
    """The epoch history covers what the files hold, no more and no less."""
    if state.epoch_history.trim_before(event.first_offset):
        effects.append(WriteEpochHistory(sync=False))


# ------------------------------------------------------------------------------------------------------------ leader
def advance_low_watermark(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """The smallest recorded start of whoever may lead next. It never falls: what was deleted stays deleted."""
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
    """Whether a follower may join: it must not start behind its leader, where records would be lost with the others,
    nor in front of what others have deleted, which would look like damage if it led. What earlier leaders deleted lies
    in front of where this one began."""
    assert state.elected_log_start is not None
    start, deleted = remote.log_start_offset, max(state.low_watermark, state.elected_log_start)
    return start is not None and deleted <= start <= state.log_start_offset


# ---------------------------------------------------------------------------------------------------------- follower
def follow_log_start(state: ReplicaState, leader_start: int | None, effects: list[ReplicaEffect]) -> None:
    """Start where the leader does, but not above what is committed here. A log that ends where everybody's files may
    begin, and was not proven before, is dropped: nobody can compare it any more, and nobody will start earlier. Where
    files in front of the leader's start are still there, the leader has compared the log by them (seed 17112752: it was
    dropped, and the next leader started earlier)."""
    if leader_start is None:
        return
    new_start = min(leader_start, state.high_watermark)
    if new_start > state.log_start_offset:
        state.log_start_offset = new_start
        drops_all = new_start == state.log_end_offset and not state.matches_leader
        effects.append(TrimBefore(log_start_offset=new_start, reason=LogStartReason.COPIED, drops_all=drops_all))


def follow_low_watermark(state: ReplicaState, leader_low: int) -> None:
    """As far as one's own start goes: what is kept here is kept for a reason, until the start follows."""
    state.low_watermark = max(state.low_watermark, min(leader_low, state.log_start_offset))
