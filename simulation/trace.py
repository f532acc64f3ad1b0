"""What happened, as one hash: two runs with the same hash did the same things at the same times.

The doors record what crosses them (bytes delivered, bytes written, operations answered), never addresses, hashes or
iteration orders of Python objects.
"""

import hashlib
import marshal
import zlib
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

LINES_KEPT = 10_000
"""The last events, for the report of a failure."""

EVENTS_HASHED_AT_ONCE = 1_000
"""One packing of so many events costs a tenth of a text for each."""

MARSHAL_VERSION = 2
"""The last one that writes no references between equal objects: those depend on how the interpreter shares them."""

Event = tuple[float, str, tuple[Any, ...]]


class Trace:
    """Records events in order. `now` tells the virtual seconds since the start."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = 0
        self._unhashed: list[Event] = []
        self._last: deque[Event] = deque(maxlen=LINES_KEPT)
        self._kinds: Counter[str] = Counter()
        self.listeners: list[Callable[[str], None]] = []
        """Called with each line, for printing a run while it happens."""

    def record(self, kind: str, *facts: Any) -> None:
        """Facts are plain numbers and strings, the same in every run (anything else is refused when it is hashed)."""
        event = (self._now(), kind, facts)
        self._unhashed.append(event)
        if len(self._unhashed) >= EVENTS_HASHED_AT_ONCE:
            self._catch_up()
        if self.listeners:
            line = line_of(event)
            for listener in self.listeners:
                listener(line)

    def _catch_up(self) -> None:
        self._hash.update(marshal.dumps(self._unhashed, MARSHAL_VERSION))
        self._hashed += len(self._unhashed)
        self._last.extend(self._unhashed)
        self._kinds.update(kind for _, kind, _ in self._unhashed)
        self._unhashed.clear()

    @property
    def kinds(self) -> Counter[str]:
        """How many events of each kind there were."""
        return self._kinds + Counter(kind for _, kind, _ in self._unhashed)

    @property
    def events(self) -> int:
        return self._hashed + len(self._unhashed)

    @property
    def lines(self) -> list[str]:
        """The last events, as text."""
        return [line_of(event) for event in [*self._last, *self._unhashed][-LINES_KEPT:]]

    @property
    def trace_hash(self) -> str:
        """Of everything so far; asking does not change what comes out later."""
        so_far = self._hash.copy()
        so_far.update(marshal.dumps(self._unhashed, MARSHAL_VERSION))
        return so_far.hexdigest()


def line_of(event: Event) -> str:
    at, kind, facts = event
    return f"{at:.6f} {kind} {' '.join(map(str, facts))}"


def checksum(data: bytes | bytearray | memoryview) -> int:
    """Stands for the bytes themselves in a trace."""
    return zlib.crc32(data)
