"""The wall clock, read once a turn of the event loop: what records carry that are given no time of their own.

Owns: the time of the present turn. Reading it for each record is a fifth of the cost of sending one, and within
a turn, which lasts milliseconds, the order of records says more than their times.
"""

import asyncio
from collections.abc import Callable

from minibroker.runtime.ports import Clock


class LoopClock:
    """Of one producer."""

    __slots__ = ("_check_caller", "_clock", "_loop", "present_ms")

    def __init__(self, clock: Clock, check_caller: Callable[[], None] = lambda: None) -> None:
        """`check_caller`: called once a turn, for a turn is one caller's loop running."""
        self._clock = clock
        self._check_caller = check_caller
        self._loop = asyncio.get_running_loop()
        self.present_ms: int | None = None
        """None: it has not been read in this turn."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as of the first call in this turn."""
        if self.present_ms is None:
            self._check_caller()
            self.present_ms = self._clock.now_ms()
            self._loop.call_soon(self._end_turn)
        return self.present_ms

    def _end_turn(self) -> None:
        self.present_ms = None
