"""`log-start`: the one explanation of what is missing in front of a log (replication rules, section 11).

Owns: reading and writing the file of one partition, and what of it is on stable storage. Refuses to decide where a log
starts.

It is durable before the first segment in front of a start is removed, and before the first record below an earlier
start is appended. So a log that begins above its recorded start has lost its head, and nobody may take that for a
deletion.
"""

import asyncio
import logging

from minibroker.broker.log.flushing import UnsyncedFiles
from minibroker.protocol.checkpoints import (
    LOG_START,
    LOG_START_SLOT_BYTES,
    LOG_START_SLOTS,
    SMALL_FILE_BYTES_MAX,
    CorruptCheckpoint,
    LogStart,
    LogStartReason,
    format_log_start,
    parse_log_start,
)
from minibroker.runtime.ports import Disk, DiskError, FileMissing, FileTooLarge

logger = logging.getLogger(__name__)


def read_log_start(disk: Disk, directory: str) -> tuple[LogStart, int] | None:
    """(the start, how often it changed); None when there is none, or none that can be believed: then a log that begins
    at 0 lacks nothing, and for one that begins higher nothing explains why."""
    path = f"{directory}/{LOG_START}"
    try:
        return parse_log_start(disk.read_file(path, SMALL_FILE_BYTES_MAX))
    except FileMissing:
        return None
    except (CorruptCheckpoint, FileTooLarge) as error:
        logger.warning("%s is damaged and not used: %s", path, error)
        return None


class StartRecord:
    """The file of one log. A start that rises is written off the event loop, one that falls at once."""

    def __init__(self, disk: Disk, directory: str, known: tuple[LogStart, int] | None) -> None:
        self.known: LogStart | None = None if known is None else known[0]
        """What the file says; on stable storage but for a log so new that nothing of it was ever synced."""
        self._change = -1 if known is None else known[1]
        self._disk = disk
        self._path = f"{directory}/{LOG_START}"
        self._writing = asyncio.Lock()
        self._closed = False

    def close(self) -> None:
        """The directory may be another topic's from now on."""
        self._closed = True

    def write_first(self, start: LogStart, unsynced: UnsyncedFiles) -> None:
        """Of a new log: it is synced with all that must be before anything counts as synced."""
        self._change = 0
        self._disk.replace_file(self._path, _whole(start, 0), sync=False)
        unsynced.add(self._path)
        self.known = start

    @property
    def was_restarted_empty(self) -> bool:
        return self.known is not None and self.known.reason is LogStartReason.STARTED_ANEW

    def write_at_once(self, start: LogStart) -> None:
        """Synced when this returns. Rare, so on the event loop."""
        self._change += 1
        self._write(start, self._change)
        self.known = start

    async def write(self, start: LogStart) -> None:
        """Synced when this returns, unless the log began anew meanwhile: then that start stays."""
        async with self._writing:
            self._change += 1
            change = self._change

            def is_void() -> bool:
                return self._closed or self._change != change

            try:
                await self._disk.in_background(lambda: None if is_void() else self._write(start, change))
            except DiskError:
                if not self._closed:
                    raise
            if not is_void():
                self.known = start

    def _write(self, start: LogStart, change: int) -> None:
        try:
            file = self._disk.open(self._path)
        except FileMissing:
            self._disk.replace_file(self._path, _whole(start, change))
            return
        try:
            if file.size == LOG_START_SLOTS * LOG_START_SLOT_BYTES:
                file.write_at(change % LOG_START_SLOTS * LOG_START_SLOT_BYTES, format_log_start(start, change))
                file.sync()
                return
        finally:
            file.close()
        self._disk.replace_file(self._path, _whole(start, change))


def _whole(start: LogStart, change: int) -> bytes:
    """The file with one slot in use."""
    slots = [b"\n" * LOG_START_SLOT_BYTES] * LOG_START_SLOTS
    slots[change % LOG_START_SLOTS] = format_log_start(start, change)
    return b"".join(slots)
