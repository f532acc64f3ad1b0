"""Requests that come in the step of the loop in which their connection is given up: it is no longer usable, and not
lost yet."""

import asyncio
from typing import Literal

import pytest

from minibroker.client.cluster import Cluster
from minibroker.client.errors import DeliveryTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import ApiVersionsRequest, ProduceRequest
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill

LEADER = 1


def give_up_connection(cluster: Cluster) -> None:
    """As a request does that was not answered in time."""
    connection = cluster.open_connection(LEADER)
    assert connection is not None
    connection.abort()
    assert cluster.open_connection(LEADER) is connection


@pytest.mark.parametrize("acks", [0, "all"])
def test_a_record_that_comes_then_is_sent_on_the_next_connection(cluster: FakeCluster, acks: Literal[0, "all"]) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, acks=acks, linger_ms=0, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"first")
            await asyncio.sleep(0.1)  # with acks=0 it was only sent
            handshakes = cluster.asked(ApiVersionsRequest)
            give_up_connection(producer._cluster)
            delivery = producer.try_send("t", b"second")
            assert delivery is not None
            async with asyncio.timeout(1):
                await delivery
            assert producer.metrics().requests_in_flight == 0
            assert cluster.asked(ApiVersionsRequest) == handshakes + 1

    cluster.run(main)
    assert cluster.partition("t").values() == [b"first", b"second"]


def test_a_record_that_was_not_sent_then_and_expires_unanswered_is_told_why(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            linger_ms=0,
            delivery_timeout_ms=1_000,
            request_timeout_ms=1_000,
            runtime=runtime,
        ) as producer:
            await producer.send_and_wait("t", b"first")
            cluster.intercept = lambda broker, request: isinstance(request.body, ProduceRequest) or None
            give_up_connection(producer._cluster)
            with pytest.raises(DeliveryTimedOut, match="last error: broker 1: connection to broker1:9092 is closed"):
                await producer.send_and_wait("t", b"second")

    cluster.run(main)


def test_a_fetch_that_comes_then_is_sent_on_the_next_connection(cluster: FakeCluster) -> None:
    fill(cluster, 20)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert (await consumer.getone()).offset == 0
            consumer.seek(T0, 15)
            give_up_connection(consumer._cluster)
            assert (await consumer.getone(timeout_ms=1_000)).offset == 15

    cluster.run(main)


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "silent"])
def test_without_acknowledgements_a_connection_that_fails_while_a_producer_closes_is_no_error(
    cluster: FakeCluster, is_lost: bool
) -> None:
    """acks=0 promises nothing, and the last request only asks whether all before it have arrived."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, acks=0, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"x")
            cluster.intercept = lambda broker, request: (
                not is_lost if isinstance(request.body, ApiVersionsRequest) else None
            )

    cluster.run(main)
    assert cluster.asked(ApiVersionsRequest) > 1
