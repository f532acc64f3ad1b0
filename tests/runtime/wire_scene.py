"""A server, and correct and faulty peers, on the simulated network.

A case is `async def test_..(scene: Scene)` under `@simulated`; time is virtual, so deadlines cost nothing.
"""

import asyncio
import inspect
import struct
from collections.abc import Callable, Coroutine
from typing import Any

import msgpack
import msgspec

from minibroker.protocol.wire.codec import encode_request
from minibroker.protocol.wire.messages import ApiKey, ApiVersionsResponse, Request
from minibroker.runtime.rpc import RpcConnection, connect
from minibroker.runtime.server.server import IncomingRequest, RpcServer, ServerConnection, ServerLimits
from minibroker.simulation.world.world import SimulatedWorld

HOST, PORT = "server", 9092
POLL_SECONDS = 0.001
TIMEOUT_MS = 10_000


class Peer(asyncio.BufferedProtocol):
    """Sends any bytes, and keeps the answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, Any]]] = []
        self.received_bytes = 0
        self.closed = False
        self.transport: Any = None
        self._room = bytearray(65_536)
        self._unread = bytearray()

    def send(self, *pieces: bytes) -> None:
        self.transport.write(b"".join(pieces))

    def ask(self, body: Request, correlation_id: int = 1) -> None:
        self.send(*(bytes(piece) for piece in encode_request(body, correlation_id, "peer")))

    def stop_reading(self) -> None:
        self.transport.pause_reading()

    def start_reading(self) -> None:
        self.transport.resume_reading()

    @property
    def name(self) -> str:
        """Its address as in the server's log."""
        host, port = self.transport.get_extra_info("sockname")
        return f"{host}:{port}"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        self.received_bytes += nbytes
        self._unread += self._room[:nbytes]
        while len(self._unread) >= 4 and len(self._unread) >= (end := 4 + struct.unpack_from(">I", self._unread)[0]):
            correlation_id, body = msgpack.unpackb(bytes(self._unread[4:end]))
            self.answers.append((correlation_id, body))
            del self._unread[:end]

    def eof_received(self) -> bool:
        return False


class Scene:
    """One server on its machine; each peer on another machine."""

    def __init__(self, world: SimulatedWorld) -> None:
        self.world = world
        self.requests: list[IncomingRequest] = []
        """The requests that the handler got."""
        self.closed: list[ServerConnection] = []
        self.server: RpcServer
        self._answers_at_once = True

    async def serve(self, limits: ServerLimits | None = None, answers_at_once: bool = True) -> RpcServer:
        """Start the server. It answers each request with an empty response, or keeps them in `requests`."""
        self.server = RpcServer(self.world.runtime(HOST).network, self._handle, limits)
        self.server.on_connection_closed = self._connection_closed
        self._answers_at_once = answers_at_once
        await self.server.start(HOST, PORT)
        return self.server

    async def peer(self, machine: str = "peer") -> Peer:
        _, protocol = await self.world.runtime(machine).network.connect(Peer, HOST, PORT, TIMEOUT_MS)
        assert isinstance(protocol, Peer)
        return protocol

    async def client(self) -> RpcConnection:
        return await connect(self.world.runtime("client").network, HOST, PORT, client_id="c", timeout_ms=TIMEOUT_MS)

    def connection_of(self, peer: Peer) -> ServerConnection:
        """The server's end."""
        return next(each for each in self.server.connections.values() if each.peer == peer.name)

    def _handle(self, request: IncomingRequest) -> None:
        self.requests.append(request)
        if self._answers_at_once:
            request.respond(ApiVersionsResponse())

    def _connection_closed(self, connection: ServerConnection) -> None:
        self.closed.append(connection)


def simulated(case: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run the case in a world of its own; pytest sees its further parameters, fixtures and others."""

    def test(**fixtures: Any) -> None:
        world = SimulatedWorld(seed=3)

        async def play() -> None:
            scene = Scene(world)
            await case(scene, **fixtures)
            if hasattr(scene, "server"):
                await scene.server.stop()

        world.run(play())

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    parameters = list(inspect.signature(case).parameters.values())[1:]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    test.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return test


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait in virtual time until the condition is true."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a wait in virtual time costs nothing
            await asyncio.sleep(POLL_SECONDS)


def framed(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def packed(api_key: int, body: object, correlation_id: int = 1, version: int = 0) -> bytes:
    """A request frame encoded by the reference implementation."""
    return framed(bytes(msgpack.packb([api_key, version, correlation_id, "peer", body])))


def light(correlation_id: int = 1) -> bytes:
    """The smallest request there is."""
    return packed(ApiKey.API_VERSIONS, {}, correlation_id)


def sized(size: int, correlation_id: int = 1, api_key: int = ApiKey.API_VERSIONS) -> bytes:
    """A request of about this many bytes, filled with an unknown field."""
    return packed(api_key, {"filler": b"x" * size}, correlation_id)


VERSIONS = msgspec.to_builtins(ApiVersionsResponse())
PROBE = 4711
"""Correlation id of requests that only test whether a connection is served."""


async def is_served(peer: Peer) -> float:
    """Virtual seconds until it was answered."""
    loop = asyncio.get_running_loop()
    began, before = loop.time(), peer.answers.count((PROBE, VERSIONS))
    peer.send(light(PROBE))
    await until(lambda: peer.answers.count((PROBE, VERSIONS)) > before)
    return loop.time() - began


async def ask_fetch(scene: Scene, peer: Peer) -> IncomingRequest:
    """A fetch that the handler keeps."""
    before = len(scene.requests)
    peer.send(packed(ApiKey.FETCH, {}))
    await until(lambda: len(scene.requests) > before)
    return scene.requests[-1]
