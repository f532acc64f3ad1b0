"""What a follower asks about the ends of its leaders' logs, and what it believes of the answer."""

import pytest

from minibroker.broker.replicas.leader_ends import ends_question, read_ends
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from minibroker.runtime.rpc import RpcError

A, B, OTHER = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def test_the_question_names_both_ends_of_each_log_under_its_epoch() -> None:
    request = ends_question(3, {A: 5, OTHER: 6, B: 7}, {A: "one", OTHER: "another", B: "one"})
    asked = [
        (topic.name, topic.topic_id, each.partition_index, each.current_leader_epoch, each.timestamp)
        for topic in request.topics
        for each in topic.partitions
    ]
    assert request.replica_id == 3
    assert asked == [
        (name, topic_id, index, epoch, timestamp)
        for name, topic_id, index, epoch in (("t", "one", 0, 5), ("t", "one", 1, 7), ("u", "another", 0, 6))
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    ]


def reply(low_watermark: int) -> ListOffsetsResponse:
    """Of a log from 4 to 9."""
    ends = [
        ListOffsetsPartitionResponse(partition_index=0, offset=4, low_watermark=low_watermark),
        ListOffsetsPartitionResponse(partition_index=0, offset=9),
    ]
    return ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=ends)])


@pytest.mark.invariant("I10")
@pytest.mark.parametrize(("told", "believed"), [(-1, None), (0, 0), (3, 3), (4, 4), (5, None), (99, None)])
def test_a_low_watermark_is_believed_only_up_to_the_log_start(told: int, believed: int | None) -> None:
    answer = read_ends({A: 5}, reply(told))[A]
    assert (answer.leader_epoch, answer.error_code) == (5, ErrorCode.NONE)
    assert (answer.log_start_offset, answer.log_end_offset, answer.low_watermark) == (4, 9, believed)


def test_a_partition_that_the_reply_lacks_is_asked_for_again() -> None:
    assert read_ends({A: 5, B: 6}, reply(3))[B].error_code is ErrorCode.NETWORK_EXCEPTION
    assert read_ends({A: 5}, RpcError("lost"))[A].error_code is ErrorCode.NETWORK_EXCEPTION
