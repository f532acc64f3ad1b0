"""`send_many` is a loop of `send` at a fraction of its cost: the same log, the same limits, the same errors."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.client.errors import (
    BufferTimedOut,
    ClientClosed,
    DeliveryTimedOut,
    InvalidCall,
    MinibrokerError,
    RecordTooLarge,
    UndeliveredRecords,
    UnknownTopicOrPartition,
)
from minibroker.client.limits import YIELD_BYTES, Deadline
from minibroker.client.producer.deliveries import Deliveries, Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import DecodedRecord, decode_records
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import numbered, on_produce, refuse_always


def opened(cluster: FakeCluster, runtime: Runtime, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, **settings)


# ------------------------------------------------------------------------------------------------------ the usual case
def test_records_are_in_the_log_in_the_order_of_the_call(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, batch_size=1_024) as producer:
            deliveries = await producer.send_many("t", numbered(5_000))
            await deliveries
            assert deliveries.done
            assert [delivery.result().offset for delivery in deliveries] == list(range(5_000))

    cluster.run(main)
    assert cluster.partition("t").values() == numbered(5_000)


def test_many_records_are_sent_with_less_memory_than_a_batch(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        limits: dict[str, Any] = {"batch_size": 131_072, "buffer_memory": 20_000, "max_block_ms": 1_000}
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, **limits) as producer:
            await producer.send("t", b"a batch is open")
            sending = asyncio.create_task(producer.send_many("t", [b"x" * 300] * 400))
            held = []
            while not sending.done():
                await asyncio.sleep(0.00001)
                held.append(producer.buffered_bytes)
            await (await sending)
            assert max(held) <= 20_000

    cluster.run(main)
    assert len(cluster.partition("t").values()) == 401


def test_a_call_queues_behind_waiting_calls(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime) as producer:
            await producer.send_and_wait("t", b"the topic is known")
            async with producer._waiting_sends.first_in_queue("t", Deadline(1_000)):
                behind = asyncio.create_task(producer.send_many("t", [b"x"]))
                await asyncio.sleep(0.01)
                assert not behind.done()
            await (await behind)

    cluster.run(main)


def test_deliveries_are_indexed_by_the_order_of_the_call(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, batch_size=1_024) as producer:
            await producer.send_and_wait("t", b"one before")
            deliveries = await producer.send_many("t", numbered(500), timestamp_ms=77)
            assert len(deliveries) == 500
            assert (await deliveries[123]).offset == 124
            assert (await deliveries[-1]).offset == 500
            assert (await deliveries[-1]).timestamp_ms == deliveries.timestamp_ms == 77
            assert [(await delivery).offset for delivery in deliveries[10:14:2]] == [11, 13]
            for outside in (500, -501):
                with pytest.raises(IndexError, match="of 500"):
                    deliveries[outside]

    cluster.run(main)


def test_partition_headers_and_timestamp_apply_to_all_records(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 3)

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime) as producer:
            await producer.send_many("many", [b"a", b"b"], partition=2, headers=[("h", b"1")], timestamp_ms=5)

    cluster.run(main)
    assert [(record.value, record.timestamp_ms, record.headers) for record in records_of(cluster, "many", 2)] == [
        (b"a", 5, (("h", b"1"),)),
        (b"b", 5, (("h", b"1"),)),
    ]


def test_all_records_of_a_call_carry_its_time(cluster: FakeCluster) -> None:
    """Even of records that are taken after a wait."""

    async def main(runtime: Runtime) -> int:
        async with opened(cluster, runtime, batch_size=1_024, buffer_memory=2_048) as producer:
            await producer.send_and_wait("t", b"warm up")
            before = runtime.clock.now_ms()
            deliveries = await producer.send_many("t", numbered(2_000))
            assert runtime.clock.now_ms() > before
            assert deliveries.timestamp_ms == before
        return before

    before = cluster.run(main)
    assert {record.timestamp_ms for record in records_of(cluster, "t")[1:]} == {before}


@pytest.mark.parametrize("linger_ms", [0, 5])
def test_records_of_a_call_share_a_batch(cluster: FakeCluster, linger_ms: int) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, linger_ms=linger_ms) as producer:
            await producer.send_and_wait("t", b"warm up")
            start = asyncio.get_running_loop().time()
            await (await producer.send_many("t", numbered(100)))
            assert asyncio.get_running_loop().time() - start < 0.001 * linger_ms + 0.01
            await (await producer.send_many("t", [b"single"]))

    cluster.run(main)
    assert [header.record_count for header in cluster.partition("t").headers()] == [1, 100, 1]


def test_an_empty_call_is_done_at_once(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime) as producer:
            deliveries = await producer.send_many("t", [])
            await deliveries
            assert (len(deliveries), deliveries.done) == (0, True)

    cluster.run(main)


def test_later_changes_of_the_callers_list_have_no_effect(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, batch_size=1_024, buffer_memory=2_048) as producer:
            values: list[Any] = numbered(1_000)
            last = bytearray(b"mutable")
            sending = asyncio.create_task(producer.send_many("t", values))
            await asyncio.sleep(0)
            values[:] = [last]
            await sending
            sending = asyncio.create_task(producer.send_many("t", values))
            await asyncio.sleep(0)
            last[:] = b"changed"
            await sending

    cluster.run(main)
    assert cluster.partition("t").values() == [*numbered(1_000), b"mutable"]


LENGTHS = st.none() | st.sampled_from([0, 1, 5, 30, 120, 127, 128, 255, 256, 700, 70_000])
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "lengths": st.lists(LENGTHS, max_size=40) | st.lists(st.integers(9, 90), max_size=300),
            "keyed": st.booleans(),
            "partition": st.none() | st.just(0),
            "headers": st.sampled_from([(), (("name", b"content"), ("null", None))]),
        }
    ),
    min_size=1,
    max_size=4,
)


def arguments(number: int, call: dict[str, Any]) -> dict[str, Any]:
    """Of a call of `send_many`."""
    values = [None if length is None else b"%d" % (place % 10) * length for place, length in enumerate(call["lengths"])]
    keys = [None if place % 5 == 4 else b"key-%d" % (place % 7) for place in range(len(values))]
    more = {"partition": call["partition"], "headers": call["headers"], "timestamp_ms": number}
    return {"values": values, "keys": keys if call["keyed"] else None, **more}


async def one_by_one(
    producer: Producer, values: list[bytes | None], keys: list[bytes | None] | None, **more: Any
) -> list[Delivery]:
    pairs = zip(values, keys or [None] * len(values), strict=True)
    return [await producer.send("many", value, key=key, **more) for value, key in pairs]


async def at_once(producer: Producer, **call: Any) -> Deliveries:
    return await producer.send_many("many", **call)


@settings(max_examples=60, deadline=None)
@given(CALLS, st.sampled_from([1_024, 4_096, 131_072]), st.sampled_from([(100_000, 1), (100_000_000, 4)]))
def test_the_log_equals_that_of_a_loop_of_send(
    calls: list[dict[str, Any]], batch_size: int, memory_and_partitions: tuple[int, int]
) -> None:
    """With little memory only one partition is compared: there the end of a wait decides where keyless records go."""
    memory, partitions = memory_and_partitions
    logs = []
    for way in (one_by_one, at_once):
        cluster = FakeCluster(SimulatedWorld(seed=7))
        cluster.add_topic("many", partitions)

        async def main(runtime: Runtime, cluster: FakeCluster = cluster, way: Any = way) -> None:
            async with opened(
                cluster, runtime, batch_size=batch_size, buffer_memory=memory, linger_ms=1_000
            ) as producer:
                for number, call in enumerate(calls):
                    given = arguments(number, call)
                    deliveries = await way(producer, **given)
                    assert len(deliveries) == len(given["values"])
                    await producer.flush()
                    logs_now = [records_of(cluster, "many", index) for index in range(partitions)]
                    for delivery, value in zip(deliveries, given["values"], strict=True):
                        written = delivery.result()
                        found = logs_now[written.partition][written.offset or 0]
                        assert (found.value, found.timestamp_ms) == (value, number)

        cluster.run(main)
        logs.append([records_of(cluster, "many", index) for index in range(partitions)])
    assert logs[0] == logs[1]


# ----------------------------------------------------------------------------------------------- wrong from the start
def test_with_one_wrong_record_none_is_taken(cluster: FakeCluster) -> None:
    wrong: list[tuple[type[Exception], str, dict[str, Any]]] = [
        (RecordTooLarge, "max_request_size is 10000", {"values": [b"a", b"x" * 10_000, b"b"]}),
        (RecordTooLarge, "max_request_size is 10000", {"values": [b"a", b"x" * 5_000], "keys": [b"", b"y" * 5_000]}),
        (InvalidCall, "value is str", {"values": [b"a", "text"]}),
        (InvalidCall, "key is int", {"values": [b"a", b"b"], "keys": [b"k", 1]}),
        (InvalidCall, "values is one value: give a list, or `send` one record", {"values": b"abc"}),
        (InvalidCall, "keys is one key: give a list", {"values": [b"a"], "keys": "k"}),
        (InvalidCall, "2 values, but 3 keys", {"values": [b"a", b"b"], "keys": [None] * 3}),
        (InvalidCall, "not a pair", {"values": [b"a"], "headers": [("a", 1)]}),
        (UnknownTopicOrPartition, "t-7.*has 1 partition", {"values": [b"a"], "partition": 7}),
    ]

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, max_request_size=10_000) as producer:
            for error, text, call in wrong:
                with pytest.raises(error, match=text):
                    await producer.send_many("t", **call)
            await producer.send_many("t", [b"x" * 5_000, b""], keys=[b"", b"y" * 5_000])
        with pytest.raises(ClientClosed):
            await producer.send_many("t", [b"late"])

    cluster.run(main)
    assert cluster.partition("t").values() == [b"x" * 5_000, b""]


def test_a_partitioner_that_raises_for_one_key_takes_no_record(cluster: FakeCluster) -> None:
    def partitioner(key: bytes, count: int) -> int:
        return int(key) % count

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, partitioner=partitioner) as producer:
            with pytest.raises(ValueError, match="not a number"):
                await producer.send_many("t", [b"a", b"b"], keys=[b"1", b"not a number"])

    cluster.run(main)
    assert cluster.partition("t").values() == []


# ----------------------------------------------------------------------------------------------- wrong in the middle
def test_the_memory_limit_holds_and_calls_wait_for_memory(cluster: FakeCluster) -> None:
    most = 0

    async def main(runtime: Runtime) -> None:
        nonlocal most
        async with opened(cluster, runtime, batch_size=2_048, buffer_memory=16_384) as producer:
            sending = asyncio.create_task(producer.send_many("t", numbered(20_000)))
            while not sending.done():
                most = max(most, producer.buffered_bytes)
                await asyncio.sleep(0.0001)

    cluster.run(main)
    assert 8_192 < most <= 16_384
    assert cluster.partition("t").values() == numbered(20_000)


def test_when_memory_stays_full_the_error_says_what_was_taken(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def main(runtime: Runtime) -> int:
        async with opened(cluster, runtime, batch_size=1_024, buffer_memory=4_096, max_block_ms=2_000) as producer:
            start = asyncio.get_running_loop().time()
            with pytest.raises(BufferTimedOut, match="stayed full") as caught:
                await producer.send_many("t", numbered(1_000))
            assert 2 <= asyncio.get_running_loop().time() - start < 2.5
            taken = caught.value.taken
            assert taken is not None
            assert 100 < len(taken) < 300
            cluster.intercept = lambda broker, request: None
            await taken
            await producer.send_many("t", numbered(1_000)[len(taken) :])
            return len(taken)

    cluster.run(main)
    assert cluster.partition("t").values() == numbered(1_000)


def test_a_call_with_progress_may_take_longer_than_max_block(cluster: FakeCluster) -> None:
    """max_block_ms limits the time without room for one more record."""
    cluster.intercept = lambda broker, request: None

    async def main(runtime: Runtime) -> float:
        async with opened(cluster, runtime, batch_size=1_024, buffer_memory=1_024, max_block_ms=50) as producer:
            await producer.send_and_wait("t", b"warm up")
            start = asyncio.get_running_loop().time()
            await producer.send_many("t", numbered(10_000))
            return asyncio.get_running_loop().time() - start

    assert cluster.run(main) > 0.05
    assert cluster.partition("t").values()[1:] == numbered(10_000)


def test_a_cancelled_call_leaves_its_first_records(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, batch_size=1_024, buffer_memory=4_096) as producer:
            await producer.send_and_wait("t", b"warm up")
            on_produce(cluster, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 20)
            sending = asyncio.create_task(producer.send_many("t", numbered(1_000)))
            await asyncio.sleep(0.05)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            await producer.send("t", b"next")

    cluster.run(main)
    values = cluster.partition("t").values()
    taken = len(values) - 2
    assert 100 < taken < 300
    assert values == [b"warm up", *numbered(taken), b"next"]


def test_closing_ends_a_call_that_waits(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def main(runtime: Runtime) -> None:
        producer = opened(cluster, runtime, batch_size=1_024, buffer_memory=4_096)
        await producer.start()
        sending = asyncio.create_task(producer.send_many("t", numbered(1_000)))
        await asyncio.sleep(1)
        with pytest.raises(MinibrokerError):
            await producer.close(timeout_ms=100)
        with pytest.raises(ClientClosed) as caught:
            await sending
        assert caught.value.taken is not None
        assert 100 < len(caught.value.taken) < 300

    cluster.run(main)


# ------------------------------------------------------------------------------------------------------
def test_awaiting_all_raises_the_error_of_the_first_that_failed(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 2)

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, delivery_timeout_ms=2_000) as producer:
            await producer.partitions_for("many")
            keys = [b"%d" % number for number in range(10)]
            cluster.partition("many", 0).leader = None
            refuse_always(cluster, ErrorCode.INVALID_RECORD)
            deliveries = await producer.send_many("many", numbered(10), keys=keys)
            with pytest.raises(MinibrokerError, match="INVALID_RECORD"):
                await deliveries
            with pytest.raises(MinibrokerError, match="INVALID_RECORD"):
                deliveries[0].result()
            await producer.flush()  # awaited, so not reported

    cluster.run(main)


def test_flush_reports_failures_that_were_not_awaited(cluster: FakeCluster) -> None:
    on_produce(cluster, ErrorCode.INVALID_RECORD)

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime) as producer:
            deliveries = await producer.send_many("t", numbered(10))
            with pytest.raises(UndeliveredRecords, match=r"10 records .*INVALID_RECORD"):
                await producer.flush()
            assert deliveries.done

    cluster.run(main)


def test_deliveries_follow_their_records_into_split_batches(cluster: FakeCluster) -> None:
    on_produce(cluster, None, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE)

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime) as producer:
            await producer.send_and_wait("t", b"warm up")
            deliveries = await producer.send_many("t", [b"x" * 500] * 100)
            await deliveries
            assert [delivery.result().offset for delivery in deliveries] == list(range(1, 101))

    cluster.run(main)
    assert len(cluster.partition("t").batches) > 2


def test_a_part_that_failed_fails_only_its_own_records(cluster: FakeCluster) -> None:
    on_produce(cluster, None, ErrorCode.MESSAGE_TOO_LARGE, None, ErrorCode.INVALID_RECORD)

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, max_in_flight_requests_per_connection=1) as producer:
            await producer.send_and_wait("t", b"warm up")
            deliveries = await producer.send_many("t", [b"x" * 500] * 100)
            with pytest.raises(MinibrokerError, match="INVALID_RECORD"):
                await deliveries
            assert deliveries[0].result().offset == 1
            with pytest.raises(MinibrokerError, match="INVALID_RECORD"):
                deliveries[99].result()

    cluster.run(main)


def test_a_call_without_end_lets_the_loop_run(cluster: FakeCluster) -> None:
    """Else nothing would be sent before all records are taken, and other tasks would not run."""
    taken: list[int] = []

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, batch_size=16_384) as producer:
            await producer.send_and_wait("t", b"warm up")
            sending = asyncio.create_task(producer.send_many("t", [b"x" * 1_000] * 1_000))
            for _ in range(10):
                taken.append(producer.buffered_bytes)
                await asyncio.sleep(0)
            await sending

    cluster.run(main)
    assert taken[-1] > 300_000
    assert all(after - before <= YIELD_BYTES + 2 * 16_384 for before, after in pairwise(taken))


def test_calls_that_wait_are_not_overtaken(cluster: FakeCluster) -> None:
    """A later call may only come between the records of an earlier call if that one has more than fit at once."""
    calls = [numbered(1_000)[first : first + (9 if first % 20 else 1)] for first in range(0, 1_000, 10)]

    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, batch_size=1_024, buffer_memory=2_048) as producer:
            sending: list[asyncio.Task[Any]] = []
            for values in calls:
                call: Any = producer.send_many("t", values) if len(values) > 1 else producer.send("t", values[0])
                sending.append(asyncio.create_task(call))
                await asyncio.sleep(0.0001)
            await asyncio.gather(*sending)

    cluster.run(main)
    values = cluster.partition("t").values()
    for call in calls:
        places = [values.index(value) for value in call]
        assert places == sorted(places)
    first_places = [values.index(call[0]) for call in calls]
    assert first_places == sorted(first_places)
    assert len(values) == sum(map(len, calls))


def test_no_call_hangs_when_every_broker_is_down(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with opened(cluster, runtime, delivery_timeout_ms=3_000, max_block_ms=1_000) as producer:
            await producer.send_and_wait("t", b"a")
            for broker in cluster.brokers:
                cluster.kill(broker)
            with pytest.raises(BufferTimedOut) as caught:
                await producer.send_many("other", numbered(10))
            assert caught.value.taken is not None
            assert len(caught.value.taken) == 0
            with pytest.raises(DeliveryTimedOut):
                await (await producer.send_many("t", numbered(10)))

    cluster.run(main)


def records_of(cluster: FakeCluster, topic: str, index: int = 0) -> list[DecodedRecord]:
    return [record for batch in cluster.partition(topic, index).batches for record in decode_records(batch)]
