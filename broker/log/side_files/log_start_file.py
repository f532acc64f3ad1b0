"""`log-start`: the only proof that records in front of a log were deleted on purpose (replication rules, section 11).

Owns: reading and writing the file of one partition, and what of it is on stable storage. Leaves to others: where a log
starts.

The file is durable before the first segment in front of a start is removed, and before the first record below an
earlier start is appended. So a log that begins above its recorded start has lost its head; that is no deletion.

Theory: a thread that writes a start may be slow between any two calls, while the event loop writes another one or gives
the directory's name to another topic. Neither waits for the other. Meanwhile the loop puts a new file there, and the
thread only writes in place. So what it writes late lands in a file without a name, or of a directory that was renamed.
"""

import asyncio
from collections.abc import Callable

from minibroker.broker.log.unsynced_files import UnsyncedFiles
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import (
    LOG_START,
    LOG_START_SLOT_BYTES,
    LOG_START_SLOTS,
    SMALL_FILE_BYTES_MAX,
    CorruptCheckpoint,
    LogStart,
    LogStartReason,
    format_log_start,
    parse_log_starts,
)
from minibroker.runtime.ports import Disk, DiskError, FileMissing, FileTooLarge

_BLANK = b"\n" * LOG_START_SLOT_BYTES


def read_log_start(disk: Disk, directory: str, found: list[FileNotUsed]) -> tuple[LogStart, int] | None:
    """(the start, how often it changed); None if the file is missing or damaged: then a log that begins at 0 is
    complete, and one that begins higher has no explanation for it. `found` gets an event for a damaged file, also where
    one slot is sound: it may be the older one."""
    path = f"{directory}/{LOG_START}"
    try:
        content = disk.read_file(path, SMALL_FILE_BYTES_MAX)
        newest, *before = parse_log_starts(content)
    except FileMissing:
        return None
    except (CorruptCheckpoint, FileTooLarge) as error:
        consequence = "a log that begins above offset 0 counts as damaged"
        found.append(FileNotUsed(path=path, reason=str(error), consequence=consequence))
        return None
    if not before and _BLANK not in (content[:LOG_START_SLOT_BYTES], content[LOG_START_SLOT_BYTES:]):
        consequence = "the other slot counts, which may be an older one"
        found.append(FileNotUsed(path=path, reason="one of its two slots is damaged", consequence=consequence))
    return newest


def is_left_of_a_reset(disk: Disk, directory: str, first_offset: int) -> bool:
    """Whether a reset that was interrupted explains batches in front of the recorded start, the first at that offset:
    then it is the newest change, and the start before it explains that first offset. An older copy of the file, or one
    without its newest slot, most often has no such start."""
    (start, _), *before = parse_log_starts(disk.read_file(f"{directory}/{LOG_START}", SMALL_FILE_BYTES_MAX))
    return start.reason is LogStartReason.RESET and any(first_offset <= earlier.offset for earlier, _ in before)


