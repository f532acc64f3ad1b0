"""How much is read to walk over the headers of a segment file."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.log.segments.walk import CHUNK_BYTES, LARGE_BATCH_BYTES, scan_batches, walk_headers
from minibroker.protocol.record_batch import HEADER_BYTES, CorruptBatch
from tests.broker.log.machine import make_batch

BATCHES = 100


def file_of(content: bytes) -> Any:
    """A segment file, as a scan reads it."""

    def read_into(position: int, buffer: memoryview) -> int:
        found = content[position : position + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    return SimpleNamespace(read_into=read_into)


@pytest.mark.parametrize(
    ("value_bytes", "reads_max", "bytes_read_max"),
    [
        (40, 2, 2 * CHUNK_BYTES),
        (2 * LARGE_BATCH_BYTES, BATCHES, BATCHES * HEADER_BYTES),
    ],
)
def test_small_batches_are_read_many_at_once_and_of_large_ones_only_the_headers(
    value_bytes: int, reads_max: int, bytes_read_max: int
) -> None:
    headers, batches = zip(
        *(make_batch(number, records=1, value=b"v" * value_bytes) for number in range(BATCHES)), strict=True
    )
    content, reads = b"".join(batches), list[int]()

    def read_at(position: int, length: int) -> bytes:
        reads.append(length)
        return content[position : position + length]

    walked = list(walk_headers(cast(Any, SimpleNamespace(read_at=read_at)), 0, len(content)))
    assert [header for _, header in walked] == list(headers)
    assert len(reads) <= reads_max
    assert sum(reads) <= bytes_read_max


@pytest.mark.parametrize("damaged", [0, 1, 3, 6, 9])
def test_a_scan_ends_at_the_damaged_batch_wherever_it_lies_in_what_is_read_at_once(damaged: int) -> None:
    """Three batches are read at once: the first of them is not read again and again."""
    batches = [bytearray(make_batch(number, records=1)[1]) for number in range(10)]
    size = len(batches[0])
    batches[damaged][-1] ^= 1
    content = b"".join(batches)

    file, sound = file_of(content), list[int]()
    with pytest.raises(CorruptBatch) as raised:
        for position, _ in scan_batches(file, 0, len(content), chunk_bytes=3 * size + 10):
            sound.append(position)
    assert raised.value.position == damaged * size
    assert sound == [number * size for number in range(damaged)]


@pytest.mark.parametrize("large", [0, 2, 4])
def test_a_scan_reads_a_batch_whole_that_is_larger_than_what_is_read_at_once(large: int) -> None:
    """It would be taken for damaged, and cut with all behind it."""
    sizes = [4_000 if number == large else 40 for number in range(5)]
    batches = [make_batch(number, records=1, value=b"v" * size)[1] for number, size in enumerate(sizes)]
    content = b"".join(batches)

    found = list(scan_batches(file_of(content), 0, len(content), chunk_bytes=500))
    assert [header.base_offset for _, header in found] == [0, 1, 2, 3, 4]
