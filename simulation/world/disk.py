"""The simulated disk port: a machine's file system, as one of its processes uses it.

`storage.py` owns what survives a crash and what may go wrong; this module owns what calls do and cost. Paths belong to
one machine; all its processes share the same files.
"""

import asyncio
import contextlib
import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from minibroker.runtime.ports import BadEntry, Buffer, DiskError, FileMissing, FileTooLarge, LockHeld
from minibroker.simulation.world.background_work import BackgroundWork
from minibroker.simulation.world.clock import SimulatedClock
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.storage import (
    DirectoryNode,
    FileNode,
    LinkNode,
    SimulatedStorage,
    normalize,
    parts_of,
    walk_files,
)
from minibroker.simulation.world.trace import checksum

T = TypeVar("T")
HALT_SHARE = 0.5


class SimulatedFile:
    """Implements `ports.File`."""

    def __init__(self, disk: "SimulatedDisk", path: str, node: FileNode) -> None:
        self._disk = disk
        self._storage = disk.storage
        self._path = path
        self._node = node
        self._open = True

    def _begin(self, call: str, seconds: float) -> None:
        self._disk.process.check_alive()
        self._disk.halt()
        assert self._open, f"{self._path} is closed"
        self._storage.check_fault(call, self._path)
        self._disk.spend(seconds)

    @property
    def size(self) -> int:
        return len(self._node.content)

    def append(self, parts: Sequence[Buffer]) -> None:
        self._begin("append", self._storage.cost.append)
        data = b"".join(parts)
        self._storage.take_space(len(data), self._path)
        if self._storage.is_misdirected(self._path):
            self._node.content += bytes(len(data))
            self._storage.scribble_somewhere(self._path, data)
        else:
            self._node.content += data
        self._touch()
        self._storage.trace.record("append", self._storage.host, self._path, len(data), checksum(data))

    def read_at(self, position: int, length: int) -> bytes:
        self._begin("read", self._storage.cost.read)
        assert position >= 0
        assert length >= 0
        return bytes(memoryview(self._node.content)[position : position + length])

    def read_into(self, position: int, buffer: memoryview) -> int:
        data = self.read_at(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def write_at(self, position: int, data: Buffer) -> None:
        self._begin("write_at", self._storage.cost.append)
        assert position >= 0
        assert position + len(data) <= self.size
        self._node.about_to_change(position)
        self._node.content[position : position + len(data)] = data
        self._touch()
        self._storage.trace.record("write_at", self._storage.host, self._path, position, checksum(data))

    def truncate(self, size: int) -> None:
        self._begin("truncate", self._storage.cost.append)
        assert 0 <= size <= self.size
        self._storage.used_bytes -= self.size - size
        self._node.cut(size)
        self._touch()
        self._storage.trace.record("truncate", self._storage.host, self._path, size)

    def sync(self) -> None:
        self._begin("sync", self._storage.cost.sync)
        if not self._storage.ignores_sync:
            self._node.sync()
        self._storage.trace.record("sync", self._storage.host, self._path, self.size)

    def close(self) -> None:
        self._open = False

    def _touch(self) -> None:
        self._node.modified_ms = self._disk.clock.now_ms()


class SimulatedDirectoryLock:
    """Implements `ports.DirectoryLock`."""

    def __init__(self, storage: SimulatedStorage, path: str, process: Process) -> None:
        self._storage = storage
        self._path = path
        self._process = process

    def release(self) -> None:
        if self._process.alive and self._storage.locks.get(self._path) is self._process:
            del self._storage.locks[self._path]


class SimulatedDisk:
    """Implements `ports.Disk` for one process on a machine's storage."""

    def __init__(
        self, storage: SimulatedStorage, process: Process, clock: SimulatedClock, has_threads: bool = False
    ) -> None:
        """`has_threads`: background work overlaps with the event loop."""
        self.storage = storage
        self.process = process
        self.clock = clock
        self._has_threads = has_threads
        self._in_background = False
        self._work: BackgroundWork[Any] | None = None
        """What runs now in a thread."""

    def spend(self, seconds: float) -> None:
        """A synchronous call holds the process; background work has paid by waiting."""
        if not self._in_background:
            self.storage.loop.charge(seconds + self.storage.hangs_for)

    def _begin(self, call: str, path: str, opens: bool = False) -> None:
        self.process.check_alive()
        self.halt()
        self.storage.check_fault(call, path)
        if opens:
            self.storage.check_descriptor(call, path)

    def make_directory(self, path: str) -> None:
        self._begin("make_directory", path)
        node = self.storage.root
        for name in parts_of(path):
            child = node.entries.get(name)
            if child is None:
                child = node.entries[name] = DirectoryNode()
                self.storage.trace.record("make_directory", self.storage.host, path)
            if isinstance(child, LinkNode):
                child = self._linked(child, path)
            if isinstance(child, FileNode):
                raise BadEntry(f"cannot make directory {path}: {name} is a file")
            node = child

    def _linked(self, link: LinkNode, path: str) -> FileNode | DirectoryNode:
        try:
            return self.storage.find(link.target)
        except FileMissing:
            raise BadEntry(f"cannot make directory {path}: a link leads nowhere") from None

    def list_directory(self, path: str) -> list[str]:
        self._begin("list_directory", path, opens=True)
        return sorted(self.storage.find_directory(path).entries)

    def exists(self, path: str) -> bool:
        self.process.check_alive()
        try:
            parent, name = self.storage.parent_of(path)
        except (FileMissing, BadEntry):
            return False
        return not name or name in parent.entries

    def file_size(self, path: str) -> int:
        self._begin("read", path)
        return len(self.storage.find_file(path).content)

    def open(self, path: str, create: bool = False) -> SimulatedFile:
        self._begin("open", path, opens=True)
        return SimulatedFile(self, path, self._find_or_create(path, create))

    def _find_or_create(self, path: str, create: bool) -> FileNode:
        parent, name = self.storage.parent_of(path)
        node = parent.entries.get(name)
        if node is None:
            if not create:
                raise FileMissing(f"cannot open {path}: no such file or directory")
            node = parent.entries[name] = FileNode()
            node.modified_ms = self.clock.now_ms()
            self.storage.trace.record("create", self.storage.host, path)
        return node if type(node) is FileNode else self.storage.find_file(path)

    def read_file(self, path: str, limit: int) -> bytes:
        self._begin("read", path, opens=True)
        self.spend(self.storage.cost.read)
        content = self.storage.find_file(path).content
        if len(content) > limit:
            raise FileTooLarge(f"cannot read {path}: it has {len(content)} bytes, and at most {limit} belong there")
        return bytes(content)

    def replace_file(self, path: str, data: bytes, sync: bool = True) -> None:
        self._begin("replace_file", path, opens=True)
        temporary = f"{path}.tmp"
        if isinstance(self.storage.entry(temporary), LinkNode):
            raise BadEntry(f"cannot write {temporary}: it is a link")
        file = SimulatedFile(self, temporary, self._find_or_create(temporary, create=True))
        try:
            file.truncate(0)
            file.append([data])
            if sync:
                file.sync()
            self.rename(temporary, path)
        except DiskError:
            self.remove(temporary)
            raise
        finally:
            file.close()
        if sync:
            self.sync_directory(posixpath.dirname(normalize(path)))

    def rename(self, source: str, target: str) -> None:
        self._begin("rename", source)
        old_parent, old_name = self.storage.parent_of(source)
        new_parent, new_name = self.storage.parent_of(target)
        if old_name not in old_parent.entries:
            raise FileMissing(f"cannot rename {source} to {target}: no such file or directory")
        replaced = new_parent.entries.get(new_name)
        moved = old_parent.entries[old_name]
        if isinstance(replaced, DirectoryNode) and (replaced.entries or isinstance(moved, FileNode)):
            raise BadEntry(f"cannot rename {source} to {target}: it is a directory")
        if isinstance(replaced, FileNode) and isinstance(moved, DirectoryNode):
            raise BadEntry(f"cannot rename {source} to {target}: it is not a directory")
        if replaced is not None and replaced is not moved:
            self._free(replaced)
        del old_parent.entries[old_name]
        new_parent.entries[new_name] = moved
        self.storage.trace.record("rename", self.storage.host, source, target)

    def remove(self, path: str) -> None:
        self._unlink(path, "remove", DirectoryNode, "is a directory")

    def remove_tree(self, path: str) -> str | None:
        with contextlib.suppress(FileMissing):
            link = self.storage.entry(path)
            if isinstance(link, LinkNode):
                self.remove(path)
                return link.target
        self._unlink(path, "remove_tree", FileNode, "not a directory")
        return None

    def _unlink(self, path: str, call: str, refused: type[FileNode | DirectoryNode], why: str) -> None:
        self._begin("remove", path, opens=call == "remove_tree")
        try:
            parent, name = self.storage.parent_of(path)
        except FileMissing:
            return
        node = parent.entries.get(name)
        if isinstance(node, refused):
            raise BadEntry(f"cannot remove {path}: {why}")
        if node is not None:
            self._free(node)
            del parent.entries[name]
            self.storage.trace.record(call, self.storage.host, path)

    def _free(self, node: FileNode | DirectoryNode) -> None:
        files = [node] if isinstance(node, FileNode) else [file for _, file in walk_files(node)]
        self.storage.used_bytes -= sum(len(file.content) for file in files)

    def sync_directory(self, path: str) -> None:
        self._begin("sync_directory", path, opens=True)
        self.spend(self.storage.cost.sync)
        directory = self.storage.find_directory(path)
        if not self.storage.ignores_sync:
            directory.sync()
        self.storage.trace.record("sync_directory", self.storage.host, path)

    def lock(self, path: str) -> SimulatedDirectoryLock:
        self._begin("open", path, opens=True)
        self._find_or_create(path, create=True)
        if normalize(path) in self.storage.locks:
            raise LockHeld(f"{path} is held by another process")
        self.storage.locks[normalize(path)] = self.process
        return SimulatedDirectoryLock(self.storage, normalize(path), self.process)

    def free_bytes(self, path: str) -> int:
        self._begin("read", path)
        self.storage.find(path)
        return max(0, self.storage.capacity_bytes - self.storage.used_bytes)

    def has_room(self, path: str, size: int) -> bool:
        return self.free_bytes(path) >= size

    def modified_ms(self, path: str) -> int:
        self._begin("read", path)
        return self.storage.find_file(path).modified_ms

    def boot_id(self) -> str:
        self.process.check_alive()
        return self.storage.boot_id

    def halt(self) -> None:
        """Background work halts before about every other call, if it has a thread."""
        if self._work is not None and self.storage.random.random() < HALT_SHARE:
            self._work.halt()
            self.process.check_alive()

    async def in_background(self, call: Callable[[], T]) -> T:
        """The work happens at some moment of the wait, and a crash may come before or after it; with threads it
        happens in several moments, and a crash may come between any two of its calls."""
        self.process.check_alive()
        mean = self.storage.cost.background_mean
        before, after = (self.storage.random.expovariate(2 / mean) if mean else 0.0 for _ in range(2))
        await asyncio.sleep(before + self.storage.hangs_for)
        self.process.check_alive()
        if self._has_threads:
            result = await self._in_thread(call, mean)
        else:
            with self._working(None):
                result = call()
        await asyncio.sleep(after)
        return result

    async def _in_thread(self, call: Callable[[], T], mean: float) -> T:
        """A caller that is cancelled meanwhile goes on when the work is over (`ports.Disk.in_background`)."""
        work, is_over, cancelled = BackgroundWork(call), False, None
        try:
            while not is_over:
                with self._working(work):
                    is_over = work.advance()
                try:
                    await asyncio.sleep(0.0 if is_over or not mean else self.storage.random.expovariate(4 / mean))
                except asyncio.CancelledError as error:
                    cancelled = error
        finally:
            work.abandon()
        if cancelled is not None:
            raise cancelled from work.error
        return work.result()

    @contextlib.contextmanager
    def _working(self, work: BackgroundWork[Any] | None) -> Iterator[None]:
        """Calls belong to background work, in a thread or not."""
        self._in_background, self._work = True, work
        try:
            yield
        finally:
            self._in_background, self._work = False, None
            self.process.check_alive()
