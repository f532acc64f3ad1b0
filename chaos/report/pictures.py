"""The pictures of a run as SVG: the time axis, and the offsets of every operation. Pure.

Owns: what is drawn where. Every picture has the same time axis, so that one can be read under the other.
"""

import math
from collections.abc import Sequence
from html import escape

from minibroker.chaos.report.cluster_note import ClusterNote
from minibroker.chaos.report.timeline import LedPeriod, Operation, Second
from minibroker.chaos.run.chaos_run import DoneFault

WIDTH, LEFT, RIGHT = 1160, 96, 12
LANE, RATE_HEIGHT, LATENCY_HEIGHT, ROW, DOTS_HEIGHT = 17, 90, 90, 15, 190
LATENCIES_MS = (1, 10, 100, 1_000, 10_000)
LABEL_PIXELS_A_LETTER = 6.2
BROKER_COLOURS = ("#2a7de1", "#e08e0b", "#2f9e62", "#8250df", "#d1495b")
OUTCOME_COLOURS = {"ok": "#2f9e62", "fail": "#8c959f", "info": "#e08e0b", "lost": "#cf222e"}
OUTCOME_WORDS = {"ok": "acknowledged", "fail": "failed", "info": "unknown", "lost": "acknowledged and lost"}


class TimeAxis:
    """Seconds to pixels."""

    def __init__(self, end_s: float) -> None:
        self.end_s = max(end_s, 1.0)

    def x(self, at_s: float) -> float:
        inside = min(max(at_s, 0.0), self.end_s)
        return round(LEFT + (WIDTH - LEFT - RIGHT) * inside / self.end_s, 1)

    def ticks(self, bottom: int) -> str:
        step = next(each for each in (5, 10, 20, 60, 120, 300, 600, 3600) if self.end_s / each <= 14)
        parts = []
        for at_s in range(0, int(self.end_s) + 1, step):
            x = self.x(at_s)
            parts.append(f'<line class="grid" x1="{x}" x2="{x}" y1="0" y2="{bottom}"/>')
            parts.append(f'<text class="tick" x="{x}" y="{bottom + 13}" text-anchor="middle">{at_s} s</text>')
        return "".join(parts)


def time_picture(
    axis: TimeAxis,
    faults: Sequence[DoneFault],
    seconds: Sequence[Second],
    states: dict[str, list[LedPeriod]],
    notes: Sequence[ClusterNote],
) -> str:
    """Faults, load, leaders and controller over time."""
    bands = [fault for fault in faults if fault.began_s is not None and fault.ended_s is not None]
    lanes = _lanes(axis, bands)
    top = LANE * max(1, len(set(lanes))) + 8
    rate_bottom = top + RATE_HEIGHT
    latency_bottom = rate_bottom + 14 + LATENCY_HEIGHT
    rows_top = latency_bottom + 16
    bottom = rows_top + ROW * (len(states) + 1) + 4
    parts = [_svg(bottom + 20), axis.ticks(bottom)]
    for fault, lane in zip(bands, lanes, strict=True):
        parts.append(_band(axis, fault, lane, bottom))
    parts += [_rate(axis, seconds, top, rate_bottom), _latency(axis, seconds, rate_bottom + 14, latency_bottom)]
    for number, (key, several) in enumerate(states.items()):
        parts.append(_leaders(axis, key, several, rows_top + ROW * number))
    parts.append(_controllers(axis, notes, rows_top + ROW * len(states)))
    row_of = {key: rows_top + ROW * number for number, key in enumerate(states)}
    parts += [
        f'<path class="cut" d="M{axis.x(note.at_s) - 3} {row_of[note.partition] + 2}h6l-3 6z">'
        f"<title>{escape(f'{note.at_s:.1f} s, broker {note.broker}: {note.text}')}</title></path>"
        for note in notes
        if note.event == "replica_truncated" and note.partition in row_of and note.at_s >= 0
    ]
    return "".join([*parts, "</svg>"])


def _svg(height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">'


def _lanes(axis: TimeAxis, faults: Sequence[DoneFault]) -> list[int]:
    """A lane for each fault, so that no label lies on another."""
    ends: list[float] = []
    lanes = []
    for fault in faults:
        start = axis.x(fault.began_s or 0.0)
        width = max(axis.x(fault.ended_s or 0.0) - start, LABEL_PIXELS_A_LETTER * len(_label(fault)) + 6)
        lane = next((number for number, end in enumerate(ends) if end <= start), len(ends))
        ends[lane : lane + 1] = [start + width]
        lanes.append(lane)
    return lanes


def _label(fault: DoneFault) -> str:
    brokers = ",".join(map(str, fault.brokers))
    return f"{fault.planned.kind} {brokers}".strip()


def _band(axis: TimeAxis, fault: DoneFault, lane: int, bottom: int) -> str:
    x, end = axis.x(fault.began_s or 0.0), axis.x(fault.ended_s or 0.0)
    y = 2 + LANE * lane
    title = (
        f"{fault.planned.kind} of {fault.planned.target} {fault.brokers}: {fault.began_s:.1f} to {fault.ended_s:.1f} s"
    )
    width = max(end - x, 2)
    return (
        f'<g><title>{escape(title)}</title><rect class="band" x="{x}" width="{width}" y="{y}" height="{bottom - y}"/>'
        f'<rect class="bar" x="{x}" width="{width}" y="{y}" height="{LANE - 3}"/>'
        f'<text class="label" x="{x + 3}" y="{y + 11}">{escape(_label(fault))}</text></g>'
    )


def _rate(axis: TimeAxis, seconds: Sequence[Second], top: int, bottom: int) -> str:
    most = max([each.acknowledged for each in seconds], default=0) or 1
    points = " ".join(
        f"{axis.x(each.at_s + 0.5)},{round(bottom - (bottom - top) * each.acknowledged / most, 1)}" for each in seconds
    )
    first, last = axis.x(0.5), axis.x(seconds[-1].at_s + 0.5) if seconds else LEFT
    return (
        f'<polygon class="rate" points="{first},{bottom} {points} {last},{bottom}"/>'
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>'
        f'<text class="tick" x="{LEFT - 6}" y="{top + 10}" text-anchor="end">{most}/s</text>'
        f'<text class="name" x="4" y="{top + 10}">acked</text>'
    )


def _latency(axis: TimeAxis, seconds: Sequence[Second], top: int, bottom: int) -> str:
    def y(value_ms: float) -> float:
        low, high = LATENCIES_MS[0], LATENCIES_MS[-1]
        inside = min(max(value_ms, low), high)
        return round(bottom - (bottom - top) * _log10(inside / low) / _log10(high / low), 1)

    parts = [f'<text class="name" x="4" y="{top + 10}">latency</text>']
    for value in LATENCIES_MS:
        word = f"{value} ms" if value < 1000 else f"{value // 1000} s"
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value)}" y2="{y(value)}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{y(value) + 4}" text-anchor="end">{word}</text>')
    for name in ("p99_ms", "p50_ms"):
        path, is_open = [], False
        for each in seconds:
            value_ms = getattr(each, name)
            if value_ms is not None:
                path.append(f"{'L' if is_open else 'M'}{axis.x(each.at_s + 0.5)} {y(value_ms)}")
            is_open = value_ms is not None
        parts.append(f'<path class="{name[:3]}" d="{"".join(path)}"/>')
    return "".join(parts)


