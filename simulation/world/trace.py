"""The events of a run as one hash: two runs with the same hash did the same things at the same times.

The ports record what crosses them (bytes delivered, bytes written, operations answered), never addresses, hashes or
iteration orders of Python objects.
"""

import hashlib
import marshal
import zlib
from collections import Counter, deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Protocol

LINES_KEPT = 10_000
"""Events kept for the report of a failure."""

EVENTS_HASHED_AT_ONCE = 1_000
"""Packing this many events at once costs a tenth of a text for each."""

MARSHAL_VERSION = 2
"""The last version that writes no references between equal objects: those depend on how the
interpreter shares objects."""

Event = tuple[float, str, tuple[Any, ...]]
KIND_OF: Callable[[Event], str] = itemgetter(1)


class Elapsing(Protocol):
    """Where the time of an event comes from."""

    elapsed: float
    """Virtual seconds since the start."""


class Trace:
    """Records events in order."""

    def __init__(self, clock: Elapsing) -> None:
        self._clock = clock
        self._hash = hashlib.blake2b(digest_size=16)
        self._hashed = 0
        self._unhashed: list[Event] = []
        self._last: deque[Event] = deque(maxlen=LINES_KEPT)
        self._kinds: Counter[str] = Counter()
        self.listeners: list[Callable[[str], None]] = []
        """Called with each line, to print a run while it happens."""

    def record(self, kind: str, *facts: Any) -> None:
        """Facts are plain numbers and strings, the same in every run (anything else fails when it is hashed)."""
        unhashed, event = self._unhashed, (self._clock.elapsed, kind, facts)
        unhashed.append(event)
        if len(unhashed) >= EVENTS_HASHED_AT_ONCE:
            self._hash_pending()
        if self.listeners:
            line = line_of(event)
            for listener in self.listeners:
                listener(line)

    def _hash_pending(self) -> None:
        self._hash.update(marshal.dumps(self._unhashed, MARSHAL_VERSION))
        self._hashed += len(self._unhashed)
        self._last.extend(self._unhashed)
        self._kinds.update(map(KIND_OF, self._unhashed))
        self._unhashed.clear()

    @property
    def kinds(self) -> Counter[str]:
        """The number of events of each kind."""
        return self._kinds + Counter(map(KIND_OF, self._unhashed))

    @property
    def events(self) -> int:
        return self._hashed + len(self._unhashed)

    @property
    def lines(self) -> list[str]:
        """The last events, as text."""
        return [line_of(event) for event in [*self._last, *self._unhashed][-LINES_KEPT:]]

    @property
    def trace_hash(self) -> str:
        """Hash of everything so far; reading it does not change later hashes."""
        so_far = self._hash.copy()
        so_far.update(marshal.dumps(self._unhashed, MARSHAL_VERSION))
        return so_far.hexdigest()


def line_of(event: Event) -> str:
    at, kind, facts = event
    return f"{at:.6f} {kind} {' '.join(map(str, facts))}"


checksum = zlib.crc32
"""Represents bytes in a trace."""
