"""A record is the bytes between b'\\n'."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.records import line_source
from minibroker.records.line_source import LineSplitter, LineTooLong, read_lines, split_key


@given(st.lists(st.binary(max_size=5).map(lambda part: part.replace(b"a", b"\n"))))
def test_lines_do_not_depend_on_chunks(chunks: list[bytes]) -> None:
    splitter = LineSplitter()
    lines = [line for chunk in chunks for line in splitter.feed(chunk)] + splitter.finish()
    whole = b"".join(chunks)
    expected = whole.split(b"\n")
    assert lines == (expected if expected[-1] else expected[:-1])


async def test_file_keeps_empty_lines_and_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\r\n\n\xff\nlast")
    with path.open("rb") as file:
        lines = [line async for some in read_lines(file.fileno()) for line in some]
    assert lines == [b"a\r", b"", b"\xff", b"last"]


async def test_pipe_gives_lines_before_it_ends() -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, b"first\nsec")
        lines = read_lines(reading)
        assert await anext(lines) == [b"first"]
        os.write(writing, b"ond\n")
        assert await anext(lines) == [b"second"]
        os.close(writing)
        writing = -1
        assert [some async for some in lines] == []
    finally:
        os.close(reading)
        if writing >= 0:
            os.close(writing)


async def test_a_line_without_an_end_is_not_read_into_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_source, "LINE_BYTES_MAX", 200_000)
    descriptor = os.open("/dev/zero", os.O_RDONLY)
    try:
        with pytest.raises(LineTooLong, match="is longer than 200000 bytes: a record ends with a newline"):
            await anext(read_lines(descriptor))
    finally:
        os.close(descriptor)


async def test_null_device_ends_at_once() -> None:
    descriptor = os.open(os.devnull, os.O_RDONLY)
    try:
        assert [some async for some in read_lines(descriptor)] == []
    finally:
        os.close(descriptor)


def test_key_ends_at_the_first_delimiter() -> None:
    assert split_key(b"k:v:w", b":") == (b"k", b"v:w")
    assert split_key(b"no key", b":") == (None, b"no key")
    assert split_key(b":v", b":") == (b"", b"v")
