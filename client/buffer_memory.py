"""The producer's memory: how much is set aside, and who waits for some.

Owns: one number, its limit, and the waiters in order of arrival. Refuses to know what is kept there.
"""

import asyncio
from collections import deque

from minibroker.client.errors import MinibrokerError
from minibroker.client.limits import BUFFER_ROOM_BYTES, Deadline


class BufferMemory:
    """At most `limit_bytes` are in use, except by a single piece that is larger than all of it."""

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
        """Give back; the one who waits longest is woken and tries again, once there is room for more than a little."""
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

    def end(self, error: MinibrokerError) -> None:
        """Nobody waits any longer."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _withdraw(self, waiter: "asyncio.Future[None]") -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        else:
            self._wake_one()  # what we were woken for is for the next one

    def _wake_one(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
