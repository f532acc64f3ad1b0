"""What users may hand to a producer as key, value and headers, and what it weighs. Pure."""

from collections.abc import Sequence

from minibroker.client.errors import InvalidCall
from minibroker.protocol.record_batch import BatchBuilder, Header

RecordBytes = bytes | bytearray | memoryview | None
"""A key or a value; None is allowed for both."""
Headers = Sequence[Header]
"""Pairs of a name and bytes (or None)."""


def as_bytes(name: str, value: object) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidCall(f"{name} is {type(value).__name__}; it must be bytes or None (encode text first)")


def checked_headers(headers: Headers) -> tuple[Header, ...]:
    for header in headers:
        if len(header) != 2 or not isinstance(header[0], str) or not isinstance(header[1], bytes | None):
            raise InvalidCall(f"header {header!r} is not a pair of str and bytes (or None)")
    return tuple((name, content) for name, content in headers)


def record_size(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Upper bound of a batch that holds only this record."""
    probe = BatchBuilder(0)
    probe.append(key, value, 0, headers)
    return probe.size_bytes
