"""What readers saw, one poll after another. Pure.

Owns: each check of the order, the gaps and the high watermarks that one reader meets, event by event.
"""

from minibroker.chaos.history.client_history import Answered, HistoryEvent
from minibroker.chaos.history.history_index import HistoryIndex
from minibroker.chaos.history.promise import Found, Promise


class PollSteps:
    """Between two polls of one reader, and within one poll, records come in log order, and none is left out."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._index = index
        self._promise = promise
        self._found = found
        self._last: dict[str, dict[str, int]] = {}

    def take(self, event: HistoryEvent) -> None:
        if event.type == "invoke":
            return
        if event.f == "assign":
            _forget(self._last, event)
        if event.f != "poll" or event.type != "ok" or not event.polled:
            return
        last = self._last.setdefault(event.process, {})
        inside: set[str] = set()
        for record in event.polled:
            placed = self._index.partitions[record.key]
            number = placed.number_of[record.value]
            before = last.get(record.key)
            step = 1 if before is None else placed.delta(before, number)
            if step != 1:
                assert before is not None
                prefix = "int-" if record.key in inside else ""
                fact = f"{event.process} read {placed.name(before)}, then {placed.name(number)}"
                if step < 1:
                    self._found.add(f"{prefix}nonmonotonic-poll", record.key, f"went back by {1 - step}", fact)
                elif record.key not in self._promise.deleting:
                    self._found.add(f"{prefix}poll-skip", record.key, f"{step - 1} records were left out", fact)
            inside.add(record.key)
            last[record.key] = number


class OffsetGaps:
    """Offsets are dense: the next record a reader sees has the next offset."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._promise = promise
        self._found = found
        self._last: dict[str, dict[str, int]] = {}

    def take(self, event: HistoryEvent) -> None:
        if event.type == "invoke":
            return
        if event.f == "assign":
            _forget(self._last, event)
        if event.type != "ok" or not event.polled:
            return
        last = self._last.setdefault(event.process, {})
        for record in event.polled:
            before = last.get(record.key)
            if before is not None and record.offset != before + 1:
                skips = record.offset > before + 1
                if not skips or record.key not in self._promise.deleting:
                    fact = f"{event.process} read offset {before}, then {record.offset}"
                    self._found.add("offset-gap", record.key, "a reader's offsets are not consecutive", fact)
            last[record.key] = record.offset


class HighWatermarks:
    """I22: no reader sees a record at or above the high watermark of the leader that served it. I11: a reader never
    sees the high watermark of a partition fall within an epoch. A new leader knows less than the one before at first,
    and may answer with a lower one, under its own epoch. An answer without an epoch, or of which a reader learns late,
    shows nothing about the order: only answers of one epoch to one reader are compared."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._found = found
        self._last: dict[tuple[str, str, int], int] = {}

    def take(self, event: HistoryEvent) -> None:
        if event.f != "poll" or event.type == "invoke":
            return
        for answer in event.answers:
            self._take_answer(event.process, answer)
        if event.high_watermark is not None:
            self._take_one_mark(event, event.high_watermark)

    def _take_answer(self, process: str, answer: Answered) -> None:
        mark = answer.high_watermark
        if answer.end_offset is not None and answer.end_offset > mark:
            facts = (
                f"broker {answer.broker} sent {process} records up to offset {answer.end_offset - 1}",
                f"the high watermark of that answer was {mark}",
            )
            self._found.add("beyond-high-watermark", answer.key, "a record was read before it was committed", *facts)
        if answer.leader_epoch is not None:
            self._follow(process, answer.key, answer.leader_epoch, mark)

    def _take_one_mark(self, event: HistoryEvent, mark: int) -> None:
        """Of a program that knows one high watermark for all that the poll returned."""
        for record in event.polled:
            if record.offset >= mark:
                facts = (f"{event.process} read offset {record.offset}", f"the high watermark was {mark}")
                text = "a record was read before it was committed"
                self._found.add("beyond-high-watermark", record.key, text, *facts)
        if event.leader_epoch is None:
            return
        for key in sorted({record.key for record in event.polled}):
            self._follow(event.process, key, event.leader_epoch, mark)

    def _follow(self, process: str, key: str, leader_epoch: int, mark: int) -> None:
        before = self._last.get((process, key, leader_epoch), 0)
        if mark < before:
            fact = f"{process} saw {before}, then {mark}"
            text = f"the high watermark went back in epoch {leader_epoch}"
            self._found.add("high-watermark-falls", key, text, fact)
        self._last[process, key, leader_epoch] = mark


def _forget(last: dict[str, dict[str, int]], event: HistoryEvent) -> None:
    """The reader has moved: what it reads next there need not follow what it read before."""
    for key in event.moved:
        last.get(event.process, {}).pop(key, None)
    if not event.moved:
        last.pop(event.process, None)
