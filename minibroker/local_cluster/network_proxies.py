"""TCP proxies around the processes of a local cluster, which can hold or delay what passes between two.

Theory: every broker advertises the port of a proxy that forwards to it, so that other brokers and clients connect only
to proxies. The client id of the first request names the source of a connection; before it has arrived nothing is
forwarded. Each direction between two parties is held separately: held bytes wait, as if TCP kept retransmitting them,
and connections stay open. Each broker reaches ZooKeeper through a proxy of its own. The port of a dead broker refuses,
as its own port does: brokers notice a death by that.

Owns: the listening sockets (loopback only) and which directions are held. Leaves to others: processes.
"""

import asyncio
import contextlib
import re
import socket
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.local_cluster.local_cluster import CLIENT_ID, LocalCluster
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.wire.codec import decode_request_frame

LOOPBACK = "127.0.0.1"
CLIENTS = "clients"
ZOOKEEPER = "zookeeper"
UNKNOWN = "unknown"
"""Has sent nothing yet. A connection that another broker holds only to notice a death never does."""
OBSERVER = "observer"
"""The launcher's own queries, which are never held."""
BROKER_CLIENT_ID = re.compile(r"(?:broker|controller)-([0-9]+)(?:-fetcher)?")
FIRST_FRAME_BYTES_MAX = 1 << 20
READ_BYTES = 65_536
TASK_NAME = "network-proxy"
"""Of all tasks here, so that a harness can tell them from those of a test."""


Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]


def broker_name(broker_id: int) -> str:
    return f"broker-{broker_id}"


class NetworkProxies:
    """Forwards what is not held. Open proxies, use their ports, `close` at the end."""

    def __init__(self) -> None:
        self._held: set[tuple[str, str]] = set()
        self._delays: dict[tuple[str, str], float] = {}
        self._change = asyncio.Event()
        self._servers: dict[str, asyncio.Server] = {}
        """By the party to which they forward; those before ZooKeeper by the broker whose way it is, too."""
        self._accepts: dict[str, Accept] = {}
        self._ports: dict[str, socket.socket] = {}
        """Sockets that are bound and do not listen: they keep the ports while a server is closed."""
        self._writers: dict[asyncio.StreamWriter, tuple[str, str]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def surround(self, cluster: LocalCluster, ports: dict[int, int]) -> None:
        """Open proxies before every broker of a cluster that is not started yet; `ports` gets those for clients."""
        zookeeper_port = cluster.record.zookeeper.port
        assert zookeeper_port is not None, "a ZooKeeper of the cluster's own"
        for broker_id in cluster.broker_ids:
            record = cluster.record.brokers[broker_id]
            ports[broker_id] = await self.open_before_broker(broker_id, record.port)
            to_zookeeper = await self.open_before_zookeeper(broker_id, zookeeper_port)
            record.settings = record.settings | {
                "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{ports[broker_id]}",
                "zookeeper.connect": f"{LOOPBACK}:{to_zookeeper}",
            }

    async def open_before_broker(self, broker_id: int, port: int) -> int:
        """Open a proxy; returns the port to use instead of the broker's own."""
        target = broker_name(broker_id)

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers[writer] = (UNKNOWN, target)
            try:
                first = await _first_frame(reader)
                await self._connect(_source_of(first), target, port, reader, writer, first)
            finally:
                self._writers.pop(writer, None)

        return await self._open(target, serve)

    async def open_before_zookeeper(self, broker_id: int, port: int) -> int:
        """Open a proxy; returns the port through which this broker reaches ZooKeeper."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._connect(broker_name(broker_id), ZOOKEEPER, port, reader, writer, b"")

        return await self._open(f"{ZOOKEEPER} of {broker_name(broker_id)}", serve)

    async def close(self) -> None:
        """Break every connection and stop listening."""
        for server in self._servers.values():
            server.close()
        for bound in self._ports.values():
            bound.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ------------------------------------------------------------------------------------------------- what passes
    def hold(self, source: str, target: str) -> None:
        """Hold all bytes from source to target, requests and replies."""
        self._held.add((source, target))

    def release(self, source: str, target: str) -> None:
        """Forward what was held."""
        self._held.discard((source, target))
        self._wake_waiting()

    def release_all(self) -> None:
        """Slow links are as fast as others again, too."""
        self._held.clear()
        self._delays.clear()
        self._wake_waiting()

    def slow(self, source: str, target: str, delay_s: float) -> None:
        """What passes from source to target takes so much longer; 0 ends that."""
        self._delays[source, target] = delay_s

    def forget(self, party: str) -> None:
        """Reset the connections of a dead party, and refuse new ones until `listen`; what was held of them is lost."""
        if party in self._servers:
            self._servers.pop(party).close()
        for writer, ends in tuple(self._writers.items()):
            if party in ends:
                writer.transport.abort()

    def reset(self, one: str, other: str) -> None:
        """Reset all connections between the two."""
        for writer, ends in tuple(self._writers.items()):
            if {one, other} == {*ends}:
                writer.transport.abort()

    def _wake_waiting(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    async def _may_pass(self, source: str, target: str) -> None:
        while (source, target) in self._held:
            await self._change.wait()

    # ------------------------------------------------------------------------------------------------- connections
    async def _open(
        self, name: str, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]
    ) -> int:
        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._spawn(_quietly(serve(reader, writer), writer))

        self._ports[name], self._accepts[name] = _bound(0), accept
        await self.listen(name)
        return _port_of(self._ports[name])

    async def listen(self, name: str) -> None:
        """Accept connections to this party, again after `forget`."""
        if name not in self._servers:
            listening = _bound(_port_of(self._ports[name]))
            self._servers[name] = await asyncio.start_server(self._accepts[name], sock=listening)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=TASK_NAME)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(
        self,
        source: str,
        target: str,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        first: bytes,
    ) -> None:
        await self._may_pass(source, target)
        answers, requests = await asyncio.open_connection(LOOPBACK, port)
        for end in (writer, requests):
            self._writers[end] = (source, target)
        try:
            requests.write(first)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(source, target, reader, requests), name=TASK_NAME)
                both.create_task(self._forward(target, source, answers, writer), name=TASK_NAME)
        finally:
            for end in (writer, requests):
                self._writers.pop(end, None)
                end.transport.abort()

    async def _forward(
        self, source: str, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(READ_BYTES):
            if delay_s := self._delays.get((source, target), 0.0):
                await asyncio.sleep(delay_s)
            await self._may_pass(source, target)
            writer.write(data)
            await writer.drain()
        await self._may_pass(source, target)
        raise ConnectionResetError  # one end has closed: close the other one, too, once all has arrived


def _bound(port: int) -> socket.socket:
    """Several may have one port as long as one of them listens."""
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((LOOPBACK, port))
    return bound


def _port_of(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port


async def _first_frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    length = int.from_bytes(head, "big")
    if length > FIRST_FRAME_BYTES_MAX:
        return head
    return head + await reader.readexactly(length)


def _source_of(frame: bytes) -> str:
    try:
        client_id = decode_request_frame(frame[4:]).client_id
    except ProtocolError:
        return CLIENTS
    if client_id is None:
        return CLIENTS
    if client_id == CLIENT_ID:
        return OBSERVER
    found = BROKER_CLIENT_ID.fullmatch(client_id)
    return CLIENTS if found is None else broker_name(int(found[1]))


async def _quietly(serving: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
    """Serve one connection; how it ends does not matter to the proxy."""
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, ExceptionGroup):
        await serving
    writer.transport.abort()
