"""The ports: everything that broker, controller and client may know of the outside world.

Owns: the interfaces (ports) of network, disk, coordination (ZooKeeper), wall clock and randomness, and the errors they
raise. Leaves to others: every implementation. The real adapters are in `adapters/`, the virtual ones in
`simulation/world/`, and one conformance suite checks both against this module.

Loop time is not a port: code uses the event loop's (`loop.time()`, `asyncio.sleep`, `asyncio.timeout`), which the
virtual loop controls. Wall-clock time (timestamps for people and retention) and durations below a millisecond are.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from minibroker.runtime.observer import UNOBSERVED, Observer

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


# --------------------------------------------------------------------------------------------------------- network
class Transport(Protocol):
    """The writing half of one connection; the semantics are those of `asyncio.Transport` under uvloop.

    What is passed to `write` is sent later and NOT copied: pass only bytes that do not change afterwards.
    """

    def write(self, data: Buffer) -> None: ...
    def writelines(self, list_of_data: Sequence[Buffer]) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def get_extra_info(self, name: str, default: Any = None) -> Any: ...


class Listener(Protocol):
    """An open listening socket."""

    @property
    def port(self) -> int:
        """The port it listens on; where 0 was requested, the free port that it got."""
        ...

    async def close(self) -> None:
        """Stop accepting. Open connections stay open: their owner closes them."""
        ...


class Network(Protocol):
    """TCP. Connections are `asyncio.BufferedProtocol` objects made by the caller's factory."""

    async def listen(self, factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> Listener:
        """Accept connections; raises AddressInUse (naming the address) or NetworkError."""
        ...

    async def connect(
        self, factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int, timeout_ms: int
    ) -> tuple[Transport, asyncio.BufferedProtocol]:
        """Open a connection; raises NetworkError naming the address and the cause. TCP_NODELAY is set."""
        ...


class NetworkError(Exception):
    """Caused by the environment: no route, refused, reset, timed out, address in use."""


class ConnectionRefused(NetworkError):
    """A kernel answered that nothing listens there: a sign that the process is gone."""


class AddressInUse(NetworkError):
    """The port is taken."""


# ------------------------------------------------------------------------------------------------------------ disk
class File(Protocol):
    """One open file. Calls are synchronous: an append is part of the decision that caused it.

    Errors: DiskError and its kinds DiskFull and SyncFailed.
    """

    @property
    def size(self) -> int:
        """Bytes written so far, kept in memory (no system call)."""
        ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """Write all parts at the end. On an error none of them stays: the bytes already written are truncated again. If
        that fails, too, the error is a plain DiskError, whatever the first error was."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes from `position`; shorter only at the end of the file."""
        ...

    def read_into(self, position: int, buffer: memoryview) -> int:
        """The same into a buffer that the caller reuses: new memory for each piece of a long file costs more than
        reading it. Returns the number of bytes read; less than the buffer holds only at the end of the file."""
        ...

    def write_at(self, position: int, data: Buffer) -> None:
        """Overwrite in place (index repair, tests); never extends the file."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the tail."""
        ...

    def sync(self) -> None:
        """Return when everything written is on stable storage (fsync). Raises SyncFailed, also for lack of space."""
        ...

    def close(self) -> None: ...


class DirectoryLock(Protocol):
    """An exclusive lock held until `release` or the end of the process."""

    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Paths are strings with '/'. Lists are sorted. Errors: DiskError and its kinds.

    A file is a regular file or a link to one. Anything else is a BadEntry, found without blocking on it."""

    def make_directory(self, path: str) -> None:
        """With parents; fine if it exists."""
        ...

    def list_directory(self, path: str) -> list[str]: ...
    def exists(self, path: str) -> bool:
        """Whether the name is taken, even by a dangling link. Raises DiskError if the disk does not say."""
        ...

    def file_size(self, path: str) -> int:
        """Of a regular file; BadEntry of anything else."""
        ...

    def open(self, path: str, create: bool = False) -> File:
        """Open for reading and appending; FileMissing if it does not exist and `create` is false."""
        ...

    def read_file(self, path: str, limit: int) -> bytes:
        """All of a small file; FileTooLarge if it has more bytes than `limit`: then they are not read."""
        ...

    def replace_file(self, path: str, data: bytes, sync: bool = True) -> None:
        """Atomic: temp file, fsync, rename, fsync of the directory (without the fsyncs if `sync` is false)."""
        ...

    def rename(self, source: str, target: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove a file; fine if it is gone already."""
        ...

    def remove_tree(self, path: str) -> str | None:
        """Remove a directory and everything in it; fine if it is gone already. If it is a link, only the link is
        removed, and its target is returned."""
        ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in it are on stable storage. Raises SyncFailed, also for lack of space."""
        ...

    def lock(self, path: str) -> DirectoryLock:
        """Create and lock the file; LockHeld if another process holds it."""
        ...

    def free_bytes(self, path: str) -> int: ...
    def has_room(self, path: str, size: int) -> bool:
        """Whether a new file of that size would fit into the directory. A quota, or a lack of inodes, leaves bytes
        free that cannot be used."""
        ...

    def modified_ms(self, path: str) -> int:
        """Wall-clock time of the last change of a file."""
        ...

    def boot_id(self) -> str:
        """Changes when the machine (not the process) restarts: separates a killed process from a lost machine."""
        ...

    async def in_background(self, call: Callable[[], T]) -> T:
        """Run blocking disk work (fsync, recovery, deletion) off the event loop; one bounded pool. A cancelled caller
        goes on when the work is over, or will never begin: it may do it again at once. See `disk_error_of`."""
        ...


class DiskError(Exception):
    """An IO error: its log directory must not be used any more."""


def disk_error_of(error: BaseException) -> DiskError | None:
    """The disk's error in what `Disk.in_background` raised, also if the caller was cancelled while the work failed: a
    kernel reports a failed sync only once."""
    found = error.__cause__ if isinstance(error, asyncio.CancelledError) else error
    return found if isinstance(found, DiskError) else None


class DiskFull(DiskError):
    """No space left (ENOSPC, EDQUOT), found before anything was promised to be stable: may pass."""


class SyncFailed(DiskError):
    """A sync of a file or directory failed, for any reason, including lack of space. Never passes (hardening rule 13
    says why)."""


class BadEntry(DiskError):
    """The entry at that path cannot be used as it is: a directory, pipe, socket or device where a file belongs, a loop
    of links, a mount point to be renamed, no permission, or nothing at all. It does not mean that the disk is bad."""


class FileMissing(BadEntry):
    """No such file or directory."""


class FileTooLarge(BadEntry):
    """More bytes than any valid file of that name has: reading it would use up the memory."""


class LockHeld(DiskError):
    """Another process uses this directory."""


class OutOfDescriptors(DiskError, NetworkError):
    """This process (EMFILE) or machine (ENFILE) has no file descriptor left: nothing was done. Neither the disk nor the
    peer is at fault, and it passes when something is closed: the caller tries again later."""


# ---------------------------------------------------------------------------------------------------- coordination
class Stat(msgspec.Struct, frozen=True):
    """ZooKeeper's metadata of a node."""

    version: int
    czxid: int
    mzxid: int
    ephemeral_owner: int
    """Session that owns it; 0 for a persistent node."""
    num_children: int


class CreateOp(msgspec.Struct, frozen=True, kw_only=True, tag="create"):
    path: str
    data: bytes
    ephemeral: bool = False
    sequence: bool = False


class SetOp(msgspec.Struct, frozen=True, kw_only=True, tag="set"):
    path: str
    data: bytes
    version: int = -1


class DeleteOp(msgspec.Struct, frozen=True, kw_only=True, tag="delete"):
    path: str
    version: int = -1


class CheckOp(msgspec.Struct, frozen=True, kw_only=True, tag="check"):
    path: str
    version: int


Operation = CreateOp | SetOp | DeleteOp | CheckOp


class SessionEvent(msgspec.Struct, frozen=True):
    """A change of the session's state. Delivered on the event loop, in order."""

    kind: str
    """'connected' (also after an outage, same session), 'suspended', 'expired' (ephemeral nodes are gone) or
    'new-session'."""
    session_id: int


Watcher = Callable[[], None]
"""Called at most once, on the event loop, when the watched node changed. Also called when the connection is back after
an outage, in the same session or a new one, because a change may have been missed. Read the node again then."""


class Coordination(Protocol):
    """ZooKeeper, one session at a time; after an expiry the adapter opens a new session and reports it.

    Every call ends within the timeout given at creation: with an answer, one of the errors below, or
    WriteOutcomeUnknown. After that one the caller reads before it acts again: the write may still happen later.
    """

    @property
    def session_id(self) -> int: ...

    @property
    def negotiated_timeout_ms(self) -> int:
        """What ZooKeeper granted (2 to 20 ticks), not what was requested."""
        ...

    @property
    def session_deadline(self) -> float:
        """Loop time until which ZooKeeper is certain to keep this session: the time at which the last answered
        heartbeat was SENT, plus the negotiated timeout (hardening rule 8). After it a broker must treat itself as
        fenced."""
        ...

    @property
    def went_back(self) -> tuple[int, int] | None:
        """The newest transaction that this process had seen, and the one that a later session found as the newest, if
        that was an earlier one: ZooKeeper's data was wiped, or restored from an older copy. None: this never came."""
        ...

    async def start(self) -> None:
        """Connect; raises CoordinationUnavailable naming the servers."""
        ...

    async def close(self) -> None:
        """End the session cleanly: ephemeral nodes vanish at once. No 'expired' event follows."""
        ...

    def add_session_listener(self, listener: Callable[[SessionEvent], None]) -> None: ...
    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """Raises NoNode; then no watch remains."""
        ...

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """Watches creation, too."""
        ...

    async def get_children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """Sorted names. Raises NoNode."""
        ...

    async def create(
        self,
        path: str,
        data: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        make_parents: bool = False,
        is_secret: bool = False,
    ) -> tuple[str, Stat]:
        """The real path (with its sequence number) and its Stat. `is_secret`: where brokers authenticate themselves to
        ZooKeeper, only they can read it. Raises NodeExists, NoNode (parent missing)."""
        ...

    async def set(self, path: str, data: bytes, version: int = -1) -> Stat:
        """Raises BadVersion, NoNode."""
        ...

    async def delete(self, path: str, version: int = -1) -> None:
        """Raises BadVersion, NoNode, NotEmpty."""
        ...

    async def protect(self, paths: Sequence[str]) -> list[str]:
        """If this session has credentials: returns those of `paths` that other sessions may still change, because they
        were created without credentials. If there are none, removes every other session's right to create and delete
        nodes at the root. Without credentials: does nothing."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """All or nothing. Results: create -> path, set -> Stat, delete and check -> None. If any fails, raises that
        operation's error with `.index` set."""
        ...


class CoordinationError(Exception):
    """Base of ZooKeeper's errors; `index` is the failed operation of a multi."""

    index: int | None = None


class NoNode(CoordinationError): ...


class NodeExists(CoordinationError): ...


class BadVersion(CoordinationError): ...


class NotEmpty(CoordinationError): ...


class NotAuthorized(CoordinationError):
    """The node's ACL requires authentication, and this session is not authenticated."""


class CoordinationUnavailable(CoordinationError):
    """ZooKeeper cannot be reached; nothing was done."""


class SessionExpired(CoordinationError):
    """The session is gone; nothing was done."""


class WriteOutcomeUnknown(CoordinationError):
    """The connection broke or the deadline passed while waiting: the write may have happened, or may still happen."""


# ----------------------------------------------------------------------------------------------- clock, randomness
class Clock(Protocol):
    """Wall-clock time and fine durations. Never used for decisions of replication: those use the loop's time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970 (may jump)."""
        ...

    def monotonic_ns(self) -> int:
        """For measuring durations below a millisecond."""
        ...


class Runtime(msgspec.Struct, frozen=True):
    """The bundle of ports that one process is given at its start."""

    network: Network
    disk: Disk
    clock: Clock
    random: random.Random
    """Seeded in a simulation; from the operating system otherwise."""
    open_coordination: Callable[[str, int], Coordination]
    """(servers 'HOST:PORT,..', session timeout in ms) -> a Coordination, not started yet."""
    observer: Observer = UNOBSERVED
    open_files_max: int = 1 << 30
    """File descriptors that the process may have, connections included."""
