"""The anomalies in a history of client operations: Jepsen's checker for logs, and the checks that dense offsets add.

Owns: one check for each anomaly, each a pure function of the history. Leaves to others: whatever clients cannot have
seen. An unknown position counts as consistent, so a short history never raises a false alarm.

Sources: Jepsen's workload for Kafka (its names are kept). The checks from `offset-gap` on also rely on offsets without
gaps and on leader epochs that clients see.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.history.order import first_copies_in_order, real_time_order
from minibroker.chaos.history.promises_of_one import invented_records, lost_in_its_epoch
from minibroker.chaos.history.view import Anomaly, HistoryView, Promise

SHOWN_MAX = 8
"""Findings shown of each anomaly and partition."""
PLAIN = Promise()


def check_history(events: Iterable[HistoryEvent], promise: Promise = PLAIN) -> list[Anomaly]:
    """All anomalies, worst first, a few of each kind."""
    view = HistoryView(events)
    found: list[Anomaly] = []
    for test in _TESTS:
        shown: dict[str, int] = defaultdict(int)
        for each in test(view, promise):
            shown[each.key] += 1
            if shown[each.key] <= SHOWN_MAX:
                found.append(each)
    return found


# ------------------------------------------------------------------------------------------------ what became of writes
def _inconsistent_offsets(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    for key, log in sorted(view.log.items()):
        for offset, values in sorted(log.items()):
            if len(values) > 1:
                facts = tuple(f"offset {offset} held {value!r:.60}" for value in values)
                yield Anomaly("inconsistent-offsets", key, f"offset {offset} held {len(values)} values", facts)


def _aborted_reads(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    for event in view.sends:
        for sent in event.sent if event.type == "fail" else ():
            if sent.value in view.read_ok[sent.key]:
                facts = (f"{event.process} got an error for {sent.value!r:.60}: {event.error}", "a reader saw it")
                yield Anomaly("aborted-read", sent.key, "a record was read although its write failed", facts)


def _lost_writes(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """Readers passed their offsets, and no reader ever saw them."""
    for key, log in sorted(view.log.items()):
        offsets = sorted(log)
        read = view.read_ok[key]
        bound = max((at for at, offset in enumerate(offsets) if read & log[offset].keys()), default=-1)
        last_seen = {value: at for at, offset in enumerate(offsets) for value in log[offset]}
        for value, at in sorted(last_seen.items(), key=lambda item: item[1]):
            writer = view.writer.get(value)
            if at > bound or value in read or writer is None or not view.is_committed(writer):
                continue
            if offsets[at] >= promise.log_starts.get(key, 0):
                facts = (f"{writer.process} got offset {offsets[at]} for {value!r:.60}", "readers passed that offset")
                yield Anomaly("lost-write", key, "an acknowledged record was never read", facts)


def _unseen(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    if not promise.is_final:
        return
    for event in view.sends:
        for sent in event.sent if event.type == "ok" else ():
            start = promise.log_starts.get(sent.key, 0)
            gone = sent.offset is not None and sent.offset < start  # without an offset, retention is no excuse
            if not gone and sent.value not in view.read_ok[sent.key]:
                facts = (f"{event.process} got offset {sent.offset} for {sent.value!r:.60}", "no reader ever saw it")
                yield Anomaly("unseen", sent.key, "an acknowledged record is missing at the end", facts)


def _duplicates(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    for key, log in sorted(view.log.items()):
        places: dict[str, list[int]] = defaultdict(list)
        for offset in sorted(log):
            for value in log[offset]:
                places[value].append(offset)
        for value, offsets in sorted(places.items()):
            writer = view.writer.get(value)
            if len(offsets) > 1 and writer is not None and writer.process in promise.in_order:
                yield Anomaly(
                    "duplicate", key, f"{value!r:.60} stands at {offsets}", (f"{writer.process} is idempotent",)
                )


def _nonmonotonic_sends(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """Records of one process stand in the order of its send calls, even if the calls overlap."""
    last: dict[tuple[str, str], tuple[str, int]] = {}
    for event in view.events:
        if event.f != "send" or event.type != "invoke" or event.process not in promise.in_order:
            continue
        for sent in event.sent:
            if sent.value not in view.position.get(sent.key, {}):
                continue
            before, operation = last.get((event.process, sent.key), (None, -1))
            if before is not None and view.delta(sent.key, before, sent.value) < 1:
                name = "int-nonmonotonic-send" if operation == event.index else "nonmonotonic-send"
                facts = (f"{event.process} sent {before!r:.60} first, then {sent.value!r:.60}",)
                yield Anomaly(name, sent.key, "records stand in another order than that of the sends", facts)
            last[event.process, sent.key] = sent.value, event.index


# -------------------------------------------------------------------------------------------------- what readers saw
def _poll_steps(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """Between two polls of one reader, and within one poll, records come in log order, and none is left out."""
    last: dict[tuple[str, str], str] = {}
    for event in view.completions:
        if event.f == "assign":
            last = {at: value for at, value in last.items() if at[0] != event.process}
        if event.f != "poll" or event.type != "ok":
            continue
        inside: set[str] = set()
        for record in event.polled:
            before = last.get((event.process, record.key))
            prefix = "int-" if record.key in inside else ""
            step = 1 if before is None else view.delta(record.key, before, record.value)
            facts = (f"{event.process} read {before!r:.60}, then {record.value!r:.60}",)
            if step > 1 and record.key not in promise.deleting:
                yield Anomaly(f"{prefix}poll-skip", record.key, f"{step - 1} records were left out", facts)
            elif step < 1:
                yield Anomaly(f"{prefix}nonmonotonic-poll", record.key, f"went back by {1 - step}", facts)
            inside.add(record.key)
            last[event.process, record.key] = record.value


def _offset_gaps(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """Offsets are dense: the next record a reader sees has the next offset."""
    last: dict[tuple[str, str], int] = {}
    for event in view.completions:
        if event.f == "assign":
            last = {at: offset for at, offset in last.items() if at[0] != event.process}
        for record in event.polled if event.type == "ok" else ():
            before = last.get((event.process, record.key))
            skips = before is not None and record.offset > before + 1 and record.key not in promise.deleting
            if before is not None and (skips or record.offset <= before):
                facts = (f"{event.process} read offset {before}, then {record.offset}",)
                yield Anomaly("offset-gap", record.key, "a reader's offsets are not consecutive", facts)
            last[event.process, record.key] = record.offset


def _falling_epochs(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """I12: the leader epoch never falls along the offsets of a log."""
    epochs: dict[str, dict[int, int]] = defaultdict(dict)
    for event in view.completions:
        for record in event.polled:
            if record.leader_epoch is not None:
                epochs[record.key][record.offset] = record.leader_epoch
    for key, known in sorted(epochs.items()):
        for (offset, epoch), (later, its_epoch) in pairwise(sorted(known.items())):
            if its_epoch < epoch:
                facts = (f"offset {offset} has epoch {epoch}", f"offset {later} has epoch {its_epoch}")
                yield Anomaly("epoch-falls", key, "the leader epoch falls along the log", facts)


def _two_writers(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """I17, I18: only one broker acknowledges in one epoch of a partition."""
    brokers: dict[tuple[str, int], int] = {}
    for event in view.sends:
        if event.type != "ok" or event.broker is None or event.leader_epoch is None:
            continue
        for sent in event.sent:
            known = brokers.setdefault((sent.key, event.leader_epoch), event.broker)
            if known != event.broker:
                facts = (f"broker {known} acknowledged in epoch {event.leader_epoch}", f"broker {event.broker}, too")
                yield Anomaly("two-writers", sent.key, "two brokers acknowledged in one epoch", facts)


def _beyond_high_watermark(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """I22: no reader sees a record at or above the high watermark of the leader that served it."""
    for event in view.polls:
        for record in event.polled if event.high_watermark is not None else ():
            assert event.high_watermark is not None
            if record.offset >= event.high_watermark:
                facts = (
                    f"{event.process} read offset {record.offset}",
                    f"the high watermark was {event.high_watermark}",
                )
                yield Anomaly("beyond-high-watermark", record.key, "a record was read before it was committed", facts)


def _falling_high_watermarks(view: HistoryView, promise: Promise) -> Iterator[Anomaly]:
    """I23: a client never sees the high watermark of a partition fall within an epoch."""
    last: dict[tuple[str, str, int], int] = {}
    for event in view.polls:
        if event.high_watermark is None or event.leader_epoch is None:
            continue
        for key in sorted({record.key for record in event.polled}):
            at = (event.process, key, event.leader_epoch)
            if event.high_watermark < last.get(at, 0):
                facts = (f"{event.process} saw {last[at]}, then {event.high_watermark}",)
                yield Anomaly(
                    "high-watermark-falls", key, f"the high watermark went back in epoch {event.leader_epoch}", facts
                )
            last[at] = event.high_watermark


_TESTS = (
    _inconsistent_offsets,
    _aborted_reads,
    _lost_writes,
    _unseen,
    _duplicates,
    _nonmonotonic_sends,
    real_time_order,
    first_copies_in_order,
    invented_records,
    lost_in_its_epoch,
    _poll_steps,
    _offset_gaps,
    _falling_epochs,
    _two_writers,
    _beyond_high_watermark,
    _falling_high_watermarks,
)
