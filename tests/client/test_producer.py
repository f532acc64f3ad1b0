"""The producer against fake brokers in simulated time."""

import asyncio
import sys
from typing import Any

import pytest

from minibroker.client.errors import (
    BufferTimedOut,
    ClientClosed,
    DeliveryAborted,
    DeliveryTimedOut,
    FlushTimedOut,
    InvalidCall,
    RecordTooLarge,
    UndeliveredRecords,
    UnknownTopicOrPartition,
    broker_error,
)
from minibroker.client.limits import UNKNOWN_TOPIC_GRACE_MS
from minibroker.client.producer.partitioner import murmur2_partitioner
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ProduceRequest,
)
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import numbered, on_produce, refuse_always


# ------------------------------------------------------------------------------------------------------ the usual case
def test_a_record_that_was_sent_and_awaited_is_in_the_log(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            metadata = await producer.send_and_wait("t", b"hello", key=b"k", headers=[("h", b"1")], timestamp_ms=5)
        assert (metadata.topic, metadata.partition, metadata.offset, metadata.leader_epoch) == ("t", 0, 0, 0)
        assert metadata.broker == cluster.partition("t").leader
        assert metadata.timestamp_ms == 5

    cluster.run(main)
    assert cluster.partition("t").values() == [b"hello"]


def test_leaving_the_block_delivers_what_is_buffered(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=10_000, runtime=runtime) as producer:
            for value in numbered(5_000):
                await producer.send("t", value)

    cluster.run(main)
    assert cluster.partition("t").values() == numbered(5_000)


def test_each_delivery_names_its_own_offset(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> list[int | None]:
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1_024, runtime=runtime) as producer:
            deliveries = [await producer.send("t", value) for value in numbered(500)]
            assert not deliveries[-1].done
            metadata = [await delivery for delivery in deliveries]
            assert deliveries[-1].done
            return [entry.offset for entry in metadata]

    assert cluster.run(main) == list(range(500))


def test_the_same_key_always_goes_to_the_same_partition(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 5)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            for number in range(200):
                metadata = await producer.send("many", b"v", key=b"key-%d" % (number % 17))
                expected = murmur2_partitioner(b"key-%d" % (number % 17), 5)
                assert metadata.topic_partition.partition == expected

    cluster.run(main)


def test_keyless_records_stick_to_a_partition_for_a_batch_and_reach_all(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 5)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=1_024, runtime=runtime) as producer:
            for value in numbered(5_000):
                await producer.send("many", value)

    cluster.run(main)
    counts = [len(cluster.partition("many", index).values()) for index in range(5)]
    assert sum(counts) == 5_000
    assert min(counts) > 0
    batches = sum(len(cluster.partition("many", index).batches) for index in range(5))
    assert batches < 5_000 / 30, "records were spread one by one"


def test_a_null_value_and_a_null_key_are_sent(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", None, key=b"k")

    cluster.run(main)
    assert cluster.partition("t").values() == [None]


def test_one_request_carries_the_batches_of_several_partitions(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 6)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=5, runtime=runtime) as producer:
            await producer.partitions_for("many")
            for index in range(6):
                await producer.send("many", b"v", partition=index)

    cluster.run(main)
    assert cluster.asked(ProduceRequest) == 3, "two of six partitions for each of three leaders"


def test_acks_0_returns_no_offset_but_closing_waits_for_the_broker(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, acks=0, runtime=runtime) as producer:
            metadata = await producer.send_and_wait("t", b"first")
            assert metadata.offset is None
            for value in numbered(3_000):
                await producer.send("t", value)

    cluster.run(main)
    assert cluster.partition("t").values() == [b"first", *numbered(3_000)]


# ------------------------------------------------------------------------------------------------- limits and deadlines
def test_send_waits_while_memory_is_used_up_and_continues_when_it_is_free(cluster: FakeCluster) -> None:
    most = 0

    async def main(runtime: Runtime) -> None:
        nonlocal most
        async with Producer(
            bootstrap_servers=cluster.bootstrap, batch_size=2_048, buffer_memory=16_384, linger_ms=0, runtime=runtime
        ) as producer:
            for value in numbered(20_000):
                await producer.send("t", value)
                most = max(most, producer.buffered_bytes)

    cluster.run(main)
    assert most <= 16_384
    assert cluster.partition("t").values() == numbered(20_000)


def test_a_small_batch_in_flight_takes_no_more_memory_than_its_size(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=2_000, runtime=runtime
        ) as producer:
            await producer.send_and_wait("t", b"a")
            assert producer.buffered_bytes == 0
            on_produce(cluster, True)
            delivery = await producer.send("t", b"b")
            await asyncio.sleep(0.1)
            assert 0 < producer.buffered_bytes < 200
            with pytest.raises(DeliveryTimedOut):
                await delivery
            assert producer.buffered_bytes == 0

    cluster.run(main)


