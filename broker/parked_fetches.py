"""Fetches that wait for something to read.

Owns: which fetches wait, until when, and when they are looked at again. Refuses to know what is in an answer: the
owner's `answer` tries, and says whether it has answered.

What one read of a connection woke is answered together (`flush`), once its requests have been handled. A fetch of very
many partitions takes long to answer: each of those gets a turn of the loop for itself.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from minibroker.broker.alarms import Alarms
from minibroker.protocol.messages import FetchRequest
from minibroker.runtime.server import IncomingRequest, ServerConnection

if TYPE_CHECKING:
    from minibroker.broker.fetch_sessions import FetchSession
    from minibroker.broker.partition import Partition

MAX_WAIT_MS = 30_000
"""A fetch may not be parked for longer than this, whatever it asks."""
MARK_NEWS_DELAY_MS = 20
"""A follower's parked fetch that has only a newer high watermark to tell is answered after this. Under load the mark
rides on the next records for free; when the load ends, followers learn the last mark soon."""
FEW_PARTITIONS = 20
"""A consumer's fetch of more partitions than this is answered with the first news, whatever its min_bytes: looking
at all of them for every append, only to wait on, would cost more than answering once."""


class ParkedFetch:
    """A request that waits. Ends once: by news, by its deadline, or with its connection."""

    __slots__ = ("alarm", "body", "done", "has_mark_news", "listed", "min_bytes", "request", "session", "watched")

    def __init__(self, request: IncomingRequest, body: FetchRequest, session: "FetchSession | None") -> None:
        self.request = request
        self.body = body
        self.session = session
        self.listed = sum([len(topic.partitions) for topic in body.topics])
        self.min_bytes = body.min_bytes if self.listed <= FEW_PARTITIONS else 1
        self.done = False
        self.alarm: int | None = None
        self.has_mark_news = False
        self.watched: list[Partition] = []

    @property
    def wait_seconds(self) -> float:
        """How long it may wait."""
        return max(0, min(self.body.max_wait_ms, MAX_WAIT_MS)) / 1000

    @property
    def is_large(self) -> bool:
        return self.session is None and self.listed > FEW_PARTITIONS

    def watch(self, partition: "Partition") -> None:
        """News of the partition wake it."""
        if self not in partition.waiting_fetches:
            partition.waiting_fetches[self] = None
            self.watched.append(partition)

    def end(self) -> None:
        """Forget all that could wake it."""
        self.done = True
        for partition in self.watched:
            partition.waiting_fetches.pop(self, None)
        self.watched = []
        if self.session is not None and self.session.parked is self:
            self.session.parked = None


class ParkedFetches:
    """All of a broker's."""

    def __init__(self, answer: Callable[[ParkedFetch, bool], bool]) -> None:
        """`answer(parked, force)` answers if there is something to say or if it must, and says whether it has."""
        self._answer = answer
        self._parked: dict[ServerConnection, dict[ParkedFetch, None]] = {}
        self._woken: dict[ParkedFetch, None] = {}
        self._large: dict[ParkedFetch, None] = {}
        self._mark_news: deque[tuple[float, ParkedFetch]] = deque()
        """When to answer whom, in order, for all wait equally long. Whoever is answered before is skipped then: at
        thousands of fetches a second an alarm for each, set and cancelled, would cost more."""
        self._mark_timer: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._alarms: Alarms[ParkedFetch] = Alarms(self._expire)

    @property
    def count(self) -> int:
        """Fetches that wait now."""
        return sum(len(parked) for parked in self._parked.values())

    def park(self, parked: ParkedFetch) -> bool:
        """Let it wait; False if too much waits already: then it must be answered now."""
        if not parked.request.park(parked.listed):
            return False
        self._parked.setdefault(parked.request.connection, {})[parked] = None
        parked.alarm = self._alarms.set(self._loop.time() + parked.wait_seconds, parked)
        return True

    def answered(self, parked: ParkedFetch) -> None:
        """It is about to be answered, or never will be: nothing may wake it any more."""
        parked.end()
        if parked.alarm is not None:
            self._alarms.cancel(parked.alarm)
            self._parked.get(parked.request.connection, {}).pop(parked, None)

    def connection_closed(self, connection: ServerConnection) -> None:
        """Nobody waits for these answers any more."""
        for parked in tuple(self._parked.get(connection, ())):
            self.answered(parked)
            parked.request.finish_without_reply()
        self._parked.pop(connection, None)

    def wake(self, parked: ParkedFetch) -> None:
        """There may be something to say."""
        self._woken[parked] = None
        if not self._flush_scheduled and not parked.request.is_in_step:  # else it follows the step
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def wake_for_mark(self, parked: ParkedFetch) -> None:
        """There is only a newer high watermark to tell."""
        if parked.has_mark_news or parked.done:
            return
        parked.has_mark_news = True
        at = self._loop.time() + MARK_NEWS_DELAY_MS / 1000
        self._mark_news.append((at, parked))
        if self._mark_timer is None:
            self._mark_timer = self._loop.call_at(at, self._tell_marks)

    def _tell_marks(self) -> None:
        """Nothing else came in time to tell these of the newer mark."""
        self._mark_timer = None
        news = self._mark_news
        now = max(self._loop.time(), news[0][0])
        while news and (news[0][1].done or news[0][0] <= now):
            self._expire(news.popleft()[1])
        if news and self._mark_timer is None:
            self._mark_timer = self._loop.call_at(news[0][0], self._tell_marks)

    def flush(self) -> None:
        """Answer what was woken. Called once the requests of one read are handled, so that one answer carries all."""
        self._flush_scheduled = False
        while self._woken:
            woken, self._woken = self._woken, {}
            for parked in woken:
                if parked.is_large:
                    self._answer_later(parked)
                elif not parked.done:
                    self._answer(parked, False)

    def _answer_later(self, parked: ParkedFetch) -> None:
        if not self._large:
            self._loop.call_soon(self._answer_large)
        self._large[parked] = None

    def _answer_large(self) -> None:
        parked = next(iter(self._large))
        del self._large[parked]
        if self._large:
            self._loop.call_soon(self._answer_large)
        if not parked.done:
            self._answer(parked, False)

    def _expire(self, parked: ParkedFetch) -> None:
        if not parked.done:
            self._answer(parked, True)