class StartRecord:
    """The file of one log. A start that rises is written off the event loop, one that falls at once, on it."""

    def __init__(self, disk: Disk, directory: str, known: tuple[LogStart, int] | None, is_whole: bool) -> None:
        self.known: LogStart | None = None if known is None else known[0]
        """The file's content; on stable storage, unless the log is so new that nothing of it was ever synced."""
        self.is_certain = is_whole
        """False after a failed or cancelled write: the file may hold `known`, or what should have replaced it. Or it is
        not whole: then the next write, which goes to the damaged slot, mends it."""
        self._wanted: LogStart | None = None
        """What a write puts there that goes on, or that failed."""
        self._change = -1 if known is None else known[1]
        """Of the last attempt to write."""
        self._stored_change = self._change
        """The change that put `known` there."""
        self._written_at_once = 0
        self._disk = disk
        self._path = f"{directory}/{LOG_START}"
        self._writing = asyncio.Lock()
        self._closed = False

    def close(self) -> None:
        """Write nothing more: the directory may belong to another topic from now on."""
        self._closed = True

    def write_first(self, start: LogStart, unsynced: UnsyncedFiles) -> None:
        """Write the start of a new log; it is synced with the other files before anything counts as synced."""
        self._change = self._stored_change = 0
        self._disk.replace_file(self._path, _whole(start, 0), sync=False)
        unsynced.add(self._path)
        self.known = start

    @property
    def was_restarted_empty(self) -> bool:
        return self.known is not None and self.known.reason is LogStartReason.RESET

    @property
    def highest_offset(self) -> int | None:
        """Of what the file holds or may get; None if there is no file."""
        return max((each.offset for each in (self.known, self._wanted) if each is not None), default=None)

    def write_at_once(self, start: LogStart) -> None:
        """Write and sync on the event loop, which is rare. While a thread may be writing, neither slot may be used: one
        is the thread's, and the other one has the start to fall back to if the power goes now."""
        self._change = self._next_change()
        self._written_at_once += 1
        self.is_certain = False
        if self._writing.locked() or not self._write_in_place(start, self._change):
            self._disk.replace_file(self._path, _whole(start, self._change, self.known))
        self._note_stored(start)

    async def write(self, wanted: Callable[[], LogStart | None]) -> None:
        """Write and sync off the event loop, if it differs, what `wanted` says once earlier writes are over: what was
        right before may be a start below which files are gone now. One written meanwhile by `write_at_once` stays."""
        written_at_once = self._written_at_once
        async with self._writing:
            start = wanted()
            is_there = self.is_certain and start == self.known
            if start is None or is_there or written_at_once != self._written_at_once:
                return
            self._change = change = self._next_change()
            self._wanted = start

            def is_void() -> bool:
                return self._closed or self._change != change

            try:
                is_written = await self._disk.in_background(lambda: self._write_in_place(start, change, is_void))
                if not is_written and not is_void():  # rare: the file was removed or torn
                    self._disk.replace_file(self._path, _whole(start, change))
            except BaseException as error:  # also where its caller has given up: the thread may have written it
                self.is_certain = self.is_certain and self._change != change
                if not self._closed or not isinstance(error, DiskError):
                    raise
            if not is_void():
                self._note_stored(start)

    def _next_change(self) -> int:
        """It goes to the slot that does not hold `known`, however many attempts failed since that was stored: `known`
        is what a torn write falls back to, and explains the files that an interrupted reset leaves."""
        following = self._change + 1
        return following + (following % LOG_START_SLOTS == self._stored_change % LOG_START_SLOTS)

    def _note_stored(self, start: LogStart) -> None:
        self.known, self.is_certain, self._wanted = start, True, None
        self._stored_change = self._change

    def _write_in_place(self, start: LogStart, change: int, is_void: Callable[[], bool] = lambda: False) -> bool:
        """Whether the start is written: not if there is no file with a sound slot, or if it `is_void` once the file is
        open. Later that does no harm: this file is not the one that was put there since."""
        try:
            file = self._disk.open(self._path)
        except FileMissing:
            return False
        try:
            if is_void() or self.known is None or file.size != LOG_START_SLOTS * LOG_START_SLOT_BYTES:
                return False
            file.write_at(change % LOG_START_SLOTS * LOG_START_SLOT_BYTES, format_log_start(start, change))
            file.sync()
            return True
        finally:
            file.close()


def _whole(start: LogStart, change: int, before: LogStart | None = None) -> bytes:
    """The file with one slot in use, or with the start before in the other one: it may have to explain what an
    interrupted reset leaves."""
    slots = [_BLANK] * LOG_START_SLOTS
    if before is not None:
        slots[(change - 1) % LOG_START_SLOTS] = format_log_start(before, change - 1)
    slots[change % LOG_START_SLOTS] = format_log_start(start, change)
    return b"".join(slots)