def test_an_open_batch_takes_memory_as_it_fills(cluster: FakeCluster) -> None:
    """Else a few hundred partitions with one record each would use up the memory of a few full batches."""

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, batch_size=131_072, linger_ms=1_000, runtime=runtime
        ) as producer:
            await producer.send("t", b"a", partition=0)
            assert producer.buffered_bytes <= 4_096
            for _ in range(100):
                await producer.send("t", b"x" * 500, partition=0)
            assert 50_000 < producer.buffered_bytes <= 131_072
        assert producer.buffered_bytes == 0

    cluster.run(main)
    assert cluster.partition("t").values() == [b"a"] + [b"x" * 500] * 100
    assert len(cluster.partition("t").batches) == 1


def test_batches_are_sent_in_the_order_in_which_they_were_opened(cluster: FakeCluster) -> None:
    cluster.add_topic("many", 5)

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()

        async def one(partition: int, pause: float) -> float:
            await asyncio.sleep(pause)
            start = loop.time()
            await producer.send_and_wait("many", b"x", partition=partition)
            return loop.time() - start

        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=20, runtime=runtime) as producer:
            await producer.send_and_wait("many", b"first", partition=0)
            waits = await asyncio.gather(*[one(index, index * 0.0035) for index in range(5)])
        assert all(0.02 <= wait < 0.03 for wait in waits)

    cluster.run(main)


def test_a_brokers_timeout_is_shorter_than_the_clients(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, request_timeout_ms=5_000, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"a")

    cluster.run(main)
    _, request = cluster.requests[ProduceRequest][0]
    assert isinstance(request, ProduceRequest)
    assert request.timeout_ms == 4_500


