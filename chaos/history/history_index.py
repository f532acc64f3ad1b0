"""A history of client operations, indexed for checks. Pure.

Owns: what stands at which offset, what became of each write, which values were read. It is made in one pass over the
history and holds numbers, not events: a million operations take some hundred megabytes. Leaves to others: all checks.
"""

from array import array
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from minibroker.chaos.history.client_history import HistoryEvent, Polled, Sent

NONE: Final = -1
NEVER, OK, FAIL, INFO = 0, 1, 2, 3
"""What became of the write of a value, as far as the history tells."""
OUTCOMES = {"ok": OK, "fail": FAIL, "info": INFO}


class Placed:
    """The values of one partition. Each has a number; the arrays hold one fact for each number."""

    def __init__(self) -> None:
        self.number_of: dict[str, int] = {}
        self.names: list[str] = []
        self.outcome = bytearray()
        self.is_read = bytearray()
        """By a poll that succeeded."""
        self.is_read_first = bytearray()
        """By one before the last reader began: from then on it must be there."""
        self.is_read_at_end = bytearray()
        """By one of the last reader."""
        self.offset = array("q")
        """That was acknowledged, with whatever acks; NONE if unknown."""
        self.first_place = array("q")
        """The smallest offset at which a reader saw it; NONE if none did."""
        self.first_known = array("q")
        """As before; an offset acknowledged with acks=all counts, too."""
        self.position = array("q")
        """Its index among all values in the order of offsets; NONE if unknown, or if it stands at several."""
        self.at: dict[int, int] = {}
        """Offset: the first value seen there."""
        self.others_at: dict[int, list[int]] = {}
        """Offset: all values seen there, if they are several."""
        self.several: dict[int, list[int]] = {}
        """Value: all its offsets, if they are several."""
        self.seen_last_at = array("q")
        """The last offset in the log at which it stands."""
        self.epochs: dict[int, int] = {}
        """Offset: the leader epoch that a reader last saw there."""
        self.other_epochs: dict[int, set[int]] = {}
        """Offset: all leader epochs seen there, if they are several."""
        self.writer = array("i")
        """The process that sent it, as its number; NONE if no send is known."""
        self.weak_offsets: set[int] = set()
        """Acknowledged by one broker alone (acks=1)."""
        self.has_foreign_sends = False
        """Sends of which only the outcome is known."""

    def number(self, value: str) -> int:
        """Of a value; a new one if it was not seen before."""
        known = self.number_of.get(value)
        if known is None:
            known = self.number_of[value] = len(self.names)
            self.names.append(value)
            self.outcome.append(NEVER)
            self.is_read.append(0)
            self.is_read_first.append(0)
            self.is_read_at_end.append(0)
            self.writer.append(NONE)
            for column in (self.offset, self.first_place, self.first_known, self.position, self.seen_last_at):
                column.append(NONE)
        return known

    def name(self, number: int) -> str:
        """For people, cut if it is long."""
        return f"{self.names[number]!r:.60}"

    def place(self, number: int, offset: int) -> None:
        """The value stands at this offset."""
        first = self.at.setdefault(offset, number)
        if first != number:
            values = self.others_at.setdefault(offset, [first])
            if number not in values:
                values.append(number)
        before = self.seen_last_at[number]
        if before == NONE:
            self.seen_last_at[number] = offset
        elif before != offset:
            offsets = self.several.setdefault(number, [before])
            if offset not in offsets:
                offsets.append(offset)
            self.seen_last_at[number] = max(before, offset)

    def values_at(self, offset: int) -> list[int]:
        """In the order in which they were seen."""
        return self.others_at.get(offset) or [self.at[offset]]

    def is_committed(self, number: int) -> bool:
        """Its write succeeded, or may have, and a reader has seen it."""
        outcome = self.outcome[number]
        return outcome == OK or (outcome == INFO and bool(self.is_read[number]))

    def delta(self, first: int, then: int) -> int:
        """Steps from one value to the other; 1 if unknown."""
        before, after = self.position[first], self.position[then]
        return 1 if NONE in (before, after) else after - before


