"""The anomalies in a history of client operations: Jepsen's checker for logs, and the checks that dense offsets add.

Owns: the two passes over a history. The first makes the index (what stands where), the second gives each event to the
checks of order. Nothing keeps the events, so a history may be longer than memory. Leaves to others: each check, and
whatever clients cannot have seen. An unknown position counts as consistent, so a short history never raises a false
alarm.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.history.history_file import BadHistory
from minibroker.chaos.history.history_index import HistoryIndex
from minibroker.chaos.history.placement import PLACEMENT_CHECKS
from minibroker.chaos.history.poll_order import HighWatermarks, OffsetGaps, PollSteps
from minibroker.chaos.history.promise import Anomaly, Found, Promise
from minibroker.chaos.history.promises_of_one import InventedRecords, LostInItsEpoch
from minibroker.chaos.history.real_time_lag import RealTimeLag
from minibroker.chaos.history.send_order import FirstCopies, OwnOrder, RealTimeOrder, TwoWriters

PLAIN = Promise()


class EventCheck(Protocol):
    """Sees the whole history, event by event."""

    def take(self, event: HistoryEvent) -> None: ...


class Judgement(Struct, frozen=True, kw_only=True):
    """What a history shows."""

    anomalies: tuple[Anomaly, ...]
    """Worst first, a few of each kind and partition."""
    counts: Mapping[str, int]
    """All of them, by name."""
    operations: int
    lag_s: float
    """The longest time between the moment at which a record was known to be there and the poll in which readers first
    passed it: how far behind the readers were, at worst."""


def check_history(events: Sequence[HistoryEvent], promise: Promise = PLAIN) -> list[Anomaly]:
    """All anomalies of a history in memory, worst first, a few of each kind."""
    return list(judge_history(lambda: events, promise).anomalies)


def judge_history(read: Callable[[], Iterable[HistoryEvent]], promise: Promise = PLAIN) -> Judgement:
    """`read` begins at the first event each time it is called. Raises BadHistory."""
    found = Found()
    index = HistoryIndex(read(), promise.last_reader)
    if promise.values_are_unique and index.sent_twice is not None:
        raise BadHistory(
            f"{index.sent_twice}, and records are told apart by their values: give each send a value of its own"
        )
    lost_in_its_epoch = LostInItsEpoch(index, promise, found)
    lag = RealTimeLag()
    sends: list[EventCheck] = [check(index, promise, found) for check in (OwnOrder, FirstCopies, TwoWriters)]
    polls: list[EventCheck] = [check(index, promise, found) for check in (PollSteps, OffsetGaps, HighWatermarks)]
    both: list[EventCheck] = [check(index, promise, found) for check in (RealTimeOrder, InventedRecords)]
    takers = {"send": [*sends, *both, lost_in_its_epoch, lag], "poll": [*polls, *both, lost_in_its_epoch, lag]}
    takers["assign"] = [*polls]
    takers_of = {f: [each.take for each in checks] for f, checks in takers.items()}
    operations = 0
    for event in read():
        operations += event.type == "invoke" or event.operation is None
        for take in takers_of.get(event.f, ()):
            take(event)
    lost_in_its_epoch.finish()
    for check in PLACEMENT_CHECKS:
        check(index, promise, found)
    return Judgement(
        anomalies=tuple(found.worst_first()), counts=dict(found.counts), operations=operations, lag_s=lag.worst_s
    )
