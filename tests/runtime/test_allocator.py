"""The allocator's settings, in a separate process: they apply to the whole process."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path

if sys.argv[1] == "set":
    from minibroker.runtime.adapters.allocator import return_freed_memory

    return_freed_memory()


def resident_kib() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


def burst() -> None:
    for size in (2, 16, 8, 16):
        bytearray(b"x") * (size * 1024 * 1024)
    kept = [bytearray(b"x") * (3 * 1024 * 1024) for _ in range(8)]
    pins = [bytearray(b"x") * 100_000 for _ in range(8)]
    del kept
    PINS.extend(pins)


PINS = []
before = resident_kib()
burst()
print(resident_kib() - before)
"""


TRIMMED = """
import asyncio
from pathlib import Path

from minibroker.runtime.adapters import allocator

allocator.return_freed_memory()
allocator.TRIM_INTERVAL_SECONDS = 0.01


def resident_kib() -> int:
    return int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0])


async def main() -> None:
    buffers = [bytearray(b"x") * 100_000 for _ in range(300)]
    del buffers[::2]  # the rest keeps the heap from shrinking
    before = resident_kib()
    trimming = asyncio.create_task(allocator.trim_regularly())
    await asyncio.sleep(0.2)
    trimming.cancel()
    print(before - resident_kib())


asyncio.run(main())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of glibc")
def test_free_pages_between_buffers_in_use_go_back_to_the_system() -> None:
    run = subprocess.run([sys.executable, "-c", TRIMMED], capture_output=True, check=True, timeout=60)
    assert int(run.stdout) > 8 * 1024


def grown_kib(argument: str) -> int:
    run = subprocess.run([sys.executable, "-c", PROGRAM, argument], capture_output=True, check=True, timeout=60)
    return int(run.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of glibc")
def test_memory_of_a_burst_goes_back_to_the_system() -> None:
    assert grown_kib("set") < 6 * 1024
    assert grown_kib("leave") > 12 * 1024, "if this is no longer so, the settings are no longer needed"
