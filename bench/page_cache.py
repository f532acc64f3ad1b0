"""A page cache that is full before every round, as it is on a machine that has run a broker for an hour.

Owns: the ballast, a sparse file that takes no disk: reading its holes fills the page cache with clean pages, which the
kernel gives to whoever writes next. Refuses to change a setting of the kernel.

Why: a virtual machine hands memory that has been free for some seconds back to its host, and gets it again page by
page, for some ten microseconds each; a page that is taken from a full cache costs a tenth of that. A round's topic is
deleted after it, so without this rounds would write now into pages of the one kind and now of the other.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
KEPT_FREE_BYTES = 400 << 20
"""Stays free: above the marks at which the kernel begins to reclaim, so that filling evicts nothing of value."""
FREE_SHARE_MIN = 0.5
"""Of all memory must be free or page cache; where programs hold more than the rest, there is none to fill."""
STEP_BYTES = 64 << 20
READ_BYTES = 1 << 20
FILL_S_MAX = 180.0
"""The first fill touches every free page of the machine: a minute for 20 GB where each comes from the host."""


class PageCache:
    """Fills it; `close` takes the ballast away. Blocks: it belongs into a thread."""

    def __init__(self, directory: Path, meminfo: Path = MEMINFO) -> None:
        """`directory` lies on the file system that the clusters write to."""
        self._path = directory / "ballast"
        self._meminfo = meminfo
        self._read_until = 0
        self._descriptor: int | None = None
        self._closed = False
        self._stepping = threading.Lock()
        """An interrupted run closes from another thread than the one that fills."""

    def fill(self, tell: Callable[[str], None] = lambda what: None) -> int:
        """Read holes that were never read until next to nothing is free; how many bytes. Nothing on a small machine."""
        memory = read_meminfo(self._meminfo)
        if memory["MemAvailable"] < FREE_SHARE_MIN * memory["MemTotal"]:
            return 0
        began, deadline = self._read_until, time.monotonic() + FILL_S_MAX
        wanted = memory["MemFree"] - KEPT_FREE_BYTES
        # as much as was free at the beginning and no more: a file system that caches no holes would be read for ever
        while self._read_until - began < wanted and time.monotonic() < deadline:
            if read_meminfo(self._meminfo)["MemFree"] < KEPT_FREE_BYTES + STEP_BYTES:
                break
            with self._stepping:
                if self._closed:
                    break
                self._read_holes(STEP_BYTES)
            tell(f"filling the page cache: {(self._read_until - began) / 1e9:.1f} of {wanted / 1e9:.1f} GB")
        return self._read_until - began

    def _read_holes(self, size: int) -> None:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        end = self._read_until + size
        os.ftruncate(self._descriptor, end)
        into = [bytearray(READ_BYTES)]
        while self._read_until < end:
            self._read_until += os.preadv(self._descriptor, into, self._read_until)

    def close(self) -> None:
        with self._stepping:
            self._closed = True
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
                self._path.unlink(missing_ok=True)


def read_meminfo(path: Path = MEMINFO) -> dict[str, int]:
    """Bytes by name (proc(5))."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if len(words) == 3}
