"""The producer's memory: how much is reserved, and which calls wait for some.

Owns: one number, its limit, and the waiters in order of arrival. Leaves to others: what the memory holds.
"""

import asyncio
from collections import deque

from minibroker.client.errors import MinibrokerError
from minibroker.client.limits import BUFFER_ROOM_BYTES, Deadline


class BufferMemory:
    """At most `limit_bytes` are in use, except by a single piece that is larger than the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def free_bytes(self) -> int:
        return max(0, self.limit_bytes - self.used_bytes)

    def reserve(self, byte_count: int) -> bool:
        """Take some, if there is enough."""
        if self.used_bytes and self.used_bytes + byte_count > self.limit_bytes:
            return False
        self.used_bytes += byte_count
        return True

    def release(self, byte_count: int) -> None:
        """Give back. Once there is enough room, wakes the call that has waited longest; it tries again."""
        assert byte_count <= self.used_bytes
        self.used_bytes -= byte_count
        if self._waiters and self.limit_bytes - self.used_bytes >= min(BUFFER_ROOM_BYTES, self.limit_bytes // 4):
            self._wake_one()

    async def wait(self, deadline: Deadline) -> bool:
        """Wait until some was released; False if the deadline passed first."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(deadline.remaining_ms() / 1000):
                await waiter
        except TimeoutError:
            self._withdraw(waiter)
            return False
        except asyncio.CancelledError:
            self._withdraw(waiter)
            raise
        return True

    def wake_all(self) -> None:
        """Let all waiting calls try again: they will find that the producer has ended."""
        while self._waiters:
            self._wake_one()

    def end(self, error: MinibrokerError) -> None:
        """Fail all waiting calls."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _withdraw(self, waiter: "asyncio.Future[None]") -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        else:
            self._wake_one()  # this waiter was woken already: wake the next one instead

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
