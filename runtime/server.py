"""The answering half of the wire: accepts connections, turns bytes into requests, sends replies.

Owns: connections of a listener, their limits (frames, memory, time, number) and the first line of defence against
peers that send garbage. Refuses to know what a request means: each one is handed to `handler` in one synchronous call,
in the order of arrival; it is answered then or later through `IncomingRequest.respond`.

Limits, each with its reason, are the constants and `ServerLimits` below (docs/FORMATS.md, Wire).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from minibroker.protocol.codec import (
    API_VERSION,
    IncomingFrame,
    MalformedMessage,
    decode_request_body,
    decode_request_frame,
    encode_response,
)
from minibroker.protocol.errors import ErrorCode, ProtocolError
from minibroker.protocol.messages import APIS, ApiKey, ProduceRequest, Request, Response
from minibroker.protocol.session import FrameReceiver, MemoryBudget
from minibroker.runtime.ports import Buffer, Listener, Network, Transport

log = logging.getLogger("minibroker.server")

SWEEP_INTERVAL_MS = 2_000
"""How often all connections are looked at for deadlines; one timer for all of them."""
PARKED_COST_MAX_BYTES = 16 * 1024 * 1024
"""Estimated memory of decoded requests that wait for an answer, over all connections; above it those are not read."""
DECODED_GROWTH = 4
"""A typed request takes about so many times the memory of its bytes."""
REQUESTS_IN_FLIGHT_MAX = 1_000
"""Requests of one connection that may wait for an answer; above it the connection is not read."""
WRITE_HIGH_WATER_BYTES = 1024 * 1024
"""Unsent reply bytes above which a connection's further requests are not read."""


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one server allows its peers."""

    frame_max_bytes: int = 16 * 1024 * 1024
    """socket.request.max.bytes: Kafka allows 100 MiB; a quarter of a broker's memory is enough here."""
    receive_budget_bytes: int = 48 * 1024 * 1024
    """queued.max.request.bytes: receive buffers of all connections together."""
    broker_reserve_bytes: int = 16 * 1024 * 1024
    """Part of the budget only broker-to-broker connections may use: replication outlives a flood."""
    connections_max: int = 1_000
    frame_deadline_ms: int = 30_000
    """A frame once begun must end within this."""
    idle_deadline_ms: int = 600_000
    """connections.max.idle.ms."""
    write_deadline_ms: int = 30_000
    """A peer that does not read its replies for so long is closed."""


class IncomingRequest:
    """One request and the way to answer it. `respond` may be called once, at any later time, from the loop."""

    __slots__ = ("_connection", "_cost", "api_key", "body", "client_id", "correlation_id", "received_at")

    def __init__(
        self, connection: "ServerConnection", frame: IncomingFrame, body: Request, received_at: float, cost: int
    ) -> None:
        self._connection = connection
        self._cost = cost
        self.api_key = frame.api_key
        self.correlation_id = frame.correlation_id
        self.client_id = frame.client_id
        self.body = body
        self.received_at = received_at

    @property
    def connection(self) -> "ServerConnection":
        """Identity of the peer's connection: fetch sessions live and die with it."""
        return self._connection

    def respond(self, body: Response) -> None:
        """Answer. Does nothing if the peer has gone."""
        self.respond_frame(encode_response(self.correlation_id, body))

    def respond_frame(self, pieces: Sequence[Buffer]) -> None:
        """Answer with a frame that is packed already (Fetch with records)."""
        self._connection.answer(pieces)
        self.finish_without_reply()

    def finish_without_reply(self) -> None:
        """Produce with acks=0 has no answer."""
        self._connection.settled(self._cost)

    def close_connection(self, reason: str) -> None:
        """The only way to tell an acks=0 producer that something went wrong."""
        self._connection.close_because(reason)


Handler = Callable[[IncomingRequest], None]


