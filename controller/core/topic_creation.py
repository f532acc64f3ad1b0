"""The plan of a new topic, or why it cannot be created. Pure.

Owns: the checks of CreateTopics and the spreading of replicas over brokers. Leaves to others: ZooKeeper, and which
settings exist (the caller's `accept_value`).
"""

from collections.abc import Callable

import msgspec

from minibroker.controller.core.controller_state import ControllerState, Topic
from minibroker.controller.core.deletion import waiting_for
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import NONE, TOPIC_NAME_MAX_LENGTH, BrokerId, is_topic_name
from minibroker.protocol.wire.messages import TOPICS_MAX, CreatableTopic
from minibroker.protocol.wire.response_limits import ANSWER_PARTITIONS_MAX

PARTITIONS_PER_REQUEST_MAX = 2_000
"""Limit of one CreateTopics, all its topics together. A controller does one thing after the other: until these states
are in ZooKeeper, which takes about half a second, no failed leader is replaced."""

AcceptValue = Callable[[str, str], str]
"""(name, value) -> the value as it is stored and reported, never as the client wrote it. Raises ValueError with what is
wrong with it."""


class TopicRefusal(msgspec.Struct, frozen=True):
    """Why a request about a topic or its settings is refused."""

    code: ErrorCode
    message: str


class TopicDraw(msgspec.Struct, frozen=True, kw_only=True):
    """The random choices for a new topic."""

    topic_id: str
    first_broker: int
    """The broker that gets the first leader; any non-negative number."""
    shift: int
    """Distance of the second replica from the first; any non-negative number."""


def exists_already(topic: str) -> str:
    return f"topic {topic} exists already: choose another name (`topic create --if-not-exists` accepts this one)"


def plan_topic(
    state: ControllerState, requested: CreatableTopic, accept_value: AcceptValue, draw: TopicDraw, planned: int = 0
) -> Topic | TopicRefusal:
    """The topic as it would be created now. `planned`: partitions of the topics before it in the same request."""
    if not is_topic_name(requested.name):
        text = (
            f"topic name {requested.name!r}: up to {TOPIC_NAME_MAX_LENGTH} of a-z A-Z 0-9 . _ -, and neither . nor .."
        )
        return TopicRefusal(ErrorCode.INVALID_TOPIC_EXCEPTION, text)
    if requested.name in state.deletions:
        return TopicRefusal(
            ErrorCode.TOPIC_ALREADY_EXISTS,
            f"topic {requested.name} is still being deleted{waiting_for(state, requested.name)}",
        )
    if requested.name in state.topics:
        return TopicRefusal(ErrorCode.TOPIC_ALREADY_EXISTS, exists_already(requested.name))
    try:
        configs = {name: accept_value(name, requested.configs[name]) for name in sorted(requested.configs)}
    except ValueError as problem:
        return TopicRefusal(ErrorCode.INVALID_CONFIG, str(problem))
    partitions = _partitions_wanted(state, requested)
    if planned + partitions > PARTITIONS_PER_REQUEST_MAX:
        others = f" after {planned} of the topics before it" if planned else ""
        text = (
            f"topic {requested.name}: {partitions} partitions{others}: one request creates {PARTITIONS_PER_REQUEST_MAX}"
            " at most, all its topics together: ask for fewer, or for the topics in several requests"
        )
        return TopicRefusal(ErrorCode.INVALID_PARTITIONS, text)
    if (refusal := _beyond_one_answer(state, requested.name, partitions)) is not None:
        return refusal
    assignment = (
        _given_assignment(state, requested) if requested.assignments else _spread_assignment(state, requested, draw)
    )
    if isinstance(assignment, TopicRefusal):
        return assignment
    return Topic(topic_id=draw.topic_id, assignment=assignment, configs=configs)


