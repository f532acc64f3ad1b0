"""The topics that a producer knows: it learns them, and new partitions, from the cluster's metadata.

Owns: adding topics and partitions to the producer's dictionary of topics, and the wait for one that is not known yet.
Leaves to others: which partition a record gets (`producer_topic`), and the metadata itself (`cluster`)."""

from collections.abc import Callable

from minibroker.client.cluster import Cluster
from minibroker.client.errors import (
    BufferTimedOut,
    CallTimedOut,
    ClusterUnreachable,
    InvalidCall,
    MinibrokerError,
    Where,
    broker_error,
)
from minibroker.client.limits import Deadline
from minibroker.client.producer.batches import PartitionQueue
from minibroker.client.producer.partitioner import Partitioner
from minibroker.client.producer.producer_settings import ProducerSettings
from minibroker.client.producer.producer_topic import ProducerTopic
from minibroker.client.producer.sender import Sender
from minibroker.client.topics import known_topic
from minibroker.protocol.counted import counted
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition


class ProducerMetadata:
    """Adds to `topics`, the dictionary of the producer, in which it looks up the topic of each record."""

    def __init__(
        self,
        topics: dict[str, ProducerTopic],
        cluster: Cluster,
        sender: Sender,
        partitioner: Partitioner,
        settings: ProducerSettings,
        check_open: Callable[[], None],
        check_owner: Callable[[], None],
    ) -> None:
        """`check_open` raises ClientClosed, `check_owner` if another event loop or thread calls."""
        self._topics = topics
        self._cluster = cluster
        self._sender = sender
        self._partitioner = partitioner
        self._settings = settings
        self._check_open = check_open
        self._check_owner = check_owner
        cluster.add_listener(self._learn)

    async def topic(self, name: str, deadline: Deadline) -> ProducerTopic:
        """The topic, once its partitions are known. Raises BufferTimedOut, UnknownTopicOrPartition, ClientClosed."""
        self._check_open()
        if name not in self._topics:
            try:
                await known_topic(self._cluster, name, deadline)
            except (CallTimedOut, ClusterUnreachable) as error:
                raise self._stayed_unknown(f"topic {name!r}", error) from error
            self._check_open()
            self._learn()
        return self._topics[name]

    async def topic_with(self, name: str, partition: int | None, deadline: Deadline) -> ProducerTopic:
        """The topic, which has this partition. Raises as `topic`."""
        state = await self.topic(name, deadline)
        if partition is not None and not isinstance(partition, int):
            raise InvalidCall(f"{partition!r:.80} is not a partition number of topic {name!r}")
        if partition is not None and partition not in state.queues:
            await self._refresh(TopicPartition(name, partition), deadline)  # partitions may have been added
            if partition not in state.queues:
                where = Where(topic_partition=TopicPartition(name, partition))
                raise broker_error(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    where,
                    f"the topic has {counted(state.partition_count, 'partition')}, numbered from 0",
                )
        return state

    async def _refresh(self, wanted: TopicPartition, deadline: Deadline) -> None:
        while True:
            try:
                return await self._cluster.refresh(deadline)
            except (CallTimedOut, ClusterUnreachable) as error:
                if deadline.passed:
                    raise self._stayed_unknown(str(wanted), error) from error

    def _stayed_unknown(self, what: str, error: MinibrokerError) -> BufferTimedOut:
        return BufferTimedOut(f"{what} stayed unknown for {self._settings.max_block_ms} ms", error)

    def _learn(self) -> None:
        """Add new topics and new partitions."""
        for name, info in self._cluster.metadata.topics.items():
            if not info.partitions:
                continue
            topic = self._topics.get(name)
            if topic is None:
                topic = ProducerTopic(name, self._partitioner)
            for index in info.partitions:
                if index not in topic.every_queue:
                    queue = topic.every_queue[index] = PartitionQueue(TopicPartition(name, index), self._check_owner)
                    self._sender.add_queue(queue)
            topic.set_partitions(info.partitions.keys())
            if name not in self._topics or not topic.has(topic.sticky.topic_partition.partition):
                topic.choose_sticky(self._cluster.runtime.random)
                self._topics[name] = topic