class RpcServer:
    """All connections of one broker process, over any number of listeners."""

    def __init__(self, network: Network, handler: Handler, limits: ServerLimits | None = None) -> None:
        self.limits = limits or ServerLimits()
        self.handler = handler
        self.after_requests: Callable[[], None] | None = None
        """Called when the requests of one read have been handled: what they woke is answered together."""
        self.on_connection_closed: Callable[[ServerConnection], None] | None = None
        self.budget = MemoryBudget(self.limits.receive_budget_bytes, self.limits.broker_reserve_bytes)
        self.budget.on_release = self._resume_starved
        self.connections: dict[int, ServerConnection] = {}
        self.parked_cost_bytes = 0
        self._network = network
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._next_id = 0

    @property
    def port(self) -> int:
        """Port of the first listener."""
        return self._listeners[0].port

    async def start(self, host: str, port: int, listener_name: str = "PLAINTEXT") -> int:
        """Open one more listener and return its port. Raises AddressInUse."""
        listener = await self._network.listen(lambda: self._new_connection(listener_name), host, port)
        self._listeners.append(listener)
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep(), name="server-sweep")
        return listener.port

    async def stop(self) -> None:
        """Stop accepting, then close every connection."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            await asyncio.gather(self._sweeper, return_exceptions=True)
            self._sweeper = None
        for listener in self._listeners:
            await listener.close()
        for connection in list(self.connections.values()):
            connection.abort()
        self._listeners.clear()

    def unsent_reply_bytes(self) -> int:
        """Bytes of replies that peers have not read yet, over all connections that are behind."""
        return sum(c.unsent_bytes() for c in self.connections.values() if c.writing_paused)

    def reclaim_idle_buffers(self) -> None:
        """Another connection needs the room that idle ones hold."""
        for connection in self.connections.values():
            connection.release_idle_buffer()

    def _new_connection(self, listener_name: str) -> "ServerConnection":
        self._next_id += 1
        return ServerConnection(self, self._next_id, listener_name)

    def _resume_starved(self) -> None:
        for connection in self.connections.values():
            connection.resume_if_starved()

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_INTERVAL_MS / 1000)
            now = loop.time()
            for connection in list(self.connections.values()):
                connection.check_deadlines(now)
            self._resume_starved()


def _records_allowed(peek: bytes) -> bool:
    """Only a Produce request may be larger than a control frame: array of five, then api key 0."""
    return peek[:2] == b"\x95\x00"


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, server: RpcServer, connection_id: int, listener_name: str) -> None:
        self.id = connection_id
        self.listener_name = listener_name
        self.peer = "?"
        self.writing_paused = False
        self._server = server
        self._transport: Transport | None = None
        self._receiver = FrameReceiver(server.limits.frame_max_bytes, server.budget, _records_allowed)
        self._in_flight = 0
        self._reading_paused = False
        self._starved = False
        self._loop = asyncio.get_running_loop()
        self._last_active = self._loop.time()
        self._frame_began: float | None = None
        self._writing_paused_since = 0.0

    # --------------------------------------------------------------------------------------------- for the server
    def mark_as_broker(self) -> None:
        """The peer is another broker: it may use the reserved memory."""
        self._receiver.privileged = True

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def answer(self, pieces: Sequence[Buffer]) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    def settled(self, cost: int) -> None:
        """One request less waits for an answer."""
        self._in_flight -= 1
        self._server.parked_cost_bytes -= cost
        if self._reading_paused:
            self._adjust_reading()

    def close_because(self, reason: str) -> None:
        """Close, with one log line that names the peer."""
        if self._transport is not None and not self._transport.is_closing():
            log.warning("closing connection from %s: %s", self.peer, reason)
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def resume_if_starved(self) -> None:
        if self._starved and self._receiver.make_room():
            self._starved = False
        if self._reading_paused:
            self._adjust_reading()

    def release_idle_buffer(self) -> None:
        self._receiver.shrink()

    def check_deadlines(self, now: float) -> None:
        limits = self._server.limits
        if self.writing_paused and (now - self._writing_paused_since) * 1000 > limits.write_deadline_ms:
            log.warning("closing connection from %s: it does not read its replies", self.peer)
            self.abort()
        elif self._frame_began is not None and not self.writing_paused:
            if (now - self._frame_began) * 1000 > limits.frame_deadline_ms:
                log.warning("closing connection from %s: half a frame for %d ms", self.peer, limits.frame_deadline_ms)
                self.abort()
        elif not self._in_flight and (now - self._last_active) * 1000 > limits.idle_deadline_ms:
            log.info("closing connection from %s: idle", self.peer)
            self.abort()
        elif (now - self._last_active) * 1000 > SWEEP_INTERVAL_MS:
            self._receiver.shrink()

    # ----------------------------------------------------------------------------------------- for the transport
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        if len(self._server.connections) >= self._server.limits.connections_max:
            log.warning("refusing connection from %s: %d are open", self.peer, len(self._server.connections))
            transport.abort()
            return
        self._server.connections[self.id] = self

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self.id, None)
        self._receiver.close()
        if self._server.on_connection_closed is not None:
            self._server.on_connection_closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.received(nbytes)
        self._last_active = now = self._loop.time()
        handled = False
        try:
            while (frame := self._receiver.next_frame()) is not None:
                handled = True
                self._frame_began = None
                self._on_frame(frame, now)
            self._prepare_next_read(now)
        except ProtocolError as error:
            self._refuse(error)
        if handled and self._server.after_requests is not None:
            self._server.after_requests()

    def _prepare_next_read(self, now: float) -> None:
        if not self._receiver.has_partial_frame:
            self._frame_began = None
        elif self._frame_began is None:
            self._frame_began = now
        if not self._receiver.make_room():
            self._server.reclaim_idle_buffers()
            if not self._receiver.make_room():
                self._starved = True
                self._adjust_reading()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.writing_paused = True
        self._writing_paused_since = self._loop.time()
        self._adjust_reading()

    def resume_writing(self) -> None:
        self.writing_paused = False
        self._adjust_reading()

    # --------------------------------------------------------------------------------------------------- requests
    def _on_frame(self, data: memoryview, now: float) -> None:
        frame = decode_request_frame(data)
        if frame.api_key not in APIS or frame.api_version != API_VERSION:
            self.answer(encode_response(frame.correlation_id, _unsupported(frame)))
            return
        try:
            body = decode_request_body(frame)
        except MalformedMessage as error:
            log.warning("request from %s refused: %s: %s", self.peer, ApiKey(frame.api_key).name, error)
            refusal = Response(error_code=ErrorCode.INVALID_REQUEST, error_message=f"malformed request: {error}")
            if frame.api_key == ApiKey.PRODUCE:
                raise  # its sender may expect no reply (acks=0): only closing surely tells it
            self.answer(encode_response(frame.correlation_id, refusal))
            return
        cost = 0 if isinstance(body, ProduceRequest) else DECODED_GROWTH * len(data)
        self._in_flight += 1
        self._server.parked_cost_bytes += cost
        self._server.handler(IncomingRequest(self, frame, body, now, cost))
        if self._in_flight > REQUESTS_IN_FLIGHT_MAX or self._server.parked_cost_bytes > PARKED_COST_MAX_BYTES:
            self._adjust_reading()

    def _refuse(self, error: ProtocolError) -> None:
        """The framing is lost: answer where possible, close, say it once."""
        if self._transport is None or self._transport.is_closing():
            return
        log.warning("closing connection from %s: it broke the protocol: %s", self.peer, error)
        refusal = Response(error_code=ErrorCode.INVALID_REQUEST, error_message=str(error))
        correlation_id = error.correlation_id if isinstance(error, MalformedMessage) else None
        self._transport.writelines(encode_response(-1 if correlation_id is None else correlation_id, refusal))
        self._transport.close()

    def _adjust_reading(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        pause = self.writing_paused or self._starved or self._in_flight > REQUESTS_IN_FLIGHT_MAX
        pause = pause or (self._in_flight > 0 and self._server.parked_cost_bytes > PARKED_COST_MAX_BYTES)
        if pause and not self._reading_paused:
            self._reading_paused = True
            transport.pause_reading()
        elif not pause and self._reading_paused:
            self._reading_paused = False
            self._frame_began = self._loop.time() if self._receiver.has_partial_frame else None
            transport.resume_reading()


def _unsupported(frame: IncomingFrame) -> Response:
    message = f"api key {frame.api_key} version {frame.api_version} is not supported; ask ApiVersions"
    return Response(error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=message)
