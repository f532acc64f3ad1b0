"""What a replica clears when it stops leading, whatever the reason.

Owns: the end of a leadership: waiting requests are answered, and the leader's view of its followers goes (I33). Leaves
to others: the next role. Pure.
"""

from minibroker.broker.replication.events import ReplicaEffect
from minibroker.broker.replication.high_watermark import refuse_all_waiters
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.errors import ErrorCode


def leave_leadership(
    state: ReplicaState, why: str, effects: list[ReplicaEffect], code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER
) -> None:
    """Also called for a replica that does not lead; then it only clears a follower's phase."""
    refuse_all_waiters(state, code, why, effects)
    state.leader_epoch_start = state.elected_log_start = None
    state.in_sync_replicas = ()
    state.pending_isr = None
    state.proposal_in_flight = None
    state.remotes = {}
    state.shrink_waits_for_sync = None
    state.phase = None
