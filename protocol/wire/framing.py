"""Framing without I/O: bytes in any pieces become whole frames.

Owns: the receive buffer of one connection, its growth and its limits. Leaves to others: sockets and messages. Two rules
limit the cost of a hostile peer (docs/FORMATS.md, Wire):
- the buffer grows with the bytes that arrived, never with the length that was claimed;
- growth beyond the first few KiB is charged to a budget shared by all connections; while the budget is spent, the owner
  stops reading from this connection.

A frame is `u32` big-endian length of the rest, then that many bytes.
"""

import struct
from collections.abc import Callable

from minibroker.protocol.errors import ProtocolError

INITIAL_BUFFER_BYTES = 4 * 1024
"""Holds any usual control request; a thousand idle connections cost 4 MiB."""
CONTROL_FRAME_MAX_BYTES = 1024 * 1024
"""Limit for requests that carry no records: decoded msgpack may grow seventy-fold."""
READ_AHEAD_BYTES = 256 * 1024
"""A buffer that grows may hold this much beyond one frame: one read then brings several requests."""
KEPT_BUFFERS = 3
"""Buffers given away with large frames, and kept for reuse: one being read, one waiting, one spare. New pages for every
frame cost more than its copy."""
KEPT_BUFFER_BYTES = 4 * 1024 * 1024
"""Larger buffers are rare, and not worth the memory."""
API_KEY_PEEK_BYTES = 8
"""Bytes of a frame that include its api key."""
_LENGTH = struct.Struct(">I")
_unpack_length = _LENGTH.unpack_from


class FrameTooLarge(ProtocolError):
    """The peer announced a frame above the limit for its kind."""


class MemoryBudget:
    """Bytes that the receive buffers of all connections together may grow by.

    A reserve is kept for brokers, and a quarter of the rest for requests of a usual size: senders of huge requests must
    not keep out all others.
    """

    def __init__(self, limit_bytes: int, reserved_bytes: int = 0) -> None:
        assert 0 <= reserved_bytes < limit_bytes
        self.limit_bytes = limit_bytes
        self.reserved_bytes = reserved_bytes
        self.used_bytes = 0
        self.on_release: Callable[[], None] | None = None

    def take(self, size_bytes: int, *, privileged: bool, is_huge: bool) -> bool:
        """Whether `size_bytes` more may be allocated; only brokers may use the reserve."""
        ceiling = self.limit_bytes if privileged else self.limit_bytes - self.reserved_bytes
        if is_huge and not privileged:
            ceiling = ceiling * 3 // 4
        if self.used_bytes + size_bytes > ceiling:
            return False
        self.used_bytes += size_bytes
        return True

    def give_back(self, size_bytes: int) -> None:
        assert size_bytes <= self.used_bytes
        self.used_bytes -= size_bytes
        if size_bytes and self.on_release is not None:
            self.on_release()


