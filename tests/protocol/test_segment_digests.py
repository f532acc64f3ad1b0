"""The text of the `digests` file."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.protocol.files.checkpoints import CorruptCheckpoint, with_checksum
from minibroker.protocol.files.segment_digests import SegmentDigests, format_segment_digests, parse_segment_digests
from minibroker.protocol.ids import MAX_OFFSET

LINES = st.dictionaries(
    st.integers(0, MAX_OFFSET // 2),
    st.tuples(st.integers(MAX_OFFSET // 2, MAX_OFFSET), st.integers(0, 2**31 - 1), st.integers(0, 2**128 - 1)),
)


@given(segments=LINES, partition=st.integers(0, 99))
def test_what_is_written_is_read(segments: dict[int, tuple[int, int, int]], partition: int) -> None:
    digests = SegmentDigests(topic_id="id-1", partition=partition, segments=segments)
    assert parse_segment_digests(format_segment_digests(digests)) == digests


@given(content=st.binary(max_size=200))
def test_garbage_is_corrupt(content: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_segment_digests(content)


@pytest.mark.parametrize(
    "line",
    [
        "1 2 3",
        "2 1 3 " + "0" * 32,
        "1 2 3 " + "g" * 32,
        "1 2 3 " + "0" * 31,
        "a 2 3 " + "0" * 32,
        "1 2 -1 " + "0" * 32,
        "1 2 " + "0" * 32,
    ],
)
def test_a_malformed_line_is_corrupt(line: str) -> None:
    with pytest.raises(CorruptCheckpoint):
        parse_segment_digests(with_checksum(f"version: 2\ntopic_id: t\npartition: 0\n{line}\n"))
