"""Validating positions: one that the user moves meanwhile, and leaders that do not answer or refuse."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from minibroker.client.consumer import positions
from minibroker.client.consumer.cursor import Chunk, Cursor, OffsetReset
from minibroker.client.consumer.positions import PositionResolver
from minibroker.client.errors import BrokerUnreachable, CallTimedOut, InvalidCall, MinibrokerError, Where
from minibroker.client.offsets import OffsetAndTimestamp
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    LATEST_TIMESTAMP,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResponse,
    OffsetForLeaderTopicResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import earliest, fill

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


class UnreachableAtTimes(OneLeader):
    """Answers only the requests of these numbers."""

    def __init__(self, *answered: int) -> None:
        super().__init__()
        self.answered = answered
        self.requests = self.refreshes = 0

    async def ask(self, leader: int, request: OffsetForLeaderEpochRequest, *_: object) -> OffsetForLeaderEpochResponse:
        self.requests += 1
        if self.requests not in self.answered:
            raise BrokerUnreachable("no answer")
        return await super().ask(leader, request)

    def request_refresh(self) -> None:
        self.refreshes += 1


async def test_pauses_grow_with_each_failure_and_begin_anew_after_an_answer_or_a_new_leader() -> None:
    cursor = Cursor(PARTITION, OffsetReset.EARLIEST, 1_000)
    cursor.learn_leader(1, 0)
    cursor.seek(0)
    cursor.fetched(Chunk(memoryview(b""), deque()), 10, 0)
    cluster: Any = UnreachableAtTimes(4, 8)
    pauses: list[int] = []

    def pause_seconds(failures: int) -> float:
        pauses.append(failures)
        if len(pauses) == 5:  # a leader is elected while it waits
            resolver.leader_moved()
        return 60.0 if len(pauses) == 5 else 0.0

    settled = asyncio.Event()
    resolver = PositionResolver(
        cluster,
        lambda: {PARTITION: cursor},
        request_timeout_ms=1_000,
        halt_on_truncation=True,
        pause_seconds=pause_seconds,
        on_settled=lambda: None if cursor.needs_validation else settled.set(),
        on_moved=lambda cursor: None,
    )
    resolver.start()
    for epoch, expected in ((1, [1, 2, 3]), (2, [1, 2, 1])):
        cursor.learn_leader(1, epoch)
        assert cursor.needs_validation
        settled.clear()
        before = len(pauses)
        resolver.want()
        async with asyncio.timeout(30):
            await settled.wait()
        assert pauses[before:] == expected
    assert cluster.refreshes == len(pauses), "each failure asks for the present leader"
    await resolver.close()


async def test_a_partition_that_was_sought_meanwhile_holds_up_no_other_ones_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [TopicPartition("t", number) for number in range(3)]
    cursors = [Cursor(name, OffsetReset.EARLIEST, 1_000) for name in names]

    async def ask_offsets(*_: object) -> dict[TopicPartition, OffsetAndTimestamp]:
        cursors[0].seek(3)
        return {name: OffsetAndTimestamp(7, None, 0) for name in names}

    monkeypatch.setattr(positions, "ask_offsets", ask_offsets)
    resolver: Any = SimpleNamespace(_cluster=None, _now_ms=lambda: 0)
    assert await PositionResolver._reset(resolver, cursors)
    assert [cursor.position for cursor in cursors] == [3, 7, 7]


@pytest.mark.parametrize(
    "answer",
    [OffsetAndTimestamp(7, None, 0), InvalidCall("as the test wants"), BrokerUnreachable("no answer")],
    ids=["position", "refused for good", "refused"],
)
async def test_an_answer_about_another_time_than_the_user_wants_now_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, answer: OffsetAndTimestamp | MinibrokerError
) -> None:
    """`seek_to_end` while the beginning is asked for: the consumer would go on at the beginning."""
    cursor = Cursor(PARTITION, OffsetReset.EARLIEST, 1_000)

    async def ask_offsets(*_: object) -> dict[TopicPartition, OffsetAndTimestamp | MinibrokerError]:
        cursor.seek_by(LATEST_TIMESTAMP)
        return {PARTITION: answer}

    monkeypatch.setattr(positions, "ask_offsets", ask_offsets)
    resolver: Any = SimpleNamespace(_cluster=None, _now_ms=lambda: 0)
    await PositionResolver._reset(resolver, [cursor])
    assert (cursor.position, cursor.reset_timestamp) == (None, LATEST_TIMESTAMP)
    assert (cursor.halted, cursor.error, cursor.refusals) == (None, None, 0)


def test_an_answer_that_names_no_offset_is_asked_for_again_after_a_pause(cluster: FakeCluster) -> None:
    """Each log has a beginning and an end, so such an answer is a fault. It was asked for again without any pause."""
    partitions = [ListOffsetsPartitionResponse(partition_index=0, offset=-1)]
    answer = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=partitions)])
    cluster.intercept = lambda broker, request: answer if isinstance(request.body, ListOffsetsRequest) else None

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            with pytest.raises(CallTimedOut, match="names no offset"):
                await consumer.getone(timeout_ms=1_000)
            assert cluster.asked(ListOffsetsRequest) < 20
            with pytest.raises(CallTimedOut, match="names no offset"):
                await consumer.end_offsets([PARTITION], timeout_ms=500)
            cluster.intercept = lambda broker, request: None
            assert await consumer.position(PARTITION) == 0

    cluster.run(main)


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Response(error_code=ErrorCode.INVALID_REQUEST, error_message="as the test wants"), "INVALID_REQUEST.* as the"),
        (False, "broker 2: connection to broker2:9092 was lost"),
    ],
    ids=["refused", "lost"],
)
def test_a_consumer_whose_position_cannot_be_validated_tells_why(
    cluster: FakeCluster, fault: Response | Literal[False], text: str
) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert (await consumer.getone()).offset == 0
            await consumer.getmany(timeout_ms=1_000)
            cluster.intercept = lambda broker, request: (
                fault if isinstance(request.body, OffsetForLeaderEpochRequest) else None
            )
            cluster.partition("t").elect(2)
            fill(cluster, 1)
            with pytest.raises(CallTimedOut, match=text):
                await consumer.getone(timeout_ms=3_000)
            state = consumer.connection_state(PARTITION)
            assert not state.healthy
            assert re.search(text, str(state.error))

    cluster.run(main)
