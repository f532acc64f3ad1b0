"""A position that the user moves while it is being validated."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any

from minibroker.client.consumer.cursor import Chunk, Cursor, OffsetReset
from minibroker.client.consumer.positions import PositionResolver
from minibroker.client.errors import Where
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResponse,
    OffsetForLeaderTopicResponse,
)

PARTITION = TopicPartition("t", 0)


class OneLeader:
    """A cluster whose leader says that every epoch ends at offset 100."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, leader: int, request: OffsetForLeaderEpochRequest, *_: object) -> OffsetForLeaderEpochResponse:
        self.asked.set()
        results = [
            OffsetForLeaderPartitionResponse(partition=each.partition, leader_epoch=each.leader_epoch, end_offset=100)
            for each in request.topics[0].partitions
        ]
        return OffsetForLeaderEpochResponse(topics=[OffsetForLeaderTopicResponse(topic="t", partitions=results)])

    def where(self, partition: TopicPartition, leader: int) -> Where:
        return Where(topic_partition=partition)

    def request_refresh(self) -> None:
        pass


async def test_a_seek_between_the_choice_of_positions_and_the_question_ends_no_task() -> None:
    """It did: the moved position has no epoch to ask for."""
    cursor = Cursor(PARTITION, OffsetReset.EARLIEST, 1_000)
    cursor.learn_leader(1, 0)
    cursor.seek(0)
    cursor.fetched(Chunk(memoryview(b""), deque()), 10, 0)
    cursor.learn_leader(1, 1)
    assert cursor.needs_validation

    def cursors() -> Mapping[TopicPartition, Cursor]:
        asyncio.get_running_loop().call_soon(cursor.seek, 3)
        return {PARTITION: cursor}

    cluster: Any = OneLeader()
    resolver = PositionResolver(
        cluster,
        cursors,
        request_timeout_ms=1_000,
        halt_on_truncation=True,
        pause_seconds=lambda failures: 0.0,
        on_settled=lambda: None,
        on_moved=lambda cursor: None,
    )
    resolver.start()
    resolver.want()
    async with asyncio.timeout(5):
        await cluster.asked.wait()
    for _ in range(5):
        await asyncio.sleep(0)
    assert resolver.task is not None and not resolver.task.done()
    assert cursor.position == 3
    await resolver.close()
