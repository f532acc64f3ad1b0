"""The deletion of a topic, from the answers of brokers to the end: only answers about this topic count."""

from __future__ import annotations

import copy

import pytest
from msgspec.structs import replace

from minibroker.controller.core.broker_answers import events_of
from minibroker.controller.core.control_requests import StopReplica, UpdateMetadata
from minibroker.controller.core.controller_state import ControllerState, Deletion
from minibroker.controller.core.deletion import resume
from minibroker.controller.core.events import (
    BeginDeletion,
    ControllerEffect,
    DeletionBegun,
    DeletionsRequested,
    EraseTopic,
    LeadershipsWritten,
    RegistrationsChanged,
    ReplicasFailed,
    Report,
    Send,
    TookOver,
    WriteLeaderships,
)
from minibroker.controller.core.steps import step
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    LEADER_DURING_DELETE,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    StopReplicaTopic,
)
from tests.controller.facts import T0, broker, cluster_state, leadership

BEGUN = Deletion(is_started=True, is_recorded=True)


def deleting(deletion: Deletion | None) -> ControllerState:
    """The topic `lines` of id t1 has one partition, with replicas on brokers 1, 2 and 3."""
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    state.deletions = {} if deletion is None else {"lines": deletion}
    return state


def answered(
    state: ControllerState,
    broker_id: int,
    code: ErrorCode = ErrorCode.NONE,
    *,
    topic_id: str = "t1",
    delete: bool = True,
) -> list[ControllerEffect]:
    """The broker answers the order to stop its replica of `lines`."""
    partition = StopReplicaPartition(partition_index=0, leader_epoch=-2, delete_partition=delete)
    request = StopReplicaRequest(
        controller_id=1,
        controller_epoch=2,
        broker_epoch=10 * broker_id,
        topic_states=[StopReplicaTopic(topic_name="lines", topic_id=topic_id, partition_states=[partition])],
    )
    error = PartitionError(topic_name="lines", partition_index=0, error_code=code)
    response = StopReplicaResponse(partition_errors=[error] if code else [])
    return [effect for event in events_of(broker(broker_id), request, response) for effect in step(state, event)]


@pytest.mark.parametrize("is_deleting", [True, False])
@pytest.mark.parametrize("is_unreadable", [True, False])
def test_a_replica_that_fails_ends_no_epoch_of_a_partition_that_is_left_alone(
    is_deleting: bool, is_unreadable: bool
) -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2))
    state.deletions = {"lines": BEGUN} if is_deleting else {}
    state.unreadable = frozenset([T0] if is_unreadable else [])
    effects = step(state, ReplicasFailed(broker_id=3, broker_epoch=30, partitions=(T0,)))
    writes = [each for each in effects if isinstance(each, WriteLeaderships)]
    assert bool(writes) is not (is_deleting or is_unreadable)


@pytest.mark.invariant("I35")
def test_no_replica_is_deleted_before_zookeeper_knows_that_the_deletion_has_begun() -> None:
    """The next controller would elect leaders again, among replicas of which some are gone."""
    state = deleting(None)
    step(state, DeletionsRequested(topics=("lines",)))
    assert resume(state) == [], "a broker that comes meanwhile changes nothing"
    assert [each for each in step(state, DeletionBegun(topic="lines")) if isinstance(each, Send)]
    assert resume(state) != []


def leaders_told(effects: list[ControllerEffect]) -> set[int]:
    orders = [order for each in effects if isinstance(each, Send) for order in each.orders]
    return {each.content.leader for each in orders if isinstance(each, UpdateMetadata)}


