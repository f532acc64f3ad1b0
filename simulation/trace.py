"""What happened, as one hash: two runs with the same hash did the same things at the same times.

The doors record what crosses them (bytes delivered, bytes written, operations answered), never addresses, hashes or
iteration orders of Python objects.
"""

import hashlib
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any

LINES_KEPT = 10_000
"""The last events, for the report of a failure."""


class Trace:
    """Records events in order. `now` tells the virtual seconds since the start."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=16)
        self.events = 0
        self.lines: deque[str] = deque(maxlen=LINES_KEPT)
        self.listeners: list[Callable[[str], None]] = []
        """Called with each line, for printing a run while it happens."""

    def record(self, kind: str, *facts: Any) -> None:
        """Facts are numbers and strings whose text is the same in every run."""
        line = f"{self._now():.6f} {kind} {' '.join(map(str, facts))}"
        self._hash.update(line.encode())
        self._hash.update(b"\n")
        self.events += 1
        self.lines.append(line)
        for listener in self.listeners:
            listener(line)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()


def checksum(data: bytes | bytearray | memoryview) -> str:
    """Stands for the bytes themselves in a trace."""
    return f"{zlib.crc32(data):08x}"