class HistoryIndex:
    """All partitions of a history."""

    def __init__(self, events: Iterable[HistoryEvent], last_reader: str | None = None) -> None:
        self.has_last_read = False
        """A process of that name has polled."""
        self.partitions: dict[str, Placed] = defaultdict(Placed)
        self.processes: list[str] = []
        """Those that send, by their numbers."""
        self._process_numbers: dict[str, int] = {}
        self.errors: dict[tuple[str, int], str] = {}
        """Of failed writes."""
        self.sent_twice: str | None = None
        """The first value that two sends name, and its partition; checks take all sends of a value for one."""
        for event in events:
            if event.f == "send":
                self._take_send(event)
            elif event.f == "poll":
                is_last = event.process == last_reader
                self.has_last_read |= is_last
                if event.type != "invoke":
                    self._take_poll(event, is_last)
        for placed in self.partitions.values():
            _set_positions(placed)

    def writer_of(self, placed: Placed, number: int) -> str | None:
        """The process that sent the value; None if no send is known."""
        return None if placed.writer[number] == NONE else self.processes[placed.writer[number]]

    def _process_number(self, process: str) -> int:
        known = self._process_numbers.get(process)
        if known is None:
            known = self._process_numbers[process] = len(self.processes)
            self.processes.append(process)
        return known

    def _take_send(self, event: HistoryEvent) -> None:
        process = self._process_number(event.process)
        for sent in event.sent:
            placed = self.partitions[sent.key]
            number = placed.number(sent.value)
            before = placed.writer[number] != NONE if event.type == "invoke" else placed.outcome[number] != NEVER
            if before and self.sent_twice is None:
                self.sent_twice = f"{placed.name(number)} is sent twice in {sent.key}"
            placed.writer[number] = process
            if event.type == "invoke":
                continue
            placed.has_foreign_sends |= event.operation is None
            self._note_outcome(event, sent, placed, number)

    def _note_outcome(self, event: HistoryEvent, sent: Sent, placed: Placed, number: int) -> None:
        placed.outcome[number] = OUTCOMES[event.type]
        if event.type == "fail" and event.error is not None:
            self.errors[sent.key, number] = event.error
        if sent.offset is None:
            return
        placed.offset[number] = sent.offset
        if event.type == "ok":  # an offset acknowledged with acks=1 proves nothing: another attempt may stand elsewhere
            placed.first_known[number] = _smaller(placed.first_known[number], sent.offset)
            placed.place(number, sent.offset)
        elif event.type == "info" and event.leader_epoch is not None:
            placed.weak_offsets.add(sent.offset)

    def _take_poll(self, event: HistoryEvent, is_last: bool) -> None:
        is_ok = event.type == "ok"
        for record in event.polled:
            self._note_record(record, is_ok, is_last)

    def _note_record(self, record: Polled, is_ok: bool, is_last: bool) -> None:
        placed = self.partitions[record.key]
        number = placed.number(record.value)
        offset = record.offset
        if is_ok:
            placed.is_read[number] = 1
            placed.is_read_first[number] |= not self.has_last_read
            placed.is_read_at_end[number] |= is_last
        placed.first_place[number] = _smaller(placed.first_place[number], offset)
        placed.first_known[number] = _smaller(placed.first_known[number], offset)
        placed.place(number, offset)
        if record.leader_epoch is not None:
            before = placed.epochs.setdefault(offset, record.leader_epoch)
            if before != record.leader_epoch:
                placed.other_epochs.setdefault(offset, {before}).add(record.leader_epoch)
                placed.epochs[offset] = record.leader_epoch

    def sorted_partitions(self) -> list[tuple[str, Placed]]:
        return sorted(self.partitions.items())


def _smaller(known: int, offset: int) -> int:
    return offset if known == NONE or offset < known else known


def _set_positions(placed: Placed) -> None:
    """A value that is the first at several offsets (a retry without idempotence) has no position to compare."""
    firsts: dict[int, int] = {}
    for position, offset in enumerate(sorted(placed.at)):
        number = placed.at[offset]
        placed.position[number] = position
        if number in placed.several:
            firsts[number] = firsts.get(number, 0) + 1
    for number, count in firsts.items():
        if count > 1:
            placed.position[number] = NONE
