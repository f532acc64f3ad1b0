"""A call that waits has open batches sent at once, and only for as long as it waits."""

import asyncio

import pytest

from minibroker.client.errors import FlushTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import on_produce

LINGER_SECONDS = 0.2


async def seconds_of_one(producer: Producer) -> float:
    """Time until a record is acknowledged that no call of `flush` waits for."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await producer.send_and_wait("t", b"x")
    return loop.time() - began


@pytest.mark.parametrize("gives_up", [False, True], ids=["written", "given up"])
def test_records_wait_for_others_again_once_no_call_waits(cluster: FakeCluster, gives_up: bool) -> None:
    """A producer that flushed once would send each later record in a request of its own."""

    async def main(runtime: Runtime) -> float:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, linger_ms=LINGER_SECONDS * 1_000, runtime=runtime
        ) as producer:
            if gives_up:
                on_produce(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)
            await producer.send("t", b"first")
            if gives_up:
                with pytest.raises(FlushTimedOut):
                    await producer.flush(timeout_ms=10)
            await producer.flush()
            return await seconds_of_one(producer)

    assert cluster.run(main) >= LINGER_SECONDS


def test_records_do_not_wait_while_another_call_still_does(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> float:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, linger_ms=LINGER_SECONDS * 1_000, runtime=runtime
        ) as producer:
            cluster.add_topic("silent")
            await producer.send_and_wait("t", b"warm up")
            on_produce(cluster, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 8)
            await producer.send("t", b"refused for some time")
            patient = asyncio.ensure_future(producer.flush())
            with pytest.raises(FlushTimedOut):
                await producer.flush(timeout_ms=10)
            assert not patient.done()
            cluster.intercept = lambda broker, request: None
            seconds = await seconds_of_one(producer)
            await patient
            return seconds

    assert cluster.run(main) < LINGER_SECONDS
