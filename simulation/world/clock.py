"""The simulated clock port: a wall clock that follows virtual time and can be set wrong."""

from collections.abc import Callable

from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.node import Process

WALL_CLOCK_START_MS = 1_700_000_000_000
"""2023-11-14: any fixed day will do."""


class SimulatedClock:
    """Implements `ports.Clock` for one process."""

    def __init__(self, loop: VirtualLoop, process: Process, skew_ms: Callable[[], int]) -> None:
        self._loop = loop
        self._process = process
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        self._process.check_alive()
        return WALL_CLOCK_START_MS + self._skew_ms() + round((self._loop.present - self._loop.start_time) * 1000)

    def monotonic_ns(self) -> int:
        self._process.check_alive()
        return round(self._loop.present * 1_000_000_000)
