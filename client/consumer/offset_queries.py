"""A consumer's questions about partitions, assigned or not, and their offsets, and what leaders tell by the way."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import Never

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.fetch_answer import AnswerCallback
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.errors import WrongArguments
from minibroker.client.limits import CALL_TIMEOUT_MS, Deadline, as_partition, check_at_least, check_timestamp
from minibroker.client.offsets import OffsetAndTimestamp, list_ends, list_offsets
from minibroker.client.public_client import PublicClient
from minibroker.client.topics import known_topic
from minibroker.protocol.ids import Offset, TopicPartition
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP


class OffsetQueries(PublicClient):
    """Part of the consumer."""

    _cluster: Cluster
    _fetcher: Fetcher

    @abstractmethod
    def _check_open(self) -> None: ...

    def __iter__(self) -> Never:
        raise WrongArguments("use `async for record in consumer`: reading waits for records")

    def add_answer_callback(self, callback: AnswerCallback) -> None:
        """Have `callback(answer)` called with each FetchAnswer from now on, also with those without records, before
        `getmany` and the others return what it brought. It must not raise an error."""
        self._check_open()
        self._fetcher.answer_callbacks.append(callback)

    async def partitions_for(self, topic: str, timeout_ms: float = CALL_TIMEOUT_MS) -> list[int]:
        """The numbers of a topic's partitions. Raises UnknownTopicOrPartition."""
        self._check_open()
        return list((await known_topic(self._cluster, topic, Deadline(timeout_ms))).partitions)

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[TopicPartition, Offset]:
        """The log start offset of each partition."""
        return await self._list_offsets(partitions, EARLIEST_TIMESTAMP, timeout_ms)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[TopicPartition, Offset]:
        """The offset after the last committed record (the high watermark) of each partition."""
        return await self._list_offsets(partitions, LATEST_TIMESTAMP, timeout_ms)

    async def offsets_for_times(
        self, timestamps_ms: dict[TopicPartition, int], timeout_ms: float = CALL_TIMEOUT_MS
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each partition that is not older than its timestamp; None if all records are older."""
        self._check_open()
        for timestamp in timestamps_ms.values():
            check_timestamp(timestamp)
            check_at_least(0, timestamp=timestamp)
        found = await list_offsets(self._cluster, timestamps_ms, Deadline(timeout_ms))
        return {partition: answer if answer.offset is not None else None for partition, answer in found.items()}

    async def _list_offsets(
        self, partitions: Iterable[TopicPartition], timestamp: int, timeout_ms: float
    ) -> dict[TopicPartition, Offset]:
        self._check_open()
        return await list_ends(self._cluster, map(as_partition, partitions), timestamp, Deadline(timeout_ms))
