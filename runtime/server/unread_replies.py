"""Replies that peers have not read yet: how much memory they take, and which connections close when it is too much.

Owns: the sum over all connections, and the choice of those to be closed. Leaves to others: what a reply is. Brokers are
not counted: each has few fetches in flight, and replication must not wait for clients.
"""

from collections.abc import Callable
from typing import Protocol

from minibroker.runtime.deadline import DeadlineTimer
from minibroker.runtime.server.server_limits import STUCK_READER_MS

LOOK_AGAIN_MS = 100
"""Poll interval for unread replies."""


class ReplyReader(Protocol):
    """A connection whose peer reads replies."""

    def unread_bytes(self, now: float) -> int: ...
    def unread_since(self, now: float) -> float: ...
    def abort_because(self, reason: str) -> None: ...


class UnreadReplies:
    """Unread replies of all clients' connections of one server."""

    def __init__(self, limit_bytes: int, on_room: Callable[[], None]) -> None:
        """`on_room` is called when the limit is no longer exceeded."""
        self.is_full = False
        self._limit_bytes = limit_bytes
        self._on_room = on_room
        self._readers: dict[ReplyReader, None] = {}
        self._timer = DeadlineTimer(self._look)

    def __contains__(self, reader: ReplyReader) -> bool:
        return reader in self._readers

    def add(self, reader: ReplyReader) -> None:
        """A reply was sent on this connection."""
        self._readers[reader] = None

    def discard(self, reader: ReplyReader) -> None:
        self._readers.pop(reader, None)

    def measure(self) -> int:
        """The sum of unread bytes now."""
        now = self._timer.time()
        total = 0
        for reader in tuple(self._readers):
            unread = reader.unread_bytes(now)
            if not unread:
                del self._readers[reader]
            total += unread
        was_full, self.is_full = self.is_full, total > self._limit_bytes
        if self.is_full:
            self.watch()
        elif was_full:
            self._on_room()
        return total

    def has_room(self) -> bool:
        """Whether one more large reply is allowed."""
        self.measure()
        return not self.is_full

    def room(self) -> int:
        """Bytes that one more reply may take: half of what is left, so that a few slow readers cannot take it all."""
        return max(0, self._limit_bytes - self.measure()) // 2

    def watch(self) -> None:
        """Poll from now on: some peer does not keep up."""
        self._timer.set_after(LOOK_AGAIN_MS / 1000)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        total = self.measure()
        if not self.is_full:
            return
        now = self._timer.time()
        stuck = [(r.unread_bytes(now), r) for r in self._readers if r.unread_since(now) * 1000 > STUCK_READER_MS]
        stuck.sort(key=lambda entry: -entry[0])
        for unread, reader in stuck:
            if total <= self._limit_bytes // 2:
                break
            total -= unread
            reader.abort_because(f"{unread} bytes of replies unread while memory for replies is short")
            self.discard(reader)
        self.measure()
