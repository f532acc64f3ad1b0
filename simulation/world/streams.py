"""asyncio's own network calls on the simulated network: start_server, open_connection, and what uses these.

Owns: the servers and transports that a user's service sees. Leaves to others: the network (`network.py`), and which
process the service belongs to. A service that asyncio runs on sockets runs here unchanged, without TLS and without
sockets of its own.
"""

import asyncio
import errno
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minibroker.runtime.ports import AddressInUse, ConnectionRefused, Listener, Network, NetworkError
from minibroker.simulation.world.real_waiting import refuse

PORT_MAX = 65_535
CONNECT_TIMEOUT_MS = 127_000
"""Linux gives up a connection attempt after about this time."""


class StreamCalls:
    """Listens and connects for the protocols of `asyncio`, over the network port of one process."""

    def __init__(self, network: Callable[[], Network]) -> None:
        self._network = network

    def server(self, factory: Callable[[], asyncio.BaseProtocol], hosts: Sequence[str], port: int) -> "SimulatedServer":
        """One that does not listen yet."""
        check_port(port)
        return SimulatedServer(self._network(), factory, hosts, port)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Raises OSError where a real connection would."""
        check_port(port)
        try:
            _, adapter = await self._network().connect(lambda: StreamAdapter(factory()), host, port, CONNECT_TIMEOUT_MS)
        except ConnectionRefused as error:
            raise ConnectionRefusedError(errno.ECONNREFUSED, str(error)) from None
        except NetworkError as error:
            raise OSError(errno.EHOSTUNREACH, str(error)) from None
        assert isinstance(adapter, StreamAdapter)
        return adapter.transport, adapter.protocol


class SimulatedServer(asyncio.AbstractServer):
    """What `asyncio.start_server` returns."""

    def __init__(
        self, network: Network, factory: Callable[[], asyncio.BaseProtocol], hosts: Sequence[str], port: int
    ) -> None:
        self._network = network
        self._factory = factory
        self._hosts = hosts
        self._port = port
        self._listener: Listener | None = None
        self._closed = asyncio.get_running_loop().create_future()

    @property
    def sockets(self) -> "tuple[ListeningAddress, ...]":
        """Objects with `getsockname`; none after `close`."""
        return () if self._listener is None else (ListeningAddress(self._hosts[0], self._listener.port),)

    async def start_serving(self) -> None:
        """Listen. Raises OSError where a real server would."""
        if self._listener is not None:
            return
        try:
            self._listener = await self._network.listen(
                lambda: StreamAdapter(self._factory()), self._hosts[0], self._port
            )
        except AddressInUse as error:
            raise OSError(errno.EADDRINUSE, str(error)) from None
        except NetworkError as error:
            raise OSError(errno.EADDRNOTAVAIL, str(error)) from None

    async def serve_forever(self) -> None:
        """Serve until it is cancelled or closed."""
        await self.start_serving()
        try:
            await asyncio.shield(self._closed)
        finally:
            self.close()

    def is_serving(self) -> bool:
        return self._listener is not None

    def close(self) -> None:
        """Stop listening. Open connections stay open."""
        if self._listener is not None:
            self._listener.stop()  # type: ignore[attr-defined]
            self._listener = None
        if not self._closed.done():
            self._closed.set_result(None)

    async def wait_closed(self) -> None:
        await asyncio.shield(self._closed)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._closed.get_loop()


class ListeningAddress:
    """The part of a listening socket that services ask for."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._address


class StreamTransport(asyncio.Transport):
    """asyncio's face of a simulated transport."""

    def __init__(self, adapter: "StreamAdapter", inner: Any) -> None:
        super().__init__()
        self._adapter = adapter
        self._inner = inner

    def write(self, data: Any) -> None:
        self._inner.write(bytes(data))  # the network keeps what it is given, asyncio's users may change it

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._inner.write_eof()

    def close(self) -> None:
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()

    def is_closing(self) -> bool:
        return bool(self._inner.is_closing())

    def is_reading(self) -> bool:
        return not self._inner.is_closing()

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._inner.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return int(self._inner.get_write_buffer_size())

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._adapter.protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._adapter.protocol
        return protocol


class StreamAdapter(asyncio.BufferedProtocol):
    """Hands what arrives to a protocol of either kind."""

    transport: StreamTransport

    def __init__(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol: Any = protocol
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = StreamTransport(self, transport)
        self.protocol.connection_made(self.transport)

    def get_buffer(self, sizehint: int) -> bytearray:
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            return self.protocol.get_buffer(sizehint)  # type: ignore[return-value]
        self._buffer = bytearray(sizehint)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if isinstance(self.protocol, asyncio.BufferedProtocol):
            self.protocol.buffer_updated(nbytes)
        else:
            self.protocol.data_received(bytes(self._buffer[:nbytes]))

    def eof_received(self) -> bool | None:
        stays: bool | None = self.protocol.eof_received()
        return stays

    def connection_lost(self, exc: Exception | None) -> None:
        self.protocol.connection_lost(exc)

    def pause_writing(self) -> None:
        self.protocol.pause_writing()

    def resume_writing(self) -> None:
        self.protocol.resume_writing()


def check_port(port: int) -> None:
    """Raises OverflowError, as a real socket does."""
    if not 0 <= port <= PORT_MAX:
        raise OverflowError(f"port must be 0-{PORT_MAX}, not {port}")


def hosts_of(host: str | Sequence[str] | None) -> list[str]:
    """What asyncio takes as a server's host: one, several, or none, which means all addresses."""
    if host is None or isinstance(host, str):
        return [host or "0.0.0.0"]
    return list(host)


def refuse_unsimulated(*, ssl: object, sock: object) -> None:
    """Raise RealWaiting for what the simulated network does not have."""
    if ssl:
        refuse("TLS, which the simulated network does not have: test it with backend='processes'")
    if sock is not None:
        refuse("a connection over a socket of its own: give host and port")
