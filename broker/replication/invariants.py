"""What must hold for one replica after every step; a violation is a bug of the core and ends the process.

Owns: the runtime checks of the invariants that one broker alone can see (I1, I9, I10, I13, I33, I34). It repairs
nothing: replication recovers from a crash, but not from silent divergence. Pure.
"""

from minibroker.broker.replication.state import LEADER, ReplicaState


def check_offsets(state: ReplicaState) -> None:
    """The checks for events of the data path, which change offsets and waiters, but no role and no ISR."""
    assert 0 <= state.low_watermark <= state.log_start_offset <= state.high_watermark <= state.log_end_offset, (
        f"I10: {state.low_watermark} <= {state.log_start_offset} <= {state.high_watermark} <= {state.log_end_offset}"
    )
    assert state.synced_end_offset <= state.log_end_offset, "I10: synced end beyond the log end"
    if state.waiters:  # sorted, so checking the last one is enough
        last = state.waiters[-1]
        assert last.required_offset <= state.log_end_offset, "a waiter waits for what was written"
        assert last.leader_epoch == state.leader_epoch, "a waiter waits in the epoch of its append"


def check_invariants(state: ReplicaState) -> None:
    """Raise AssertionError naming the invariant."""
    check_offsets(state)
    entries = state.epoch_history.entries
    if entries:
        assert entries[-1][1] <= state.log_end_offset, f"I13: {entries[-1]} starts beyond {state.log_end_offset}"
    if state.role is LEADER:
        _check_leader(state)
    else:
        assert not state.in_sync_replicas, "I33: only a leader has an ISR"
        assert not state.remotes, "I33: only a leader knows followers"
        assert not state.waiters, "I33: only a leader has waiters"
        assert state.pending_isr is None, "I33: only a leader proposes"


def _check_leader(state: ReplicaState) -> None:
    assert state.leader_id == state.config.broker_id, "a leader names itself"
    assert state.leader_epoch is not None and state.leader_epoch >= 0, "I9: a leader has an epoch"
    assert state.leader_epoch_start is not None, "a leader knows where its epoch began"
    assert state.epoch_history.latest_epoch == state.leader_epoch, "I13: a leader's epoch is in its history"
    assert state.config.broker_id in state.in_sync_replicas, "I9: the leader is in its ISR"
    assert all(b in state.assignment for b in state.in_sync_replicas), "I34: the ISR lies within the assignment"