def _beyond_one_answer(state: ControllerState, name: str, partitions: int) -> TopicRefusal | None:
    """No client could list the topics of the cluster any more: no answer names so many."""
    cure = "no answer can list more: delete topics that are not used"
    if len(state.topics) >= TOPICS_MAX:
        return TopicRefusal(ErrorCode.INVALID_REQUEST, f"topic {name}: there are {TOPICS_MAX} topics, and {cure}")
    there = sum(len(topic.assignment) for topic in state.topics.values())
    if there + partitions > ANSWER_PARTITIONS_MAX:
        text = f"topic {name}: {partitions} partitions beside {there} of other topics are more than"
        return TopicRefusal(ErrorCode.INVALID_PARTITIONS, f"{text} {ANSWER_PARTITIONS_MAX}, and {cure}")
    return None


def spread(
    brokers: list[BrokerId], partitions: int, replication_factor: int, draw: TopicDraw
) -> dict[int, tuple[BrokerId, ...]]:
    """Leaders go round the brokers; the distance of their followers grows with each round, so that all other brokers
    share what one broker leads when it fails (as in Kafka's AdminUtils)."""
    count = len(brokers)
    assert 1 <= replication_factor <= count
    found = {}
    for partition in range(partitions):
        first = (partition + draw.first_broker) % count
        shift = draw.shift + partition // count
        others = [(first + 1 + (shift + number) % (count - 1)) % count for number in range(replication_factor - 1)]
        found[partition] = tuple(brokers[index] for index in (first, *others))
    return found


def _available(state: ControllerState) -> list[BrokerId]:
    return sorted(each for each in state.brokers if each not in state.shutting_down)


def _partitions_wanted(state: ControllerState, requested: CreatableTopic) -> int:
    if requested.assignments:
        return len(requested.assignments)
    return state.settings.default_partitions if requested.num_partitions == NONE else requested.num_partitions


def _spread_assignment(
    state: ControllerState, requested: CreatableTopic, draw: TopicDraw
) -> dict[int, tuple[BrokerId, ...]] | TopicRefusal:
    partitions = _partitions_wanted(state, requested)
    factor = (
        state.settings.default_replication_factor
        if requested.replication_factor == NONE
        else requested.replication_factor
    )
    if partitions < 1:
        return TopicRefusal(ErrorCode.INVALID_PARTITIONS, f"{partitions} partitions: it must be at least 1")
    if factor < 1:
        return TopicRefusal(ErrorCode.INVALID_REPLICATION_FACTOR, f"replication factor {factor}: it must be at least 1")
    brokers = _available(state)
    if factor > len(brokers):
        text = f"replication factor {factor} needs {factor} live brokers; live are {brokers}"
        return TopicRefusal(ErrorCode.INVALID_REPLICATION_FACTOR, text)
    return spread(brokers, partitions, factor, draw)


def _given_assignment(
    state: ControllerState, requested: CreatableTopic
) -> dict[int, tuple[BrokerId, ...]] | TopicRefusal:
    given = {each.partition_index: tuple(each.broker_ids) for each in requested.assignments}
    if requested.num_partitions != NONE or requested.replication_factor != NONE:
        text = "with an assignment, leave out the number of partitions and the replication factor"
        return TopicRefusal(ErrorCode.INVALID_REQUEST, text)
    problem = None
    if len(given) != len(requested.assignments) or sorted(given) != list(range(len(given))):
        problem = f"partitions must be 0 to {len(requested.assignments) - 1}, each once"
    elif len({len(replicas) for replicas in given.values()}) != 1:
        problem = "all partitions need the same number of replicas"
    elif not all(replicas and len(set(replicas)) == len(replicas) for replicas in given.values()):
        problem = "a partition needs replicas, each on another broker"
    else:
        unknown = sorted({each for replicas in given.values() for each in replicas if each not in state.brokers})
        if unknown:
            problem = f"brokers {unknown} are not live"
    if problem is not None:
        return TopicRefusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"assignment of topic {requested.name}: {problem}")
    return {number: given[number] for number in sorted(given)}
