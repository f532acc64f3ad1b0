"""What all load generators share: arguments, report, own cost, and keeping to a schedule.

Owns: `{"report": ..}` on stdout, CPU and peak memory of the loaded part, and the pacer. It imports no client, because
it also runs in the Python of Kafka's clients.
"""

import json
import os
import resource
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minibroker.bench.statistics import percentile

NS_PER_S = 1_000_000_000
STAMP = struct.Struct("<q")
"""Beginning of a stamped value: when it was due, in monotonic nanoseconds (one clock for all processes), 0 for
never."""
WARM_RECORDS = 2_000
"""Sent before the stopwatch starts, to set up connections, metadata and the producer's identity."""
LINGER_MS = 5
TICK_S = 0.001
"""Records of a fast schedule are due in groups, one per millisecond: no sleep is exact enough for shorter steps."""
BEAT_S = 0.05
"""How often a failover generator reports when the last record was acknowledged."""
SWITCH_S = 0.0002
"""How long another thread may keep the interpreter while the pacer waits for it: with Python's 5 ms that wait would
dominate the latency."""
SHARES = (("p50_ms", 0.5), ("p99_ms", 0.99), ("p999_ms", 0.999))


def arguments() -> tuple[str, dict[str, Any]]:
    """(load, parameters) of the command line."""
    found = json.loads(sys.argv[2])
    assert isinstance(found, dict)
    return sys.argv[1], found


def send_event(event: str, **values: Any) -> None:
    """A line for the bench, which may wait for it."""
    _write_line({"event": event} | values)


def report(figures: dict[str, Any]) -> None:
    """The last line."""
    _write_line({"report": figures})


def _write_line(content: dict[str, Any]) -> None:
    """Write all of it, which `print` does not guarantee: where PYTHONUNBUFFERED is set, `print` writes once. What did
    not fit into the pipe (64 KiB) is then silently lost if a signal comes, or if the process is stopped and
    continued."""
    rest = json.dumps(content).encode() + b"\n"
    while rest:
        rest = rest[os.write(sys.stdout.fileno(), rest) :]


def wait_for_command() -> str:
    """The next line of stdin, by which the bench continues or ends the load. Empty if the bench has ended."""
    return sys.stdin.readline().strip()


def failover_report(
    acknowledged: list[tuple[int, int, int]], errors: list[str], found: list[tuple[int, bytes]]
) -> dict[str, Any]:
    """`acknowledged` is (time in monotonic ns, number, offset), `found` is (offset, value) of the whole log."""
    at = {offset: int(value[:20]) for offset, value in found if value[:4] != b"warm"}
    return {
        "acknowledged_ns": [moment for moment, _, _ in acknowledged],
        "acknowledged": len(acknowledged),
        "errors": errors[:20],
        "error_count": len(errors),
        "lost": sum(at.get(offset) != number for _, number, offset in acknowledged),
        "duplicates": len(at) - len(set(at.values())),
    }


class LoadStopwatch:
    """Wall time and own cost of the loaded part, from its creation until `read`."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here, proc(5)
        except OSError:
            pass
        self._cpu_s = _cpu_s()
        self._started = time.perf_counter()

    def read(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self._started,
            "cpu_s": _cpu_s() - self._cpu_s,
            "peak_rss_mb": _peak_rss_mb(),
        }


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _peak_rss_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0


class Pacer:
    """Calls `due` whenever records are due, from a thread that only sleeps precisely.

    Event loops and librdkafka's poll sleep in whole milliseconds; a thread sleeps to some ten microseconds. `due` is
    called in that thread with a due time (monotonic nanoseconds) and how many records are due then. If the thread wakes
    late, it calls at once for everything that is due: the schedule never waits for the system under test.
    """

    def __init__(self, per_second: int, seconds: float, due: Callable[[int, int], object]) -> None:
        self.records = round(per_second * seconds)
        self._times = schedule(per_second, seconds, time.monotonic_ns() + NS_PER_S // 10)
        self._due = due
        sys.setswitchinterval(SWITCH_S)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        for at, records in self._times:
            remaining_ns = at - time.monotonic_ns()
            if remaining_ns > 0:
                time.sleep(remaining_ns / NS_PER_S)
            self._due(at, records)


def schedule(per_second: int, seconds: float, first_ns: int) -> list[tuple[int, int]]:
    """Due times in monotonic nanoseconds, and how many records each; above 1,000 per second a time per millisecond."""
    count = round(per_second * seconds)
    if per_second * TICK_S <= 1:
        return [(first_ns + index * NS_PER_S // per_second, 1) for index in range(count)]
    tick_ns = round(TICK_S * NS_PER_S)
    ticks = Counter((index * NS_PER_S // per_second) // tick_ns for index in range(count))
    return [(first_ns + tick * tick_ns, records) for tick, records in sorted(ticks.items())]


def producing_report(cost: dict[str, float], records: int, record_bytes: int, warm_records: int) -> dict[str, Any]:
    """A producer's report: all of its records were acknowledged."""
    rates = {"records_s": records / cost["seconds"], "mb_s": records * record_bytes / cost["seconds"] / 1e6}
    counts = {"records": records, "bytes": records * record_bytes, "acknowledged": records}
    return cost | rates | counts | {"warm_records": warm_records}


def reading_report(
    cost: dict[str, float], read: tuple[int, int], before_watch: tuple[int, int], waits_ns: Sequence[int]
) -> dict[str, Any]:
    """A consumer's report. `read` and `before_watch`: records and bytes, in total and until the stopwatch started."""
    timed, timed_bytes = read[0] - before_watch[0], read[1] - before_watch[1]
    rates = {"records_s": timed / cost["seconds"], "mb_s": timed_bytes / cost["seconds"] / 1e6}
    return cost | rates | {"records": read[0], "bytes": read[1], "timed_bytes": timed_bytes} | latencies(waits_ns)


def latencies(waits_ns: Sequence[int], warm_share: float = 0.1) -> dict[str, float]:
    """Percentiles in ms; the first tenth is the warm-up and is left out."""
    ordered = sorted(waits_ns[int(len(waits_ns) * warm_share) :])
    if not ordered:
        return {}
    found = {name: percentile(ordered, share) / 1e6 for name, share in SHARES}
    return found | {"max_ms": ordered[-1] / 1e6, "samples": len(ordered)}
