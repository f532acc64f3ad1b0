"""kcat's format tokens, escapes and JSON."""

import json

import msgspec
import pytest

from minibroker.records.record_format import (
    BadFormat,
    base64_line,
    compile_format,
    consumed_as_json,
    json_line,
    json_values_line,
    parse_delimiter,
)


class Read(msgspec.Struct):
    topic: str = "lines"
    partition: int = 2
    offset: int = 42
    leader_epoch: int | None = 7
    timestamp_ms: int = 1_700_000_000_123
    key: bytes | None = b"k\xff"
    value: bytes | None = b"value"
    headers: tuple[tuple[str, bytes | None], ...] = (("a", b"1"), ("b", None))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("%t-%p@%o %e\\n", b"lines-2@42 7\n"),
        ("%k:%s", b"k\xff:value"),
        ("%K %S", b"2 5"),
        ("%T|%h|%%", b"1700000000123|a=1,b|%"),
        ("%R", b"\0\0\0\5"),
        ("100%% of %o\\x25d", b"100% of 42%d"),
        ("%s", b"value"),
        ("%o\\x25%T", b"42%1700000000123"),
        ("\\t\\x41\\\\", b"\tA\\"),
        ("\u00fc", "ü".encode()),
        ("\udcff", b"\xff"),  # as Python gives a byte of the command line that is no UTF-8
    ],
)
def test_tokens_print_what_kcat_prints(text: str, expected: bytes) -> None:
    assert compile_format(text)(Read()) == expected


def test_null_has_length_minus_one_and_prints_nothing() -> None:
    assert compile_format("%k|%K|%s|%S|%e")(Read(key=None, value=None, leader_epoch=None)) == b"|-1||-1|-1"


@pytest.mark.parametrize("text", ["%x", "%", "\\q", "\\xZZ"])
def test_unknown_token_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(BadFormat):
        compile_format(text)


def test_delimiter_takes_escapes() -> None:
    assert parse_delimiter("\\t:") == b"\t:"


def test_json_has_kcats_fields() -> None:
    assert consumed_as_json(Read()) == {
        "topic": "lines",
        "partition": 2,
        "leader_epoch": 7,
        "offset": 42,
        "tstype": "create",
        "ts": 1_700_000_000_123,
        "headers": ["a", "1", "b", None],
        "key": "a/8=",
        "payload": "value",
        "base64": ["key"],
    }
    assert "base64" not in consumed_as_json(Read(key=b"k"))


def test_json_is_all_base64_on_request() -> None:
    shown = json.loads(base64_line(Read(key=None)))
    assert (shown["key"], shown["payload"], shown["base64"]) == (None, "dmFsdWU=", ["payload", "headers"])
    assert shown["headers"] == ["a", "MQ==", "b", None]


def test_json_values_need_not_be_parsed_again() -> None:
    shown = json.loads(json_values_line(Read(key=b"[1]", value=b'{"a": {"b": 1.5}, "c": "\xc3\xbc"}')))
    assert (shown["key"], shown["payload"]) == ([1], {"a": {"b": 1.5}, "c": "ü"})


@pytest.mark.parametrize("text", ["1.0", '"text"', "null", "{", "[NaN]", "["])
def test_what_is_no_object_or_array_stays_a_text(text: str) -> None:
    assert json.loads(json_values_line(Read(value=text.encode())))["payload"] == text


@pytest.mark.parametrize(
    "record",
    [
        Read(),
        Read(key=None, value=None, headers=(), leader_epoch=None),
        Read(key=b"", value='"ü\n\u2028\0'.encode()),
        Read(value=b"\xff\x00\xfe", headers=(("ü", b"\x80"),)),
    ],
)
def test_a_json_line_has_the_same_content_for_any_bytes(record: Read) -> None:
    line = json_line(record)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == consumed_as_json(record)
    assert list(json.loads(line)) == list(consumed_as_json(record))
