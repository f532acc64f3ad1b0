"""What a producer keeps of one topic: its queues, and the partition that takes keyless records now. Pure."""

import random

from minibroker.client.accumulator import PartitionQueue


class ProducerTopic:
    """The queues of one topic, by partition."""

    __slots__ = ("name", "partition_count", "queues", "sticky")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queues: dict[int, PartitionQueue] = {}
        self.partition_count = 0
        self.sticky: PartitionQueue
        """Keyless records go there until its batch is full or sent (KIP-480)."""

    def has(self, partition: int | None) -> bool:
        """Whether records may go there; None means anywhere."""
        return partition is None or partition in self.queues

    def choose_sticky(self, rng: random.Random) -> PartitionQueue:
        """The next partition for keyless records: of two drawn at random the one with less waiting, so that a slow
        broker gets less; partitions without a leader only if there is no other."""
        first, second = self._draw(rng), self._draw(rng)
        if first.leader is None or second.leader is None:
            led = [queue for queue in self.queues.values() if queue.leader is not None]
            if led:
                first, second = led[rng.randrange(len(led))], led[rng.randrange(len(led))]
        self.sticky = min(first, second, key=lambda queue: len(queue.fresh) + len(queue.attempted))
        return self.sticky

    def _draw(self, rng: random.Random) -> PartitionQueue:
        return self.queues[rng.randrange(len(self.queues))]
