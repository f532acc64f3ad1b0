"""The plan of a new topic, and why it is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.controller.core.controller_state import ControllerState, Deletion, Topic
from minibroker.controller.core.topic_creation import (
    PARTITIONS_PER_REQUEST_MAX,
    TopicDraw,
    TopicRefusal,
    plan_topic,
    spread,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import TOPICS_MAX, CreatableAssignment, CreatableTopic
from minibroker.protocol.wire.response_limits import ANSWER_PARTITIONS_MAX
from tests.controller.facts import cluster_state, leadership

DRAW = TopicDraw(topic_id="new", first_broker=0, shift=0)


def accept_value(name: str, value: str) -> str:
    if name == "bad":
        raise ValueError(f"{name}={value} makes no sense")
    return value.strip()


def planned(requested: CreatableTopic, state: ControllerState | None = None) -> Topic | TopicRefusal:
    return plan_topic(state or cluster_state(1, 2, 3, now=leadership(1, 1)), requested, accept_value, DRAW)


def refused(requested: CreatableTopic, state: ControllerState | None = None) -> ErrorCode:
    plan = planned(requested, state)
    assert isinstance(plan, TopicRefusal), plan
    assert plan.message
    return plan.code


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_legal_names(name: str) -> None:
    assert isinstance(planned(CreatableTopic(name=name)), Topic)


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "a\n", "x" * 250])
def test_illegal_names(name: str) -> None:
    assert refused(CreatableTopic(name=name)) is ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_name_is_taken_until_its_deletion_has_ended() -> None:
    state = cluster_state(1)
    assert refused(CreatableTopic(name="lines"), state) is ErrorCode.TOPIC_ALREADY_EXISTS
    state.deletions = {"lines": Deletion()}
    assert refused(CreatableTopic(name="lines"), state) is ErrorCode.TOPIC_ALREADY_EXISTS


@pytest.mark.parametrize("partitions", [0, -2, PARTITIONS_PER_REQUEST_MAX + 1])
def test_impossible_numbers_of_partitions(partitions: int) -> None:
    assert refused(CreatableTopic(name="t", num_partitions=partitions)) is ErrorCode.INVALID_PARTITIONS


def test_one_request_creates_a_limited_number_of_partitions() -> None:
    requested = CreatableTopic(name="t", num_partitions=500)
    state = cluster_state(1, 2, 3)
    assert isinstance(plan_topic(state, requested, accept_value, DRAW, PARTITIONS_PER_REQUEST_MAX - 500), Topic)
    refusal = plan_topic(state, requested, accept_value, DRAW, PARTITIONS_PER_REQUEST_MAX - 499)
    assert isinstance(refusal, TopicRefusal)
    cure = "all its topics together: ask for fewer, or for the topics in several requests"
    assert refusal.message.endswith(cure)


@pytest.mark.parametrize(
    ("topics", "partitions", "code"),
    [
        (TOPICS_MAX - 1, 1, None),
        (TOPICS_MAX, 1, ErrorCode.INVALID_REQUEST),
        (ANSWER_PARTITIONS_MAX // 100 - 1, 100, None),
        (ANSWER_PARTITIONS_MAX // 100, 100, ErrorCode.INVALID_PARTITIONS),
    ],
)
def test_a_cluster_has_no_more_than_one_answer_may_list(topics: int, partitions: int, code: ErrorCode | None) -> None:
    """The topic behind that was created, and from then on no client could list topics: `status`, `doctor`, `top` and
    `topic list` all ended with an answer that cannot be read."""
    assignment: dict[int, tuple[int, ...]] = dict.fromkeys(range(partitions), (1,))
    state = cluster_state(1, 2, 3)
    state.topics = {f"t{number}": Topic(topic_id=f"{number}", assignment=assignment) for number in range(topics)}
    plan = planned(CreatableTopic(name="next", num_partitions=min(partitions, 100)), state)
    assert (plan.code if isinstance(plan, TopicRefusal) else None) is code
    assert not isinstance(plan, TopicRefusal) or "delete topics that are not used" in plan.message


def test_an_assignment_counts_like_a_number_of_partitions() -> None:
    listed = [CreatableAssignment(partition_index=index, broker_ids=[1]) for index in range(2_001)]
    assert refused(CreatableTopic(name="t", assignments=listed)) is ErrorCode.INVALID_PARTITIONS


@pytest.mark.parametrize("factor", [0, -2, 4])
def test_impossible_replication_factors(factor: int) -> None:
    assert refused(CreatableTopic(name="t", replication_factor=factor)) is ErrorCode.INVALID_REPLICATION_FACTOR


def test_brokers_that_shut_down_get_no_new_replicas() -> None:
    state = cluster_state(1, 2, 3, shutting_down=(2,))
    assert refused(CreatableTopic(name="t", replication_factor=3), state) is ErrorCode.INVALID_REPLICATION_FACTOR
    plan = planned(CreatableTopic(name="t", num_partitions=4, replication_factor=2), state)
    assert isinstance(plan, Topic)
    assert {each for replicas in plan.assignment.values() for each in replicas} == {1, 3}


def test_settings_are_checked() -> None:
    assert refused(CreatableTopic(name="t", configs={"bad": "1"})) is ErrorCode.INVALID_CONFIG
    plan = planned(CreatableTopic(name="t", configs={"good": "1"}))
    assert isinstance(plan, Topic)
    assert (plan.topic_id, plan.configs) == ("new", {"good": "1"})


def assigned(*replicas: list[int], first: int = 0) -> CreatableTopic:
    assignments = [
        CreatableAssignment(partition_index=first + number, broker_ids=each) for number, each in enumerate(replicas)
    ]
    return CreatableTopic(name="t", assignments=assignments)


def test_given_assignment_is_taken_as_it_is() -> None:
    plan = planned(assigned([3, 1], [1, 2]))
    assert isinstance(plan, Topic)
    assert plan.assignment == {0: (3, 1), 1: (1, 2)}


@pytest.mark.parametrize(
    "requested",
    [assigned([1, 2], [3]), assigned([1, 1]), assigned([4]), assigned([]), assigned([1], first=1)],
    ids=["uneven", "twice", "unknown-broker", "empty", "gap"],
)
def test_impossible_assignments_are_refused(requested: CreatableTopic) -> None:
    assert refused(requested) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_given_assignment_excludes_numbers() -> None:
    assignment = [CreatableAssignment(partition_index=0, broker_ids=[1])]
    requested = CreatableTopic(name="t", num_partitions=1, assignments=assignment)
    assert refused(requested) is ErrorCode.INVALID_REQUEST


def test_replicas_are_spread_as_in_kafka() -> None:
    """The example of Kafka's AdminUtils: five brokers, ten partitions, three replicas."""
    found = spread([0, 1, 2, 3, 4], 10, 3, DRAW)
    rows = [found[number] for number in range(10)]
    assert rows[:5] == [(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1)]
    assert rows[5:] == [(0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2)]
    shifted = spread([0, 1, 2, 3, 4], 3, 2, TopicDraw(topic_id="t", first_broker=3, shift=0))
    assert list(shifted.values()) == [(3, 4), (4, 0), (0, 1)], "from the drawn broker on"


@given(st.integers(1, 7), st.integers(1, 40), st.integers(0, 20), st.integers(0, 20), st.data())
def test_replicas_are_distinct_and_leaders_even(
    brokers: int, partitions: int, first: int, shift: int, data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, brokers))
    found = spread(list(range(brokers)), partitions, factor, TopicDraw(topic_id="t", first_broker=first, shift=shift))
    assert all(len(set(replicas)) == factor for replicas in found.values())
    led = [[replicas[0] for replicas in found.values()].count(each) for each in range(brokers)]
    assert max(led) - min(led) <= 1
