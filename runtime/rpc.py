"""The requesting half of the wire: one connection on which requests go out and replies come back.

Owns: correlation ids, which caller waits for which reply, and the deadlines of those waits. Leaves to others: what is
requested, when to reconnect, and which server to ask instead (client, controller and replica fetcher).
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.wire.codec import decode_response_body, decode_response_frame, encode_request
from minibroker.protocol.wire.framing import CONTROL_FRAME_MAX_BYTES, FrameReceiver
from minibroker.protocol.wire.messages import API_OF_REQUEST, KEY_OF_REQUEST, Request, Response
from minibroker.runtime.deadline import answer_within
from minibroker.runtime.ports import Buffer, Network, Transport

RESPONSE_MAX_BYTES = 128 * 1024 * 1024
"""A peer that answers with more than this is broken: fetch limits keep real answers far below."""
STRANGERS_ANSWER_MAX_BYTES = CONTROL_FRAME_MAX_BYTES
"""The same for a peer that need not be a broker, and of which nothing large is asked."""
PENDING_MAX = 10_000
"""Requests one connection may wait for; callers keep far fewer in flight."""
WRITE_HIGH_WATER_BYTES = 64 * 1024 * 1024
"""The transport must not pause us: callers limit what they have in flight themselves."""
HELD_MAX_BYTES = 64 * 1024
"""Requests of one step that are sent together: with more, the peer could already have begun to work."""
WITHOUT_REPLY = 2**31 - 1
"""Correlation id of requests without an answer; no other request has it, so a refusal of one is dropped."""


class RpcError(Exception):
    """The request got no answer; it may or may not have been carried out."""


class ConnectionClosed(RpcError):
    """The connection ended before the answer came."""


class RequestTimedOut(RpcError):
    """No answer within the deadline. The connection stays usable: a late answer is dropped."""


class PeerBroken(RpcError):
    """The peer sent something that is not the protocol; the connection is closed."""


OnReply = Callable[[Response | RpcError], None]


class _Pending(msgspec.Struct):
    api_key: int
    on_reply: OnReply


class RpcConnection(asyncio.BufferedProtocol):
    """One open connection. Made by `connect`; never reused after it has closed."""

    def __init__(self, peer: str, client_id: str, answer_max_bytes: int = RESPONSE_MAX_BYTES) -> None:
        self.peer = peer
        self.client_id = client_id
        self.remote_address: tuple[str, int] | None = None
        """The peer's numeric address: dialling it again needs no name lookup."""
        self.closed = False
        self.reads = 0
        """How often bytes have come from the peer: it lives if this grows."""
        self._on_closed: Callable[[], None] | None = None
        self._transport: Transport | None = None
        self._receiver = FrameReceiver(answer_max_bytes)
        self._pending: dict[int, _Pending] = {}
        self._next_correlation_id = 0
        self._is_in_step = False
        self._held: list[Buffer] = []
        self._closed_event: asyncio.Event = asyncio.Event()

    # ------------------------------------------------------------------------------------------------- for callers
    @property
    def on_closed(self) -> Callable[[], None] | None:
        """Called once, when the connection has ended; at once if it ended before this was set: the peer may close the
        connection before the task that waited for it runs."""
        return self._on_closed

    @on_closed.setter
    def on_closed(self, call: Callable[[], None] | None) -> None:
        self._on_closed = call
        if self.closed and call is not None:
            call()

    @property
    def is_waited_on(self) -> bool:
        """Whether any caller expects a reply."""
        return bool(self._pending)

    def allow_large_answers(self) -> None:
        """The peer has proven who it is."""
        self._receiver.frame_max_bytes = RESPONSE_MAX_BYTES

    def send(self, body: Request, on_reply: OnReply) -> int:
        """Send now; `on_reply` is called exactly once, on the loop, with the reply or the error.

        No deadline is kept here: the caller has its own (see `forget`). Returns the correlation id.
        """
        transport = self._open_transport()
        if len(self._pending) >= PENDING_MAX:
            raise RpcError(f"more than {PENDING_MAX} requests wait for {self.peer}")
        correlation_id = self._next_correlation_id
        frame = encode_request(body, correlation_id, self.client_id)
        self._next_correlation_id = (correlation_id + 1) % WITHOUT_REPLY
        self._pending[correlation_id] = _Pending(KEY_OF_REQUEST[type(body)], on_reply)
        self._write(transport, frame)
        return correlation_id

    def send_without_reply(self, body: Request) -> None:
        """For Produce with acks=0, which has no answer."""
        self._write(self._open_transport(), encode_request(body, WITHOUT_REPLY, self.client_id))

    def forget(self, correlation_id: int) -> None:
        """The caller gave up; a late reply is dropped."""
        self._pending.pop(correlation_id, None)

    async def request(self, body: Request, timeout_ms: int) -> Response:
        """Send and wait. Raises ConnectionClosed, RequestTimedOut or PeerBroken."""
        future: asyncio.Future[Response] = asyncio.get_running_loop().create_future()

        def settle(reply: Response | RpcError) -> None:
            if future.done():
                return
            if isinstance(reply, RpcError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        correlation_id = self.send(body, settle)
        try:
            return await answer_within(future, timeout_ms)
        except TimeoutError:
            api = API_OF_REQUEST[type(body)].key.name
            raise RequestTimedOut(f"{api} was not answered by {self.peer} within {timeout_ms} ms") from None
        finally:
            self.forget(correlation_id)

    async def close(self) -> None:
        """Close and wait until the transport is gone."""
        if self._transport is not None:
            self._transport.abort()
            await self._closed_event.wait()

    def abort(self) -> None:
        """Close at once, without waiting."""
        if self._transport is not None and not self.closed:
            self._transport.abort()

    def _write(self, transport: Transport, frame: list[Buffer]) -> None:
        """Requests caused by replies are sent together once the replies are handled: one system call, not several."""
        if not self._is_in_step:
            transport.writelines(frame)
            return
        self._held += frame
        if sum(map(len, self._held)) > HELD_MAX_BYTES:
            self._send_held()

    def _send_held(self) -> None:
        held, self._held = self._held, []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(held)

    def _open_transport(self) -> Transport:
        if self.closed or self._transport is None or self._transport.is_closing():
            raise ConnectionClosed(f"connection to {self.peer} is closed")
        return self._transport

    # --------------------------------------------------------------------------------------------- for the transport
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        remote = transport.get_extra_info("peername")
        self.remote_address = None if remote is None else (remote[0], remote[1])
        transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        receiver = self._receiver
        receiver.received(nbytes)
        self.reads += 1
        self._is_in_step = True
        try:
            while receiver.has_partial_frame() and not self.closed:
                frame = receiver.take_frame()  # records stay views into it
                if frame is None:
                    break
                self._on_frame(frame)
            if not self.closed:
                receiver.make_room()  # no budget here: this side requested what comes
        except ProtocolError as error:
            self._end(PeerBroken(f"{self.peer} broke the protocol: {error}"))
            if self._transport is not None:
                self._transport.abort()
        finally:
            self._is_in_step = False
            if self._held:
                self._send_held()

    def eof_received(self) -> bool:
        """The peer answers no more. The transport must not wait until the peer has taken what is unsent."""
        self.abort()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(ConnectionClosed(f"connection to {self.peer} was lost" + (f": {exc}" if exc else "")))
        self._receiver.close()
        self._closed_event.set()

    def pause_writing(self) -> None:
        """Callers limit their own requests in flight."""

    def resume_writing(self) -> None:
        """See pause_writing."""

    def _on_frame(self, frame: memoryview) -> None:
        correlation_id, body = decode_response_frame(frame)
        pending = self._pending.get(correlation_id)
        if pending is None:
            return  # its caller gave up
        reply = decode_response_body(pending.api_key, body)
        del self._pending[correlation_id]
        pending.on_reply(reply)

    def _end(self, error: RpcError) -> None:
        if self.closed:
            return
        self.closed = True
        waiting, self._pending = self._pending, {}
        for pending in waiting.values():
            pending.on_reply(error)
        if self._on_closed is not None:
            self._on_closed()


async def connect(
    network: Network,
    host: str,
    port: int,
    *,
    client_id: str,
    timeout_ms: int,
    answer_max_bytes: int = RESPONSE_MAX_BYTES,
) -> RpcConnection:
    """Open a connection for requests. Raises NetworkError naming the address."""
    peer = f"{host}:{port}"
    _, protocol = await network.connect(
        lambda: RpcConnection(peer, client_id, answer_max_bytes), host, port, timeout_ms
    )
    assert isinstance(protocol, RpcConnection)
    return protocol
