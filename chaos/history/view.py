"""A history of client operations, indexed for checks, and the form of what they find.

Owns: what the run promised, what stands at which offset, and an anomaly. Leaves to others: all checks.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct

from minibroker.chaos.history.client_history import HistoryEvent


class Promise(Struct, frozen=True, kw_only=True):
    """What the run promised its clients."""

    in_order: frozenset[str] = frozenset()
    """Idempotent producers: each record is written once, in the order in which it was sent."""
    first_copies_in_order: frozenset[str] = frozenset()
    """Producers without idempotence: the first copies of their acknowledged records stand in the order of the sends."""
    knows_all_sends: bool = False
    """The history has every send to its partitions."""
    is_final: bool = True
    """The history ends with a read of everything, so a record that was never read is lost."""
    log_starts: Mapping[str, int] = {}
    """Where each partition begins at the end; retention removed what was in front."""
    deleting: frozenset[str] = frozenset()
    """Partitions of which readers may skip what retention deleted before they reached it."""


class Anomaly(Struct, frozen=True):
    """One anomaly."""

    name: str
    key: str
    text: str
    facts: tuple[str, ...] = ()


class HistoryView:
    """The history, indexed for the checks."""

    def __init__(self, events: Iterable[HistoryEvent]) -> None:
        self.events = list(events)
        self.completions = [event for event in self.events if event.type != "invoke"]
        self.sends = [event for event in self.completions if event.f == "send"]
        self.polls = [event for event in self.completions if event.f == "poll"]
        self.writer: dict[str, HistoryEvent] = {sent.value: event for event in self.sends for sent in event.sent}
        self.read_ok: dict[str, set[str]] = defaultdict(set)
        for event in self.polls:
            if event.type == "ok":
                for record in event.polled:
                    self.read_ok[record.key].add(record.value)
        self.log = self._log()
        self.order = {key: [next(iter(log[offset])) for offset in sorted(log)] for key, log in self.log.items()}
        self.position = {key: _places(values) for key, values in self.order.items()}

    def _log(self) -> dict[str, dict[int, dict[str, None]]]:
        """Key: offset: values seen there, in order of appearance. An offset acknowledged with acks=1 proves nothing:
        the record may be lost, and another attempt may have written it elsewhere."""
        log: dict[str, dict[int, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
        for event in self.polls:
            for record in event.polled:
                log[record.key][record.offset][record.value] = None
        for event in self.sends:
            for sent in event.sent:
                if sent.offset is not None and event.type == "ok":
                    log[sent.key][sent.offset][sent.value] = None
        return log

    def is_committed(self, event: HistoryEvent) -> bool:
        """It succeeded, or a reader has seen what it wrote."""
        return event.type == "ok" or (
            event.type == "info" and any(sent.value in self.read_ok[sent.key] for sent in event.sent)
        )

    def delta(self, key: str, first: str, then: str) -> int:
        """Steps from one value to the other; 1 if unknown."""
        position = self.position.get(key, {})
        return position[then] - position[first] if first in position and then in position else 1


def _places(values: list[str]) -> dict[str, int]:
    """Index of each value; a value that occurs twice (a retry without idempotence) has no position to compare."""
    counts = Counter(values)
    return {value: at for at, value in enumerate(values) if counts[value] == 1}