def test_send_gives_up_waiting_for_memory_after_max_block(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        producer = Producer(
            bootstrap_servers=cluster.bootstrap,
            batch_size=1_024,
            buffer_memory=4_096,
            max_block_ms=2_000,
            runtime=runtime,
        )
        await producer.start()
        start = loop.time()
        with pytest.raises(BufferTimedOut, match=r"buffer_memory .4096 bytes. stayed full .* NOT_ENOUGH_REPLICAS"):
            for value in numbered(1_000):
                await producer.send("t", value)
        assert 2 <= loop.time() - start < 2.2
        with pytest.raises(FlushTimedOut):
            await producer.close(timeout_ms=100)

    cluster.run(main)


def test_a_cancelled_send_leaves_the_memory_to_the_next_call(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, batch_size=1_024, buffer_memory=1_024, runtime=runtime
        ) as producer:
            first = await producer.send("t", b"x" * 500)
            waiting = [asyncio.create_task(producer.send("t", b"y" * 500)) for _ in range(3)]
            await asyncio.sleep(1)
            waiting[0].cancel()
            cluster.intercept = lambda broker, request: None
            await first
            deliveries = await asyncio.gather(*waiting, return_exceptions=True)
            assert [isinstance(delivery, asyncio.CancelledError) for delivery in deliveries] == [True, False, False]

    cluster.run(main)


def test_a_record_that_cannot_fit_is_refused_at_once(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, max_request_size=10_000, runtime=runtime) as producer:
            with pytest.raises(RecordTooLarge, match="max_request_size is 10000"):
                await producer.send("t", b"x" * 10_000)
            await producer.send_and_wait("t", b"x" * 9_000)

    cluster.run(main)


def test_an_unknown_topic_is_an_error_after_a_short_grace(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            start = loop.time()
            with pytest.raises(UnknownTopicOrPartition, match="'nosuch'"):
                await producer.send("nosuch", b"x")
            assert loop.time() - start < UNKNOWN_TOPIC_GRACE_MS / 1000 + 1

    cluster.run(main)


def test_a_topic_that_was_just_created_is_waited_for(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            asyncio.get_running_loop().call_later(2, cluster.add_topic, "new")
            await producer.send_and_wait("new", b"x")

    cluster.run(main)


def test_a_partition_beyond_the_last_is_refused(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            with pytest.raises(UnknownTopicOrPartition, match=r"t-7.*has 1 partition"):
                await producer.send("t", b"x", partition=7)

    cluster.run(main)


def test_text_instead_of_bytes_is_refused_with_advice(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.partitions_for("t")
            for wrong in ({"value": "text"}, {"value": b"x", "key": "text"}, {"value": b"x", "headers": [("a", 1)]}):
                with pytest.raises(InvalidCall):
                    await producer.send("t", **wrong)

    cluster.run(main)


@pytest.mark.parametrize("timestamp_ms", [2**63, -(2**63) - 1, 1.5])
def test_a_timestamp_that_no_batch_can_hold_is_refused(cluster: FakeCluster, timestamp_ms: Any) -> None:
    """Refused at once: when the batch is packed, it would make other records fail."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"x", timestamp_ms=2**63 - 1)
            with pytest.raises(InvalidCall, match="64 bits"):
                await producer.send("t", b"x", timestamp_ms=timestamp_ms)
            with pytest.raises(InvalidCall, match="64 bits"):
                await producer.send_many("t", [b"x"], timestamp_ms=timestamp_ms)

    cluster.run(main)


def test_no_call_hangs_when_every_broker_is_down(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        producer = Producer(
            bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=5_000, max_block_ms=2_000, runtime=runtime
        )
        await producer.start()
        await producer.send_and_wait("t", b"a")
        for broker in cluster.brokers:
            cluster.kill(broker)
        start = loop.time()
        with pytest.raises(DeliveryTimedOut, match="last error"):
            await producer.send_and_wait("t", b"b")
        assert loop.time() - start < 5.5
        with pytest.raises(BufferTimedOut):
            await producer.send("other", b"c")
        await producer.send("t", b"d")
        start = loop.time()
        with pytest.raises(UndeliveredRecords, match="1 record could not be delivered"):
            await producer.close()
        assert loop.time() - start < 5.5

    cluster.run(main)


def test_an_advertised_address_that_cannot_be_reached_is_diagnosed(cluster: FakeCluster) -> None:
    cluster.advertised[1] = ("inside-the-container", 19_092)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers="broker2:9092", delivery_timeout_ms=2_000, runtime=runtime) as producer:
            with pytest.raises(DeliveryTimedOut) as caught:
                await producer.send_and_wait("t", b"x")
            assert "bootstrap broker2:9092 answered but advertises broker 1 as inside-the-container:19092" in str(
                caught.value
            )
            assert "check advertised.listeners" in str(caught.value)

    cluster.run(main)


# -------------------------------------------------------------------------------------------------------- flush, close
def test_flush_reports_failures_that_were_not_looked_at(cluster: FakeCluster) -> None:
    on_produce(cluster, ErrorCode.INVALID_RECORD)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send("t", b"x")
            with pytest.raises(UndeliveredRecords, match="INVALID_RECORD"):
                await producer.flush()
            await producer.flush()  # reported only once

    cluster.run(main)


def test_a_failure_that_was_awaited_is_not_reported_again(cluster: FakeCluster) -> None:
    on_produce(cluster, ErrorCode.INVALID_RECORD)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            delivery = await producer.send("t", b"x")
            with pytest.raises(type(broker_error(ErrorCode.INVALID_RECORD))):
                await delivery

    cluster.run(main)


def test_flush_ends_at_its_deadline(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        await producer.start()
        delivery = await producer.send("t", b"x")
        with pytest.raises(FlushTimedOut, match=r"1 batch for t-0 .* NOT_ENOUGH_REPLICAS"):
            await producer.flush(timeout_ms=500)
        with pytest.raises(FlushTimedOut):
            await producer.close(timeout_ms=500)
        with pytest.raises(DeliveryAborted):
            await delivery

    cluster.run(main)


def test_an_exception_in_the_block_is_not_hidden_by_a_failed_flush(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def main(runtime: Runtime) -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            async with Producer(
                bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=1_000, runtime=runtime
            ) as producer:
                await producer.send("t", b"x")
                _ = 1 // 0
        assert "could not deliver everything" in caught.value.__notes__[0]

    cluster.run(main)


def test_a_cancelled_block_closes_within_a_second(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def block(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send("t", b"x")
            await asyncio.Event().wait()

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(block(runtime))
        await asyncio.sleep(0.5)
        start = loop.time()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        return loop.time() - start

    assert 0.9 < cluster.run(main) < 1.2


def test_a_cancelled_block_does_not_wait_for_records_that_have_waited_in_vain(cluster: FakeCluster) -> None:
    """Ctrl-C took a second, and the reason why records had waited was not told."""
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)
    deliveries = []

    async def block(runtime: Runtime) -> None:
        with pytest.raises(asyncio.CancelledError) as cancelled:
            async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
                deliveries.append(await producer.send("t", b"x"))
                await asyncio.Event().wait()
        if sys.version_info >= (3, 11, 3):  # before, asyncio.timeout fails in a task that is cancelled (gh-102780)
            assert "1 batch for t-0 not acknowledged after 0 ms" in cancelled.value.__notes__[0]

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(block(runtime))
        await asyncio.sleep(2)
        start = loop.time()
        task.cancel()
        await task
        with pytest.raises(DeliveryAborted, match=r"nothing was written\); last error: NOT_ENOUGH_REPLICAS from"):
            deliveries[0].result()
        return loop.time() - start

    assert cluster.run(main) < 0.1


def test_a_closed_producer_raises_client_closed(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        with pytest.raises(ClientClosed):
            await producer.send("t", b"x")
        await producer.start()
        await producer.send_and_wait("t", b"x")
        await producer.close()
        await producer.close()
        with pytest.raises(ClientClosed):
            await producer.send("t", b"x")

    cluster.run(main)


def test_invalid_parameters_are_refused() -> None:
    for wrong in (
        {"acks": 2},
        {"acks": 1, "enable_idempotence": True},
        {"max_in_flight_requests_per_connection": 6},
        {"linger_ms": -1},
        {"batch_size": 10},
        {"bootstrap_servers": ""},
        {"bootstrap_servers": "host:port"},
        {"delivery_timeout_ms": 1, "linger_ms": 5},
    ):
        with pytest.raises(InvalidCall):
            Producer(**wrong)
