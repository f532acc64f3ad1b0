"""A file that is no history is refused with its line and a cure."""

from __future__ import annotations

import pytest

from minibroker.chaos.history.history_file import BadHistory, parse_history

POLLED = (
    b'{"index":1,"time_ns":5,"process":"a","type":"ok","f":"poll","operation":0,"polled":[{"key":"t-0","value":"v",'
)
FIRST = b'{"index":0,"time_ns":5,"process":"a","type":"invoke","f":"poll"}'


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ([b"hello"], "line 1 is no event"),
        ([FIRST, b'{"index":1,"time_ns":5,"process":"a","type":"maybe","f":"poll"}'], "line 2 is no event"),
        ([FIRST, b'{"index":1,"time_ns":4,"process":"a","type":"ok","f":"poll"}'], "line 2 goes back by"),
        ([FIRST, FIRST], "line 2 has index 0 behind 0"),
        ([FIRST, b'{"index":1,"time_ns":5,"process":"a","type":"ok","f":"poll","operation":7}'], "comes later"),
        ([FIRST, b'{"index":1,"time_ns":5,"process":"b","type":"ok","f":"poll","operation":0}'], "no open poll of b"),
        ([FIRST, b'{"index":1,"time_ns":5,"process":"a","type":"ok","f":"send","operation":0}'], "no open send of a"),
        ([FIRST, POLLED + b'"offset":-1}]}'], "offset"),
        ([FIRST, POLLED + b'"offset":9223372036854775808}]}'], "offset"),
        ([FIRST, POLLED + b'"offset":1,"leader_epoch":-7}]}'], "leader_epoch"),
        ([FIRST[:-1] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"], "line 1 is no event"),
        ([b"", b""], "no event in its 2 lines"),
        ([], "no event in its 0 lines"),
    ],
)
def test_a_bad_line_is_named(lines: list[bytes], part: str) -> None:
    with pytest.raises(BadHistory, match=part):
        list(parse_history(lines))


def test_fields_of_other_programs_do_not_matter() -> None:
    (event,) = parse_history([FIRST[:-1] + b',"extra":1}', b""])
    assert event.process == "a"
