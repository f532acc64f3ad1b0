"""Reading stored batches again with all checks, a piece at a time, to find rot before the bytes are needed.

Owns: which parts of a segment and its indexes are compared. Leaves to others: when and how fast, and what follows,
which the scrubber decides. Runs off the event loop on files that the loop may cut or delete meanwhile. So a misfit here
is only a suspicion, which is confirmed on the loop before the broker acts on it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import msgspec

from minibroker.broker.log.segments.segment import read_index
from minibroker.broker.log.segments.segment_digest import digest_of_headers
from minibroker.broker.log.segments.segment_index import NO_TIMESTAMP, CorruptIndex, SegmentIndex
from minibroker.broker.log.segments.walk import scan_batches
from minibroker.protocol.files.checkpoints import LOG_SUFFIX, EpochEntry
from minibroker.protocol.log_digest import MODULUS, NOTHING
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch
from minibroker.runtime.ports import Disk, FileMissing


class SegmentScrub(msgspec.Struct, kw_only=True):
    """The progress of reading one segment; the next piece begins there."""

    path: str
    """Without the suffix."""
    base_offset: int
    size: int
    """The number of bytes to check; later appends are checked in the next round."""
    end_offset: int | None
    """Base offset of the next segment; None for the active one."""
    epochs: Sequence[EpochEntry]
    position: int = 0
    offset: int
    """Expected base offset of the batch at `position`."""
    largest_timestamp: int = NO_TIMESTAMP
    suspicion: str | None = None
    """Why the batch that holds `offset` may be damaged."""
    index: SegmentIndex | None = None
    entry: int = 0
    """Number of the next index entry to check."""
    index_suspicion: str | None = None
    digest: int = NOTHING
    """Of the batches read so far."""
    recorded_digest: int | None = None
    """The expected digest of the whole segment, as known when reading began."""

    @property
    def is_done(self) -> bool:
        return self.suspicion is not None or self.position >= self.size

    def read_piece(self, disk: Disk, bytes_max: int, interval_bytes: int) -> int:
        """Read about `bytes_max` more bytes, at least one batch; returns how many. Raises DiskError."""
        began = self.position
        if began == 0 and self.end_offset is not None:
            self._load_index(disk, interval_bytes)
        file = disk.open(self.path + LOG_SUFFIX)
        try:
            for position, header in scan_batches(file, self.position, min(self.size, file.size), bytes_max):
                self.suspicion = self._misfit(header)
                if self.suspicion is not None:
                    return position - began
                self._compare_index(position, header)
                self.digest += digest_of_headers((header,))
                self.position, self.offset = position + header.size_bytes, header.end_offset
                if self.position - began >= bytes_max:
                    return self.position - began
        except CorruptBatch as error:
            self.suspicion = error.reason
            return error.position - began
        finally:
            file.close()
        self._finish()
        return self.position - began

    @property
    def total_digest(self) -> int:
        """Digest of the whole segment, once it is done."""
        return self.digest % MODULUS

    def _misfit(self, header: BatchHeader) -> str | None:
        """What is wrong with a batch's offset or epoch, which the CRC does not cover."""
        if header.base_offset != self.offset:
            return f"offset {header.base_offset} where {self.offset} belongs"
        number = bisect_right(self.epochs, self.offset, key=itemgetter(1))
        if number and self.epochs[number - 1][0] != header.partition_leader_epoch:
            return f"leader epoch {header.partition_leader_epoch} where {self.epochs[number - 1][0]} belongs"
        return None

    def _finish(self) -> None:
        if self.position < self.size:
            self.suspicion = f"it is cut at {self.position} of {self.size} bytes"
        elif self.end_offset is not None and self.offset != self.end_offset:
            self.suspicion = f"it ends at offset {self.offset}, and the next one begins at {self.end_offset}"
        elif self.index is not None and self.entry < len(self.index):
            self.index_suspicion = f"entry {self.entry} points at no batch"

    # ------------------------------------------------------------------------------------------------------- indexes
    def _load_index(self, disk: Disk, interval_bytes: int) -> None:
        """Only for a closed segment: the index files of the active one lag behind the index in memory."""
        try:
            self.index = read_index(disk, self.path, self.size, interval_bytes)
        except (CorruptIndex, FileMissing) as error:  # if only one is missing, the other may be wrong, too
            self.index_suspicion = str(error)

    def _compare_index(self, position: int, header: BatchHeader) -> None:
        self.largest_timestamp = max(self.largest_timestamp, header.max_timestamp)
        index, entry = self.index, self.entry
        if index is None or entry >= len(index) or index.positions[entry] > position or self.index_suspicion:
            return
        stored = (index.positions[entry], index.last_offsets[entry], index.timestamps[entry])
        expected = (position, header.last_offset - self.base_offset, self.largest_timestamp)
        self.entry += 1
        if stored != expected:
            self.index_suspicion = f"entry {entry} says {stored} where {expected} belongs"
