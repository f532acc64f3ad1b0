"""Segment files read offline, for `log dump` and `log verify`: their batches, records and problems.

Owns: finding the segment files under a path and walking through one. Uses the formats of protocol/ only, so it works
without a broker. Leaves to others: comparing replicas, which the audit does.
"""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from minibroker.local_cluster.power_loss import list_segments
from minibroker.offline.directory_owner import read_owner
from minibroker.offline.log_evidence import read_small
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import CorruptCheckpoint, EpochEntry
from minibroker.protocol.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, check_batch, read_header

Buffer = bytes | mmap.mmap


class SegmentProblem(msgspec.Struct, frozen=True):
    """A problem, and where it is."""

    file: str
    position: int
    """Byte position in the file."""
    what: str


class SegmentBatch(msgspec.Struct, frozen=True):
    """One whole batch; `problem` is None if its check passed."""

    position: int
    header: BatchHeader
    problem: str | None


def find_segments(path: Path) -> list[Path]:
    """The `.log` files under a path: a file, a partition's directory, a log.dir, or a cluster's data directory."""
    if path.is_file():
        return [path]
    found = [segment for _, segment in list_segments(path)] if path.is_dir() else []
    if not found and path.is_dir():
        for child in sorted(child for child in path.iterdir() if child.is_dir()):
            if _is_log(child) or _is_log_directory(child):
                found += find_segments(child)
    return found


def _is_log(directory: Path) -> bool:
    is_named_so = checkpoints.parse_partition_directory_name(directory.name) is not None
    return is_named_so and any(list_segments(directory))


def _is_log_directory(directory: Path) -> bool:
    """Also one that has lost its meta.properties: passed over, its logs would count as fine."""
    children = (child for child in directory.iterdir() if child.is_dir())
    return (directory / checkpoints.META_PROPERTIES).exists() or any(_is_log(child) for child in children)


def owner_problems(segments: list[Path]) -> dict[Path, list[SegmentProblem]]:
    """Problems of the two files that name a log's owner, by the directory of these segments."""
    found: dict[Path, list[SegmentProblem]] = {}
    for directory in dict.fromkeys(segment.absolute().parent for segment in segments):
        partition = checkpoints.parse_partition_directory_name(directory.name)
        if partition is not None:
            try:
                owner = read_owner(directory, partition)
            except OSError as error:
                found[directory] = [unreadable(Path(error.filename or directory), error)]
                continue
            found[directory] = [SegmentProblem(file, 0, why) for file, why in (*owner.foreign, *owner.unreadable)]
    return found


