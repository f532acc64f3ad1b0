"""Records as JSON objects, one per line: the input of `produce --input jsonl`, which takes what `consume -J` prints.

Owns: the fields and what they mean. Leaves to others: reading lines, and sending.

    value (or payload)  required; null is a null value; text becomes UTF-8; any other JSON becomes its own text
    key                 as value; default null
    headers             {name: value, ..} or [name, value, ..]; values are text or null
    partition           default: by key, else batch by batch
    timestamp (or ts)   milliseconds since 1970; default: now
    base64              which of "key", "payload" (or "value") and "headers" are base64, e.g. ["payload"]
    topic               where it goes, unless `produce -t` says so
    leader_epoch, offset, tstype   ignored
"""

import base64
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType


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


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    value: Any = UNSET
    payload: Any = UNSET
    key: Any = None
    headers: dict[str, str | None] | list[str | None] = []
    partition: int | None = None
    timestamp: int | None = None
    ts: int | None = None
    base64: list[Literal["key", "value", "payload", "headers"]] = []
    topic: str | None = None
    leader_epoch: Any = None
    offset: Any = None
    tstype: Any = None


_decode = msgspec.json.Decoder(_Line).decode


def parse_json_record(line: bytes) -> InputRecord:
    """Raises BadRecord."""
    try:
        found = _decode(line)
        value = found.payload if isinstance(found.value, UnsetType) else found.value
        if isinstance(value, UnsetType):
            raise BadRecord("has no field `value` (null is a null value)")
        encoded = {*found.base64}
        return InputRecord(
            value=_bytes(value, bool(encoded & {"value", "payload"})),
            key=_bytes(found.key, "key" in encoded),
            headers=_headers(found.headers, "headers" in encoded),
            partition=found.partition,
            timestamp_ms=found.ts if found.timestamp is None else found.timestamp,
            topic=found.topic,
        )
    except RecursionError:
        raise BadRecord("is not a record: it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeEncodeError, UnicodeDecodeError) as error:
        raise BadRecord(f"is not a record: {error}") from None


def _bytes(value: Any, is_base64: bool) -> bytes | None:
    if value is None:
        return None
    if is_base64:
        return _decoded(value)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def _decoded(value: Any) -> bytes:
    if not isinstance(value, str):
        raise BadRecord(f"is not a record: {msgspec.json.encode(value).decode():.20} is no base64, which is text")
    try:
        return base64.b64decode(value, validate=True)
    except ValueError as error:
        raise BadRecord(f"is not a record: {value!r:.20} is no base64 ({error})") from None


def _headers(
    headers: dict[str, str | None] | list[str | None], is_base64: bool
) -> tuple[tuple[str, bytes | None], ...]:
    if isinstance(headers, dict):
        return tuple((name, _bytes(value, is_base64)) for name, value in headers.items())
    if len(headers) % 2:
        raise BadRecord("has a header without a value: give name, value, name, value, ..")
    pairs = []
    for name, value in zip(headers[::2], headers[1::2], strict=True):
        if name is None:
            raise BadRecord("has a header without a name")
        pairs.append((name, _bytes(value, is_base64)))
    return tuple(pairs)
