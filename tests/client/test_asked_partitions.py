"""Calls that name partitions get their records, though the records of others wait to be read."""

import asyncio
import json

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.cursor import CHUNKS_MAX
from minibroker.client.errors import InvalidCall, UndeserializableRecord
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.messages import FetchRequest
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import fill

ASKED, OTHER = TopicPartition("six", 0), TopicPartition("six", 3)
RECORDS = 100
POLL_MS = 30_000
SECONDS_MAX = 0.5
"""Some round trips."""


def one_batch_at_a_time(cluster: FakeCluster, runtime: Runtime, **settings: object) -> Consumer:
    """Reads two partitions of one leader that hold records; each answer brings one batch of a partition."""
    cluster.add_topic("six", 6)
    assert cluster.partitions[ASKED].leader == cluster.partitions[OTHER].leader
    for partition in (ASKED, OTHER):
        fill(cluster, RECORDS, topic="six", index=partition.partition)
    return Consumer(
        "six",
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=1,
        runtime=runtime,
        **settings,  # type: ignore[arg-type]
    )


async def _many(consumer: Consumer, partition: TopicPartition, timeout_ms: float) -> list[int]:
    found = await consumer.getmany(partition, timeout_ms=timeout_ms)
    return [record.offset for record in found.get(partition, ())]


async def _batches(consumer: Consumer, partition: TopicPartition, timeout_ms: float) -> list[int]:
    found = await consumer.getmany_batches(partition, timeout_ms=timeout_ms)
    return [offset for batch in found for offset in range(batch.base_offset, batch.base_offset + len(batch))]


@pytest.mark.parametrize("take", [_many, _batches])
def test_one_partition_is_read_to_its_end_while_another_waits(cluster: FakeCluster, take) -> None:  # type: ignore[no-untyped-def]
    """An empty answer would look like the end of the log."""

    async def main(runtime: Runtime) -> None:
        async with one_batch_at_a_time(cluster, runtime) as consumer:
            for partition in (ASKED, OTHER):
                offsets: list[int] = []
                while taken := await take(consumer, partition, 1_000):
                    offsets += taken
                assert offsets == list(range(RECORDS))
                assert all(len(cursor.chunks) <= CHUNKS_MAX for cursor in consumer._cursors.values())

    cluster.run(main)


def test_calls_that_do_not_wait_find_what_they_ask_for_sooner_or_later(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with one_batch_at_a_time(cluster, runtime) as consumer:
            offsets: list[int] = []
            for _ in range(2 * RECORDS):
                offsets += await _many(consumer, ASKED, 0)
                await asyncio.sleep(0.1)
            assert offsets == list(range(RECORDS))

    cluster.run(main)


def test_a_partition_that_has_room_again_waits_for_no_poll_without_it(cluster: FakeCluster) -> None:
    """The leader was asked for the other partition alone, and holds that fetch until records come."""

    async def main(runtime: Runtime) -> float:
        async with one_batch_at_a_time(cluster, runtime, fetch_max_wait_ms=POLL_MS) as consumer:
            while await _many(consumer, ASKED, 1_000):
                pass
            began = asyncio.get_running_loop().time()
            offsets: list[int] = []
            while len(offsets) < RECORDS:
                offsets += await _many(consumer, OTHER, 2 * POLL_MS)
            assert offsets == list(range(RECORDS))
            return asyncio.get_running_loop().time() - began

    assert cluster.run(main) < SECONDS_MAX


@pytest.mark.parametrize("is_refused", [False, True], ids=["paused", "refused by its deserializer"])
def test_a_partition_that_was_full_when_it_was_set_aside_holds_back_no_other(
    cluster: FakeCluster, is_refused: bool
) -> None:
    """Its leader was asked for no partition while this one had no room, and nothing asked it once that did not matter:
    the others gave no record for five minutes, until metadata grew too old."""
    cluster.add_topic("six", 6)
    fill(cluster, RECORDS, topic="six", index=OTHER.partition)

    async def main(runtime: Runtime) -> float:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=1_000,  # a few batches
            value_deserializer=json.loads if is_refused else None,
            runtime=runtime,
        ) as consumer:
            consumer.assign([ASKED, OTHER])
            await asyncio.sleep(1)
            if is_refused:
                with pytest.raises(UndeserializableRecord):
                    await consumer.getmany(OTHER)
            consumer.pause(OTHER)
            cluster.partitions[ASKED].append(bytes(build_batch([(b"k", b"1", 1, ())])))
            cluster.brokers[1].wake_fetches()
            began = asyncio.get_running_loop().time()
            await consumer.getone()
            return asyncio.get_running_loop().time() - began

    assert cluster.run(main) < SECONDS_MAX


@pytest.mark.parametrize("call", ["getmany", "getmany_batches"])
def test_a_named_partition_that_is_not_assigned_is_refused(cluster: FakeCluster, call: str) -> None:
    """It returned nothing, as at the end of a log."""

    async def main(runtime: Runtime) -> None:
        async with one_batch_at_a_time(cluster, runtime) as consumer:
            with pytest.raises(InvalidCall, match="typo-0 is not assigned to this consumer"):
                await getattr(consumer, call)(TopicPartition("typo", 0), timeout_ms=1_000)

    cluster.run(main)


def test_each_partition_of_a_leader_is_asked_first_in_turn(cluster: FakeCluster) -> None:
    """An answer holds `fetch_max_bytes`: what is asked last would never be answered while the first ones have more."""
    first_ones: list[int] = []

    def intercept(broker: int, request: IncomingRequest) -> None:
        if isinstance(request.body, FetchRequest):
            asked = [each.partition for topic in request.body.topics for each in topic.partitions]
            if sorted(asked) == [ASKED.partition, OTHER.partition]:
                first_ones.append(asked[0])

    async def main(runtime: Runtime) -> None:
        consumer = one_batch_at_a_time(cluster, runtime, fetch_max_wait_ms=10)
        cluster.intercept = intercept
        async with consumer:
            read = 0
            while read < 2 * RECORDS:
                read += sum(map(len, (await consumer.getmany(timeout_ms=1_000)).values()))
            first_ones.clear()
            await asyncio.sleep(1)

    cluster.run(main)
    assert first_ones[:4] in ([0, 3, 0, 3], [3, 0, 3, 0])
