"""The list of acknowledged records: what a record's checksum covers, and that a list is read as it was written."""

import struct

import pytest

from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.acked_list import AckedListWriter, parse_head, parse_trailer, record_checksum

Headers = tuple[tuple[str, bytes | None], ...]
TIMESTAMP_MS = 1_700_000_000_000


def layout(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """As docs/FORMATS.md and `record_checksum` describe it."""

    def size(field: bytes | None) -> bytes:
        return struct.pack(">i", -1 if field is None else len(field))

    fixed = struct.pack(">q", TIMESTAMP_MS) + size(key) + size(value) + struct.pack(">I", len(headers))
    named = [
        struct.pack(">I", len(name.encode())) + size(content) + name.encode() + (content or b"")
        for name, content in headers
    ]
    return fixed + (key or b"") + (value or b"") + b"".join(named)


@pytest.mark.parametrize("key", [b"key", b"", None])
@pytest.mark.parametrize("value", [b"value", b"", None])
@pytest.mark.parametrize(
    "headers", [(), (("h", b"1"),), (("größe", None), ("", b""))], ids=["none", "one", "absent and empty"]
)
def test_a_checksum_covers_the_whole_record_in_its_documented_layout(
    key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    """Otherwise an audit takes a changed record for the acknowledged one, or refuses the list of another release."""
    assert record_checksum(TIMESTAMP_MS, key, value, headers) == crc32c(layout(key, value, headers))


def test_the_checksums_of_the_example_in_the_documentation_fit() -> None:
    assert record_checksum(TIMESTAMP_MS, b"k", b"first", (("h", b"1"),)) == 0x96C80EBA
    assert record_checksum(TIMESTAMP_MS + 5, None, None, ()) == 0xF54732C3


def test_a_list_is_read_as_it_was_written() -> None:
    parts: list[bytes] = []
    writer = AckedListWriter(parts.append, {"lines": "some-id", "old": ""}, "1")
    writer.add("lines", 3, [(7, 0xAB), (8, 0xCDEF0123)])
    writer.add("old", 0, [(0, 0)])
    writer.finish()
    writer.finish()
    content = b"".join(parts)
    head = parse_head(content)
    assert not isinstance(head, str), head
    assert (head.version, head.acks, head.topic_ids) == (2, "1", {"lines": "some-id", "old": ""})
    *records, end = content[head.size :].splitlines(keepends=True)
    assert records == [b"lines\t3\t7\t000000ab\n", b"lines\t3\t8\tcdef0123\n", b"old\t0\t0\t00000000\n"]
    assert parse_trailer(end) == (3, crc32c(content.removesuffix(end)))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(b"lines\t0\t0\t0\n", "its first line is not"), (b"#minibroker-acked 3 acks=all\n", "it is of version 3")],
)
def test_the_head_of_another_format_is_an_error(content: bytes, complaint: str) -> None:
    error = parse_head(content)
    assert isinstance(error, str) and error.startswith(complaint)


@pytest.mark.parametrize("line", [b"#end 3 0000000\n", b"#end 3 00000000", b"lines\t0\t3\t00000000\n"])
def test_a_line_that_is_cut_is_no_trailer(line: bytes) -> None:
    assert parse_trailer(line) is None
