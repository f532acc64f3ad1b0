"""However the bytes of a segment are arranged, its ranges read each of them about once: bytes are counted, not
seconds."""

import os
from pathlib import Path

import pytest

from minibroker.audit.reading import segment_reader
from minibroker.audit.reading.ranges import plan_ranges
from minibroker.audit.reading.replica import RangeScan
from minibroker.audit.reading.segment_reader import RangeTask, scan_range
from minibroker.audit.spark.stitching import stitch
from minibroker.protocol.files import checkpoints
from minibroker.protocol.record_batch import build_batch
from tests.audit.damage import ENCODED
from tests.audit.planted_cluster import encode

RANGES = 64
RANGE_BYTES = 16 * 1024
SIZE = RANGES * RANGE_BYTES
CHUNK = 1024
LARGE = bytes(build_batch([(None, b"v" * 3 * RANGE_BYTES, 1, ())], base_offset=0))
FULL = b"".join(encode([(0, [b"x" * 100]) for _ in range(SIZE // 170)]))


def at_the_start(content: bytes) -> bytes:
    return content.ljust(SIZE, b"\x00")


def at_the_end(content: bytes) -> bytes:
    return content.rjust(SIZE, b"\x00")


HOLE = FULL[: len(FULL) // 8] + b"\x00" * (SIZE - 2 * (len(FULL) // 8)) + FULL[-(len(FULL) // 8) :]
FILES = {
    "full": FULL,
    "nothing but zeros": b"\x00" * SIZE,
    "sparse behind a few batches": at_the_start(b"".join(ENCODED)),
    "sparse behind a batch over several ranges": at_the_start(LARGE),
    "sparse in front of a few batches": at_the_end(b"".join(ENCODED)),
    "a hole in the middle": HOLE,
    "foreign bytes that look like a magic byte": at_the_start(ENCODED[0]).replace(b"\x00" * 64, b"\x02" * 64),
}


@pytest.fixture
def read_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    pread = os.pread

    def counting(descriptor: int, count: int, position: int) -> bytes:
        counted.append(count)
        return pread(descriptor, count, position)

    monkeypatch.setattr(os, "pread", counting)
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", CHUNK)
    return counted


@pytest.mark.parametrize("name", FILES)
def test_ranges_read_each_byte_about_once(tmp_path: Path, read_bytes: list[int], name: str) -> None:
    content = FILES[name]
    (tmp_path / checkpoints.segment_file_name(0)).write_bytes(content)

    def scan(task: RangeTask) -> RangeScan:
        return scan_range(task, with_values=False)

    tasks = plan_ranges(str(tmp_path), [(0, len(content))], RANGE_BYTES)
    scans = stitch([scan(task) for task in tasks], scan)
    times = sum(read_bytes) / len(content)
    assert times < 1.5, f"{len(tasks)} ranges read {sum(read_bytes)} bytes of {len(content)}"
    gaps = [gap for each in scans for gap in each.gaps]
    alone = scan(RangeTask(directory=str(tmp_path), segment=0, size=len(content), start=0, end=len(content)))
    assert tuple(gaps) == alone.gaps
