"""One replica as a state machine: `step(state, event) -> effects`.

Owns: the table of events, and the changes of role that LeaderAndIsr, StopReplica, fencing and a failing disk bring
(replication rules, section 7). Leaves to others: I/O, clocks, other partitions. Pure; `step` changes `state` in place
and checks the invariants before it returns. The package docstring explains the whole.
"""

from collections.abc import Callable
from typing import Any

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.damage import act_on_damage, on_log_damaged
from minibroker.broker.replication.epoch_history import EpochHistory
from minibroker.broker.replication.follower import (
    begin_following,
    fetch_once_synced,
    on_epoch_end_answered,
    on_fetch_answered,
    on_fetched_appended,
    on_leader_ends_answered,
    on_start_lowered,
    on_tail_truncated,
    retry_phase,
)
from minibroker.broker.replication.high_watermark import (
    NEVER_MS,
    advance_high_watermark,
    refuse_all_waiters,
    refuse_waiters_below_minimum,
)
from minibroker.broker.replication.invariants import check_invariants, check_offsets
from minibroker.broker.replication.isr import (
    commit_isr,
    maybe_expand,
    on_alter_partition_answered,
    on_alter_partition_lost,
    on_lag_checked,
    on_synced,
)
from minibroker.broker.replication.leader import (
    FetchGranted,
    FetchRefused,
    on_batches_appended,
    on_follower_fetched,
    on_produce_expired,
    on_produce_received,
)
from minibroker.broker.replication.leaving import leave_leadership
from minibroker.broker.replication.log_starts import on_head_deleted, on_log_trimmed
from minibroker.broker.replication.state import Fetching, Halted, RemoteReplica, ReplicaState, Role
from minibroker.protocol.errors import ErrorCode


def step(state: ReplicaState, event: ev.ReplicaEvent) -> list[ev.ReplicaEffect]:
    """Apply one event; the caller performs the returned effects in order before the next event."""
    effects: list[ev.ReplicaEffect] = []
    kind = type(event)
    _HANDLERS[kind](state, event, effects)
    if kind in _DATA_PATH:
        check_offsets(state)
    else:
        if state.damage is not None:
            act_on_damage(state, effects)
        check_invariants(state)
    return effects


def step_fetch(
    state: ReplicaState, event: ev.FollowerFetched
) -> tuple[FetchGranted | FetchRefused, list[ev.ReplicaEffect]]:
    """Like `step`, for a follower's fetch, which also has an answer."""
    effects: list[ev.ReplicaEffect] = []
    answer = on_follower_fetched(state, event, effects)
    check_offsets(state)
    return answer, effects


# ----------------------------------------------------------------------------------------------------- LeaderAndIsr
def is_stale(state: ReplicaState, event: ev.LeaderAndIsrReceived) -> bool:
    """Whether the order is older than the current state. An equal leader epoch with a newer partition epoch refreshes
    the ISR (KAFKA-13790); after StopReplica or fencing the same order counts again. A fenced leader needs an order to
    its new registration, and no other will come: it counts even if the answer to AlterPartition, which has a newer
    partition epoch, was faster."""
    if contradiction(state, event) is not None:
        return True
    if state.leader_epoch is None or event.leader_epoch > state.leader_epoch:
        return False
    if event.leader_id == state.config.broker_id and event.leader_epoch == state.forfeited_epoch:
        return True
    if event.leader_epoch < state.leader_epoch:
        return True
    return event.partition_epoch < state.partition_epoch and not (state.fenced and state.is_leader)


def contradiction(state: ReplicaState, event: ev.LeaderAndIsrReceived) -> str | None:
    """Why no controller that builds on the newest state in ZooKeeper can have sent this order; None if one can. Another
    tool has set that state back. Obeyed, the order would give one leader epoch two leaders, and no replica could tell
    their records apart."""
    if event.leader_id is None:
        return None
    if event.leader_epoch == state.leader_epoch and state.leader_id not in (None, event.leader_id):
        epoch = event.leader_epoch
        return f"broker {event.leader_id} is to lead leader epoch {epoch}, which broker {state.leader_id} leads"
    leads_already = state.is_leader and event.leader_epoch == state.leader_epoch
    latest = state.epoch_history.latest_epoch
    if event.leader_id != state.config.broker_id or leads_already or latest is None or event.leader_epoch > latest:
        return None
    return f"it is to lead leader epoch {event.leader_epoch}, and its log has reached epoch {latest}"


