"""The two sparse indexes as one table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.log.segments.segment_index import CorruptIndex, SegmentIndex
from minibroker.protocol.files.checkpoints import decode_index, decode_time_index

ENTRIES = st.lists(st.tuples(st.integers(1, 1_000), st.integers(1, 10_000), st.integers(0, 10**12)), max_size=50)


def table(steps: list[tuple[int, int, int]]) -> SegmentIndex:
    index = SegmentIndex(100)
    offset, position, largest = 0, 0, -1
    for offset_step, position_step, timestamp in steps:
        offset += offset_step
        position += position_step
        largest = max(largest, timestamp)
        index.add(offset, position, largest)
    return index


@given(ENTRIES)
def test_a_table_is_restored_from_its_files(steps: list[tuple[int, int, int]]) -> None:
    index = table(steps)
    again = SegmentIndex.decode(*index.encode(0), segment_size=1 << 31, interval_bytes=100)
    assert (again.last_offsets, again.positions, again.timestamps) == (
        index.last_offsets,
        index.positions,
        index.timestamps,
    )


@given(ENTRIES)
def test_the_files_have_the_documented_format(steps: list[tuple[int, int, int]]) -> None:
    index = table(steps)
    offsets, times = index.encode(0)
    entries = decode_index(offsets)
    assert [(entry.relative_offset, entry.position) for entry in entries] == list(
        zip(index.last_offsets, index.positions, strict=True)
    )
    assert [(entry.timestamp_ms, entry.relative_offset) for entry in decode_time_index(times)] == list(
        zip(index.timestamps, index.last_offsets, strict=True)
    )


@given(ENTRIES, st.integers(0, 60))
def test_later_entries_can_be_encoded_alone(steps: list[tuple[int, int, int]], start: int) -> None:
    index = table(steps)
    start = min(start, len(index))
    whole, rest = index.encode(0), index.encode(start)
    assert (whole[0][8 * start :], whole[1][12 * start :]) == rest


def test_the_entry_to_walk_from_is_the_greatest_at_or_below() -> None:
    index = table([(10, 500, 5), (10, 500, 5), (10, 500, 9)])
    assert [index.entry_for_offset(offset) for offset in (0, 9, 10, 19, 20, 30, 99)] == [None, None, 0, 0, 1, 2, 2]


def test_a_time_lookup_starts_at_the_last_smaller_timestamp() -> None:
    index = table([(10, 500, 5), (10, 500, 5), (10, 500, 9)])
    assert [index.entry_for_timestamp(time) for time in (0, 5, 6, 9, 10)] == [None, None, 1, 1, 2]


def test_truncation_drops_entries_of_batches_that_reach_the_offset() -> None:
    index = table([(10, 500, 5), (10, 500, 5), (10, 500, 9)])
    index.truncate_to(20)
    assert list(index.last_offsets) == [10]


@pytest.mark.parametrize(
    "entries",
    [
        [(5, 0, 1)],
        [(5, 1_000, 1)],
        [(5, 100, 1), (5, 200, 1)],
        [(5, 200, 1), (6, 200, 1)],
        [(5, 100, 2), (6, 200, 1)],
    ],
    ids=["at the start", "after the end", "equal offsets", "equal positions", "timestamps fall"],
)
def test_an_impossible_table_is_refused(entries: list[tuple[int, int, int]]) -> None:
    index = SegmentIndex(100)
    for entry in entries:
        index.add(*entry)
    with pytest.raises(CorruptIndex):
        SegmentIndex.decode(*index.encode(0), segment_size=1_000, interval_bytes=100)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_any_invalid_bytes_raise_the_declared_error(index: bytes, times: bytes) -> None:
    try:
        SegmentIndex.decode(index, times, segment_size=1 << 31, interval_bytes=100)
    except CorruptIndex:
        pass
