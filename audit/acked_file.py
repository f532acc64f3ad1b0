"""Reading the list of acknowledged records that `minibroker produce --report` wrote (docs/FORMATS.md).

Owns: the format of the list, and reading it in byte ranges: a line belongs to the range that holds its first byte.
A line that does not fit stops the audit: a list that is half understood proves nothing.
"""

import os
import re
from array import array

import msgspec

from minibroker.audit.errors import AuditError
from minibroker.audit.replica import NO_VALUE
from minibroker.protocol.ids import MAX_OFFSET

RANGE_BYTES = 8 * 1024 * 1024
LINE_BYTES_MAX = 512
"""A topic of 249 characters and three numbers fit; a longer line is none."""
_LINE = re.compile(rb"^([A-Za-z0-9._-]{1,249})\t([0-9]{1,10})\t([0-9]{1,19})\t([0-9a-f]{8}|-)\n", re.MULTILINE)


class AckedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One byte range of the list."""

    path: str
    start: int
    end: int


class AckedChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Acknowledged records of one partition from one range of the list, as packed columns of i64."""

    topic: str
    partition: int
    start: int
    """Of the range: chunks of a partition are joined in this order."""
    offsets: bytes
    crcs: bytes


def plan_acked(path: str) -> list[AckedTask]:
    """Cut the list into ranges."""
    try:
        size = os.stat(path).st_size
        with open(path, "rb"):
            pass
    except OSError as error:
        raise AuditError(f"the list of acknowledged records {path} cannot be read: {error.strerror}") from error
    return [
        AckedTask(path=path, start=start, end=min(start + RANGE_BYTES, size)) for start in range(0, size, RANGE_BYTES)
    ]


def read_acked(task: AckedTask) -> list[AckedChunk]:
    """The records whose line begins in the range; AuditError names the first line that is none."""
    begin, content = _whole_lines(task)
    lines = _LINE.findall(content)
    if len(lines) != content.count(b"\n") or (content and not content.endswith(b"\n")):
        raise AuditError(_complaint(task.path, begin, content))
    columns: dict[tuple[bytes, bytes], tuple[array[int], array[int]]] = {}
    for topic, partition, offset, crc in lines:
        column = columns.get((topic, partition))
        if column is None:
            column = columns[(topic, partition)] = (array("q"), array("q"))
        try:
            column[0].append(int(offset))
        except OverflowError:
            raise AuditError(f"{task.path}: offset {offset.decode()} is beyond {MAX_OFFSET}") from None
        column[1].append(NO_VALUE if crc == b"-" else int(crc, 16))
    return [
        AckedChunk(
            topic=topic.decode(),
            partition=int(partition),
            start=task.start,
            offsets=offsets.tobytes(),
            crcs=crcs.tobytes(),
        )
        for (topic, partition), (offsets, crcs) in columns.items()
    ]


def _whole_lines(task: AckedTask) -> tuple[int, bytes]:
    """(position, content) of the lines that begin in the range."""
    with open(task.path, "rb") as file:
        begin = task.start
        if begin:
            file.seek(begin - 1)
            # The line that holds the byte in front of the range ends in it or behind it; it is not ours.
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
    return f"{path}: the line at byte {begin + position} {reason}: {shown!r}; write the list anew"
