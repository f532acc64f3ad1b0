"""Calls of `send` that have to wait, in line: one line for each topic.

Owns: whose turn it is. A call that finds room must not overtake one that came earlier and waits for metadata or memory:
records stand in the log in the order of the calls. Refuses to know what they wait for.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

from minibroker.client.errors import BufferTimedOut
from minibroker.client.limits import Deadline


class WaitingSends:
    """asyncio's locks are fair: first come, first served."""

    def __init__(self) -> None:
        self.lines: dict[str, asyncio.Lock] = {}
        self._lengths: dict[str, int] = {}
        self._serves = False

    def hold_back(self, topic: str) -> bool:
        """Whether a call for this topic must line up. Every call asks, so it costs little while nobody waits."""
        return bool(self.lines) and not self._serves and topic in self.lines

    @contextlib.asynccontextmanager
    async def turn(self, topic: str, deadline: Deadline) -> AsyncIterator[None]:
        """Wait for one's turn, and hold it. Raises BufferTimedOut."""
        line = self.lines.setdefault(topic, asyncio.Lock())
        self._lengths[topic] = self._lengths.get(topic, 0) + 1
        try:
            try:
                async with asyncio.timeout(deadline.remaining_ms() / 1000):
                    await line.acquire()
            except TimeoutError:
                text = f"{self._lengths[topic] - 1} other calls of send for topic {topic!r} wait for room or metadata"
                raise BufferTimedOut(text) from None
            try:
                yield
            finally:
                line.release()
        finally:
            self._lengths[topic] -= 1
            if not self._lengths[topic]:
                del self._lengths[topic], self.lines[topic]

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        """Within it, who has the turn is not held back. Nothing is awaited in it."""
        self._serves = True
        try:
            yield
        finally:
            self._serves = False
