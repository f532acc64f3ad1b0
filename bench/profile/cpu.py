"""CPU seconds of a running process, as counted by the kernel.

Owns: reading /proc. Nanoseconds come from the scheduler's counters, the kernel's share from the tick-based ones (a tick
is 10 ms: sufficient over seconds).
"""

import os
from pathlib import Path

import msgspec


class CpuWindow(msgspec.Struct, frozen=True):
    """Spent between two readings."""

    total: float
    kernel: float


def thread_ids(pid: int) -> list[int]:
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))


def cpu_seconds(pid: int) -> tuple[float, float, float]:
    """The total by the scheduler, then user and kernel by ticks. Raises OSError if the process has ended."""
    nanoseconds = 0
    for thread in thread_ids(pid):
        nanoseconds += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    return nanoseconds / 1e9, int(fields[11]) * tick_s, int(fields[12]) * tick_s


class CpuMeter:
    """CPU time of one process since its creation."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._before = cpu_seconds(pid)

    def read(self) -> CpuWindow:
        total, user, kernel = (now - before for now, before in zip(cpu_seconds(self.pid), self._before, strict=True))
        ticks = user + kernel
        return CpuWindow(total, total * kernel / ticks if ticks else 0.0)