def open_segment(path: Path) -> Buffer:
    """The file's bytes, mapped where it is not empty. Raises OSError."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "is not a regular file", str(path))  # a pipe would block
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def walk(content: Buffer) -> Iterator[SegmentBatch | SegmentProblem]:
    """Every batch of a segment, its CRC checked; ends with a SegmentProblem (file '') at bytes that do not form one."""
    position = 0
    while position < len(content):
        try:
            header = read_header(content[position : position + HEADER_BYTES])
        except CorruptBatch as error:
            yield SegmentProblem(
                "", position, f"the last {len(content) - position:,} bytes do not form a valid batch: {error.reason}"
            )
            return
        end = position + header.size_bytes
        if end > len(content):
            yield SegmentProblem(
                "", position, f"a batch of {header.size_bytes} bytes is cut at {len(content) - position}"
            )
            return
        problem = None
        try:
            check_batch(content[position:end])
        except CorruptBatch as error:
            problem = error.reason
        yield SegmentBatch(position, header, problem)
        position = end


def verify_segment(path: Path) -> tuple[int, int, list[SegmentProblem], int | None]:
    """(batches, records, problems, end offset). Checks CRCs, offsets without a gap or overlap, epochs that never fall
    and fit the epoch history, and indexes. A file that cannot be read is a problem, too. The end offset is None if
    problems make it doubtful."""
    parsed = checkpoints.parse_segment_file_name(path.name)
    problems: list[SegmentProblem] = []
    try:
        content, epochs = open_segment(path), read_epochs(path.absolute().parent)
    except CorruptCheckpoint as error:
        content, epochs = open_segment(path), []
        problems.append(SegmentProblem(str(path.absolute().parent / checkpoints.EPOCH_CHECKPOINT), 0, str(error)))
    except OSError as error:
        return 0, 0, [unreadable(path, error)], None
    check = _SegmentCheck(path, None if parsed is None else parsed[0], epochs)
    for item in walk(content):
        check.take(item)
    problems += check.problems
    if parsed is not None:
        try:
            problems += index_problems(path, parsed[0], check.positions)
        except OSError as error:
            problems.append(unreadable(path.with_suffix(checkpoints.INDEX_SUFFIX), error))
    return check.batches, check.records, problems, None if problems else check.expected


class _SegmentCheck:
    """The check of one segment, batch by batch."""

    def __init__(self, path: Path, base_offset: int | None, epochs: list[EpochEntry]) -> None:
        self.path = path
        self.epochs = epochs
        self.expected = base_offset
        self.epoch = self.batches = self.records = 0
        self.positions: dict[int, int] = {}
        self.problems: list[SegmentProblem] = []

    def take(self, item: SegmentBatch | SegmentProblem) -> None:
        if isinstance(item, SegmentProblem):
            self._wrong(item.position, item.what)
            return
        header = item.header
        self.batches, self.records = self.batches + 1, self.records + header.record_count
        self.positions[item.position] = header.last_offset
        if item.problem is not None:
            self._wrong(item.position, f"offsets {header.base_offset} to {header.last_offset}: {item.problem}")
        if self.expected is not None and header.base_offset != self.expected:
            self._wrong(item.position, f"the batch begins at offset {header.base_offset}, expected {self.expected}")
        if header.partition_leader_epoch < self.epoch:
            self._wrong(item.position, f"leader epoch {header.partition_leader_epoch} after {self.epoch}")
        elif (what := wrong_epoch(header, self.epochs)) is not None:
            self._wrong(item.position, what)
        self.epoch, self.expected = max(self.epoch, header.partition_leader_epoch), header.end_offset

    def _wrong(self, position: int, what: str) -> None:
        self.problems.append(SegmentProblem(str(self.path), position, what))


def unreadable(path: Path, error: OSError) -> SegmentProblem:
    return SegmentProblem(str(path), 0, f"cannot be read: {error.strerror}")


def read_epochs(directory: Path) -> list[EpochEntry]:
    """The epoch history of a log; empty if there is no file. Raises CorruptCheckpoint, OSError."""
    try:
        return checkpoints.parse_epoch_checkpoint(read_small(directory / checkpoints.EPOCH_CHECKPOINT))
    except FileNotFoundError:
        return []


def wrong_epoch(header: BatchHeader, epochs: list[EpochEntry]) -> str | None:
    """How a batch contradicts the epoch history: the last entry at or below its offset must be its epoch."""
    recorded = [known for known, start in epochs if start <= header.base_offset]
    if not recorded or recorded[-1] == header.partition_leader_epoch:
        return None
    return f"leader epoch {header.partition_leader_epoch}, but {recorded[-1]} in the epoch checkpoint"


def is_cut_off(content: Buffer, position: int) -> bool:
    """Does the first part of a batch begin there, as an interrupted write leaves it? A whole batch that is damaged, or
    one that a sound batch follows, is not such a part."""
    if len(content) - position < HEADER_BYTES:
        return True
    try:
        header = read_header(content[position : position + HEADER_BYTES])
    except CorruptBatch:
        return False
    return position + header.size_bytes > len(content) and not _is_followed(content, position, header.end_offset)


def _is_followed(content: Buffer, position: int, base_offset: int) -> bool:
    """Is there a sound batch with this base offset anywhere after the position?"""
    found = position + HEADER_BYTES
    while (found := content.find(base_offset.to_bytes(8), found)) >= 0:
        if _is_sound(content, found):
            return True
        found += 1
    return False


def _is_sound(content: Buffer, position: int) -> bool:
    try:
        end = position + read_header(content[position : position + HEADER_BYTES]).size_bytes
        check_batch(content[position:end])
    except CorruptBatch:
        return False
    return end <= len(content)


def index_problems(path: Path, base_offset: int, positions: dict[int, int]) -> list[SegmentProblem]:
    """Entries of the offset index that do not name a batch and its last offset."""
    index = path.with_suffix(checkpoints.INDEX_SUFFIX)
    if not os.path.lexists(index):
        return []
    try:
        entries = checkpoints.decode_index(read_small(index))
    except CorruptCheckpoint as error:
        return [SegmentProblem(str(index), 0, str(error))]
    problems = []
    for number, entry in enumerate(entries):
        last_offset = positions.get(entry.position)
        if last_offset != base_offset + entry.relative_offset:
            found = "no batch begins" if last_offset is None else f"the batch ending at {last_offset} begins"
            what = f"entry {number} has offset {base_offset + entry.relative_offset}, but at {entry.position} {found}"
            problems.append(SegmentProblem(str(index), number * checkpoints.INDEX_ENTRY_BYTES, what))
    return problems
