"""A broker's process whose wall clock can be moved from outside: `python -m` of this module, with a file and then the
arguments of `minibroker`.

Owns: the file with the offset, eight bytes that the process maps into its memory, so that a change counts at once. A
broker is Python code, which reads the wall clock by `time.time_ns` (`runtime/adapters/clock`) and, for the times of its
log, by `time.time`: these two are replaced. Monotonic clocks, and the times of files, stay true, as when the clock of a
machine is set.
"""

import mmap
import runpy
import struct
import sys
import time
from pathlib import Path

OFFSET_NS = struct.Struct("=q")


def write_offset(file: Path, seconds: float) -> None:
    """The clock of the process that has this file shows so much more than the true time. It may run."""
    content = OFFSET_NS.pack(round(seconds * 1e9))
    if not file.exists():
        file.write_bytes(content)
    with file.open("r+b") as existing:
        existing.write(content)  # in place: the process has mapped it


def follow(file: Path) -> None:
    """From now on this process's wall clock is moved as the file says."""
    with file.open("rb") as content:
        mapped = mmap.mmap(content.fileno(), OFFSET_NS.size, prot=mmap.PROT_READ)
    true_time_ns, read = time.time_ns, OFFSET_NS.unpack_from

    def time_ns() -> int:
        return true_time_ns() + int(read(mapped)[0])

    time.time_ns = time_ns
    time.time = lambda: time_ns() / 1e9


def main() -> None:
    """Run the command as `python -m minibroker` does."""
    follow(Path(sys.argv[1]))
    sys.argv[:2] = ["minibroker"]
    runpy.run_module("minibroker", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
