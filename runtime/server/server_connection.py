"""One accepted connection: from bytes to requests in order of arrival, and replies back.

Owns: when the connection is read, when its requests wait, and when it is closed. Leaves to others: what a request
means, and the sums over all connections (the server).

Requests that have arrived but must wait stay packed in the receive buffer. The transport is not read meanwhile, so that
TCP makes the peer wait. `_must_wait` has the complete list of reasons; code that removes a reason calls `resume_soon`.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from minibroker.protocol.errors import ErrorCode, ProtocolError
from minibroker.protocol.wire.codec import (
    API_VERSION,
    MalformedMessage,
    decode_request_body,
    decode_request_frame,
    encode_response,
)
from minibroker.protocol.wire.framing import FrameReceiver
from minibroker.protocol.wire.messages import APIS, ApiKey, Response
from minibroker.runtime.ports import Buffer, Transport
from minibroker.runtime.principal import ANONYMOUS
from minibroker.runtime.server.connection_owner import ConnectionOwner
from minibroker.runtime.server.heavy_requests import is_handshake, is_heavy
from minibroker.runtime.server.incoming_request import IncomingRequest, costs_of
from minibroker.runtime.server.server_limits import (
    BROKER_UNREAD_ALLOWED_BYTES,
    HELD_REPLY_MAX_BYTES,
    LARGE_WAIT_BYTES,
    REQUEST_LOOP_COST,
    REQUESTS_IN_FLIGHT_MAX,
    SMALL_WAIT_BYTES,
    SWEEP_INTERVAL_MS,
    TURN_COST,
    UNREAD_ALLOWED_BYTES,
)
from minibroker.runtime.server.waiting_requests import Charge


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection."""

    def __init__(self, server: "ConnectionOwner[ServerConnection]", connection_id: int, listener_name: str) -> None:
        self.id = connection_id
        self.listener_name = listener_name
        self.peer = "?"
        self.principal = ANONYMOUS
        """The peer's proven identity."""
        self.is_broker = False
        self.is_closed = False
        """Nothing is read or answered any more, though the transport may still send what was written."""
        self.has_sent_request = False
        """Whether the peer ever sent a whole request."""
        self.is_starved = False
        """Its next bytes have no room in the shared budget."""
        self.frame_began: float | None = None
        """When the unfinished frame began; None if there is none."""
        self._server = server
        self.observer = server.observer
        self._loop = asyncio.get_running_loop()
        self._transport: Transport | None = None
        self._receiver = FrameReceiver(server.limits.frame_max_bytes, server.budget, _records_allowed)
        self._in_flight = 0
        self._handling = False
        self._paused = False
        self._resume_scheduled = False
        self._waits_for_slot = False
        self._has_slot = False
        """May handle its heavy request now."""
        self._muted: asyncio.TimerHandle | None = None
        self.opened_at = self._loop.time()
        self._last_active = self.opened_at
        self._writing_paused_since: float | None = None
        self._closed_at: float | None = None
        self._held: list[Buffer] = []
        self._written_bytes = 0
        self._unread_allowed_bytes = UNREAD_ALLOWED_BYTES
        self._read_bytes = 0
        self._read_at = 0.0
        self._fault_logged = False

    # ------------------------------------------------------------------------------------------------ for handlers
    def mark_as_broker(self) -> None:
        """The peer is another broker: it may use the reserved memory, and the clients' limits do not apply to it."""
        self.is_broker = True
        self._receiver.privileged = True
        self._server.confirm_broker(self)
        self._server.unread_replies.discard(self)  # what it was sent as a client
        self._unread_allowed_bytes = BROKER_UNREAD_ALLOWED_BYTES
        if self._transport is not None and not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=self._unread_allowed_bytes)

    def mute(self, seconds: float) -> None:
        """Handle no further request for this long: the peer got its answer at once where it should have waited."""
        if self._muted is None and not self.is_closed:
            self._muted = self._loop.call_later(seconds, self._unmute)
            if not self._handling:
                self._adjust_reading()

    @property
    def is_handling_read(self) -> bool:
        return self._server.is_handling_read

    def answer(self, pieces: Sequence[Buffer]) -> None:
        """Send a reply; a small one at the end of the step, together with others. Each system call that sends may also
        cost this process the CPU: the kernel tends to run the process that it woke."""
        if self.is_closed:
            return
        if sum(map(len, pieces)) <= HELD_REPLY_MAX_BYTES and self._server.try_hold_reply(self):
            self._held += pieces
        else:
            self._send([*self._held, *pieces] if self._held else pieces)

    def send_answers(self) -> None:
        """Send the held replies of all connections."""
        self._server.send_held()

    def send_held(self) -> None:
        """Send this connection's held replies."""
        if self._held:
            self._send(self._held)

    def _send(self, pieces: Sequence[Buffer]) -> None:
        self._held = []
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.writelines(pieces)
        if self._writing_paused_since is None and transport.get_write_buffer_size() > self._unread_allowed_bytes:
            # asyncio's `writelines` in CPython 3.12 and 3.13 does not pause the protocol: this makes it look.
            transport.set_write_buffer_limits(high=self._unread_allowed_bytes)
        if not self.is_broker:
            self._written_bytes += sum(map(len, pieces))
            self._server.unread_replies.add(self)

    def may_wait(self, charge: Charge | None, cost: int) -> bool:
        """Whether a request of this memory cost may wait. One small request always may."""
        if self.is_broker or charge is None:
            return True
        if cost <= SMALL_WAIT_BYTES and self._in_flight <= 1:
            self._server.waiting.take_small(charge, cost)
            return True
        return self._server.waiting.try_take(charge, cost)

    def settled(self, charge: Charge | None) -> None:
        """A request has ended."""
        self._in_flight -= 1
        if charge is not None:
            self._server.waiting.give_back(charge)
        if self._paused:
            self.resume_soon()

    def close_because(self, reason: str) -> None:
        """Send what was written, then close, with one log line that names the peer."""
        if self.is_closed or self._transport is None:
            return
        self._log_closing(reason)
        self.send_held()
        self._end()
        self._transport.close()

    # ---------------------------------------------------------------------------------------------- for the server
    def abort_because(self, reason: str, level: int = logging.WARNING) -> None:
        """Close at once, with one log line that names the peer."""
        if not self.is_closed:
            self._log_closing(reason, level)
        self.abort()

    def abort(self) -> None:
        self._end()
        if self._transport is not None:
            self._transport.abort()

    def log_refused_request(self, api: str, problem: object) -> None:
        """The peer sent a request that it may not send."""
        self._log_fault(
            f"{api} refused", "request of connection %d from %s refused: %s: %s", self.id, self.peer, api, problem
        )

    def _log_closing(self, reason: str, level: int = logging.WARNING) -> None:
        kind = reason.partition(":")[0]
        self._log_fault(kind, "closing connection %d from %s: %s", self.id, self.peer, reason, level=level)

    def _log_fault(self, kind: str, message: str, *values: object, level: int = logging.WARNING) -> None:
        """At most one line for each bad connection. It names the connection's number, because ports are reused."""
        if not self._fault_logged:
            self._fault_logged = level >= logging.WARNING
            self._server.peer_faults.report(level, self.peer, kind, message, *values)

    def unread_bytes(self, now: float) -> int:
        """Reply bytes that the peer has not read yet; also notes whether it read any since the last call."""
        unread = 0 if self._transport is None else self._transport.get_write_buffer_size()
        if self._written_bytes - unread > self._read_bytes or not unread:
            self._read_bytes, self._read_at = self._written_bytes - unread, now
        return unread

    def unread_since(self, now: float) -> float:
        """Seconds since the peer was last observed to read."""
        return now - self._read_at

    def idle_seconds(self, now: float) -> float:
        """For how long the peer has neither sent a request nor waited for an answer."""
        return 0.0 if self._in_flight or self._receiver.has_partial_frame() else now - self._last_active

    def release_idle_buffer(self) -> None:
        self._receiver.shrink()

    def take_heavy_slot(self) -> None:
        """Its heavy request may be handled now."""
        self._waits_for_slot = False
        self._has_slot = True
        self._resume()
        self._has_slot = False

    def take_turn(self) -> None:
        """Handle what waited for a later callback, or for a place in the iteration's queue."""
        self._resume_scheduled = False
        self._resume()

    def resume_soon(self) -> None:
        """A reason to wait may be gone. Resume in a later callback: this may run inside another connection's
        handler."""
        if self._paused and not self._resume_scheduled and not self.is_closed:
            self._resume_scheduled = True
            self._loop.call_soon(self.take_turn)

    def check_deadlines(self, now: float) -> None:
        limits = self._server.limits
        if self._closed_at is not None:
            if (now - self._closed_at) * 1000 > limits.write_deadline_ms:
                self.abort()
        elif _is_over(self._writing_paused_since, now, limits.write_deadline_ms):
            self.abort_because(f"it has not read its replies for {limits.write_deadline_ms} ms")
        elif _is_over(self.frame_began, now, limits.frame_deadline_ms):
            self.abort_because(f"half a frame for {limits.frame_deadline_ms} ms")
        elif self.idle_seconds(now) * 1000 > limits.idle_deadline_ms:
            self.abort_because("idle", logging.INFO)
        elif (now - self._last_active) * 1000 > SWEEP_INTERVAL_MS:
            self._receiver.shrink()

    # ------------------------------------------------------------------------------------------- for the transport
    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if peer else "?"
        transport.set_write_buffer_limits(high=self._unread_allowed_bytes)
        if not self._server.admit(self):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._transport = None
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._receiver.received(nbytes)
        self._last_active = self._loop.time()
        self._handle_frames()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writing_paused_since = self._loop.time()
        if not self._handling:
            self._adjust_reading()
        self._server.unread_replies.watch()

    def resume_writing(self) -> None:
        self._writing_paused_since = None
        self.resume_soon()

    # --------------------------------------------------------------------------------------------------- requests
    def _handle_frames(self) -> None:
        """One step: handle the requests that have arrived, then send their answers."""
        server = self._server
        if server.is_handling_read:
            self._handle_received()
            return
        server.is_handling_read = True
        try:
            self._handle_received()
        finally:
            server.is_handling_read = False
            server.send_held()

    def _handle_received(self) -> None:
        """In order, until nothing is left or the next request must wait."""
        handled = 0
        receiver = self._receiver
        turn_ends_at = self._server.iteration.left - TURN_COST
        self._handling = True
        try:
            while receiver.has_partial_frame() and not self._must_wait():
                frame = receiver.next_frame()
                if frame is None:
                    break
                if not self.is_broker and not self._may_begin(frame, turn_ends_at):
                    break
                self._on_frame(frame)
                handled += 1
        except ProtocolError as error:
            self._refuse(error)
        finally:
            self._handling = False
        if handled:
            self.frame_began = None
        self._adjust_reading()
        if handled and self._server.after_requests is not None:
            self._server.after_requests()

    def _must_wait(self) -> bool:
        """Whether the next request has to stay in the buffer."""
        return (
            self.is_closed
            or self._resume_scheduled
            or self._writing_paused_since is not None
            or self._waits_for_slot
            or self._muted is not None
            or self._in_flight >= REQUESTS_IN_FLIGHT_MAX
            or (
                not self.is_broker
                and self._server.lacks_memory
                and self._server.lacks_memory_for(self, self._in_flight)
            )
        )

    def _may_begin(self, frame: memoryview, turn_ends_at: int) -> bool:
        """Whether the request may be handled now; else it waits for this connection's next turn, or for the heavy
        slot. The turn ends when no more than `turn_ends_at` is left of the iteration's allowance, if others wait."""
        if self._has_slot:  # it has had its wait, and a flood of light requests leaves nothing of any iteration
            self._has_slot = False
            return True
        iteration = self._server.iteration
        if iteration.left <= 0 and iteration.handshakes_left > 0 and is_handshake(frame):
            iteration.handshakes_left -= 1
            return True
        if iteration.left <= 0 or (iteration.queue and iteration.left <= turn_ends_at):
            self._receiver.put_back(frame)
            self._resume_scheduled = True
            iteration.queue.append(self)
            return False
        if not is_heavy(frame) or self._server.heavy.begin(self, len(frame)):
            return True
        if not self.is_closed:  # closed at once if too much waits and this request is the largest
            self._receiver.put_back(frame)
            self._waits_for_slot = True
        return False

    def _on_frame(self, data: memoryview) -> None:
        if not self.is_broker:
            self._server.iteration.spend(REQUEST_LOOP_COST)
        frame = decode_request_frame(data)
        self.has_sent_request = True
        if frame.api_key not in APIS or frame.api_version != API_VERSION:
            refusal = f"api key {frame.api_key} version {frame.api_version} is not supported; ask ApiVersions"
            kind = "an api that does not exist"
            self._log_fault(kind, "request of connection %d from %s refused: %s", self.id, self.peer, refusal)
            self.answer(encode_response(frame.correlation_id, _refusal(ErrorCode.UNSUPPORTED_VERSION, refusal)))
            return
        try:
            body = decode_request_body(frame)
        except MalformedMessage as error:
            if frame.api_key == ApiKey.PRODUCE:
                raise  # its sender may expect no reply (acks=0): only closing is sure to inform it
            self.log_refused_request(ApiKey(frame.api_key).name, error)
            refusal = f"malformed request: {error}"
            self.answer(encode_response(frame.correlation_id, _refusal(ErrorCode.INVALID_REQUEST, refusal)))
            return
        charge = None
        if not self.is_broker:
            charge = Charge()
            cost, iteration_cost = costs_of(body, len(data))
            self._server.iteration.spend(iteration_cost)
            if not self._take(charge, cost, may_refuse=frame.api_key != ApiKey.PRODUCE):
                refusal = "too many large requests wait for their answer; try again"
                self.answer(encode_response(frame.correlation_id, _refusal(ErrorCode.REQUEST_TIMED_OUT, refusal)))
                return
        self._in_flight += 1
        self._server.handler(IncomingRequest(self, frame, body, self._last_active, charge))

    def _take(self, charge: Charge, cost: int, may_refuse: bool) -> bool:
        """Reserve the memory that a request takes if its handler delays it. Only large amounts are refused."""
        waiting = self._server.waiting
        if cost > LARGE_WAIT_BYTES and may_refuse:
            return waiting.try_take(charge, min(cost, waiting.limit_bytes // 2))
        if self._in_flight or cost > LARGE_WAIT_BYTES:
            waiting.take(charge, cost)
        else:
            waiting.take_small(charge, cost)
        return True

    def _refuse(self, error: ProtocolError) -> None:
        """The framing is lost: answer if possible, close, log it once."""
        correlation_id = error.correlation_id if isinstance(error, MalformedMessage) else None
        refusal = _refusal(ErrorCode.INVALID_REQUEST, str(error))
        self.answer(encode_response(-1 if correlation_id is None else correlation_id, refusal))
        self.close_because(f"it broke the protocol: {error}")

    # ---------------------------------------------------------------------------------------------------- reading
    def _resume(self) -> None:
        if not self.is_closed and not self._handling:
            self._handle_frames()

    def _unmute(self) -> None:
        self._muted = None
        self._resume()

    def _adjust_reading(self) -> None:
        """Read exactly while no request has to wait and there is room for more bytes."""
        receiver = self._receiver
        if not (
            self._paused
            or receiver.has_partial_frame()
            or self._server.lacks_buffers
            or self._must_wait()
            or not receiver.make_room()
        ):  # the usual case, thousands of times per second: it is being read, and everything received is handled
            self.frame_began = None
            self.is_starved = False
            return
        transport = self._transport
        if self.is_closed or transport is None or transport.is_closing():
            return
        waits = self._must_wait()
        if self._server.lacks_buffers:
            self._receiver.shrink()
        self.is_starved = not waits and not self._has_room()
        if self.frame_began is None and (not waits and self._receiver.has_partial_frame()):
            self.frame_began = self._loop.time()
        elif waits or not self._receiver.has_partial_frame():
            self.frame_began = None
        pause = waits or self.is_starved
        if pause != self._paused:
            self._paused = pause
            self._server.note_paused(self, pause)
            if pause:
                transport.pause_reading()
            else:
                transport.resume_reading()

    def _has_room(self) -> bool:
        if self._receiver.make_room():
            return True
        return not self.is_starved and self._server.reclaim_buffers() and self._receiver.make_room()

    def _end(self) -> None:
        """Stop reading; free its memory at once, though the transport may need longer."""
        if self.is_closed:
            return
        self.is_closed = True
        self._closed_at = self._loop.time()
        self.frame_began = None
        self.is_starved = False
        if self._muted is not None:
            self._muted.cancel()
        self._server.note_paused(self, False)
        self._receiver.close()


def _records_allowed(peek: bytes) -> bool:
    """Only a Produce request may be larger than a control frame: array of five, then api key 0."""
    return peek[:2] == b"\x95\x00"


def _is_over(since: float | None, now: float, limit_ms: int) -> bool:
    return since is not None and (now - since) * 1000 > limit_ms


def _refusal(code: ErrorCode, message: str) -> Response:
    return Response(error_code=code, error_message=message)
