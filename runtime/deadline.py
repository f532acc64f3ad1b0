"""Deadlines: one timer for many of them, and a wait for one answer.

Owns: the timer of the loop, which calls at the earliest deadline. Leaves to others: the deadlines. A timer for each of
thousands of waiting requests, created and cancelled thousands of times per second, costs more than the requests: so
their owner keeps them in order, and sets the next one when it is called.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def answer_within(answered: "asyncio.Future[T]", timeout_ms: int) -> T:
    """Wait for an answer. Raises TimeoutError, and what the future was given.

    A process that stood still finds the answer and the end of the wait in the same loop iteration. Then the answer
    counts: it may say that this broker is fenced (seed 17312267)."""
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await answered
    except TimeoutError:
        if answered.done() and not answered.cancelled():
            return answered.result()
        raise


class DeadlineTimer:
    """Calls `call` once, at the earliest deadline that was set since it last called."""

    __slots__ = ("_at", "_call", "_handle", "_loop")

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._at = 0.0
        self._handle: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_set(self) -> bool:
        """Whether it will call."""
        return self._handle is not None

    def set(self, at: float) -> None:
        """Call at this loop time, or earlier if an earlier deadline is set."""
        if self._handle is not None:
            if self._at <= at:
                return
            self._handle.cancel()
        self._at = at
        self._handle = self._running_loop().call_at(at, self._due)

    def set_after(self, seconds: float) -> None:
        """Call in so many seconds, or earlier if an earlier deadline is set."""
        self.set(self.time() + seconds)

    def cancel(self) -> None:
        """Forget all deadlines."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def now(self) -> float:
        """The loop's time, or the deadline that was just called if that is later: a loop may call a little early, by as
        much as its clock can resolve."""
        return max(self.time(), self._at)

    def time(self) -> float:
        """The loop's time."""
        return self._running_loop().time()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            # before Python 3.12 getting the loop costs a system call (getpid), so it is done once
            self._loop = asyncio.get_running_loop()
        return self._loop

    def _due(self) -> None:
        self._handle = None
        self._call()
