"""The first offset of each leader epoch in a log, on which truncation relies.

Owns: the entries (epoch, start offset) of one replica, and the lookups in them. Leaves to others: files; the shell
writes `entries` to `leader-epoch-checkpoint` when an effect says so. Pure.

Both columns strictly increase. A leader enters (epoch, log_end_offset) when it begins to lead, even if it never appends
(KAFKA-7415). A follower learns epochs from the batches that it appends, so an empty epoch is known only to its leader
(replication rules, section 8; Kafka: LeaderEpochFileCache).
"""

from collections.abc import Iterable


class EpochHistory:
    """Entries (epoch, start offset), both strictly increasing."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self.entries: list[tuple[int, int]] = list(entries)

    @property
    def latest_epoch(self) -> int | None:
        """Epoch of the last record, or of an empty epoch after it; None without entries."""
        return self.entries[-1][0] if self.entries else None

    def assign(self, epoch: int, start_offset: int) -> bool:
        """Enter that `epoch` writes from `start_offset` on; True if something changed.

        Entries that contradict it (same or later epoch, or a start at or after this one) are removed: of two empty
        epochs at one offset only the later remains.
        """
        assert epoch >= 0
        assert start_offset >= 0
        if self.entries and self.entries[-1][0] == epoch and self.entries[-1][1] <= start_offset:
            return False
        self.entries = [(e, s) for e, s in self.entries if e < epoch and s < start_offset]
        self.entries.append((epoch, start_offset))
        return True

    def end_offset_for(self, epoch: int | None, log_end_offset: int) -> tuple[int, int] | None:
        """(the largest known epoch not above `epoch`, its exclusive end); None if that is unknown (KIP-279).

        An undefined epoch never yields the log end (KAFKA-6857).
        """
        if epoch is None or not self.entries:
            return None
        if epoch == self.entries[-1][0]:
            return epoch, log_end_offset
        floor: int | None = None
        for known, start_offset in self.entries:
            if known > epoch:
                return (epoch if floor is None else floor), start_offset
            floor = known
        return None

    def truncate_to(self, end_offset: int) -> bool:
        """Drop entries that start at or after `end_offset`; even if no record is truncated (KAFKA-10706)."""
        kept = [(e, s) for e, s in self.entries if s < end_offset]
        changed = len(kept) != len(self.entries)
        self.entries = kept
        return changed

    def trim_before(self, start_offset: int) -> bool:
        """Drop entries that start at or before `start_offset`, except the last of them, which then starts there."""
        dropped = [entry for entry in self.entries if entry[1] <= start_offset]
        if not dropped or dropped == [(dropped[0][0], start_offset)]:
            return False
        self.entries = [(dropped[-1][0], start_offset), *self.entries[len(dropped) :]]
        return True

    def clear(self) -> None:
        """Drop all entries: the log starts empty again."""
        self.entries = []

    def epoch_at(self, offset: int) -> int | None:
        """Epoch of the record at `offset`, according to the entries."""
        found = None
        for epoch, start_offset in self.entries:
            if start_offset > offset:
                break
            found = epoch
        return found
