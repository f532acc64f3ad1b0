"""Order as clients can know it: of calls that follow each other in time, and of one producer's calls. Pure.

Owns: each check that compares the order of sends with the order of offsets, event by event. The index holds what stands
where, so nothing is looked for twice.
"""

from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.history.history_index import NONE, HistoryIndex
from minibroker.chaos.history.promise import Found, Promise


class RealTimeOrder:
    """A record stands behind each record of its partition that was acknowledged with acks=all, or read, before it was
    sent: offsets are linearizable. This holds for each of its copies, whichever producer sent it."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._index = index
        self._found = found
        self._committed: dict[str, tuple[int, str]] = {}

    def take(self, event: HistoryEvent) -> None:
        if event.type == "invoke":
            for sent in event.sent:
                placed = self._index.partitions[sent.key]
                offset = placed.first_known[placed.number_of[sent.value]]
                before, known = self._committed.get(sent.key, (NONE, ""))
                if NONE != offset <= before:
                    facts = (f"{known} before {event.process} sent {sent.value!r:.60}", f"which stands at {offset}")
                    self._found.add("real-time-order", sent.key, "a record stands in front of an earlier one", *facts)
        elif event.type == "ok":
            for sent in event.sent:
                if sent.offset is not None:
                    self._raise(sent.key, sent.offset, "was acknowledged to", event.process)
            for record in event.polled:
                self._raise(record.key, record.offset, "was read by", event.process)

    def _raise(self, key: str, offset: int, how: str, process: str) -> None:
        if offset > self._committed.get(key, (NONE, ""))[0]:
            self._committed[key] = offset, f"offset {offset} {how} {process}"


class OwnOrder:
    """Records of one idempotent process stand in the order of its send calls, even if the calls overlap."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._index = index
        self._promise = promise
        self._found = found
        self._last: dict[tuple[str, str], tuple[int, int]] = {}

    def take(self, event: HistoryEvent) -> None:
        is_foreign = event.f == "send" and event.type != "invoke" and event.operation is None
        if not (is_foreign or (event.f == "send" and event.type == "invoke")):
            return
        if event.process not in self._promise.in_order:
            return
        for sent in event.sent:
            placed = self._index.partitions[sent.key]
            number = placed.number_of[sent.value]
            if placed.position[number] == NONE:
                continue
            before, operation = self._last.get((event.process, sent.key), (NONE, NONE))
            if before != NONE and placed.delta(before, number) < 1:
                name = "int-nonmonotonic-send" if operation == event.index else "nonmonotonic-send"
                fact = f"{event.process} sent {placed.name(before)} first, then {placed.name(number)}"
                self._found.add(name, sent.key, "records stand in another order than that of the sends", fact)
            self._last[event.process, sent.key] = number, event.index


class FirstCopies:
    """A producer without idempotence may write a record twice, but has one batch of a partition in flight: the first
    copies of its acknowledged records stand in the order of its send calls. Records that failed may come late."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._index = index
        self._promise = promise
        self._found = found
        self._last: dict[tuple[str, str], tuple[int, int]] = {}

    def take(self, event: HistoryEvent) -> None:
        if event.f != "send" or event.type != "invoke" or event.process not in self._promise.first_copies_in_order:
            return
        for sent in event.sent:
            placed = self._index.partitions[sent.key]
            number = placed.number_of[sent.value]
            copy = placed.first_place[number]
            if copy == NONE or placed.offset[number] == NONE:
                continue
            before, value = self._last.get((event.process, sent.key), (NONE, NONE))
            if copy <= before:
                facts = (
                    f"{event.process} sent {placed.name(value)} first: it stands at {before}",
                    f"{placed.name(number)} stands at {copy}",
                )
                text = "records stand in another order than sent"
                self._found.add("first-copies-out-of-order", sent.key, text, *facts)
            self._last[event.process, sent.key] = copy, number


class TwoWriters:
    """I17, I18: only one broker acknowledges in one epoch of a partition."""

    def __init__(self, index: HistoryIndex, promise: Promise, found: Found) -> None:
        self._found = found
        self._brokers: dict[tuple[str, int], int] = {}

    def take(self, event: HistoryEvent) -> None:
        if event.f != "send" or event.type != "ok" or event.broker is None or event.leader_epoch is None:
            return
        for sent in event.sent:
            known = self._brokers.setdefault((sent.key, event.leader_epoch), event.broker)
            if known != event.broker:
                facts = (f"broker {known} acknowledged in epoch {event.leader_epoch}", f"broker {event.broker}, too")
                self._found.add("two-writers", sent.key, "two brokers acknowledged in one epoch", *facts)
