"""Splits segments into ranges that are read independently, by either engine. Pure."""

from collections.abc import Iterable

from minibroker.audit.reading.segment_reader import SEGMENT_BYTES_MAX, RangeTask


def plan_ranges(directory: str, segments: Iterable[tuple[int, int]], range_bytes: int) -> list[RangeTask]:
    """Split segments (base offset, size) at any byte: the reader finds the next batch, `stitch` checks that it was the
    right one. An empty segment has one empty range, for its indexes. One that is too large to be a segment is not
    read."""
    tasks = []
    for segment, size in segments:
        step = range_bytes if size <= SEGMENT_BYTES_MAX else size
        for start in range(0, max(size, 1), step):
            end = min(start + step, size)
            tasks.append(RangeTask(directory=directory, segment=segment, size=size, start=start, end=end))
    return tasks
