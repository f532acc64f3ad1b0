"""One end of a simulated connection: its pipe, its buffer, its flow control and its end.

The theory is in `network.py`. An end owns the pipe from which it reads; its callbacks run in its own process, so a
paused process reads late and a dead one never.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from minibroker.runtime.ports import Buffer
from minibroker.simulation.world.links import Contact, Links
from minibroker.simulation.world.loop import NodeHandle
from minibroker.simulation.world.message_holds import Action, FrameCutter
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.trace import checksum

WINDOW_BYTES = 256 * 1024
"""Bytes that the two kernels hold for a reader: the order of Linux's defaults for a new connection."""

HIGH_WATER_BYTES = 64 * 1024
"""asyncio's default for pause_writing; a quarter of it for resume_writing."""

RESEND_SECONDS = 1.0
"""Time until a retry after a lost SYN or reset."""

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]


class StreamSegment(Struct, frozen=True, gc=False):
    """Bytes in flight, or the end of the stream."""

    arrives_at: float
    data: bytes | None
    """None: the end."""
    starts_write: bool
    """Its first byte is the first of a `write`, and so of a frame."""


class SimulatedTransport:
    """One end of a connection. Implements `ports.Transport`."""

    __slots__ = (
        "_arrival",
        "_buffer",
        "_buffer_bytes",
        "_closing",
        "_contact",
        "_ended",
        "_fin_sent",
        "_high",
        "_is_behind",
        "_is_finishing",
        "_is_half_closing",
        "_is_held",
        "_links",
        "_loop",
        "_lost",
        "_low",
        "_opened",
        "_pipe",
        "_reading",
        "_unread",
        "_vanished",
        "_writer_paused",
        "cutter",
        "host",
        "is_client",
        "is_gone",
        "peer",
        "port",
        "process",
        "protocol",
        "serial",
        "unread_by_peer",
    )
    peer: "SimulatedTransport"
    protocol: asyncio.BufferedProtocol

    def __init__(
        self,
        links: Links,
        process: Process,
        host: str,
        port: int,
        *,
        is_client: bool,
        vanished: "Callable[[SimulatedTransport], None]",
    ) -> None:
        self._links = links
        self._loop = links.loop
        self._vanished = vanished
        self.serial = links.new_serial()
        self.process = process
        self.host = host
        self.port = port
        self.is_client = is_client
        self.cutter: FrameCutter | None = None
        self._is_held = False
        """A hold keeps back the next frame for this end."""
        self.is_gone = False
        """Its kernel no longer has it: closed, reset, killed, or without power."""
        self._opened = False
        self._lost = False
        self._closing = False
        self._is_half_closing = False
        self._is_finishing = False
        self._fin_sent = False
        self._reading = True
        self._pipe: deque[StreamSegment] = deque()
        self._unread = b""
        self._ended = False
        self._buffer: deque[Buffer] = deque()
        self._buffer_bytes = 0
        self._is_behind = False
        """Since the window was full, segments may begin in the middle of a write."""
        self._high = HIGH_WATER_BYTES
        self._low = HIGH_WATER_BYTES // 4
        self._writer_paused = False
        self.unread_by_peer = 0
        self._arrival = NodeHandle(self.pump, (), self._loop, process.context)
        """For all segments: one is sent thousands of times per second."""
        self._contact: Contact | None = None
        """What this machine last saw of the peer; None before the first answer."""

    def open(self, factory: ProtocolFactory) -> None:
        """The connection is established on this side."""
        if self.is_gone:
            return  # reset before it was accepted
        self.protocol = factory()
        self._opened = True
        self.protocol.connection_made(self)  # type: ignore[arg-type]
        self.pump()

    # ------------------------------------------------------------------------------------------------- writing
    def write(self, data: Buffer) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Sequence[Buffer]) -> None:
        if not self.process.alive:
            return
        if self._lost:
            raise RuntimeError("the transport is closed")  # as uvloop does
        if self.is_gone or self._fin_sent:
            return
        if not self._buffer:
            data = b"".join(list_of_data)
            unread = self.unread_by_peer + len(data)
            if unread <= WINDOW_BYTES:  # nearly always
                if data:
                    self.unread_by_peer = unread
                    self._send_segment(data)
                return
        for part in list_of_data:
            if len(part):
                self._buffer.append(part)
                self._buffer_bytes += len(part)
        self._send_buffer()
        if self._buffer_bytes > self._high and not self._writer_paused:
            self._writer_paused = True
            self.protocol.pause_writing()

    def _send_buffer(self) -> None:
        """Move what the window allows from the buffer into the peer's pipe."""
        parts: list[Buffer] = []
        length = 0
        room = WINDOW_BYTES - self.unread_by_peer
        while self._buffer and room > 0:
            part = self._buffer.popleft()
            if len(part) > room:
                view = memoryview(part)
                self._buffer.appendleft(view[room:])
                part = view[:room]
            parts.append(part)
            length += len(part)
            room -= len(part)
        if parts:
            self._buffer_bytes -= length
            self.unread_by_peer += length
            self._send_segment(b"".join(parts), not self._is_behind)
        self._is_behind = bool(self._buffer)

    def _send_segment(self, data: bytes | None, starts_write: bool = True) -> None:
        """Put the bytes on their way; None: the end of the stream."""
        peer, links = self.peer, self._links
        if peer.is_gone:
            if links.is_up(peer.host):
                round_trip = links.delay(self.host, peer.host) + links.delay(peer.host, self.host)
                self.lose_soon(ConnectionResetError("connection reset by peer"), round_trip)
            return
        arrives_at = self._loop.present + links.delay(self.host, peer.host)
        if links.bandwidth:
            arrives_at += links.transmission(self.host, peer.host, len(data or b""))
        pipe = peer._pipe
        if pipe and pipe[-1].arrives_at > arrives_at:
            arrives_at = pipe[-1].arrives_at
        pipe.append(StreamSegment(arrives_at, data, starts_write))
        self._loop.run_at(arrives_at, peer._arrival)

    def _window_opened(self) -> None:
        """The window has opened."""
        if self.is_gone:
            return
        if self._buffer:
            self._send_buffer()
        if self._writer_paused and self._buffer_bytes <= self._low:
            self._writer_paused = False
            self.protocol.resume_writing()
        if self._closing and not self._buffer:
            self._finish_closing()
        elif self._is_half_closing and not self._buffer:
            self._send_end()

    # ------------------------------------------------------------------------------------------------- reading
    def pump_soon(self, seconds: float) -> None:
        when = self._loop.present + max(0.0, seconds)
        self._loop.call_at(when, self.pump, context=self.process.context)

    def pump(self) -> None:
        """Take what has arrived and hand it to the protocol."""
        now, links, pipe = self._loop.present, self._links, self._pipe
        while pipe and pipe[0].arrives_at <= now and not self.is_gone and self._opened and not self._is_held:
            if links.cuts and not links.is_open(self.peer.host, self.host):
                return  # heal() pumps again
            segment = pipe.popleft()
            data = segment.data
            if data is None:
                self._ended = True
                self._note_loss()
                self._unread += self.cutter.rest() if self.cutter is not None else b""
                continue
            links.trace.record("net", self.peer.host, self.host, len(data), checksum(data))
            if links.cuts_frames:
                self._cut_frames(data, segment.starts_write)
            else:
                self._unread += data
        self._read()

    def _cut_frames(self, data: bytes, starts_write: bool) -> None:
        if self.cutter is None and starts_write:
            self.cutter = FrameCutter(self)
        if self.cutter is None:
            self._unread += data
        else:
            self.cutter.add(data)
            self._pass_holds(self.cutter)

    def _pass_holds(self, cutter: FrameCutter) -> None:
        passed, verdict = cutter.take(self._links.holds)
        self._unread += passed
        self._is_held = verdict is Action.HOLD
        if verdict is Action.DROP:
            self.lose_frames()

    def go_on(self) -> None:
        """The hold is open again."""
        self._loop.call_soon(self._go_on, context=self.process.context)

    def _go_on(self) -> None:
        if self.cutter is not None and not self.is_gone:
            self._pass_holds(self.cutter)
            self.pump()

    def lose_frames(self) -> None:
        """What waits at a hold, and everything after it, is lost with the connection."""
        for side in (self, self.peer):
            side._is_held = False
            side._pipe.clear()
            side.cutter = None
            side.lose_soon(ConnectionResetError("connection reset by the network"), 0.0)

    def lose_what_is_held(self) -> None:
        """Drop what a cut keeps back; what arrived earlier is in the kernel of this end."""
        since = self._links.cut_since(self.peer.host, self.host)
        self._pipe = deque(segment for segment in self._pipe if segment.arrives_at <= since)

    def lose_for_this_end_only(self) -> None:
        """Half open: the peer notices only when it sends something."""
        self._note_loss()
        self.vanish()
        self._loop.call_soon(self._lose, ConnectionResetError("connection reset"), context=self.process.context)

    def pump_some(self) -> None:
        """Before a reset, a part of what is in flight arrives, cut anywhere."""
        data = self._pipe[0].data if self._pipe else None
        if data is not None and self._opened and not self.is_gone and not self._is_held:
            self._unread += self.cutter.rest() if self.cutter is not None else b""
            self._unread += data[: self._links.random.randrange(len(data) + 1)]
            self._pipe.clear()
            self._loop.call_soon(self._read, context=self.process.context)

    def _read(self) -> None:
        links = self._links
        while self._unread and self._reading and not self._closing and not self.is_gone:
            unread = self._unread
            wanted = len(unread)
            if links.random.random() < links.latency.split_probability and wanted > 1:
                wanted = links.random.randrange(1, wanted)
            target = memoryview(self.protocol.get_buffer(wanted))
            count = wanted if wanted <= len(target) else len(target)
            assert count, "get_buffer returned an empty buffer"
            target[:count] = unread if count == len(unread) else unread[:count]
            self._unread = unread[count:]
            target.release()
            peer = self.peer
            peer.unread_by_peer -= count
            if peer._buffer or peer._writer_paused:  # its kernel knows at once; its process only if it waits for that
                self._open_window(peer)
            try:
                if self.is_client:
                    if self._contact is None:
                        self._contact = links.contact(self.host, self.peer.host)
                    self._contact.answered_at = self._loop.present
                self.protocol.buffer_updated(count)
            except Exception as error:  # as asyncio does
                message = "Fatal error: protocol.buffer_updated() call failed."
                self._loop.call_exception_handler({"message": message, "exception": error})
                self.abort()
        if self._ended and not self._unread and self._reading and not self._closing and not self.is_gone:
            self._ended = False
            if not self.protocol.eof_received():
                self.close()

    def _open_window(self, peer: "SimulatedTransport") -> None:
        if not peer.is_gone:
            self._loop.call_soon(peer._window_opened, context=peer.process.context)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.call_soon(self._read, context=self.process.context)

    # ------------------------------------------------------------------------------------------------- closing
    def close(self) -> None:
        if self._closing or not self.process.alive:
            return
        self._closing = True
        if not self._buffer:
            self._finish_closing()

    def write_eof(self) -> None:
        """Nothing more will be written; reading goes on."""
        self._is_half_closing = True
        if not self._buffer:
            self._send_end()

    def _send_end(self) -> None:
        if not self._fin_sent:
            self._fin_sent = True
            self._send_segment(None)

    def _finish_closing(self) -> None:
        if self._is_finishing or self.is_gone:
            return
        self._is_finishing = True
        self._send_end()
        self._loop.call_soon(self._lose, None, context=self.process.context)

    def abort(self) -> None:
        if not self.process.alive or self.is_gone:
            return
        self._closing = True
        self._buffer.clear()
        self._buffer_bytes = 0
        delay = self._links.delay(self.host, self.peer.host)
        self.peer.lose_soon(ConnectionResetError("connection reset by peer"), delay)
        self.is_gone = True
        self._loop.call_soon(self._lose, None, context=self.process.context)

    def lose_soon(self, error: Exception | None, seconds: float) -> None:
        """The kernel of this end learns that the connection is broken; that waits behind a cut link."""
        if not self.is_gone:
            when = self._loop.present + max(0.0, seconds)
            self._loop.call_at(when, self._lose_when_reachable, error, context=self.process.context)

    def _lose_when_reachable(self, error: Exception | None) -> None:
        is_cut = not self._links.is_open(self.peer.host, self.host) and self.peer.host != self.host
        if is_cut or self._is_held:
            self.lose_soon(error, RESEND_SECONDS)
        else:
            self._note_loss()
            self._lose(error)

    def _note_loss(self) -> None:
        if not self._closing:
            self._links.contact(self.host, self.peer.host).lost_at = self._loop.present

    def end_by_kernel(self) -> None:
        """Its process is dead. Linux ends the stream after what was sent. It answers what arrived unread, or arrives
        now, with a reset (tcp_close: data_was_unread), also what comes when a cut is healed: by then it has given up
        the orphaned connection."""
        now, peer, links = self._loop.present, self.peer, self._links
        back = links.delay(self.host, peer.host)
        reset = ConnectionResetError("connection reset by peer")
        is_unread = not self._opened or self._unread or any(segment.arrives_at <= now for segment in self._pipe)
        if not links.is_open(self.host, peer.host):
            peer.lose_what_is_held()
        if is_unread or not links.is_open(self.host, peer.host):
            peer.lose_soon(reset, back)
            return
        if not self._fin_sent and not peer.is_gone:
            self._fin_sent = True
            self._send_segment(None)
        if self._pipe:  # in flight to a socket that no longer exists
            peer.lose_soon(reset, self._pipe[0].arrives_at - now + back)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self.vanish()
        self._closing = True
        self._lost = True
        if self._opened:
            self.protocol.connection_lost(error)

    def vanish(self) -> None:
        """This end ceases to exist without notice to the peer."""
        self.is_gone = True
        self._pipe.clear()
        self._unread = b""
        self._buffer.clear()
        self._buffer_bytes = 0
        self._vanished(self)

    # ------------------------------------------------------------------------------------------------- queries
    def is_closing(self) -> bool:
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER_BYTES if low is None else 4 * low
        if low is None:
            low = high // 4
        assert high >= low >= 0
        self._high, self._low = high, low

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        match name:
            case "peername":
                return (self._links.address_of(self.peer.host), self.peer.port)
            case "sockname":
                return (self._links.address_of(self.host), self.port)
            case _:
                return default
