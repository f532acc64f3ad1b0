"""Calls of `send` that have to wait: one queue for each topic.

Owns: which call is next. A call that finds room must not overtake an earlier one that waits for metadata or memory: the
log has the records in the order of the calls. Leaves to others: what the calls wait for.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from minibroker.client.errors import BufferTimedOut
from minibroker.client.limits import Deadline
from minibroker.protocol.counted import counted


class WaitingSends:
    """One queue of calls for each topic. A lock each is enough: asyncio's locks are fair."""

    def __init__(self) -> None:
        self.queues: dict[str, asyncio.Lock] = {}
        self._lengths: dict[str, int] = {}
        self._is_serving = False

    def must_wait(self, topic: str) -> bool:
        """Whether a call for this topic must queue. Every call asks, so it costs little while no call waits."""
        return bool(self.queues) and not self._is_serving and topic in self.queues

    @contextlib.asynccontextmanager
    async def first_in_queue(self, topic: str, deadline: Deadline) -> AsyncIterator[None]:
        """Wait to be the first in the queue, and stay it. Raises BufferTimedOut."""
        lock = self.queues.setdefault(topic, asyncio.Lock())
        self._lengths[topic] = self._lengths.get(topic, 0) + 1
        try:
            try:
                async with asyncio.timeout(deadline.remaining_ms() / 1000):
                    await lock.acquire()
            except TimeoutError:
                others = counted(self._lengths[topic] - 1, "other call")
                text = f"send waits for room or metadata of topic {topic!r}, behind {others}"
                raise BufferTimedOut(text) from None
            try:
                yield
            finally:
                lock.release()
        finally:
            self._lengths[topic] -= 1
            if not self._lengths[topic]:
                del self._lengths[topic], self.queues[topic]

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Within it, the first call of a queue need not wait. Nothing is awaited in it."""
        self._is_serving = True
        try:
            yield
        finally:
            self._is_serving = False
