"""CPU seconds and peak memory of processes, read from Linux's /proc.

Owns: reading them, and the difference over a period. Peak memory counts from the start of the period where the kernel
allows a reset (clear_refs), else from the process's start.
"""

import os
from pathlib import Path

import msgspec

from minibroker.bench.case import ProcessCost

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
RESET_PEAK = "5"
"""The value that makes clear_refs reset the peak resident set size (proc(5))."""


class ProcessUse(msgspec.Struct, frozen=True):
    """What a process has used so far."""

    cpu_s: float
    rss_mb: float
    peak_rss_mb: float


def use_of(pid: int) -> ProcessUse | None:
    """None if the process has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    kilobytes = {
        line.split(":")[0]: int(line.split()[1]) for line in status.splitlines() if line.startswith(("VmHWM", "VmRSS"))
    }
    return ProcessUse(
        cpu_s=(int(fields[11]) + int(fields[12])) / TICKS_PER_S,
        rss_mb=kilobytes.get("VmRSS", 0) * 1024 / 1e6,
        peak_rss_mb=kilobytes.get("VmHWM", 0) * 1024 / 1e6,
    )


def reset_peak(pid: int) -> bool:
    """Restart the peak measurement; False if the kernel does not allow it."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(RESET_PEAK)
    except OSError:
        return False
    return True


class Meter:
    """CPU and memory of some processes, from its creation until `read`."""

    def __init__(self, pids: dict[str, int]) -> None:
        self._pids = dict(pids)
        for pid in pids.values():
            reset_peak(pid)
        self._before = {role: use_of(pid) for role, pid in self._pids.items()}

    def read(self) -> list[ProcessCost]:
        """The cost of each; a process that has ended is left out."""
        found = []
        for role, pid in self._pids.items():
            before, now = self._before[role], use_of(pid)
            if before is not None and now is not None:
                found.append(ProcessCost(role, round(now.cpu_s - before.cpu_s, 3), round(now.peak_rss_mb, 1)))
        return found
