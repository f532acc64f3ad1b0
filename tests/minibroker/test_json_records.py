"""The objects that `produce --input jsonl` takes."""

import pytest

from minibroker.records import json_records
from minibroker.records.json_records import BadRecord, InputRecord, parse_json_record
from minibroker.records.json_refusals import FIELDS, IGNORED
from minibroker.records.record_format import json_line
from tests.minibroker.test_record_format import Read

AS_GIVEN = b'{"a" : 1.0,"b":1e3,"b":123456789012345678901}'


@pytest.mark.parametrize(
    ("line", "record"),
    [
        (b'{"value": "v"}', InputRecord(b"v")),
        (b'{"value": null, "key": ""}', InputRecord(None, b"")),
        (b'{"value": {"a": [1, null]}, "key": 7}', InputRecord(b'{"a": [1, null]}', b"7")),
        (b'{"value" : {"a" : 1.0,"b":1e3,"b":123456789012345678901} }', InputRecord(AS_GIVEN)),
        (
            b'{"payload": "v", "headers": [["h", "1"], ["h", null]]}',
            InputRecord(b"v", None, (("h", b"1"), ("h", None))),
        ),
        (b'{"value": "", "headers": {"h": "1", "n": null}}', InputRecord(b"", headers=(("h", b"1"), ("n", None)))),
        (b'{"payload": "v", "headers": ["h", "1", "h", null]}', InputRecord(b"v", headers=(("h", b"1"), ("h", None)))),
        (b'{"value": "v", "partition": 3, "timestamp": 5}', InputRecord(b"v", partition=3, timestamp_ms=5)),
        (b'{"value": "/w==", "key": "/w==", "base64": ["value"]}', InputRecord(b"\xff", b"/w==")),
        (
            b'{"value": "v", "headers": {"h": "/w=="}, "base64": ["headers"]}',
            InputRecord(b"v", None, (("h", b"\xff"),)),
        ),
    ],
)
def test_fields_become_a_record(line: bytes, record: InputRecord) -> None:
    assert parse_json_record(line) == record


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"x", "^is not JSON, at byte 1$"),
        (b'{"value": 1', "^is not JSON, at its end: something is missing there$"),
        (b"", "^is empty: each line is a JSON object$"),
        (b'{"value": "\xff"}', "^is not UTF-8"),
        (b'{"value": "\\ud800"}', "^holds half of a surrogate pair"),
        (b"[1]", r'^is no JSON object, such as \{"value": "text"\}, but \[1\]$'),
        (b'{"vale": "v"}', r"^has an unknown field 'vale' \(did you mean 'value'\?\)$"),
        (b'{"zebra": "v"}', "^has an unknown field 'zebra': there are value, payload, key"),
        (b'{"value": "v", "headers": {"h": 1}}', r'^has `headers` \{"h": 1\}: give .*, with text or null$'),
        (b'{"value": "v", "headers": [["h", "1"], "x"]}', "^has headers of two forms"),
        (b'{"value": "v", "headers": [["h"]]}', r'^has `headers` \[\["h"\]\]: give'),
        (b'{"value": "v", "topic": 3}', "^has `topic` 3: it must be text$"),
        (b'{"value": "v", "timestamp": 1e30}', "^has `timestamp` 1e[+]30: it must be a whole number$"),
        (b"{}", "no field `value`"),
        (b'{"value": "v", "partition": "3"}', '^has `partition` "3": it must be a whole number$'),
        (b'{"value": "?", "base64": ["value"]}', "is not a record"),
        ('{"value": "\u00e9", "base64": ["value"]}'.encode(), "is no base64"),
        (b'{"value": true, "base64": ["value"]}', "true is no base64"),
        (
            b'{"payload": "dg==", "base64": ["paylod"]}',
            r'^has `base64` \["paylod"\]: it is a list of "key"',
        ),
        (b'{"value": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"value": "v", "headers": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'\xef\xbb\xbf{"value": "v"}', "^begins with a byte order mark"),
        ('{"value": "v"}'.encode("utf-16"), "^begins with a byte order mark"),
        (b'{"\\u001b[31mred": "v"}', r"^has an unknown field '\\x1b\[31mred'"),
        (b'{"value": "v", "payload": "w"}', "^has `value` and `payload`"),
        (b'{"value": "v", "timestamp": 1, "ts": 2}', "^has `timestamp` and `ts`"),
        (b'{"value": "v", "headers": ["h"]}', "a header without a value"),
        (b'{"value": "v", "headers": [null, "h"]}', "a header without a name"),
    ],
)
def test_other_lines_are_refused_with_the_reason(line: bytes, reason: str) -> None:
    with pytest.raises(BadRecord, match=reason):
        parse_json_record(line)


@pytest.mark.parametrize(
    "record",
    [Read(), Read(key=None, value=None, headers=()), Read(value=b"\xff\x00", key=b"k", headers=(("h", b"\x80"),))],
)
def test_what_consume_prints_as_json_can_be_produced_again(record: Read) -> None:
    again = parse_json_record(json_line(record))
    assert (again.key, again.value, again.headers) == (record.key, record.value, record.headers)
    assert (again.partition, again.timestamp_ms) == (record.partition, record.timestamp_ms)


def test_a_refusal_knows_every_field_of_a_line() -> None:
    """Else it would call a field unknown that is taken."""
    assert {*FIELDS, *IGNORED} == {*json_records._Line.__struct_fields__}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b'{"value": "a", "value": "b"}', "value"),
        (b'{"payload": "a", "payload": "b"}', "payload"),
        (b'{"value": "a", "key": "1", "key" : "2"}', "key"),
        (b'{"value": {"key": 1}, "topic": "a", "topic": "b"}', "topic"),
        (b'{"value": "a", "headers": {}, "headers": {"h": "1"}}', "headers"),
    ],
)
def test_a_field_that_is_given_twice_is_refused(line: bytes, name: str) -> None:
    """The first value was dropped silently."""
    with pytest.raises(BadRecord, match=f"^has `{name}` twice: give one$"):
        parse_json_record(line)


@pytest.mark.parametrize("value", ["null", '"2"'])
def test_a_header_that_an_object_names_twice_is_refused(value: str) -> None:
    """The first one was dropped silently. A record may have both, as pairs."""
    with pytest.raises(BadRecord, match=r"^has the header 'h' twice in an object: give \[\["):
        parse_json_record(b'{"value": "v", "headers": {"h": "1", "g": "h", "h": %s}}' % value.encode())
    many = b", ".join(b'"%d": "1"' % each for each in range(30))
    with pytest.raises(BadRecord, match=r"^has the header '0' twice"):
        parse_json_record(b'{"value": "v", "headers": {%s, "0": "2"}}' % many)
    record = parse_json_record(b'{"value": "v", "headers": [["h", "1"], ["h", "2"]]}')
    assert record.headers == (("h", b"1"), ("h", b"2"))


@pytest.mark.parametrize(
    "line",
    [
        b'{"value": {"value": 1, "key": 2, "value": 3}, "key": "k"}',
        b'{"value": "\\"value\\": and \\"value\\":"}',
        b'{"value": ["value", "key"], "key": "value"}',
        b'{"value": {"h": 1, "h": 2}, "headers": {"h": "h", "value": "h"}}',
        b'{"value": ' + b"9" * 5_000 + b', "key": "value"}',
    ],
)
def test_the_name_of_a_field_may_stand_in_a_value(line: bytes) -> None:
    assert parse_json_record(line).value is not None
