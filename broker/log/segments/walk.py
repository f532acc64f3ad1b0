"""Walking over the batches of a segment file: by headers (cheap) or with all checks (recovery). Reads only.

Owns: how much is read at once. Leaves to others: what is done with a batch.
"""

from collections.abc import Iterator

from minibroker.broker.log.config import SCAN_BYTES
from minibroker.protocol.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    check_batch,
    read_header,
)
from minibroker.runtime.ports import File

CHUNK_BYTES = 32 * 1024
"""Many small batches come with one read, which costs hardly more than a read of one header of 61 bytes."""
LARGE_BATCH_BYTES = 8 * 1024
"""Of larger batches only the headers are read."""


def walk_headers(file: File, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in [position, end). CRCs are not checked. Raises CorruptBatch, with the position
    in the file, if a header makes no sense or its batch ends beyond `end`."""
    chunk, chunk_start = b"", position
    length = HEADER_BYTES
    while position < end:
        within = position - chunk_start
        if len(chunk) - within < HEADER_BYTES:
            chunk, chunk_start, within = file.read_at(position, min(length, end - position)), position, 0
        header = _header_at(chunk, within, position)
        size = header.size_bytes
        if position + size > end:
            raise CorruptBatch(f"{size} bytes are claimed, {end - position} are there", position)
        yield position, header
        position += size
        length = HEADER_BYTES if size > LARGE_BATCH_BYTES else CHUNK_BYTES


def scan_batches(
    file: File, position: int, end: int, chunk_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in [position, end), after all checks of `check_batch`. Raises CorruptBatch, with
    the position in the file, at the first batch that is not whole and sound. Nothing if `position` is at the end, or
    behind it: the file may have been cut since."""
    buffer = memoryview(bytearray(max(0, min(chunk_bytes, end - position))))
    while position < end:
        chunk_start = position
        view = _read(file, position, buffer[: end - position])
        if len(view) >= HEADER_BYTES:
            first_bytes = _header_at(view, 0, position).size_bytes
            if len(view) < first_bytes <= end - position:
                view = _read(file, position, memoryview(bytearray(first_bytes)))
        chunk_end = chunk_start + len(view)
        while True:
            try:
                header = check_batch(view, position - chunk_start)
            except CorruptBatch as error:
                if position > chunk_start and chunk_end < end:
                    break  # perhaps only the chunk ends inside it: the next chunk begins with it
                raise CorruptBatch(error.reason, position) from None
            yield position, header
            position += header.size_bytes
            if position == chunk_end:
                break


def _read(file: File, position: int, buffer: memoryview) -> memoryview:
    return buffer[: file.read_into(position, buffer)]


def _header_at(buffer: bytes | memoryview, within: int, position: int) -> BatchHeader:
    try:
        return read_header(buffer, within)
    except CorruptBatch as error:
        raise CorruptBatch(error.reason, position) from None
