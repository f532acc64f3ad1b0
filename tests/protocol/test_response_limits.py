"""An answer that would fill the memory is refused before it is decoded."""

from typing import Any

import msgpack
import pytest

from minibroker.protocol.wire.codec import MalformedMessage, decode_response_body
from minibroker.protocol.wire.messages import ApiKey
from minibroker.protocol.wire.response_limits import ANSWER_PARTITIONS_MAX, COUNTED_FROM_BYTES

PER_TOPIC = 10_000


def answer(field: str, partition: dict[str, Any], count: int) -> bytes:
    """Lists so many partitions, in topics of 10,000."""
    topics = [
        {"topic": "t", "name": "t", "partitions": [partition] * min(PER_TOPIC, count - first)}
        for first in range(0, count, PER_TOPIC)
    ]
    return bytes(msgpack.packb({field: topics}))


@pytest.mark.parametrize(
    ("key", "field", "partition"),
    [
        (ApiKey.METADATA, "topics", {"partition_index": 0}),
        (ApiKey.DESCRIBE_REPLICA_STATE, "topics", {"partition": 0, "role": ""}),
        (ApiKey.LIST_OFFSETS, "topics", {"partition_index": 0}),
        (ApiKey.FETCH, "responses", {"partition_index": 0}),
    ],
)
def test_partitions_are_counted_over_all_topics(key: ApiKey, field: str, partition: dict[str, Any]) -> None:
    """10 MB of them took 870 MB of memory."""
    body = answer(field, partition, ANSWER_PARTITIONS_MAX + 1)
    assert len(body) > COUNTED_FROM_BYTES
    with pytest.raises(MalformedMessage, match=f"more than {ANSWER_PARTITIONS_MAX} partitions"):
        decode_response_body(key, body)


def test_as_many_as_a_large_cluster_has_are_decoded() -> None:
    body = answer("topics", {"partition_index": 0}, ANSWER_PARTITIONS_MAX)
    response: Any = decode_response_body(ApiKey.METADATA, body)
    assert sum(len(topic.partitions) for topic in response.topics) == ANSWER_PARTITIONS_MAX


def test_a_large_answer_that_is_none_is_malformed() -> None:
    with pytest.raises(MalformedMessage):
        decode_response_body(ApiKey.METADATA, b"\xc1" * (COUNTED_FROM_BYTES + 1))
