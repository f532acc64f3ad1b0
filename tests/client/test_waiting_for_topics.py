"""A call that waits for a topic's partitions, and how it ends where they do not come."""

import asyncio
from typing import Any

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import CallTimedOut, ClientClosed, ClusterUnreachable
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import MetadataRequest
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster

CLIENTS = pytest.mark.parametrize("client", [Consumer, Producer])


async def started(client: type[Any], cluster: FakeCluster, runtime: Runtime) -> Any:
    options = {"max_block_ms": 3_000} if client is Producer else {}
    open_client = client(bootstrap_servers=cluster.bootstrap, runtime=runtime, **options)
    await open_client.start()
    return open_client


def partitions_of_t(client: Any) -> "asyncio.Future[list[int]]":
    return asyncio.ensure_future(
        client.partitions_for("t") if isinstance(client, Producer) else client.partitions_for("t", timeout_ms=3_000)
    )


@CLIENTS
@pytest.mark.parametrize("is_refused", [True, False], ids=["brokers are down", "brokers are silent"])
def test_it_ends_at_its_deadline(cluster: FakeCluster, client: type[Any], is_refused: bool) -> None:
    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        waiting = await started(client, cluster, runtime)
        cluster.intercept = lambda broker, request: isinstance(request.body, MetadataRequest) or None
        if is_refused:
            for broker in cluster.brokers:
                cluster.kill(broker)
        began = loop.time()
        with pytest.raises((CallTimedOut, ClusterUnreachable)):
            await partitions_of_t(waiting)
        seconds = loop.time() - began
        await waiting.close()
        return seconds

    assert 2.9 <= cluster.run(main) < 3.1


@CLIENTS
def test_it_ends_with_its_client(cluster: FakeCluster, client: type[Any]) -> None:
    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        waiting = await started(client, cluster, runtime)
        cluster.intercept = lambda broker, request: isinstance(request.body, MetadataRequest) or None
        call = partitions_of_t(waiting)
        await asyncio.sleep(0.5)
        began = loop.time()
        await waiting.close()
        with pytest.raises(ClientClosed):
            await call
        return loop.time() - began

    assert cluster.run(main) < 0.1
