"""The simulated disk of one machine: what is written, what is synced, what a crash leaves of it, and its faults.

Theory: a killed process loses nothing that it wrote, for the kernel holds it. Power loss keeps what was synced: of a
file the bytes of its last `sync`, and of a directory the entries of its last `sync_directory`; a new or renamed file in
a directory that was not synced is gone or old again. Of unsynced appended bytes a torn prefix may survive, with a hole
of zeros or bytes that were never written. Beyond that a disk may rot, hang, fill up, fail calls, forget what a failed
sync should have made stable, lie about syncing, and write to the wrong place; and its machine may run out of file
descriptors. There is one test per sentence of this model.
"""

import posixpath
import random
from collections.abc import Callable, Iterator
from functools import lru_cache

import msgspec

from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, FileMissing, OutOfDescriptors, SyncFailed
from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.observations import DiskCallFailed, WorldObservers
from minibroker.simulation.world.trace import Trace

CAPACITY_BYTES = 1 << 40

GARBAGE_BYTES_MAX = 64
"""A torn write may end in bytes that were never written."""

GARBAGE_PROBABILITY = 0.3
HOLE_PROBABILITY = 0.1
SECTOR_BYTES = 512
"""A torn write may lack a sector in its middle: pages reach the platter in any order."""

PATHS_KEPT = 1_000
"""Paths kept with their parts: brokers use the same few again and again."""

LINKS_MAX = 40
"""As many links as Linux follows, one after the other."""

UNLIMITED = 1_000_000_000

SYNCS = frozenset({"sync", "sync_directory"})
CHANGES = SYNCS | {"append", "write_at", "truncate", "replace_file", "rename", "remove", "make_directory"}
"""Calls after which a crash leaves another state than before."""


class DiskCallCost(msgspec.Struct):
    """Virtual seconds that synchronous calls take from the process; background work takes none."""

    append: float = 0.0
    read: float = 0.0
    sync: float = 0.001
    background_mean: float = 0.002


class Fault(msgspec.Struct):
    """An injected IO error: calls of this name on paths with this prefix fail, this many times."""

    call: str
    path_prefix: str = "/"
    times: int = UNLIMITED
    is_full: bool = False
    """It fails for lack of space; a sync then raises SyncFailed as always."""
    forgets: bool = False
    """What a failed sync should have made stable never will be, though later syncs succeed (as on Linux)."""
    no_descriptor: bool = False
    """It fails for lack of a file descriptor."""
    is_bad_entry: bool = False
    """It fails because of what is there: a mount point, for example."""


class FileNode:
    """A file: bytes as its readers see them, and which of them are on stable storage."""

    def __init__(self) -> None:
        self.content = bytearray()
        self.synced_size = 0
        self.synced_copy: bytes | None = None
        """The synced bytes, once they are no longer a prefix of the content."""
        self.cached_only: list[tuple[int, int]] = []
        """Ranges that only the kernel's cache holds, although it considers them stable: a sync of them failed."""
        self.modified_ms = 0

    def about_to_change(self, position: int) -> None:
        """Bytes from `position` on will be cut or overwritten."""
        if position < self.synced_size and self.synced_copy is None:
            self.synced_copy = bytes(self.content[: self.synced_size])

    def cut(self, size: int) -> None:
        self.about_to_change(size)
        del self.content[size:]
        self.cached_only = [(start, min(end, size)) for start, end in self.cached_only if start < size]

    def sync(self) -> None:
        self.synced_size = len(self.content)
        self.synced_copy = None
        if self.cached_only:
            stable = bytearray(self.content)
            for start, end in self.cached_only:
                stable[start:end] = bytes(end - start)
            self.synced_copy = bytes(stable)

    def forget_unsynced(self) -> None:
        """A sync failed, and the kernel considers the pages clean from now on."""
        if self.synced_size < len(self.content):
            self.cached_only.append((self.synced_size, len(self.content)))

    def overwrite_on_platter(self, position: int, data: bytes) -> None:
        """Bytes change on stable storage without a write to this file."""
        data = data[: max(0, len(self.content) - position)]
        self.content[position : position + len(data)] = data
        if self.synced_copy is not None:
            stable = bytearray(self.synced_copy)
            end = min(position + len(data), len(stable))
            stable[position:end] = data[: max(0, end - position)]
            self.synced_copy = bytes(stable)

    def may_hold(self, position: int, byte: int) -> bool:
        """Whether readers see this byte there, or would after a loss of power."""
        copies = (self.content, self.synced_copy or b"")
        return any(position < len(copy) and copy[position] == byte for copy in copies)

    def lose_power(self, rng: random.Random | None) -> None:
        """Keep what was synced; with `rng`, maybe a torn piece of what was appended after it."""
        if self.synced_copy is not None:
            self.content = bytearray(self.synced_copy)
        else:
            unsynced = len(self.content) - self.synced_size
            kept = rng.randrange(unsynced + 1) if rng is not None and unsynced else 0
            del self.content[self.synced_size + kept :]
            if rng is not None and kept:
                self._tear(rng)
        self.cached_only.clear()
        self.sync()

    def _tear(self, rng: random.Random) -> None:
        if rng.random() < GARBAGE_PROBABILITY:
            self.content += rng.randbytes(rng.randrange(1, GARBAGE_BYTES_MAX))
        if rng.random() < HOLE_PROBABILITY:
            start = max(
                self.synced_size, rng.randrange(self.synced_size, len(self.content)) // SECTOR_BYTES * SECTOR_BYTES
            )
            end = min(start + SECTOR_BYTES, len(self.content))
            self.content[start:end] = bytes(end - start)