def _on_leader_and_isr(state: ReplicaState, event: ev.LeaderAndIsrReceived, effects: list[ev.ReplicaEffect]) -> None:
    if is_stale(state, event):
        return
    state.fenced = event.fenced
    is_same_leadership = event.leader_epoch == state.leader_epoch and event.leader_id == state.leader_id
    state.assignment = event.assignment
    if event.leader_id == state.config.broker_id:
        if is_same_leadership and state.is_leader:
            _refresh_leader(state, event, effects)
        else:
            _become_leader(state, event, effects)
    elif event.leader_id is None:
        _lose_leader(state, event, effects)
    elif is_same_leadership and state.role is Role.FOLLOWER and not isinstance(state.phase, Halted):
        state.partition_epoch = event.partition_epoch
    else:
        _become_follower(state, event, effects)


def _refresh_leader(state: ReplicaState, event: ev.LeaderAndIsrReceived, effects: list[ev.ReplicaEffect]) -> None:
    """Same leader epoch, newer partition epoch: this settles the ISR. Only its reply clears a proposal in flight.

    The same partition epoch again, or an older one, settles nothing: a proposal based on it may still be applied, so
    its members must still count: else the high watermark could pass a replica that then joins.
    """
    _set_remotes(state, event, reset=False)
    if event.partition_epoch <= state.partition_epoch:
        advance_high_watermark(state, event.now_ms, effects)
        return
    commit_isr(state, event.in_sync_replicas, event.partition_epoch, event.now_ms, effects)


def _become_leader(state: ReplicaState, event: ev.LeaderAndIsrReceived, effects: list[ev.ReplicaEffect]) -> None:
    """Keep the whole log and the high watermark; record the epoch before serving anything (KAFKA-7415)."""
    led_just_before = state.is_leader and state.leader_epoch == event.leader_epoch - 1
    if led_just_before:
        # Epochs are consecutive: no other replica led in between and nothing was truncated, so waiters may stay.
        for waiter in [*state.waiters, *state.sync_waiters]:
            waiter.leader_epoch = event.leader_epoch
    else:
        refuse_all_waiters(state, ErrorCode.NOT_LEADER_OR_FOLLOWER, "leadership changed", effects)
    state.role = Role.LEADER
    state.phase = None
    state.leader_id = state.config.broker_id
    state.leader_epoch = event.leader_epoch
    state.leader_epoch_start = state.log_end_offset
    state.elected_log_start = state.log_start_offset
    if state.epoch_history.assign(event.leader_epoch, state.log_end_offset):
        effects += (ev.WriteEpochHistory(), ev.SyncEpochHistorySoon())
    _set_remotes(state, event, reset=True)
    effects.append(ev.LeaderChanged())
    state.in_sync_replicas = ()
    commit_isr(state, event.in_sync_replicas, event.partition_epoch, event.now_ms, effects)
    _sync_what_does_not_count(state, effects)


def _sync_what_does_not_count(state: ReplicaState, effects: list[ev.ReplicaEffect]) -> None:
    """Records left unsynced by an earlier process or an earlier setting must not wait for the next append."""
    if state.counted_end < state.log_end_offset:
        effects.append(ev.SyncLog())


def _set_remotes(state: ReplicaState, event: ev.LeaderAndIsrReceived, reset: bool) -> None:
    """One entry per follower of the assignment. In a new leader epoch no end is known, because only positions reported
    under it count (Kip320.tla rule 3); the highest broker epoch seen stays."""
    old = state.remotes
    state.remotes = {}
    for broker_id in event.assignment:
        if broker_id == state.config.broker_id:
            continue
        known = old.get(broker_id)
        if known is not None and not reset:
            state.remotes[broker_id] = known
            continue
        in_sync = broker_id in event.in_sync_replicas
        since_ms = event.now_ms if in_sync else NEVER_MS
        state.remotes[broker_id] = RemoteReplica(
            broker_epoch=known.broker_epoch if known is not None else None,
            last_caught_up_ms=since_ms,
            last_fetch_ms=since_ms,
            leader_end_at_last_fetch=state.log_end_offset,
        )


