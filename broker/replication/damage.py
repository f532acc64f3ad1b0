"""A damaged replica, with a log that differs from what was written: when it stops serving, and when it may start empty.

Owns: the three decisions about damage (replication rules, section 12). Leaves to others: files, and finding damage,
which the log, the scrubber and the loader do. Pure. Source: Protocol-Aware Recovery (FAST'18): a copy that storage has
damaged is restored from another copy, and until then it takes no part in replication.

1. A damaged replica goes offline alone. Its log stays as it is. The controller learns of it and removes it from the
   ISR.
2. A damaged leader goes offline only when another replica, known to be in sync, can take over. Otherwise its copy is
   the best there is: it still leads, refuses only the damaged range (CORRUPT_MESSAGE), and hands over once another
   replica is in sync.
3. It starts empty again only on an order that names another leader, an ISR without it, and a leader epoch above every
   one in which it reported positions of the damaged log. Before that another replica may still count on its records.
"""

from collections.abc import Collection

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.leaving import leave_leadership
from minibroker.broker.replication.state import ReplicaState, Role
from minibroker.protocol.errors import ErrorCode


def on_log_damaged(state: ReplicaState, event: ev.LogDamaged, effects: list[ev.ReplicaEffect]) -> None:
    """Only remember it: `act_on_damage` runs after this event, as after every other. One that is offline already, for
    lack of room on its disk, stays so."""
    if state.damage is None:
        state.damage = event.reason
        effects.append(ev.DamageNoted(reason=event.reason))
        if state.role is Role.OFFLINE:
            effects.append(ev.TakeOutOfUse(reason=event.reason))


def act_on_damage(state: ReplicaState, effects: list[ev.ReplicaEffect]) -> None:
    """Take a damaged replica offline, unless it leads and no other replica could."""
    assert state.damage is not None
    if state.role is Role.OFFLINE or (state.is_leader and not _can_hand_over(state)):
        return
    if state.is_leader:
        state.forfeited_epoch = state.leader_epoch
    leave_leadership(state, "the log is damaged", effects, ErrorCode.KAFKA_STORAGE_ERROR)
    state.role = Role.OFFLINE
    state.leader_id = None
    effects.append(ev.TakeOutOfUse(reason=state.damage))
    effects.append(ev.LeaderChanged())


def _can_hand_over(state: ReplicaState) -> bool:
    """Whether another member of the committed ISR is alive and has fetched in this epoch.

    A member that a pending proposal removes does not count: the proposal may have been applied without an answer, and
    then the damaged copy, offline, would be the only one in sync (seed 9000483).
    """
    pending = state.pending_isr
    return any(
        remote.eligible and remote.log_end_offset is not None
        for broker_id, remote in state.remotes.items()
        if broker_id in state.in_sync_replicas and (pending is None or broker_id in pending.in_sync_replicas)
    )


def may_reset(state: ReplicaState, leader_id: int | None, in_sync_replicas: Collection[int], leader_epoch: int) -> bool:
    """Whether nothing rests on the damaged log any more, if the controller says this of the partition. After a restart
    no epoch is known here, but the registration is new, and positions reported under an older one let no replica join
    (KIP-903)."""
    if state.damage is None or state.role is not Role.OFFLINE:
        return False
    me = state.config.broker_id
    if leader_id in (None, me) or me in in_sync_replicas:
        return False
    return state.leader_epoch is None or leader_epoch > state.leader_epoch
