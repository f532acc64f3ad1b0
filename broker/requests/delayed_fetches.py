"""Fetches that wait for something to read.

Owns: which fetches wait, until when, and when they are tried again. Leaves to others: the content of an answer. The
owner's `answer` tries to answer, and returns whether it did.

All fetches that one read of a connection wakes are answered together (`flush`), once its requests have been handled. A
fetch of very many partitions takes long to answer, so each of those gets a loop iteration of its own.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from minibroker.broker.alarms import Alarms
from minibroker.broker.replicas.partition import Partition
from minibroker.protocol.wire.messages import FetchRequest
from minibroker.runtime.deadline import DeadlineTimer
from minibroker.runtime.server.incoming_request import IncomingRequest, RequestConnection

MAX_WAIT_MS = 30_000
"""Limit of a fetch's max_wait_ms."""
WATERMARK_DELAY_MS = 50
"""A follower's delayed fetch is answered after this if there is only a newer high watermark to send. With 20 records
per second the watermark travels with the next ones for free; when they end, followers soon learn the last one."""
FEW_PARTITIONS = 20
"""A consumer's fetch of more partitions than this is answered with the first update, whatever its min_bytes: checking
all of them for every append, only to continue waiting, would cost more than answering once."""


class SessionOfFollower(Protocol):
    """The session of a follower, of which at most one fetch waits; consumers have none."""

    delayed: "DelayedFetch | None"
    """The fetch that waits. It leaves when it ends."""
    alarm: int | None
    """One for all of its fetches, one after another: nearly all are answered long before their time is over, and each
    of them would set an alarm and cancel it. It may ring too early for the fetch that waits then, and is set again."""
    alarm_at: float
    """When it rings, if it is set."""


class DelayedFetch:
    """A request that waits. It ends once: by an update, by its deadline, or with its connection."""

    __slots__ = (
        "alarm",
        "body",
        "done",
        "expires_at",
        "has_newer_watermark",
        "listed",
        "min_bytes",
        "request",
        "session",
        "watched",
    )

    def __init__(self, request: IncomingRequest, body: FetchRequest, session: SessionOfFollower | None) -> None:
        self.request = request
        self.body = body
        self.session = session
        self.listed = 0 if session is not None else sum([len(topic.partitions) for topic in body.topics])
        """Partitions of a consumer's fetch."""
        self.min_bytes = body.min_bytes if self.listed <= FEW_PARTITIONS else 1
        self.done = False
        self.expires_at = 0.0
        """Loop time until which it may wait, once it does."""
        self.alarm: int | None = None
        """Of a consumer's."""
        self.has_newer_watermark = False
        self.watched: list[Partition] = []

    @property
    def wait_seconds(self) -> float:
        """How long it may wait."""
        return max(0, min(self.body.max_wait_ms, MAX_WAIT_MS)) / 1000

    @property
    def is_large(self) -> bool:
        return self.listed > FEW_PARTITIONS

    def watch(self, partition: Partition) -> None:
        """Wake this fetch when the partition changes."""
        if self not in partition.waiting_fetches:
            partition.waiting_fetches[self] = None
            self.watched.append(partition)

    def end(self) -> None:
        """Remove it from everything that could wake it."""
        self.done = True
        for partition in self.watched:
            partition.waiting_fetches.pop(self, None)
        self.watched = []
        if self.session is not None and self.session.delayed is self:
            self.session.delayed = None


