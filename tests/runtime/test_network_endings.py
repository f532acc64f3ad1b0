"""The network port: many connections at once, half-closed and short ones, on real and on simulated sockets."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from minibroker.runtime.adapters.network import RealNetwork
from minibroker.runtime.ports import ConnectionRefused, NetworkError, OutOfDescriptors
from tests.runtime.descriptor_limit import no_descriptors
from tests.runtime.ports import RuntimePorts, conformance, settle
from tests.runtime.test_network import HOST, TIMEOUT_MS, Recorder, connected


class HalfOpen(Recorder):
    """Continues to write when its peer has ended its side."""

    def eof_received(self) -> bool:
        super().eof_received()
        return True


@conformance
async def test_without_a_descriptor_a_connection_fails_as_others_do_and_it_passes(ports: RuntimePorts) -> None:
    """D08: it is no bug that ends the process, and no sign that the peer is gone."""
    accepted: asyncio.Queue[Recorder] = asyncio.Queue()
    listener = await ports.network.listen(lambda: queued(accepted), HOST, 0)
    with without_descriptors(ports), pytest.raises(NetworkError, match="oo many open files") as failure:
        await ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS)
    assert isinstance(failure.value, OutOfDescriptors)
    assert not isinstance(failure.value, ConnectionRefused)
    _, client = await ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS)
    assert isinstance(client, Recorder)
    client.transport.close()
    await (await accepted.get()).until_event("lost")
    await listener.close()


def queued(accepted: asyncio.Queue[Recorder]) -> Recorder:
    server = Recorder()
    accepted.put_nowait(server)
    return server


@contextmanager
def without_descriptors(ports: RuntimePorts) -> Iterator[None]:
    if ports.world is None:
        with no_descriptors():
            yield
    else:
        ports.world.take_descriptors("case")
        yield
        ports.world.give_descriptors("case")


@conformance
async def test_writing_to_a_peer_that_has_closed_resets_the_connection(ports: RuntimePorts) -> None:
    accepted: asyncio.Queue[HalfOpen] = asyncio.Queue()

    def accept() -> HalfOpen:
        server = HalfOpen()
        accepted.put_nowait(server)
        return server

    listener = await ports.network.listen(accept, HOST, 0)
    _, client = await ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS)
    assert isinstance(client, Recorder)
    server = await accepted.get()
    client.transport.close()
    await server.until_event("eof")
    await settle()
    assert "lost" not in server.events
    assert not server.transport.is_closing()
    async with asyncio.timeout(10):
        while "lost" not in server.events:
            if not server.transport.is_closing():
                server.transport.write(b"still there?")
            await settle()
    assert isinstance(server.lost_with, ConnectionError)
    await listener.close()


@conformance
async def test_abort_throws_away_what_was_not_sent(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    pair.server.transport.pause_reading()
    data = b"x" * 20_000_000
    pair.client.transport.write(data)
    assert pair.client.transport.get_write_buffer_size() > 0
    pair.client.transport.abort()
    await pair.client.until_event("lost")
    pair.server.transport.resume_reading()
    await pair.server.until_event("lost")
    assert len(pair.server.received) < len(data)
    await pair.close()


@conformance
async def test_a_cancelled_attempt_leaves_no_connection(ports: RuntimePorts) -> None:
    accepted: list[Recorder] = []

    def accept() -> Recorder:
        accepted.append(Recorder())
        return accepted[-1]

    listener = await ports.network.listen(accept, HOST, 0)
    attempt = asyncio.ensure_future(ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS))
    await asyncio.sleep(0)
    attempt.cancel()
    with pytest.raises(asyncio.CancelledError):
        await attempt
    await settle()
    for server in accepted:
        await server.until_event("lost")
    await listener.close()


@conformance
async def test_many_connections_at_once_are_all_made(ports: RuntimePorts) -> None:
    accepted: asyncio.Queue[Recorder] = asyncio.Queue()

    def accept() -> Recorder:
        server = Recorder()
        accepted.put_nowait(server)
        return server

    listener = await ports.network.listen(accept, HOST, 0)
    opened = await asyncio.gather(
        *(ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS) for _ in range(100))
    )
    async with asyncio.timeout(10):
        servers = [await accepted.get() for _ in range(100)]
    assert len({transport.get_extra_info("sockname")[1] for transport, _ in opened}) == 100
    for end in (*servers, *(protocol for _, protocol in opened)):
        assert isinstance(end, Recorder)
        end.transport.abort()
        await end.until_event("lost")
    await listener.close()


@conformance
async def test_a_listener_that_has_closed_refuses_and_may_be_opened_again_at_once(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    await pair.listener.close()
    with pytest.raises(ConnectionRefused):
        await ports.network.connect(Recorder, HOST, pair.listener.port, TIMEOUT_MS)
    again = await ports.network.listen(Recorder, HOST, pair.listener.port)
    transport, client = await ports.network.connect(Recorder, HOST, again.port, TIMEOUT_MS)
    assert isinstance(client, Recorder)
    transport.abort()
    await client.until_event("lost")
    await again.close()
    await pair.close()


async def test_a_silent_first_address_of_a_name_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A firewall drops IPv6, or one of two hosts is down: otherwise each dial would end before the next address."""
    loop = asyncio.get_running_loop()
    connect = loop.sock_connect

    async def getaddrinfo(host: str, port: int, **_: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in ("127.0.0.2", HOST)]

    async def sock_connect(connecting: socket.socket, address: tuple[str, int]) -> None:
        await (connect(connecting, address) if address[0] == HOST else asyncio.Event().wait())

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(loop, "sock_connect", sock_connect)
    listener = await RealNetwork().listen(Recorder, HOST, 0)
    transport, _ = await RealNetwork().connect(Recorder, "both", listener.port, 1_000)
    transport.abort()
    await listener.close()
    with pytest.raises(NetworkError, match=r"both:\d+: Connection (refused|timed out)") as refused:
        await RealNetwork().connect(Recorder, "both", listener.port, 1_000)
    assert not isinstance(refused.value, ConnectionRefused)  # the silent one proves nothing
