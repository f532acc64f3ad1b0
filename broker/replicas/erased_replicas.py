"""Replicas deleted during this registration of the broker, so that a late request does not create them again.

Owns: the list of them. A request sent before the deletion may arrive after it, on a connection that its sender has
given up: it would create an empty log, which leads or follows as the request demands. A request is only valid for the
registration it was sent to, so the list is kept in memory only.
"""

from minibroker.protocol.ids import TopicPartition

REPLICAS_MAX = 10_000
"""As many as one request may name; the oldest are dropped, which is safe: a request is late by seconds."""


class ErasedReplicas:
    """By topic id: a topic that is created again under the same name has another id."""

    def __init__(self) -> None:
        self._erased: dict[tuple[str, TopicPartition], None] = {}

    def note(self, topic_id: str, partition: TopicPartition) -> None:
        if topic_id:
            self._erased[topic_id, partition] = None
            if len(self._erased) > REPLICAS_MAX:
                del self._erased[next(iter(self._erased))]

    def __contains__(self, replica: tuple[str, TopicPartition]) -> bool:
        return replica in self._erased
