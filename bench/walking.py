"""The plain walk over segment files by several processes, as a baseline for readers that do more.

Owns: distributing files over processes, and the rate. The load itself is in load/plain_walk.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from minibroker.bench.case import CaseFailed
from minibroker.bench.child import output_of
from minibroker.protocol.counted import counted

WALK_TIMEOUT_S = 600.0


class WalkResult(msgspec.Struct, frozen=True):
    """The work of all processes together."""

    bytes: int
    batches: int
    seconds: float
    """From the first start to the last end; starting Python is not included."""
    cpu_s: float

    @property
    def mb_s(self) -> float:
        return self.bytes / self.seconds / 1e6


def segment_files(directories: Sequence[Path]) -> list[Path]:
    """Of all partitions below these log directories."""
    return sorted(path for directory in directories for path in directory.glob("*/*.log"))


def distribute(files: Sequence[tuple[str, int]], processes: int) -> list[list[str]]:
    """(file, size) over processes, so that each has about as much to read: the largest first, to the process with the
    least."""
    shares: list[list[str]] = [[] for _ in range(processes)]
    sizes = [0] * processes
    for name, size in sorted(files, key=lambda file: (-file[1], file[0])):
        least = sizes.index(min(sizes))
        shares[least].append(name)
        sizes[least] += size
    return [share for share in shares if share]


async def walk(files: Sequence[Path], processes: int) -> WalkResult:
    """Raises CaseFailed if a CRC is wrong: such files are unsuitable for a bench."""
    shares = distribute([(str(path), path.stat().st_size) for path in files], processes)
    reports = await asyncio.gather(*(_walk(share) for share in shares))
    wrong = sum(report["wrong"] for report in reports)
    if wrong or not reports:
        raise CaseFailed(f"wrong CRC of {counted(wrong, 'batch')}, in {counted(len(files), 'file')}")
    began = min(report["began"] for report in reports)
    ended = max(report["began"] + report["seconds"] for report in reports)
    return WalkResult(
        sum(report["bytes"] for report in reports),
        sum(report["batches"] for report in reports),
        ended - began,
        sum(report["cpu_s"] for report in reports),
    )


async def _walk(files: list[str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "minibroker.bench.load.plain_walk", "walk", json.dumps({"files": files})]
    output = await output_of("the plain walk", command, WALK_TIMEOUT_S)
    found: dict[str, Any] = json.loads(output)["report"]
    return found