@pytest.mark.invariant("I35")
def test_no_broker_is_to_forget_a_topic_before_zookeeper_knows_that_its_deletion_has_begun() -> None:
    """A broker that has forgotten a topic id learns nothing of it any more. The next controller may take the topic for
    one that still waits, while a replica's broker is away: clients would be told that there is no such topic."""
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    state.deletions = {"lines": Deletion()}
    effects = step(state, TookOver())
    assert BeginDeletion(topic="lines") in effects
    assert leaders_told(effects) == {1}
    assert leaders_told(step(state, DeletionBegun(topic="lines"))) == {LEADER_DURING_DELETE}

    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    state.deletions = {"lines": Deletion()}
    now = {1: broker(1, epoch=11, incarnation="new"), 2: broker(2), 3: broker(3)}
    effects = step(state, RegistrationsChanged(brokers=now))
    assert BeginDeletion(topic="lines") in effects
    (change,) = (change for each in effects if isinstance(each, WriteLeaderships) for change in each.changes)
    written = replace(change, after=replace(change.after, partition_epoch=8))
    assert leaders_told(step(state, LeadershipsWritten(written=(written,)))) == {2}


def test_a_marker_of_a_deletion_under_way_holds_up_no_later_one() -> None:
    state = deleting(BEGUN)
    effects = step(state, DeletionsRequested(topics=("lines", "missing")))
    assert [each.topic for each in effects if isinstance(each, EraseTopic)] == ["missing"]


@pytest.mark.invariant("I35")
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION])
def test_a_topic_is_erased_once_every_replica_is_gone(code: ErrorCode) -> None:
    state = deleting(BEGUN)
    assert answered(state, 1) == answered(state, 2) == []
    assert answered(state, 3, code) == [EraseTopic(topic="lines", partitions=(0,))]
    assert answered(state, 3, code) == [], "the same order, sent twice"


@pytest.mark.invariant("I35")
def test_a_replica_that_could_not_be_deleted_is_not_gone() -> None:
    state = deleting(BEGUN)
    answered(state, 1)
    answered(state, 2)
    assert all(isinstance(each, Report) for each in answered(state, 3, ErrorCode.KAFKA_STORAGE_ERROR))
    assert state.deletions["lines"].erased == {(0, 1), (0, 2)}


@pytest.mark.invariant("I35")
@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR])
@pytest.mark.parametrize(
    ("deletion", "topic_id"),
    [
        (None, "t1"),
        (Deletion(), "t1"),
        (BEGUN, "t0"),
    ],
    ids=["it is over", "it waits", "it is of a later topic of the name"],
)
def test_a_late_answer_does_not_count(deletion: Deletion | None, topic_id: str, code: ErrorCode) -> None:
    """Orders are sent twice: a broker may answer the second one when the topic is gone, or another has its name."""
    state = deleting(deletion)
    before = copy.deepcopy(state)
    assert [effect for each in (1, 2, 3) for effect in answered(state, each, code, topic_id=topic_id)] == []
    assert state == before


@pytest.mark.invariant("I35")
def test_a_replica_that_was_only_stopped_is_not_gone() -> None:
    state = deleting(BEGUN)
    assert answered(state, 3, delete=False) == []
    assert state.deletions["lines"] == BEGUN


@pytest.mark.parametrize(
    ("live", "erased", "asked"),
    [
        ((1, 2, 3), (), [1, 2, 3]),
        ((1, 3), (), [1, 3]),
        ((1, 2, 3), (2,), [1, 3]),
        ((1, 2), (2,), [1]),
        ((2,), (2,), []),
    ],
)
def test_the_live_brokers_that_have_not_confirmed_it_are_told_to_delete(
    live: tuple[int, ...], erased: tuple[int, ...], asked: list[int]
) -> None:
    state = cluster_state(*live, now=leadership(None, 1, 2, 3))
    deletion = Deletion(is_started=True, erased=frozenset((0, broker_id) for broker_id in erased))
    state.deletions = {"lines": deletion}
    effects = step(state, DeletionBegun(topic="lines"))
    orders = [
        (effect.broker_id, order.content.delete_partition)
        for effect in effects
        if isinstance(effect, Send)
        for order in effect.orders
        if isinstance(order, StopReplica)
    ]
    assert orders == [(broker_id, True) for broker_id in asked]
