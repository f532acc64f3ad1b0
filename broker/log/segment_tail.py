"""Where a segment that nobody may have changed ends: by the batches behind its last index entry, else by all of them.

Owns: the check that its headers continue each other from the offset in its name, as far as that costs little. Reads
only. Refuses to know what a misfit means: for a segment that was synced once it is damage, for another one a torn tail.
"""

import msgspec

from minibroker.broker.log.segment_files import SegmentFile
from minibroker.broker.log.walk import walk_headers
from minibroker.protocol.checkpoints import (
    INDEX_ENTRY_BYTES,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    CorruptCheckpoint,
    IndexEntry,
    decode_index,
)
from minibroker.protocol.record_batch import CorruptBatch
from minibroker.runtime.ports import Disk, FileMissing


class Tail(msgspec.Struct, frozen=True):
    """What the headers of a segment say."""

    end_offset: int
    """Behind the last batch that fits."""
    misfit: str | None = None
    """Why the walk ended before the file does."""
    is_index_stale: bool = False
    """The index names what is not there, or lacks an entry that was due."""


def read_tail(disk: Disk, segment: SegmentFile, interval_bytes: int) -> Tail:
    """The index is a hint and no witness: only when its last entry meets the very batch that it names is the walk begun
    there; otherwise, and whenever something does not fit behind it, all headers are read."""
    entry = _last_entry(disk, segment)
    if entry is None:
        return _walk(disk, segment, None, interval_bytes)
    tail = _walk(disk, segment, entry, interval_bytes)
    if tail.misfit is None:
        return tail
    tail = _walk(disk, segment, None, interval_bytes)
    return Tail(tail.end_offset, tail.misfit, is_index_stale=True)


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


def _walk(disk: Disk, segment: SegmentFile, entry: IndexEntry | None, interval_bytes: int) -> Tail:
    end = segment.base_offset
    last_offset = None if entry is None else segment.base_offset + entry.relative_offset
    start = position = 0 if entry is None else entry.position
    file = disk.open(segment.path + LOG_SUFFIX)
    try:
        for position, header in walk_headers(file, start, segment.size):
            if last_offset is not None:
                if header.last_offset != last_offset:
                    return Tail(end, f"the index names another batch at position {position}")
                last_offset = None
            elif header.base_offset != end:
                return Tail(end, f"offset {header.base_offset} at position {position} where {end} belongs")
            end = header.end_offset
    except CorruptBatch as error:
        return Tail(end, f"position {error.position}: {error.reason}")
    finally:
        file.close()
    return Tail(end, is_index_stale=position - start > interval_bytes)
