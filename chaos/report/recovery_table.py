"""What each kind of fault cost, over several runs: the table of docs/CHAOS.md. Pure: gets reports, gives rows.

Owns: which faults are measured, and the sums. A fault that lasted while another did is counted, but its times would be
those of both, so they are left out.
"""

import re
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal, NamedTuple

import msgspec
from msgspec import Struct

from minibroker.chaos.report.timeline import FaultEffect
from minibroker.chaos.run.chaos_run import DoneFault
from minibroker.chaos.run.verdict import Verdict

NAME = re.compile("[a-z0-9-]{1,60}")
"""Of a kind of faults."""
TIME_S_MAX = 1e6
"""Of an effect; a run lasts a day at most."""


class BadReport(ValueError):
    """A part of a sentence."""


class ReportedRun(Struct, frozen=True, kw_only=True):
    """What the table needs of a report.json."""

    backend: Literal["processes", "compose", "simulated"]
    verdict: Verdict
    faults: tuple[DoneFault, ...]
    effects: tuple[FaultEffect | None, ...]


class Spread(Struct, frozen=True):
    """Of some times, in seconds."""

    median_s: float
    worst_s: float


class KindRecovery(Struct, frozen=True, kw_only=True):
    """Of one kind of fault on one back end."""

    kind: str
    backend: str
    runs: int
    """Those in which it came."""
    not_cleared: int
    """Of these runs: with another verdict, whichever fault was the reason."""
    times: int
    """How often it came."""
    measured: int
    """Of these: while no other fault lasted."""
    gap: Spread | None
    """The longest time without an acknowledgement in one partition."""
    full_isr: Spread | None
    """From the beginning of its end until every replica was in sync."""
    cut_short: int
    """Of the measured: the next fault came before every replica was in sync."""


class _Came(NamedTuple):
    """A fault of a run, by its number, and what it did."""

    run: ReportedRun
    number: int
    effect: FaultEffect


def parse_outcome(content: bytes) -> ReportedRun:
    """Out of report.json. Raises BadReport."""
    try:
        found = msgspec.json.decode(content, type=ReportedRun)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadReport(f"is no report of a chaos run ({error})") from None
    if len(found.faults) != len(found.effects):
        raise BadReport("is no report of a chaos run (it has not one effect for each fault)")
    for number, (fault, effect) in enumerate(zip(found.faults, found.effects, strict=True), start=1):
        problem = _problem(fault, effect)
        if problem is not None:
            raise BadReport(f"is no report of a chaos run (fault {number} {problem})")
    return found


def _problem(fault: DoneFault, effect: FaultEffect | None) -> str | None:
    """Why no run writes this; a part of a sentence. A kind may be one of another version, but it is a name."""
    if NAME.fullmatch(fault.planned.kind) is None:
        return f"has the kind {fault.planned.kind!r:.60}"
    if effect is None:
        return None
    if fault.began_s is None or fault.ended_s is None:
        return "has an effect, and no beginning or no end"
    if not all(0 <= each <= TIME_S_MAX for each in (effect.gap_s, effect.full_isr_s or 0.0)):
        return "has an effect that lasts no time that a run takes"
    return None


def recovery_table(outcomes: Iterable[ReportedRun]) -> list[KindRecovery]:
    """One row for each kind and back end that came, sorted."""
    by_kind: dict[tuple[str, str], list[_Came]] = {}
    for outcome in outcomes:
        for number, effect in enumerate(outcome.effects):
            if effect is not None:
                place = (outcome.faults[number].planned.kind, outcome.backend)
                by_kind.setdefault(place, []).append(_Came(outcome, number, effect))
    return [_row(kind, backend, found) for (kind, backend), found in sorted(by_kind.items())]


def _row(kind: str, backend: str, found: Sequence[_Came]) -> KindRecovery:
    runs = {id(each.run): each.run for each in found}
    effects = [each.effect for each in found if _was_alone(each.run.faults, each.number)]
    full = [effect.full_isr_s for effect in effects if effect.full_isr_s is not None]
    return KindRecovery(
        kind=kind,
        backend=backend,
        runs=len(runs),
        not_cleared=sum(run.verdict.outcome != "cleared" for run in runs.values()),
        times=len(found),
        measured=len(effects),
        gap=_spread([effect.gap_s for effect in effects]),
        full_isr=_spread(full),
        cut_short=len(effects) - len(full),
    )


def _was_alone(faults: Sequence[DoneFault], number: int) -> bool:
    began_s, ended_s = faults[number].began_s, faults[number].ended_s
    assert began_s is not None and ended_s is not None, "it has an effect"
    return not any(
        other.began_s < ended_s and began_s < other.ended_s
        for place, other in enumerate(faults)
        if place != number and other.began_s is not None and other.ended_s is not None
    )


def _spread(times_s: Sequence[float]) -> Spread | None:
    return Spread(round(median(times_s), 2), round(max(times_s), 2)) if times_s else None


HEADER = ("fault", "on", "runs", "times", "no acknowledgement: median, worst", "full ISR: median, worst", "cut short")


def cells(row: KindRecovery) -> tuple[str, ...]:
    """As text, in the order of the header."""
    alone = "" if row.measured == row.times else f" ({row.measured} alone)"
    verdict = "" if not row.not_cleared else f" ({row.not_cleared} not cleared)"
    numbers = f"{row.runs}{verdict}", f"{row.times}{alone}"
    return (row.kind, row.backend, *numbers, _seconds(row.gap), _seconds(row.full_isr), str(row.cut_short))


def _seconds(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.median_s:.2f}, {spread.worst_s:.2f} s"


def markdown(rows: Iterable[KindRecovery]) -> str:
    """For a page."""
    lines = [HEADER, ("---",) * len(HEADER)]
    lines += [(f"`{row.kind}`", *cells(row)[1:]) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
