"""Order as clients can know it: of calls that follow each other in time, and of one producer's calls.

Owns: each check that compares the order of invocations with the order of offsets. Pure functions of the history.
"""

from collections import defaultdict
from collections.abc import Iterator

from minibroker.chaos.history.view import Anomaly, HistoryView, Promise


def real_time_order(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """A record stands behind each record of its partition that was acknowledged with acks=all, or read, before it was
    sent: offsets are linearizable. This holds for each of its copies, whichever producer sent it."""
    committed: dict[str, tuple[int, str]] = {}
    places = _places(view)
    for event in view.events:
        if event.f == "send" and event.type == "invoke":
            for sent in event.sent:
                before, known = committed.get(sent.key, (-1, ""))
                offset = min(places[sent.key].get(sent.value, [before + 1]))
                if offset <= before:
                    facts = (f"{known} before {event.process} sent {sent.value!r:.60}", f"which stands at {offset}")
                    yield Anomaly("real-time-order", sent.key, "a record stands in front of an earlier one", facts)
        elif event.type == "ok":
            for sent in event.sent:
                if sent.offset is not None and sent.offset > committed.get(sent.key, (-1, ""))[0]:
                    fact = f"offset {sent.offset} was acknowledged to {event.process}"
                    committed[sent.key] = sent.offset, fact
            for record in event.polled:
                if record.offset > committed.get(record.key, (-1, ""))[0]:
                    committed[record.key] = record.offset, f"offset {record.offset} was read by {event.process}"


def first_copies_in_order(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """A producer without idempotence may write a record twice, but has one batch of a partition in flight: the first
    copies of its acknowledged records stand in the order of its send calls. Records that failed may come late."""
    acknowledged = {sent.value for event in view.sends for sent in event.sent if sent.offset is not None}
    places = _places(view, sends=False)
    last: dict[tuple[str, str], tuple[int, str]] = {}
    for event in view.events:
        if event.f != "send" or event.type != "invoke" or event.process not in promise.first_copies_in_order:
            continue
        for sent in event.sent:
            copies = places[sent.key].get(sent.value)
            if copies is None or sent.value not in acknowledged:
                continue
            before, value = last.get((event.process, sent.key), (-1, ""))
            if min(copies) <= before:
                facts = (
                    f"{event.process} sent {value!r:.60} first: it stands at {before}",
                    f"{sent.value!r:.60} at {copies}",
                )
                yield Anomaly("first-copies-out-of-order", sent.key, "records stand in another order than sent", facts)
            last[event.process, sent.key] = min(copies), sent.value


def _places(view: HistoryView, sends: bool = True) -> dict[str, dict[str, list[int]]]:
    """Key: value: the offsets at which readers saw it, with `sends` also those that acks=all acknowledged."""
    places: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for event in view.completions:
        for record in event.polled:
            places[record.key][record.value].append(record.offset)
        for sent in event.sent if sends and event.type == "ok" else ():
            if sent.offset is not None:
                places[sent.key][sent.value].append(sent.offset)
    return places
