"""`leader-epoch-checkpoint`: reading it, and rebuilding what it lacks from the batches (KIP-101, KAFKA-10432).

Owns: the file and its repair at a start. Leaves to others: decisions by epochs, which the pure core's epoch history
makes; it takes over these entries and passes back what is to be written.
"""

import itertools
from bisect import bisect_right
from operator import itemgetter

from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import (
    EPOCH_CHECKPOINT,
    EPOCHS_FILE_BYTES_MAX,
    CorruptCheckpoint,
    EpochEntry,
    LogOwner,
    parse_epochs_and_owner,
)
from minibroker.runtime.ports import Disk, FileMissing, FileTooLarge

__all__ = [
    "EpochEntry",
    "EpochRebuild",
    "contradicted_at",
    "epoch_at",
    "epoch_file_path",
    "epochs_not_used",
    "read_epoch_file",
    "truncate_epochs",
]

NO_EPOCH = -1


def epoch_file_path(directory: str) -> str:
    return f"{directory}/{EPOCH_CHECKPOINT}"


def epochs_not_used(directory: str, reason: str) -> FileNotUsed:
    consequence = "the leader epochs are rebuilt from the batches"
    return FileNotUsed(path=epoch_file_path(directory), reason=reason, consequence=consequence)


def read_epoch_file(
    disk: Disk, directory: str, found: list[FileNotUsed], owner: LogOwner | None = None
) -> list[EpochEntry]:
    """The stored entries; none if there is no file, if it does not name `owner` (None: not known, so not asked for), or
    if it makes no sense (entries must rise in both columns). `found` gets an event for a file that is not used."""
    path = epoch_file_path(directory)
    try:
        entries, named = parse_epochs_and_owner(disk.read_file(path, EPOCHS_FILE_BYTES_MAX))
    except FileMissing:
        return []
    except (CorruptCheckpoint, FileTooLarge) as error:
        found.append(epochs_not_used(directory, str(error)))
        return []
    if owner is not None and named != owner:
        reason = "it names no owner" if named is None else "it is of partition {1} of topic id {0}".format(*named)
        found.append(epochs_not_used(directory, reason))
        return []
    for (epoch, start), (later_epoch, later_start) in itertools.pairwise(entries):
        if epoch >= later_epoch or start >= later_start:
            found.append(epochs_not_used(directory, "its entries do not rise"))
            return []
    return entries


class EpochRebuild:
    """Entries that grow as batches are read in order."""

    def __init__(self, entries: list[EpochEntry]) -> None:
        self.entries = list(entries)

    @property
    def latest(self) -> int:
        """The highest epoch so far; epoch 0 is an epoch like any other (KAFKA-10432), so 'none' is -1."""
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        """Add the epoch of a batch that is the first of a newer epoch."""
        self.keep_below(start_offset)
        self.entries.append((epoch, start_offset))

    def keep_below(self, offset: int) -> None:
        """Drop entries that start at `offset` or later: the batches supply them, or the log does not reach so far."""
        while self.entries and self.entries[-1][1] >= offset:
            self.entries.pop()


def truncate_epochs(entries: list[EpochEntry], start_offset: int, end_offset: int) -> list[EpochEntry]:
    """Cut both ends to the log (replication rules, section 8): drop entries that start at or after the end, and those
    that start at or before the start, except the last of these, which then begins at the start."""
    kept = [entry for entry in entries if entry[1] < end_offset]
    before = [entry for entry in kept if entry[1] <= start_offset]
    if before:
        kept = [(before[-1][0], start_offset), *kept[len(before) :]]
    return kept


def contradicted_at(
    stored: list[EpochEntry], found: list[EpochEntry], start: int, end: int, may_be_older: bool = False
) -> int | None:
    """The first offset in [start, end) where the stored entries name another epoch than the batches there, or None.

    stored: entries of a file, possibly without those of batches in front of its first one.
    found: entries of the batches in the range. Both as (epoch, start offset), rising.
    may_be_older: the file may lack later epochs, so that only a higher one than that of the batches contradicts them,
        or an epoch that begins elsewhere, also outside of the range.
    """
    if may_be_older and (moved := _epoch_moved_at(stored, found)) is not None:
        return moved
    changes = {first for _, first in [*stored, *found] if start < first < end}
    for offset in sorted({start} | changes) if start < end else ():
        named, there = epoch_at(stored, offset), epoch_at(found, offset)
        if named > there or (named not in (NO_EPOCH, there) and not may_be_older):
            return offset
    return None


def _epoch_moved_at(stored: list[EpochEntry], found: list[EpochEntry]) -> int | None:
    """The first offset where an epoch begins in one of them and not in the other, or None. An epoch has one leader, so
    it begins at the same offset in each log, and in each state of the file that a power cut may leave (seed 17520936).
    The first entries may be cut off: they begin where their log does."""
    starts = dict(stored[1:])
    return min(
        (min(start, starts[epoch]) for epoch, start in found[1:] if starts.get(epoch, start) != start), default=None
    )


def epoch_at(entries: list[EpochEntry], offset: int) -> int:
    """The epoch of the batch that holds the offset; -1 if the entries begin behind it."""
    number = bisect_right(entries, offset, key=itemgetter(1))
    return entries[number - 1][0] if number else NO_EPOCH
