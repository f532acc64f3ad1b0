"""How an audit spent its time. Plain data."""

import msgspec


class Timings(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds of wall time; the rest of the total is writing the report."""

    discover_ms: int
    """Names, sizes and checkpoints of all replicas."""
    start_ms: int
    """Spark's: the JVM, the context and a Python worker on every core, whatever the logs. 0 without Spark."""
    scan_ms: int
    """Reading and checking every batch (and the list of acknowledged records)."""
    compare_ms: int
    """Bringing the replicas of each partition together and comparing them."""
    stop_ms: int
    """Spark's end."""


class Stopwatch:
    """Adds up seconds by name while an audit runs; suspicious partitions of a live cluster are scanned and checked
    again."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def add(self, **seconds: float) -> None:
        for name, more in seconds.items():
            self._seconds[name] = self._seconds.get(name, 0.0) + max(more, 0.0)

    def timings(self) -> Timings:
        return Timings(
            discover_ms=self._milliseconds("discover"),
            start_ms=self._milliseconds("start"),
            scan_ms=self._milliseconds("scan"),
            compare_ms=self._milliseconds("compare"),
            stop_ms=self._milliseconds("stop"),
        )

    def _milliseconds(self, name: str) -> int:
        return round(self._seconds.get(name, 0.0) * 1000)
