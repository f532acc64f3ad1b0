"""Reads segment files, whole or in byte ranges, also while a broker writes them.

Owns: which bytes are batches. Reads only, with `pread` (a mapped file that a broker truncates would kill the reader),
and never past the size that the file had when the audit began. Leaves to others: what batches and gaps mean.

Theory: what follows a position depends only on the bytes from there on. At a position there is either a batch that
passes every check, or a gap. A gap ends where its header claims, if a valid batch or the end of the file is there; else
at the next position at which a valid batch begins (magic, plausible header, CRC). So ranges of a file can be read
separately. A range that does not begin at a batch looks for the next one, but never beyond its own end. A gap that does
not end in its range stays open for the range in which it ends. So every byte is read about once, whatever the file
contains. stitching.py makes sure that the ranges join.
"""

import errno
import os
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import msgspec

from minibroker.audit.reading.good_batches import take_good_batches
from minibroker.audit.reading.payload import DecodedRecord, Undecodable, decode_payload, value_checksum, whole_checksum
from minibroker.audit.reading.regular_files import open_regular
from minibroker.audit.reading.replica import (
    NO_VALUE,
    UNDECODED,
    UNREADABLE,
    Columns,
    IndexFile,
    RangeScan,
    SegmentGap,
    segment_file,
)
from minibroker.protocol.files.checkpoints import INDEX_FILE_BYTES_MAX, INDEX_SUFFIX, TIME_INDEX_SUFFIX
from minibroker.protocol.record_batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    CorruptBatch,
    check_batch,
    read_header,
)

CHUNK_BYTES = 2 * 1024 * 1024
"""Read at once: large enough for few system calls, small enough to stay in a processor's cache until checked."""
INDEX_BYTES_MAX = INDEX_FILE_BYTES_MAX + 1
"""One byte more than an index can have: enough to see that a longer file is none."""
SEGMENT_BYTES_MAX = 2**32
"""Positions in an index are below it. A damaged inode or a sparse file may claim exabytes, too many to read."""
MAGIC_BYTE = bytes([MAGIC])
MAGIC_AT = 16
LENGTH_AT = 8
_Checksum: TypeAlias = Callable[[DecodedRecord], int]


class RangeTask(msgspec.Struct, frozen=True, kw_only=True):
    """One range of one segment to read."""

    directory: str
    segment: int
    size: int
    start: int
    end: int
    begins: bool = False
    """A batch or a gap is known to begin at `start`; at the file's start this is always so."""


def scan_range(task: RangeTask, *, with_values: bool, whole_records: bool = False) -> RangeScan:
    """Read the batches whose first byte lies in the range. The first range also includes the segment's indexes.
    `with_values`: decode the records, for the checksum of each value; with `whole_records`, of each whole record."""
    indexes: tuple[IndexFile | None, IndexFile | None] = (None, None)
    if task.start == 0:
        indexes = (_read_small(task, INDEX_SUFFIX), _read_small(task, TIME_INDEX_SUFFIX))
    try:
        with open_window(task) as reader:
            return _scan_window(reader, task, indexes, _checksum(with_values, whole_records))
    except FileNotFoundError:
        return _scan(task, task.start, task.end, 0, Columns(), indexes, vanished=True)
    except OSError as error:
        unread = SegmentGap(task.start, task.end, f"{UNREADABLE}{error.strerror}", torn=False, reaches_end=False)
        return _scan(task, task.start, task.end, task.size, Columns(), indexes, gaps=[unread])


def scan_content(
    task: RangeTask,
    content: bytes,
    indexes: tuple[bytes | None, bytes | None],
    *,
    with_values: bool,
    whole_records: bool = False,
) -> RangeScan:
    """The same for a segment in memory. `indexes`: offset index and time index."""
    reader = SegmentWindow(
        lambda count, position: content[position : position + count],
        task.size,
        segment_file(task.directory, task.segment),
    )
    offsets, timestamps = (None if index is None else IndexFile(index) for index in indexes)
    return _scan_window(reader, task, (offsets, timestamps), _checksum(with_values, whole_records))