def _log10(value: float) -> float:
    return math.log10(max(value, 1.0))


def _leaders(axis: TimeAxis, key: str, states: Sequence[LedPeriod], y: int) -> str:
    parts = [f'<text class="name" x="4" y="{y + 11}">{escape(key)}</text>']
    for state, later in zip(states, [*states[1:], None], strict=True):
        x, end = axis.x(state.from_s), axis.x(axis.end_s if later is None else later.from_s)
        if end <= x:
            continue
        height = 3 * len(state.isr) + 2
        title = (
            f"{key} from {state.from_s:.1f} s: leader {state.leader}, epoch {state.leader_epoch}, ISR {list(state.isr)}"
        )
        parts.append(
            f'<rect x="{x}" width="{round(end - x, 1)}" y="{y + ROW - 2 - height}" height="{height}"'
            f' fill="{broker_colour(state.leader)}"><title>{escape(title)}</title></rect>'
        )
    return "".join(parts)


def _controllers(axis: TimeAxis, notes: Sequence[ClusterNote], y: int) -> str:
    elected = [note for note in notes if note.event == "controller_elected"]
    parts = [f'<text class="name" x="4" y="{y + 11}">controller</text>']
    for note, later in zip(elected, [*elected[1:], None], strict=True):
        x, end = axis.x(note.at_s), axis.x(axis.end_s if later is None else later.at_s)
        title = f"broker {note.broker} is controller from {note.at_s:.1f} s"
        parts.append(
            f'<rect x="{x}" width="{max(round(end - x, 1), 1)}" y="{y + 5}" height="8" '
            f'fill="{broker_colour(note.broker)}"><title>{escape(title)}</title></rect>'
        )
    return "".join(parts)


def broker_colour(broker: int | None) -> str:
    return "#d0d7de" if broker is None or broker < 1 else BROKER_COLOURS[(broker - 1) % len(BROKER_COLOURS)]


def offsets_picture(
    axis: TimeAxis,
    key: str,
    operations: Sequence[Operation],
    lost: set[tuple[str, str]],
    reads: Sequence[tuple[float, int]],
) -> str:
    """Every send of a partition as a dot: its offset when it was acknowledged. A send without an offset stands below
    the axis, in a row of its own outcome. `reads`: how far readers were, as (seconds, offset)."""
    top, bottom = 6, DOTS_HEIGHT
    highest = max([each.offset for each in operations if each.offset is not None], default=0) or 1
    rows = {"fail": bottom + 9, "info": bottom + 17}
    dots: dict[str, list[str]] = {}
    for each in operations:
        outcome = "lost" if (each.key, each.value) in lost else each.outcome
        y = rows.get(outcome, bottom) if each.offset is None else bottom - (bottom - top) * each.offset / highest
        dots.setdefault(outcome, []).append(f"M{axis.x(each.done_s)} {round(y, 1)}h0")
    end = bottom + 24
    line = "".join(
        f"{'L' if number else 'M'}{axis.x(at_s)} {round(bottom - (bottom - top) * min(offset, highest) / highest, 1)}"
        for number, (at_s, offset) in enumerate(reads)
    )
    parts = [_svg(end + 18), axis.ticks(end), f'<path class="read" d="{line}"/>']
    parts.append(f'<text class="tick" x="{LEFT - 6}" y="{top + 8}" text-anchor="end">{highest}</text>')
    parts.append(f'<text class="name" x="4" y="{top + 8}">{escape(key)}</text>')
    parts += [
        f'<text class="tick" x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{name}</text>'
        for name, y in (("failed", rows["fail"]), ("unknown", rows["info"]))
    ]
    for outcome in ("ok", "fail", "info", "lost"):
        width = 6 if outcome == "lost" else 2.2
        colour = OUTCOME_COLOURS[outcome]
        parts.append(
            f'<path d="{"".join(dots.get(outcome, []))}" stroke="{colour}" stroke-width="{width}"'
            ' stroke-linecap="round" fill="none"/>'
        )
    return "".join([*parts, "</svg>"])
