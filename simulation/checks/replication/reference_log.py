"""What each replica's log must hold, recorded independently: batch by batch, as they were written and cut.

Owns: the reference log of one replica, and reading what a log's files really hold without the broker's code for it.
Also the producers' sequences, to compare with the producer state that the broker keeps. Leaves to others: all checks.
"""

from bisect import bisect_left
from collections.abc import Iterable

from msgspec import Struct

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, check_batch, read_header
from minibroker.simulation.world.storage import SimulatedStorage

BATCHES_REMEMBERED = 40
"""Batches kept of each producer: as many requests may be in flight."""


class LoggedBatch(Struct, frozen=True, gc=False):
    """A batch and its place in a log. The CRC covers its records, not its place."""

    base_offset: int
    end_offset: int
    epoch: int
    crc: int
    producer_id: int
    producer_epoch: int
    first_sequence: int
    last_sequence: int

    @classmethod
    def of(cls, header: BatchHeader) -> "LoggedBatch":
        return cls(
            header.base_offset,
            header.end_offset,
            header.partition_leader_epoch,
            header.crc,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.last_sequence,
        )

    def __str__(self) -> str:
        return f"{self.base_offset}..{self.end_offset - 1} of epoch {self.epoch} (CRC {self.crc:08x})"


class ReferenceLog:
    """One replica's log. `start`: where it began or was reset to; retention does not raise it."""

    def __init__(self, start: int = 0, batches: Iterable[LoggedBatch] = ()) -> None:
        self.start = start
        self.batches: list[LoggedBatch] = []
        self.uncertain = False
        """A cut failed half way: the log may still hold what was to be cut."""
        self._bases: list[int] = []
        for batch in batches:
            self.append(batch)

    @property
    def end(self) -> int:
        return self.batches[-1].end_offset if self.batches else self.start

    @property
    def last(self) -> LoggedBatch | None:
        return self.batches[-1] if self.batches else None

    def append(self, batch: LoggedBatch) -> None:
        self.batches.append(batch)
        self._bases.append(batch.base_offset)

    def cut_to(self, end_offset: int) -> list[LoggedBatch]:
        """Drop batches that end above; returns them."""
        keep = len(self.batches)
        while keep and self.batches[keep - 1].end_offset > end_offset:
            keep -= 1
        gone = self.batches[keep:]
        del self.batches[keep:]
        del self._bases[keep:]
        return gone

    def reset_to(self, offset: int) -> list[LoggedBatch]:
        gone = self.cut_to(-1)
        self.start = offset
        return gone

    def at(self, base_offset: int) -> LoggedBatch | None:
        """The batch that begins at this offset; None if there is none."""
        index = bisect_left(self._bases, base_offset)
        return self.batches[index] if index < len(self._bases) and self._bases[index] == base_offset else None

    def between(self, low: int, high: int) -> list[LoggedBatch]:
        """Batches that begin at or above `low` and end at or below `high`."""
        index = bisect_left(self._bases, low)
        found = []
        while index < len(self.batches) and self.batches[index].end_offset <= high:
            found.append(self.batches[index])
            index += 1
        return found

    def epoch_starts(self) -> list[tuple[int, int]]:
        """(epoch, offset of its first batch), from the batches."""
        found: list[tuple[int, int]] = []
        for batch in self.batches:
            if not found or batch.epoch != found[-1][0]:
                found.append((batch.epoch, batch.base_offset))
        return found

    def producers(self) -> dict[int, tuple[int, list[tuple[int, int, int]]]]:
        """Producer id: (epoch, its newest batches as (first sequence, last sequence, base offset))."""
        found: dict[int, tuple[int, list[tuple[int, int, int]]]] = {}
        for batch in self.batches:
            if batch.producer_id < 0:
                continue
            epoch, known = found.get(batch.producer_id, (batch.producer_epoch, []))
            if epoch != batch.producer_epoch:
                known = []
            known = [*known[1 - BATCHES_REMEMBERED :], (batch.first_sequence, batch.last_sequence, batch.base_offset)]
            found[batch.producer_id] = (batch.producer_epoch, known)
        return found


def read_batches(storage: SimulatedStorage, log: PartitionLog, past_rot: bool = False) -> list[LoggedBatch]:
    """What the files of a log hold, up to the log's own sizes and to the first incomplete batch: a header alone proves
    nothing, for a torn write may have left it without the rest. `past_rot`: leave such a batch out, and go on where its
    header says that it ends. Costs no virtual time."""
    found: list[LoggedBatch] = []
    for segment in log.segments:
        if not segment.size:
            continue
        content = bytes(storage.find_file(segment.log_path).content[: segment.size])
        position = 0
        while position + HEADER_BYTES <= len(content):
            try:
                header = check_batch(content, position)
                found.append(LoggedBatch.of(header))
            except CorruptBatch:
                if not past_rot:
                    return found
                try:
                    header = read_header(content, position)
                except CorruptBatch:
                    break
            position += header.size_bytes
    return found
