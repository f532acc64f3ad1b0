"""The network port: the same cases on TCP under both event loops and on the simulated network."""

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import sys

import pytest

from minibroker.runtime.adapters.network import RealNetwork
from minibroker.runtime.ports import AddressInUse, ConnectionRefused, Listener, NetworkError, Transport
from tests.runtime.ports import RuntimePorts, conformance, settle

HOST = "127.0.0.1"
TIMEOUT_MS = 10_000


class Recorder(asyncio.BufferedProtocol):
    """Records what it receives. A small buffer makes many reads of few bytes."""

    def __init__(self, buffer_size: int = 65_536) -> None:
        self.received = bytearray()
        self.events: list[str] = []
        self.lost_with: Exception | None = None
        self.writer_paused = False
        self.changed = asyncio.Event()
        self._buffer = memoryview(bytearray(buffer_size))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Transport = transport  # type: ignore[assignment]
        self._happened("made")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self.changed.set()

    def eof_received(self) -> bool:
        self._happened("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_with = exc
        self._happened("lost")

    def pause_writing(self) -> None:
        self.writer_paused = True
        self._happened("pause")

    def resume_writing(self) -> None:
        self.writer_paused = False
        self._happened("resume")

    def _happened(self, event: str) -> None:
        self.events.append(event)
        self.changed.set()

    async def until_event(self, event: str) -> None:
        async with asyncio.timeout(10):
            while event not in self.events:
                self.changed.clear()
                await self.changed.wait()

    async def until_received(self, count: int) -> None:
        async with asyncio.timeout(10):
            while len(self.received) < count:
                self.changed.clear()
                await self.changed.wait()


class Pair:
    """A client and a server end of one connection."""

    def __init__(self, client: Recorder, server: Recorder, listener: Listener) -> None:
        self.client = client
        self.server = server
        self.listener = listener

    async def close(self) -> None:
        for end in (self.client, self.server):
            end.transport.abort()
            await end.until_event("lost")
        await self.listener.close()


async def connected(ports: RuntimePorts, buffer_size: int = 65_536) -> Pair:
    accepted: asyncio.Queue[Recorder] = asyncio.Queue()

    def accept() -> Recorder:
        server = Recorder(buffer_size)
        accepted.put_nowait(server)
        return server

    listener = await ports.network.listen(accept, HOST, 0)
    _, client = await ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS)
    assert isinstance(client, Recorder)
    async with asyncio.timeout(10):
        server = await accepted.get()
        await server.until_event("made")
    return Pair(client, server, listener)


@conformance
async def test_bytes_arrive_in_order_both_ways(ports: RuntimePorts) -> None:
    pair = await connected(ports, buffer_size=7)
    pair.client.transport.write(b"one ")
    pair.client.transport.writelines([b"two ", b"", memoryview(b"three ")])
    pair.client.transport.write(b"four")
    await pair.server.until_received(18)
    assert pair.server.received == b"one two three four"
    pair.server.transport.write(b"answer")
    await pair.client.until_received(6)
    assert pair.client.received == b"answer"
    await pair.close()


@conformance
async def test_connection_is_made_once_before_anything_else(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    assert pair.client.events == ["made"]
    assert pair.server.events == ["made"]
    await pair.close()


@conformance
async def test_many_bytes_arrive_complete(ports: RuntimePorts) -> None:
    pair = await connected(ports, buffer_size=10_000)
    data = bytes(range(256)) * 12_000
    pair.client.transport.write(data)
    await pair.server.until_received(len(data))
    assert pair.server.received == data
    await pair.close()


@conformance
async def test_port_zero_is_answered_with_a_free_port(ports: RuntimePorts) -> None:
    one = await ports.network.listen(Recorder, HOST, 0)
    other = await ports.network.listen(Recorder, HOST, 0)
    assert one.port > 0
    assert one.port != other.port
    await one.close()
    await other.close()


@conformance
async def test_taken_port_is_named(ports: RuntimePorts) -> None:
    listener = await ports.network.listen(Recorder, HOST, 0)
    with pytest.raises(AddressInUse, match=f"{HOST}:{listener.port}"):
        await ports.network.listen(Recorder, HOST, listener.port)
    await listener.close()


@conformance
async def test_closed_listener_frees_its_port(ports: RuntimePorts) -> None:
    listener = await ports.network.listen(Recorder, HOST, 0)
    await listener.close()
    again = await ports.network.listen(Recorder, HOST, listener.port)
    assert again.port == listener.port
    await again.close()


@conformance
async def test_a_port_without_a_listener_is_a_refusal(ports: RuntimePorts) -> None:
    listener = await ports.network.listen(Recorder, HOST, 0)
    await listener.close()
    with pytest.raises(ConnectionRefused, match=f"{HOST}:{listener.port}"):
        await ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS)


@conformance
async def test_a_port_that_cannot_be_is_an_error_of_the_network(ports: RuntimePorts) -> None:
    """A broker's metadata may name it."""
    for port in (-5, 65_536, 2**31 - 1):
        with pytest.raises(NetworkError, match=f"{HOST}:{port}"):
            await ports.network.connect(Recorder, HOST, port, TIMEOUT_MS)


