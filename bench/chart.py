"""The ratios as an SVG picture: a bar a case on a logarithmic axis, with its 95 % bounds. Pure.

Ratios are inverted where necessary, so that right of the middle always means that minibroker is better, for latencies
too.
"""

import math
from html import escape

import msgspec

from minibroker.bench.document import Document
from minibroker.bench.report import ReportRow, rows_of

WIDTH, LEFT, RIGHT = 1_000, 400, 110
ROW_HEIGHT, BAR_HEIGHT, TOP, BOTTOM = 24, 13, 76, 34
OURS_COLOUR, THEIRS_COLOUR, UNCLEAR_COLOUR, INK, GRID = "#2a7de1", "#d1495b", "#999", "#222", "#ddd"
TICKS = (0.01, 0.1, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)
NOTES = (
    "Bar: median ratio on a logarithmic axis, so each step to the right doubles it. Line: its 95 % bounds.",
    "Grey: the bounds include 1 x, so no difference is shown. One round: the ratio of a single measurement.",
)


class Bar(msgspec.Struct, frozen=True):
    """How many times better, with both bounds."""

    title: str
    times: float
    lower: float
    upper: float

    @property
    def colour(self) -> str:
        if self.lower <= 1 <= self.upper:
            return UNCLEAR_COLOUR
        return OURS_COLOUR if self.times > 1 else THEIRS_COLOUR

    @property
    def is_of_one_round(self) -> bool:
        return self.lower == self.upper


def bars_of(document: Document) -> list[Bar]:
    return [_bar(row) for row in rows_of(document) if row.ratio is not None and row.ratio.lowest > 0]


def _bar(row: ReportRow) -> Bar:
    assert row.ratio is not None
    if row.higher_is_better:
        return Bar(row.title, row.ratio.median, row.ratio.lower, row.ratio.upper)
    return Bar(row.title, 1 / row.ratio.median, 1 / row.ratio.upper, 1 / row.ratio.lower)


def render(document: Document) -> str:
    """The whole picture."""
    return draw(bars_of(document), _subtitle(document))


def draw(bars: list[Bar], subtitle: str) -> str:
    """The picture of these bars."""
    ends = [end for bar in bars for end in (bar.lower, bar.upper)]
    low = max((tick for tick in TICKS if tick <= min([0.5, *ends])), default=TICKS[0])
    high = min((tick for tick in TICKS if tick >= max([2.0, *ends])), default=TICKS[-1])

    def x(times: float) -> float:
        share = math.log(min(max(times, low), high) / low) / math.log(high / low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    height = TOP + ROW_HEIGHT * len(bars) + BOTTOM
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif"'
        f' font-size="13" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="12" y="22" font-size="16">minibroker compared with Kafka: how many times better (right) or worse'
        f" (left). {escape(subtitle)}</text>",
        *(f'<text x="12" y="{40 + 16 * number}" font-size="12">{note}</text>' for number, note in enumerate(NOTES)),
    ]
    for tick in (tick for tick in TICKS if low <= tick <= high):
        colour = INK if tick == 1 else GRID
        lines.append(f'<line x1="{x(tick)}" y1="{TOP - 6}" x2="{x(tick)}" y2="{height - BOTTOM}" stroke="{colour}"/>')
        lines.append(f'<text x="{x(tick)}" y="{height - BOTTOM + 16}" text-anchor="middle">{tick:g} x</text>')
    for index, bar in enumerate(bars):
        lines += _row(bar, TOP + index * ROW_HEIGHT, x(bar.times), x(1), x(bar.lower), x(bar.upper))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _row(bar: Bar, top: float, end: float, middle: float, lower: float, upper: float) -> list[str]:
    centre = top + BAR_HEIGHT / 2
    bounds = f'<line x1="{lower}" y1="{centre}" x2="{upper}" y2="{centre}" stroke="{INK}" stroke-width="2"/>'
    return [
        f'<text x="{LEFT - 10}" y="{top + 11}" text-anchor="end">{escape(bar.title)}</text>',
        f'<rect x="{min(end, middle)}" y="{top}" width="{round(abs(end - middle), 1)}" height="{BAR_HEIGHT}"'
        f' fill="{bar.colour}"/>',
        *([] if bar.is_of_one_round else [bounds]),
        f'<text x="{max(end, upper, middle) + 8}" y="{top + 11}">{_times(bar)}</text>',
    ]


def _times(bar: Bar) -> str:
    """Three digits at most: more would claim a precision that no bound supports."""
    number = f"{bar.times:.2f}" if bar.times < 10 else f"{bar.times:.0f}"
    return f"{number} x" + (", one round" if bar.is_of_one_round else "")


def _subtitle(document: Document) -> str:
    """Commits and the whole machine are in the page's text."""
    return f"{document.started[:10]}, {document.machine.cores} cores"
