"""Which queue a key belongs to, and how long that is remembered."""

import random
from collections import deque

from minibroker.client.producer import producer_topic
from minibroker.client.producer.batches import Batch, PartitionQueue
from minibroker.client.producer.partitioner import Partitioner, murmur2_partitioner
from minibroker.client.producer.producer_topic import ProducerTopic
from minibroker.protocol.ids import TopicPartition


def topic_of(partitions: int, partitioner: Partitioner = murmur2_partitioner) -> ProducerTopic:
    topic = ProducerTopic("t", partitioner)
    grow(topic, partitions)
    return topic


def grow(topic: ProducerTopic, partitions: int) -> None:
    for index in range(len(topic.queues), partitions):
        topic.every_queue[index] = PartitionQueue(TopicPartition("t", index))
    topic.set_partitions(range(partitions))


def partition_of(topic: ProducerTopic, key: bytes) -> int:
    return (topic.queue_of_key.get(key) or topic.choose_queue(key)).topic_partition.partition


def test_a_known_key_is_looked_up() -> None:
    topic = topic_of(7)
    assert partition_of(topic, b"a") == murmur2_partitioner(b"a", 7)
    assert topic.queue_of_key[b"a"].topic_partition.partition == murmur2_partitioner(b"a", 7)


def test_when_partitions_are_added_keys_are_hashed_again() -> None:
    topic = topic_of(1)
    keys = [b"%d" % number for number in range(100)]
    assert {partition_of(topic, key) for key in keys} == {0}
    grow(topic, 5)
    assert [partition_of(topic, key) for key in keys] == [murmur2_partitioner(key, 5) for key in keys]


def test_a_partitioner_of_the_users_own_is_asked_for_each_record() -> None:
    asked: list[bytes] = []

    def in_turn(key: bytes, count: int) -> int:
        asked.append(key)
        return len(asked) % count

    topic = topic_of(3, in_turn)
    assert [partition_of(topic, b"same") for _ in range(4)] == [1, 2, 0, 1]


def test_the_number_of_remembered_keys_is_limited() -> None:
    topic = topic_of(2)
    for number in range(producer_topic.KEYS_REMEMBERED + 10):
        partition_of(topic, b"%d" % number)
    assert len(topic.queue_of_key) == 10


def test_the_bytes_of_remembered_keys_are_limited() -> None:
    """Of any size, they would take gigabytes, of which `buffer_memory` counts nothing."""
    topic = topic_of(7)
    longest = bytes(producer_topic.KEY_REMEMBERED_BYTES_MAX)
    for key in (longest, longest + b"x"):
        assert partition_of(topic, key) == murmur2_partitioner(key, 7)
    assert list(topic.queue_of_key) == [longest]


def test_a_partition_without_a_leader_gets_keyless_records_only_if_there_is_no_other() -> None:
    topic, rng = topic_of(4), random.Random(1)
    for led in ([], [2], [0, 3], [0, 1, 2, 3]):
        for index, queue in topic.queues.items():
            queue.leader = 1 if index in led else None
            queue.fresh = deque([Batch(queue, 1_000, 0, 0)] if index in led else [])
        chosen = {topic.choose_sticky(rng).topic_partition.partition for _ in range(100)}
        assert chosen == set(led or topic.queues)


def test_of_two_partitions_the_one_with_fewer_waiting_batches_gets_keyless_records() -> None:
    topic, rng = topic_of(2), random.Random(1)
    for queue in topic.queues.values():
        queue.leader = 1
    for waiting in ("fresh", "attempted"):
        batches = getattr(topic.queues[0], waiting)
        batches.append(Batch(topic.queues[0], 1_000, 0, 0))
        chosen = [topic.choose_sticky(rng).topic_partition.partition for _ in range(200)]
        assert topic.sticky is topic.queues[chosen[-1]]
        assert 20 < chosen.count(0) < 80, "where both draws are the same"
        batches.clear()
