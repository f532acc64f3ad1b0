"""Asks a leader for its log start, log end and the producers below the start, for a follower that may have to reset its
log.

Owns: building the request and reading its answer. Leaves to others: connections, and what follows from the answer.
Pure.
"""

from collections.abc import Mapping

from minibroker.broker.replication.events import LeaderEndsAnswered
from minibroker.protocol.errors import ErrorCode, error_code
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    Response,
)
from minibroker.runtime.rpc import RpcError

PARTITIONS_PER_QUESTION_MAX = 8
"""The answer also lists the producers of each partition, and has room for some thousands of them in total."""


def ends_question(
    broker_id: int, asked: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, str]
) -> ListOffsetsRequest:
    """`asked`: partitions with the expected leader epoch. `topic_ids`: of their topics; "" if it is not known."""
    topics: dict[tuple[str, str], list[ListOffsetsPartition]] = {}
    for topic_partition, leader_epoch in asked.items():
        topic, index = topic_partition
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP):
            item = ListOffsetsPartition(partition_index=index, current_leader_epoch=leader_epoch, timestamp=timestamp)
            topics.setdefault((topic, topic_ids[topic_partition]), []).append(item)
    return ListOffsetsRequest(
        replica_id=broker_id,
        topics=[
            ListOffsetsTopic(name=name, topic_id=topic_id, partitions=items)
            for (name, topic_id), items in topics.items()
        ],
    )


def read_ends(
    asked: Mapping[TopicPartition, int], reply: Response | RpcError
) -> dict[TopicPartition, LeaderEndsAnswered]:
    """The answer for each requested partition; an error where the reply lacks it."""
    answers: dict[TopicPartition, list[ListOffsetsPartitionResponse]] = {}
    if isinstance(reply, ListOffsetsResponse):
        for topic in reply.topics:
            for answer in topic.partitions:
                answers.setdefault(TopicPartition(topic.name, answer.partition_index), []).append(answer)
    return {partition: _one(epoch, answers.get(partition, [])) for partition, epoch in asked.items()}


def _one(leader_epoch: int, answers: list[ListOffsetsPartitionResponse]) -> LeaderEndsAnswered:
    codes = [error_code(answer.error_code) for answer in answers if answer.error_code]
    if codes or len(answers) != 2:
        return LeaderEndsAnswered(
            leader_epoch=leader_epoch, error_code=codes[-1] if codes else ErrorCode.NETWORK_EXCEPTION
        )
    earliest, latest = answers
    return LeaderEndsAnswered(
        leader_epoch=leader_epoch,
        error_code=ErrorCode.NONE,
        log_start_offset=earliest.offset,
        log_end_offset=latest.offset,
        low_watermark=earliest.low_watermark if 0 <= earliest.low_watermark <= earliest.offset else None,
        producers=earliest.producers,
    )
