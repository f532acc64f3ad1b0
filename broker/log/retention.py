"""The head of a log: up to where retention deletes it, and how its files are taken out of the log.

Owns: the two reasons (too many bytes, too old) and their limit, the high watermark (KAFKA-5634, I14). Leaves to others:
the decision, which the leader makes, and the deletion (`cutting`), which waits until the start is durably recorded.

A segment is as old as its last write, by the clock of this broker: that is when the leader appended its youngest batch,
or when a follower copied it. The timestamps in records are the clients': a client with a wrong clock must neither keep
its records for ever nor lose them at once.
"""

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.open_log import OpenLog
from minibroker.broker.log.segments.segment import Segment
from minibroker.protocol.files.checkpoints import DELETED_SUFFIX
from minibroker.runtime.ports import Disk, DiskError, FileMissing


def retention_start(log: OpenLog, high_watermark: int, now_ms: int) -> int:
    """The offset after all whole segments that exceed retention.bytes or .ms and end at or below the high watermark.
    Not below the log's start; changes nothing."""
    if log.health.offline or log.deleted or log.damage is not None:
        return log.log_start_offset
    try:
        count = _count_expired(log, high_watermark, now_ms)
    except DiskError as error:
        raise log.recorded(error) from None
    return max(log.log_start_offset, log.segment_end(count - 1) if count else 0)


def _count_expired(log: OpenLog, high_watermark: int, now_ms: int) -> int:
    """How many segments from the head have expired. The active one can expire only by age."""
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


def _is_too_old(log: OpenLog, segment: Segment, now_ms: int) -> bool:
    if log.config.retention_ms is None:
        return False
    return now_ms - log.health.disk.modified_ms(segment.log_path) > log.config.retention_ms


def first_append_ms(segment: Segment, disk: Disk) -> int:
    """When its first batch was written; after a start this is the batch's timestamp, or the last write if earlier."""
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
    """Take one file out of the log at once; returns its new name, None if it was missing."""
    try:
        disk.rename(path, path + DELETED_SUFFIX)
    except FileMissing:
        return None
    return path + DELETED_SUFFIX
