"""A state that breaks an invariant ends the process, which names it: nothing of it reaches a file or another broker."""

from typing import Any

import pytest

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.invariants import check_invariants
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import IsrKind, PendingIsr, ProduceWaiter, ReplicaState
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.core_cluster import CoreCluster

END = 2


def replica(broker_id: int) -> ReplicaState:
    """Of epoch 1, which began at offset 1: broker 1 leads, broker 2 follows. Both have two committed records."""
    cluster = CoreCluster(2)
    for value in "ab":
        cluster.elect(1)
        cluster.produce(1, value)
        cluster.follow(2)
        cluster.fetch(2)
        cluster.fetch(2)
    cluster.fetch(2)
    state = cluster.replicas[broker_id].state
    assert (state.high_watermark, state.log_end_offset, state.epoch_history.entries) == (END, END, [(0, 0), (1, 1)])
    check_invariants(state)
    return state


def broken(broker_id: int, **fields: Any) -> ReplicaState:
    state = replica(broker_id)
    entries = fields.pop("entries", state.epoch_history.entries)
    state.epoch_history.entries = entries
    for name, value in fields.items():
        setattr(state, name, value)
    return state


def waiter(required_offset: int = END, leader_epoch: int = 1) -> ProduceWaiter:
    return ProduceWaiter(tokens=(), base_offset=0, required_offset=required_offset, leader_epoch=leader_epoch)


@pytest.mark.invariant("I10", "I14")
@pytest.mark.parametrize("broker_id", [1, 2])
@pytest.mark.parametrize(
    "fields",
    [
        {"low_watermark": -1},
        {"low_watermark": 1},
        {"log_start_offset": END, "high_watermark": 1},
        {"high_watermark": END + 1},
        {"synced_end_offset": END + 1},
    ],
    ids=repr,
)
def test_offsets_that_are_out_of_order_fail_an_assertion(broker_id: int, fields: dict[str, int]) -> None:
    with pytest.raises(AssertionError, match="I10"):
        check_invariants(broken(broker_id, **fields))


@pytest.mark.invariant("I9", "I13", "I34")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"leader_id": 2}, "a leader names itself"),
        ({"leader_id": None}, "a leader names itself"),
        ({"leader_epoch": None}, "I9: a leader has an epoch"),
        ({"leader_epoch": -1}, "I9: a leader has an epoch"),
        ({"leader_epoch_start": None}, "knows where its epoch began"),
        ({"entries": []}, "I13: a leader's epoch"),
        ({"entries": [(0, 0)]}, "I13: a leader's epoch"),
        ({"entries": [(0, 0), (2, 1)]}, "I13: a leader's epoch"),
        ({"entries": [(0, 0), (1, END + 1)]}, "I13: .* starts beyond"),
        ({"in_sync_replicas": ()}, "I9: the leader is in its ISR"),
        ({"in_sync_replicas": (2,)}, "I9: the leader is in its ISR"),
        ({"in_sync_replicas": (1, 2, 3)}, "I34"),
        ({"waiters": [waiter(END + 1)]}, "what was written"),
        ({"waiters": [waiter(leader_epoch=0)]}, "the epoch of its append"),
    ],
)
def test_a_leader_that_contradicts_itself_fails_an_assertion(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_invariants(broken(1, **fields))


@pytest.mark.invariant("I13", "I33")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"in_sync_replicas": (1, 2)}, "I33: only a leader has an ISR"),
        ({"remotes": replica(1).remotes}, "I33: only a leader knows followers"),
        ({"waiters": [waiter()]}, "I33: only a leader has waiters"),
        ({"pending_isr": PendingIsr(IsrKind.EXPAND, ((1, None),), 1)}, "I33: only a leader proposes"),
        ({"entries": [(0, 0), (1, END + 1)]}, "I13: .* starts beyond"),
    ],
)
def test_a_follower_with_the_state_of_a_leader_fails_an_assertion(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_invariants(broken(2, **fields))


@pytest.mark.invariant("I10", "I33")
def test_every_step_checks_its_outcome() -> None:
    out_of_order = {"synced_end_offset": END + 1}
    answer = ev.FetchAnswered(leader_epoch=9, fetch_offset=END, error_code=ErrorCode.NONE)
    with pytest.raises(AssertionError, match="I10"):
        step(broken(2, **out_of_order), answer)
    with pytest.raises(AssertionError, match="I10"):
        step_fetch(broken(1, **out_of_order), fetched())
    with pytest.raises(AssertionError, match="I33"):
        step(broken(2, in_sync_replicas=(1, 2)), ev.LagChecked(now_ms=0))


def fetched() -> ev.FollowerFetched:
    return ev.FollowerFetched(
        now_ms=0,
        replica_id=2,
        broker_epoch=None,
        current_leader_epoch=1,
        fetch_offset=END,
        last_fetched_epoch=1,
        eligible=True,
        log_start_offset=0,
    )
