"""The real network port: TCP through the running event loop (uvloop or the standard one).

Owns: name resolution, sockets and their options, the accept loop. It has its own accept loop instead of
`loop.create_server`: uvloop may close a server whose accept failed for lack of file descriptors, and
`Server.wait_closed` of CPython 3.12 hangs while connections are open."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from minibroker.runtime.adapters.descriptors import NO_DESCRIPTORS
from minibroker.runtime.ports import AddressInUse, ConnectionRefused, NetworkError, OutOfDescriptors, Transport

BACKLOG = 1024
"""Connections the kernel completes before we accept them: a whole cluster may reconnect at once."""

PORT_MAX = 65_535

ACCEPT_PAUSE_SECONDS = 0.2
"""Pause after a failed accept (usually no descriptor left): long enough not to spin, short enough to recover soon."""

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]
SocketAddress = tuple[Any, ...]

logger = logging.getLogger(__name__)


def numeric(host: str, port: int) -> list[tuple[int, SocketAddress]]:
    """Address family and address, if the host is a numeric address."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    return []


async def look_up(host: str, port: int) -> list[tuple[int, SocketAddress]]:
    """Address families and addresses of a host name, looked up in one of the loop's threads."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=0)
    except OSError as error:
        raise NetworkError(f"cannot resolve {host}:{port}: {error.strerror or error}") from error
    except (ValueError, OverflowError) as error:  # UnicodeError of a label, NUL, port too large
        raise NetworkError(f"cannot resolve {host!r:.300}:{port}: it is not a host name ({error})") from error
    return list(dict.fromkeys((int(family), address) for family, _, _, _, address in found))


class RealListener:
    """Implements `ports.Listener`."""

    def __init__(self, sockets: list[socket.socket], factory: ProtocolFactory) -> None:
        self._sockets = sockets
        self._port = int(sockets[0].getsockname()[1])
        self._tasks = [
            asyncio.get_running_loop().create_task(accept_forever(listening, factory), name=f"accept-{self._port}")
            for listening in sockets
        ]

    @property
    def port(self) -> int:
        return self._port

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listening in self._sockets:
            listening.close()


async def accept_forever(listening: socket.socket, factory: ProtocolFactory) -> None:
    """Accept until cancelled. Failed accepts are logged once until one succeeds again."""
    loop = asyncio.get_running_loop()
    failing = False
    while True:
        try:
            accepted, _ = await loop.sock_accept(listening)
        except OSError as error:
            if not failing:
                logger.warning("cannot accept on %s: %s; trying again", listening.getsockname(), error.strerror)
            failing = True
            await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
            continue
        failing = False
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.connect_accepted_socket(factory, accepted)
        except OSError:  # the peer is gone already
            accepted.close()
        except Exception as error:  # a bug in one connection must not silently end all later ones
            accepted.close()
            loop.call_exception_handler({"message": "cannot open an accepted connection", "exception": error})
        except BaseException:
            accepted.close()
            raise


def listening_socket(family: int, address: SocketAddress) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening


class RealNetwork:
    """Implements `ports.Network`."""

    def __init__(self) -> None:
        self._lookups: dict[tuple[str, int], asyncio.Task[list[tuple[int, SocketAddress]]]] = {}

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> RealListener:
        sockets: list[socket.socket] = []
        failure: OSError | None = None
        for family, address in numeric(host, port) or await look_up(host, port):
            bound_port = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(listening_socket(family, (address[0], bound_port, *address[2:])))
            except OSError as error:
                if error.errno == errno.EADDRINUSE:
                    for opened in sockets:
                        opened.close()
                    raise AddressInUse(f"{host}:{port} is in use by another process") from error
                failure = error  # for example ::1 of localhost where there is no IPv6
        if not sockets:
            raise NetworkError(f"cannot listen on {host}:{port}: {describe(failure)}") from failure
        return RealListener(sockets, factory)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, timeout_ms: int
    ) -> tuple[Transport, asyncio.BufferedProtocol]:
        if not 0 <= port <= PORT_MAX:
            raise NetworkError(f"cannot connect to {host}:{port}: there is no such port")
        try:
            async with asyncio.timeout(timeout_ms / 1000) as limit:
                found = numeric(host, port) or await self._look_up(host, port)
                return await connect_to_any(factory, host, port, found, limit.when() or 0.0)
        except TimeoutError:
            raise NetworkError(f"cannot connect to {host}:{port}: no answer in {timeout_ms} ms") from None

    async def _look_up(self, host: str, port: int) -> list[tuple[int, SocketAddress]]:
        """One lookup at a time for each name, which continues when its caller gives up. A lookup cannot be cancelled
        and occupies one of the loop's few threads: for ten seconds if the name is that of a stopped container and the
        engine asks a silent resolver. Repeated dialling of that name would leave no thread for other names."""
        under_way = self._lookups.get((host, port))
        if under_way is None or under_way.done():
            under_way = asyncio.get_running_loop().create_task(look_up(host, port), name=f"look-up-{host}")
            self._lookups[host, port] = under_way
            under_way.add_done_callback(partial(self._forget_lookup, (host, port)))
        return await asyncio.shield(under_way)

    def _forget_lookup(self, name: tuple[str, int], lookup: "asyncio.Task[Any]") -> None:
        """A failure after every caller has given up has no reader: unretrieved, it would end the process."""
        self._lookups.pop(name, None)
        if not lookup.cancelled():
            lookup.exception()


async def connect_to_any(
    factory: ProtocolFactory, host: str, port: int, found: list[tuple[int, SocketAddress]], deadline: float
) -> tuple[Transport, asyncio.BufferedProtocol]:
    """Connect to the first address of the host that accepts. ConnectionRefused only if every address refused. The time
    until `deadline` is shared: a silent address leaves the others theirs."""
    loop = asyncio.get_running_loop()
    failures: list[OSError] = []
    for left, (family, address) in zip(range(len(found), 0, -1), found, strict=True):
        try:
            connecting = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:  # no descriptor; or for example no IPv6 here
            failures.append(error)
            continue
        try:
            connecting.setblocking(False)
            connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            async with asyncio.timeout((deadline - loop.time()) / left if left > 1 else None):  # the last: the caller's
                await loop.sock_connect(connecting, address)
            transport, protocol = await loop.create_connection(factory, sock=connecting)
            return cast(Transport, transport), protocol
        except OSError as error:
            connecting.close()
            failures.append(TimeoutError(errno.ETIMEDOUT, "") if isinstance(error, TimeoutError) else error)
        except BaseException:
            connecting.close()
            raise
    message = f"cannot connect to {host}:{port}: {describe(failures[-1] if failures else None)}"
    if failures and all(isinstance(failure, ConnectionRefusedError) for failure in failures):
        raise ConnectionRefused(message) from failures[-1]
    if any(failure.errno in NO_DESCRIPTORS for failure in failures):
        raise OutOfDescriptors(message) from failures[-1]
    raise NetworkError(message) from (failures[-1] if failures else None)


def describe(error: OSError | None) -> str:
    if error is None:
        return "no address"
    return os.strerror(error.errno) if error.errno else str(error)
