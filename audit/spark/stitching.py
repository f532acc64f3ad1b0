"""Joins the ranges of a segment so that they give the same result as the whole file. Pure, except for reading again.

Theory: what a range found from a position on depends only on the bytes from there on. So starting from the beginning of
the file it is known where the next batch or gap begins, and a range that began there is correct. A range that began
elsewhere is read again from the known position (a gap behind a batch that reached into the range), and what it found
below that position is dropped (batches inside a value: a log may store segments as values). A gap that a range left
open continues up to the first batch behind it. Only a file that changed size meanwhile is read again from its start.
"""

from collections.abc import Callable, Iterable

import msgspec

from minibroker.audit.reading.replica import RangeScan
from minibroker.audit.reading.segment_reader import RangeTask


def stitch(scans: Iterable[RangeScan], reread: Callable[[RangeTask], RangeScan]) -> list[RangeScan]:
    """The scans of one replica, as a reader of whole segments would have made them."""
    by_segment: dict[int, list[RangeScan]] = {}
    for scan in sorted(scans, key=lambda each: (each.segment, each.planned_start)):
        by_segment.setdefault(scan.segment, []).append(scan)
    stitched = []
    for parts in by_segment.values():
        joined = _joined(parts, reread)
        stitched += joined if joined is not None else [_from_the_start(parts, reread)]
    return stitched


def _from_the_start(parts: list[RangeScan], reread: Callable[[RangeTask], RangeScan]) -> RangeScan:
    size = max(part.size for part in parts)
    return reread(RangeTask(directory=parts[0].directory, segment=parts[0].segment, size=size, start=0, end=size))


def _joined(parts: list[RangeScan], reread: Callable[[RangeTask], RangeScan]) -> list[RangeScan] | None:
    """The ranges of one segment, joined; None when the file changed while they were read."""
    if len(parts) == 1:
        return parts
    size = parts[0].size
    if parts[0].planned_start != 0 or any(part.vanished or part.size != size for part in parts):
        return None
    joined: list[RangeScan] = []
    position, is_open = 0, False
    for part in parts:
        if is_open:
            if part.start >= part.planned_end:
                continue
            joined[-1] = _gap_ended(joined[-1], part.start)
        elif position >= part.planned_end:
            continue  # its content lies inside a batch or gap that spans it
        elif part.start != position:
            part = _read_again(part, position, reread)
            if part.vanished or part.size != size:
                return None
        joined.append(part)
        position, is_open = part.end, part.is_open
    if is_open:
        joined[-1] = _gap_extended(joined[-1], size)
    return joined


def _read_again(part: RangeScan, position: int, reread: Callable[[RangeTask], RangeScan]) -> RangeScan:
    task = RangeTask(
        directory=part.directory,
        segment=part.segment,
        size=part.size,
        start=position,
        end=part.planned_end,
        begins=True,
    )
    return reread(task)


def _gap_ended(part: RangeScan, end: int) -> RangeScan:
    """A batch begins at `end`, so the gap is not torn, whatever its header claims."""
    gap = msgspec.structs.replace(part.gaps[-1], end=end, torn=False, reaches_end=False)
    return msgspec.structs.replace(part, gaps=(*part.gaps[:-1], gap), end=end, is_open=False)


def _gap_extended(part: RangeScan, size: int) -> RangeScan:
    gap = msgspec.structs.replace(part.gaps[-1], end=size)
    return msgspec.structs.replace(part, gaps=(*part.gaps[:-1], gap), end=size, is_open=False)
