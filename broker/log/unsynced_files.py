"""Which files of a log are not synced yet, and syncing them.

Files are synced by their paths, with handles of their own, so files that the event loop opens or closes meanwhile do
not interfere. Leaves to others: when they are synced, and what counts as synced then (`flushing`).
"""

import asyncio
import contextlib
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from minibroker.runtime.ports import BadEntry, Disk, DiskError, FileMissing, disk_error_of

SYNCS_AT_ONCE = 3
"""Concurrent syncs share the disk's journal; one thread stays free for other callers."""


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


async def sync_all(disk: Disk, files: Sequence[UnsyncedFiles]) -> None:
    """Sync the files of several logs, off the event loop."""
    parts = [UnsyncedFiles.merged(files[start::SYNCS_AT_ONCE]) for start in range(SYNCS_AT_ONCE)]
    await gather_all([disk.in_background(partial(part.sync, disk)) for part in parts if part])


async def sync_each(disk: Disk, files: Sequence[UnsyncedFiles]) -> dict[int, BadEntry]:
    """The same. Returns the errors of entries that cannot be used, by the number of their log, which they concern
    alone: the files of all other logs are synced."""
    with contextlib.suppress(BadEntry):
        await sync_all(disk, files)
        return {}
    failed: dict[int, BadEntry] = {}
    for number, each in enumerate(files):  # rare: one by one, to find whose entry it is
        try:
            await sync_all(disk, [each])
        except BadEntry as error:
            failed[number] = error
    return failed


async def one_by_one(calls: Iterable[Coroutine[Any, Any, object]]) -> None:
    """Wait for each of them, one for each log. The error of an entry that cannot be used holds up no other log: it is
    raised after the last one."""
    failure: BadEntry | None = None
    for call in calls:
        try:
            await call
        except BadEntry as error:
            failure = error
    if failure is not None:
        raise failure


async def gather_all(calls: Sequence[Coroutine[Any, Any, object]]) -> None:
    """Wait for all of them, then raise the gravest error; it is the cause if this is cancelled meanwhile."""
    if len(calls) == 1:
        await calls[0]
        return
    failures: list[DiskError] = []
    try:
        results = await asyncio.gather(*(_kept(call, failures) for call in calls), return_exceptions=True)
    except asyncio.CancelledError as cancelled:
        raise cancelled from _gravest(failures)
    if (error := _gravest(result for result in results if isinstance(result, BaseException))) is not None:
        raise error


def _gravest(errors: Iterable[BaseException]) -> BaseException | None:
    """The first that concerns more than one log, if there is one: a kernel reports a failed sync only once, so an entry
    of one log that cannot be used must not hide it."""
    return min(errors, key=lambda error: isinstance(error, BadEntry), default=None)


async def _kept(call: Coroutine[Any, Any, object], failures: list[DiskError]) -> None:
    try:
        await call
    except BaseException as error:
        if (failure := disk_error_of(error)) is not None:
            failures.append(failure)
        raise
