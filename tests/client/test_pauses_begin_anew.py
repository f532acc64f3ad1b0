"""After a success, the next failure is a first one again: whatever went wrong before does not lengthen its pause.

A client runs for months. One that never forgot its failures would pause for retry_backoff_max_ms after each.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import FetchRequest, ListOffsetsRequest, ProduceRequest, Request, Response
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import refusal
from tests.client.reading import T0, fill

PAUSES: dict[str, Any] = {"retry_backoff_ms": 100, "retry_backoff_max_ms": 60_000}
FAILURES = 6
"""The pause after one more would be six seconds."""
FIRST_PAUSE_SECONDS_MAX = 0.5

Call = Callable[[], Awaitable[object]]


def failing(cluster: FakeCluster, kind: type[Request], times: int) -> None:
    """The next requests of that kind fail as a whole, those of producers batch by batch."""
    left = [None] * times

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, kind) or not left:
            return None
        left.pop()
        if kind is ProduceRequest:
            return refusal(request, ErrorCode.NOT_ENOUGH_REPLICAS)
        return Response(error_code=ErrorCode.REQUEST_TIMED_OUT)

    cluster.intercept = intercept


async def pauses_begin_anew(cluster: FakeCluster, kind: type[Request], call: Call) -> None:
    loop = asyncio.get_running_loop()
    await call()
    failing(cluster, kind, FAILURES)
    began = loop.time()
    await call()
    assert loop.time() - began > 10 * FIRST_PAUSE_SECONDS_MAX
    failing(cluster, kind, 1)
    began = loop.time()
    await call()
    assert loop.time() - began < FIRST_PAUSE_SECONDS_MAX


@pytest.mark.parametrize("idempotent", [True, False])
def test_of_a_producers_batches(cluster: FakeCluster, idempotent: bool) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, enable_idempotence=idempotent, **PAUSES
        ) as producer:
            await pauses_begin_anew(cluster, ProduceRequest, lambda: producer.send_and_wait("t", b"value"))

    cluster.run(main)


def test_of_a_consumers_fetches(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, fetch_max_wait_ms=50, **PAUSES
        ) as consumer:
            consumer.assign([T0])
            consumer.seek(T0, 0)

            async def read_one() -> None:
                fill(cluster, 1)
                await consumer.getone(timeout_ms=60_000)

            await pauses_begin_anew(cluster, FetchRequest, read_one)

    cluster.run(main)


def test_of_a_consumers_positions(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Consumer(bootstrap_servers=cluster.bootstrap, runtime=runtime, **PAUSES) as consumer:
            consumer.assign([T0])
            await pauses_begin_anew(cluster, ListOffsetsRequest, lambda: consumer.seek_to_beginning(T0))

    cluster.run(main)


def test_of_connections() -> None:
    """To the only broker: the others would say that it is gone."""
    cluster = FakeCluster(SimulatedWorld(seed=7), broker_count=1)
    cluster.add_topic("t")

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime, **PAUSES) as admin:
            await admin.list_offsets({T0: 0})
            for seconds_down in (10.0, 0.25):
                cluster.kill(1)
                asking = asyncio.create_task(admin.list_offsets({T0: 0}))
                await asyncio.sleep(seconds_down)
                cluster.start_broker(1)
                began = loop.time()
                await asking
            assert loop.time() - began < FIRST_PAUSE_SECONDS_MAX

    cluster.run(main)
