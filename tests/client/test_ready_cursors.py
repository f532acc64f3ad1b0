"""Which partition a consumer reads next, and when it fetches more."""

import asyncio
from collections import Counter, deque
from typing import Any, cast

import msgspec
import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.cursor import CHUNKS_MAX, Chunk, Cursor, OffsetReset
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import FetchRequest, Response
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import earliest, fill

BATCH = cast(Any, (0, None))


class Reading(Fetcher):
    """A fetcher of partitions with so many chunks of one batch each."""

    def __init__(self, **chunks: int) -> None:
        self.cursors = {name: Cursor(TopicPartition(name, 0), OffsetReset.LATEST, 1_000) for name in chunks}
        for name, count in chunks.items():
            cursor = self.cursors[name]
            cursor.learn_leader(1, 3)
            cursor.seek(10)
            cursor.chunks.extend(Chunk(memoryview(b""), deque([BATCH])) for _ in range(count))
        self.ready = deque(each for each in self.cursors.values() if each.chunks)
        self._asked: dict[int, Any] = {}
        self.wakes = 0

    def wake(self) -> None:
        self.wakes += 1

    def read(self) -> str:
        """The partition of which a batch is read."""
        cursor = self.ready[0]
        self.has_read(cursor)
        return cursor.topic_partition.topic


def test_partitions_are_read_in_turn_and_leave_when_they_hold_nothing() -> None:
    """One that stayed in front would keep the others from being read as long as it gets records."""
    reading = Reading(a=2, b=1, c=2)
    order = []
    while reading.ready:
        order.append(reading.read())
        left = [each.topic_partition.topic for each in reading.ready]
        assert len(set(left)) == len(left)
        assert all(each.chunks for each in reading.ready)
    assert order == ["a", "b", "c", "a", "c"]


def test_a_chunk_is_read_to_its_end_before_the_next_partition() -> None:
    reading = Reading(a=1, b=1)
    reading.cursors["a"].chunks[0].unread.extend([BATCH, BATCH])
    assert [reading.read() for _ in range(4)] == ["a", "a", "a", "b"]
    assert reading.wakes == 2, "once for each chunk"


@pytest.mark.parametrize(
    ("others", "change", "is_asked"),
    [
        (0, {}, True),
        (CHUNKS_MAX - 1, {}, True),
        (CHUNKS_MAX, {}, False),
        (CHUNKS_MAX, {"leader": 2}, True),
        (CHUNKS_MAX, {"paused": True}, True),
    ],
)
@pytest.mark.parametrize("is_fetching", [False, True])
def test_a_leader_is_asked_for_more_once_all_its_partitions_have_room(
    others: int, change: dict[str, Any], *, is_asked: bool, is_fetching: bool
) -> None:
    """A fetch names all its partitions, so a full one would get records for which there is no room."""
    reading = Reading(read=CHUNKS_MAX, other=others)
    for name, value in change.items():
        setattr(reading.cursors["other"], name, value)
    if is_fetching:
        reading._asked[1] = None
    assert reading.read() == "read"
    assert reading.wakes == (is_asked and not is_fetching)


def test_a_consumer_that_only_seeks_keeps_one_entry_for_each_partition(cluster: FakeCluster) -> None:
    """It may ask for positions for months without ever reading, and each seek left one entry more."""
    fill(cluster, 1)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            for _ in range(20):
                await consumer.seek_to_beginning()
                await asyncio.sleep(0.1)
            assert len(consumer._fetcher.ready) <= 2
            assert (await consumer.getone()).offset == 0

    cluster.run(main)


def test_no_partition_starves_where_an_answer_has_room_for_one(cluster: FakeCluster) -> None:
    """A fetch lists its partitions in turns. Two leaders that were asked alternately shared one count of turns, so each
    had always the same one of its two partitions in front: the other one was hardly read."""
    partitions = [TopicPartition("six", index) for index in (0, 3, 1, 4)]  # two of each of two leaders
    cluster.add_topic("six", 6)
    for each in partitions:
        fill(cluster, 3_000, topic="six", index=each.partition, wakes=False)

    def with_records_of_one(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, FetchRequest):
            return None
        answer, is_full = cluster.brokers[broker].fetch(request.body), False
        for topic in answer.responses:
            for index, found in enumerate(topic.partitions):
                if is_full:
                    topic.partitions[index] = msgspec.structs.replace(found, records=memoryview(b""))
                is_full = is_full or bool(found.records)
        return answer if is_full else None

    cluster.intercept = with_records_of_one

    async def main(runtime: Runtime) -> None:
        servers, seen = cluster.bootstrap, Counter[TopicPartition]()
        async with Consumer(
            bootstrap_servers=servers, runtime=runtime, auto_offset_reset="earliest", max_partition_fetch_bytes=2_000
        ) as consumer:
            consumer.assign(partitions)
            while seen.total() < 2_400:
                for each, records in (await consumer.getmany(timeout_ms=1_000, max_records=40)).items():
                    seen[each] += len(records)
                await asyncio.sleep(0.01)
        assert all(500 < seen[each] < 700 for each in partitions), seen

    cluster.run(main)
