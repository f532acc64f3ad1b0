"""A producer's state of one topic: its queues, and the partition that takes keyless records now. Pure."""

import random
from collections.abc import Collection

from minibroker.client.errors import InvalidCall
from minibroker.client.producer.batches import PartitionQueue
from minibroker.client.producer.partitioner import Partitioner, murmur2_partitioner

KEYS_REMEMBERED = 16_384
"""Keys remembered per topic: keys repeat, and a lookup is thirty times cheaper than the hash. At this number all are
forgotten at once, because it is not known which of them come again."""
KEY_REMEMBERED_BYTES_MAX = 256
"""Longer keys are hashed each time: remembered, they would take up to 16 GiB, of which buffer_memory counts nothing."""


class ProducerTopic:
    """The queues of one topic, by partition."""

    __slots__ = ("_partitioner", "every_queue", "name", "partition_count", "queue_of_key", "queues", "sticky")

    def __init__(self, name: str, partitioner: Partitioner) -> None:
        self.name = name
        self._partitioner = partitioner
        self.queues: dict[int, PartitionQueue] = {}
        self.every_queue: dict[int, PartitionQueue] = {}
        """Also of partitions that went when the topic was made again: one of that number continues its queue."""
        self.partition_count = 0
        self.sticky: PartitionQueue
        """Keyless records go to this partition until its batch is full or sent (KIP-480)."""

        self.queue_of_key: dict[bytes, PartitionQueue] = {}
        """The queues of recent keys; `choose_queue` returns those of other keys."""

    def set_partitions(self, indexes: Collection[int]) -> None:
        """The topic has these partitions, each with a queue in `every_queue`. Keys may go to other ones from now on. A
        topic that was made again may have fewer."""
        if indexes != self.queues.keys():
            self.queues = {index: self.every_queue[index] for index in sorted(indexes)}
            self.partition_count = len(self.queues)
            self.queue_of_key.clear()

    def choose_queue(self, key: bytes) -> PartitionQueue:
        """The queue for records with this key. A partitioner of the user is called each time."""
        index = self._partitioner(key, self.partition_count)
        queue = self.queues.get(index)
        if queue is None:
            raise InvalidCall(
                f"partitioner returned {index!r:.80}; topic {self.name!r} has partitions {[*self.queues]}"
            )
        if self._partitioner is murmur2_partitioner and len(key) <= KEY_REMEMBERED_BYTES_MAX:
            if len(self.queue_of_key) >= KEYS_REMEMBERED:
                self.queue_of_key.clear()
            self.queue_of_key[key] = queue
        return queue

    def has(self, partition: int | None) -> bool:
        """Whether the partition exists; None means any partition."""
        return partition is None or partition in self.queues

    def choose_sticky(self, rng: random.Random) -> PartitionQueue:
        """The next partition for keyless records: of two chosen at random the one with fewer waiting batches, so that a
        slow broker gets less; a partition without a leader only if there is no other."""
        first, second = self._draw(rng), self._draw(rng)
        if first.leader is None or second.leader is None:
            led = [queue for queue in self.queues.values() if queue.leader is not None]
            if led:
                first, second = led[rng.randrange(len(led))], led[rng.randrange(len(led))]
        self.sticky = min(first, second, key=lambda queue: len(queue.fresh) + len(queue.attempted))
        return self.sticky

    def _draw(self, rng: random.Random) -> PartitionQueue:
        return self.queues[rng.randrange(len(self.queues))]