class FrameReceiver:
    """The receiving half of one connection.

    Use: `get_buffer` before a read, `received(n)` after it, `next_frame` until it returns None, then `make_room`. A
    frame is a view into the buffer, valid until `make_room`; keep no reference to it, unless `take_frame` returned it.
    """

    __slots__ = (
        "_budget",
        "_buffer",
        "_end",
        "_given",
        "_large_frame_allowed",
        "_start",
        "frame_max_bytes",
        "privileged",
    )

    def __init__(
        self,
        frame_max_bytes: int,
        budget: MemoryBudget | None = None,
        large_frame_allowed: Callable[[bytes], bool] | None = None,
    ) -> None:
        """`large_frame_allowed` gets the first bytes of a frame above CONTROL_FRAME_MAX_BYTES and may refuse it."""
        self.frame_max_bytes = frame_max_bytes
        self._budget = budget
        self._large_frame_allowed = large_frame_allowed
        self._buffer = bytearray(INITIAL_BUFFER_BYTES)
        self._given: list[bytearray] = []
        """Buffers given away with frames, the oldest first."""
        self._start = 0
        self._end = 0
        self.privileged = False

    def has_partial_frame(self) -> bool:
        """Whether a frame has begun and was not returned yet."""
        return self._end > self._start

    @property
    def grown_bytes(self) -> int:
        """Bytes of the budget that this connection holds."""
        return len(self._buffer) - INITIAL_BUFFER_BYTES

    def get_buffer(self) -> memoryview:
        """Room for the next read, never empty if `make_room` was called after the last one."""
        if self._end == len(self._buffer):
            room = self.make_room()
            assert room, "the owner must stop reading when make_room refuses"
        return memoryview(self._buffer)[self._end :]

    def make_room(self) -> bool:
        """Prepare for the next read, after the frames of the last are handled. False: no budget left, stop reading."""
        pending = self._end - self._start
        if not pending:
            self._start = self._end = 0
        elif self._start and len(self._buffer) - self._end < self._missing(pending):
            view = memoryview(self._buffer)
            view[:pending] = view[self._start : self._end]
            self._start, self._end = 0, pending
        return self._end < len(self._buffer) or self._grow()

    def received(self, size_bytes: int) -> None:
        """Note that a read wrote this many bytes into the buffer from `get_buffer`."""
        self._end += size_bytes
        assert self._end <= len(self._buffer)

    def next_frame(self) -> memoryview | None:
        """The next whole frame without its length, or None. Raises FrameTooLarge as early as possible."""
        pending = self._end - self._start
        if pending < 4:
            return None
        (length,) = _unpack_length(self._buffer, self._start)
        if length > CONTROL_FRAME_MAX_BYTES:
            self._check_large(length, pending)
        if pending - 4 < length:
            return None
        begin = self._start + 4
        self._start = begin + length
        return memoryview(self._buffer)[begin : self._start]

    def take_frame(self) -> memoryview | None:
        """Like `next_frame`, but the caller may keep the view: the buffer is given away with a frame that fills most of
        it, and replaced by another; a smaller frame is copied. For receivers without a budget."""
        frame = self.next_frame()
        if frame is None:
            return None
        if 2 * len(frame) < len(self._buffer):
            return memoryview(bytes(frame))
        pending = self._end - self._start
        given = self._buffer
        self._buffer = self._reused_or_new(len(given))
        self._buffer[:pending] = memoryview(given)[self._start : self._end]
        self._start, self._end = 0, pending
        if len(given) <= KEPT_BUFFER_BYTES:
            self._given.append(given)
        return frame

    def _reused_or_new(self, size_bytes: int) -> bytearray:
        """A buffer that was given away and has no views left; else a new one."""
        for index, buffer in enumerate(self._given):
            if len(buffer) >= size_bytes and not _is_viewed(buffer):
                return self._given.pop(index)
        if len(self._given) >= KEPT_BUFFERS:
            del self._given[0]
        return bytearray(size_bytes)

    def put_back(self, frame: memoryview) -> None:
        """Put the last frame of `next_frame` back: the next call returns it again. Releases the view."""
        self._start -= 4 + len(frame)
        assert self._start >= 0
        frame.release()

    def shrink(self) -> None:
        """Release memory if nothing is pending: the connection is idle, or another one needs the room."""
        if self.has_partial_frame() or len(self._buffer) == INITIAL_BUFFER_BYTES:
            return
        self.close()

    def close(self) -> None:
        """Drop what is pending and release the memory. Frames returned earlier stay valid."""
        grown_by = self.grown_bytes
        self._buffer = bytearray(INITIAL_BUFFER_BYTES)
        self._start = self._end = 0
        if self._budget is not None:
            self._budget.give_back(grown_by)

    def _check_large(self, length: int, pending: int) -> None:
        if length > self.frame_max_bytes:
            raise FrameTooLarge(f"frame of {length} bytes, the limit is {self.frame_max_bytes}")
        if self._large_frame_allowed is not None and pending >= 4 + API_KEY_PEEK_BYTES:
            peek = bytes(self._buffer[self._start + 4 : self._start + 4 + API_KEY_PEEK_BYTES])
            if not self._large_frame_allowed(peek):
                raise FrameTooLarge(
                    f"request without records of {length} bytes, the limit is {CONTROL_FRAME_MAX_BYTES}"
                )

    def _missing(self, pending: int) -> int:
        """Bytes of the current frame that have not arrived; at least 1."""
        if pending < 4:
            return 4
        (length,) = _unpack_length(self._buffer, self._start)
        return max(1, int(length) + 4 - pending)

    def _grow(self) -> bool:
        """Double the buffer, at most to the frame's end: growth depends on the bytes that arrived, not on the claim."""
        pending = self._end - self._start
        frame_end = pending + self._missing(pending)
        wanted = min(2 * len(self._buffer), max(frame_end, READ_AHEAD_BYTES))
        assert wanted > len(self._buffer)
        more, is_huge = wanted - len(self._buffer), wanted > READ_AHEAD_BYTES
        if self._budget is not None and not self._budget.take(more, privileged=self.privileged, is_huge=is_huge):
            return False
        grown = bytearray(wanted)
        grown[:pending] = memoryview(self._buffer)[self._start : self._end]
        self._buffer = grown
        self._start, self._end = 0, pending
        return True


def _is_viewed(buffer: bytearray) -> bool:
    """Whether a memoryview of the buffer exists: then its size cannot change."""
    try:
        buffer.pop()
    except BufferError:
        return True
    buffer.append(0)
    return False
