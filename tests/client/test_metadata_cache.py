"""Which metadata a client accepts: no former leader, no former topic, and nothing that a broker does not know yet."""

import msgspec
import pytest

from minibroker.client.metadata_cache import FORMER_ID_MS, FORMER_IDS_MAX, Address, MetadataCache
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    CurrentLeader,
    MetadataBroker,
    MetadataPartition,
    MetadataResponse,
    MetadataTopic,
)

T0 = TopicPartition("t", 0)


def led_by(leader: int, epoch: int) -> MetadataPartition:
    return MetadataPartition(
        partition_index=0, leader_id=leader, leader_epoch=epoch, replica_nodes=[1, 2], isr_nodes=[1]
    )


def with_topic(*partitions: MetadataPartition, topic_id: str, error: ErrorCode = ErrorCode.NONE) -> MetadataResponse:
    topic = MetadataTopic(error_code=error, name="t", topic_id=topic_id, partitions=list(partitions))
    brokers = [MetadataBroker(node_id=1, host="h", port=1)]
    return MetadataResponse(brokers=brokers, cluster_id="c", controller_id=-1, topics=[topic])


def answer(leader: int, epoch: int, *, topic_id: str = "a") -> MetadataResponse:
    return with_topic(led_by(leader, epoch), topic_id=topic_id)


