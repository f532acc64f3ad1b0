"""The list of acknowledged records that `minibroker produce --report` writes (docs/FORMATS.md).

Owns: reading both versions of the list in byte ranges. A line belongs to the range that holds its first byte. A
malformed line stops the audit, and so does a trailer that does not match the content: a list that is only half
understood proves nothing. A list without a trailer was cut, or its producer was killed: the audit checks the records in
it and reports that the list is incomplete.
"""

import os
import re
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.audit.errors import AuditError
from minibroker.audit.reading.regular_files import open_regular
from minibroker.audit.reading.replica import NO_VALUE
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.acked_list import HEADER_BYTES_MAX, TRAILER_BYTES_MAX, VERSION, parse_head, parse_trailer
from minibroker.protocol.ids import MAX_OFFSET, MAX_PARTITION

RANGE_BYTES = 8 * 1024 * 1024
LINE_BYTES_MAX = 512
"""A topic of 249 characters and three numbers fit; a longer line is malformed."""
ACKS_ALL = "all"
_LINE = re.compile(rb"^([A-Za-z0-9._-]{1,249})\t([0-9]{1,10})\t([0-9]{1,19})\t([0-9a-f]{8}|-)\n", re.MULTILINE)


class AckedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One byte range of the list."""

    path: str
    start: int
    end: int
    version: int = 1
    acks: str = ACKS_ALL
    topic_ids: dict[str, str] = {}


class AckedChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledged records of one partition from one range of the list, as packed columns of i64."""

    topic: str
    partition: int
    start: int
    """Of the range; the chunks of a partition are joined in this order."""
    offsets: bytes
    crcs: bytes
    acks: str = ACKS_ALL
    topic_id: str | None = None
    """Of the topic that the records were written to, where the list names it."""


class AckedList(msgspec.Struct, frozen=True, kw_only=True):
    """Header and trailer of a list."""

    path: str
    version: int
    acks: str
    topic_ids: dict[str, str]
    start: int
    """Position of the first record's line."""
    end: int
    """Position behind the last record's line."""
    trailer: tuple[int, int] | None
    """(records, CRC-32C of everything in front of it). None: the list has no trailer."""

    @property
    def covers_whole_records(self) -> bool:
        return self.version >= VERSION


def open_acked(path: str) -> AckedList:
    """Read the header and the trailer of the list, but not the lines between them."""
    with _opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        beginning = file.read(HEADER_BYTES_MAX)
        file.seek(max(size - TRAILER_BYTES_MAX, 0))
        tail = file.read(TRAILER_BYTES_MAX)
        if not beginning.startswith(b"#"):
            return AckedList(path=path, version=1, acks=ACKS_ALL, topic_ids={}, start=0, end=size, trailer=None)
        head = parse_head(beginning)
        if isinstance(head, str):
            raise AuditError(f"the list of acknowledged records {path} has an unknown header: {head}")
        before, _, last = tail.removesuffix(b"\n").rpartition(b"\n")
        trailer = parse_trailer(last + b"\n") if tail.endswith(b"\n") and (before or size > len(tail)) else None
        end = size - len(last) - 1 if trailer is not None else _whole_lines_end(file, size)
    start = min(head.size, end)
    return AckedList(
        path=path,
        version=head.version,
        acks=head.acks,
        topic_ids=head.topic_ids,
        start=start,
        end=end,
        trailer=trailer,
    )


@contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    """The list, for reading. Raises AuditError where the operating system refuses to open it or to read a part."""
    try:
        with open(open_regular(path), "rb") as file:
            yield file
    except OSError as error:
        raise AuditError(f"the list of acknowledged records {path} cannot be read: {error.strerror}") from error


def _whole_lines_end(file: BinaryIO, size: int) -> int:
    """The end of the last complete line: a producer that was killed may leave part of a line."""
    begin = max(size - LINE_BYTES_MAX, 0)
    file.seek(begin)
    return begin + file.read(size - begin).rfind(b"\n") + 1


