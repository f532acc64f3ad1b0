"""One lie, planted in a true history, to show that the checker finds it. Pure.

Owns: which lies there are, and which anomalies each must and may show. Leaves to others: the checker.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from minibroker.chaos.history.client_history import HistoryEvent, Polled, Sent


class NoPlace(ValueError):
    """The history has no record for this lie. One sentence."""


class PlantedLie(Struct, frozen=True):
    """A history with a lie in it."""

    events: list[HistoryEvent]
    text: str
    """What was changed."""
    key: str


class LieKind(Struct, frozen=True, kw_only=True):
    """A kind of lie."""

    name: str
    text: str
    must: frozenset[str]
    """The anomalies that it always shows."""
    may: frozenset[str]
    """Those that it implies, depending on who read what."""
    plant: Callable[[Sequence[HistoryEvent], random.Random], PlantedLie]


class AcknowledgedRecord(Struct, frozen=True):
    """A record that was acknowledged, and read by some reader."""

    key: str
    value: str
    offset: int
    process: str


def _records(events: Sequence[HistoryEvent]) -> list[AcknowledgedRecord]:
    """By partition, then by offset."""
    read = {(each.key, each.value) for event in events if event.type == "ok" for each in event.polled}
    found = {
        (sent.key, sent.offset): AcknowledgedRecord(sent.key, sent.value, sent.offset, event.process)
        for event in events
        if event.f == "send" and event.type == "ok"
        for sent in event.sent
        if sent.offset is not None and (sent.key, sent.value) in read
    }
    return [found[place] for place in sorted(found)]


def _changed(
    events: Sequence[HistoryEvent],
    polled: Callable[[Polled], Polled | None],
    sent: Callable[[Sent], Sent] = lambda each: each,
) -> list[HistoryEvent]:
    """Each record replaced by what the functions return; None takes it out."""
    changed = []
    for event in events:
        records = tuple(new for each in event.polled if (new := polled(each)) is not None)
        changed.append(replace(event, polled=records, sent=tuple(map(sent, event.sent))))
    return changed


def _drop(events: Sequence[HistoryEvent], rng: random.Random) -> PlantedLie:
    records = _records(events)
    inner = [each for each, then in pairwise(records) if each.key == then.key]
    if not inner:
        raise NoPlace("no partition has two records that were acknowledged and read")
    lost = rng.choice(inner)
    text = f"{lost.value} at {lost.key} {lost.offset} is taken out of all polls"
    kept = _changed(events, lambda each: None if (each.key, each.value) == (lost.key, lost.value) else each)
    return PlantedLie(kept, text, lost.key)


def _duplicate(events: Sequence[HistoryEvent], rng: random.Random) -> PlantedLie:
    """Each partition's last reader sees the record once more, behind the end."""
    records = _records(events)
    if not records:
        raise NoPlace("no record was acknowledged and read")
    twice = rng.choice(records)
    places = [(number, each) for number, event in enumerate(events) for each in event.polled if each.key == twice.key]
    end = max(each.offset for _, each in places)
    number, last = next((number, each) for number, each in reversed(places) if each.offset == end)
    again = Polled(twice.key, twice.value, end + 1, last.leader_epoch)
    changed = list(events)
    before = changed[number].polled
    at = max(place for place, each in enumerate(before) if each.key == twice.key) + 1
    changed[number] = replace(changed[number], polled=(*before[:at], again, *before[at:]))
    return PlantedLie(changed, f"{twice.value} stands at {twice.key} {twice.offset}, and now at {end + 1}", twice.key)


def _reorder(events: Sequence[HistoryEvent], rng: random.Random) -> PlantedLie:
    pairs = list(_neighbours(_records(events)))
    if not pairs:
        raise NoPlace("no producer has two records in a partition that were acknowledged and read")
    one, other = rng.choice(pairs)
    swapped = {one.value: other.value, other.value: one.value}
    offsets = {one.value: other.offset, other.value: one.offset}

    def polled(each: Polled) -> Polled:
        return replace(each, value=swapped.get(each.value, each.value)) if each.key == one.key else each

    def sent(each: Sent) -> Sent:
        if each.key != one.key or each.offset is None:
            return each
        return replace(each, offset=offsets.get(each.value, each.offset))

    text = f"{one.value} and {other.value} of {one.process} change places in {one.key}"
    return PlantedLie(_changed(events, polled, sent), text, one.key)


def _neighbours(records: Sequence[AcknowledgedRecord]) -> Iterator[tuple[AcknowledgedRecord, AcknowledgedRecord]]:
    last: dict[tuple[str, str], AcknowledgedRecord] = {}
    for record in records:
        before = last.get((record.key, record.process))
        if before is not None:
            yield before, record
        last[record.key, record.process] = record


def _rewrite(events: Sequence[HistoryEvent], rng: random.Random) -> PlantedLie:
    records = _records(events)
    if not records:
        raise NoPlace("no record was acknowledged and read")
    other = rng.choice(records)
    new = f"{other.value}-rewritten"

    def polled(each: Polled) -> Polled:
        return replace(each, value=new) if (each.key, each.value) == (other.key, other.value) else each

    text = f"readers see {new} at {other.key} {other.offset}, where {other.value} was acknowledged"
    return PlantedLie(_changed(events, polled), text, other.key)


LIES: tuple[LieKind, ...] = (
    LieKind(
        name="drop",
        text="no reader sees an acknowledged record",
        must=frozenset({"lost-write", "unseen"}),
        may=frozenset({"poll-skip", "int-poll-skip", "offset-gap"}),
        plant=_drop,
    ),
    LieKind(
        name="duplicate",
        text="a record stands in the log twice",
        must=frozenset({"duplicate"}),
        may=frozenset(),
        plant=_duplicate,
    ),
    LieKind(
        name="reorder",
        text="two records of one producer change places",
        must=frozenset({"nonmonotonic-send"}),
        may=frozenset({"real-time-order", "invented-record"}),
        plant=_reorder,
    ),
    LieKind(
        name="rewrite",
        text="another value stands where a record was acknowledged",
        must=frozenset({"inconsistent-offsets", "invented-record", "unseen"}),
        may=frozenset({"lost-write"}),
        plant=_rewrite,
    ),
)
LIE_BY_NAME = {lie.name: lie for lie in LIES}
