"""The list of records acknowledged to a producer, one per line (docs/FORMATS.md). Pure.

Owns: the format of version 2 and its one writer, and what a record's checksum covers. Leaves to others: which producer
writes it, and the comparison with the logs (`audit`).
"""

import re
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from minibroker.protocol.checksum import crc32c

VERSION = 2
HEAD = b"#minibroker-acked "
ACKS = ("all", "1", "0")
HEADER_BYTES_MAX = 1024 * 1024
"""The lines in front of the first record: one names a topic, in some hundred bytes."""
TRAILER_BYTES_MAX = 64
_HEADER = re.compile(rb"#minibroker-acked ([0-9]{1,9}) acks=(all|1|0)\n")
_TOPIC = re.compile(rb"#topic ([A-Za-z0-9._-]{1,249}) ([!-~]{0,255})\n")
_TRAILER = re.compile(rb"#end ([0-9]{1,19}) ([0-9a-f]{8})\n")
_FIXED = struct.Struct(">qiiI")
_HEADER_SIZES = struct.Struct(">Ii")
_ABSENT = -1


def record_checksum(
    timestamp_ms: int, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
) -> int:
    """CRC-32C of the whole record: i64 timestamp, i32 bytes of the key, i32 bytes of the value (-1: none), u32 headers,
    key, value; then for each header u32 bytes of its name, i32 bytes of its value (-1: none), name, value."""
    key_bytes = _ABSENT if key is None else len(key)
    value_bytes = _ABSENT if value is None else len(value)
    fixed = _FIXED.pack(timestamp_ms, key_bytes, value_bytes, len(headers))
    if not headers:
        return crc32c(fixed + (key or b"") + (value or b""))
    parts = [fixed, key or b"", value or b""]
    for name, content in headers:
        encoded = name.encode()
        parts.append(_HEADER_SIZES.pack(len(encoded), _ABSENT if content is None else len(content)))
        parts += (encoded, content or b"")
    return crc32c(b"".join(parts))


class AckedListWriter:
    """Writes one list: the head at once, records as they are added, the end at `finish`. A list without end is cut."""

    def __init__(self, write: Callable[[bytes], object], topic_ids: Mapping[str, str], acks: str = "all") -> None:
        assert acks in ACKS
        self._write = write
        self._checksum = 0
        self._records = 0
        self._is_finished = False
        names = b"".join(b"#topic %s %s\n" % (name.encode(), topic_id.encode()) for name, topic_id in topic_ids.items())
        self._put(HEAD + b"%d acks=%s\n" % (VERSION, acks.encode()) + names)

    def add(self, topic: str, partition: int, records: Iterable[tuple[int, int]]) -> None:
        """Add records, each as (offset, checksum of the whole record)."""
        name = topic.encode()
        lines = [b"%s\t%d\t%d\t%08x\n" % (name, partition, offset, checksum) for offset, checksum in records]
        self._records += len(lines)
        self._put(b"".join(lines))

    def finish(self) -> None:
        """Write the end: nothing else was acknowledged. A second call does nothing."""
        if not self._is_finished:
            self._is_finished = True
            self._write(b"#end %d %08x\n" % (self._records, self._checksum))

    def _put(self, content: bytes) -> None:
        assert not self._is_finished
        self._checksum = crc32c(content, self._checksum)
        self._write(content)


class AckedHead(msgspec.Struct, frozen=True):
    """The part of a list in front of the records."""

    version: int
    acks: str
    topic_ids: dict[str, str]
    size: int
    """In bytes."""


def parse_head(content: bytes) -> AckedHead | str:
    """The head of a list, from its first bytes; a str describes an error. (Version 1 has no head.)"""
    match = _HEADER.match(content)
    if match is None:
        return "its first line is not '#minibroker-acked <version> acks=<all, 1 or 0>'"
    version = int(match[1])
    if version != VERSION:
        return f"it is of version {version}; this audit reads 1 and {VERSION}"
    position = match.end()
    topic_ids: dict[str, str] = {}
    while topic := _TOPIC.match(content, position):
        topic_ids[topic[1].decode()] = topic[2].decode()
        position = topic.end()
    return AckedHead(version, match[2].decode(), topic_ids, position)


def parse_trailer(line: bytes) -> tuple[int, int] | None:
    """(records, CRC-32C of everything in front of it) if it is the last line of a finished list."""
    match = _TRAILER.fullmatch(line)
    return None if match is None else (int(match[1]), int(match[2], 16))