def _become_follower(state: ReplicaState, event: ev.LeaderAndIsrReceived, effects: list[ev.ReplicaEffect]) -> None:
    """First stop acting as leader, then answer waiting requests, then align (KAFKA-1154); each new leader epoch aligns
    again (KAFKA-7164)."""
    leave_leadership(state, "leadership moved", effects)
    state.role = Role.FOLLOWER
    state.leader_id = event.leader_id
    state.leader_epoch = event.leader_epoch
    state.partition_epoch = event.partition_epoch
    effects.append(ev.LeaderChanged())
    if state.damage is None:  # a damaged log goes out of use instead
        begin_following(state, effects)


def _lose_leader(state: ReplicaState, event: ev.LeaderAndIsrReceived, effects: list[ev.ReplicaEffect]) -> None:
    """The partition has no leader now."""
    leave_leadership(state, "the partition has no leader", effects)
    state.role = Role.NONE
    state.leader_id = None
    state.leader_epoch = event.leader_epoch
    state.partition_epoch = event.partition_epoch
    effects.append(ev.LeaderChanged())


# ------------------------------------------------------------------------------------------- fencing, stopping, disk
def _on_replica_stopped(state: ReplicaState, event: ev.ReplicaStopped, effects: list[ev.ReplicaEffect]) -> None:
    """Give up any role. The epoch stays known, so that an older LeaderAndIsr cannot restore the role."""
    if event.leader_epoch is not None and state.leader_epoch is not None and event.leader_epoch < state.leader_epoch:
        return
    leave_leadership(state, "the replica was stopped", effects)
    if state.role is not Role.OFFLINE:
        state.role = Role.NONE
    state.leader_id = None
    effects.append(ev.LeaderChanged())


def _on_broker_fenced(state: ReplicaState, event: ev.BrokerFenced, effects: list[ev.ReplicaEffect]) -> None:
    """Another leader may exist by now: acknowledge nothing, and answer waiting requests (hardening rule 8)."""
    state.fenced = True
    message = "this broker lost its ZooKeeper session"
    refuse_all_waiters(state, ErrorCode.NOT_LEADER_OR_FOLLOWER, message, effects)


def _on_broker_unfenced(state: ReplicaState, event: ev.BrokerUnfenced, effects: list[ev.ReplicaEffect]) -> None:
    state.fenced = False
    if state.is_leader:
        advance_high_watermark(state, event.now_ms, effects)


def _on_log_failed(state: ReplicaState, event: ev.LogFailed, effects: list[ev.ReplicaEffect]) -> None:
    """Trust and serve nothing of this log until its directory works again (KAFKA-10778)."""
    if state.is_leader:
        state.forfeited_epoch = state.leader_epoch
        state.damage = None  # no other replica could take over, and nothing has noted it: readers will find it again
    leave_leadership(state, "log directory failed", effects, ErrorCode.KAFKA_STORAGE_ERROR)
    state.role = Role.OFFLINE
    state.leader_id = None
    effects.append(ev.LeaderChanged())


def _on_log_healed(state: ReplicaState, event: ev.LogHealed, effects: list[ev.ReplicaEffect]) -> None:
    if state.role is not Role.OFFLINE or state.damage is not None:
        return
    state.role = Role.NONE
    if event.log_end_offset < state.log_start_offset:  # a reset was refused; the high watermark is that of its start
        state.high_watermark = event.log_start_offset
    state.epoch_history = EpochHistory(event.epoch_entries)
    on_tail_truncated(
        state, ev.TailTruncated(log_start_offset=event.log_start_offset, log_end_offset=event.log_end_offset)
    )
    if tuple(state.epoch_history.entries) != event.epoch_entries:
        effects.append(ev.WriteEpochHistory())
    state.low_watermark = max(state.low_watermark, min(event.first_offset, state.log_start_offset))