def _scan_window(
    reader: "SegmentWindow",
    task: RangeTask,
    indexes: tuple[IndexFile | None, IndexFile | None],
    checksum: _Checksum | None,
) -> RangeScan:
    start, columns, gaps, undecodable, end = _collect(reader, task, checksum)
    # The last gap ends with the range although the file goes on: the next ranges show where it really ends.
    is_open = bool(gaps) and gaps[-1].reaches_end and gaps[-1].end < reader.size
    return _scan(task, start, end, reader.size, columns, indexes, gaps=gaps, undecodable=undecodable, is_open=is_open)


@contextmanager
def open_window(task: RangeTask) -> Iterator["SegmentWindow"]:
    """A window on the task's segment, closed at the end."""
    file = segment_file(task.directory, task.segment)
    descriptor = open_regular(file)
    try:
        if task.size > SEGMENT_BYTES_MAX:
            raise OSError(errno.EFBIG, f"it has {task.size} bytes, and no segment more than {SEGMENT_BYTES_MAX}", file)
        yield SegmentWindow(lambda count, position: _read(descriptor, count, position), task.size, file)
    finally:
        os.close(descriptor)


def _read(descriptor: int, count: int, position: int) -> bytes:
    """All of these bytes that the file has. Raises OSError. In front of a bad sector the system returns fewer bytes
    than were asked for, as at the end of a file; only the next call tells the two apart."""
    content = os.pread(descriptor, count, position)
    while len(content) < count and (more := os.pread(descriptor, count - len(content), position + len(content))):
        content += more
    return content


def _collect(
    reader: "SegmentWindow", task: RangeTask, checksum: _Checksum | None
) -> tuple[int, Columns, list[SegmentGap], list[tuple[int, int, str]], int]:
    columns = Columns()
    gaps: list[SegmentGap] = []
    undecodable: list[tuple[int, int, str]] = []
    at_batch = task.begins or task.start == 0
    start = position = task.start if at_batch else reader.next_batch(task.start, task.end)
    while position < task.end and position < reader.size:
        found = reader.look_at(position, task.end)
        if isinstance(found, SegmentGap):
            gaps.append(found)
            position = found.end
            continue
        columns.append(position, found)
        if checksum is not None:
            problem = _append_checksums(columns.record_crcs, reader, position, found, checksum)
            if problem is not None:
                undecodable.append((position, found.base_offset, problem))
        position += found.size_bytes
        if checksum is None:
            position = take_good_batches(reader.buffer, reader.base, position, task.end, columns)
    return start, columns, gaps, undecodable, position


def walk(reader: "SegmentWindow", position: int, end: int) -> Iterator[tuple[int, BatchHeader | SegmentGap]]:
    """Batches and gaps from `position`, where one of them begins, up to the last one that begins before `end`.

    A batch's bytes are in the reader's window until the next step.
    """
    while position < end and position < reader.size:
        found = reader.look_at(position, reader.size)
        yield position, found
        position = found.end if isinstance(found, SegmentGap) else position + found.size_bytes


def _checksum(with_values: bool, whole_records: bool) -> _Checksum | None:
    """The checksum to compute for every record."""
    if not with_values:
        return None
    return whole_checksum if whole_records else lambda record: value_checksum(record, NO_VALUE)


def _append_checksums(
    crcs: "array[int]", reader: "SegmentWindow", position: int, header: BatchHeader, checksum: _Checksum
) -> str | None:
    try:
        records = decode_payload(reader.buffer, position - reader.base, header)
    except Undecodable as error:
        crcs.extend([UNDECODED] * header.record_count)
        return str(error)
    crcs.extend(map(checksum, records))
    return None


def _gap(reader: "SegmentWindow", position: int, error: CorruptBatch, limit: int) -> SegmentGap:
    """The gap at `position`. A gap that reaches `limit` ends there, as if the file did."""
    claimed_end = reader.claimed_end(position)
    if claimed_end is not None and (claimed_end == reader.size or reader.is_batch(claimed_end)):
        return SegmentGap(position, claimed_end, error.reason, torn=False, reaches_end=claimed_end == reader.size)
    end = reader.next_batch(position + 1, limit)
    reaches_end = end >= min(limit, reader.size)
    cut_header = reader.size - position < HEADER_BYTES
    torn = reaches_end and (cut_header or (claimed_end is not None and claimed_end > reader.size))
    return SegmentGap(position, end, error.reason, torn=torn, reaches_end=reaches_end)


