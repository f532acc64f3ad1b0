"""The consumer against fake brokers in simulated time."""

import asyncio
import logging
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.fetch_answer import FetchAnswer
from minibroker.client.errors import (
    CallTimedOut,
    InvalidCall,
    OffsetOutOfRange,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    ListOffsetsRequest,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill, numbered


# ------------------------------------------------------------------------------------------------------------- reading
def test_records_come_in_order_with_all_they_carry(cluster: FakeCluster) -> None:
    fill(cluster, 95)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            seen = []
            async for record in consumer:
                seen.append(record)
                assert await consumer.position(T0) == record.offset + 1
                if len(seen) == 95:
                    break
        assert [record.value for record in seen] == numbered(0, 95)
        assert [record.offset for record in seen] == list(range(95))
        last = seen[-1]
        assert (last.topic, last.partition, last.leader_epoch, last.timestamp_ms) == ("t", 0, 0, 94_000)
        assert (last.key, last.headers) == (b"k", (("h", b"1"),))

    cluster.run(main)


def test_the_default_is_to_begin_at_the_end(cluster: FakeCluster) -> None:
    fill(cluster, 20)

    async def main(runtime: Runtime) -> None:
        async with Consumer("t", bootstrap_servers=cluster.bootstrap, runtime=runtime) as consumer:
            assert await consumer.position(T0) == 20
            fill(cluster, 3)
            assert (await consumer.getone(timeout_ms=1_000)).offset == 20

    cluster.run(main)


def test_new_records_end_the_long_poll_at_once(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime, fetch_max_wait_ms=10_000) as consumer:
            loop.call_later(3, fill, cluster, 1)
            start = loop.time()
            await consumer.getone(timeout_ms=60_000)
            return loop.time() - start

    assert 2.9 < cluster.run(main) < 3.1


def test_getmany_returns_at_most_max_records_and_loses_none(cluster: FakeCluster) -> None:
    fill(cluster, 100)

    async def main(runtime: Runtime) -> None:
        seen: list[bytes | None] = []
        async with earliest(cluster, runtime) as consumer:
            while len(seen) < 100:
                records = (await consumer.getmany(timeout_ms=1_000, max_records=7))[T0]
                assert 1 <= len(records) <= 7
                seen.extend(record.value for record in records)
                assert await consumer.position(T0) == len(seen)
        assert seen == numbered(0, 100)

    cluster.run(main)


def test_getmany_without_data_returns_empty_at_its_deadline(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime) as consumer:
            start = loop.time()
            assert await consumer.getmany(timeout_ms=2_000) == {}
            assert 2 <= loop.time() - start < 2.1
            assert consumer.connection_state(T0).state == "fetching"
            assert consumer.connection_state(T0).healthy
            assert consumer.connection_state(T0).error is None

    cluster.run(main)


def test_getmany_of_one_partition_leaves_the_others(cluster: FakeCluster) -> None:
    cluster.add_topic("two", 2)
    fill(cluster, 20, topic="two", index=0)
    fill(cluster, 20, topic="two", index=1)

    async def main(runtime: Runtime) -> None:
        async with Consumer(
            "two", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", runtime=runtime
        ) as consumer:
            returned: dict[TopicPartition, list[int]] = {each: [] for each in consumer.assignment()}

            async def take(*partitions: TopicPartition, limit: int) -> None:
                found = await consumer.getmany(*partitions, timeout_ms=1_000, max_records=limit)
                for partition, records in found.items():
                    assert not partitions or partition in partitions
                    returned[partition].extend(record.offset for record in records)

            await take(limit=3)
            (begun,) = (each for each, offsets in returned.items() if offsets)
            (other,) = (each for each, offsets in returned.items() if not offsets)
            while len(returned[other]) < 15:  # the rest of the first batch is not lost, and comes in its turn
                await take(other, limit=15 - len(returned[other]))
            assert len(returned[begun]) == 3
            await take(begun, limit=4)
            while sum(map(len, returned.values())) < 40:
                await take(limit=7)
            assert returned == {begun: list(range(20)), other: list(range(20))}

    cluster.run(main)


@pytest.mark.parametrize("asked", [0, 1])
def test_buffered_records_of_the_asked_partition_are_found_behind_others(cluster: FakeCluster, asked: int) -> None:
    cluster.add_topic("two", 2)
    for index in range(2):
        fill(cluster, 10, topic="two", index=index)

    async def main(runtime: Runtime) -> None:
        async with Consumer(
            "two", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", runtime=runtime
        ) as consumer:
            await asyncio.sleep(2)
            order = [cursor.topic_partition for cursor in consumer._fetcher.ready]
            assert len(order) == 2
            for partition in (order[asked], order[1 - asked]):
                records = await consumer.getmany(partition)
                assert [record.offset for record in records[partition]] == list(range(10))

    cluster.run(main)


def test_batches_come_as_columns(cluster: FakeCluster) -> None:
    fill(cluster, 95)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.seek_to_beginning()
            consumer.seek(T0, 33)
            rows: list[tuple[int, bytes | None, bytes | None, int]] = []
            while len(rows) < 62:
                for batch in await consumer.getmany_batches(timeout_ms=1_000):
                    offsets = range(batch.base_offset, batch.base_offset + len(batch))
                    rows.extend(zip(offsets, batch.keys, batch.values, batch.timestamps_ms, strict=True))
        assert rows == [(number, b"k", b"%06d" % number, number * 1_000) for number in range(33, 95)]

    cluster.run(main)


def test_a_batch_larger_than_the_fetch_limit_is_still_read(cluster: FakeCluster) -> None:
    fill(cluster, 2_000, batch=1_000)

    def whole_batches_only(broker: int, request: IncomingRequest) -> Response | None:
        body = request.body
        if not isinstance(body, FetchRequest):
            return None
        answer = cluster.brokers[broker].fetch(body)
        asked, given = body.topics[0].partitions[0], answer.responses[0].partitions[0]
        if len(given.records) <= asked.partition_max_bytes:
            return None
        cut = FetchPartitionResponse(
            partition_index=0, high_watermark=given.high_watermark, records=given.records[: asked.partition_max_bytes]
        )
        return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[cut])])

    cluster.intercept = whole_batches_only

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, max_partition_fetch_bytes=1_000) as consumer:
            seen = [(await consumer.getone(timeout_ms=5_000)).value for _ in range(2_000)]
        assert seen == numbered(0, 2_000)

    cluster.run(main)


