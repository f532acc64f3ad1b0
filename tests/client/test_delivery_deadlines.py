"""Each record has its outcome in time, whatever other partitions wait for."""

import asyncio

import pytest

from minibroker.client.errors import DeliveryTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import refuse_always


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_each_partition_keeps_its_own_deadlines(cluster: FakeCluster, order: tuple[int, ...]) -> None:
    """One timer serves all of them, at the earliest deadline that is left."""
    cluster.add_topic("three", 3)
    timeout_ms, apart_s = 3_000, 0.7

    async def main(runtime: Runtime) -> list[float]:
        loop = asyncio.get_running_loop()
        async with Producer(
            bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=timeout_ms, runtime=runtime
        ) as producer:
            for partition in (0, 1, 2):
                await producer.send_and_wait("three", b"well", partition=partition)
            refuse_always(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)

            async def seconds(partition: int) -> float:
                began = loop.time()
                with pytest.raises(DeliveryTimedOut):
                    await producer.send_and_wait("three", b"x", partition=partition)
                return loop.time() - began

            ends = []
            for partition in (*order, *order):
                ends.append(asyncio.create_task(seconds(partition)))
                await asyncio.sleep(apart_s)
            return list(await asyncio.gather(*ends))

    assert cluster.run(main) == pytest.approx([timeout_ms / 1000] * 6, abs=0.1)
