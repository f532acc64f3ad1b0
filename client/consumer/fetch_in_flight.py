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

    @property
    def is_outdated(self) -> bool:
        """Whether the position has moved, or was found valid at a later leader: what an earlier one sends now was not
        compared with that one's log."""
        cursor, epoch = self.cursor, self.leader_epoch
        if (cursor.generation, cursor.fetch_offset) != (self.generation, self.offset):
            return True
        return epoch is not None and cursor.validated_epoch is not None and epoch < cursor.validated_epoch


class FetchInFlight(msgspec.Struct, eq=False):
    """With what was requested, so that a stale answer is recognised."""

    connection: RpcConnection
    correlation_id: int
    sent_at_ms: float
    cursors: dict[TopicPartition, Asked]
