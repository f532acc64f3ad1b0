"""Proxies between processes: the first request names the source, and each direction is held separately."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from minibroker.local_cluster.local_cluster import CLIENT_ID
from minibroker.local_cluster.network_proxies import CLIENTS, ZOOKEEPER, NetworkProxies, broker_name
from minibroker.protocol.wire.codec import encode_request
from minibroker.protocol.wire.messages import DescribeClusterRequest

ONE, TWO = broker_name(1), broker_name(2)
SOON_SECONDS = 5.0
NOT_YET_SECONDS = 0.05

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def request_of(client_id: str) -> bytes:
    return b"".join(bytes(part) for part in encode_request(DescribeClusterRequest(), 1, client_id))


class Target:
    """Replaces broker 2's process."""

    def __init__(self) -> None:
        self.accepted: asyncio.Queue[Ends] = asyncio.Queue()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.accepted.put((reader, writer))


class Scene:
    """Proxies before broker 2, and before ZooKeeper for broker 1."""

    def __init__(self, proxies: NetworkProxies, target: Target, port: int, zookeeper_port: int) -> None:
        self.proxies = proxies
        self.target = target
        self.port = port
        self.zookeeper_port = zookeeper_port

    async def ask_as(self, client_id: str) -> Ends:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request_of(client_id))
        return reader, writer

    async def arrival(self) -> Ends:
        async with asyncio.timeout(SOON_SECONDS):
            return await self.target.accepted.get()


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    target, proxies = Target(), NetworkProxies()
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    opened = Scene(
        proxies, target, await proxies.open_before_broker(2, port), await proxies.open_before_zookeeper(1, port)
    )
    yield opened
    await proxies.close()
    server.close()
    while not target.accepted.empty():
        target.accepted.get_nowait()[1].close()


async def got(reader: asyncio.StreamReader, expected: bytes) -> None:
    async with asyncio.timeout(SOON_SECONDS):
        assert await reader.readexactly(len(expected)) == expected


async def got_nothing(reader: asyncio.StreamReader) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), NOT_YET_SECONDS)


@pytest.mark.parametrize("client_id", ["broker-1", "broker-1-fetcher", "controller-1"])
async def test_replies_to_a_broker_are_held_while_its_requests_pass(scene: Scene, client_id: str) -> None:
    replies, asking = await scene.ask_as(client_id)
    served, serving = await scene.arrival()
    await got(served, request_of(client_id))
    scene.proxies.hold(TWO, ONE)
    serving.write(b"reply")
    asking.write(b"next")
    await got(served, b"next")
    await got_nothing(replies)
    scene.proxies.release(TWO, ONE)
    await got(replies, b"reply")
    for writer in (asking, serving):
        writer.close()


async def test_requests_of_a_held_broker_wait_while_others_pass(scene: Scene) -> None:
    scene.proxies.hold(ONE, TWO)
    scene.proxies.hold(CLIENTS, TWO)
    _, held = await scene.ask_as("broker-1")
    _, also_held = await scene.ask_as("my-service")
    _, observing = await scene.ask_as(CLIENT_ID)
    served, _ = await scene.arrival()
    await got(served, request_of(CLIENT_ID))
    assert scene.target.accepted.empty()
    scene.proxies.release_all()
    arrived = [await scene.arrival(), await scene.arrival()]
    firsts = {bytes(await reader.readexactly(len(request_of("broker-1")))) for reader, _ in arrived}
    assert request_of("broker-1") in firsts
    for writer in (held, also_held, observing):
        writer.close()


async def test_held_bytes_of_a_dead_broker_are_lost(scene: Scene) -> None:
    replies, asking = await scene.ask_as("broker-1")
    _, serving = await scene.arrival()
    scene.proxies.hold(TWO, ONE)
    serving.write(b"last words")
    await got_nothing(replies)
    scene.proxies.forget(TWO)
    scene.proxies.release(TWO, ONE)
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await got(replies, b"last words")
    asking.close()


async def test_each_broker_has_its_own_proxy_to_zookeeper(scene: Scene) -> None:
    scene.proxies.hold(ONE, ZOOKEEPER)
    _, writer = await asyncio.open_connection("127.0.0.1", scene.zookeeper_port)
    writer.write(b"session")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(scene.target.accepted.get(), NOT_YET_SECONDS)
    scene.proxies.release(ONE, ZOOKEEPER)
    served, _ = await scene.arrival()
    await got(served, b"session")
    writer.close()


async def test_closing_one_end_of_a_connection_closes_the_other(scene: Scene) -> None:
    replies, asking = await scene.ask_as("broker-1")
    _, serving = await scene.arrival()
    serving.close()
    async with asyncio.timeout(SOON_SECONDS):
        with contextlib.suppress(ConnectionResetError):  # closed or reset: both are an end
            assert await replies.read() == b""
    asking.close()


async def test_the_port_of_a_dead_broker_refuses_until_it_listens_again(scene: Scene) -> None:
    """Brokers notice the death of another by a refused connection; a proxy that accepted hid it from them."""
    silent, _ = await asyncio.open_connection("127.0.0.1", scene.port)
    reader, _ = await scene.ask_as("minibroker-producer")
    await scene.arrival()
    scene.proxies.forget(TWO)
    for broken in (reader, silent):
        with contextlib.suppress(ConnectionError):
            assert await broken.read() == b""
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", scene.port)
    await scene.proxies.listen(TWO)
    await scene.proxies.listen(TWO)
    await scene.ask_as("minibroker-producer")
    await scene.arrival()
