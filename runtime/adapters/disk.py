"""The real disk port: the operating system's files.

Owns: how the promises of `ports.Disk` become system calls. Every OSError leaves this module as a DiskError: no space
left as DiskFull (it may pass), no descriptor left as OutOfDescriptors (it passes), no such file as FileMissing, a
failed sync as SyncFailed whatever its errno, anything else as plain DiskError. The last two mean that the log directory
is lost. Files are addressed by position (`pwritev`, `pread`), never by the kernel's file offset, so that no bytes of a
failed append stay in front of the next one.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from minibroker.runtime.adapters.descriptors import NO_DESCRIPTORS
from minibroker.runtime.ports import (
    BadEntry,
    Buffer,
    DiskError,
    DiskFull,
    FileMissing,
    FileTooLarge,
    LockHeld,
    OutOfDescriptors,
    SyncFailed,
)

T = TypeVar("T")

BACKGROUND_THREADS = 4
"""Concurrent disk work off the loop: enough to keep one disk busy, few enough that fsyncs do not pile up."""

PARTS_PER_WRITE = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 1024
"""The kernel refuses more buffers than IOV_MAX in one call."""

WRITE_BYTES_MAX = 128 * 1024
"""Measured, not explained (decision 0016): on a virtual machine whose host reclaims idle memory, followers that wrote
1 MiB in one call took up to seven times the system time. Larger writes allocate larger blocks for the page cache, which
may be reclaimed memory. Calls of 128 KiB cost a few microseconds more per MiB."""

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"

KINDS = {stat.S_IFDIR: "directory", stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket"}

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
BAD_ENTRY = frozenset(
    {errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENXIO}
    | {errno.EBUSY, errno.EXDEV, errno.ENOTEMPTY}  # a mount point, or files appear in a directory being removed
)


@contextlib.contextmanager
def disk_errors(action: str, path: str) -> Iterator[None]:
    """Turn an OSError into the port's error, which names the action and the file."""
    try:
        yield
    except OSError as error:
        message = f"cannot {action} {path}: {error.strerror or error}"
        if error.errno in NO_SPACE:
            raise DiskFull(message) from error
        if error.errno in NO_DESCRIPTORS:
            raise OutOfDescriptors(message) from error
        if error.errno == errno.ENOENT:
            raise FileMissing(message) from error
        if error.errno in BAD_ENTRY:
            raise BadEntry(message) from error
        raise DiskError(message) from error


