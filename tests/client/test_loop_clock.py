"""A record without a timestamp gets the time of the loop iteration in which it was sent."""

import asyncio

import msgspec

from minibroker.client.producer.producer import Producer
from minibroker.protocol.record_batch import decode_records
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster


def test_each_loop_iteration_reads_the_clock_again(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> list[int]:
        times = []
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=1_000, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"warm up")
            for number in range(20):
                times.append(runtime.clock.now_ms())
                await producer.send("t", b"%d" % number)
                delivery = producer.try_send("t", b"the same iteration", key=b"k")
                assert delivery is not None
                assert delivery.timestamp_ms == times[-1]
                await asyncio.sleep(0.003)
        return times

    times = cluster.run(main)
    found = [record.timestamp_ms for batch in cluster.partition("t").batches for record in decode_records(batch)]
    assert found[1:] == [time for time in times for _ in range(2)]
    assert len(set(times)) == 20


def test_the_clock_is_read_once_per_loop_iteration(cluster: FakeCluster) -> None:
    reads = 0

    async def main(runtime: Runtime) -> None:
        nonlocal reads
        read = runtime.clock.now_ms

        class Counting:
            def now_ms(self) -> int:
                nonlocal reads
                reads += 1
                return read()

            def monotonic_ns(self) -> int:
                return runtime.clock.monotonic_ns()

        counted = msgspec.structs.replace(runtime, clock=Counting())
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=counted) as producer:
            await producer.send_and_wait("t", b"warm up")
            before = reads
            for _ in range(100):
                await producer.send("t", b"x")
            assert reads == before + 1

    cluster.run(main)
