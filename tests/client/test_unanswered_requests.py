"""A connection without answers is closed: TCP may take a quarter of an hour to notice."""

import asyncio

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.cluster import Cluster, ClusterSettings
from minibroker.client.errors import BrokerUnreachable, CallTimedOut, MinibrokerError
from minibroker.client.limits import METADATA_TIMEOUT_MS, Deadline
from minibroker.client.metadata_cache import Address
from minibroker.protocol.wire.messages import (
    ApiKey,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.cluster import PORT
from minibroker.simulation.world.message_holds import responses
from tests.broker.requests import TOPIC, ClusterClient, in_cluster
from tests.client.fake_cluster import PORT as FAKE_PORT
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill


async def _ask_again(client: ClusterClient) -> None:
    cluster = client.cluster
    stuck = cluster.world.network.hold(None, "client", responses(ApiKey.DESCRIBE_CONFIGS), times=1)
    async with AdminClient(
        bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=500, runtime=cluster.client_runtime()
    ) as admin:
        try:
            await admin.describe_configs(topic=TOPIC, timeout_ms=600)
        except MinibrokerError:
            pass
        assert stuck.held == 0, "the connection is still in use, and later answers wait behind the lost one"
        assert await admin.describe_configs(topic=TOPIC, timeout_ms=2_000)


def test_an_unanswered_request_closes_its_connection() -> None:
    in_cluster(_ask_again)


async def _start_with_one_silent_broker(client: ClusterClient) -> None:
    stuck = client.cluster.world.network.hold(None, "client", responses(ApiKey.METADATA), times=1)
    cluster = _cluster(client)
    await cluster.start()
    try:
        assert stuck.held == 1, "another broker was first"
        await asyncio.sleep(METADATA_TIMEOUT_MS / 1000)
        assert stuck.held == 0, "later metadata requests would use a connection without answers"
    finally:
        await cluster.close()


def test_unanswered_metadata_closes_a_connection_without_other_requests() -> None:
    in_cluster(_start_with_one_silent_broker)


async def _refresh_during_a_slow_answer(client: ClusterClient) -> None:
    """Its caller has its own deadline, and could not know whether the request arrived."""
    cluster = _cluster(client)
    await cluster.start()
    try:
        stuck = client.cluster.world.network.hold(None, "client", responses(ApiKey.DESCRIBE_CONFIGS), times=1)
        [address] = [each for each in cluster.metadata.brokers.values() if cluster.connections.is_open(each)]
        [broker_id] = [each for each, at in cluster.metadata.brokers.items() if at == address]
        body = DescribeConfigsRequest(resources=[])
        slow = asyncio.create_task(cluster.ask(broker_id, body, DescribeConfigsResponse, Deadline(60_000)))
        await stuck.caught()
        await cluster.refresh(Deadline(10_000))
        assert stuck.held == 1
        stuck.release()
        await slow
    finally:
        await cluster.close()


def test_unanswered_metadata_keeps_a_connection_with_other_requests() -> None:
    in_cluster(_refresh_during_a_slow_answer)


def _cluster(client: ClusterClient) -> Cluster:
    bootstrap = [Address(f"broker-{broker_id}", PORT) for broker_id in client.cluster.broker_ids]
    return Cluster(client.cluster.client_runtime(), ClusterSettings(bootstrap=bootstrap, client_id="test"))


def test_a_call_whose_own_time_ends_keeps_the_connection(cluster: FakeCluster) -> None:
    """Other calls wait on it, and they have more time."""

    async def main(runtime: Runtime) -> None:
        servers = [Address(f"broker{broker}", FAKE_PORT) for broker in cluster.brokers]
        client = Cluster(runtime, ClusterSettings(bootstrap=servers, client_id="test"))
        await client.start()
        connection = await client.acquire(1, Deadline(1_000))
        cluster.intercept = lambda broker, request: isinstance(request.body, ListOffsetsRequest) or None
        with pytest.raises(BrokerUnreachable, match="was not answered"):
            await client.ask(1, ListOffsetsRequest(topics=[]), ListOffsetsResponse, Deadline(500))
        await asyncio.sleep(1)
        assert client.open_connection(1) is connection
        await client.close()

    cluster.run(main)


def test_a_connection_without_answers_is_closed_however_short_the_time_of_each_call(cluster: FakeCluster) -> None:
    """A firewall has forgotten it, for example. A consumer gives each question for a position five seconds, and asked
    over the same connection for ever. The last fetch is answered during the first question, which does not count."""
    dead: list[object] = []

    def intercept(broker: int, request: IncomingRequest) -> bool | None:
        if isinstance(request.body, ListOffsetsRequest) and not dead:
            dead.append(request.connection)
        return True if request.connection in dead else None

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime, request_timeout_ms=12_000) as consumer:
            await consumer.position(T0)
            cluster.intercept = intercept
            start = loop.time()
            await consumer.seek_to_end()
            return loop.time() - start

    assert 12 <= cluster.run(main) < 22