# --------------------------------------------------------------------------------------------------- other changes
def _on_config_changed(state: ReplicaState, event: ev.ConfigChanged, effects: list[ev.ReplicaEffect]) -> None:
    flushing_changed = state.config.counts_only_synced is not event.config.counts_only_synced
    state.config = event.config
    if flushing_changed and isinstance(state.phase, Fetching):
        fetch_once_synced(state, effects)  # a sync that it waits for reports no end any more, or one is missing
    if state.is_leader:
        refuse_waiters_below_minimum(state, effects)
        advance_high_watermark(state, event.now_ms, effects)
        _sync_what_does_not_count(state, effects)


def _on_brokers_changed(state: ReplicaState, event: ev.BrokersChanged, effects: list[ev.ReplicaEffect]) -> None:
    """A replica that may not join the ISR must not hold back the high watermark (KAFKA-15021)."""
    if not state.is_leader:
        return
    for broker_id, remote in state.remotes.items():
        registered = event.eligible.get(broker_id)
        remote.eligible = registered is not None and remote.broker_epoch in (None, registered)
    maybe_expand(state, event.now_ms, effects)
    advance_high_watermark(state, event.now_ms, effects)


def _on_leader_stalled(state: ReplicaState, event: ev.LeaderStalled, effects: list[ev.ReplicaEffect]) -> None:
    """A follower that was heard of since the stall gains less: its times never lie ahead of the present, else later lag
    would be forgiven, too (seed 17510234)."""
    for remote in state.remotes.values():
        remote.last_caught_up_ms = min(event.now_ms, remote.last_caught_up_ms + event.stalled_ms)
        remote.last_fetch_ms = min(event.now_ms, remote.last_fetch_ms + event.stalled_ms)


def _on_tail_truncated(state: ReplicaState, event: ev.TailTruncated, effects: list[ev.ReplicaEffect]) -> None:
    on_tail_truncated(state, event)


def _on_phase_retried(state: ReplicaState, event: ev.PhaseRetried, effects: list[ev.ReplicaEffect]) -> None:
    retry_phase(state, effects)


_DATA_PATH = frozenset({ev.ProduceReceived, ev.BatchesAppended, ev.FetchAnswered})
"""Events that come thousands of times per second and cannot change a role, an ISR or the epoch history. A follower's
fetch comes as often, but goes through `step_fetch`."""

_HANDLERS: dict[type[ev.ReplicaEvent], Callable[[ReplicaState, Any, list[ev.ReplicaEffect]], None]] = {
    ev.LeaderAndIsrReceived: _on_leader_and_isr,
    ev.ReplicaStopped: _on_replica_stopped,
    ev.ConfigChanged: _on_config_changed,
    ev.BrokerFenced: _on_broker_fenced,
    ev.BrokerUnfenced: _on_broker_unfenced,
    ev.LogFailed: _on_log_failed,
    ev.LogHealed: _on_log_healed,
    ev.LogDamaged: on_log_damaged,
    ev.ProduceReceived: on_produce_received,
    ev.BatchesAppended: on_batches_appended,
    ev.ProduceExpired: on_produce_expired,
    ev.BrokersChanged: _on_brokers_changed,
    ev.LagChecked: on_lag_checked,
    ev.LeaderStalled: _on_leader_stalled,
    ev.AlterPartitionAnswered: on_alter_partition_answered,
    ev.AlterPartitionLost: on_alter_partition_lost,
    ev.Synced: on_synced,
    ev.LogTrimmed: on_log_trimmed,
    ev.HeadDeleted: on_head_deleted,
    ev.StartLowered: on_start_lowered,
    ev.EpochEndAnswered: on_epoch_end_answered,
    ev.LeaderEndsAnswered: on_leader_ends_answered,
    ev.FetchAnswered: on_fetch_answered,
    ev.FetchedAppended: on_fetched_appended,
    ev.TailTruncated: _on_tail_truncated,
    ev.PhaseRetried: _on_phase_retried,
}
