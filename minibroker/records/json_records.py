"""Records as JSON objects, one per line: the input of `produce --input jsonl`, which takes what `consume -J` prints.

Owns: the fields and what they mean. Leaves to others: reading lines, sending, and the words for a line that is refused
(`json_refusals`).

    value (or payload)  required; null is a null value; text becomes UTF-8; any other JSON stays the text that it is
    key                 as value; default null
    headers             {name: value, ..}, [[name, value], ..] or [name, value, ..]; values are text or null
    partition           default: by key, else batch by batch
    timestamp (or ts)   milliseconds since 1970; default: now
    base64              which of "key", "payload" (or "value") and "headers" are base64, e.g. ["payload"]
    topic               where it goes, unless `produce -t` says so
    leader_epoch, offset, tstype   ignored
"""

import base64
import json
from collections import Counter
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from minibroker.records.json_refusals import FIELDS, HEADER_FORMS, SHOWN, why_refused


class BadRecord(ValueError):
    """The line is not such an object; the message is a part of a sentence."""


class InputRecord(msgspec.Struct, frozen=True):
    """What to send."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    topic: str | None = None


_RawOrUnset = msgspec.Raw | UnsetType


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    value: _RawOrUnset = UNSET
    payload: _RawOrUnset = UNSET
    key: _RawOrUnset = UNSET
    headers: dict[str, str | None] | list[str | tuple[str, str | None] | None] = []
    partition: int | None = None
    timestamp: int | None = None
    ts: int | None = None
    base64: list[Literal["key", "value", "payload", "headers"]] = []
    topic: str | None = None
    leader_epoch: Any = None
    offset: Any = None
    tstype: Any = None


_decode = msgspec.json.Decoder(_Line).decode
NAMES_SOUGHT = 16
"""A line with more headers is read again rather than searched for each of them."""
_QUOTED = tuple(f'"{name}"'.encode() for name in FIELDS)
_decode_text = msgspec.json.Decoder(str).decode


def parse_json_record(line: bytes) -> InputRecord:
    """Raises BadRecord."""
    try:
        found = _decode(line)
        _refuse_two_names(found)
        names = [f'"{name}"'.encode() for name in found.headers] if isinstance(found.headers, dict) else []
        if len(names) > NAMES_SOUGHT or any(line.count(name) > 1 for name in (*_QUOTED, *names)):
            _refuse_repeated(line)
        value = found.payload if isinstance(found.value, UnsetType) else found.value
        if isinstance(value, UnsetType):
            raise BadRecord("has no field `value` (null is a null value)")
        encoded = {*found.base64}
        return InputRecord(
            value=_bytes(value, bool(encoded & {"value", "payload"})),
            key=None if isinstance(found.key, UnsetType) else _bytes(found.key, "key" in encoded),
            headers=_headers(found.headers, "headers" in encoded),
            partition=found.partition,
            timestamp_ms=found.ts if found.timestamp is None else found.timestamp,
            topic=found.topic,
        )
    except RecursionError:
        raise BadRecord("is not a record: it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeEncodeError, UnicodeDecodeError):
        raise BadRecord(why_refused(line)) from None


def _refuse_two_names(found: _Line) -> None:
    """One of two values would not be sent."""
    if not isinstance(found.value, UnsetType) and not isinstance(found.payload, UnsetType):
        raise BadRecord("has `value` and `payload`, two names of one field: give one")
    if found.timestamp is not None and found.ts is not None:
        raise BadRecord("has `timestamp` and `ts`, two names of one field: give one")


def _refuse_repeated(line: bytes) -> None:
    """msgspec takes the last of several. Slow: only for lines in which the name of a field or a header stands twice, if
    only within a value. (A name that is spelt with escapes is not found.)"""
    pairs = json.JSONDecoder(object_pairs_hook=list, parse_int=str, parse_float=str).decode(line.decode())
    names = [name for name, _ in pairs]  # of the outermost object
    for name in FIELDS:
        if names.count(name) > 1:
            raise BadRecord(f"has `{name}` twice: give one")
    headers = dict(pairs).get("headers") or ()
    counts = Counter(each[0] for each in headers if isinstance(each, tuple))  # none of a list, where names may repeat
    for name, count in counts.items():
        if count > 1:
            raise BadRecord(f'has the header {name[:SHOWN]!r} twice in an object: give [["name", "value"], ..]')


def _bytes(raw: msgspec.Raw, is_base64: bool) -> bytes | None:
    """Text is written as UTF-8, any other JSON as it was given: a reader may compare it, or check
    its signature."""
    text_given = bytes(raw)
    if text_given == b"null":
        return None
    if not text_given.startswith(b'"'):
        if is_base64:
            raise BadRecord(f"is not a record: {text_given.decode():.20} is no base64, which is text")
        return text_given
    text = _decode_text(text_given)
    return _decoded(text) if is_base64 else text.encode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise BadRecord(f"is not a record: {text!r:.20} is no base64 ({error})") from None


def _headers(
    headers: dict[str, str | None] | list[str | tuple[str, str | None] | None], is_base64: bool
) -> tuple[tuple[str, bytes | None], ...]:
    return tuple((name, _header_value(value, is_base64)) for name, value in _header_pairs(headers))


def _header_value(value: str | None, is_base64: bool) -> bytes | None:
    return None if value is None else _decoded(value) if is_base64 else value.encode()


def _header_pairs(
    headers: dict[str, str | None] | list[str | tuple[str, str | None] | None],
) -> list[tuple[str, str | None]]:
    if isinstance(headers, dict):
        return [*headers.items()]
    pairs = [each for each in headers if isinstance(each, tuple)]
    if pairs:
        if len(pairs) != len(headers):
            raise BadRecord(f"has headers of two forms: give {HEADER_FORMS}")
        return pairs
    plain = [each for each in headers if not isinstance(each, tuple)]
    if len(plain) % 2:
        raise BadRecord(f"has a header without a value: give {HEADER_FORMS}")
    found = []
    for name, value in zip(plain[::2], plain[1::2], strict=True):
        if name is None:
            raise BadRecord("has a header without a name")
        found.append((name, value))
    return found
