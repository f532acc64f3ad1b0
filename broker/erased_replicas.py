"""Replicas that this registration of the broker has deleted, so that a late order does not make them again.

Owns: the memory of them. An order that was sent before the deletion may arrive after it, on a connection that its
sender has given up: it would make an empty log, which leads or follows as the order says. No order outlives the
registration it was meant for, so this is kept in memory alone.
"""

from minibroker.protocol.ids import TopicPartition

REPLICAS_MAX = 10_000
"""As many as one order may name; the oldest are forgotten. A late order is late by seconds."""


class ErasedReplicas:
    """By topic id: a topic that is made again under its name has another one."""

    def __init__(self) -> None:
        self._erased: dict[tuple[str, TopicPartition], None] = {}

    def note(self, topic_id: str, partition: TopicPartition) -> None:
        if topic_id:
            self._erased[topic_id, partition] = None
            if len(self._erased) > REPLICAS_MAX:
                del self._erased[next(iter(self._erased))]

    def __contains__(self, replica: tuple[str, TopicPartition]) -> bool:
        return replica in self._erased