UNKNOWN = with_topic(topic_id="", error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def cache_with(*answers: MetadataResponse) -> MetadataCache:
    cache = MetadataCache()
    for number, response in enumerate(answers):
        cache.update(response, number)
    return cache


def test_an_older_leader_epoch_is_not_accepted() -> None:
    assert cache_with(answer(2, 5), answer(1, 4)).partition(T0).leader == 2


def test_an_update_of_the_same_epoch_is_accepted() -> None:
    assert cache_with(answer(2, 5), answer(-1, 5)).partition(T0).leader is None


def test_a_new_topic_id_starts_from_scratch() -> None:
    assert cache_with(answer(2, 5), answer(1, 0, topic_id="b")).partition(T0).leader == 1


def test_a_broker_that_knows_no_topics_does_not_erase_epochs() -> None:
    assert cache_with(answer(2, 5), UNKNOWN, answer(1, 4)).partition(T0).leader == 2


def test_an_error_without_partitions_stands_next_to_what_was_known() -> None:
    cache = cache_with(answer(2, 5), UNKNOWN)
    known = cache_with(answer(2, 5)).topics["t"]
    assert cache.topics["t"] == msgspec.structs.replace(known, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert cache.topic_id("t") == "a"
    assert cache_with(UNKNOWN).topic_id("t") is None


def test_an_error_with_partitions_brings_them() -> None:
    late = with_topic(led_by(1, 6), topic_id="a", error=ErrorCode.LEADER_NOT_AVAILABLE)
    cache = cache_with(answer(2, 5), late)
    assert cache.partition(T0).leader == 1
    assert cache.topics["t"].error is ErrorCode.LEADER_NOT_AVAILABLE


def test_an_answer_tells_brokers_cluster_and_controller_and_when_it_came() -> None:
    """Brokers are those of the last answer; the name of the cluster stays where an answer does not have one."""
    first = msgspec.structs.replace(answer(2, 5), controller_id=1, fenced=True)
    second = MetadataResponse(brokers=[MetadataBroker(node_id=2, host="i", port=3)], controller_id=-1, topics=[])
    cache = cache_with(first)
    assert (cache.controller_id, cache.is_from_fenced, cache.updated_at_ms, cache.version) == (1, True, 0, 1)
    cache.update(second, 7)
    assert (cache.controller_id, cache.is_from_fenced, cache.updated_at_ms, cache.version) == (None, False, 7, 2)
    assert (cache.cluster_id, cache.brokers) == ("c", {2: Address("i", 3)})
    assert cache.partition(T0).leader == 2, "topics that it does not name stay as they were"


def test_partitions_are_added_and_never_removed_while_the_id_stays() -> None:
    second = MetadataPartition(
        partition_index=1, leader_id=1, leader_epoch=0, replica_nodes=[2, 1], isr_nodes=[2], offline_replicas=[1]
    )
    cache = cache_with(with_topic(second, led_by(2, 5), topic_id="a"), answer(2, 5))
    assert list(cache.topics["t"].partitions) == [0, 1], "in their order"
    info = cache.partition(TopicPartition("t", 1))
    assert (info.leader, info.leader_epoch, info.replicas, info.isr, info.offline) == (1, 0, (2, 1), (2,), (1,))


@pytest.mark.parametrize(("told", "kept"), [([5], []), ([-3, 2**31 - 1], []), ([3, 1, 0, -1], [0, 1])])
def test_partitions_that_a_broker_does_not_number_from_0_on_are_left_out(told: list[int], kept: list[int]) -> None:
    """A producer that chose one by their count ended with a KeyError."""
    partitions = [msgspec.structs.replace(led_by(1, 0), partition_index=index) for index in told]
    assert list(cache_with(with_topic(*partitions, topic_id="a")).topics["t"].partitions) == kept


def test_a_former_id_is_refused_for_a_while_and_then_believed() -> None:
    cache = cache_with(answer(2, 5), answer(1, 0, topic_id="b"))
    for now_ms, expected in ((2.0, "b"), (FORMER_ID_MS, "b"), (1.0 + FORMER_ID_MS, "a")):
        cache.update(answer(2, 9), now_ms)
        assert cache.topic_id("t") == expected


def test_an_id_that_becomes_known_or_is_left_out_is_the_same_topic() -> None:
    for first, second in (("", "a"), ("a", "")):
        cache = cache_with(answer(2, 5, topic_id=first), answer(1, 4, topic_id=second))
        assert cache.partition(T0).leader == 2


def test_the_former_ids_that_are_remembered_have_a_limit() -> None:
    cache = cache_with(*(answer(1, 0, topic_id=f"{number}") for number in range(FORMER_IDS_MAX + 2)))
    for topic_id, expected in (("1", f"{FORMER_IDS_MAX + 1}"), ("0", "0")):
        cache.update(answer(1, 0, topic_id=topic_id), FORMER_IDS_MAX + 2)
        assert cache.topic_id("t") == expected, "the oldest one is forgotten first"


def test_a_former_id_that_was_named_again_is_remembered_anew() -> None:
    """A topic id that comes back and goes is the newest of the former ones."""
    cache, now_ms = MetadataCache(), 0.0
    for number in (*range(FORMER_IDS_MAX), 0):
        cache.update(answer(1, 0, topic_id=f"{number}"), now_ms)
        now_ms += 2 * FORMER_ID_MS
    for number in (FORMER_IDS_MAX, FORMER_IDS_MAX + 1):
        cache.update(answer(1, 0, topic_id=f"{number}"), now_ms)
    cache.update(answer(1, 0, topic_id="0"), now_ms)
    assert cache.topic_id("t") == f"{FORMER_IDS_MAX + 1}"


def test_a_partition_that_is_not_known_is_an_unknown_partition() -> None:
    info = cache_with(answer(1, 0)).partition(TopicPartition("t", 9))
    assert info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert info.leader is None


def test_a_hint_is_accepted_only_with_a_newer_epoch() -> None:
    cache = cache_with(answer(1, 5))
    assert not cache.apply_hint(T0, CurrentLeader(leader_id=2, leader_epoch=5), "a")
    assert not cache.apply_hint(T0, CurrentLeader(leader_id=2, leader_epoch=4), "a")
    assert not cache.apply_hint(T0, None, "a")
    assert cache.partition(T0).leader == 1
    assert cache.apply_hint(T0, CurrentLeader(leader_id=2, leader_epoch=6), "a")
    assert cache.partition(T0).leader == 2
    cache.update(answer(1, 5), 1)
    assert cache.partition(T0).leader == 2


def test_one_hint_is_accepted_until_metadata_is_fetched() -> None:
    """It is followed without a pause: a broker that named ever later epochs was asked without any."""
    cache = cache_with(answer(1, 5))
    assert cache.apply_hint(T0, CurrentLeader(leader_id=2, leader_epoch=6), "a")
    assert not cache.apply_hint(T0, CurrentLeader(leader_id=1, leader_epoch=7), "a")
    assert cache.partition(T0).leader_epoch == 6
    cache.update(answer(1, 5), 1)
    assert cache.apply_hint(T0, CurrentLeader(leader_id=1, leader_epoch=7), "a")


@pytest.mark.parametrize(
    ("known", "hint", "accepted"),
    [
        ((-1, 5), (2, 5), True),
        ((-1, 5), (-1, 5), False),
        ((-1, 5), (2, 4), False),
        ((1, 5), (-1, 6), True),
        ((-1, -1), (2, 0), True),
        ((1, 5), (2, -1), False),
        ((-1, -1), (2, -1), False),
    ],
)
def test_a_hint_names_a_leader_where_none_is_known(
    known: tuple[int, int], hint: tuple[int, int], accepted: bool
) -> None:
    cache = cache_with(answer(*known))
    before, version = cache.partition(T0), cache.version
    assert cache.apply_hint(T0, CurrentLeader(leader_id=hint[0], leader_epoch=hint[1]), "a") is accepted
    if accepted:
        assert cache.partition(T0) == msgspec.structs.replace(
            before, leader=None if hint[0] < 0 else hint[0], leader_epoch=hint[1], error=ErrorCode.NONE
        )
    else:
        assert cache.partition(T0) is before
    assert cache.version == version + accepted


@pytest.mark.parametrize("asked_for", ["a", ""])
def test_a_hint_about_a_deleted_topic_is_not_taken_for_the_next_one_of_its_name(asked_for: str) -> None:
    """Its epochs may be higher: no metadata of the next topic would be accepted any more. A request without an id does
    not tell which topic its answer is about."""
    cache, hint = cache_with(answer(2, 5), answer(1, 0, topic_id="b")), CurrentLeader(leader_id=3, leader_epoch=7)
    assert not cache.apply_hint(T0, hint, asked_for)
    assert (cache.partition(T0).leader, cache.partition(T0).leader_epoch) == (1, 0)
    assert cache.apply_hint(T0, hint, "b")


@pytest.mark.parametrize("partition", [TopicPartition("t", 9), TopicPartition("other", 0)])
def test_a_hint_about_a_partition_that_is_not_known_changes_nothing(partition: TopicPartition) -> None:
    cache = cache_with(answer(1, 5))
    version = cache.version
    assert not cache.apply_hint(partition, CurrentLeader(leader_id=2, leader_epoch=6), "a")
    assert cache.partition(partition).leader is None
    assert cache.version == version
