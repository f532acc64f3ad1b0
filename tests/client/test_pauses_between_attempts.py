"""Whatever a client asks for until it succeeds, it pauses in between: else it would keep itself, the network and the
broker busy meanwhile."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    FetchRequest,
    InitProducerIdRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import earliest, fill

SECONDS = 30
ATTEMPTS_MAX = 10 * SECONDS
"""Of one kind to one broker: `retry_backoff_ms` is a tenth of a second. Without pauses there are thousands."""
LATE_SECONDS = 10
LATE_ATTEMPTS_MAX = 35
"""In the last ten seconds, when pauses have grown: to 400 ms for metadata, to a second for all else, a fifth of it by
chance. With the first pause again and again there are a hundred."""
Begin = Callable[[FakeCluster, Runtime], Awaitable[Producer | Consumer]]


async def write(cluster: FakeCluster, runtime: Runtime) -> Producer:
    producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
    await producer.start()
    await producer.send("t", b"x")
    return producer


async def read(cluster: FakeCluster, runtime: Runtime) -> Consumer:
    consumer = earliest(cluster, runtime)
    await consumer.start()
    return consumer


async def read_across_an_election(cluster: FakeCluster, runtime: Runtime) -> Consumer:
    fill(cluster, 10)
    consumer = await read(cluster, runtime)
    assert (await consumer.getone()).offset == 0
    cluster.partition("t").elect(2)
    return consumer


WORK: dict[type[Request], Begin] = {
    InitProducerIdRequest: write,
    ProduceRequest: write,
    MetadataRequest: write,
    ListOffsetsRequest: read,
    FetchRequest: read,
    OffsetForLeaderEpochRequest: read_across_an_election,
}
FAULTS: dict[str, Response | bool] = {
    "retriable": Response(error_code=ErrorCode.REQUEST_TIMED_OUT),
    "not retriable": Response(error_code=ErrorCode.INVALID_REQUEST),
    "lost": False,
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", WORK, ids=lambda kind: kind.__name__)
def test_what_fails_again_and_again_is_asked_for_seldom(cluster: FakeCluster, kind: type[Request], fault: str) -> None:
    counts: Counter[int] = Counter()
    early: Counter[int] = Counter()

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, kind):
            return None
        counts[broker] += 1
        return FAULTS[fault]

    async def main(runtime: Runtime) -> None:
        if kind is not MetadataRequest:  # without any a client does not start
            cluster.intercept = intercept
        client = await WORK[kind](cluster, runtime)
        cluster.intercept = intercept
        client._cluster.request_refresh()
        await asyncio.sleep(SECONDS - LATE_SECONDS)
        early.update(counts)
        await asyncio.sleep(LATE_SECONDS)
        cluster.intercept = lambda broker, request: None
        with contextlib.suppress(MinibrokerError):  # of what failed for good
            await client.close()

    cluster.run(main)
    assert 1 <= max(counts.values()) <= ATTEMPTS_MAX
    assert max((counts - early).values(), default=0) <= LATE_ATTEMPTS_MAX
    if fault != "not retriable":
        assert sum(counts.values()) > 10, "it is asked for until it succeeds"