def test_one_fetch_per_leader_is_in_flight(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 9)

    async def main(runtime: Runtime) -> None:
        async with Consumer(
            "many", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", runtime=runtime
        ) as consumer:
            await consumer.getmany(timeout_ms=5_050)
        assert cluster.asked(FetchRequest) <= 3 * 12

    cluster.run(main)


# ----------------------------------------------------------------------------------------------------------- positions
def test_seek_works_in_the_middle_of_a_batch(cluster: FakeCluster) -> None:
    fill(cluster, 100)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert (await consumer.getone(timeout_ms=1_000)).offset == 0
            for offset in (57, 3, 99, 57):
                consumer.seek(T0, offset)
                assert (await consumer.getone(timeout_ms=2_000)).offset == offset
            await consumer.seek_to_beginning(T0)
            assert (await consumer.getone(timeout_ms=2_000)).offset == 0
            await consumer.seek_to_end()
            assert await consumer.position(T0) == 100

    cluster.run(main)


def test_a_seek_does_not_wait_for_the_long_poll_under_way(cluster: FakeCluster) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime, fetch_max_wait_ms=30_000) as consumer:
            for _ in range(10):
                await consumer.getone(timeout_ms=1_000)
            await consumer.getmany(timeout_ms=1_000)
            start = loop.time()
            consumer.seek(T0, 3)
            assert (await consumer.getone(timeout_ms=40_000)).offset == 3
            return loop.time() - start

    assert cluster.run(main) < 0.1


def test_no_record_is_returned_while_the_position_is_being_requested(cluster: FakeCluster) -> None:
    """A long poll in flight may still bring records; they belong to the former position."""
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, fetch_max_wait_ms=30_000) as consumer:
            for _ in range(10):
                await consumer.getone(timeout_ms=1_000)
            await consumer.getmany(timeout_ms=1_000)
            cluster.intercept = lambda broker, request: isinstance(request.body, ListOffsetsRequest) or None
            with pytest.raises(CallTimedOut, match="the position in t-0 is not known"):
                await consumer.seek_to_end(timeout_ms=1_000)
            fill(cluster, 5)
            assert await consumer.getmany(timeout_ms=1_000) == {}
            assert consumer.connection_state(T0).state == "no-position"

    cluster.run(main)