@conformance
async def test_unknown_host_is_no_refusal(ports: RuntimePorts) -> None:
    with pytest.raises(NetworkError, match="no-such-host") as caught:
        await ports.network.connect(Recorder, "no-such-host.invalid", 9092, TIMEOUT_MS)
    assert not isinstance(caught.value, ConnectionRefused)


@conformance
async def test_connection_outlives_its_listener(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    await pair.listener.close()
    pair.client.transport.write(b"still here")
    await pair.server.until_received(10)
    with pytest.raises(ConnectionRefused):
        await ports.network.connect(Recorder, HOST, pair.listener.port, TIMEOUT_MS)
    await pair.close()


@conformance
async def test_close_sends_what_was_written_first(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    data = b"x" * 1_000_000
    pair.client.transport.write(data)
    pair.client.transport.close()
    assert pair.client.transport.is_closing()
    await pair.server.until_event("lost")
    assert len(pair.server.received) == len(data)
    assert pair.server.events == ["made", "eof", "lost"]
    assert pair.server.lost_with is None
    await pair.client.until_event("lost")
    assert pair.client.lost_with is None
    await pair.close()


@conformance
async def test_a_lost_connection_is_reported_once(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    pair.client.transport.close()
    pair.client.transport.close()
    pair.client.transport.abort()
    await pair.server.until_event("lost")
    await pair.client.until_event("lost")
    await settle()
    assert pair.client.events.count("lost") == pair.server.events.count("lost") == 1
    await pair.close()


@conformance
async def test_abort_reaches_the_peer(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    pair.client.transport.abort()
    await pair.client.until_event("lost")
    await pair.server.until_event("lost")
    await pair.close()


@conformance
async def test_a_slow_reader_stops_the_writer_and_lets_it_go_on(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    pair.server.transport.pause_reading()
    sent = 0
    while not pair.client.writer_paused:
        pair.client.transport.write(b"x" * 65_536)
        sent += 65_536
        await asyncio.sleep(0)
    assert pair.client.transport.get_write_buffer_size() > 65_536
    pair.server.transport.resume_reading()
    await pair.client.until_event("resume")
    await pair.server.until_received(sent)
    assert len(pair.server.received) == sent
    await pair.close()


@conformance
async def test_write_limits_decide_when_the_writer_stops(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    pair.server.transport.pause_reading()
    pair.client.transport.set_write_buffer_limits(high=32_000_000)
    pair.client.transport.write(b"x" * 24_000_000)
    await settle()
    assert pair.client.events == ["made"]
    pair.client.transport.write(b"x" * 24_000_000)
    await pair.client.until_event("pause")
    await pair.close()


@conformance
async def test_paused_reading_delivers_nothing(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    pair.server.transport.pause_reading()
    pair.client.transport.write(b"later")
    await settle()
    assert pair.server.received == b""
    pair.server.transport.resume_reading()
    await pair.server.until_received(5)
    await pair.close()


@conformance
async def test_what_is_changed_after_write_arrives_changed(ports: RuntimePorts) -> None:
    """Why only immutable bytes may be written: behind a full socket uvloop still reads them later, and so does asyncio
    from CPython 3.12 on (before, it copies)."""
    pair = await connected(ports)
    pair.server.transport.pause_reading()
    filler = b"f" * 16_000_000
    data = bytearray(b"a" * 1_000_000)
    pair.client.transport.write(filler)
    pair.client.transport.write(memoryview(data))
    data[:] = b"b" * 1_000_000
    pair.server.transport.resume_reading()
    await pair.server.until_received(len(filler) + len(data))
    arrived = bytes(pair.server.received[-1:])
    copies = ports.kind == "asyncio" and sys.version_info < (3, 12)
    assert arrived == (b"a" if copies else b"b")
    await pair.close()


@conformance
async def test_writing_after_the_loss_is_an_error(ports: RuntimePorts) -> None:
    """uvloop raises, so the simulation must; asyncio only warns."""
    pair = await connected(ports)
    pair.client.transport.abort()
    await pair.client.until_event("lost")
    await settle()
    if ports.kind == "asyncio":
        pair.client.transport.write(b"lost")
    else:
        with pytest.raises(RuntimeError):
            pair.client.transport.write(b"lost")
    await pair.close()


@conformance
async def test_both_ends_know_their_addresses(ports: RuntimePorts) -> None:
    pair = await connected(ports)
    assert pair.client.transport.get_extra_info("peername")[1] == pair.listener.port
    assert pair.server.transport.get_extra_info("sockname")[1] == pair.listener.port
    assert pair.server.transport.get_extra_info("peername")[:2] == pair.client.transport.get_extra_info("sockname")[:2]
    assert pair.client.transport.get_extra_info("no such fact", 7) == 7
    await pair.close()


@conformance
async def test_a_connection_may_be_closed_as_it_is_made(ports: RuntimePorts) -> None:
    class Closing(Recorder):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            transport.close()

    listener = await ports.network.listen(Closing, HOST, 0)
    _, client = await ports.network.connect(Recorder, HOST, listener.port, TIMEOUT_MS)
    assert isinstance(client, Recorder)
    await client.until_event("lost")
    assert client.received == b""
    await listener.close()


# ---------------------------------------------------------------------------------------- the real network alone
async def test_small_frames_are_not_delayed() -> None:
    network = RealNetwork()
    accepted: asyncio.Queue[Recorder] = asyncio.Queue()

    def accept() -> Recorder:
        server = Recorder()
        accepted.put_nowait(server)
        return server

    listener = await network.listen(accept, HOST, 0)
    transport, _ = await network.connect(Recorder, HOST, listener.port, TIMEOUT_MS)
    server = await accepted.get()
    await server.until_event("made")
    for end in (transport, server.transport):
        assert end.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        end.abort()
    await server.until_event("lost")
    await listener.close()


async def test_a_host_without_an_answer_times_out_in_time() -> None:
    """A socket with a full backlog does not answer further connections."""
    with socket.socket() as deaf:
        deaf.bind((HOST, 0))
        deaf.listen(0)
        port = deaf.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex((HOST, port))
        with pytest.raises(NetworkError, match=f"{HOST}:{port}: no answer in 100 ms") as caught:
            await RealNetwork().connect(Recorder, HOST, port, 100)
        assert not isinstance(caught.value, ConnectionRefused)
        for filler in fillers:
            filler.close()


async def test_refusal_of_every_address_of_a_name_is_a_refusal() -> None:
    listener = await RealNetwork().listen(Recorder, HOST, 0)
    await listener.close()
    with pytest.raises(ConnectionRefused, match="localhost"):
        await RealNetwork().connect(Recorder, "localhost", listener.port, TIMEOUT_MS)


async def test_a_name_is_looked_up_once_at_a_time_however_often_it_is_dialled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lookup keeps its thread after its caller has given up: one name must not take all threads."""
    asked: list[str] = []
    answered = asyncio.Event()

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        asked.append(host)
        if host == "silent":
            await answered.wait()
            raise socket.gaierror(socket.EAI_AGAIN, "the resolver does not answer")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (HOST, port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
    network = RealNetwork()
    listener = await network.listen(Recorder, HOST, 0)
    for _ in range(3):
        with pytest.raises(NetworkError, match="no answer in 1 ms"):
            await network.connect(Recorder, "silent", listener.port, 1)
    assert asked == ["silent"]
    transport, _ = await network.connect(Recorder, "good", listener.port, TIMEOUT_MS)
    answered.set()
    with pytest.raises(NetworkError, match="the resolver does not answer"):
        await network.connect(Recorder, "silent", listener.port, TIMEOUT_MS)
    assert asked == ["silent", "good"]
    with pytest.raises(NetworkError, match="the resolver does not answer"):
        await network.connect(Recorder, "silent", listener.port, TIMEOUT_MS)
    assert asked == ["silent", "good", "silent"]
    transport.abort()
    await listener.close()


async def test_a_lookup_that_fails_when_no_caller_waits_any_more_is_no_unhandled_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended a broker that dialled the name of a killed container and gave up before the resolver answered."""
    answered = asyncio.Event()

    async def getaddrinfo(host: str, port: int, **_: object) -> None:
        await answered.wait()
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    unhandled: list[str] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context["message"]))
    with contextlib.suppress(NetworkError):  # pytest.raises would keep the lookup's task
        await RealNetwork().connect(Recorder, "gone", 1, 1)
    (lookup,) = [task for task in asyncio.all_tasks() if task.get_name() == "look-up-gone"]
    answered.set()
    await asyncio.wait([lookup])
    del lookup
    gc.collect()
    assert unhandled == []


async def test_accepting_survives_a_lack_of_file_descriptors(caplog: pytest.LogCaptureFixture) -> None:
    accepted: asyncio.Queue[Recorder] = asyncio.Queue()

    def accept() -> Recorder:
        server = Recorder()
        accepted.put_nowait(server)
        return server

    listener = await RealNetwork().listen(accept, HOST, 0)
    client = socket.socket()
    client.setblocking(False)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
    try:
        client.connect_ex((HOST, listener.port))
        with caplog.at_level(logging.WARNING):
            while not caplog.records:
                await settle()
            await settle(0.3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [record.message for record in caplog.records if "Too many open files" in record.message]
    assert len([record for record in caplog.records if "cannot accept" in record.message]) == 1
    async with asyncio.timeout(10):
        server = await accepted.get()
    client.close()
    await server.until_event("lost")
    await listener.close()


@pytest.mark.parametrize("host", ["broker4..example", "x" * 64, "a\0b", "\udcff"])
def test_what_is_no_hosts_name_is_an_error_of_the_network(host: str) -> None:
    """`getaddrinfo` raises UnicodeError and ValueError for them, which callers do not expect."""

    async def story() -> None:
        with pytest.raises(NetworkError):
            await RealNetwork().connect(Recorder, host, 1, TIMEOUT_MS)
        with pytest.raises(NetworkError):
            await RealNetwork().listen(Recorder, host, 0)

    asyncio.run(story())
