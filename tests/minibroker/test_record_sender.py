"""The outcomes of the records that `produce` sends, counted and reported."""

import asyncio
import io

import pytest

from minibroker.client.errors import BufferTimedOut, FlushTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.files.acked_list import parse_trailer, record_checksum
from minibroker.protocol.record_batch import decode_records
from minibroker.records.record_sender import RecordSender
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import numbered, on_produce, refuse_always


@pytest.fixture
def cluster() -> FakeCluster:
    fake = FakeCluster(SimulatedWorld(seed=7))
    fake.add_topic("t")
    return fake


def test_every_acknowledged_record_is_counted(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            sender = RecordSender(producer, "t")
            await sender.send_many(numbered(10_000))
            await sender.send(b"one")
            await sender.send_many([b"a", b"b"], keys=[b"k", None])
            tally = await sender.finish()
        assert (tally.sent, tally.acknowledged, tally.in_doubt, tally.failed) == (10_003, 10_003, 0, 0)
        assert tally.sent_bytes == tally.acknowledged_bytes == 60_005

    cluster.run(main)
    assert cluster.partition("t").values() == [*numbered(10_000), b"one", b"a", b"b"]


def test_the_report_lists_each_record(cluster: FakeCluster) -> None:
    report = io.BytesIO()

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            sender = RecordSender(producer, "t", report=report)
            await sender.send_many(numbered(2), keys=[b"k", None], headers=(("h", b"1"),))
            await sender.send(None, b"k")
            assert (await sender.finish()).acknowledged == 3
            sender.end_report()
            sender.end_report()

    cluster.run(main)
    *lines, end = report.getvalue().splitlines(keepends=True)
    assert lines[0] == b"#minibroker-acked 2 acks=all\n"
    assert lines[1].startswith(b"#topic t ") and len(lines[1]) > len(b"#topic t \n")
    records = [record for batch in cluster.partition("t").batches for record in decode_records(batch)]
    assert lines[2:] == [
        b"t\t0\t%d\t%08x\n" % (each.offset, record_checksum(each.timestamp_ms, each.key, each.value, each.headers))
        for each in records
    ]
    assert [(each.key, each.value, each.headers) for each in records] == [
        (b"k", b"000000", (("h", b"1"),)),
        (None, b"000001", (("h", b"1"),)),
        (b"k", None, ()),
    ]
    assert end == b"#end 3 %08x\n" % crc32c(b"".join(lines))


def test_failed_records_are_counted_apart_from_the_others_of_their_call(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            batch_size=1_024,
            max_in_flight_requests_per_connection=1,
            runtime=runtime,
        ) as producer:
            sender = RecordSender(producer, "t")
            await sender.send_many([b"warm up"])
            await sender.finish()
            on_produce(cluster, ErrorCode.INVALID_RECORD)
            await sender.send_many(numbered(1_000))
            tally = await sender.finish()
        assert tally.sent == 1_001
        assert 0 < tally.failed < 1_000
        assert tally.acknowledged == 1_001 - tally.failed
        assert tally.acknowledged_bytes == 7 + 6 * (1_000 - tally.failed)
        assert str(tally.first_failure).startswith("INVALID_RECORD")
        assert tally.first_failed is not None and 2 <= tally.first_failed <= 1_001

    cluster.run(main)


def test_accepted_records_of_a_call_that_times_out_count_as_sent(cluster: FakeCluster) -> None:
    refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

    async def main(runtime: Runtime) -> None:
        producer = Producer(
            bootstrap_servers=cluster.bootstrap,
            batch_size=1_024,
            buffer_memory=4_096,
            max_block_ms=100,
            runtime=runtime,
        )
        await producer.start()
        sender = RecordSender(producer, "t")
        with pytest.raises(BufferTimedOut):
            await sender.send_many(numbered(1_000))
        assert 100 < sender.tally.sent < 300
        assert sender.tally.sent_bytes == 6 * sender.tally.sent
        with pytest.raises(FlushTimedOut):
            await producer.close(timeout_ms=100)

    cluster.run(main)


def test_accepted_records_of_a_cancelled_call_are_counted_and_reported(cluster: FakeCluster) -> None:
    report = io.BytesIO()

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, batch_size=1_024, buffer_memory=4_096, runtime=runtime
        ) as producer:
            sender = RecordSender(producer, "t", report=report)
            sending = asyncio.ensure_future(sender.send_many(numbered(10_000)))
            await asyncio.sleep(0.05)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
        sender.collect()
        sender.end_report()
        assert 0 < sender.tally.acknowledged == sender.tally.sent < 10_000

    cluster.run(main)
    assert parse_trailer(report.getvalue().splitlines(keepends=True)[-1]) is not None
    assert report.getvalue().count(b"t\t0\t") == cluster.partition("t").end_offset
