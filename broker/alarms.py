"""Many deadlines on one timer.

Owns: which deadline is next. Leaves to others: what waits for it. A deadline costs one heap entry, and a cancelled one
is skipped when it is due.
"""

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

from minibroker.runtime.deadline import DeadlineTimer

T = TypeVar("T")

STALE_ENTRIES_MIN = 1_000
"""Heap entries of cancelled alarms are swept once there are this many more than live ones."""


class Alarms(Generic[T]):
    """Calls `on_due(waiter)` at its deadline, unless it was cancelled."""

    def __init__(self, on_due: Callable[[T], None]) -> None:
        self._on_due = on_due
        self._live: dict[int, T] = {}
        self._heap: list[tuple[float, int]] = []
        self._next_key = 0
        self._timer = DeadlineTimer(self._due)

    def __len__(self) -> int:
        return len(self._live)

    def set(self, at: float, waiter: T) -> int:
        """The deadline of `waiter` is at that loop time; the key is for `cancel`."""
        self._next_key = key = self._next_key + 1
        self._live[key] = waiter
        heapq.heappush(self._heap, (at, key))
        self._timer.set(at)
        return key

    def cancel(self, key: int) -> None:
        """No effect if the deadline has already passed."""
        self._live.pop(key, None)
        if len(self._heap) > 2 * len(self._live) + STALE_ENTRIES_MIN:
            self._heap = [entry for entry in self._heap if entry[1] in self._live]
            heapq.heapify(self._heap)

    def _due(self) -> None:
        """Call for all that are due, then wait for the next live one."""
        now = self._timer.now()
        while self._heap and (self._heap[0][0] <= now or self._heap[0][1] not in self._live):
            _, key = heapq.heappop(self._heap)
            waiter = self._live.pop(key, None)
            if waiter is not None:
                self._on_due(waiter)
        if self._heap:
            self._timer.set(self._heap[0][0])
