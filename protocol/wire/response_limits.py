"""The limit of an answer that no single list can express: its partitions, of all topics together.

Owns: that they are counted before they are decoded. A partition of twenty bytes takes more than a kilobyte of memory
once it is decoded, so that an answer of a broken broker could fill it. Leaves to others: decoding.
"""

from typing import Annotated

import msgspec

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.wire.message_types import PARTITIONS_MAX, TOPICS_MAX

COUNTED_FROM_BYTES = 1024 * 1024
"""A smaller answer lists at most fifty thousand partitions."""
ANSWER_PARTITIONS_MAX = 100_000
"""Ten times as many as a broker holds, and more than a cluster of any sensible size has."""


class _PackedPartitions(msgspec.Struct, frozen=True):
    partitions: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=PARTITIONS_MAX)] = []


class _PackedTopics(msgspec.Struct, frozen=True):
    topics: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=TOPICS_MAX)] = []
    responses: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=TOPICS_MAX)] = []
    """Of a Fetch."""


_packed_topics = msgspec.msgpack.Decoder(_PackedTopics)
_packed_partitions = msgspec.msgpack.Decoder(_PackedPartitions)


def refuse_excess(body: bytes | bytearray | memoryview) -> None:
    """Raises ProtocolError, or an error of msgspec for what is no answer."""
    if len(body) <= COUNTED_FROM_BYTES:
        return
    count, packed = 0, _packed_topics.decode(body)
    for topic in (*packed.topics, *packed.responses):
        count += len(_packed_partitions.decode(topic).partitions)
        if count > ANSWER_PARTITIONS_MAX:
            raise ProtocolError(f"an answer lists more than {ANSWER_PARTITIONS_MAX} partitions")
