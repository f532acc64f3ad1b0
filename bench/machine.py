"""What a reader must know about the machine and the code that was measured."""

import os
import platform
import subprocess
from pathlib import Path

from minibroker.bench.document import MachineDescription

ROOT = Path(__file__).resolve().parents[1]
GIT_TIMEOUT_S = 10.0


def describe_machine(directory: Path) -> MachineDescription:
    """`directory` is where the clusters' files are."""
    return MachineDescription(
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gb=round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        file_system=_file_system(directory.resolve()),
    )


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(named, platform.machine())


def _file_system(directory: Path) -> str:
    """Of the longest mount point that contains the directory."""
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if directory.is_relative_to(mount) and len(mount) >= len(best):
            best, kind = mount, name
    return kind


def describe_commit() -> str:
    """Short name of the commit, with a + if files differ from it; 'unknown' outside a checkout."""
    name = _git("rev-parse", "--short=10", "HEAD")
    if not name:
        return "unknown"
    return f"{name}+" if _git("status", "--porcelain", "--untracked-files=no") else name


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *words],  # noqa: S607 - from PATH
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
