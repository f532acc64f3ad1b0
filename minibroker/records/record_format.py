"""How a record is printed: kcat's format tokens and kcat's JSON, plus the leader epoch.

Owns: parsing a format once into steps, and the JSON form of a record. Leaves to others: reading and writing.

    %t topic  %p partition  %o offset  %e leader epoch  %k key  %K its length  %s value  %S its length (-1: null)
    %T timestamp in ms  %h headers  %R value's length as 4 bytes, big-endian  %% a percent sign
    \\n \\r \\t \\0 \\\\ \\xNN
"""

import base64
import contextlib
import json
import struct
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Protocol

import msgspec


class StoredRecord(Protocol):
    """What records of a log and of a consumer have in common."""

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
    """A consumer's record."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def leader_epoch(self) -> int | None: ...


class BadFormat(ValueError):
    """An unknown token or escape."""


TokenPrinter = Callable[[ReadRecord], bytes]

_TOKENS: dict[str, TokenPrinter] = {
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
_PLAIN = {
    "p": (b"%d", "partition"),
    "o": (b"%d", "offset"),
    "e": (b"%d", "leader_epoch"),
    "k": (b"%b", "key"),
    "s": (b"%b", "value"),
    "T": (b"%d", "timestamp_ms"),
}
"""Tokens that are fields of a record, and how they are printed if they are not null."""
_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def _length(value: bytes | None) -> int:
    return -1 if value is None else len(value)


def _headers(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    return b",".join(name.encode() + (b"" if value is None else b"=" + value) for name, value in headers)


def compile_format(text: str) -> Callable[[ReadRecord], bytes]:
    """Compile `text` to a function that prints a record. Raises BadFormat naming the token."""
    steps: list[str | bytes] = []
    """Tokens as text, literals as bytes."""
    position = 0
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        if character == "%":
            if following not in _TOKENS or not following:
                raise BadFormat(
                    f"%{following} is not a format token: there are {' '.join('%' + token for token in _TOKENS)}"
                )
            steps.append(following)
            position += 2
        elif character == "\\" and following:
            literal, used = _escape(text, position)
            steps.append(literal)
            position += used
        else:
            steps.append(character.encode(errors="surrogateescape"))
            position += 1
    return _by_template(steps) if _PLAIN.keys() & {*steps} else _step_by_step(steps)


def _step_by_step(steps: Sequence[str | bytes]) -> Callable[[ReadRecord], bytes]:
    """Works for all tokens and values."""
    calls = [step if isinstance(step, bytes) else _TOKENS[step] for step in steps]
    return lambda record: b"".join(call if isinstance(call, bytes) else call(record) for call in calls)


def _by_template(steps: Sequence[str | bytes]) -> Callable[[ReadRecord], bytes]:
    """The same with one call, if all tokens are plain fields of the record and none is null: four times faster."""
    print_any = _step_by_step(steps)
    if not all(isinstance(step, bytes) or step in _PLAIN for step in steps):
        return print_any
    members = attrgetter(*(_PLAIN[step][1] for step in steps if isinstance(step, str)))
    template = b"".join(step.replace(b"%", b"%%") if isinstance(step, bytes) else _PLAIN[step][0] for step in steps)

    def show(record: ReadRecord) -> bytes:
        try:
            return template % members(record)
        except TypeError:  # something is null
            return print_any(record)

    return show


def _escape(text: str, position: int) -> tuple[bytes, int]:
    following = text[position + 1]
    if following == "x":
        digits = text[position + 2 : position + 4]
        try:
            return bytes.fromhex(digits), 4
        except ValueError:
            raise BadFormat(f"\\x{digits} is not a byte: give two hexadecimal digits") from None
    if following not in _ESCAPES:
        raise BadFormat(f"\\{following} is not an escape: there are \\n \\r \\t \\0 \\\\ \\xNN")
    return _ESCAPES[following], 2


def parse_delimiter(text: str) -> bytes:
    """Parse a delimiter of the command line, with the same escapes. Raises BadFormat."""
    parts = []
    position = 0
    while position < len(text):
        if text[position] == "\\" and position + 1 < len(text):
            literal, used = _escape(text, position)
        else:
            literal, used = text[position].encode(errors="surrogateescape"), 1
        parts.append(literal)
        position += used
    return b"".join(parts)


def record_as_json(record: StoredRecord, *, all_base64: bool = False) -> dict[str, object]:
    """The fields of kcat -J. A key, a value or headers that are not UTF-8 are in base64, and the field `base64` names
    them: JSON has no other way to hold all bytes. `all_base64`: they always are."""
    values = [value for _, value in record.headers]
    binary = [
        name
        for name, contents in (("key", [record.key]), ("payload", [record.value]), ("headers", values))
        if (all_base64 and any(content is not None for content in contents)) or not all(map(_is_text, contents))
    ]
    shown = {
        "offset": record.offset,
        "tstype": "create",
        "ts": record.timestamp_ms,
        "headers": [part for name, value in record.headers for part in (name, _text(value, "headers" in binary))],
        "key": _text(record.key, "key" in binary),
        "payload": _text(record.value, "payload" in binary),
    }
    return shown | ({"base64": binary} if binary else {})


def consumed_as_json(record: ReadRecord, *, all_base64: bool = False) -> dict[str, object]:
    """The same, with topic, partition and leader epoch."""
    place = {"topic": record.topic, "partition": record.partition, "leader_epoch": record.leader_epoch}
    return place | record_as_json(record, all_base64=all_base64)


def base64_line(record: ReadRecord) -> bytes:
    """`consumed_as_json` as one line, all in base64."""
    return json.dumps(consumed_as_json(record, all_base64=True), separators=(",", ":")).encode() + b"\n"


def json_values_line(record: ReadRecord) -> bytes:
    """`consumed_as_json` as one line, with keys and values that are JSON objects or arrays as such: programs like jq
    need not parse them again. Texts and numbers stay texts, because 1.0 and "1.0" would be the same."""
    shown = consumed_as_json(record)
    for name in ("key", "payload"):
        text = shown[name]
        if isinstance(text, str) and text.lstrip()[:1] in ("{", "["):
            with contextlib.suppress(ValueError, RecursionError):
                shown[name] = json.loads(text, parse_constant=_refuse)
    return json.dumps(shown, separators=(",", ":"), ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def json_line(record: ReadRecord) -> bytes:
    """`consumed_as_json` as one line with a newline, compact like kcat's."""
    key, value = record.key, record.value
    try:
        line = _JsonLine(
            record.topic,
            record.partition,
            record.leader_epoch,
            record.offset,
            "create",
            record.timestamp_ms,
            [part for name, content in record.headers for part in (name, _strict_text(content))],
            _strict_text(key),
            _strict_text(value),
        )
    except UnicodeDecodeError:
        return json.dumps(consumed_as_json(record), separators=(",", ":")).encode() + b"\n"
    return _encode_json(line) + b"\n"


class _JsonLine(msgspec.Struct, gc=False):
    """The fields of `consumed_as_json`, in their order."""

    topic: str
    partition: int
    leader_epoch: int | None
    offset: int
    tstype: str
    ts: int
    headers: list[str | None]
    key: str | None
    payload: str | None


_encode_json = msgspec.json.Encoder().encode


def _strict_text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _is_text(value: bytes | None) -> bool:
    try:
        _strict_text(value)
    except UnicodeDecodeError:
        return False
    return True


def _text(value: bytes | None, in_base64: bool) -> str | None:
    if value is None:
        return None
    return base64.b64encode(value).decode() if in_base64 else value.decode()
