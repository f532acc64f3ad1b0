"""The wall clock, read once per loop iteration: the timestamp of records that are given none.

Owns: the time of the present iteration. Reading the clock for each record is a fifth of the cost of sending one, and
within an iteration, which lasts milliseconds, the order of records says more than their times.
"""

import asyncio
from collections.abc import Callable

from minibroker.runtime.ports import Clock


class LoopClock:
    """The clock of one producer."""

    __slots__ = ("_check_caller", "_clock", "_loop", "present_ms")

    def __init__(self, clock: Clock, check_caller: Callable[[], None] = lambda: None) -> None:
        """`check_caller`: called once per iteration, since within one iteration all calls come from one loop."""
        self._clock = clock
        self._check_caller = check_caller
        self._loop = asyncio.get_running_loop()
        self.present_ms: int | None = None
        """None: the clock has not been read in this iteration."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, as of the first call in this iteration."""
        if self.present_ms is None:
            self._check_caller()
            self.present_ms = self._clock.now_ms()
            self._loop.call_soon(self._end_iteration)
        return self.present_ms

    def _end_iteration(self) -> None:
        self.present_ms = None
