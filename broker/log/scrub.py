"""Reading stored batches again with every check, a piece at a time: rot is found before somebody needs the bytes.

Owns: what of a segment and its indexes is compared with what. Refuses to know when, how fast, and what follows from a
finding: that is the scrubber's. Runs off the event loop on files that the loop may cut or delete meanwhile, so whatever
is found here is a suspicion, which is confirmed on the loop before anybody acts on it.
"""

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter

import msgspec

from minibroker.broker.log.segment import read_index
from minibroker.broker.log.segment_digest import digest_of_headers
from minibroker.broker.log.segment_index import NO_TIMESTAMP, CorruptIndex, SegmentIndex
from minibroker.broker.log.walk import scan_batches
from minibroker.protocol.checkpoints import LOG_SUFFIX, EpochEntry
from minibroker.protocol.log_digest import MODULUS, NOTHING
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch
from minibroker.runtime.ports import Disk, FileMissing


class SegmentScrub(msgspec.Struct, kw_only=True):
    """How far one segment was read; the next piece begins there."""

    path: str
    """Without the suffix."""
    base_offset: int
    size: int
    """So many bytes of it are looked at: what is appended later is for the next round."""
    end_offset: int | None
    """Where the next segment begins; None for the active one."""
    epochs: Sequence[EpochEntry]
    position: int = 0
    offset: int
    """What the batch at `position` must begin with."""
    largest_timestamp: int = NO_TIMESTAMP
    suspicion: str | None = None
    """Why the batch that holds `offset` may be damaged."""
    index: SegmentIndex | None = None
    entry: int = 0
    """The next index entry to be met."""
    index_suspicion: str | None = None
    digest: int = NOTHING
    """Of what was read so far."""
    recorded_digest: int | None = None
    """What it should be at last, as it was known when the reading began."""

    @property
    def is_done(self) -> bool:
        return self.suspicion is not None or self.position >= self.size

    def read_piece(self, disk: Disk, bytes_max: int, interval_bytes: int) -> int:
        """Go on for about so many bytes, one batch at least; how many were read. Raises DiskError."""
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
        """Of the whole segment, when it is done."""
        return self.digest % MODULUS

    def _misfit(self, header: BatchHeader) -> str | None:
        """Offset and epoch lie outside of the CRC."""
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
        """Of a closed segment only: of the active one the files lag behind what is in memory."""
        try:
            self.index = read_index(disk, self.path, self.size, interval_bytes)
        except (CorruptIndex, FileMissing) as error:  # a file that is left may be wrong, too
            self.index_suspicion = str(error)

    def _compare_index(self, position: int, header: BatchHeader) -> None:
        self.largest_timestamp = max(self.largest_timestamp, header.max_timestamp)
        index, entry = self.index, self.entry
        if index is None or entry >= len(index) or index.positions[entry] > position or self.index_suspicion:
            return
        said = (index.positions[entry], index.last_offsets[entry], index.timestamps[entry])
        found = (position, header.last_offset - self.base_offset, self.largest_timestamp)
        self.entry += 1
        if said != found:
            self.index_suspicion = f"entry {entry} says {said} where {found} belongs"
