"""The ratios as an SVG picture: a bar a case on a logarithmic axis, with its 95 % bounds. Pure.

Ratios are inverted where necessary, so that right of the middle always means that minibroker is better, for latencies
too.
"""

import math
from html import escape

import msgspec

from minibroker.bench.document import Document
from minibroker.bench.report import ReportRow, rows_of

WIDTH, LEFT, RIGHT = 900, 330, 70
ROW_HEIGHT, BAR_HEIGHT, TOP, BOTTOM = 24, 13, 56, 34
OURS_COLOUR, THEIRS_COLOUR, INK, GRID = "#2a7de1", "#d1495b", "#333", "#ddd"
TICKS = (0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64)


class Bar(msgspec.Struct, frozen=True):
    """How many times better, with both bounds."""

    title: str
    times: float
    lower: float
    upper: float


def bars_of(document: Document) -> list[Bar]:
    return [_bar(row) for row in rows_of(document) if row.ratio is not None and row.ratio.lowest > 0]


def _bar(row: ReportRow) -> Bar:
    assert row.ratio is not None
    if row.higher_is_better:
        return Bar(row.title, row.ratio.median, row.ratio.lower, row.ratio.upper)
    return Bar(row.title, 1 / row.ratio.median, 1 / row.ratio.upper, 1 / row.ratio.lower)


def render(document: Document) -> str:
    """The whole file."""
    bars = bars_of(document)
    ends = [end for bar in bars for end in (bar.lower, bar.upper)]
    low = max((tick for tick in TICKS if tick <= min([0.5, *ends])), default=TICKS[0])
    high = min((tick for tick in TICKS if tick >= max([2.0, *ends])), default=TICKS[-1])

    def x(times: float) -> float:
        share = math.log(min(max(times, low), high) / low) / math.log(high / low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    height = TOP + ROW_HEIGHT * len(bars) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        f' font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="12" y="22" font-size="15">minibroker beside Kafka: times better (right) or worse (left)</text>',
        f'<text x="12" y="40">{escape(_subtitle(document))}</text>',
    ]
    for tick in (tick for tick in TICKS if low <= tick <= high):
        colour = INK if tick == 1 else GRID
        lines.append(f'<line x1="{x(tick)}" y1="{TOP - 6}" x2="{x(tick)}" y2="{height - BOTTOM}" stroke="{colour}"/>')
        lines.append(f'<text x="{x(tick)}" y="{height - BOTTOM + 16}" text-anchor="middle">{tick:g} x</text>')
    for index, bar in enumerate(bars):
        lines += _draw(bar, TOP + index * ROW_HEIGHT, x(bar.times), x(1), x(bar.lower), x(bar.upper))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw(bar: Bar, top: float, end: float, middle: float, lower: float, upper: float) -> list[str]:
    colour = OURS_COLOUR if bar.times >= 1 else THEIRS_COLOUR
    centre = top + BAR_HEIGHT / 2
    return [
        f'<text x="{LEFT - 10}" y="{top + 11}" text-anchor="end">{escape(bar.title)}</text>',
        f'<rect x="{min(end, middle)}" y="{top}" width="{round(abs(end - middle), 1)}" height="{BAR_HEIGHT}"'
        f' fill="{colour}"/>',
        f'<line x1="{lower}" y1="{centre}" x2="{upper}" y2="{centre}" stroke="{INK}" stroke-width="2"/>',
        f'<text x="{max(end, upper, middle) + 8}" y="{top + 11}">{bar.times:.2f}</text>',
    ]


def _subtitle(document: Document) -> str:
    return f"{document.started[:10]}, {document.commit}, {document.machine.processor}, {document.machine.cores} cores"
