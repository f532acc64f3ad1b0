"""The two sparse indexes of one segment, `.index` and `.timeindex`, as one table in memory.

Owns: when an entry is due, lookup, truncation, and the bytes of both files. Leaves to others: files and batches.

Theory: an entry describes one batch: its last offset, its position, and the largest timestamp of the segment up to and
including it. It is added when more than `interval_bytes` lie between that batch and the last indexed one, so the table
follows from the batches alone, and a rebuilt one is equal (I15). An offset lookup finds the greatest last offset <= the
requested one and walks from there. A timestamp lookup walks from the last entry with a smaller timestamp, since
everything up to that is too old.
"""

import itertools
import sys
from array import array
from bisect import bisect_left, bisect_right

from minibroker.protocol.files.checkpoints import INDEX_ENTRY_BYTES, TIME_INDEX_ENTRY_BYTES, decode_time_index

NO_TIMESTAMP = -1
ENTRY_BYTES_IN_MEMORY = 16

_ENTRY_IN_FILE = array("I").itemsize
assert _ENTRY_IN_FILE == 4, "index files hold 32-bit numbers"


class CorruptIndex(Exception):
    """Index files that contradict each other or their segment; they are rebuilt."""


class SegmentIndex:
    """Parallel columns; `saved` entries are known to be in the files."""

    __slots__ = ("in_files", "interval_bytes", "last_offsets", "positions", "saved", "timestamps")

    def __init__(self, interval_bytes: int) -> None:
        self.interval_bytes = interval_bytes
        self.last_offsets = array("I")
        """Last offset of the batch, relative to the segment's base offset."""
        self.positions = array("I")
        self.timestamps = array("q")
        self.saved = 0
        self.in_files = False
        """Whether both files exist and end with the last saved entry."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def last_position(self) -> int:
        """Where the walk from the last entry starts; 0 without entries."""
        return self.positions[-1] if self.positions else 0

    @property
    def last_timestamp(self) -> int:
        return self.timestamps[-1] if self.timestamps else NO_TIMESTAMP

    def is_due(self, position: int) -> bool:
        """Whether a batch at `position` gets an entry."""
        positions = self.positions
        return position - (positions[-1] if positions else 0) > self.interval_bytes

    def add(self, last_offset: int, position: int, largest_timestamp: int) -> None:
        self.last_offsets.append(last_offset)
        self.positions.append(position)
        self.timestamps.append(largest_timestamp)

    def entry_for_offset(self, relative_offset: int) -> int | None:
        """Index of the entry to walk from."""
        found = bisect_right(self.last_offsets, relative_offset) - 1
        return found if found >= 0 else None

    def entry_for_timestamp(self, timestamp_ms: int) -> int | None:
        """Index of the entry to walk from: every record in front of its batch and in it is older."""
        found = bisect_left(self.timestamps, timestamp_ms) - 1
        return found if found >= 0 else None

    def truncate_to(self, relative_offset: int) -> None:
        """Drop the entries of batches that reach to `relative_offset` or beyond."""
        keep = bisect_left(self.last_offsets, relative_offset)
        for column in (self.last_offsets, self.positions, self.timestamps):
            del column[keep:]
        self.saved = min(self.saved, keep)
        self.in_files = False

    def encode(self, start: int) -> tuple[bytes, bytes]:
        """The entries from number `start` on, as bytes for both files."""
        count = len(self) - start
        pairs = array("I", bytes(INDEX_ENTRY_BYTES * count))
        pairs[0::2] = self.last_offsets[start:]
        pairs[1::2] = self.positions[start:]
        halves = array("I", bytes(TIME_INDEX_ENTRY_BYTES * count))
        times = self.timestamps[start:]
        offsets = self.last_offsets[start:]
        if sys.byteorder == "little":
            pairs.byteswap()
            times.byteswap()
            offsets.byteswap()
        words = array("I", times.tobytes())
        halves[0::3], halves[1::3], halves[2::3] = words[0::2], words[1::2], offsets
        return pairs.tobytes(), halves.tobytes()

    @classmethod
    def decode(cls, index: bytes, time_index: bytes, segment_size: int, interval_bytes: int) -> "SegmentIndex":
        """The table of both files; raises CorruptIndex unless it can belong to a segment of that size."""
        if len(index) % INDEX_ENTRY_BYTES or len(time_index) % TIME_INDEX_ENTRY_BYTES:
            raise CorruptIndex("a file ends inside an entry")
        if len(index) // INDEX_ENTRY_BYTES != len(time_index) // TIME_INDEX_ENTRY_BYTES:
            raise CorruptIndex("offset index and time index have different numbers of entries")
        table = cls(interval_bytes)
        pairs = array("I", index)
        if sys.byteorder == "little":
            pairs.byteswap()
        table.last_offsets, table.positions = pairs[0::2], pairs[1::2]
        entries = decode_time_index(time_index)
        table.timestamps = array("q", [entry.timestamp_ms for entry in entries])
        table.saved = len(table)
        table.in_files = True
        table._check(segment_size)
        if any(entry.relative_offset != offset for entry, offset in zip(entries, table.last_offsets, strict=True)):
            raise CorruptIndex("offset index and time index describe different batches")
        return table

    def _check(self, segment_size: int) -> None:
        if not self.positions:
            return
        if self.positions[0] == 0 or self.positions[-1] >= segment_size:
            raise CorruptIndex("an entry points outside the segment")
        if not (_rises(self.positions) and _rises(self.last_offsets)):
            raise CorruptIndex("entries do not rise")
        if any(later < earlier for earlier, later in itertools.pairwise(self.timestamps)):
            raise CorruptIndex("timestamps fall")


def _rises(column: "array[int]") -> bool:
    return all(earlier < later for earlier, later in itertools.pairwise(column))
