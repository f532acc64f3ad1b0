"""The virtual disk: what is written, what is synced, and what a crash leaves of it.

Theory: a killed process loses nothing that it wrote, for the kernel holds it. Power loss keeps what was synced: of a
file the bytes of its last `sync`, and of a directory the entries of its last `sync_directory`; a new or renamed file
whose directory was not synced is gone or old again. Of appended bytes that were not synced a torn prefix may survive.
One test per sentence of this model. Paths are those of one machine; every process on it has a door to the same files.
"""

import asyncio
import posixpath
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from minibroker.runtime.ports import Buffer, DiskError, DiskFull, FileMissing, LockHeld
from minibroker.simulation.clock import SimulatedClock
from minibroker.simulation.loop import VirtualLoop
from minibroker.simulation.node import Process
from minibroker.simulation.trace import Trace, checksum

T = TypeVar("T")

CAPACITY_BYTES = 1 << 40

GARBAGE_BYTES_MAX = 64
"""A torn write may end in bytes that nobody wrote."""


class Cost(msgspec.Struct):
    """Virtual seconds that synchronous calls take from the process, and background work from nobody."""

    append: float = 0.0
    read: float = 0.0
    sync: float = 0.001
    background_mean: float = 0.002


class Fault(msgspec.Struct):
    """An injected IO error: calls of this name on paths with this prefix fail, this many times."""

    call: str
    path_prefix: str = "/"
    times: int = 1_000_000_000
    is_full: bool = False


