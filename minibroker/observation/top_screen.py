"""What `top` shows on a terminal of a given size. Pure.

Owns: which columns and replicas are left out when the terminal is too small, and how much of it events get. The newest
events are always there, and so are replicas out of sync: those are what one watches for. Leaves to others: the table's
contents (`replica_table`), and drawing.
"""

import textwrap
from collections.abc import Sequence

import msgspec

from minibroker.observation.replica_table import HEADER, ReplicaTableRow
from minibroker.protocol.printable_text import printable

EVENT_LINES_MIN = 6
"""Events get as many lines of a small terminal: a failover is told in about so many."""
GAP = "  "
LEFT_OUT_FIRST = ("IN SYNC", "START", "HW", "EPOCH")
"""Columns in the order in which a narrow terminal loses them. ISR and the colour say what IN SYNC says."""
NUMBERS = frozenset({"BROKER", "EPOCH", "START", "LEO", "HW", "LAG"})
PARTITION_WIDTH_MIN = 8


class ScreenLine(msgspec.Struct, frozen=True):
    text: str
    style: str = ""
    """One of rich's."""


def screen(
    title: str, rows: Sequence[ReplicaTableRow], events: Sequence[str], width: int, height: int
) -> list[ScreenLine]:
    """At most `height` lines of at most `width` characters; the newest of `events` come last."""
    told = [
        line for event in events for line in textwrap.wrap(printable(event), max(width, 20), subsequent_indent=" " * 10)
    ]
    body = max(height - 2, 1)  # below the title and the header
    events_room = max(min(len(told), EVENT_LINES_MIN), body - len(rows))
    shown, rest = _chosen(rows, max(body - events_room, 1))
    table = [tuple("-" if cell is None else printable(str(cell)) for cell in row.cells()) for row in shown]
    header, *cells = _aligned([HEADER, *table], width)
    lines = [ScreenLine(printable(title), "bold"), ScreenLine(header, "bold")]
    lines += [ScreenLine(text, _style(row)) for text, row in zip(cells, shown, strict=True)]
    lines += [ScreenLine(rest, "dim")] if rest else []
    lines += [ScreenLine(text) for text in told[-events_room:]] if events_room > 0 else []
    return [ScreenLine(line.text[:width], line.style) for line in lines[:height]]


def _chosen(rows: Sequence[ReplicaTableRow], room: int) -> tuple[list[ReplicaTableRow], str]:
    """The rows that fit, in their order, replicas out of sync first; and a line on those that do not."""
    if len(rows) <= room:
        return [*rows], ""
    by_need = sorted(range(len(rows)), key=lambda index: (rows[index].in_sync, index))
    kept = sorted(by_need[: room - 1])
    out_of_sync = sum(not rows[index].in_sync for index in by_need[room - 1 :])
    state = f"{out_of_sync} of them out of sync" if out_of_sync else "all in sync"
    return [
        rows[index] for index in kept
    ], f"and {len(rows) - len(kept)} more replicas, {state}: see them with -t TOPIC"


def _style(row: ReplicaTableRow) -> str:
    return "green" if row.role == "leader" else "red" if not row.in_sync else ""


def _aligned(table: list[tuple[str, ...]], width: int) -> list[str]:
    """The lines of the table: with as many columns as fit, and then with partitions cut at their beginning."""
    columns = [*range(len(HEADER))]
    widths: list[int] = [max(len(row[column]) for row in table) for column in columns]

    def surplus() -> int:
        needed: int = sum(widths[column] + len(GAP) for column in columns) - len(GAP)
        return needed - width

    for name in LEFT_OUT_FIRST:
        if surplus() > 0:
            columns.remove(HEADER.index(name))
    widths[0] = max(widths[0] - max(surplus(), 0), PARTITION_WIDTH_MIN)
    return [GAP.join(_cell(row[column], widths[column], column) for column in columns).rstrip() for row in table]


def _cell(text: str, width: int, column: int) -> str:
    if len(text) > width:
        text = text[: width - 1] + "…" if text == HEADER[column] else "…" + text[1 - width :]
    return text.rjust(width) if HEADER[column] in NUMBERS else text.ljust(width)
