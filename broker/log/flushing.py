"""Durability of a log: syncing its files off the event loop.

Owns: when the recovery point rises: after data, indexes, producer snapshots, leader epochs and the names of all these
files are on the disk, and never above what was cut meanwhile. Leaves to others: which files those are
(`unsynced_files`).
"""

from minibroker.broker.log.open_log import OpenLog
from minibroker.runtime.ports import BadEntry, DiskError, disk_error_of


async def flush_log(log: OpenLog, closed_only: bool) -> None:
    """Sync what was appended before the call. One flush serves all callers that wait for the lock."""
    wanted = _target(log, closed_only)
    async with log.flushing:
        log.health.require_online()
        wanted = min(wanted, log.log_end_offset)
        if log.recovery_point < wanted and not log.deleted:
            await _sync(log, _target(log, closed_only))


def _target(log: OpenLog, closed_only: bool) -> int:
    return log.segments[-1].base_offset if closed_only else log.log_end_offset


async def _sync(log: OpenLog, target: int) -> None:
    segments = list(log.segments)
    dirty = [segment for segment in segments[log.segment_number(log.recovery_point) :] if segment.base_offset < target]
    try:
        if not log.epochs_stored:
            log.store_epochs()
        if not log.are_digests_stored:
            log.write_digests()
        for segment in dirty:
            if segment is not segments[-1]:
                segment.save_index()
                for path in segment.index_paths:  # an earlier save may not be synced
                    log.unsynced.add(path)
    except DiskError as error:
        raise log.recorded(error) from None
    log.cut_to = None
    unsynced = log.unsynced.take()
    disk = log.health.disk
    paths = [segment.log_path for segment in dirty if segment.size]
    try:
        missing = await disk.in_background(lambda: unsynced.sync(disk, paths))
    except BaseException as error:
        log.unsynced.give_back(unsynced)
        if (failure := disk_error_of(error)) is not None and not log.deleted:
            log.recorded(failure)
        raise
    replaced = log.deleted or log.cut_to is not None or any(segment not in log.segments for segment in segments)
    if missing is not None and not replaced:
        log.unsynced.give_back(unsynced)
        raise log.recorded(BadEntry(f"{missing} has vanished"))  # only this log is damaged; the disk works
    log.note_synced()
    reached = target if log.cut_to is None else min(target, log.cut_to)
    log.recovery_point = max(log.recovery_point, min(reached, log.log_end_offset))
