"""How segments leave a log: the order in which files go, and the state of the log after each step.

Owns: the steps of a cut at either end. Leaves to others: where a log is cut, and the consequence of an error
(`partition_log.py`). Any step may fail, even for lack of space, and the log stays in use. So after each step the
offsets in memory match the files.
"""

import logging

from minibroker.broker.log import retention
from minibroker.broker.log.open_log import OpenLog
from minibroker.broker.log.segments.segment import Segment
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.runtime.ports import DiskError, DiskFull, OutOfDescriptors

logger = logging.getLogger(__name__)


def drop_newest(log: OpenLog) -> None:
    """Remove the last of several segments. Each removal is synced, newest first: a power cut leaves no gap."""
    segment = log.segments[-1]
    discard_batches(log, segment)
    log.set_end(segment.base_offset)
    discard_indexes(log, segment)
    log.health.disk.sync_directory(log.directory)


def record_start_below_cut(log: OpenLog, end_offset: int) -> None:
    """Before a truncation: a log that ends below its recorded start is damaged, so a lower start is recorded first."""
    recorded, segment = log.start_record.highest_offset, log.segments[log.segment_number(end_offset)]
    if recorded is None or recorded <= segment.base_offset or recorded <= (end := segment.end_at(end_offset)):
        return
    is_lowered = log.log_start_offset <= end
    reason = log.start_reason if is_lowered else LogStartReason.RESET
    log.record_at_once(min(log.log_start_offset, end), reason)


def reset_to(log: OpenLog, offset: int, producers: ProducerStates) -> None:
    """Drop all segments; the log is then empty at `offset`, which may lie anywhere. Before the first file goes it is
    recorded that the log is reset: at no lower offset than the files that are still there begin at.
    `producers`: their states at `offset`."""
    log.is_cut_unfinished, is_lower = True, offset < log.log_start_offset
    log.record_at_once(max(offset, log.log_start_offset), LogStartReason.RESET)
    while len(log.segments) > 1:
        drop_newest(log)
    last = log.segments[0]
    discard_batches(log, last)
    log.segments.append(log.new_segment(offset))
    log.log_start_offset, log.start_reason = offset, LogStartReason.RESET
    log.recovery_point = offset
    log.set_end(offset)
    log.producers = producers  # now: if a later step fails, nothing of the log that is gone may come back as its states
    log.snapshots.remove_above(-1)
    log.cut_is_unsynced = False
    if is_lower:  # first: a segment that a power cut brings back would begin behind the recorded start
        log.health.disk.sync_directory(log.directory)
    log.record_if_changed()
    discard_indexes(log, last)
    log.health.disk.sync_directory(log.directory)
    log.is_cut_unfinished = False
    log.make_file()
    if offset > 0:  # also without producers: then the file says that there were none
        try:
            log.unsynced.add(log.write_snapshot())
        except (DiskFull, OutOfDescriptors) as error:  # the next start takes the states for incomplete
            log.health.record_error(error)


def discard_batches(log: OpenLog, segment: Segment) -> None:
    """A segment leaves the log with its `.log`; the next start removes indexes that are left alone."""
    segment.close_file()  # first, for it may fail, too
    log.unsynced.add_directory(log.directory)
    _discard_file(log, segment.log_path)
    log.segments.remove(segment)
    segment.close()


def discard_indexes(log: OpenLog, segment: Segment) -> None:
    for path in segment.index_paths:
        _discard_file(log, path)


def _discard_file(log: OpenLog, path: str) -> None:
    renamed = retention.rename_deleted(log.health.disk, path)
    if renamed is not None:
        log.discarded.append((renamed, log.health.clock.now_ms() + log.config.file_delete_delay_ms))


def rebuild_producers(log: OpenLog) -> None:
    """Producer states at the log's end: the newest snapshot at or below it, updated by the batches after that."""
    end = log.log_end_offset
    had_producers = len(log.producers) > 0
    log.snapshots.remove_above(end)
    if had_producers:  # else none can be missing, and the log need not be read
        unusable: list[FileNotUsed] = []
        first = log.segments[0].base_offset
        snapshot_offset, producers = log.snapshots.newest(first, end, log.epoch_entries(), unusable)
        for header in log.headers(snapshot_offset):
            producers.update(header)
        log.producers = producers
        for each in unusable:
            logger.warning("%s", each.text())
    log.is_cut_unfinished = False


def delete_head(log: OpenLog, offset: int) -> int:
    """Delete whole segments below `offset`, but none above the log's recorded start. The active one is closed first; if
    it is empty it stays, because its successor would have its name. Returns the base offset of the first remaining
    segment."""
    if log.health.offline or log.deleted or log.damage is not None:
        return log.segments[0].base_offset
    bound = min(offset, log.recorded_start_offset)
    count = log.segment_number(bound)
    try:
        if bound == log.log_end_offset and log.segments[-1].size and log.rolled_for_retention():
            count += 1
        if count > 0:
            _check_snapshot_of(log, log.segments[count].base_offset)
        for segment in log.segments[:count]:
            discard_batches(log, segment)
            discard_indexes(log, segment)
        if count > 0:
            log.snapshots.remove_below(log.segments[0].base_offset)
    except DiskError as error:
        raise log.recorded(error) from None
    return log.segments[0].base_offset


def _check_snapshot_of(log: OpenLog, first_offset: int) -> None:
    problem = log.snapshots.remove_unless_sound(first_offset, log.epoch_entries())
    if problem is not None:
        logger.warning("%s: it is removed, and producers in front of it count as missing", problem)
