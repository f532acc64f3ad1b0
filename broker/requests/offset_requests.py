"""Answers ListOffsets and OffsetForLeaderEpoch.

Owns: mapping a request over many partitions to the core's pure answers, one per partition, and the turns that look-ups
by time take. Leaves to others: what an offset means.
"""

import asyncio

from msgspec.structs import replace

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replication.leader import (
    answer_epoch_end,
    latest_offset_for_consumer,
    refuse_as_leader,
    refuse_epoch,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition, from_wire, to_wire
from minibroker.protocol.wire.message_types import PRODUCERS_BYTES_MAX
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResponse,
    OffsetForLeaderTopicResponse,
)
from minibroker.runtime.ports import DiskError


def answer_offset_for_leader_epoch(
    manager: ReplicaManager, body: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    """Answers where an epoch ended (KIP-101, KIP-279, fenced according to KIP-320)."""
    topics = []
    for topic in body.topics:
        answers = []
        for asked in topic.partitions:
            partition = _find(manager, TopicPartition(topic.topic, asked.partition), topic.topic_id)
            if isinstance(partition, ErrorCode):
                answers.append(OffsetForLeaderPartitionResponse(partition=asked.partition, error_code=partition))
                continue
            manager.check_fence()
            code, epoch, end_offset = answer_epoch_end(
                partition.state, from_wire(asked.current_leader_epoch), from_wire(asked.leader_epoch)
            )
            answers.append(
                OffsetForLeaderPartitionResponse(
                    partition=asked.partition,
                    error_code=code,
                    leader_epoch=to_wire(epoch),
                    end_offset=to_wire(end_offset),
                )
            )
        topics.append(OffsetForLeaderTopicResponse(topic=topic.topic, partitions=answers))
    return OffsetForLeaderEpochResponse(topics=topics)


LOOKUPS_SECONDS_MAX = 30.0
"""The longest that a request's look-ups by time take turns: a client's default timeout. What is left then is refused
with a retriable error."""


def asks_by_time(body: ListOffsetsRequest) -> bool:
    """Whether any of it is a look-up by time."""
    return any(asked.is_by_time for topic in body.topics for asked in topic.partitions)


def answer_list_offsets(manager: ReplicaManager, body: ListOffsetsRequest) -> ListOffsetsResponse:
    """Answers with the earliest offset, the latest, or that of the first record not older than a timestamp."""
    manager.check_fence()
    limit = _producers_bytes_max(body)
    topics = [
        ListOffsetsTopicResponse(
            name=topic.name,
            partitions=[_answer(manager, body.replica_id, topic, asked, limit) for asked in topic.partitions],
        )
        for topic in body.topics
    ]
    return ListOffsetsResponse(topics=topics)


class OffsetsByTime:
    """Answers requests with look-ups by time, of all clients one look-up at a time, each in its own iteration of the
    loop: a request may ask for ten thousand, and other clients wait for one at most."""

    def __init__(self, manager: ReplicaManager) -> None:
        self._manager = manager
        self._turn = asyncio.Lock()

    async def answer(self, body: ListOffsetsRequest) -> ListOffsetsResponse:
        """Like `answer_list_offsets`."""
        manager, limit = self._manager, _producers_bytes_max(body)
        now = asyncio.get_running_loop().time
        give_up_at = now() + LOOKUPS_SECONDS_MAX
        topics = []
        for topic in body.topics:
            answers = []
            for asked in topic.partitions:
                if asked.is_by_time:
                    if now() <= give_up_at:
                        async with self._turn:
                            await asyncio.sleep(0)
                    if now() > give_up_at:
                        answers.append(_too_late(asked))
                        continue
                manager.check_fence()
                answers.append(_answer(manager, body.replica_id, topic, asked, limit))
            topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
        return ListOffsetsResponse(topics=topics)


def _too_late(asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
    text = f"the look-ups by time of this request took {LOOKUPS_SECONDS_MAX:g} s: ask for the rest again"
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index, error_code=ErrorCode.REQUEST_TIMED_OUT, error_message=text
    )


def _producers_bytes_max(body: ListOffsetsRequest) -> int:
    entries = sum(len(topic.partitions) for topic in body.topics)  # a follower asks for both ends of each partition
    return PRODUCERS_BYTES_MAX // max(1, entries // 2)


def _answer(
    manager: ReplicaManager,
    replica_id: int,
    topic: ListOffsetsTopic,
    asked: ListOffsetsPartition,
    producers_bytes_max: int,
) -> ListOffsetsPartitionResponse:
    partition = _find(manager, TopicPartition(topic.name, asked.partition_index), topic.topic_id)
    if isinstance(partition, ErrorCode):
        return ListOffsetsPartitionResponse(partition_index=asked.partition_index, error_code=partition)
    answer = _list_offsets(manager, partition, asked, is_follower=replica_id >= 0)
    if replica_id >= 0 and asked.timestamp == EARLIEST_TIMESTAMP and not answer.error_code:
        producers = partition.log.producers.snapshot_below(answer.offset, producers_bytes_max)
        answer = replace(answer, producers=producers, low_watermark=partition.state.low_watermark)
    return answer


def _list_offsets(
    manager: ReplicaManager, partition: Partition, asked: ListOffsetsPartition, is_follower: bool
) -> ListOffsetsPartitionResponse:
    state, index = partition.state, asked.partition_index
    refusal = refuse_epoch(state, from_wire(asked.current_leader_epoch)) or refuse_as_leader(state)
    if refusal is not None:
        hint = manager.image.leader_hint(partition.topic_partition, partition.log.topic_id or "")
        return ListOffsetsPartitionResponse(partition_index=index, error_code=refusal, current_leader=hint)
    epoch = to_wire(state.leader_epoch)
    if asked.timestamp == EARLIEST_TIMESTAMP:
        start = state.log_start_offset
        return ListOffsetsPartitionResponse(partition_index=index, offset=start, leader_epoch=epoch)
    if asked.timestamp == LATEST_TIMESTAMP and is_follower:
        end = state.log_end_offset
        return ListOffsetsPartitionResponse(partition_index=index, offset=end, leader_epoch=epoch)
    code, latest, message = latest_offset_for_consumer(state)
    if latest is None:
        where = f"{partition.topic_partition}: {message}"
        return ListOffsetsPartitionResponse(partition_index=index, error_code=code, error_message=where)
    if asked.timestamp == LATEST_TIMESTAMP:
        return ListOffsetsPartitionResponse(partition_index=index, offset=latest, leader_epoch=epoch)
    return _by_time(manager, partition, asked, latest)


def _by_time(
    manager: ReplicaManager, partition: Partition, asked: ListOffsetsPartition, end_offset: int
) -> ListOffsetsPartitionResponse:
    index = asked.partition_index
    try:
        found = partition.log.offset_for_timestamp(max(0, asked.timestamp), end_offset)
    except CorruptLog as error:
        manager.repairs.damaged(partition, str(error))
        message = f"{partition.topic_partition}: {error}"
        code = ErrorCode.KAFKA_STORAGE_ERROR if partition.state.is_offline else ErrorCode.CORRUPT_MESSAGE
        return ListOffsetsPartitionResponse(partition_index=index, error_code=code, error_message=message)
    except DiskError as error:
        manager.disk.read_failed(partition, error)
        return ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    if found is None:
        return ListOffsetsPartitionResponse(partition_index=index)
    timestamp, offset = found
    epoch = partition.state.epoch_history.epoch_at(offset)
    return ListOffsetsPartitionResponse(
        partition_index=index, timestamp=timestamp, offset=offset, leader_epoch=to_wire(epoch)
    )


def _find(manager: ReplicaManager, topic_partition: TopicPartition, topic_id: str) -> Partition | ErrorCode:
    """The replica here that a request means, or why there is none."""
    partition = manager.partitions.get(topic_partition)
    if partition is None:
        known = manager.image.knows_partition(*topic_partition)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return partition if partition.is_of_topic(topic_id) else ErrorCode.INCONSISTENT_TOPIC_ID
