"""One segment: a `.log` file of contiguous batches and its two sparse indexes.

Owns: the position of each batch, and that batches are written before everything that refers to them. Leaves to others:
other segments, the log's end, and durability (`flushing.py`). Files are opened when needed and closed when too many are
open (see `warm_segments.py`). Index entries are written to their files only when the index leaves memory, the segment
is rolled, or the log is closed, because missing entries are rebuilt from the batches.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter

from minibroker.broker.log.config import DISK_READ_BYTES_MAX, SEGMENT_POSITION_MAX, LogConfig
from minibroker.broker.log.directory_health import DirectoryHealth
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.segments.segment_digest import CUT_BYTES_MAX, SegmentDigest, digest_of_headers
from minibroker.broker.log.segments.segment_index import ENTRY_BYTES_IN_MEMORY, NO_TIMESTAMP, CorruptIndex, SegmentIndex
from minibroker.broker.log.segments.walk import walk_headers
from minibroker.protocol.files.checkpoints import (
    INDEX_ENTRY_BYTES,
    INDEX_FILE_BYTES_MAX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_ENTRY_BYTES,
    TIME_INDEX_SUFFIX,
    EpochEntry,
    segment_file_name,
)
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch, check_body, read_header
from minibroker.runtime.ports import Buffer, Disk, DiskError, File, FileMissing, FileTooLarge, OutOfDescriptors

logger = logging.getLogger(__name__)

NO_OFFSET = -1
ENDLESS = 1 << 63
"""Greater than every offset."""


class Segment:
    """Batches from `base_offset` on; `size` bytes."""

    __slots__ = (
        "_file",
        "_health",
        "_index",
        "_interval_bytes",
        "_largest_timestamp",
        "base_offset",
        "digest",
        "first_append_ms",
        "path",
        "size",
    )

    def __init__(
        self,
        health: DirectoryHealth,
        directory: str,
        base_offset: int,
        size: int,
        interval_bytes: int,
        digest: int | None = None,
    ) -> None:
        self._health = health
        self.path = f"{directory}/{segment_file_name(base_offset, '')}"
        """Path of all its files, without their suffixes."""
        self.base_offset = base_offset
        self.size = size
        self.digest = SegmentDigest(size, digest)
        self.first_append_ms: int | None = None
        """When its first batch was written, by this broker's clock; after a start None until it is needed."""
        self._interval_bytes = interval_bytes
        self._file: File | None = None
        self._index: SegmentIndex | None = None if size else SegmentIndex(interval_bytes)
        self._largest_timestamp: int | None = None if size else NO_TIMESTAMP

    @property
    def log_path(self) -> str:
        return self.path + LOG_SUFFIX

    @property
    def index_paths(self) -> tuple[str, str]:
        return self.path + INDEX_SUFFIX, self.path + TIME_INDEX_SUFFIX

    @property
    def index_bytes(self) -> int:
        return len(self._index) * ENTRY_BYTES_IN_MEMORY if self._index is not None else 0

    # ----------------------------------------------------------------------------------------------------- batches
    def append(self, batches: Sequence[tuple[BatchHeader, Buffer]], parts: Sequence[Buffer]) -> None:
        """Write the parts with one call, then index them. After a DiskError nothing has changed."""
        index = self._index if self._index is not None else self._loaded_index()
        largest = self._largest_timestamp if self._largest_timestamp is not None else self._guess_largest()
        if not self.size:
            self._health.segments.index_loaded(self)
        self.file().append(parts)
        position = self.size
        for header, buffer in batches:
            if header.max_timestamp > largest:
                largest = header.max_timestamp
            if index.is_due(position):
                index.add(header.last_offset - self.base_offset, position, largest)
            position += len(buffer)
        self._largest_timestamp = largest
        self.size = position
        self.digest.append(batches)

    def is_full(self, incoming_bytes: int, end_offset: int, config: LogConfig) -> bool:
        """Whether batches of that size, ending at that offset, need a new segment."""
        return self.size > 0 and (
            self.size + incoming_bytes > config.segment_bytes
            or (len(self._loaded_index().positions) + 1) * INDEX_ENTRY_BYTES > config.segment_index_bytes
            or self.is_exhausted(incoming_bytes, end_offset)
        )

    def is_exhausted(self, incoming_bytes: int, end_offset: int) -> bool:
        """Whether a position or relative offset would exceed the index's 32 bits."""
        return self.size + incoming_bytes > SEGMENT_POSITION_MAX or end_offset - self.base_offset > SEGMENT_POSITION_MAX

    def read(
        self, offset: int, max_bytes: int, end_offset: int, epochs: Sequence[EpochEntry] = ()
    ) -> tuple[memoryview, int, int, int] | None:
        """(bytes, base offset, next offset, last epoch) of whole batches, from the one that holds `offset`, that end at
        or below `end_offset`; the first one whatever its size. None if even that ends beyond. Checks each CRC, and what
        it does not cover: offsets without a gap, epochs as in `epochs`. Damaged batches are never served, not under
        another offset either, and never skipped (CorruptLog)."""
        start, first = self.locate(offset)
        if first.end_offset > end_offset:
            return None
        wanted = max(min(max_bytes, DISK_READ_BYTES_MAX), first.size_bytes)
        data = self.file().read_at(start, min(wanted, self.size - start))
        position, length, expected, last = 0, len(data), first.base_offset, first
        epoch_end = NO_OFFSET
        try:
            while position < length:
                header = read_header(data, position)
                size = header.size_bytes
                if position and length - position < size:
                    break
                check_body(data, position, header)
                if header.base_offset != expected:
                    raise CorruptBatch(f"offset {header.base_offset} where {expected} belongs", position)
                if expected >= epoch_end or header.partition_leader_epoch != last.partition_leader_epoch:
                    epoch_end = _check_epoch(header, max(expected, offset), position, epochs)
                if expected + header.record_count > end_offset:
                    break
                position += size
                expected, last = expected + header.record_count, header
        except CorruptBatch as error:
            if position == 0:
                raise CorruptLog(self.log_path, start + error.position, error.reason) from None
            # those before the damage, or before a header that this read cut off, are served; the next read starts there
        return memoryview(data)[:position], first.base_offset, expected, last.partition_leader_epoch

    def locate(self, offset: int) -> tuple[int, BatchHeader]:
        """Position and header of the batch that holds `offset`, which must be in this segment. Raises CorruptLog if the
        headers contradict that."""
        for position, header in self.headers(offset):
            return position, header
        raise CorruptLog(self.log_path, self.size, f"it ends before offset {offset}, which belongs here")

    def headers(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch that ends beyond `offset`, without a gap. Raises CorruptLog."""
        for found in self.headers_around(offset):
            if found[1].end_offset > offset:
                yield found

    def headers_around(self, offset: int) -> Iterator[tuple[int, BatchHeader]]:
        """The same, and some batches before: from the last indexed one that ends at or below `offset + 1`."""
        entry = self._loaded_index().entry_for_offset(offset - self.base_offset)
        if entry is not None and not self._is_sound(entry):
            self._rebuild_index("an entry does not point at its batch")
            entry = self._loaded_index().entry_for_offset(offset - self.base_offset)
        if entry is None:
            yield from self._contiguous(0, self.base_offset)
        else:
            yield from self._contiguous(self._loaded_index().positions[entry], None)

    def _contiguous(self, position: int, offset: int | None) -> Iterator[tuple[int, BatchHeader]]:
        """Headers from a position on, where a batch with base offset `offset` is expected (None: its index entry has
        just been checked). The CRC does not cover offsets, so each must follow from the one before."""
        for found in self.headers_from(position):
            if offset is not None and found[1].base_offset != offset:
                reason = f"offset {found[1].base_offset} where {offset} belongs"
                raise CorruptLog(self.log_path, found[0], reason)
            offset = found[1].end_offset
            yield found

    def headers_from(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        try:
            yield from walk_headers(self.file(), position, self.size)
        except CorruptBatch as error:
            raise CorruptLog(self.log_path, error.position, error.reason) from None

    def headers_from_timestamp(self, timestamp_ms: int) -> Iterator[tuple[int, BatchHeader]]:
        """All batches that may hold a record of that time or later; offsets have no gap. Raises CorruptLog."""
        entry = self._loaded_index().entry_for_timestamp(timestamp_ms)
        if entry is not None and not self._is_time_sound(entry):
            self._rebuild_index("an entry has another time than the batches in front of it")
            entry = self._loaded_index().entry_for_timestamp(timestamp_ms)
        if entry is None:
            walk = self._contiguous(0, self.base_offset)
        else:
            walk = self._contiguous(self._loaded_index().positions[entry], None)
        for found in walk:
            if found[1].max_timestamp >= timestamp_ms:
                yield found

    def read_batch(self, position: int, header: BatchHeader) -> bytes:
        return self.file().read_at(position, header.size_bytes)

    def largest_timestamp(self) -> int:
        """The largest timestamp of all batches; -1 if there are none. Raises CorruptLog if damage hides it."""
        if self._largest_timestamp is None:
            index = self._loaded_index()
            if len(index) and not self._is_time_sound(len(index) - 1):
                self._rebuild_index("its last entry has another time than the batches in front of it")
                index = self._loaded_index()
            largest = index.last_timestamp
            for _, header in self.headers_from(index.last_position):
                largest = max(largest, header.max_timestamp)
            self._largest_timestamp = largest
        return self._largest_timestamp

    def _guess_largest(self) -> int:
        """For the index, which is only a hint: rot in earlier batches must not stop an append."""
        try:
            return self.largest_timestamp()
        except CorruptLog as error:
            logger.error("the largest timestamp is a guess: %s", error)
            return self._loaded_index().last_timestamp

    def truncate_to(self, offset: int) -> int:
        """Cut every batch that ends beyond `offset`; returns the new end (below `offset` if that lies inside a batch).
        Raises CorruptLog if damage hides how much that is: the cut would remove too much."""
        position, end = self._cut_at(offset)
        lost = self._digest_behind(position)
        self.file().truncate(position)
        self.digest.cut(position, lost)
        self.size = position
        self._loaded_index().truncate_to(end - self.base_offset)
        self._largest_timestamp = None if position else NO_TIMESTAMP
        if not position:
            self.first_append_ms = None
        return end

    def end_at(self, offset: int) -> int:
        """The end after a cut at `offset`. Raises as that does."""
        return self._cut_at(offset)[1]

    def _cut_at(self, offset: int) -> tuple[int, int]:
        """(file size, end offset) without the batches that end beyond `offset`."""
        position = 0
        end = self.base_offset
        for start, header in self.headers_around(offset - 1):
            if header.end_offset > offset:
                break
            position, end = start + header.size_bytes, header.end_offset
            if end == offset:
                break
        return position, end

    def _digest_behind(self, position: int) -> int | None:
        """Digest of the batches from `position` on, which a cut removes; None if they are too many, or damaged."""
        if position <= self.digest.known_from or self.size - position > CUT_BYTES_MAX:
            return None
        try:
            return digest_of_headers(header for _, header in self.headers_from(position))
        except CorruptLog:
            return None

    # ------------------------------------------------------------------------------------------------- file and index
    def file(self) -> File:
        """Its open `.log` file."""
        if self._file is None:
            self._file = self._open()
            self._health.segments.file_opened(self)
        else:
            self._health.segments.file_used(self)
        return self._file

    def _open(self) -> File:
        """If there is no free descriptor, close the file of another segment, which is open only for speed."""
        while True:
            try:
                return self._health.disk.open(self.log_path, create=self.size == 0)
            except OutOfDescriptors:
                if not self._health.segments.close_oldest():
                    raise

    def close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def drop_index(self) -> bool:
        """Write missing entries to the files and release the table."""
        try:
            self.save_index()
        except DiskError as error:
            self._health.record_error(error)
            return False
        self._index = None
        return True

    def save_index(self) -> bool:
        """Bring both index files up to date; False if they were. Not synced."""
        index = self._index
        if index is None or self.size == 0 or (index.in_files and index.saved == len(index)):
            return False
        entries, times = index.encode(index.saved)
        index_path, time_path = self.index_paths
        disk = self._health.disk
        _append_behind(disk, index_path, index.saved * INDEX_ENTRY_BYTES, entries)
        _append_behind(disk, time_path, index.saved * TIME_INDEX_ENTRY_BYTES, times)
        index.saved = len(index)
        index.in_files = True
        return True

    def renew_index(self) -> None:
        """Rebuild the index from the batches, and write it: its files are wrong."""
        self._rebuild_index("its files are damaged")
        assert self._index is not None
        self._health.segments.index_loaded(self)
        self.save_index()

    def close(self) -> None:
        """Release everything; nothing is written."""
        self._health.segments.forget(self)
        self.close_file()
        if self.size:
            self._index = None

    def _loaded_index(self) -> SegmentIndex:
        index = self._index
        if index is not None:
            self._health.segments.index_used(self)
            return index
        try:
            self._index = read_index(self._health.disk, self.path, self.size, self._interval_bytes)
        except (CorruptIndex, FileMissing) as error:
            self._rebuild_index(str(error))
        assert self._index is not None
        self._health.segments.index_loaded(self)
        return self._index

    def _rebuild_index(self, reason: str) -> None:
        logger.warning("rebuilding the index of %s: %s", self.log_path, reason)
        index = SegmentIndex(self._interval_bytes)
        largest = NO_TIMESTAMP
        try:
            for position, header in self._contiguous(0, self.base_offset):
                largest = max(largest, header.max_timestamp)
                if index.is_due(position):
                    index.add(header.last_offset - self.base_offset, position, largest)
        except CorruptLog as error:
            logger.error("the index ends early: %s", error)
            self._index, self._largest_timestamp = index, None
        else:
            self._index, self._largest_timestamp = index, largest

    def _is_sound(self, entry: int) -> bool:
        """Whether that entry points at a batch with its last offset: the index is only a hint, the batches decide."""
        index = self._loaded_index()
        try:
            _, header = next(walk_headers(self.file(), index.positions[entry], self.size))
        except CorruptBatch:
            return False
        return header.last_offset - self.base_offset == index.last_offsets[entry]

    def _is_time_sound(self, entry: int) -> bool:
        """Whether that entry's time follows from the one before it and the batches between: an entry that is too early
        makes a lookup skip matching records. The scrubber compares all entries."""
        index = self._loaded_index()
        start, largest = (index.positions[entry - 1], index.timestamps[entry - 1]) if entry else (0, NO_TIMESTAMP)
        stored = (index.positions[entry], index.last_offsets[entry], index.timestamps[entry])
        try:
            for position, header in walk_headers(self.file(), start, self.size):
                largest = max(largest, header.max_timestamp)
                if position >= stored[0]:
                    return stored == (position, header.last_offset - self.base_offset, largest)
        except CorruptBatch:
            pass
        return False


def _check_epoch(header: BatchHeader, offset: int, position: int, epochs: Sequence[EpochEntry]) -> int:
    """Compare the epoch, which the CRC does not cover, with the history. Returns its end; raises CorruptBatch."""
    following = bisect_right(epochs, offset, key=itemgetter(1))
    if not following:
        return NO_OFFSET  # the log's history is not known
    epoch = epochs[following - 1][0]
    if header.partition_leader_epoch != epoch:
        reason = f"leader epoch {header.partition_leader_epoch} at offset {offset}, which epoch {epoch} wrote"
        raise CorruptBatch(reason, position)
    return epochs[following][1] if following < len(epochs) else ENDLESS


def read_index(disk: Disk, path: str, segment_size: int, interval_bytes: int) -> SegmentIndex:
    """The table of a segment's index files; raises CorruptIndex or FileMissing."""
    try:
        index, times = (
            disk.read_file(path + suffix, INDEX_FILE_BYTES_MAX) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        )
    except FileTooLarge as error:
        raise CorruptIndex(str(error)) from None
    return SegmentIndex.decode(index, times, segment_size, interval_bytes)


def _append_behind(disk: Disk, path: str, start: int, data: bytes) -> None:
    """Write `data` at `start`; anything that a truncation left from there on is cut."""
    file = disk.open(path, create=True)
    try:
        if file.size > start:
            file.truncate(start)
        file.append([data])
    finally:
        file.close()
