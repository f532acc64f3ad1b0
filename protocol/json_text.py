"""Typed JSON, for znodes and the files that are JSON: every failure becomes the format's own error."""

from typing import TypeVar

import msgspec

from minibroker.protocol.errors import ProtocolError

T = TypeVar("T")

JSON_BYTES_MAX = 1024 * 1024
"""ZooKeeper's own limit for a znode (jute.maxbuffer)."""


def decode_json(
    content: bytes, kind: type[T], what: str, error: type[ProtocolError], bytes_max: int = JSON_BYTES_MAX
) -> T:
    """Decode `content` as `kind`, or raise `error` with `what` was read and why it does not fit."""
    if len(content) > bytes_max:
        raise error(f"{what}: {len(content)} bytes are more than {bytes_max}")
    try:
        return msgspec.json.decode(content, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as cause:
        raise error(f"{what}: {cause}") from None
