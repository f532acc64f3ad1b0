"""The real disk only: writes in pieces, failing calls, full disks, entries that are no files."""

import asyncio
import errno
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX
from minibroker.runtime.adapters import disk as real_disk
from minibroker.runtime.adapters.disk import WRITE_BYTES_MAX, RealDisk, RealFile
from minibroker.runtime.ports import (
    BadEntry,
    Buffer,
    Disk,
    DiskError,
    DiskFull,
    FileTooLarge,
    LockHeld,
    SyncFailed,
    disk_error_of,
)


def read(disk: Disk) -> Callable[[str], bytes]:
    return lambda path: disk.read_file(path, SMALL_FILE_BYTES_MAX)


def test_failed_append_leaves_nothing_behind(tmp_path: Path) -> None:
    """The kernel takes the first 4 KiB and then refuses."""
    file = RealDisk().open(str(tmp_path / "log"), create=True)
    file.append([b"kept"])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DiskError, match="log"):
            file.append([b"x" * 3000, b"y" * 3000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.size == 4
    assert (tmp_path / "log").read_bytes() == b"kept"
    file.append([b" again"])
    assert (tmp_path / "log").read_bytes() == b"kept again"


def test_a_large_append_is_written_in_pieces_and_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    write = os.pwritev

    def counted(descriptor: int, parts: Sequence[Buffer], position: int) -> int:
        written.append(sum(map(len, parts)))
        return write(descriptor, parts, position)

    monkeypatch.setattr(os, "pwritev", counted)
    path = str(tmp_path / "file")
    limit = WRITE_BYTES_MAX
    parts = [os.urandom(size) for size in (5, limit - 5, 1, limit, 2 * limit + 3, 7)]
    RealDisk().open(path, create=True).append(parts)
    assert RealDisk().read_file(path, 100 * SMALL_FILE_BYTES_MAX) == b"".join(parts)
    assert written == [limit, 1, limit, limit, limit, 3, 7]


def test_a_large_append_that_fails_behind_its_first_piece_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(tmp_path / "file")
    file = RealDisk().open(path, create=True)
    file.append([b"before"])
    write = os.pwritev

    def full_soon(descriptor: int, parts: Sequence[Buffer], position: int) -> int:
        if position > len(b"before"):
            raise OSError(errno.ENOSPC, "no space")
        return write(descriptor, parts, position)

    monkeypatch.setattr(os, "pwritev", full_soon)
    with pytest.raises(DiskFull):
        file.append([bytes(WRITE_BYTES_MAX), b"more"])
    assert RealDisk().read_file(path, SMALL_FILE_BYTES_MAX) == b"before"
    monkeypatch.undo()
    file.append([b" and after"])
    assert RealDisk().read_file(path, SMALL_FILE_BYTES_MAX) == b"before and after"


def test_partial_writes_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_seven(descriptor: int, parts: list[bytes], position: int) -> int:
        return os.pwrite(descriptor, b"".join(parts)[:7], position)

    monkeypatch.setattr(os, "pwritev", write_seven)
    file = RealDisk().open(str(tmp_path / "log"), create=True)
    file.append([b"four", b"eight888", b"end"])
    assert (tmp_path / "log").read_bytes() == b"foureight888end"


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK)  # by `bind` its path could be 107 bytes long


SPECIAL: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    """A pipe would block the event loop until its other end opens; a device has no end."""
    disk, special = RealDisk(), str(tmp_path / kind)
    for name in (kind, "file.tmp"):
        SPECIAL[kind](tmp_path / name)
    replace = lambda _: disk.replace_file(str(tmp_path / "file"), b"")  # noqa: E731
    descriptors = len(os.listdir("/proc/self/fd"))
    for call in (disk.open, read(disk), disk.lock, disk.file_size, replace):
        with pytest.raises(BadEntry):
            call(special)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_disk_that_does_not_answer_is_no_proof_that_a_name_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Wholeness` would leave its promise in place, which counts after the next start."""
    (tmp_path / "file").touch()

    def fail(path: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    monkeypatch.setattr(os, "lstat", fail)
    with pytest.raises(DiskError, match="cannot look up "):
        RealDisk().exists(str(tmp_path / "file"))


def test_a_file_that_claims_to_be_empty_and_has_no_end_is_not_read_to_its_end() -> None:
    """As files in /proc do; here one of some kilobytes is used."""
    assert os.stat("/proc/cpuinfo").st_size == 0
    assert b"processor" in RealDisk().read_file("/proc/cpuinfo", 100 * SMALL_FILE_BYTES_MAX)
    with pytest.raises(FileTooLarge, match="at most 10 belong"):
        RealDisk().read_file("/proc/cpuinfo", 10)


def test_a_huge_file_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.touch()
    os.truncate(path, 30 << 30)
    with pytest.raises(FileTooLarge, match=f"it has {30 << 30} bytes"):
        RealDisk().read_file(str(path), SMALL_FILE_BYTES_MAX)


def test_full_disk_is_its_own_error() -> None:
    file = RealFile("/dev/full", os.open("/dev/full", os.O_RDWR), 0)
    with pytest.raises(DiskFull, match="No space left"):
        file.append([b"x"])


@pytest.mark.parametrize("call", ["file", "directory", "replacement"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_failed_sync_is_never_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    """The kernel may have dropped the pages: freeing space later does not restore them (ATC 2020)."""

    def fail(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    disk = RealDisk()
    file = disk.open(str(tmp_path / "log"), create=True)
    calls: dict[str, Callable[[], None]] = {
        "file": file.sync,
        "directory": lambda: disk.sync_directory(str(tmp_path)),
        "replacement": lambda: disk.replace_file(str(tmp_path / "checkpoint"), b"new"),
    }
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(SyncFailed, match=os.strerror(number)):
        calls[call]()


def test_an_append_that_cannot_be_cut_again_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no record stay at the end: with space again, the next append would come after them."""

    def fail(descriptor: int, parts: object, position: int) -> int:
        os.pwrite(descriptor, b"half", position)
        raise OSError(errno.ENOSPC, "No space left on device")

    def cannot_cut(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = RealDisk().open(str(tmp_path / "log"), create=True)
    monkeypatch.setattr(os, "pwritev", fail)
    monkeypatch.setattr(os, "ftruncate", cannot_cut)
    with pytest.raises(DiskError, match="cannot cut a failed append") as failure:
        file.append([b"half of it"])
    assert not isinstance(failure.value, DiskFull)


def test_other_errors_at_sync_are_disk_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = RealDisk().open(str(tmp_path / "log"), create=True)
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskError, match=r"cannot sync .*log: Input/output error") as caught:
        file.sync()
    assert not isinstance(caught.value, DiskFull)


def test_failed_replacement_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, path = RealDisk(), str(tmp_path / "checkpoint")
    disk.replace_file(path, b"old")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(DiskError):
        disk.replace_file(path, b"new")
    assert disk.read_file(path, SMALL_FILE_BYTES_MAX) == b"old"
    assert disk.list_directory(str(tmp_path)) == ["checkpoint"]


def test_lock_of_another_process_holds_until_it_ends(tmp_path: Path) -> None:
    path = str(tmp_path / ".lock")
    code = f"import fcntl,sys; f=open({path!r},'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LockHeld):
            RealDisk().lock(path)
        holder.kill()
    RealDisk().lock(path).release()


async def test_a_call_in_the_background_ends_before_its_cancelled_caller() -> None:
    disk, begun, go, ended = RealDisk(), threading.Event(), threading.Event(), []

    def slow() -> None:
        begun.set()
        go.wait()
        ended.append(True)

    calling = asyncio.ensure_future(disk.in_background(slow))
    await asyncio.to_thread(begun.wait)
    try:
        for _ in range(3):  # however often
            calling.cancel()
            await asyncio.to_thread(lambda: None)
            assert not calling.done()
    finally:
        go.set()  # else the thread would outlive the test
    await asyncio.gather(calling, return_exceptions=True)
    assert calling.cancelled()
    assert ended


async def test_the_error_of_a_call_is_the_cause_of_its_callers_cancellation() -> None:
    """A kernel reports a failed sync once, so the next sync would succeed."""
    disk, begun, go = RealDisk(), threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        go.wait()
        raise SyncFailed("input/output error")

    calling = asyncio.ensure_future(disk.in_background(fail))
    await asyncio.to_thread(begun.wait)
    calling.cancel()
    await asyncio.to_thread(lambda: None)
    go.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await calling
    assert isinstance(disk_error_of(caught.value), SyncFailed)


async def test_a_cancelled_call_that_waits_for_a_thread_never_begins() -> None:
    disk, go = RealDisk(), threading.Event()
    begun: list[bool] = []
    busy = [asyncio.ensure_future(disk.in_background(go.wait)) for _ in range(real_disk.BACKGROUND_THREADS)]
    waiting = asyncio.ensure_future(disk.in_background(partial(begun.append, True)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    go.set()
    await asyncio.gather(*busy)
    assert not begun


def test_background_threads_are_named_and_few() -> None:
    assert real_disk.BACKGROUND_THREADS <= 8
    assert RealDisk()._pool is None  # none before they are needed


@pytest.mark.parametrize(
    ("problem", "has_room"), [(errno.EDQUOT, False), (errno.ENOSPC, False), (errno.EOPNOTSUPP, True), (None, True)]
)
def test_a_directory_has_room_only_if_a_file_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int | None, has_room: bool
) -> None:
    """Behind a quota, bytes were free that could not be used: a full directory healed and failed each second, with an
    election each time."""

    def allocate(descriptor: int, offset: int, size: int) -> None:
        assert (offset, size) == (0, 1_000)
        if problem is not None:
            raise OSError(problem, "the test says so")

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    assert RealDisk().has_room(str(tmp_path), 1_000) == has_room
    assert not RealDisk().has_room(str(tmp_path), 1 << 60)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_of_such_a_file_takes_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes are those that the next question looks for: they were counted as used, so the directory stayed full."""
    left = tmp_path / "room.tmp"
    left.write_bytes(b"")
    monkeypatch.setattr(RealDisk, "free_bytes", lambda self, path: 0 if left.exists() else 1_000)
    assert RealDisk().has_room(str(tmp_path), 1_000)