def _scan(
    task: RangeTask,
    start: int,
    end: int,
    size: int,
    columns: Columns,
    indexes: tuple[IndexFile | None, IndexFile | None],
    *,
    gaps: Iterable[SegmentGap] = (),
    undecodable: Iterable[tuple[int, int, str]] = (),
    is_open: bool = False,
    vanished: bool = False,
) -> RangeScan:
    return RangeScan(
        directory=task.directory,
        segment=task.segment,
        planned_start=task.start,
        planned_end=task.end,
        start=start,
        end=end,
        size=size,
        columns=columns.pack(),
        gaps=tuple(gaps),
        undecodable=tuple(undecodable),
        index=indexes[0],
        time_index=indexes[1],
        is_open=is_open,
        vanished=vanished,
    )


class SegmentWindow:
    """A window on one file. `buffer` begins at file position `base`; `read` takes a count and a position."""

    def __init__(self, read: Callable[[int, int], bytes], size: int, file: str) -> None:
        self._read = read
        self.file = file
        self.size = size
        """Never read past; decreases if the file turns out to be shorter now."""
        self.buffer = b""
        self.base = 0

    def look_at(self, position: int, limit: int) -> BatchHeader | SegmentGap:
        """The batch or gap that begins at `position`. The end of a gap is not searched beyond `limit`."""
        try:
            return self.check(position)
        except CorruptBatch as error:
            return _gap(self, position, error, limit)

    def check(self, position: int) -> BatchHeader:
        """The batch at `position` after every check, or CorruptBatch."""
        offset = position - self.base
        if offset < 0 or offset + HEADER_BYTES > len(self.buffer):
            self._load(position, CHUNK_BYTES)
            offset = 0
        try:
            return check_batch(self.buffer, offset)
        except CorruptBatch:
            claimed_end = self.claimed_end(position)
            if claimed_end is None or self._holds(position, min(claimed_end, self.size) - position):
                raise
        self._load(position, max(min(claimed_end, self.size) - position, CHUNK_BYTES))
        return check_batch(self.buffer, 0)

    def is_batch(self, position: int) -> bool:
        try:
            self.check(position)
        except CorruptBatch:
            return False
        return True

    def claimed_end(self, position: int) -> int | None:
        """Where the batch at `position` ends according to its header; None when the header is invalid."""
        if not self._holds(position, HEADER_BYTES):
            self._load(position, CHUNK_BYTES)
        try:
            return position + read_header(self.buffer, position - self.base).size_bytes
        except CorruptBatch:
            return None

    def next_batch(self, position: int, limit: int) -> int:
        """The first position from `position` on at which a valid batch begins; if none begins before `limit`, the
        smaller of `limit` and the file's size."""
        while position < limit:
            if not self._holds(position, HEADER_BYTES):
                self._load(position, min(CHUNK_BYTES, limit - position + HEADER_BYTES))
                if not self._holds(position, HEADER_BYTES):
                    break
            at = self.buffer.find(MAGIC_BYTE, position - self.base + MAGIC_AT)
            if at < 0:
                position = self.base + len(self.buffer) - MAGIC_AT
                continue
            position = self.base + at - MAGIC_AT
            # Lengths are below 16 MiB, so their first byte is zero: this cheaply rejects nearly every wrong candidate.
            if self.buffer[at - MAGIC_AT + LENGTH_AT] == 0:
                if not self._holds(position, HEADER_BYTES):
                    continue
                if self.claimed_end(position) is not None and self.is_batch(position):
                    return position if position < limit else min(limit, self.size)
            position += 1
        return min(limit, self.size)

    def _holds(self, position: int, count: int) -> bool:
        return self.base <= position and position + count <= self.base + len(self.buffer)

    def _load(self, position: int, count: int) -> None:
        self.base = position
        self.buffer = b""
        wanted = min(count, self.size - position)
        if wanted > 0:
            self.buffer = self._read(wanted, position)
            if len(self.buffer) < wanted:
                self.size = position + len(self.buffer)


def _read_small(task: RangeTask, suffix: str) -> IndexFile | None:
    try:
        with open(open_regular(segment_file(task.directory, task.segment, suffix)), "rb") as file:
            return IndexFile(file.read(INDEX_BYTES_MAX))
    except FileNotFoundError:
        return None
    except OSError as error:
        return IndexFile(b"", str(error.strerror))
