"""The high watermark: up to where records are committed, and when waiting produce requests are answered.

Owns: the one rule by which a leader raises it, and the produce requests that wait for it. Leaves to others: changes of
the ISR (`isr`). Pure. Source: replication rules, section 2 (Partition.maybeIncrementLeaderHW), KIP-966, KAFKA-15021,
KAFKA-1555.
"""

from bisect import insort
from operator import attrgetter

from minibroker.broker.replication.events import AnswerProduce, HighWatermarkRose, ReplicaEffect
from minibroker.broker.replication.log_starts import starts_like_leader
from minibroker.broker.replication.state import ProduceWaiter, RemoteReplica, ReplicaState
from minibroker.protocol.errors import ErrorCode

NEVER_MS = -(2**62)
"""The time that stands for 'not yet caught up in this epoch'."""


def in_lag_limits(state: ReplicaState, remote: RemoteReplica, now_ms: int) -> bool:
    """Whether a follower keeps up: it is at the leader's end (KAFKA-7152), or was there within the lag limit."""
    if remote.log_end_offset == state.log_end_offset:
        return True
    return now_ms - remote.last_caught_up_ms <= state.config.replica_lag_time_max_ms


def advance_high_watermark(state: ReplicaState, now_ms: int, effects: list[ReplicaEffect]) -> None:
    """Raise the high watermark to the smallest end that counts; never lower it (I11).

    These count: the leader's own counted end, the maximal ISR, and caught-up replicas that may join it, because the
    high watermark must not outrun a joining replica. Below min.insync.replicas it does not move.
    """
    if len(state.in_sync_replicas) < state.effective_min_insync_replicas:
        return
    candidate = state.counted_end
    must_hold = state.maximal_in_sync_replicas
    for broker_id, remote in state.remotes.items():
        end = remote.log_end_offset
        if broker_id in must_hold:
            if end is None:
                return  # has not fetched in this epoch: its end is unknown (Kip320.tla rule 3)
        elif end is None or not _may_join(state, remote, now_ms):
            continue
        if end < candidate:
            candidate = end
    if candidate <= state.high_watermark:
        return
    state.high_watermark = candidate
    effects.append(HighWatermarkRose(high_watermark=candidate))
    resolve_waiters(state, effects)


def _may_join(state: ReplicaState, remote: RemoteReplica, now_ms: int) -> bool:
    return starts_like_leader(state, remote) and remote.eligible and in_lag_limits(state, remote, now_ms)


def add_waiter(state: ReplicaState, waiter: ProduceWaiter) -> None:
    """Keep a produce request until the high watermark covers it. A new one goes to the end; a repetition, rarely,
    further in front."""
    waiters = state.waiters
    if waiters and waiters[-1].required_offset > waiter.required_offset:
        insort(waiters, waiter, key=attrgetter("required_offset"))
    else:
        waiters.append(waiter)


def resolve_waiters(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """Answer the waiters that the high watermark covers. It rises only while the ISR is large enough."""
    done = 0
    for waiter in state.waiters:
        if waiter.required_offset > state.high_watermark:
            break
        done += 1
        if waiter.leader_epoch != state.leader_epoch:
            effects.append(AnswerProduce(tokens=waiter.tokens, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER))
        else:
            effects.append(AnswerProduce(tokens=waiter.tokens, base_offset=waiter.base_offset))
    del state.waiters[:done]


def answer_synced_waiters(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """acks=1 promises that the leader keeps the record; with flushing on, also over a power loss. Its copy is synced
    now."""
    still = [w for w in state.sync_waiters if w.required_offset > state.synced_end_offset]
    for waiter in state.sync_waiters:
        if waiter.required_offset <= state.synced_end_offset:
            effects.append(AnswerProduce(tokens=waiter.tokens, base_offset=waiter.base_offset))
    state.sync_waiters = still


def refuse_waiters_below_minimum(state: ReplicaState, effects: list[ReplicaEffect]) -> None:
    """If the committed ISR is below the minimum, answer waiters now, not at their timeout (hardening rule 5)."""
    if len(state.in_sync_replicas) >= state.effective_min_insync_replicas:
        return
    effects.extend(_after_append(state, waiter) for waiter in state.waiters)
    state.waiters.clear()


def refuse_all_waiters(state: ReplicaState, error_code: ErrorCode, message: str, effects: list[ReplicaEffect]) -> None:
    """Answer all waiters with an error: this broker does not lead any more."""
    for waiter in [*state.waiters, *state.sync_waiters]:
        effects.append(AnswerProduce(tokens=waiter.tokens, error_code=error_code, error_message=message))
    state.waiters.clear()
    state.sync_waiters.clear()


def missing_replicas_message(state: ReplicaState) -> str:
    """'ISR=[2] (size 1) < min.insync.replicas=2; missing brokers: 1, 3'."""
    members = state.in_sync_replicas
    missing = ", ".join(str(b) for b in sorted(state.assignment) if b not in members)
    return (
        f"ISR={sorted(members)} (size {len(members)}) < min.insync.replicas={state.effective_min_insync_replicas}; "
        f"missing brokers: {missing}"
    )


def _after_append(state: ReplicaState, waiter: ProduceWaiter) -> AnswerProduce:
    return AnswerProduce(
        tokens=waiter.tokens,
        error_code=ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        error_message=f"written at offset {waiter.base_offset}, but {missing_replicas_message(state)}",
    )
