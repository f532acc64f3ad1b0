"""Limits of a request that no single list can express: the total that it asks for, and no repetitions.

Owns: the bound on work and on the size of an answer that one request may cause. Leaves to others: decoding.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from minibroker.protocol.wire.message_types import PARTITIONS_MAX, Request
from minibroker.protocol.wire.messages import (
    DescribeConfigsRequest,
    DescribeReplicaStateRequest,
    FetchRequest,
    GetReplicaLogInfoRequest,
    IncrementalAlterConfigsRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)


def find_excess(request: Request, size_bytes: int) -> str | None:
    """Which limit a request of that size exceeds, in words; None if none."""
    check = _ALWAYS_CHECKED.get(type(request))
    if check is None and size_bytes > PARTITIONS_MAX:  # each partition takes a byte or more
        check = _COUNTED.get(type(request))
    return None if check is None else check(request)


def _too_many(topics: Iterable[Any]) -> str | None:
    count = sum([len(topic.partitions) for topic in topics])
    return None if count <= PARTITIONS_MAX else f"{count} partitions are listed, the limit is {PARTITIONS_MAX}"


def _repeated(names: list[Hashable]) -> str | None:
    """An answer takes room for each name: one name a thousand times would turn a small request into a huge answer."""
    return None if len(set(names)) == len(names) else "a name is listed twice"


def _repeated_times(request: ListOffsetsRequest) -> str | None:
    """Each lookup by time decodes a batch in the broker's only loop. A follower may ask for both ends of a log."""
    asked = [
        (topic.name, each.partition_index) for topic in request.topics for each in topic.partitions if each.is_by_time
    ]
    return None if len(set(asked)) == len(asked) else "a partition is listed twice with a time"


_COUNTED: dict[type[Request], Callable[[Any], str | None]] = {
    FetchRequest: lambda body: _too_many(body.topics) or _too_many(body.forgotten_topics_data),
    OffsetForLeaderEpochRequest: lambda body: _too_many(body.topics),
    GetReplicaLogInfoRequest: lambda body: _too_many(body.topics),
}
_ALWAYS_CHECKED: dict[type[Request], Callable[[Any], str | None]] = {
    MetadataRequest: lambda body: _repeated([topic.name for topic in body.topics or ()]),
    DescribeReplicaStateRequest: lambda body: _repeated(list(body.topics or ())),
    IncrementalAlterConfigsRequest: lambda body: _repeated(
        [(r.resource_type, r.resource_name) for r in body.resources]
    ),
    ListOffsetsRequest: lambda body: _too_many(body.topics) or _repeated_times(body),
    DescribeConfigsRequest: lambda body: _repeated([(r.resource_type, r.resource_name) for r in body.resources]),
}
