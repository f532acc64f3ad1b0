"""The `.snapshot` files of one partition: producer states as of the log end offset in the file name.

Owns: which snapshots exist, and finding the newest sound one at or below an offset. Leaves to others: their content. A
snapshot that is missing, damaged, or from another log or offset costs only time if an older one and the batches after
it yield the same states. So does one from before a truncation, after which other batches ended at its offset: the
leader epoch of the last of them tells it apart. Where batches in between are deleted, the states are incomplete. So a
log that begins above 0 keeps a snapshot at its first offset, even if no producer wrote below.
"""

from bisect import bisect_right

from minibroker.broker.log.side_files.epoch_file import NO_EPOCH, EpochEntry, epoch_at
from minibroker.broker.replication.producer_state import (
    SNAPSHOT_BYTES_MAX,
    CorruptSnapshot,
    ProducerStates,
    SnapshotPlace,
    check_snapshot,
)
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import SNAPSHOT_SUFFIX, segment_file_name
from minibroker.runtime.ports import Disk, DiskFull, FileMissing, FileTooLarge


class ProducerSnapshots:
    """Offsets of the snapshot files of one partition directory, rising."""

    __slots__ = ("_directory", "_disk", "_partition", "_topic_id", "offsets")

    def __init__(self, disk: Disk, directory: str, offsets: list[int]) -> None:
        self._disk = disk
        self._directory = directory
        self._topic_id: str | None = None
        self._partition = -1
        self.offsets = sorted(offsets)

    def set_owner(self, topic_id: str | None, partition: int) -> None:
        """Set the owner that each snapshot must name; one with another owner is not used."""
        self._topic_id, self._partition = topic_id, partition

    def _place(self, offset: int, leader_epoch: int | None) -> SnapshotPlace:
        return SnapshotPlace(self._topic_id or "", self._partition, offset, leader_epoch)

    def path(self, offset: int) -> str:
        return f"{self._directory}/{segment_file_name(offset, SNAPSHOT_SUFFIX)}"

    def write(self, offset: int, states: ProducerStates, leader_epoch: int, *, sync: bool = False) -> str:
        """Store the states of the log that ends at `offset` with a batch of that epoch (-1: with none, or it is not
        known); returns the path."""
        path = self.path(offset)
        try:
            self._disk.replace_file(path, states.snapshot(self._place(offset, leader_epoch)), sync=sync)
        except DiskFull:
            self._remove([known for known in self.offsets if known == offset])  # an older one must not stay
            raise
        if offset not in self.offsets:
            self.offsets.insert(bisect_right(self.offsets, offset), offset)
        return path

    def newest(
        self, first_offset: int, end_offset: int, epochs: list[EpochEntry], found: list[FileNotUsed]
    ) -> tuple[int, ProducerStates]:
        """The newest sound snapshot at or below `end_offset` and its offset; (0, no states) if there is none. If the
        log has not all batches behind it, the states are incomplete. `found` gets an event for each one that is not
        used.

        first_offset: of the log's files. Nothing is left in front of it to tell whether a snapshot there is true.
        epochs: those of the log. Where they do not reach, a snapshot is believed whatever epoch it names.
        """
        offset, states = self._newest_sound(first_offset, end_offset, epochs, found)
        if offset < first_offset:
            states.mark_incomplete()
        return offset, states

    def _newest_sound(
        self, first_offset: int, end_offset: int, epochs: list[EpochEntry], found: list[FileNotUsed]
    ) -> tuple[int, ProducerStates]:
        for offset in reversed(self.offsets[: bisect_right(self.offsets, end_offset)]):
            place = self._place_in(epochs if offset > first_offset else [], offset)
            try:
                content = self._disk.read_file(self.path(offset), SNAPSHOT_BYTES_MAX)
                return offset, ProducerStates.load(content, place)
            except (CorruptSnapshot, FileMissing, FileTooLarge) as error:
                consequence = "the states of producers are read from an older snapshot, or from the batches"
                found.append(FileNotUsed(path=self.path(offset), reason=str(error), consequence=consequence))
        return 0, ProducerStates()

    def _place_in(self, epochs: list[EpochEntry], offset: int) -> SnapshotPlace:
        epoch = epoch_at(epochs, offset - 1)
        return self._place(offset, None if epoch == NO_EPOCH else epoch)

    def remove_unless_sound(self, offset: int, epochs: list[EpochEntry]) -> CorruptSnapshot | FileTooLarge | None:
        """Remove the snapshot at the first offset that a log keeps, while its batches in front still tell whether it is
        of this log; returns why. Without it producers count as missing."""
        if offset not in self.offsets:
            return None
        try:
            check_snapshot(self._disk.read_file(self.path(offset), SNAPSHOT_BYTES_MAX), self._place_in(epochs, offset))
        except FileMissing:
            self.offsets.remove(offset)
        except (CorruptSnapshot, FileTooLarge) as error:
            self._remove([offset])
            return error
        return None

    def remove_above(self, offset: int) -> None:
        """Remove the snapshots of a truncated tail."""
        self._remove(self.offsets[bisect_right(self.offsets, offset) :])

    def remove_below(self, offset: int) -> None:
        """Remove the snapshots of deleted segments."""
        self._remove([known for known in self.offsets if known < offset])

    def _remove(self, offsets: list[int]) -> None:
        for offset in offsets:
            self._disk.remove(self.path(offset))
            self.offsets.remove(offset)
