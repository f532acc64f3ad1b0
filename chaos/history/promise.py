"""What a run promised its clients, and the form of what contradicts it. Pure.

Owns: both forms, the order of the anomalies from the worst on, and how many of a kind are kept. Leaves to others: all
checks.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

LAST_READER = "final-reader"
"""Its name in a history that `chaos run` writes."""
SHOWN_MAX = 8
"""Findings kept of each anomaly and partition; all are counted."""


class Promise(Struct, frozen=True, kw_only=True):
    """What the run promised its clients."""

    in_order: frozenset[str] = frozenset()
    """Idempotent producers: each record is written once, in the order in which it was sent."""
    first_copies_in_order: frozenset[str] = frozenset()
    """Producers without idempotence: the first copies of their acknowledged records stand in the order of the sends."""
    knows_all_sends: bool = False
    """The history has every send to its partitions. Partitions with sends of which only the outcome is known (of a
    program that does not tell when it sends) are left out."""
    is_final: bool = True
    """The history ends with a read of everything, so a record that was never read is lost."""
    last_reader: str | None = None
    """The process that reads everything at the end, if it is known. Then its polls alone are that last read: what
    another reader saw before may be lost since."""
    log_starts: Mapping[str, int] = {}
    """Where each partition begins at the end; retention removed what was in front."""
    deleting: frozenset[str] = frozenset()
    """Partitions of which readers may skip what retention deleted before they reached it."""
    values_are_unique: bool = False
    """A value that is sent twice in a partition is an error of who wrote the history: it cannot be judged."""


class Anomaly(Struct, frozen=True):
    """One anomaly."""

    name: str
    key: str
    text: str
    facts: tuple[str, ...] = ()


WORST_FIRST = (
    "inconsistent-offsets",
    "aborted-read",
    "lost-write",
    "unseen",
    "duplicate",
    "nonmonotonic-send",
    "int-nonmonotonic-send",
    "real-time-order",
    "first-copies-out-of-order",
    "invented-record",
    "lost-in-its-epoch",
    "poll-skip",
    "int-poll-skip",
    "nonmonotonic-poll",
    "int-nonmonotonic-poll",
    "offset-gap",
    "epoch-falls",
    "epoch-changes",
    "two-writers",
    "beyond-high-watermark",
    "high-watermark-falls",
)
"""All anomalies."""


class Found:
    """Collects anomalies: counts all, keeps a few of each kind and partition."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """All, by name."""
        self._shown: Counter[tuple[str, str]] = Counter()
        self._kept: list[Anomaly] = []

    def add(self, name: str, key: str, text: str, *facts: str) -> None:
        assert name in WORST_FIRST
        self.counts[name] += 1
        self._shown[name, key] += 1
        if self._shown[name, key] <= SHOWN_MAX:
            self._kept.append(Anomaly(name, key, text, facts))

    def worst_first(self) -> list[Anomaly]:
        return sorted(self._kept, key=lambda each: (WORST_FIRST.index(each.name), each.key))
