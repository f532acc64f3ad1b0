"""Segment files read offline, for `log dump` and `log verify`: batches, records, and what is wrong with them.

Owns: finding the segment files under a path and walking one of them. Uses the formats of protocol/ only, so it works
without a broker and on files of a dead one. Refuses to compare replicas: that is the audit's.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from minibroker.directory_owner import read_owner
from minibroker.power_loss import list_segments
from minibroker.protocol import checkpoints
from minibroker.protocol.record_batch import HEADER_BYTES, BatchHeader, CorruptBatch, check_batch, read_header

Buffer = bytes | mmap.mmap


class Problem(msgspec.Struct, frozen=True):
    """Something that should not be so, and where."""

    file: str
    position: int
    """In the file, in bytes."""
    what: str


class Batch(msgspec.Struct, frozen=True):
    """One whole batch, checked (`problem` None) or not what was written."""

    position: int
    header: BatchHeader
    problem: str | None


def find_segments(path: Path) -> list[Path]:
    """The `.log` files meant by a path: a file, a partition's directory, a log.dir, or a cluster's data directory."""
    if path.is_file():
        return [path]
    found = [segment for _, segment in list_segments(path)] if path.is_dir() else []
    if not found and path.is_dir():
        for child in sorted(child for child in path.iterdir() if child.is_dir()):
            is_partition = checkpoints.parse_partition_directory_name(child.name) is not None
            is_log_directory = (child / checkpoints.META_PROPERTIES).exists()
            if is_log_directory or (is_partition and any(list_segments(child))):
                found += find_segments(child)
    return found


def owner_problems(segments: list[Path]) -> dict[Path, list[Problem]]:
    """What is wrong with the two files that say whose log lies there, by the directory of these segments."""
    found: dict[Path, list[Problem]] = {}
    for directory in dict.fromkeys(segment.absolute().parent for segment in segments):
        partition = checkpoints.parse_partition_directory_name(directory.name)
        if partition is not None:
            said = read_owner(directory, partition)
            found[directory] = [Problem(file, 0, why) for file, why in (*said.foreign, *said.unreadable)]
    return found


def open_segment(path: Path) -> Buffer:
    """The file's bytes without reading them all; an empty file cannot be mapped."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def walk(content: Buffer) -> Iterator[Batch | Problem]:
    """Every batch of a segment, its CRC checked; ends with a Problem (file '') where the bytes make no batch."""
    position = 0
    while position < len(content):
        try:
            header = read_header(content[position : position + HEADER_BYTES])
        except CorruptBatch as error:
            yield Problem("", position, f"{len(content) - position} bytes at the end are no batch: {error.reason}")
            return
        end = position + header.size_bytes
        if end > len(content):
            yield Problem("", position, f"a batch of {header.size_bytes} bytes is cut at {len(content) - position}")
            return
        problem = None
        try:
            check_batch(content[position:end])
        except CorruptBatch as error:
            problem = error.reason
        yield Batch(position, header, problem)
        position = end


def verify_segment(path: Path) -> tuple[int, int, list[Problem]]:
    """(batches, records, problems): CRCs, offsets without a gap or overlap, epochs that never fall, indexes."""
    parsed = checkpoints.parse_segment_file_name(path.name)
    expected = parsed[0] if parsed is not None else None
    epoch = batches = records = 0
    problems: list[Problem] = []
    positions: dict[int, int] = {}

    def wrong(position: int, what: str) -> None:
        problems.append(Problem(str(path), position, what))

    for item in walk(open_segment(path)):
        if isinstance(item, Problem):
            wrong(item.position, item.what)
            break
        header = item.header
        batches, records = batches + 1, records + header.record_count
        positions[item.position] = header.last_offset
        if item.problem is not None:
            wrong(item.position, f"offsets {header.base_offset} to {header.last_offset}: {item.problem}")
        if expected is not None and header.base_offset != expected:
            wrong(item.position, f"the batch begins at offset {header.base_offset}, expected {expected}")
        if header.partition_leader_epoch < epoch:
            wrong(item.position, f"leader epoch {header.partition_leader_epoch} after {epoch}")
        epoch, expected = max(epoch, header.partition_leader_epoch), header.end_offset
    if parsed is not None:
        problems += index_problems(path, parsed[0], positions)
    return batches, records, problems


def index_problems(path: Path, base_offset: int, positions: dict[int, int]) -> list[Problem]:
    """Each entry of the offset index must name a batch and that batch's last offset."""
    index = path.with_suffix(checkpoints.INDEX_SUFFIX)
    if not index.exists():
        return []
    try:
        entries = checkpoints.decode_index(index.read_bytes())
    except checkpoints.CorruptCheckpoint as error:
        return [Problem(str(index), 0, str(error))]
    problems = []
    for number, entry in enumerate(entries):
        last_offset = positions.get(entry.position)
        if last_offset != base_offset + entry.relative_offset:
            found = "no batch begins" if last_offset is None else f"the batch ending at {last_offset} begins"
            what = f"entry {number} says offset {base_offset + entry.relative_offset}, but at {entry.position} {found}"
            problems.append(Problem(str(index), number * checkpoints.INDEX_ENTRY_BYTES, what))
    return problems
