"""A replica's valid batches by offset, ready to be compared. Pure.

Owns: the order of batches by offset, and the comparison of a stretch of two replicas column by column. A log without
holes and overlaps (nearly every log) is compared by its columns: equal stretches take five memory comparisons. Only
where something is wrong does each batch become a cell.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import TypeAlias

from minibroker.audit.intervals import Intervals
from minibroker.audit.reading.replica import AuditedReplica, Columns

Cell: TypeAlias = tuple[int, int, int, int, int]
"""(base offset, end offset, epoch, CRC, size): the fields that must be equal."""


class Content:
    """A replica's valid batches by offset, each offset once: of two with the same offset the first in the file
    counts."""

    def __init__(self, replica: AuditedReplica) -> None:
        columns = replica.columns
        self.replica = replica
        self.is_dense = columns.base_offsets[1:] == columns.ends[:-1]
        """Each batch begins where the one in front of it in the file ends: rows are in the order of offsets."""
        start = replica.log_start_offset
        self.coverage: Intervals = [(max(low, start), high) for low, high in self._stretches() if high > start]
        self.high_watermark = min(replica.facts.high_watermark or 0, replica.log_end_offset)
        """The known high watermark, at most the log's end; 0 if unknown."""

    def _stretches(self) -> Intervals:
        columns = self.replica.columns
        if self.is_dense:
            return [(columns.base_offsets[0], columns.ends[-1])] if len(columns) else []
        return _merged(self.cells)

    @cached_property
    def rows(self) -> Sequence[int]:
        """The row of each cell."""
        count = len(self.replica.columns)
        return range(count) if self.is_dense else _without_overlaps(_cells_of(self.replica.columns))

    @cached_property
    def cells(self) -> list[Cell]:
        """All cells. Uses much memory: only for replicas with a difference to explain."""
        cells = _cells_of(self.replica.columns)
        return cells if self.is_dense else [cells[row] for row in self.rows]

    @cached_property
    def bases(self) -> Sequence[int]:
        """The base offset of each cell."""
        return self.replica.columns.base_offsets if self.is_dense else [cell[0] for cell in self.cells]

    def between(self, low: int, high: int) -> slice:
        """The cells that hold an offset of this stretch."""
        first = max(bisect_right(self.bases, low) - 1, 0)
        if self.bases and self._end(first) <= low:
            first += 1
        return slice(first, bisect_left(self.bases, high))

    def _end(self, index: int) -> int:
        return self.replica.columns.ends[index] if self.is_dense else self.cells[index][1]


def surely_equal(left: Content, right: Content, low: int, high: int) -> bool:
    """Whether two replicas hold the same from `low` to `high`. May return False for equal ones that are not dense."""
    if not left.is_dense or not right.is_dense:
        return False
    ours, theirs = left.between(low, high), right.between(low, high)
    a, b = left.replica.columns, right.replica.columns
    return (
        a.base_offsets[ours] == b.base_offsets[theirs]
        and a.ends[ours] == b.ends[theirs]
        and a.epochs[ours] == b.epochs[theirs]
        and a.crcs[ours] == b.crcs[theirs]
        and a.sizes[ours] == b.sizes[theirs]
    )


def _cells_of(columns: Columns) -> list[Cell]:
    return list(zip(columns.base_offsets, columns.ends, columns.epochs, columns.crcs, columns.sizes, strict=True))


def _without_overlaps(cells: list[Cell]) -> list[int]:
    kept: list[int] = []
    for row in sorted(range(len(cells)), key=lambda row: (cells[row][0], row)):
        if not kept or cells[row][0] >= cells[kept[-1]][1]:
            kept.append(row)
    return kept


def _merged(cells: list[Cell]) -> Intervals:
    merged: Intervals = []
    for cell in cells:
        if merged and merged[-1][1] == cell[0]:
            merged[-1] = (merged[-1][0], cell[1])
        else:
            merged.append((cell[0], cell[1]))
    return merged