@pytest.mark.parametrize("late", [False, True], ids=["never answered", "answered late"])
def test_calls_that_end_early_keep_a_connection_that_brings_other_answers(cluster: FakeCluster, late: bool) -> None:
    """Fetches were answered over it all the time, and it was closed because of two short calls with a minute between
    them. Without fetches, a broker that answers a little later than calls wait lost its connection, too."""
    fill(cluster, 1)

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()

        def intercept(broker: int, request: IncomingRequest) -> bool | None:
            if not isinstance(request.body, ListOffsetsRequest):
                return None
            if late:
                loop.call_later(0.2, request.respond, ListOffsetsResponse(topics=[]))
            return True

        async with earliest(cluster, runtime) as consumer:
            await consumer.getone()
            if late:
                consumer.pause(T0)  # so there are no fetches
                await asyncio.sleep(1)
            connection = consumer._cluster.open_connection(1)
            assert connection is not None
            cluster.intercept = intercept
            for _ in range(4):
                with pytest.raises(CallTimedOut):
                    await consumer.end_offsets([T0], timeout_ms=100)
                await asyncio.sleep(60)
            assert consumer._cluster.open_connection(1) is connection

    cluster.run(main)


def test_a_call_that_ends_earlier_does_not_keep_the_connection_of_one_that_waited_for_long(
    cluster: FakeCluster,
) -> None:
    """The silence was counted from the beginning of the call that ended first, not of the one that began first."""

    async def main(runtime: Runtime) -> None:
        servers = [Address(f"broker{broker}", FAKE_PORT) for broker in cluster.brokers]
        client = Cluster(runtime, ClusterSettings(bootstrap=servers, client_id="test", request_timeout_ms=2_000))
        await client.start()
        connection = await client.acquire(1, Deadline(1_000))
        cluster.intercept = lambda broker, request: isinstance(request.body, ListOffsetsRequest) or None

        async def ask(timeout_ms: int) -> None:
            with pytest.raises(BrokerUnreachable):
                await client.ask(1, ListOffsetsRequest(topics=[]), ListOffsetsResponse, Deadline(timeout_ms))

        asking = asyncio.create_task(ask(2_000))
        await asyncio.sleep(1)
        await ask(500)
        assert not connection.closed
        await asking
        await asyncio.sleep(0)
        assert connection.closed
        await client.close()

    cluster.run(main)


def test_calls_that_were_answered_meanwhile_keep_the_connection(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        servers = [Address(f"broker{broker}", FAKE_PORT) for broker in cluster.brokers]
        client = Cluster(runtime, ClusterSettings(bootstrap=servers, client_id="test", request_timeout_ms=2_000))
        await client.start()
        connection = await client.acquire(1, Deadline(1_000))
        for _ in range(5):
            cluster.intercept = lambda broker, request: isinstance(request.body, ListOffsetsRequest) or None
            with pytest.raises(BrokerUnreachable, match="was not answered"):
                await client.ask(1, ListOffsetsRequest(topics=[]), ListOffsetsResponse, Deadline(1_500))
            cluster.intercept = lambda broker, request: None
            await client.ask(1, ListOffsetsRequest(topics=[]), ListOffsetsResponse, Deadline(1_500))
        assert client.open_connection(1) is connection
        await client.close()

    cluster.run(main)