def sync_descriptor(descriptor: int, path: str) -> None:
    """fsync. A failed one means the same whatever its errno: the unsynced bytes may be gone for good."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        raise SyncFailed(f"cannot sync {path}: {error.strerror or error}") from error


class RealFile:
    """Implements `ports.File`."""

    def __init__(self, path: str, descriptor: int, size: int) -> None:
        self._path = path
        self._descriptor = descriptor
        self._size = size
        self._broken: str | None = None

    @property
    def size(self) -> int:
        return self._size

    def append(self, parts: Sequence[Buffer]) -> None:
        if self._broken is not None:
            raise DiskError(self._broken)
        position = self._size
        try:
            for piece in _pieces(parts):
                position = self._write_all(piece, position)
        except OSError as error:
            self._cut_failed_append()
            if self._broken is not None:  # not a full disk, which may pass: the file ends in bytes that are no record
                raise DiskError(self._broken) from error
            with disk_errors("append to", self._path):  # not around the write: a context costs as much as the append
                raise error
        self._size = position

    def _write_all(self, parts: Sequence[Buffer], position: int) -> int:
        """One system call if the kernel takes everything, more if it takes a part. Returns the new end."""
        total = sum(len(part) for part in parts)
        written = os.pwritev(self._descriptor, parts, position) if total else 0
        if written < total:
            rest = memoryview(b"".join(parts))[written:]
            while rest:
                taken = os.pwrite(self._descriptor, rest, position + written)
                if taken == 0:
                    raise OSError(errno.EIO, "the kernel took no bytes")
                written += taken
                rest = rest[taken:]
        return position + written

    def _cut_failed_append(self) -> None:
        try:
            if os.fstat(self._descriptor).st_size > self._size:
                os.ftruncate(self._descriptor, self._size)
        except OSError as error:
            self._broken = f"cannot cut a failed append from {self._path}: {error.strerror}"

    def read_at(self, position: int, length: int) -> bytes:
        with disk_errors("read", self._path):
            data = os.pread(self._descriptor, length, position)
            if len(data) == length or not data:
                return data
            chunks = [data]
            have = len(data)
            while have < length:
                chunk = os.pread(self._descriptor, length - have, position + have)
                if not chunk:
                    break
                chunks.append(chunk)
                have += len(chunk)
            return b"".join(chunks)

    def read_into(self, position: int, buffer: memoryview) -> int:
        have = 0
        with disk_errors("read", self._path):
            while have < len(buffer):
                taken = os.preadv(self._descriptor, [buffer[have:]], position + have)
                if not taken:
                    break
                have += taken
        return have

    def write_at(self, position: int, data: Buffer) -> None:
        assert position >= 0
        assert position + len(data) <= self._size
        with disk_errors("write to", self._path):
            self._write_all([data], position)

    def truncate(self, size: int) -> None:
        assert 0 <= size <= self._size
        with disk_errors("truncate", self._path):
            os.ftruncate(self._descriptor, size)
        self._size = size

    def sync(self) -> None:
        sync_descriptor(self._descriptor, self._path)

    def close(self) -> None:
        """Some file systems (NFS, quotas) report only here that written bytes did not reach the disk."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            try:
                os.close(descriptor)
            except OSError as error:
                raise SyncFailed(f"cannot close {self._path}: {error.strerror or error}") from error


