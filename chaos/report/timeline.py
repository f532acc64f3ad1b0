"""What happened when: rates, latencies, leaders and in-sync replicas over the time of a run. Pure.

Owns: everything that is computed from the history and the events of the brokers for the pictures and the fault table.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from msgspec import Struct

from minibroker.chaos.history.client_history import HistoryEvent
from minibroker.chaos.report.cluster_note import ClusterNote

EARLIER_S = 0.3
"""A gap that begins so shortly before the next fault is that one's."""
AFTER_S = 8.0
"""A fault's effect is looked for so long after its end."""


class Operation(Struct, frozen=True):
    """A send, with its outcome."""

    key: str
    value: str
    invoked_s: float
    done_s: float
    outcome: str
    """ok, fail or info."""
    offset: int | None


class Second(Struct, frozen=True):
    """One second of load."""

    at_s: int
    acknowledged: int
    p50_ms: float | None
    p99_ms: float | None


class LedPeriod(Struct, frozen=True):
    """A partition's leader, epoch and ISR from one change to the next."""

    from_s: float
    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]


class FaultEffect(Struct, frozen=True):
    """What a fault did to the load."""

    gap_s: float
    """The longest time without an acknowledgement in one partition, from its beginning to some seconds after its
    end."""
    gap_key: str | None
    full_isr_s: float | None
    """From the beginning of its end until every partition had its full ISR; None if that did not come before the next
    fault."""


def operations_of(history: Iterable[HistoryEvent]) -> list[Operation]:
    """Each send with an outcome, in the order of the outcomes."""
    invoked: dict[int, float] = {}
    found = []
    for event in history:
        if event.f != "send":
            continue
        if event.type == "invoke":
            invoked[event.index] = event.time_ns / 1e9
            continue
        done_s = event.time_ns / 1e9
        began_s = invoked.pop(event.operation, done_s) if event.operation is not None else done_s
        found += [Operation(each.key, each.value, began_s, done_s, event.type, each.offset) for each in event.sent]
    return found


def seconds_of(operations: Iterable[Operation], end_s: float) -> list[Second]:
    """Of the whole run: a second without any acknowledgement is there, too."""
    latencies: dict[int, list[float]] = defaultdict(list)
    for each in operations:
        if each.outcome == "ok":
            latencies[int(each.done_s)].append((each.done_s - each.invoked_s) * 1000)
    return [_second(at_s, sorted(latencies.get(at_s, ()))) for at_s in range(int(end_s) + 1)]


def _second(at_s: int, latencies: Sequence[float]) -> Second:
    if not latencies:
        return Second(at_s, 0, None, None)
    last = len(latencies) - 1
    return Second(at_s, len(latencies), latencies[last // 2], latencies[round(last * 0.99)])


def leaderships(notes: Iterable[ClusterNote]) -> dict[str, list[LedPeriod]]:
    """By partition, in the order of time."""
    found: dict[str, list[LedPeriod]] = defaultdict(list)
    for note in notes:
        if note.partition is None:
            continue
        before = found[note.partition][-1] if found[note.partition] else None
        if note.event == "leadership_changed":
            fields = note.fields
            state = LedPeriod(note.at_s, fields["leader"], fields["leader_epoch"], tuple(sorted(fields["isr"])))
        elif note.event == "isr_changed" and before is not None:
            state = LedPeriod(note.at_s, before.leader, before.leader_epoch, tuple(sorted(note.fields["after"])))
        else:
            continue
        found[note.partition].append(state)
    return dict(sorted(found.items()))


def gaps_of(operations: Iterable[Operation], began_s: float, ended_s: float) -> tuple[float, str | None]:
    """The longest time without an acknowledgement that touches this period, counted from its beginning, and its
    partition. What was silent before the period was another fault's."""
    times: dict[str, list[float]] = defaultdict(list)
    for each in operations:
        if each.outcome == "ok":
            times[each.key].append(each.done_s)
    worst: tuple[float, str | None] = (0.0, None)
    for key, moments in sorted(times.items()):
        for one, other in pairwise(moments):
            since_s = max(one, began_s)
            if one + EARLIER_S < ended_s and other - since_s > worst[0]:
                worst = (other - since_s, key)
    return worst


def full_isr_after(states: dict[str, list[LedPeriod]], after_s: float, before_s: float, replicas: int) -> float | None:
    """From when on every partition had its full ISR until `before_s`, at `after_s` or later; None if one lacked a
    replica then. A death that is noticed only after `after_s` counts."""
    changes = [state.from_s for each in states.values() for state in each]
    full_since: float | None = None
    for at_s in sorted({after_s, *(at_s for at_s in changes if after_s < at_s < before_s)}):
        is_full = all(len(at(each, at_s).isr) >= replicas for each in states.values())
        if not is_full:
            full_since = None
        elif full_since is None:
            full_since = at_s
    return full_since


def at(states: Sequence[LedPeriod], at_s: float) -> LedPeriod:
    """The state then."""
    known = [state for state in states if state.from_s <= at_s]
    return known[-1] if known else states[0]