class LinkNode(FileNode):
    """A symbolic link. No byte can be written to it: file calls follow it."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.target = target
        """An absolute path; it may not exist."""


class SpecialNode(FileNode):
    """A pipe, a socket or a device: not usable as a file."""


class DirectoryNode:
    """A directory: names now, and names on stable storage."""

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | DirectoryNode] = {}
        self.synced_entries: dict[str, FileNode | DirectoryNode] = {}
        self.cached_only: dict[str, FileNode | DirectoryNode | None] = {}
        """Names that only the kernel's cache holds so (None: no longer holds), although it considers them stable."""

    def sync(self) -> None:
        stable = self.synced_entries
        self.synced_entries = dict(self.entries)
        for name, held in list(self.cached_only.items()):
            if self.entries.get(name) is not held:  # it changed again, and is synced like any other now
                del self.cached_only[name]
            elif name in stable:
                self.synced_entries[name] = stable[name]
            else:
                self.synced_entries.pop(name, None)

    def forget_unsynced(self) -> None:
        """A sync failed, and the kernel considers the names stable from now on."""
        for name in sorted(self.entries.keys() | self.synced_entries.keys()):
            if self.entries.get(name) is not self.synced_entries.get(name):
                self.cached_only[name] = self.entries.get(name)

    def lose_power(self, rng: random.Random | None) -> None:
        self.entries = dict(self.synced_entries)
        self.cached_only.clear()
        for name in sorted(self.entries):
            self.entries[name].lose_power(rng)