class FileNode:
    """A file: bytes as its readers see them, and what of them is on stable storage."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced_size = 0
        self.synced_copy: bytes | None = None
        """The synced bytes, once they are no longer a prefix of the content."""
        self.modified_ms = 0

    def about_to_change(self, position: int) -> None:
        """Bytes from `position` on will be cut or overwritten."""
        if position < self.synced_size and self.synced_copy is None:
            self.synced_copy = bytes(self.content[: self.synced_size])

    def sync(self) -> None:
        self.synced_size = len(self.content)
        self.synced_copy = None

    def lose_power(self, rng: random.Random | None) -> None:
        """Keep what was synced; with `rng`, maybe a torn piece of what was appended after it."""
        if self.synced_copy is not None:
            self.content = bytearray(self.synced_copy)
        else:
            unsynced = len(self.content) - self.synced_size
            kept = rng.randrange(unsynced + 1) if rng is not None and unsynced else 0
            del self.content[self.synced_size + kept :]
            if rng is not None and kept and rng.random() < 0.3:
                self.content += rng.randbytes(rng.randrange(1, GARBAGE_BYTES_MAX))
        self.sync()


class DirectoryNode:
    """A directory: names now, and names on stable storage."""

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | DirectoryNode] = {}
        self.synced_entries: dict[str, FileNode | DirectoryNode] = {}

    def sync(self) -> None:
        self.synced_entries = dict(self.entries)

    def lose_power(self, rng: random.Random | None) -> None:
        self.entries = dict(self.synced_entries)
        for name in sorted(self.entries):
            self.entries[name].lose_power(rng)


class Storage:
    """The disk of one machine: survives its processes. Faults are calls on it."""

    def __init__(self, host: str, loop: VirtualLoop, rng: random.Random, trace: Trace) -> None:
        self.host = host
        self.loop = loop
        self.random = rng
        self.trace = trace
        self.cost = Cost()
        self.capacity_bytes = CAPACITY_BYTES
        self.used_bytes = 0
        self.faults: list[Fault] = []
        self.root = DirectoryNode()
        self.locks: dict[str, Process] = {}
        self.boots = 1

    def fail(self, call: str, path_prefix: str = "/", times: int = 1_000_000_000, is_full: bool = False) -> Fault:
        """Inject an error; `heal` takes it back. Calls: append, read, write_at, truncate, sync, open, replace_file,
        rename, remove, list_directory, make_directory, sync_directory."""
        fault = Fault(call, path_prefix, times, is_full)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        self.faults.clear()

    def check_fault(self, call: str, path: str) -> None:
        for fault in self.faults:
            if fault.call == call and path.startswith(fault.path_prefix) and fault.times > 0:
                fault.times -= 1
                self.trace.record("disk-fault", self.host, call, path)
                if fault.is_full:
                    raise DiskFull(f"cannot {call} {path}: no space left on device (simulated)")
                raise DiskError(f"cannot {call} {path}: input/output error (simulated)")

    def provision(self, path: str) -> None:
        """A directory that was there before the machine's first start, on stable storage."""
        node = self.root
        for name in parts_of(path):
            child = node.entries.setdefault(name, DirectoryNode())
            assert isinstance(child, DirectoryNode)
            node.sync()
            node = child

    def process_ended(self, process: Process) -> None:
        self.locks = {path: holder for path, holder in self.locks.items() if holder is not process}

    def lose_power(self, tear: bool) -> None:
        """What was not synced is gone; with `tear`, by chance not all of it."""
        self.root.lose_power(self.random if tear else None)
        self.locks.clear()
        self.boots += 1
        self.used_bytes = sum(len(file.content) for file in walk_files(self.root))

    def wipe(self) -> None:
        """A blank disk is put in."""
        self.root = DirectoryNode()
        self.used_bytes = 0

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot: on stable storage, too."""
        file = self.find_file(path)
        file.content[position] ^= 1 << bit
        if file.synced_copy is not None and position < len(file.synced_copy):
            rotten = bytearray(file.synced_copy)
            rotten[position] ^= 1 << bit
            file.synced_copy = bytes(rotten)

    def find(self, path: str) -> FileNode | DirectoryNode:
        node: FileNode | DirectoryNode = self.root
        for name in parts_of(path):
            child = node.entries.get(name) if isinstance(node, DirectoryNode) else None
            if child is None:
                raise FileMissing(f"{path}: no such file or directory")
            node = child
        return node

    def find_file(self, path: str) -> FileNode:
        node = self.find(path)
        if isinstance(node, DirectoryNode):
            raise DiskError(f"{path}: is a directory")
        return node

    def find_directory(self, path: str) -> DirectoryNode:
        node = self.find(path)
        if isinstance(node, FileNode):
            raise DiskError(f"{path}: not a directory")
        return node

    def parent_of(self, path: str) -> tuple[DirectoryNode, str]:
        return self.find_directory(posixpath.dirname(normalize(path))), posixpath.basename(normalize(path))

    def take_space(self, length: int, path: str) -> None:
        if self.used_bytes + length > self.capacity_bytes:
            raise DiskFull(f"cannot append to {path}: no space left on device")
        self.used_bytes += length


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
        self._node.content += data
        self._touch()
        self._storage.trace.record("append", self._storage.host, self._path, len(data), checksum(data))

    def read_at(self, position: int, length: int) -> bytes:
        self._begin("read", self._storage.cost.read)
        assert position >= 0
        assert length >= 0
        return bytes(memoryview(self._node.content)[position : position + length])

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
        self._node.about_to_change(size)
        self._storage.used_bytes -= self.size - size
        del self._node.content[size:]
        self._touch()
        self._storage.trace.record("truncate", self._storage.host, self._path, size)

    def sync(self) -> None:
        self._begin("sync", self._storage.cost.sync)
        self._node.sync()
        self._storage.trace.record("sync", self._storage.host, self._path, self.size)

    def close(self) -> None:
        self._open = False

    def _touch(self) -> None:
        self._node.modified_ms = self._disk.clock.now_ms()


class SimulatedDirectoryLock:
    """Implements `ports.DirectoryLock`."""

    def __init__(self, storage: Storage, path: str, process: Process) -> None:
        self._storage = storage
        self._path = path
        self._process = process

    def release(self) -> None:
        if self._process.alive and self._storage.locks.get(self._path) is self._process:
            del self._storage.locks[self._path]


class SimulatedDisk:
    """Implements `ports.Disk` for one process on a machine's storage."""

    def __init__(self, storage: Storage, process: Process, clock: SimulatedClock) -> None:
        self.storage = storage
        self.process = process
        self.clock = clock
        self._in_background = False

    def spend(self, seconds: float) -> None:
        """A synchronous call holds the process; in the background it was paid for by waiting."""
        if not self._in_background:
            self.storage.loop.charge(seconds)

    def _begin(self, call: str, path: str) -> None:
        self.process.check_alive()
        self.storage.check_fault(call, path)

    def make_directory(self, path: str) -> None:
        self._begin("make_directory", path)
        node = self.storage.root
        for name in parts_of(path):
            child = node.entries.get(name)
            if child is None:
                child = node.entries[name] = DirectoryNode()
                self.storage.trace.record("make_directory", self.storage.host, path)
            if isinstance(child, FileNode):
                raise DiskError(f"cannot make directory {path}: {name} is a file")
            node = child

    def list_directory(self, path: str) -> list[str]:
        self._begin("list_directory", path)
        return sorted(self.storage.find_directory(path).entries)

    def exists(self, path: str) -> bool:
        self.process.check_alive()
        try:
            self.storage.find(path)
        except FileMissing:
            return False
        return True

    def file_size(self, path: str) -> int:
        self._begin("read", path)
        return len(self.storage.find_file(path).content)

    def open(self, path: str, create: bool = False) -> SimulatedFile:
        self._begin("open", path)
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
        if isinstance(node, DirectoryNode):
            raise DiskError(f"cannot open {path}: is a directory")
        return node

    def read_file(self, path: str) -> bytes:
        self._begin("read", path)
        self.spend(self.storage.cost.read)
        return bytes(self.storage.find_file(path).content)

    def replace_file(self, path: str, data: bytes, sync: bool = True) -> None:
        self._begin("replace_file", path)
        temporary = f"{path}.tmp"
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
            raise DiskError(f"cannot rename {source} to {target}: it is a directory")
        if replaced is not None and replaced is not moved:
            self._free(replaced)
        del old_parent.entries[old_name]
        new_parent.entries[new_name] = moved
        self.storage.trace.record("rename", self.storage.host, source, target)

    def remove(self, path: str) -> None:
        self._begin("remove", path)
        try:
            parent, name = self.storage.parent_of(path)
        except FileMissing:
            return
        node = parent.entries.get(name)
        if isinstance(node, DirectoryNode):
            raise DiskError(f"cannot remove {path}: is a directory")
        if node is not None:
            self._free(node)
            del parent.entries[name]
            self.storage.trace.record("remove", self.storage.host, path)

    def remove_tree(self, path: str) -> None:
        self._begin("remove", path)
        try:
            parent, name = self.storage.parent_of(path)
        except FileMissing:
            return
        node = parent.entries.get(name)
        if isinstance(node, FileNode):
            raise DiskError(f"cannot remove {path}: not a directory")
        if node is not None:
            self._free(node)
            del parent.entries[name]
            self.storage.trace.record("remove_tree", self.storage.host, path)

    def _free(self, node: FileNode | DirectoryNode) -> None:
        files = [node] if isinstance(node, FileNode) else walk_files(node)
        self.storage.used_bytes -= sum(len(file.content) for file in files)

    def sync_directory(self, path: str) -> None:
        self._begin("sync_directory", path)
        self.spend(self.storage.cost.sync)
        self.storage.find_directory(path).sync()
        self.storage.trace.record("sync_directory", self.storage.host, path)

    def lock(self, path: str) -> SimulatedDirectoryLock:
        self._begin("open", path)
        self._find_or_create(path, create=True)
        if normalize(path) in self.storage.locks:
            raise LockHeld(f"{path} is held by another process")
        self.storage.locks[normalize(path)] = self.process
        return SimulatedDirectoryLock(self.storage, normalize(path), self.process)

    def free_bytes(self, path: str) -> int:
        self._begin("read", path)
        self.storage.find(path)
        return max(0, self.storage.capacity_bytes - self.storage.used_bytes)

    def modified_ms(self, path: str) -> int:
        self._begin("read", path)
        return self.storage.find_file(path).modified_ms

    def boot_id(self) -> str:
        self.process.check_alive()
        return f"{self.storage.host}-boot-{self.storage.boots}"

    async def in_background(self, call: Callable[[], T]) -> T:
        """The work happens at some moment of the wait, as a thread's would; a crash may come before or after it."""
        self.process.check_alive()
        mean = self.storage.cost.background_mean
        before, after = (self.storage.random.expovariate(2 / mean) if mean else 0.0 for _ in range(2))
        await asyncio.sleep(before)
        self.process.check_alive()
        self._in_background = True
        try:
            result = call()
        finally:
            self._in_background = False
            self.process.check_alive()
        await asyncio.sleep(after)
        return result


def normalize(path: str) -> str:
    assert path, "an empty path"
    return posixpath.normpath(posixpath.join("/", path))


def parts_of(path: str) -> list[str]:
    return [part for part in normalize(path).split("/") if part]


def walk_files(node: DirectoryNode) -> list[FileNode]:
    files: list[FileNode] = []
    for name in sorted(node.entries):
        child = node.entries[name]
        files.extend([child] if isinstance(child, FileNode) else walk_files(child))
    return files
