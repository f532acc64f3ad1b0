"""Headers that a program gives with a record: pairs of text and bytes, and nothing else."""

from typing import Any

import pytest

from minibroker.client.errors import InvalidCall
from minibroker.client.producer.record_input import checked_headers


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ((), ()),
        ([("a", b"1"), ("a", None)], (("a", b"1"), ("a", None))),
        ({"a": b"1", "b": b""}, (("a", b"1"), ("b", b""))),
        ([["a", b"1"]], (("a", b"1"),)),
    ],
)
def test_pairs_and_mappings_are_taken(headers: Any, taken: tuple[tuple[str, bytes | None], ...]) -> None:
    assert checked_headers(headers) == taken


@pytest.mark.parametrize(
    "header",
    [("a",), ("a", b"1", b"2"), (1, b"1"), (b"a", b"1"), ("a", "text"), ("a", 1), ("a", bytearray(b"1"))],
)
def test_each_other_header_is_refused_by_name(header: Any) -> None:
    with pytest.raises(InvalidCall, match="is not a pair of str and bytes"):
        checked_headers([("sound", b"1"), header])


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidCall, match="not text that can be written as UTF-8"):
        checked_headers([("\ud800", b"1")])
