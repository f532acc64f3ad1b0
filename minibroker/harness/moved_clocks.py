"""The wall clocks of a cluster of processes: who shows how much more than the true time, and since when.

Owns: a file for each broker (`movable_clock`), and turning the times that a broker wrote into true ones. Leaves to
others: the processes.
"""

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from minibroker.harness import movable_clock

SLACK_MS = 500
"""A line that is being written when the clock moves may still have the time from before."""


class MovedClocks:
    """Of one cluster. The directory is removed by `close`."""

    def __init__(self, directory: Path, broker_ids: Iterable[int]) -> None:
        self._directory = directory.absolute()  # brokers run in a directory of their own
        self._files = {broker_id: self._directory / f"broker-{broker_id}" for broker_id in broker_ids}
        self._began_ms = 0
        self._moves: dict[int, list[tuple[int, int]]] = {}
        """By broker: (true time, offset) of each move, in milliseconds, oldest first."""

    def program(self, broker_id: int) -> list[str]:
        """What `python -m` runs as that broker: module and arguments."""
        return [movable_clock.__name__, str(self._files[broker_id])]

    def set_right(self) -> None:
        """All of them, before anything starts."""
        self._began_ms = _now_ms()
        self._directory.mkdir(parents=True, exist_ok=True)
        for file in self._files.values():
            movable_clock.write_offset(file, 0.0)

    def close(self) -> None:
        """The brokers must be down."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def move(self, broker_id: int, seconds: float) -> None:
        """From now on, also over restarts."""
        self._moves.setdefault(broker_id, []).append((_now_ms(), round(seconds * 1000)))
        movable_clock.write_offset(self._files[broker_id], seconds)

    def true_ms(self, broker_id: int, shown_ms: int) -> int:
        """The true time at which that broker's clock showed this: a time at which its clock was off by as much. Where
        there are several, the first; runs are shorter than jumps."""
        moves: list[tuple[int, int]] = [(self._began_ms, 0), *self._moves.get(broker_id, ())]
        ends = [at_ms for at_ms, _ in moves[1:]] + [_now_ms()]
        for (since_ms, offset_ms), until_ms in zip(moves, ends, strict=True):
            if since_ms <= shown_ms - offset_ms <= until_ms + SLACK_MS:
                return shown_ms - offset_ms
        return shown_ms


def _now_ms() -> int:
    return int(time.time_ns()) // 1_000_000
