"""A fetch that waits for its answer."""

from typing import NamedTuple

import msgspec

from minibroker.client.consumer.cursor import Cursor
from minibroker.protocol.ids import LeaderEpoch, Offset, TopicPartition
from minibroker.runtime.rpc import RpcConnection


class Asked(NamedTuple):
    """What a fetch asked for one partition."""

    cursor: Cursor
    generation: int
    offset: Offset
    leader_epoch: LeaderEpoch | None


class FetchInFlight(msgspec.Struct, eq=False):
    """With what was requested, so that a stale answer is recognised."""

    connection: RpcConnection
    correlation_id: int
    sent_at_ms: float
    cursors: dict[TopicPartition, Asked]
