"""What a program learns of a call that it has cancelled while it waited."""

import asyncio

import pytest

from minibroker.client.producer.deliveries import Deliveries
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import numbered, on_produce


def test_a_cancelled_send_many_tells_how_many_records_it_has_taken(cluster: FakeCluster) -> None:
    """They are written, so a program that sent all of them again would have them twice."""

    async def main(runtime: Runtime) -> int:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, batch_size=1_024, buffer_memory=4_096, runtime=runtime
        ) as producer:
            await producer.send_and_wait("t", b"first")
            on_produce(cluster, *[True] * 4)
            sending = asyncio.create_task(producer.send_many("t", numbered(1_000)))
            await asyncio.sleep(1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await sending
            taken = vars(caught.value)["taken"]
            assert isinstance(taken, Deliveries)
            cluster.intercept = lambda broker, request: None
            connection = producer._cluster.open_connection(1)
            assert connection is not None
            connection.abort()  # what was not answered is sent again
            await producer.flush()
            return len(taken)

    count = cluster.run(main)
    assert 0 < count < 1_000
    assert cluster.partition("t").values() == [b"first", *numbered(count)]


def test_a_cancelled_send_has_not_taken_its_record(cluster: FakeCluster) -> None:
    """A program that sends it again would have it twice. A call waits not only for room: after some batches have become
    full the loop has to run (seed 17361138)."""

    async def main(runtime: Runtime) -> list[bytes]:
        async with Producer(bootstrap_servers=cluster.bootstrap, batch_size=16_384, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"first")
            taken = [b"first"]
            for number in range(10_000):
                value = b"%d" % number * 1_000
                sending = producer.send("t", value)
                try:
                    sending.send(None)
                except StopIteration:
                    taken.append(value)
                    continue
                with pytest.raises(asyncio.CancelledError):
                    sending.throw(asyncio.CancelledError())
                break
            await producer.flush()
            return taken

    taken = cluster.run(main)
    assert 1 < len(taken) < 10_000
    assert cluster.partition("t").values() == taken
