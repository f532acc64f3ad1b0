"""How a record is printed: kcat's format tokens and kcat's JSON, plus the leader epoch.

Owns: parsing a format once into steps, and the JSON form of a record. Refuses to read records or write to anything.

    %t topic  %p partition  %o offset  %e leader epoch  %k key  %K its length  %s value  %S its length (-1: null)
    %T timestamp in ms  %h headers  %R value's length as 4 bytes, big-endian  %% a percent sign
    \\n \\r \\t \\0 \\\\ \\xNN
"""

import struct
from collections.abc import Callable, Sequence
from typing import Protocol


class StoredRecord(Protocol):
    """What both a log's and a consumer's record have."""

    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class ReadRecord(StoredRecord, Protocol):
    """What a consumer returns."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def leader_epoch(self) -> int | None: ...


class BadFormat(ValueError):
    """A token that does not exist."""


Step = Callable[[ReadRecord], bytes]

_TOKENS: dict[str, Step] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "e": lambda record: b"%d" % (-1 if record.leader_epoch is None else record.leader_epoch),
    "k": lambda record: record.key or b"",
    "K": lambda record: b"%d" % _length(record.key),
    "s": lambda record: record.value or b"",
    "S": lambda record: b"%d" % _length(record.value),
    "T": lambda record: b"%d" % record.timestamp_ms,
    "h": lambda record: _headers(record.headers),
    "R": lambda record: struct.pack(">i", _length(record.value)),
    "%": lambda record: b"%",
}
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    return b",".join(name.encode() + (b"" if value is None else b"=" + value) for name, value in headers)


def compile_format(text: str) -> Callable[[ReadRecord], bytes]:
    """A function that prints a record as `text` says. Raises BadFormat naming the token."""
    steps: list[Step | bytes] = []
    position = 0
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        if character == "%":
            if following not in _TOKENS or not following:
                raise BadFormat(
                    f"%{following} is no format token: there are {' '.join('%' + token for token in _TOKENS)}"
                )
            steps.append(_TOKENS[following])
            position += 2
        elif character == "\\" and following:
            literal, used = _escape(text, position)
            steps.append(literal)
            position += used
        else:
            steps.append(character.encode())
            position += 1
    return lambda record: b"".join(step if isinstance(step, bytes) else step(record) for step in steps)


def _escape(text: str, position: int) -> tuple[bytes, int]:
    following = text[position + 1]
    if following == "x":
        digits = text[position + 2 : position + 4]
        try:
            return bytes.fromhex(digits), 4
        except ValueError:
            raise BadFormat(f"\\x{digits} is no byte: give two hexadecimal digits") from None
    if following not in _ESCAPES:
        raise BadFormat(f"\\{following} is no escape: there are \\n \\r \\t \\0 \\\\ \\xNN")
    return _ESCAPES[following], 2


def parse_delimiter(text: str) -> bytes:
    """A delimiter as given on the command line, with the same escapes. Raises BadFormat."""
    parts = []
    position = 0
    while position < len(text):
        if text[position] == "\\" and position + 1 < len(text):
            literal, used = _escape(text, position)
        else:
            literal, used = text[position].encode(), 1
        parts.append(literal)
        position += used
    return b"".join(parts)


def record_as_json(record: StoredRecord) -> dict[str, object]:
    """kcat -J's fields. Bytes that are no UTF-8 are decoded with surrogate escapes: nothing is lost."""
    return {
        "offset": record.offset,
        "tstype": "create",
        "ts": record.timestamp_ms,
        "headers": [part for name, value in record.headers for part in (name, _text(value))],
        "key": _text(record.key),
        "payload": _text(record.value),
    }


def consumed_as_json(record: ReadRecord) -> dict[str, object]:
    """The same, with where it was read."""
    place = {"topic": record.topic, "partition": record.partition, "leader_epoch": record.leader_epoch}
    return place | record_as_json(record)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="surrogateescape")
