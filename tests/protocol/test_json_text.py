"""JSON is decoded up to a limit and no further, and each failure is the format's own error."""

import msgspec
import pytest

from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.json_text import decode_json


class Wrong(ProtocolError):
    """Of the format in this test."""


class Point(msgspec.Struct):
    x: int


TEXT = b'{"x": 1}'


def test_a_text_up_to_the_limit_is_decoded() -> None:
    assert decode_json(TEXT, Point, "a point", Wrong, bytes_max=len(TEXT)) == Point(1)
    assert decode_json(TEXT, Point, "a point", Wrong) == Point(1)


@pytest.mark.parametrize("more", [1, 2, 1_000_000])
def test_a_text_above_the_limit_is_refused_with_both_sizes(more: int) -> None:
    limit = len(TEXT)
    with pytest.raises(Wrong, match=f"a point: {limit + more} bytes are more than {limit}"):
        decode_json(TEXT + b" " * more, Point, "a point", Wrong, bytes_max=limit)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"x": "one"}', b"\xff", b'{"x": "\xff"}', b"[" * 5_000], ids=lambda each: repr(each)[:16]
)
def test_a_text_that_does_not_fit_names_what_was_read(content: bytes) -> None:
    with pytest.raises(Wrong, match="a point: "):
        decode_json(content, Point, "a point", Wrong)
