"""Durability of a log: which of its files are not synced yet, and syncing them off the event loop.

Owns: the list of unsynced files of one partition, and when its recovery point rises: after data, indexes, producer
snapshots, leader epochs and the names of all these files are on the disk, and never above what was cut meanwhile. Files
are synced by their paths, with handles of their own, so files that the event loop opens or closes meanwhile do not
interfere.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from minibroker.broker.log.side_files.digest_file import write_digests
from minibroker.runtime.ports import BadEntry, Disk, DiskError, FileMissing

if TYPE_CHECKING:
    from minibroker.broker.log.partition_log import PartitionLog


class UnsyncedFiles:
    """Files and directories of one partition that were written, created or renamed since they were last synced."""

    __slots__ = ("_directories", "_paths")

    def __init__(self) -> None:
        self._paths: dict[str, None] = {}
        self._directories: dict[str, None] = {}

    def __bool__(self) -> bool:
        return bool(self._paths or self._directories)

    def add(self, path: str) -> None:
        """Note a file that was replaced or created: its bytes and its name need a sync."""
        self._paths[path] = None
        self._directories[path.rpartition("/")[0]] = None

    def holds(self, path: str) -> bool:
        return path in self._paths

    def add_directory(self, path: str) -> None:
        self._directories[path] = None

    def take(self) -> "UnsyncedFiles":
        """Move all of them to the returned object; what is written from now on is noted here again."""
        taken = UnsyncedFiles()
        taken._paths, self._paths = self._paths, taken._paths
        taken._directories, self._directories = self._directories, taken._directories
        return taken

    @classmethod
    def merged(cls, many: Sequence["UnsyncedFiles"]) -> "UnsyncedFiles":
        """All of them in one object: a directory that several of them name is synced once."""
        merged = cls()
        for files in many:
            merged.give_back(files)
        return merged

    def give_back(self, taken: "UnsyncedFiles") -> None:
        """Take back the files of a sync that could not run for lack of a descriptor. After SyncFailed the directory is
        offline anyway."""
        self._paths = taken._paths | self._paths
        self._directories = taken._directories | self._directories

    def sync(self, disk: Disk, further_paths: Sequence[str] = ()) -> str | None:
        """Sync files, then directories. Returns a missing one of `further_paths` or of the directories (None: all are
        synced); other files may have been replaced or removed meanwhile. Runs off the event loop."""
        missing = None
        for path in further_paths:
            if not _sync_file(disk, path):
                missing = path
        for path in self._paths:
            _sync_file(disk, path)
        for path in self._directories:
            try:
                disk.sync_directory(path)
            except FileMissing:
                missing = path
        return missing


def _sync_file(disk: Disk, path: str) -> bool:
    try:
        file = disk.open(path)
    except FileMissing:
        return False
    try:
        file.sync()
    finally:
        file.close()
    return True


async def flush_log(log: "PartitionLog", closed_only: bool) -> None:
    """Sync what was appended before the call. Callers that wait for the lock find it done by the first of them."""
    wanted = _target(log, closed_only)
    async with log.flushing:
        log.storage.require_online()
        wanted = min(wanted, log.log_end_offset)
        if log.recovery_point < wanted and not log.deleted:
            await _sync(log, _target(log, closed_only))


def _target(log: "PartitionLog", closed_only: bool) -> int:
    return log.segments[-1].base_offset if closed_only else log.log_end_offset


async def _sync(log: "PartitionLog", target: int) -> None:
    segments = list(log.segments)
    dirty = [segment for segment in segments[log.segment_number(log.recovery_point) :] if segment.base_offset < target]
    try:
        if not log.epochs_stored:
            log.store_epochs()
        if not log.are_digests_stored:
            write_digests(log)
        for segment in dirty:
            if segment is not segments[-1]:
                segment.save_index()
                for path in segment.index_paths:  # an earlier save may not be synced
                    log.unsynced.add(path)
    except DiskError as error:
        raise log.failed(error) from None
    log.cut_to = None
    unsynced = log.unsynced.take()
    disk = log.storage.disk
    paths = [segment.log_path for segment in dirty if segment.size]
    try:
        missing = await disk.in_background(lambda: unsynced.sync(disk, paths))
    except BaseException as error:
        log.unsynced.give_back(unsynced)
        if isinstance(error, DiskError) and not log.deleted:
            log.failed(error)
        raise
    replaced = log.deleted or log.cut_to is not None or any(segment not in log.segments for segment in segments)
    if missing is not None and not replaced:
        log.unsynced.give_back(unsynced)
        raise log.failed(BadEntry(f"{missing} has vanished"))  # only this log is damaged; the disk works
    log.note_synced()
    reached = target if log.cut_to is None else min(target, log.cut_to)
    log.recovery_point = max(log.recovery_point, min(reached, log.log_end_offset))
