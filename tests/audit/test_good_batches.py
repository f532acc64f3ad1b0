"""The fast loop takes only what the full check accepts; together they report the same as the full check alone."""

import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.audit.reading import segment_reader
from minibroker.audit.reading.good_batches import take_good_batches
from minibroker.audit.reading.replica import Columns, RangeScan, SegmentGap
from minibroker.audit.reading.segment_reader import RangeTask, SegmentWindow, scan_content, walk
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import CRC_COVERS_FROM, HEADER_FORMAT, build_batch, check_batch
from tests.audit.planted_cluster import encode, some_batches

MANY = bytes(build_batch([(None, b"v", 1, ())] * 20, base_offset=24, leader_epoch=3))
"""A batch whose payload is an array of the second form."""
BATCHES = [*encode(some_batches(12)), MANY, bytes(build_batch([(b"k", None, 5, ())], base_offset=44, leader_epoch=4))]
CONTENT = b"".join(BATCHES)
CRC_AT = 17


def scanned(content: bytes) -> RangeScan:
    task = RangeTask(directory="d", segment=0, size=len(content), start=0, end=len(content))
    return scan_content(task, content, (None, None), with_values=False)


def full_check(content: bytes) -> tuple[tuple[bytes, ...], tuple[SegmentGap, ...]]:
    """The result of the full check at every position, without the fast loop."""
    window = SegmentWindow(lambda count, position: content[position : position + count], len(content), "f")
    columns = Columns()
    gaps = []
    for position, found in walk(window, 0, len(content)):
        if isinstance(found, SegmentGap):
            gaps.append(found)
        else:
            columns.append(position, found)
    return columns.pack(), tuple(gaps)


def agree(content: bytes) -> None:
    scan = scanned(content)
    assert (scan.columns, scan.gaps) == full_check(content)


def with_true_crc(batch: bytes) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">I", changed, CRC_AT, crc32c(batch[CRC_COVERS_FROM:]))
    return bytes(changed)


def test_valid_content_is_taken_completely() -> None:
    columns = Columns()
    assert take_good_batches(CONTENT, 0, 0, len(CONTENT), columns) == len(CONTENT)
    assert columns.pack() == full_check(CONTENT)[0]


def test_a_batch_that_begins_at_the_end_of_the_range_is_not_taken() -> None:
    columns = Columns()
    end = len(BATCHES[0]) + len(BATCHES[1])
    assert take_good_batches(CONTENT, 0, 0, end, columns) == end
    assert take_good_batches(CONTENT, 0, end, end + 1, columns) == end + len(BATCHES[2])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_reported_as_by_the_full_check(flip: int) -> None:
    for at in range(len(CONTENT)):
        content = bytearray(CONTENT)
        content[at] ^= flip
        agree(bytes(content))


def test_every_cut_is_reported_as_by_the_full_check() -> None:
    for end in range(len(CONTENT)):
        agree(CONTENT[:end])


def _fields_with_true_crcs() -> Iterator[bytes]:
    """Every header field at its limits and beyond, with a valid CRC: only the other checks can fail."""
    limits = [
        -(2**63),
        -(2**31) - 1,
        -(2**31),
        -2,
        -1,
        0,
        1,
        3,
        20,
        76,
        77,
        2**15 - 1,
        2**31 - 1,
        2**63 - 21,
        2**63 - 1,
    ]
    for original in (BATCHES[2], MANY):
        for number in range(len(HEADER_FORMAT) - 1):
            for value in limits:
                fields = list(struct.unpack_from(HEADER_FORMAT, original))
                fields[number] = value
                try:
                    header = struct.pack(HEADER_FORMAT, *fields)
                except struct.error:
                    continue
                yield with_true_crc(header + original[len(header) :])
        for first in range(256):
            yield with_true_crc(original[:61] + bytes([first]) + original[62:])
        for count in (0, 1, 2, 15, 16, 19, 20, 21, 500, 65535, 65536 + 20):
            claimed = struct.pack(">H", count & 0xFFFF)
            fields = list(struct.unpack_from(HEADER_FORMAT, original))
            fields[6], fields[12] = count - 1, count
            header = struct.pack(HEADER_FORMAT, *fields)
            for payload in (
                original[61:],
                bytes([0x90 + (count & 0x0F)]) + original[62:],
                b"\xdc" + claimed + original[64:],
            ):
                yield with_true_crc(header + payload)


def test_every_odd_header_with_a_valid_crc_is_reported_as_by_the_full_check() -> None:
    for batch in _fields_with_true_crcs():
        agree(BATCHES[0] + batch + BATCHES[1])


@given(
    order=st.lists(st.integers(0, len(BATCHES) - 1), max_size=20),
    edits=st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 100), st.binary(max_size=8)), max_size=3),
    chunk=st.sampled_from([61, 64, 100, 300, 1000, 1 << 21]),
)
@settings(max_examples=200)
def test_repeated_reordered_and_edited_batches_are_reported_as_by_the_full_check(
    order: list[int], edits: list[tuple[int, int, bytes]], chunk: int
) -> None:
    content = bytearray(b"".join(BATCHES[number] for number in order))
    for at, length, patch in edits:
        content[at : at + length] = patch
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(segment_reader, "CHUNK_BYTES", chunk)
        agree(bytes(content))


def test_every_taken_batch_passes_the_full_check() -> None:
    chooser = random.Random(7)
    for _ in range(2000):
        batch = bytearray(chooser.choice(BATCHES))
        batch[chooser.randrange(61)] ^= 1 << chooser.randrange(8)
        content = with_true_crc(bytes(batch))
        if take_good_batches(content, 0, 0, len(content), Columns()):
            check_batch(content)


def test_a_window_in_the_middle_of_a_file_names_positions_of_the_file(tmp_path: Path) -> None:
    columns = Columns()
    start = len(BATCHES[0])
    assert take_good_batches(CONTENT[start:], start, start, len(CONTENT), columns) == len(CONTENT)
    assert columns.positions[0] == start