def test_a_leader_is_not_asked_while_one_of_its_partitions_has_no_room(cluster: FakeCluster) -> None:
    """Else each long poll would leave that partition out, and it would get no records for as long as the poll."""
    cluster.add_topic("six", 6)
    full, empty = TopicPartition("six", 0), TopicPartition("six", 3)
    assert cluster.partitions[full].leader == cluster.partitions[empty].leader
    fill(cluster, 1_000, topic="six")

    async def main(runtime: Runtime) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap,
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=1_000,
            runtime=runtime,
        ) as consumer:
            consumer.assign([full, empty])
            await asyncio.sleep(10)
            assert cluster.asked(FetchRequest) == 2
            start = asyncio.get_running_loop().time()
            seen = 0
            while seen < 1_000:
                seen += len((await consumer.getmany(timeout_ms=1_000))[full])
            assert asyncio.get_running_loop().time() - start < 0.4

    cluster.run(main)


def test_pause_keeps_the_position_and_resume_continues(cluster: FakeCluster) -> None:
    fill(cluster, 100)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            for offset in range(13):
                assert (await consumer.getone(timeout_ms=1_000)).offset == offset
            consumer.pause(T0)
            assert await consumer.getmany(timeout_ms=1_000) == {}
            assert consumer.connection_state(T0).state == "paused"
            consumer.resume(T0)
            assert (await consumer.getone(timeout_ms=2_000)).offset == 13

    cluster.run(main)


def test_no_record_of_a_paused_partition_comes_from_the_buffer(cluster: FakeCluster) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await asyncio.sleep(1)  # the batch is buffered, and no record of it was returned yet
            consumer.pause(T0)
            assert await consumer.getmany(timeout_ms=1_000) == {}
            assert await consumer.getmany_batches(timeout_ms=1_000) == []
            with pytest.raises(CallTimedOut):
                await consumer.getone(timeout_ms=1_000)
            consumer.resume(T0)
            assert [record.offset for record in (await consumer.getmany())[T0]] == list(range(10))

    cluster.run(main)


def test_a_waiting_call_gets_what_is_buffered_once_it_is_resumed(cluster: FakeCluster) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime) as consumer:
            await asyncio.sleep(1)
            consumer.pause(T0)
            loop.call_later(2, consumer.resume, T0)
            start = loop.time()
            assert len((await consumer.getmany(timeout_ms=60_000))[T0]) == 10
            return loop.time() - start

    assert 2 <= cluster.run(main) < 2.1


def test_offsets_can_be_asked_for(cluster: FakeCluster) -> None:
    fill(cluster, 100)
    cluster.partition("t").trim_before(20)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert await consumer.beginning_offsets([T0]) == {T0: 20}
            assert await consumer.end_offsets([T0]) == {T0: 100}
            found = await consumer.offsets_for_times({T0: 41_500})
            answer = found[T0]
            assert answer is not None
            assert answer.offset == 42
            assert await consumer.offsets_for_times({T0: 10**12}) == {T0: None}
            await consumer.getone(timeout_ms=1_000)
            assert consumer.highwater(T0) == 100

    cluster.run(main)


def test_answers_of_leaders_are_told_with_epoch_and_high_watermark(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    told: list[FetchAnswer] = []

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            consumer.add_answer_callback(told.append)
            await consumer.getmany(timeout_ms=1_000)
            await asyncio.sleep(1)  # a long poll without records ends

    cluster.run(main)
    offsets = [(each.base_offset, each.end_offset, each.high_watermark) for each in told]
    assert offsets[:2] == [(0, 10, 10), (10, 10, 10)]
    found = cluster.partition("t")
    assert {(each.topic_partition, each.broker, each.leader_epoch) for each in told} == {(T0, found.leader, 0)}


def test_assign_reads_exactly_those_partitions(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 3)
    for index in range(3):
        fill(cluster, 5, topic="many", index=index)

    async def main(runtime: Runtime) -> None:
        chosen = TopicPartition("many", 2)
        async with Consumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", runtime=runtime
        ) as consumer:
            with pytest.raises(InvalidCall, match="nothing is assigned"):
                await consumer.getmany(timeout_ms=100)
            consumer.assign([chosen])
            assert consumer.assignment() == [chosen]
            records = [await consumer.getone(timeout_ms=1_000) for _ in range(5)]
            assert {record.partition for record in records} == {2}
            with pytest.raises(InvalidCall, match="many-0 is not assigned"):
                consumer.seek(TopicPartition("many", 0), 1)

    cluster.run(main)


