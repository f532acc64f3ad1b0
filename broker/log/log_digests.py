"""The digest of a range of a log, from the known digests of its segments, and computing the unknown ones.

Owns: which batches belong to a range (those that end beyond its start and at or below its end), and reading segments
in the background, a piece at a time. Leaves to others: comparing digests. It reports no damage: the digest of a
segment that cannot be read stays unknown.
"""

import asyncio
import itertools
from functools import partial

import msgspec

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.segments.segment import Segment
from minibroker.broker.log.segments.segment_digest import digest_of_headers
from minibroker.broker.log.segments.walk import walk_headers
from minibroker.protocol.log_digest import MODULUS, NOTHING
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch
from minibroker.runtime.ports import Disk, DiskError

PIECE_BATCHES = 1_000
"""Read by one call in the background: some milliseconds, as long as a thread may hold the interpreter."""
PAUSE_S = 0.02
"""Between two pieces, so that reading takes at most a fifth of a processor."""


class SegmentHead(msgspec.Struct, frozen=True):
    """The digest of a segment's batches in front of the log start."""

    segment: Segment
    """Itself, not its place: a log that was dropped, or one of a later topic, may begin at the same offset again."""
    start_offset: int
    digest: int


def digest_from_start(log: PartitionLog, head: SegmentHead | None) -> int | None:
    """The digest of all batches from the log's start to its end; None while it is unknown."""
    first = _first_segment(log)
    total = NOTHING
    for segment in log.segments[first:]:
        value = segment.digest.value
        if value is None:
            return None
        total += value
    if log.log_start_offset > log.segments[first].base_offset:
        if not _is_of(log, head):
            return None
        assert head is not None
        total -= head.digest
    return total % MODULUS


def digest_from_start_to(log: PartitionLog, head: SegmentHead | None, end_offset: int) -> int | None:
    """The same, up to an offset near the log's end. Reads the headers after it on the event loop."""
    total = digest_from_start(log, head)
    if total is None or end_offset == log.log_end_offset:
        return total
    try:
        return (total - digest_of_headers(log.headers(end_offset))) % MODULUS
    except (CorruptLog, DiskError):
        return None


def needs_head(log: PartitionLog, head: SegmentHead | None) -> bool:
    """Whether the log starts within a segment, and the digest of the part in front is unknown."""
    return log.log_start_offset > log.segments[_first_segment(log)].base_offset and not _is_of(log, head)


async def read_head(log: PartitionLog) -> SegmentHead | None:
    """The part of the first segment in front of the log's start; None if it cannot be read."""
    segment, start = log.segments[_first_segment(log)], log.log_start_offset
    digest = await _read(log, segment, segment.size, start)
    return None if digest is None else SegmentHead(segment, start, digest)


async def complete_one(log: PartitionLog) -> bool:
    """Compute one unknown digest of a segment; False if none is unknown, or the segment cannot be read."""
    for segment in log.segments:
        size = segment.digest.known_from
        if size:
            digest = await _read(log, segment, size, None)
            if digest is None or log.deleted or segment not in log.segments:
                return False
            segment.digest.complete(size, digest)
            return True
    return False


def _first_segment(log: PartitionLog) -> int:
    return log.segment_number(log.log_start_offset)


def _is_of(log: PartitionLog, head: SegmentHead | None) -> bool:
    if head is None or head.start_offset != log.log_start_offset:
        return False
    return head.segment is log.segments[_first_segment(log)]


async def _read(log: PartitionLog, segment: Segment, size: int, end_offset: int | None) -> int | None:
    """The digest of the batches before `size` that end at or below `end_offset`. The file may be cut or deleted
    meanwhile."""
    disk, path, position, total = log.health.disk, segment.log_path, 0, NOTHING
    while position < size:
        if log.deleted or log.damage is not None or log.health.offline:
            return None
        try:
            read = partial(_read_piece, disk, path, position, size, end_offset)
            position, digest = await disk.in_background(read)
        except (DiskError, CorruptBatch):
            return None  # a read that serves it, or the scrubber, will report the damage
        total += digest
        if position < size:
            await asyncio.sleep(PAUSE_S)
    return total % MODULUS


def _read_piece(disk: Disk, path: str, position: int, size: int, end_offset: int | None) -> tuple[int, int]:
    """The position of the next piece, and the digest of this one."""
    file = disk.open(path)
    try:
        found: list[BatchHeader] = []
        for start, header in itertools.islice(walk_headers(file, position, min(size, file.size)), PIECE_BATCHES):
            if end_offset is not None and header.end_offset > end_offset:
                return size, digest_of_headers(found)
            found.append(header)
            position = start + header.size_bytes
    finally:
        file.close()
    if not found:
        raise CorruptBatch("the file is shorter than it was", position)
    return position, digest_of_headers(found)
