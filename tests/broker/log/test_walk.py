"""How much is read to walk over the headers of a segment file."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.log.segments.walk import CHUNK_BYTES, LARGE_BATCH_BYTES, walk_headers
from minibroker.protocol.record_batch import HEADER_BYTES
from tests.broker.log.machine import make_batch

BATCHES = 100


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
