"""Opening connections: handshake, wrong peers, back-off."""

import asyncio
from collections.abc import Callable

import pytest

from minibroker.client.cluster import Cluster, ClusterSettings
from minibroker.client.errors import BrokerUnreachable, ClusterUnreachable, MinibrokerError, NotMinibroker
from minibroker.client.limits import Deadline
from minibroker.client.metadata_cache import Address
from minibroker.protocol.wire.messages import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    MetadataRequest,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import PORT, FakeCluster


def settings(*servers: Address) -> ClusterSettings:
    return ClusterSettings(bootstrap=list(servers), client_id="test", bootstrap_timeout_ms=1_000)


class Chatterer(asyncio.BufferedProtocol):
    """A peer with another protocol: answers the first bytes with others, or closes the connection."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._buffer = bytearray(1_000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._answer is None:
            self._transport.close()
        else:
            self._transport.write(self._answer)  # type: ignore[attr-defined]


def serve(cluster: FakeCluster, answer: bytes | None) -> None:
    async def program(runtime: Runtime) -> None:
        await runtime.network.listen(lambda: Chatterer(answer), "", PORT)
        await asyncio.Event().wait()

    cluster.world.start("stranger", program)


def connecting(cluster: FakeCluster, address: Address) -> Callable[[Runtime], object]:
    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(address))
        try:
            await client.connections.acquire(address, Deadline(10_000))
        finally:
            await client.close()

    return main


@pytest.mark.parametrize(
    ("answer", "expected", "text"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", NotMinibroker, "does not speak minibroker's protocol.*check the port"),
        (
            None,
            BrokerUnreachable,
            "closed the connection during the handshake, as Kafka or a TLS port does: check the port",
        ),
        (b"", BrokerUnreachable, "accepts connections but does not answer, as a paused broker does"),
    ],
)
def test_a_peer_with_another_protocol_is_recognised(
    cluster: FakeCluster, answer: bytes | None, expected: type[MinibrokerError], text: str
) -> None:
    """And only one that is surely no minibroker is not tried again."""
    serve(cluster, answer)
    with pytest.raises(expected, match=text) as caught:
        cluster.run(connecting(cluster, Address("stranger", PORT)))  # type: ignore[arg-type]
    assert caught.value.retriable == (expected is BrokerUnreachable)


def test_another_version_of_the_protocol_is_named(cluster: FakeCluster) -> None:
    def newer(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, ApiVersionsRequest):
            return None
        versions = [ApiVersion(api_key=key, min_version=1, max_version=3) for key in range(20)]
        return ApiVersionsResponse(api_keys=versions, broker_software_version="9.9")

    cluster.intercept = newer
    with pytest.raises(
        NotMinibroker, match=r"runs version 9\.9, which does not speak PRODUCE, FETCH, METADATA"
    ) as caught:
        cluster.run(connecting(cluster, Address("broker1", PORT)))  # type: ignore[arg-type]
    assert not caught.value.retriable


def test_one_handshake_per_connection(cluster: FakeCluster) -> None:
    address = Address("broker1", PORT)

    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(address))
        many = [client.connections.acquire(address, Deadline(1_000)) for _ in range(10)]
        connections = await asyncio.gather(*many)
        assert len({id(connection) for connection in connections}) == 1
        await client.close()

    cluster.run(main)
    assert cluster.asked(ApiVersionsRequest) == 1


@pytest.mark.parametrize("given_up", [0, 1])
def test_a_call_that_is_given_up_takes_no_connection_from_another(cluster: FakeCluster, given_up: int) -> None:
    """Whichever began the attempt. Without another call, the attempt ends, too."""
    address = Address("broker1", PORT)

    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(address))
        calls = [asyncio.ensure_future(client.connections.acquire(address, Deadline(1_000))) for _ in range(2)]
        await asyncio.sleep(0)
        calls.pop(given_up).cancel()
        assert not (await calls[0]).closed
        await client.close()

    cluster.run(main)


@pytest.mark.parametrize("asks_first", [True, False])
def test_a_call_that_follows_one_given_up_at_once_gets_a_connection(cluster: FakeCluster, asks_first: bool) -> None:
    """A caller whose time is over asks again in the same step of the loop. It was told that the client was closed, by
    the attempt that its first call had cancelled. A part that waited for a change was never told of one."""
    address = Address("broker1", PORT)
    told: list[Address] = []

    async def main(runtime: Runtime) -> None:
        connections = Cluster(runtime, settings(address)).connections
        connections.on_change = told.append
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.000_01):
                await connections.acquire(address, Deadline(1_000))
        if asks_first:
            assert connections.open_connection(address) is None
            await asyncio.sleep(1)
            assert connections.is_open(address)
        assert not (await connections.acquire(address, Deadline(1_000))).closed
        await connections.close()

    cluster.run(main)
    assert told == [address]
    assert cluster.asked(ApiVersionsRequest) == 1


def test_a_client_that_is_closed_as_a_call_is_given_up_waits_for_the_end_of_its_attempt(cluster: FakeCluster) -> None:
    """Else a task of the client would outlive it."""
    address = Address("broker1", PORT)

    async def main(runtime: Runtime) -> None:
        connections = Cluster(runtime, settings(address)).connections
        tasks = len(asyncio.all_tasks())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.000_01):
                await connections.acquire(address, Deadline(1_000))
        assert len(asyncio.all_tasks()) == tasks + 1
        await connections.close()
        assert len(asyncio.all_tasks()) == tasks

    cluster.run(main)


def test_failed_attempts_come_less_and_less_often(cluster: FakeCluster) -> None:
    attempts: list[float] = []

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        address = Address("broker1", 1)
        client = Cluster(runtime, settings(address))
        client.connections.on_change = lambda changed: attempts.append(loop.time())
        for _ in range(100):
            client.connections.open_connection(address)
            await asyncio.sleep(0.1)
        await client.close()

    cluster.run(main)
    assert 8 <= len(attempts) <= 16
    assert attempts[-1] - attempts[-2] > 0.7


def test_each_change_of_a_connection_is_told_once_until_the_client_is_closed(cluster: FakeCluster) -> None:
    """The parts of a client that got no connection wait for this, and ask again."""
    told: list[tuple[Address, bool]] = []

    async def main(runtime: Runtime) -> None:
        right, wrong = Address("broker1", PORT), Address("broker1", 1)
        client = Cluster(runtime, settings(right))
        client.connections.on_change = lambda address: told.append((address, client.connections.is_open(address)))
        for address in (right, wrong):
            assert client.connections.open_connection(address) is None
            await asyncio.sleep(0.2)
        assert told == [(right, True), (wrong, False)]
        assert client.connections.open_connection(right) is not None
        cluster.kill(1)
        await asyncio.sleep(0.2)
        assert told[2:] == [(right, False)]
        cluster.start_broker(1)
        client.connections.open_connection(right)
        await asyncio.sleep(2)
        assert told[3:] == [(right, True)]
        client.connections.open_connection(wrong)
        await client.close()
        await asyncio.sleep(2)
        assert len(told) == 4

    cluster.run(main)


def test_every_bootstrap_server_is_tried(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(Address("nowhere", 1), Address("broker1", 2), Address("broker3", PORT)))
        await client.start()
        assert sorted(client.metadata.brokers) == [1, 2, 3]
        await client.close()

    cluster.run(main)


def test_a_call_on_metadata_ends_at_its_deadline(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(Address("broker1", PORT)))
        await client.start()
        for broker in cluster.brokers:
            cluster.world.pause(f"broker{broker}")
        start = asyncio.get_running_loop().time()
        with pytest.raises((TimeoutError, ClusterUnreachable)):
            await client.refresh(Deadline(500))
        assert asyncio.get_running_loop().time() - start == pytest.approx(0.5, abs=1e-6)
        await client.close()

    cluster.run(main)


def test_a_command_asks_for_brokers_only_if_it_has_no_recent_list(cluster: FakeCluster) -> None:
    """The pause between two rounds of metadata would be most of its time."""

    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(Address("broker1", PORT)))
        await client.start()
        asked = cluster.asked(MetadataRequest)
        await client.refresh_brokers(Deadline(1_000))
        assert cluster.asked(MetadataRequest) == asked
        await asyncio.sleep(2)
        cluster.kill(3)
        await client.refresh_brokers(Deadline(1_000))
        assert sorted(client.metadata.brokers) == [1, 2]
        await client.close()

    cluster.run(main)


def test_an_attempt_ends_with_the_last_call_that_waits_for_it_whatever_was_wanted_before(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        address = Address("broker1", PORT)
        client = Cluster(runtime, settings(address))
        assert client.connections.open_connection(address) is None
        await asyncio.sleep(1)
        connection = client.connections.open_connection(address)
        assert connection is not None, "the wanted attempt has ended"
        cluster.world.pause("broker1")  # it accepts connections, and does not answer
        connection.abort()
        tasks = len(asyncio.all_tasks())
        for _ in range(2):
            call = asyncio.ensure_future(client.connections.acquire(address, Deadline(10_000)))
            await asyncio.sleep(0.1)
            assert len(asyncio.all_tasks()) == tasks + 2, "the call and the attempt"
            call.cancel()
            await asyncio.wait([call])
            await asyncio.sleep(0.1)
            assert len(asyncio.all_tasks()) == tasks
        await client.close()

    cluster.run(main)


class Silent(asyncio.BufferedProtocol):
    """A peer that accepts connections, and never answers."""

    open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Silent.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        Silent.open -= 1

    def get_buffer(self, sizehint: int) -> bytearray:
        return bytearray(1_000)


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_a_handshake_that_is_given_up_leaves_no_connection_open(cluster: FakeCluster, is_cancelled: bool) -> None:
    """By its caller, or because its time is over: else each attempt to reach a broker that hangs would leave one."""
    Silent.open = 0

    async def program(runtime: Runtime) -> None:
        await runtime.network.listen(Silent, "", PORT)
        await asyncio.Event().wait()

    cluster.world.start("stranger", program)

    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(Address("stranger", PORT)))
        call = asyncio.ensure_future(client.connections.acquire(Address("stranger", PORT), Deadline(10_000)))
        await asyncio.sleep(1)
        assert Silent.open == 1
        if is_cancelled:
            call.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled else BrokerUnreachable):
            await call
        await asyncio.sleep(1)
        assert Silent.open == 0
        await client.close()

    cluster.run(main)


def test_a_broker_that_hangs_is_asked_for_metadata_last(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(Address("broker1", PORT)))
        await client.start()
        for broker in cluster.brokers:
            await client.acquire(broker, Deadline(1_000))
        cluster.world.pause("broker1")
        start = asyncio.get_running_loop().time()
        for _ in range(8):
            await client.refresh(Deadline(10_000))
        assert asyncio.get_running_loop().time() - start < 4, "the broker was waited for more than once"
        await client.close()

    cluster.run(main)


def test_a_call_whose_time_ends_during_a_later_attempt_tells_why_the_earlier_one_failed(cluster: FakeCluster) -> None:
    """It said that the server did not accept a connection, where it had refused one."""
    server = Address("broker2", PORT)

    async def main(runtime: Runtime) -> None:
        client = Cluster(runtime, settings(server))
        cluster.kill(2)
        try:
            with pytest.raises(BrokerUnreachable) as refused:
                await client.connections.acquire(server, Deadline(10_000))
            with pytest.raises(BrokerUnreachable) as late:  # the next attempt waits for the end of the back-off
                await client.connections.acquire(server, Deadline(1))
            assert str(late.value) == str(refused.value)
            assert "did not accept" not in str(late.value)
        finally:
            await client.close()

    cluster.run(main)