class DelayedFetches:
    """All delayed fetches of a broker."""

    def __init__(self, answer: Callable[[DelayedFetch, bool], bool]) -> None:
        """`answer(delayed, force)` answers if there is something to send, or if forced, and returns whether it did."""
        self._answer = answer
        self._delayed: dict[RequestConnection, dict[DelayedFetch, None]] = {}
        self._woken: dict[DelayedFetch, None] = {}
        self._large: dict[DelayedFetch, None] = {}
        self._watermark_updates: deque[tuple[float, DelayedFetch]] = deque()
        """Fetches with the time to answer them, in order, because all wait equally long. One that is answered earlier
        is skipped: at thousands of fetches per second, setting and cancelling an alarm for each would cost more."""
        self._watermark_timer = DeadlineTimer(self._send_watermarks)
        self._flush_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._alarms: Alarms[DelayedFetch] = Alarms(self._expire)
        self._session_alarms: Alarms[SessionOfFollower] = Alarms(self._session_due)

    @property
    def count(self) -> int:
        """Consumers' fetches that wait now."""
        return sum(len(delayed) for delayed in self._delayed.values())

    def delay(self, delayed: DelayedFetch) -> bool:
        """Let a consumer's fetch wait; False if too much waits already, so that it must be answered now."""
        if not delayed.request.delay(delayed.listed):
            return False
        delayed.expires_at = self._loop.time() + delayed.wait_seconds
        self._delayed.setdefault(delayed.request.connection, {})[delayed] = None
        delayed.alarm = self._alarms.set(delayed.expires_at, delayed)
        return True

    def delay_of_follower(self, delayed: DelayedFetch, session: SessionOfFollower) -> None:
        """Let the fetch of a session wait. It comes from a broker, to which the limits of clients do not apply."""
        delayed.expires_at = self._loop.time() + delayed.wait_seconds
        self._ring(session, delayed.expires_at)

    def _ring(self, session: SessionOfFollower, at: float) -> None:
        """Look at the session's fetch at that time, or earlier."""
        if session.alarm is not None:
            if session.alarm_at <= at:
                return
            self._session_alarms.cancel(session.alarm)
        session.alarm, session.alarm_at = self._session_alarms.set(at, session), at

    def _session_due(self, session: SessionOfFollower) -> None:
        session.alarm = None
        delayed = session.delayed
        if delayed is None:
            return
        if delayed.expires_at <= max(session.alarm_at, self._loop.time()):
            self._expire(delayed)
        else:
            self._ring(session, delayed.expires_at)

    def session_ended(self, session: SessionOfFollower) -> None:
        """Forget its alarm."""
        if session.alarm is not None:
            self._session_alarms.cancel(session.alarm)
            session.alarm = None

    def answered(self, delayed: DelayedFetch) -> None:
        """It is about to be answered, or never will be: nothing may wake it from now on."""
        delayed.end()
        if delayed.alarm is not None:
            self._alarms.cancel(delayed.alarm)
            self._delayed.get(delayed.request.connection, {}).pop(delayed, None)

    def connection_closed(self, connection: RequestConnection) -> None:
        """Drop the delayed fetches of this consumer's connection."""
        for delayed in tuple(self._delayed.get(connection, ())):
            self.answered(delayed)
            delayed.request.finish_without_reply()
        self._delayed.pop(connection, None)

    def wake(self, delayed: DelayedFetch) -> None:
        """There may be something to send."""
        self._woken[delayed] = None
        if not self._flush_scheduled and not delayed.request.is_handling_read:  # otherwise the flush follows the step
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def wake_for_watermark(self, delayed: DelayedFetch) -> None:
        """There is only a newer high watermark to send."""
        if delayed.has_newer_watermark or delayed.done:
            return
        delayed.has_newer_watermark = True
        at = self._loop.time() + WATERMARK_DELAY_MS / 1000
        self._watermark_updates.append((at, delayed))
        self._watermark_timer.set(at)

    def _send_watermarks(self) -> None:
        """Send the newer high watermark to the fetches that got no other answer in time."""
        updates = self._watermark_updates
        now = self._watermark_timer.now()
        while updates and (updates[0][1].done or updates[0][0] <= now):
            self._expire(updates.popleft()[1])
        if updates:
            self._watermark_timer.set(updates[0][0])

    def flush(self) -> None:
        """Answer the woken fetches. Called when the requests of one read are handled, so that one answer carries
        all."""
        self._flush_scheduled = False
        while self._woken:
            woken, self._woken = self._woken, {}
            for delayed in woken:
                if delayed.is_large:
                    self._answer_later(delayed)
                elif not delayed.done:
                    self._answer(delayed, False)

    def _answer_later(self, delayed: DelayedFetch) -> None:
        if not self._large:
            self._loop.call_soon(self._answer_large)
        self._large[delayed] = None

    def _answer_large(self) -> None:
        delayed = next(iter(self._large))
        del self._large[delayed]
        if self._large:
            self._loop.call_soon(self._answer_large)
        if not delayed.done:
            self._answer(delayed, False)

    def _expire(self, delayed: DelayedFetch) -> None:
        if not delayed.done:
            self._answer(delayed, True)