def check_list(acked: AckedList) -> list[Finding]:
    """Findings about the list itself. Raises AuditError where the trailer contradicts the content."""
    path = acked.path
    records, checksum = _count(acked)
    if acked.trailer is not None and acked.trailer != (records, checksum):
        raise AuditError(
            f"the list of acknowledged records {path} was changed or damaged: its last line counts {acked.trailer[0]}"
            f" records with checksum {acked.trailer[1]:08x}, it holds {records} with {checksum:08x}; write it again"
        )
    found = []
    if not records:
        found.append(finding(Kind.UNPROVEN, "the list of acknowledged records is empty", file=path))
    if acked.covers_whole_records and acked.trailer is None:
        message = (
            "the list of acknowledged records has no end: it was cut, or its producer was killed or still writes it;"
            f" the {records} records in it are looked for, but other acknowledged records are unknown"
        )
        found.append(finding(Kind.UNPROVEN, message, file=path))
    if acked.acks != ACKS_ALL:
        message = f"the list was written with acks={acked.acks}: records acknowledged this way may be lost"
        found.append(finding(Kind.ACKED_ALLOWED_LOSS, message, file=path))
    return found


def _count(acked: AckedList) -> tuple[int, int]:
    """(records, CRC-32C of everything in front of the trailer)."""
    checksum = records = position = 0
    with _opened(acked.path) as file:
        while position < acked.end:
            content = file.read(min(RANGE_BYTES, acked.end - position))
            if not content:
                break
            checksum = crc32c(content, checksum)
            records += content.count(b"\n", max(acked.start - position, 0))
            position += len(content)
    return records, checksum


def plan_acked(path: str, end: int | None = None) -> list[AckedTask]:
    """Split the list into ranges, up to `end`: its producer may be adding to it."""
    acked = open_acked(path)
    end = acked.end if end is None else min(acked.end, end)
    return [
        AckedTask(
            path=path,
            start=start,
            end=min(start + RANGE_BYTES, end),
            version=acked.version,
            acks=acked.acks,
            topic_ids=acked.topic_ids,
        )
        for start in range(acked.start, end, RANGE_BYTES)
    ]


def covers_whole_records(tasks: Iterable[AckedTask]) -> bool:
    """Whether the checksums of this list are those of whole records."""
    return any(task.version >= VERSION for task in tasks)


def read_acked(task: AckedTask) -> list[AckedChunk]:
    """The records whose line begins in the range. Raises AuditError, which names the first malformed line."""
    begin, content = _whole_lines(task)
    lines = _LINE.findall(content)
    if len(lines) != content.count(b"\n") or (content and not content.endswith(b"\n")):
        raise AuditError(_complaint(task.path, begin, content))
    columns: dict[tuple[bytes, bytes], tuple[array[int], array[int]]] = {}
    for topic, partition, offset, crc in lines:
        column = columns.get((topic, partition))
        if column is None:
            if int(partition) > MAX_PARTITION:
                raise AuditError(f"{task.path}: partition {partition.decode()} is beyond {MAX_PARTITION}")
            column = columns[(topic, partition)] = (array("q"), array("q"))
        number = int(offset)
        if number >= MAX_OFFSET:
            raise AuditError(f"{task.path}: offset {number} is beyond {MAX_OFFSET - 1}")
        column[0].append(number)
        column[1].append(NO_VALUE if crc == b"-" else int(crc, 16))
    return [
        AckedChunk(
            topic=topic.decode(),
            partition=int(partition),
            start=task.start,
            offsets=offsets.tobytes(),
            crcs=crcs.tobytes(),
            acks=task.acks,
            topic_id=task.topic_ids.get(topic.decode()) or None,
        )
        for (topic, partition), (offsets, crcs) in columns.items()
    ]


def _whole_lines(task: AckedTask) -> tuple[int, bytes]:
    """(position, content) of the lines that begin in the range."""
    with _opened(task.path) as file:
        begin = task.start
        if begin:
            file.seek(begin - 1)
            # The line that holds the byte in front of the range belongs to the range before.
            begin += len(file.readline(LINE_BYTES_MAX)) - 1
        file.seek(begin)
        content = file.read(max(task.end - begin, 0))
        if content and not content.endswith(b"\n"):
            content += file.readline(LINE_BYTES_MAX)
    return begin, content


def _complaint(path: str, begin: int, content: bytes) -> str:
    position, line = 0, b""
    for line in re.findall(rb"[^\n]*\n|[^\n]+", content):
        if _LINE.fullmatch(line) is None:
            break
        position += len(line)
    reason = "is cut off" if not line.endswith(b"\n") else "is not 'topic<TAB>partition<TAB>offset<TAB>crc'"
    shown = line[:80].decode(errors="replace")
    return f"{path}: the line at byte {begin + position} {reason}: {shown!r}; write the list again"
