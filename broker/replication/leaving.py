"""What a leader lays down when it stops leading, whatever the reason.

Owns: the end of a leadership: who waits is answered, and nothing of the leader's knowledge stays (I33). Refuses to know
which role comes next. Pure.
"""

from minibroker.broker.replication.events import ReplicaEffect
from minibroker.broker.replication.high_watermark import refuse_all_waiters
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.errors import ErrorCode


def leave_leadership(
    state: ReplicaState, why: str, effects: list[ReplicaEffect], code: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER
) -> None:
    """Also for a replica that does not lead: nothing changes then but a follower's phase."""
    refuse_all_waiters(state, code, why, effects)
    state.leader_epoch_start = state.elected_log_start = None
    state.in_sync_replicas = ()
    state.pending_isr = None
    state.proposal_in_flight = None
    state.remotes = {}
    state.shrink_waits_for_sync = None
    state.phase = None
