"""Sets of offsets as sorted, disjoint, half-open intervals. Pure."""

from collections.abc import Iterable
from typing import TypeAlias

Intervals: TypeAlias = list[tuple[int, int]]


def union(*many: Iterable[tuple[int, int]]) -> Intervals:
    """All offsets that are in any of the sets; adjacent intervals are merged."""
    merged: Intervals = []
    for start, end in sorted(interval for intervals in many for interval in intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def intersection(left: Intervals, right: Intervals) -> Intervals:
    """All offsets that are in both."""
    common: Intervals = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if start < end:
            common.append((start, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return common


def below(intervals: Intervals, limit: int) -> Intervals:
    """The part below `limit`."""
    return [(start, min(end, limit)) for start, end in intervals if start < limit]


def size(intervals: Intervals) -> int:
    return sum(end - start for start, end in intervals)
