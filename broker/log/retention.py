"""Which segments at the head of a log may go (replication rules, section 1.5).

Owns: the three reasons (below the log's start, too many bytes, too old) and the bound that outranks them, the high
watermark (KAFKA-5634, I14). Refuses to know how the log forgets a segment.
"""

from typing import TYPE_CHECKING

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.segment import Segment
from minibroker.protocol.checkpoints import DELETED_SUFFIX
from minibroker.runtime.ports import Disk, FileMissing

if TYPE_CHECKING:
    from minibroker.broker.log.partition_log import PartitionLog


def count_expired(log: "PartitionLog", high_watermark: int, now_ms: int) -> int:
    """How many segments from the head may be deleted now. The active one counts only by age; it is rolled first."""
    count = 0
    size = log.size_bytes
    for segment, following in zip(log.segments, log.segments[1:], strict=False):
        end = following.base_offset
        too_large = log.config.retention_bytes is not None and size - segment.size >= log.config.retention_bytes
        if end > high_watermark or not (end <= log.log_start_offset or too_large or _is_too_old(log, segment, now_ms)):
            return count
        size -= segment.size
        count += 1
    active = log.segments[-1]
    if active.size and log.log_end_offset <= high_watermark and _is_too_old(log, active, now_ms):
        count += 1
    return count


def _is_too_old(log: "PartitionLog", segment: Segment, now_ms: int) -> bool:
    if log.config.retention_ms is None:
        return False
    return now_ms - last_written_ms(segment, log.storage.disk) > log.config.retention_ms


def last_written_ms(segment: Segment, disk: Disk) -> int:
    """Its largest timestamp, but no later than its last write: a client's clock must not keep it for ever."""
    modified = disk.modified_ms(segment.log_path)
    largest = segment.largest_timestamp()
    return min(largest, modified) if largest >= 0 else modified


def first_append_ms(segment: Segment, disk: Disk) -> int:
    """When its first batch was written; after a start the batch's timestamp tells, but no later than the last write."""
    if segment.first_append_ms is None:
        modified = disk.modified_ms(segment.log_path)
        try:
            _, first = next(segment.headers_from(0))
            written = first.max_timestamp if first.max_timestamp >= 0 else modified
        except CorruptLog:
            written = modified
        segment.first_append_ms = min(written, modified)
    return segment.first_append_ms


def rename_deleted(disk: Disk, path: str) -> str | None:
    """Take one file out of the log at once; returns its new name, None if it was not there."""
    try:
        disk.rename(path, path + DELETED_SUFFIX)
    except FileMissing:
        return None
    return path + DELETED_SUFFIX
