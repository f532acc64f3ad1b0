"""A replica whose log is not what was written: when it stops serving, and when it may start anew.

Owns: the three decisions about damage (replication rules, section 12). Refuses to know files, and how damage is found:
that is the log's, the scrubber's and the loader's. Pure. Source: Protocol-Aware Recovery (FAST'18): a copy that storage
has damaged is made good from another copy, and until then it takes part in nothing.

1. A damaged replica goes offline alone. Its log stays as it is, and the controller is told, so it leaves the ISR.
2. A damaged leader does so only when another replica, surely in sync, can take over. Otherwise its copy is the best
   there is: it leads on, the damaged range alone is refused (CORRUPT_MESSAGE), and it hands over once somebody else is
   in sync.
3. It starts anew, empty, only on an order that names another leader, an ISR without it, and a leader epoch above every
   one in which it has told positions of the damaged log. Before that somebody may still count on what it has.
"""

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.leaving import leave_leadership
from minibroker.broker.replication.state import ReplicaState, Role
from minibroker.protocol.errors import ErrorCode


def on_log_damaged(state: ReplicaState, event: ev.LogDamaged, effects: list[ev.ReplicaEffect]) -> None:
    """Remember it; what follows from it is `act_on_damage`'s, after this event as after every other."""
    if state.damage is None:
        state.damage = event.reason
        effects.append(ev.DamageNoted(reason=event.reason))


def act_on_damage(state: ReplicaState, effects: list[ev.ReplicaEffect]) -> None:
    """A damaged replica is offline, unless it leads and nobody else could."""
    assert state.damage is not None
    if state.role is Role.OFFLINE or (state.is_leader and not _can_hand_over(state)):
        return
    if state.is_leader:
        state.forfeited_epoch = state.leader_epoch
    leave_leadership(state, "the log is damaged", effects, ErrorCode.KAFKA_STORAGE_ERROR)
    state.role = Role.OFFLINE
    state.leader_id = None
    effects.append(ev.TakeOutOfUse(reason=state.damage))
    effects.append(ev.LeaderChanged(became_leader=False))


def _can_hand_over(state: ReplicaState) -> bool:
    """Whether another member of the committed ISR lives and has fetched in this epoch.

    A member that a pending proposal leaves out is none: the proposal may have been applied, though no answer has come,
    and then the damaged copy would be offline as the only one in sync (seed 9000483).
    """
    pending = state.pending_isr
    return any(
        remote.eligible and remote.log_end_offset is not None
        for broker_id, remote in state.remotes.items()
        if broker_id in state.in_sync_replicas and (pending is None or broker_id in pending.in_sync_replicas)
    )


def may_start_empty(state: ReplicaState, order: ev.LeaderAndIsrReceived) -> bool:
    """Whether nobody counts on the damaged log any more. After a start no epoch is known: the registration is new, and
    a position told under an older one lets nobody join (KIP-903)."""
    if state.damage is None or state.role is not Role.OFFLINE:
        return False
    me = state.config.broker_id
    if order.leader_id in (None, me) or me in order.in_sync_replicas:
        return False
    return state.leader_epoch is None or order.leader_epoch > state.leader_epoch