class SimulatedStorage:
    """The disk of one machine: it survives the machine's processes. Faults are calls on it."""

    def __init__(
        self, host: str, loop: VirtualLoop, rng: random.Random, trace: Trace, observers: WorldObservers | None = None
    ) -> None:
        self.host = host
        self.loop = loop
        self.random = rng
        self.trace = trace
        self._observers = observers or WorldObservers()
        self.cost = DiskCallCost()
        self.capacity_bytes = CAPACITY_BYTES
        self.used_bytes = 0
        self.faults: list[Fault] = []
        self.root = DirectoryNode()
        self.locks: dict[str, Process] = {}
        self.boots = 1
        self.ignores_sync = False
        """A lying disk: it reports syncs that it has not done."""
        self.lacks_descriptors = False
        """No call gets a file descriptor; open files stay open."""
        self._has_forgotten = False
        """A sync has lost something since the start."""
        self._hangs_until = 0.0
        self._misdirected: list[str] = []
        self._trap: tuple[int, Callable[[], None]] | None = None

    def trap(self, calls: int, act: Callable[[], None]) -> None:
        """Run `act` instead of the n-th call from now on that changes something: the process ends between two of its
        calls."""
        assert calls > 0
        self._trap = calls, act

    def clear_trap(self) -> None:
        """Remove the trap."""
        self._trap = None

    def fail(
        self,
        call: str,
        path_prefix: str = "/",
        times: int = UNLIMITED,
        is_full: bool = False,
        forgets: bool = False,
        no_descriptor: bool = False,
        is_bad_entry: bool = False,
    ) -> Fault:
        """Inject an error; `heal` removes it. Calls: append, read, write_at, truncate, sync, open, replace_file,
        rename, remove, list_directory, make_directory, sync_directory."""
        fault = Fault(call, path_prefix, times, is_full, forgets, no_descriptor, is_bad_entry)
        self.faults.append(fault)
        return fault

    def heal(self) -> None:
        """From now on the disk works. Changes to its bytes stay."""
        self.faults.clear()
        self._misdirected.clear()
        self.ignores_sync = False
        self.lacks_descriptors = False
        self._hangs_until = 0.0
        self.capacity_bytes = CAPACITY_BYTES

    @property
    def boot_id(self) -> str:
        """Boot id of its machine, since the last power loss."""
        return f"{self.host}-boot-{self.boots}"

    def hang(self, seconds: float) -> None:
        """Every write, read and sync lasts until then."""
        self._hangs_until = self.loop.time() + seconds

    @property
    def hangs_for(self) -> float:
        """Seconds until the disk answers again."""
        return max(0.0, self._hangs_until - self.loop.time()) if self._hangs_until else 0.0

    def fill(self, free_bytes: int = 0) -> None:
        """Foreign files leave this much room."""
        self.capacity_bytes = self.used_bytes + free_bytes

    def misdirect_next_append(self, path_prefix: str = "/") -> None:
        """The bytes of the next append below this path land in some other file; zeros take their place."""
        self._misdirected.append(path_prefix)

    def is_misdirected(self, path: str) -> bool:
        """Whether this append is misdirected; asking consumes the fault."""
        for prefix in self._misdirected:
            if path.startswith(prefix):
                self._misdirected.remove(prefix)
                return True
        return False

    def scribble_somewhere(self, path: str, data: bytes) -> None:
        """Data for `path` overwrites another file, if there is one."""
        others = [(name, file) for name, file in self.files("/") if name != normalize(path) and file.content]
        if others:
            name, file = self.random.choice(others)
            position = self.random.randrange(len(file.content))
            file.overwrite_on_platter(position, data)
            self.trace.record("misdirected", self.host, path, name, position)

    def check_fault(self, call: str, path: str) -> None:
        if self._trap is not None and call in CHANGES:
            self._step_to_trap()
        if self.faults:
            try:
                self._meet_fault(call, path)
            except DiskError as error:
                self._observers.notify(DiskCallFailed(self.host, call, path, error))
                raise

    def _meet_fault(self, call: str, path: str) -> None:
        for fault in self.faults:
            if fault.call == call and path.startswith(fault.path_prefix) and fault.times > 0:
                fault.times -= 1
                self.trace.record("disk-fault", self.host, call, path)
                if fault.forgets and call in SYNCS:
                    self.forget_unsynced(path)
                if fault.no_descriptor:
                    raise OutOfDescriptors(f"cannot {call} {path}: too many open files (simulated)")
                if fault.is_bad_entry:
                    raise BadEntry(f"cannot {call} {path}: device or resource busy (simulated)")
                if call in SYNCS:
                    reason = "no space left on device" if fault.is_full else "input/output error"
                    raise SyncFailed(f"cannot {call} {path}: {reason} (simulated)")
                if fault.is_full:
                    raise DiskFull(f"cannot {call} {path}: no space left on device (simulated)")
                raise DiskError(f"cannot {call} {path}: input/output error (simulated)")

    def _step_to_trap(self) -> None:
        assert self._trap is not None
        calls, act = self._trap
        self._trap = None if calls == 1 else (calls - 1, act)
        if calls == 1:
            act()

    def check_descriptor(self, call: str, path: str) -> None:
        """Checked by each call that takes a descriptor."""
        if self.lacks_descriptors:
            error = OutOfDescriptors(f"cannot {call} {path}: too many open files (simulated)")
            self._observers.notify(DiskCallFailed(self.host, call, path, error))
            raise error

    def link(self, path: str, target: str) -> None:
        """A foreign program makes a symbolic link, on stable storage."""
        self._put(path, LinkNode(target))

    def make_special(self, path: str) -> None:
        """A foreign program makes a pipe, a socket or a device, on stable storage."""
        self._put(path, SpecialNode())

    def _put(self, path: str, node: FileNode) -> None:
        parent, name = self.parent_of(path)
        assert name not in parent.entries, f"{path} is there already"
        parent.entries[name] = node
        parent.sync()

    def provision(self, path: str) -> None:
        """Make a directory that exists before the machine's first start, on stable storage."""
        node = self.root
        for name in parts_of(path):
            child = node.entries.setdefault(name, DirectoryNode())
            assert isinstance(child, DirectoryNode)
            node.sync()
            node = child

    def process_ended(self, process: Process) -> None:
        self.locks = {path: holder for path, holder in self.locks.items() if holder is not process}

    def lose_power(self, tear: bool) -> None:
        """Unsynced data is gone; with `tear`, some of it may survive by chance."""
        self.root.lose_power(self.random if tear else None)
        self.locks.clear()
        self.boots += 1
        self.used_bytes = sum(len(file.content) for _, file in walk_files(self.root))

    def wipe(self) -> None:
        """Replace the disk by a blank one."""
        self.root = DirectoryNode()
        self.used_bytes = 0

    def forget_unsynced(self, path: str) -> None:
        """A sync of this file or directory failed, and the kernel considers it stable from now on."""
        self._has_forgotten = True
        self.find(path).forget_unsynced()

    @property
    def holds_forgotten(self) -> bool:
        """Whether the kernel shows anything that a failed sync has lost."""
        return self._has_forgotten and any(node.cached_only for node in walk_nodes(self.root))

    def keep_forgotten(self) -> None:
        """Make stable what the kernel shows."""
        for node in walk_nodes(self.root):
            if node.cached_only:
                node.cached_only.clear()
                node.sync()

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Bit rot: on stable storage, too."""
        file = self.find_file(path)
        file.overwrite_on_platter(position, bytes([file.content[position] ^ (1 << bit)]))

    def rot(self, path_prefix: str = "/") -> tuple[str, int] | None:
        """Flip one bit of a file below this path: (its path, position), or None if there is no byte."""
        files = [(name, file) for name, file in self.files(path_prefix) if file.content]
        if not files:
            return None
        name, file = self.random.choice(files)
        position = self.random.randrange(len(file.content))
        self.flip_bit(name, position, self.random.randrange(8))
        self.trace.record("bit-rot", self.host, name, position)
        return name, position

    def files(self, path_prefix: str) -> list[tuple[str, FileNode]]:
        """All files with this path prefix, in the order of their paths."""
        return [(path, file) for path, file in walk_files(self.root) if path.startswith(path_prefix)]

    def find(self, path: str, links: int = LINKS_MAX) -> FileNode | DirectoryNode:
        node: FileNode | DirectoryNode = self.root
        parts = parts_of(path)
        for number, name in enumerate(parts):
            child = node.entries.get(name) if isinstance(node, DirectoryNode) else None
            if child is None:
                raise FileMissing(f"{path}: no such file or directory")
            if type(child) is LinkNode:
                if not links:
                    raise BadEntry(f"{path}: too many levels of symbolic links")
                return self.find(posixpath.join(child.target, *parts[number + 1 :]), links - 1)
            node = child
        return node

    def may_lead_to(self, path: str, wanted: FileNode) -> bool:
        """Whether this is the file's path, or would be after a loss of power."""
        now: FileNode | DirectoryNode | None = self.root
        synced = now
        for name in parts_of(path):
            now = now.entries.get(name) if isinstance(now, DirectoryNode) else None
            synced = synced.synced_entries.get(name) if isinstance(synced, DirectoryNode) else None
        return wanted is now or wanted is synced

    def entry(self, path: str) -> FileNode | DirectoryNode | None:
        """The entry of that name itself, even if it is a link."""
        parent, name = self.parent_of(path)
        return parent.entries.get(name)

    def find_file(self, path: str) -> FileNode:
        node = self.find(path)
        if isinstance(node, DirectoryNode):
            raise BadEntry(f"{path}: is a directory")
        if isinstance(node, SpecialNode):
            raise BadEntry(f"{path}: is a pipe, a socket or a device")
        return node

    def find_directory(self, path: str) -> DirectoryNode:
        node = self.find(path)
        if isinstance(node, FileNode):
            raise BadEntry(f"{path}: not a directory")
        return node

    def parent_of(self, path: str) -> tuple[DirectoryNode, str]:
        parent, name = split(path)
        return self.find_directory(parent), name

    def take_space(self, length: int, path: str) -> None:
        if self.used_bytes + length > self.capacity_bytes:
            raise DiskFull(f"cannot append to {path}: no space left on device")
        self.used_bytes += length


@lru_cache(maxsize=PATHS_KEPT)
def normalize(path: str) -> str:
    assert path, "an empty path"
    return posixpath.normpath(posixpath.join("/", path))


@lru_cache(maxsize=PATHS_KEPT)
def split(path: str) -> tuple[str, str]:
    """Its directory, and its name there."""
    return posixpath.split(normalize(path))


@lru_cache(maxsize=PATHS_KEPT)
def parts_of(path: str) -> tuple[str, ...]:
    return tuple(part for part in normalize(path).split("/") if part)


def walk_files(node: DirectoryNode, path: str = "") -> list[tuple[str, FileNode]]:
    """Each file below a directory, with its path."""
    files: list[tuple[str, FileNode]] = []
    for name in sorted(node.entries):
        child, below = node.entries[name], f"{path}/{name}"
        files.extend([(below, child)] if isinstance(child, FileNode) else walk_files(child, below))
    return files


def walk_nodes(node: FileNode | DirectoryNode) -> Iterator[FileNode | DirectoryNode]:
    """The node and everything below it."""
    yield node
    if isinstance(node, DirectoryNode):
        for name in sorted(node.entries):
            yield from walk_nodes(node.entries[name])
