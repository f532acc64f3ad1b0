"""Many deadlines on one timer.

Owns: when the next deadline is due. Leaves to others: what waits for it. A timer of the loop for each delayed fetch,
created and cancelled thousands of times a second, costs more than the fetch itself. Here a deadline costs one heap
entry, and a cancelled one is skipped when it is due.
"""

import asyncio
import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

STALE_ENTRIES_MIN = 1_000
"""Heap entries of cancelled alarms are swept once there are this many more than live ones."""


class Alarms(Generic[T]):
    """Calls `ring(thing)` at its deadline, unless it was cancelled."""

    def __init__(self, ring: Callable[[T], None]) -> None:
        self._ring = ring
        self._live: dict[int, T] = {}
        self._heap: list[tuple[float, int]] = []
        self._next_key = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def __len__(self) -> int:
        return len(self._live)

    def set(self, at: float, thing: T) -> int:
        """Ring for `thing` at that loop time; the key is for `cancel`."""
        self._next_key = key = self._next_key + 1
        self._live[key] = thing
        heapq.heappush(self._heap, (at, key))
        if self._timer is None or at < self._timer_at:
            self._wait_until(at)
        return key

    def cancel(self, key: int) -> None:
        """Do not ring; no effect if it has already rung."""
        self._live.pop(key, None)
        if len(self._heap) > 2 * len(self._live) + STALE_ENTRIES_MIN:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)

    def _wait_until(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_at(at, self._due)

    def _due(self) -> None:
        """Ring for all that are due, then wait for the next live one."""
        self._timer = None
        now = max(asyncio.get_running_loop().time(), self._timer_at)
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._live):
            _, key = heapq.heappop(self._heap)
            thing = self._live.pop(key, None)
            if thing is not None:
                self._ring(thing)
        if self._heap and (self._timer is None or self._heap[0][0] < self._timer_at):
            self._wait_until(self._heap[0][0])