@pytest.mark.parametrize("taken", [0, 1, 10, 15], ids=lambda count: f"after {count}")
@pytest.mark.parametrize("before", [[0, 1], [0]], ids=["both", "one more"])
def test_assign_skips_and_repeats_no_record_of_what_was_assigned_before(
    cluster: FakeCluster, taken: int, before: list[int]
) -> None:
    """What is buffered of it is fetched again, also where none or all of a batch was returned."""
    cluster.add_topic("many", 2)
    for index in range(2):
        fill(cluster, 30, topic="many", index=index)
    both = [TopicPartition("many", index) for index in range(2)]
    offsets: dict[TopicPartition, list[int]] = {partition: [] for partition in both}

    async def take(consumer: Consumer, count: int) -> None:
        for partition, records in (await consumer.getmany(timeout_ms=1_000, max_records=count)).items():
            offsets[partition] += [record.offset for record in records]

    async def main(runtime: Runtime) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", runtime=runtime
        ) as consumer:
            consumer.assign([both[index] for index in before])
            await asyncio.sleep(1)
            assert consumer._cursors[both[0]].chunks, "the client has fetched ahead"
            if taken:
                await take(consumer, taken)
            consumer.assign(both)
            while sum(map(len, offsets.values())) < 60:
                count = sum(map(len, offsets.values()))
                await take(consumer, 7)
                assert sum(map(len, offsets.values())) > count, "records were skipped"

    cluster.run(main)
    assert offsets == {partition: list(range(30)) for partition in both}


def test_out_of_range_follows_the_policy(cluster: FakeCluster) -> None:
    fill(cluster, 100)
    cluster.partition("t").trim_before(50)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            consumer.seek(T0, 3)
            assert (await consumer.getone(timeout_ms=2_000)).offset == 50

    cluster.run(main)


@pytest.mark.parametrize(("policy", "goes_on"), [("earliest", "start"), ("latest", "end")])
def test_a_position_that_retention_has_passed_is_not_moved_silently(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, policy: str, goes_on: str
) -> None:
    """With 'latest', the default, records that are still there are skipped."""
    fill(cluster, 100)
    cluster.partition("t").trim_before(50)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, auto_offset_reset=policy) as consumer:
            consumer.seek(T0, 3)
            await consumer.getmany(timeout_ms=1_000)
            assert await consumer.position(T0) in (100, 101) or policy == "earliest"

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        cluster.run(main)
    (line,) = [each.getMessage() for each in caplog.records]
    what = "offset 3 of t-0 is not in its leader's log"
    assert line.endswith(f"{what}: by auto_offset_reset, reading goes on at its {goes_on}")


def test_out_of_range_without_policy_is_raised_until_a_seek(cluster: FakeCluster) -> None:
    fill(cluster, 100)
    cluster.partition("t").trim_before(50)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, auto_offset_reset="none") as consumer:
            consumer.seek(T0, 3)
            for _ in range(2):
                with pytest.raises(OffsetOutOfRange, match="t-0"):
                    await consumer.getone(timeout_ms=2_000)
            consumer.seek(T0, 60)
            assert (await consumer.getone(timeout_ms=2_000)).offset == 60

    cluster.run(main)


def test_a_paused_partition_with_records_in_front_holds_no_other_back() -> None:
    def cursor(**fields: object) -> Any:
        return SimpleNamespace(**{"chunks": [b"x"], "paused": False, "topic_partition": T0, **fields})

    paused, emptied, other, wanted = (
        cursor(paused=True),
        cursor(chunks=[]),
        cursor(topic_partition=TopicPartition("t", 1)),
        cursor(),
    )
    ready = deque([paused, emptied, other, wanted])
    consumer = cast(Any, SimpleNamespace(_fetcher=SimpleNamespace(ready=ready)))
    assert Consumer._ready_cursor(consumer, [T0]) is wanted
    assert Consumer._ready_cursor(consumer, []) is wanted
    assert list(ready) == [wanted, other], "resume() adds the paused one again"
