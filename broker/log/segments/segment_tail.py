"""Where a segment that should be unchanged ends: from the batches after its last index entry, or else from all of them.

Owns: the check that its headers continue each other from the offset in its name, as far as that is cheap, and how to
recognise a write that was cut off. Reads only. Leaves to others: what a misfit means; in a segment that was synced it
is damage, in another one a torn tail.
"""

import msgspec

from minibroker.broker.log.config import SCAN_BYTES
from minibroker.broker.log.segments.segment_files import SegmentFile
from minibroker.broker.log.segments.walk import walk_headers
from minibroker.protocol.files.checkpoints import (
    INDEX_ENTRY_BYTES,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    CorruptCheckpoint,
    IndexEntry,
    decode_index,
)
from minibroker.protocol.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, check_batch, read_header
from minibroker.runtime.ports import Disk, File, FileMissing


class SegmentTail(msgspec.Struct, frozen=True):
    """The end of a segment, according to its headers."""

    end_offset: int
    """End of the last batch that fits."""
    misfit: str | None = None
    """Why the walk ended before the end of the file."""
    is_index_stale: bool = False
    """The index names a batch that does not exist, or lacks an entry that was due."""
    last_epoch: int | None = None
    """Leader epoch of the last batch that fits; None: there is none."""


def read_tail(disk: Disk, segment: SegmentFile, interval_bytes: int) -> SegmentTail:
    """The index is only a hint: the walk starts at its last entry only if the batch there is the one that it names.
    Otherwise, and if a later batch does not fit, all headers are read."""
    entry = _last_entry(disk, segment)
    if entry is None:
        return _walk(disk, segment, None, interval_bytes)
    tail = _walk(disk, segment, entry, interval_bytes)
    if tail.misfit is None:
        return tail
    tail = _walk(disk, segment, None, interval_bytes)
    return SegmentTail(tail.end_offset, tail.misfit, is_index_stale=True, last_epoch=tail.last_epoch)


def is_cut_off(file: File, position: int, end: int) -> bool:
    """Whether the bytes from `position` on may be a write that was cut off: the front part of one batch, up to the end
    of the file. A whole batch that is not sound is none, nor is one that a sound batch follows."""
    if end - position < HEADER_BYTES:
        return True
    try:
        header = read_header(file.read_at(position, HEADER_BYTES), 0)
    except CorruptBatch:
        return False
    if position + header.size_bytes <= end:
        return False
    return not _is_followed(file, position + HEADER_BYTES, end, header.end_offset)


def _is_followed(file: File, position: int, end: int, base_offset: int) -> bool:
    """Whether a sound batch with this base offset lies anywhere in [position, end)."""
    wanted = base_offset.to_bytes(8)
    while end - position >= HEADER_BYTES:
        chunk = file.read_at(position, min(SCAN_BYTES, end - position))
        found = chunk.find(wanted)
        if found < 0:
            position += SCAN_BYTES - len(wanted) + 1
            continue
        position += found
        if is_whole_batch(file, position, end):
            return True
        position += 1
    return False


def is_whole_batch(file: File, position: int, end: int) -> bool:
    """Whether a batch with a sound CRC lies there, whatever its offset and epoch, which the CRC does not cover."""
    try:
        size = read_header(file.read_at(position, min(HEADER_BYTES, end - position)), 0).size_bytes
        if position + size > end:
            return False
        check_batch(memoryview(file.read_at(position, size)), 0)
    except CorruptBatch:
        return False
    return True


def why_misfit(header: BatchHeader, end: int, epoch: int) -> str | None:
    """Why this batch cannot follow a log that ends at that offset in that epoch."""
    if header.base_offset != end:
        return f"offset {header.base_offset} where {end} belongs"
    if header.partition_leader_epoch < epoch:
        return f"leader epoch {header.partition_leader_epoch} behind epoch {epoch}"
    return None


def _last_entry(disk: Disk, segment: SegmentFile) -> IndexEntry | None:
    try:
        file = disk.open(segment.path + INDEX_SUFFIX)
    except FileMissing:
        return None
    try:
        if file.size < INDEX_ENTRY_BYTES:
            return None
        (entry,) = decode_index(file.read_at(file.size - INDEX_ENTRY_BYTES, INDEX_ENTRY_BYTES))
    except CorruptCheckpoint:
        return None
    finally:
        file.close()
    return entry if entry.position < segment.size else None


def _walk(disk: Disk, segment: SegmentFile, entry: IndexEntry | None, interval_bytes: int) -> SegmentTail:
    end, last_epoch = segment.base_offset, None
    last_offset = None if entry is None else segment.base_offset + entry.relative_offset
    start = position = 0 if entry is None else entry.position
    file = disk.open(segment.path + LOG_SUFFIX)
    try:
        for position, header in walk_headers(file, start, segment.size):
            if last_offset is not None:
                if header.last_offset != last_offset:
                    return SegmentTail(
                        end, f"the index names another batch at position {position}", last_epoch=last_epoch
                    )
                last_offset = None
            elif header.base_offset != end:
                misfit = f"offset {header.base_offset} at position {position} where {end} belongs"
                return SegmentTail(end, misfit, last_epoch=last_epoch)
            end, last_epoch = header.end_offset, header.partition_leader_epoch
    except CorruptBatch as error:
        return SegmentTail(end, f"position {error.position}: {error.reason}", last_epoch=last_epoch)
    finally:
        file.close()
    return SegmentTail(end, is_index_stale=position - start > interval_bytes, last_epoch=last_epoch)