def _pieces(parts: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
    """The parts, in order, in groups for one system call each."""
    piece: list[Buffer] = []
    room = WRITE_BYTES_MAX
    for part in parts:
        size = len(part)
        if piece and (size > room or len(piece) == PARTS_PER_WRITE):
            yield piece
            piece, room = [], WRITE_BYTES_MAX
        if size > WRITE_BYTES_MAX:
            view = memoryview(part)
            for start in range(0, size, WRITE_BYTES_MAX):
                yield [view[start : start + WRITE_BYTES_MAX]]
        else:
            piece.append(part)
            room -= size
    if piece:
        yield piece


def _open_file(path: str, flags: int) -> int:
    """The descriptor of a regular file. Opening a pipe would block until its other end opens; a device never ends."""
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o644)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise BadEntry(f"cannot use {path}: it is a pipe or a socket") from None
        raise
    try:
        _require_regular(path, os.fstat(descriptor).st_mode)
    except BadEntry:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(path: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise BadEntry(f"cannot use {path}: it is a {KINDS.get(stat.S_IFMT(mode), 'device')}")


def _read_all(descriptor: int, path: str, limit: int) -> bytes:
    """Never reads more than the limit, whatever size the file reports."""
    size = os.fstat(descriptor).st_size
    chunks: list[bytes] = []
    have = 0
    while have <= limit and size <= limit:
        chunk = os.read(descriptor, max(size - have, 0) + 1)  # one byte more, to find the end
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        have += len(chunk)
    raise FileTooLarge(f"cannot read {path}: it has {max(size, have)} bytes, and at most {limit} belong there")


class RealDirectoryLock:
    """Implements `ports.DirectoryLock` with flock: the kernel releases it when the process ends, however it ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """Implements `ports.Disk`. One path has one writer at a time, also for `replace_file`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def make_directory(self, path: str) -> None:
        with disk_errors("make directory", path):
            os.makedirs(path, exist_ok=True)

    def list_directory(self, path: str) -> list[str]:
        with disk_errors("list", path):
            return sorted(os.listdir(path))

    def exists(self, path: str) -> bool:
        with disk_errors("look up", path):
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):  # another error would be no proof
                return False
        return True

    def file_size(self, path: str) -> int:
        with disk_errors("stat", path):
            status = os.stat(path)
            _require_regular(path, status.st_mode)
            return status.st_size

    def open(self, path: str, create: bool = False) -> RealFile:
        with disk_errors("open", path):
            descriptor = _open_file(path, os.O_RDWR | (os.O_CREAT if create else 0))
            return RealFile(path, descriptor, os.fstat(descriptor).st_size)

    def read_file(self, path: str, limit: int) -> bytes:
        with disk_errors("read", path):
            descriptor = _open_file(path, os.O_RDONLY)
            try:
                return _read_all(descriptor, path, limit)
            finally:
                os.close(descriptor)

    def replace_file(self, path: str, data: bytes, sync: bool = True) -> None:
        temporary = f"{path}.tmp"
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW  # the target of a link is another file
            with disk_errors("write", temporary), open(_open_file(temporary, flags), "wb", buffering=0) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                if sync:
                    sync_descriptor(file.fileno(), temporary)
            self.rename(temporary, path)
        except DiskError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        if sync:
            self.sync_directory(os.path.dirname(path) or ".")

    def rename(self, source: str, target: str) -> None:
        with disk_errors(f"rename {source} to", target):
            os.replace(source, target)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileMissing), disk_errors("remove", path):
            os.unlink(path)

    def remove_tree(self, path: str) -> str | None:
        with contextlib.suppress(FileMissing), disk_errors("remove", path):
            if not os.path.islink(path):
                shutil.rmtree(path)
                return None
            target = os.path.join(os.path.dirname(path), os.readlink(path))
            os.unlink(path)
            return target
        return None

    def sync_directory(self, path: str) -> None:
        with disk_errors("sync directory", path):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                sync_descriptor(descriptor, path)
            finally:
                os.close(descriptor)

    def lock(self, path: str) -> RealDirectoryLock:
        with disk_errors("lock", path):
            descriptor = _open_file(path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise LockHeld(f"{path} is held by another process") from None
            except OSError:
                os.close(descriptor)
                raise
            return RealDirectoryLock(descriptor)

    def free_bytes(self, path: str) -> int:
        with disk_errors("stat", path):
            space = os.statvfs(path)
            return space.f_bavail * space.f_frsize

    def has_room(self, path: str, size: int) -> bool:
        """By making such a file for a moment; where that fails for another reason, the free bytes decide. What a killed
        process leaves of it, the next question removes."""
        temporary = f"{path}/room.tmp"
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if self.free_bytes(path) < size:
            return False
        try:
            with disk_errors("reserve", temporary):
                descriptor = _open_file(temporary, os.O_RDWR | os.O_CREAT)
                try:
                    os.posix_fallocate(descriptor, 0, size)
                finally:
                    os.close(descriptor)
                    os.unlink(temporary)
        except (DiskFull, OutOfDescriptors):
            return False
        except DiskError:
            return True
        return True

    def modified_ms(self, path: str) -> int:
        with disk_errors("stat", path):
            return os.stat(path).st_mtime_ns // 1_000_000

    def boot_id(self) -> str:
        try:
            with open(BOOT_ID_FILE, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return "unknown"  # not Linux: then every restart counts as a restart of the process

    async def in_background(self, call: Callable[[], T]) -> T:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(BACKGROUND_THREADS, thread_name_prefix="minibroker-disk")
        work = self._pool.submit(call)
        ended = asyncio.wrap_future(work)
        try:
            return await asyncio.shield(ended)
        except asyncio.CancelledError as cancelled:
            if not work.cancel():
                raise cancelled from await _error_of(ended)
            raise


async def _error_of(ended: "asyncio.Future[T]") -> BaseException | None:
    """Wait for the end of a call whose caller was cancelled, however often."""
    while not ended.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([ended])
    return ended.exception()
