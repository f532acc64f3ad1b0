"""Errors of logs besides those of the disk (`runtime.ports.DiskError` and its subclasses)."""

from minibroker.runtime.ports import DiskError


class StorageOffline(DiskError):
    """The log directory had an IO error before and is not used any more; nothing was done."""


class CorruptLog(Exception):
    """Stored bytes differ from the batches that were written. They are never served; other replicas have good ones."""

    def __init__(self, path: str, position: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at position {position}: {reason}")
        self.path = path
        self.position = position


class LogDirectoryError(Exception):
    """The log directory cannot be used by this broker; the message says why and what to do."""
