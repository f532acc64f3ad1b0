"""The simulated clock port: a wall clock that follows virtual time and can be set wrong."""

from typing import Protocol

from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.node import Process

WALL_CLOCK_START_MS = 1_700_000_000_000
"""2023-11-14: any fixed day will do."""


class SkewedMachine(Protocol):
    """The machine whose clock it is."""

    clock_skew_ms: int


class SimulatedClock:
    """Implements `ports.Clock` for one process."""

    def __init__(self, loop: VirtualLoop, process: Process, machine: SkewedMachine) -> None:
        self._loop = loop
        self._process = process
        self._machine = machine

    def now_ms(self) -> int:
        self._process.check_alive()
        loop = self._loop
        since_start_ms = round((loop.present - loop.start_time) * 1000)
        return WALL_CLOCK_START_MS + self._machine.clock_skew_ms + since_start_ms

    def monotonic_ns(self) -> int:
        self._process.check_alive()
        return round(self._loop.present * 1_000_000_000)
