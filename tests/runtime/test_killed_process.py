"""What the peers of a killed process observe: conformance of the simulated kernel with Linux.

The real process is a Python of its own that accepts and reads nothing; the simulated one is a machine of the world.
"""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from minibroker.runtime.ports import ConnectionRefused
from tests.runtime.ports import RuntimePorts, conformance, settle
from tests.runtime.test_network import TIMEOUT_MS, Recorder

PORT = 9092
SERVER = """
import socket, sys, time
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
accepted, _ = listening.accept()
if sys.argv[1] == "speaks":
    accepted.sendall(b"last words")
while True:
    time.sleep(60)
"""


class Speaker(Recorder):
    """Sends something and reads nothing."""

    speaks = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.pause_reading()
        if self.speaks:
            self.transport.write(b"last words")


class Victim:
    """A process that listens, on either kind of ports."""

    def __init__(self, ports: RuntimePorts, process: asyncio.subprocess.Process | None, host: str, port: int) -> None:
        self._default_runtime = ports
        self._process = process
        self.host = host
        self.port = port

    async def connect(self) -> Recorder:
        _, protocol = await self._default_runtime.network.connect(Recorder, self.host, self.port, TIMEOUT_MS)
        assert isinstance(protocol, Recorder)
        await settle()
        return protocol

    async def kill(self) -> None:
        if self._process is None:
            assert self._default_runtime.world is not None
            self._default_runtime.world.kill(self.host)
        else:
            self._process.kill()
            await self._process.wait()

    def pause(self) -> None:
        if self._process is None:
            assert self._default_runtime.world is not None
            self._default_runtime.world.pause(self.host)
        else:
            self._process.send_signal(signal.SIGSTOP)


@contextlib.asynccontextmanager
async def victim(ports: RuntimePorts, speaks: bool = False) -> AsyncIterator[Victim]:
    if ports.world is not None:
        accept = type("Speaking", (Speaker,), {"speaks": speaks})
        await ports.world.runtime("victim").network.listen(accept, "0.0.0.0", PORT)
        yield Victim(ports, None, "victim", PORT)
        return
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVER, "speaks" if speaks else "silent", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(await asyncio.wait_for(process.stdout.readline(), TIMEOUT_MS / 1000))
        yield Victim(ports, process, "127.0.0.1", port)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


@conformance
async def test_a_killed_process_ends_its_connections_and_refuses_new_ones_at_once(ports: RuntimePorts) -> None:
    async with victim(ports, speaks=True) as server:
        client = await server.connect()
        await server.kill()
        await client.until_event("lost")
        assert client.received == b"last words", "what was sent arrives before the end"
        assert client.events == ["made", "eof", "lost"]
        assert client.lost_with is None
        with pytest.raises(ConnectionRefused):
            await server.connect()


@conformance
async def test_a_process_that_is_killed_with_unread_bytes_resets_its_connection(ports: RuntimePorts) -> None:
    async with victim(ports) as server:
        client = await server.connect()
        client.transport.write(b"never read")
        await settle()
        await server.kill()
        await client.until_event("lost")
        assert client.events == ["made", "lost"]
        assert isinstance(client.lost_with, ConnectionResetError)
        with pytest.raises(ConnectionRefused):
            await server.connect()


@conformance
async def test_a_paused_process_refuses_and_ends_no_connection(ports: RuntimePorts) -> None:
    async with victim(ports) as server:
        client = await server.connect()
        server.pause()
        client.transport.write(b"waits in its kernel")
        second = await server.connect()
        assert client.events == second.events == ["made"]


@conformance
async def test_writing_to_a_killed_process_resets_the_connection(ports: RuntimePorts) -> None:
    async with victim(ports) as server:
        client = await server.connect()
        client.transport.pause_reading()  # it does not read the end of the stream
        await server.kill()
        async with asyncio.timeout(TIMEOUT_MS / 1000):
            while "lost" not in client.events:
                if not client.transport.is_closing():
                    client.transport.write(b"still there?")
                await settle()
        assert isinstance(client.lost_with, ConnectionError)
