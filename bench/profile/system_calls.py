"""Counts and times of system calls, from the output of `perf trace -s` and `strace -c`.

Owns: parsing the two tables. Pure. perf measures the time between entry and exit of a call. Where the call may wait (a
poll, an fsync) this includes waiting, and it includes time in which another process used the core. It also includes
some microseconds of perf itself: the time of the cheapest call (a getpid) is subtracted from each.
"""

import re

import msgspec

WAITING = frozenset(
    {"epoll_pwait", "epoll_wait", "epoll_pwait2", "poll", "ppoll", "select", "futex", "clock_nanosleep"}
)
"""Calls whose time is mostly waiting for something to do."""

PERF_PROCESS = re.compile(r"^ (?P<name>\S.*) \((?P<thread>\d+)\), (?P<events>\d+) events")
PERF_CALL = re.compile(
    r"^\s+(?P<name>[a-z_0-9]+)\s+(?P<calls>\d+)\s+(?P<errors>\d+)\s+(?P<total_ms>[\d.]+)\s+"
    r"(?P<least_ms>[\d.]+)"
)
STRACE_CALL = re.compile(
    r"^\s*[\d.]+\s+(?P<seconds>[\d.]+)\s+(?P<each>\d+)\s+(?P<calls>\d+)(?:\s+\d+)?\s+(?P<name>[a-z_0-9]+)\s*$"
)


class SystemCall(msgspec.Struct, frozen=True):
    """All calls of one name by one process."""

    name: str
    calls: int
    seconds: float
    least_s: float = 0.0
    """Time of the fastest of them."""

    @property
    def waits(self) -> bool:
        return self.name in WAITING


def parse_perf_trace(text: str, threads: dict[int, int]) -> dict[int, list[SystemCall]]:
    """By process, the most time first. `threads` maps threads to processes; other threads are left out."""
    found: dict[int, dict[str, SystemCall]] = {}
    process: int | None = None
    for line in text.splitlines():
        heading = PERF_PROCESS.match(line)
        if heading is not None:
            process = threads.get(int(heading["thread"]))
            continue
        row = PERF_CALL.match(line)
        if row is not None and process is not None:
            seconds, least_s = float(row["total_ms"]) / 1000, float(row["least_ms"]) / 1000
            call = SystemCall(row["name"], int(row["calls"]), seconds, least_s)
            _add(found.setdefault(process, {}), call)
    least = min((call.least_s for calls in found.values() for call in calls.values()), default=0.0)
    return {process: _sorted(_without_tracer(calls, least)) for process, calls in found.items()}


def _without_tracer(calls: dict[str, SystemCall], each_s: float) -> dict[str, SystemCall]:
    return {
        call.name: SystemCall(call.name, call.calls, max(0.0, call.seconds - call.calls * each_s))
        for call in calls.values()
    }


def parse_strace(text: str) -> list[SystemCall]:
    """Of one process, the most time first."""
    found: dict[str, SystemCall] = {}
    for line in text.splitlines():
        row = STRACE_CALL.match(line)
        if row is not None and row["name"] != "total":
            _add(found, SystemCall(row["name"], int(row["calls"]), float(row["seconds"])))
    return _sorted(found)


def _add(calls: dict[str, SystemCall], call: SystemCall) -> None:
    before = calls.get(call.name, SystemCall(call.name, 0, 0.0, call.least_s))
    calls[call.name] = SystemCall(
        call.name, before.calls + call.calls, before.seconds + call.seconds, min(before.least_s, call.least_s)
    )


def _sorted(calls: dict[str, SystemCall]) -> list[SystemCall]:
    return sorted(calls.values(), key=lambda call: (call.waits, -call.seconds, call.name))
