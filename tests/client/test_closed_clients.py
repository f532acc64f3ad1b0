"""What a closed client leaves in its event loop: no task and no timer, whatever it was waiting for."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import (
    BrokerError,
    ClientClosed,
    ClusterUnreachable,
    MinibrokerError,
    UnknownTopicOrPartition,
)
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ApiVersionsRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    MetadataRequest,
    ProduceRequest,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import CLIENT, FakeCluster
from tests.client.faults import refusal
from tests.client.reading import earliest

Client = Producer | Consumer | AdminClient
Work = Callable[[FakeCluster, Runtime], Awaitable[Client]]
"""Begins something that does not end, and returns the client."""


def ignore(cluster: FakeCluster, *kinds: type[Any]) -> None:
    cluster.intercept = lambda broker, request: isinstance(request.body, kinds) or None


async def write_to_silence(cluster: FakeCluster, runtime: Runtime, **settings: Any) -> Producer:
    producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, **settings)
    await producer.start()
    await producer.send_and_wait("t", b"a")
    ignore(cluster, ProduceRequest)
    await producer.send("t", b"b")
    await asyncio.sleep(0.5)
    return producer


async def write_without_linger(cluster: FakeCluster, runtime: Runtime) -> Client:
    return await write_to_silence(cluster, runtime, linger_ms=0)


async def write_while_the_identity_is_asked_for(cluster: FakeCluster, runtime: Runtime) -> Client:
    """One partition needs the next identity, and the answer about another one comes as its connection is closed."""
    cluster.add_topic("other")
    producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
    await producer.start()
    for topic in ("t", "other"):
        await producer.send_and_wait(topic, b"a")

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        if isinstance(request.body, ProduceRequest) and request.body.topic_data[0].name == "t":
            return refusal(request, ErrorCode.UNKNOWN_PRODUCER_ID)
        return isinstance(request.body, ProduceRequest | InitProducerIdRequest) or None

    cluster.intercept = intercept
    for topic in ("other", "t"):
        await producer.send(topic, b"b")
        await asyncio.sleep(0.5)
    assert cluster.asked(InitProducerIdRequest) == 2
    return producer


async def kill_all(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        cluster.kill(broker)
    await asyncio.sleep(0.5)


async def write_to_a_dead_cluster(cluster: FakeCluster, runtime: Runtime) -> Client:
    producer = await write_to_silence(cluster, runtime)
    await kill_all(cluster)
    return producer


async def write_to_a_hanging_broker(cluster: FakeCluster, runtime: Runtime) -> Client:
    """It accepts the new connection, and does not answer."""
    producer = await write_to_silence(cluster, runtime)
    cluster.world.pause("broker1")
    connection = producer._cluster.open_connection(1)
    assert connection is not None
    connection.abort()
    await asyncio.sleep(0.5)
    return producer


async def read(cluster: FakeCluster, runtime: Runtime) -> Client:
    consumer = earliest(cluster, runtime)
    await consumer.start()
    await consumer.getmany(timeout_ms=500)
    return consumer


async def read_from_a_dead_cluster(cluster: FakeCluster, runtime: Runtime) -> Client:
    consumer = await read(cluster, runtime)
    await kill_all(cluster)
    return consumer


async def administer(cluster: FakeCluster, runtime: Runtime) -> Client:
    admin = AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime)
    await admin.start()
    ignore(cluster, MetadataRequest)
    with pytest.raises(MinibrokerError):
        await admin.describe_topics(timeout_ms=500)
    return admin


def timers_of_the_client(cluster: FakeCluster) -> list[str]:
    timers = [handle for _, _, handle in cluster.world.loop._timers if not handle._cancelled]
    return [repr(each) for each in timers if each._process is not None and each._process.name == CLIENT]


@pytest.mark.parametrize(
    "work",
    [
        write_to_silence,
        write_without_linger,
        write_while_the_identity_is_asked_for,
        write_to_a_dead_cluster,
        write_to_a_hanging_broker,
        read,
        read_from_a_dead_cluster,
        administer,
    ],
    ids=lambda work: work.__name__,
)
def test_a_client_is_closed_at_once_and_leaves_nothing_in_the_loop(cluster: FakeCluster, work: Work) -> None:
    async def main(runtime: Runtime) -> None:
        client = await work(cluster, runtime)
        began = cluster.world.loop.time()
        try:
            await (client.close(timeout_ms=100) if isinstance(client, Producer) else client.close())
        except MinibrokerError:
            assert isinstance(client, Producer), "of records without outcome"
        assert cluster.world.loop.time() - began < 0.2
        await asyncio.sleep(0)  # callbacks of what was cancelled
        process = asyncio.current_task().process  # type: ignore[union-attr]
        left = [each for each in cluster.world.loop.tasks() if each.process is process]
        assert left == [asyncio.current_task()]
        assert timers_of_the_client(cluster) == []

    cluster.run(main)


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize(
    "work", [write_while_the_identity_is_asked_for, read, administer], ids=lambda work: work.__name__
)
def test_a_client_whose_closing_is_cancelled_leaves_nothing_in_the_loop(
    cluster: FakeCluster, work: Work, steps: int
) -> None:
    """By `asyncio.timeout` or a second Ctrl-C, after each step of it: a program closes a client once."""

    async def main(runtime: Runtime) -> None:
        client = await work(cluster, runtime)
        closing = asyncio.create_task(client.close(timeout_ms=0) if isinstance(client, Producer) else client.close())
        for _ in range(steps + 1):
            await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        for _ in range(8):
            await asyncio.sleep(0)  # what was told to end
        process = asyncio.current_task().process  # type: ignore[union-attr]
        assert [each for each in cluster.world.loop.tasks() if each.process is process] == [asyncio.current_task()]
        assert timers_of_the_client(cluster) == []
        servers = client._cluster.connections._servers.values()
        assert [each.connection for each in servers if each.connection is not None] == []

    cluster.run(main)


@pytest.mark.parametrize(
    "kind", [ApiVersionsRequest, MetadataRequest, InitProducerIdRequest], ids=lambda kind: kind.__name__
)
@pytest.mark.parametrize("client", [AdminClient, Consumer, Producer])
def test_a_start_that_is_given_up_leaves_nothing_in_the_loop(
    cluster: FakeCluster, client: type[Any], kind: type[Request]
) -> None:
    """By `asyncio.timeout` or Ctrl-C: a client that was never started cannot be closed."""

    async def main(runtime: Runtime) -> None:
        ignore(cluster, kind)
        options = {"producer_name": "orders"} if client is Producer else {}
        if client is Producer or kind is not InitProducerIdRequest:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1):
                    await client(bootstrap_servers=cluster.bootstrap, runtime=runtime, **options).start()
        await asyncio.sleep(0)  # callbacks of what was cancelled
        process = asyncio.current_task().process  # type: ignore[union-attr]
        assert [each for each in cluster.world.loop.tasks() if each.process is process] == [asyncio.current_task()]
        assert timers_of_the_client(cluster) == []

    cluster.run(main)


@pytest.mark.parametrize("steps", range(4))
def test_a_topic_that_a_producer_learns_while_it_closes_leaves_no_timer(cluster: FakeCluster, steps: int) -> None:
    """Its sender had ended, and the answer to a request for metadata was on its way: the timer that looks for late
    records was set again, for ever."""

    async def main(runtime: Runtime) -> None:
        ignore(cluster, InitProducerIdRequest)  # so that there is something to wait for between two parts of close()
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        await producer.start()
        await asyncio.sleep(1)
        arrived = asyncio.Event()
        for server in producer._cluster.connections._servers.values():
            if (connection := server.connection) is not None:
                updated = partial(_set_and_call, arrived, connection.buffer_updated)
                connection.buffer_updated = updated  # type: ignore[method-assign]
        cluster.add_topic("new")
        sending = asyncio.create_task(producer.send("new", b"x"))
        await arrived.wait()
        for _ in range(steps):
            await asyncio.sleep(0)
        with contextlib.suppress(MinibrokerError):  # of records without outcome
            await producer.close(timeout_ms=0)
        await asyncio.gather(sending, return_exceptions=True)
        await asyncio.sleep(0)
        assert timers_of_the_client(cluster) == []

    cluster.run(main)


def _set_and_call(arrived: asyncio.Event, call: Callable[[int], None], nbytes: int) -> None:
    arrived.set()
    call(nbytes)


SILENT: list[tuple[type[Any], type[Request] | None]] = [
    *((client, kind) for client in (AdminClient, Consumer, Producer) for kind in (MetadataRequest, None)),
    (Producer, InitProducerIdRequest),
]


@pytest.mark.parametrize(("client", "silent"), SILENT)
def test_a_client_that_another_task_closes_while_it_starts_leaves_nothing_in_the_loop(
    cluster: FakeCluster, client: type[Any], silent: type[Request] | None
) -> None:
    """It went on starting, and nothing could close it any more. Without a silent broker it is closed in the moment in
    which it finds the cluster."""

    async def main(runtime: Runtime) -> None:
        options = {"producer_name": "orders"} if silent is InitProducerIdRequest else {}
        opened = client(bootstrap_servers=cluster.bootstrap, runtime=runtime, **options)
        starting = asyncio.create_task(opened.start())
        await asyncio.sleep(0)
        if silent is None:
            found = asyncio.Event()
            opened._cluster.add_listener(found.set)
            await found.wait()
        else:
            ignore(cluster, silent)
            await asyncio.sleep(0.5)
        await opened.close()
        with pytest.raises(ClientClosed):
            await asyncio.wait_for(starting, 0.01)
        await opened.close()
        await asyncio.sleep(0)  # callbacks of what was cancelled
        process = asyncio.current_task().process  # type: ignore[union-attr]
        assert [each for each in cluster.world.loop.tasks() if each.process is process] == [asyncio.current_task()]
        assert timers_of_the_client(cluster) == []

    cluster.run(main)


@pytest.mark.parametrize("kind", [AdminClient, Consumer, Producer])
def test_a_client_that_could_not_be_started_is_closed_from_anywhere(kind: type[Any]) -> None:
    """A `finally` closes it, in another `asyncio.run` than the one in which its start has failed: there is nothing to
    close, and ForeignCaller hid the error of the start."""
    client = kind(bootstrap_servers="localhost:1", bootstrap_timeout_ms=1)
    with pytest.raises(ClusterUnreachable):
        asyncio.run(client.start())
    asyncio.run(client.close())
    with pytest.raises(ClientClosed):
        asyncio.run(client.start())


async def start_without_the_topic(cluster: FakeCluster, runtime: Runtime) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        await Consumer("missing", bootstrap_servers=cluster.bootstrap, runtime=runtime).start()


async def start_without_a_name(cluster: FakeCluster, runtime: Runtime) -> None:
    cluster.intercept = lambda broker, request: (
        InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST)
        if isinstance(request.body, InitProducerIdRequest)
        else None
    )
    with pytest.raises(BrokerError):
        await Producer(producer_name="orders", bootstrap_servers=cluster.bootstrap, runtime=runtime).start()


@pytest.mark.parametrize("start", [start_without_the_topic, start_without_a_name], ids=lambda start: start.__name__)
def test_a_start_that_fails_once_the_cluster_was_found_leaves_nothing_in_the_loop(
    cluster: FakeCluster, start: Callable[[FakeCluster, Runtime], Awaitable[None]]
) -> None:
    async def main(runtime: Runtime) -> None:
        await start(cluster, runtime)
        await asyncio.sleep(0)  # callbacks of what was cancelled
        process = asyncio.current_task().process  # type: ignore[union-attr]
        assert [each for each in cluster.world.loop.tasks() if each.process is process] == [asyncio.current_task()]
        assert timers_of_the_client(cluster) == []

    cluster.run(main)
