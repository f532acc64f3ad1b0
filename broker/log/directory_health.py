"""The health of one log directory, and the ports that its logs share.

Owns: whether the directory may still be used, and which of its checkpoints are out of date. Leaves to others: logs.

Theory (KAFKA-10778, hardening rule 13): after an IO error it is unknown what the disk holds. So nothing is written to
the directory any more until the broker is restarted. A full disk is different: a failed append is cut again and
refused, and the directory heals when there is room. A failed sync counts as an IO error even for lack of space. A lack
of file descriptors says nothing about the disk. Nor does an entry that is missing or cannot be used, renamed or
removed: it concerns only its partition, unless the directory itself is gone."""

from collections.abc import Callable

from minibroker.broker.log.config import FREE_BYTES_TO_HEAL
from minibroker.broker.log.errors import StorageOffline
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.broker.log.segments.warm_segments import WarmSegments
from minibroker.runtime.ports import BadEntry, Clock, Disk, DiskError, DiskFull, FileMissing, OutOfDescriptors


class DirectoryHealth:
    """Shared by all logs of one log directory."""

    def __init__(
        self, disk: Disk, clock: Clock, path: str, tail_cache: TailCache, segments: WarmSegments | None = None
    ) -> None:
        self.disk = disk
        self.clock = clock
        self.path = path
        self.tail_cache = tail_cache
        self.segments = segments if segments is not None else WarmSegments()
        self.is_impaired = False
        """Offline or full: the only flag that the hot path checks."""
        self.offline_reason: str | None = None
        self.full_reason: str | None = None
        self.checkpoints_due: set[str] = set()
        """Names of checkpoints to write soon, because an offset in them fell; see offset_checkpoints."""
        self.on_offline: list[Callable[[str], None]] = []
        """Each is called in the middle of the failing operation, so it may only take note."""
        self.on_full: Callable[[bool], None] | None = None
        """Called in the same way; with False when there is room again."""
        self.on_no_descriptor: Callable[[str], None] = lambda _: None
        """Called in the same way each time a call found no free file descriptor, which does the directory no harm."""

    @property
    def offline(self) -> bool:
        return self.offline_reason is not None

    @property
    def full(self) -> bool:
        return self.full_reason is not None

    @property
    def reason(self) -> str | None:
        """Why the directory is offline or full."""
        return self.offline_reason or self.full_reason

    def require_online(self) -> None:
        """Raise unless the directory may be read and its files deleted."""
        if self.offline_reason is not None:
            raise StorageOffline(f"log directory {self.path} is offline: {self.offline_reason}")

    def require_writable(self) -> None:
        """Raise unless records may be added."""
        self.require_online()
        if self.full_reason is not None:
            raise DiskFull(f"log directory {self.path} is full: {self.full_reason}")

    def record_error(self, error: DiskError) -> None:
        """Draw the consequences of an error, which the caller raises again."""
        if isinstance(error, FileMissing):
            error = self._explained(error)
        if isinstance(error, StorageOffline | BadEntry):
            return
        if isinstance(error, OutOfDescriptors):
            self.on_no_descriptor(str(error))
            return
        self.is_impaired = True
        if isinstance(error, DiskFull):
            if self.full_reason is None:
                self.full_reason = str(error)
                if self.on_full is not None:
                    self.on_full(True)
        elif self.offline_reason is None:
            self.offline_reason = str(error)
            for listener in self.on_offline:
                listener(self.offline_reason)

    def _explained(self, error: FileMissing) -> DiskError:
        """The whole directory may be gone, and then the error is about more than one file."""
        try:
            return error if self.disk.exists(self.path) else DiskError(f"{self.path} is gone: {error}")
        except DiskError as reason:
            return DiskError(f"{error}; {reason}")

    def own_file_failed(self, error: DiskError) -> None:
        """The same for a file of the directory itself, which it cannot do without."""
        self.record_error(DiskError(str(error)) if isinstance(error, BadEntry) else error)

    def try_heal(self) -> bool:
        """Whether records may be added; checks whether a full directory has room again."""
        if not self.is_impaired:
            return True
        if self.offline or not self.disk.has_room(self.path, FREE_BYTES_TO_HEAL):
            return False
        self.full_reason = None
        self.is_impaired = False
        if self.on_full is not None:
            self.on_full(False)
        return True
