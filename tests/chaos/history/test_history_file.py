"""A file that is no history is refused with its line and a cure."""

from __future__ import annotations

import msgspec
import pytest

from minibroker.chaos.history.anomalies import judge_history
from minibroker.chaos.history.client_history import HistoryEvent, Kind, Sent
from minibroker.chaos.history.history_file import BadHistory, parse_history
from minibroker.chaos.history.promise import Promise

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


SEND = b'{"index":0,"time_ns":5,"process":"a","type":"invoke","f":"send","sent":[{"key":"t-0","value":"v"}]}'
OK = b'{"index":1,"time_ns":5,"process":"a","type":"ok","f":"send","operation":0'


def test_an_acknowledgement_that_names_no_records_is_that_of_its_send() -> None:
    """Otherwise it would count for no record, and no loss of one be found."""
    _, acknowledged = parse_history([SEND, OK + b"}"])
    assert acknowledged.sent == (Sent("t-0", "v"),)


@pytest.mark.parametrize(
    "sent", [b'{"key":"t-0","value":"w"}', b'{"key":"t-1","value":"v"}', b'{"key":"t-0","value":"v"},' * 2]
)
def test_an_acknowledgement_of_other_records_than_were_sent_is_refused(sent: bytes) -> None:
    with pytest.raises(BadHistory, match="line 2 names other records"):
        list(parse_history([SEND, OK + b',"sent":[' + sent.rstrip(b",") + b"]}"]))


def test_records_may_be_named_by_the_acknowledgement_alone() -> None:
    """Of a program that does not know the partition before."""
    begun = SEND.replace(b',"sent":[{"key":"t-0","value":"v"}]', b"")
    _, acknowledged = parse_history([begun, OK + b',"sent":[{"key":"t-0","value":"v","offset":3}]}'])
    assert acknowledged.sent == (Sent("t-0", "v", 3),)


def test_fields_of_other_programs_do_not_matter() -> None:
    (event,) = parse_history([FIRST[:-1] + b',"extra":1}', b""])
    assert event.process == "a"


def send(index: int, kind: Kind, *values: str, operation: int | None = None) -> HistoryEvent:
    sent = tuple(Sent("t-0", value) for value in values)
    return HistoryEvent(index=index, time_ns=index, process="p", type=kind, f="send", operation=operation, sent=sent)


@pytest.mark.parametrize(
    "events",
    [
        [send(0, "invoke", "a"), send(1, "invoke", "a")],
        [send(0, "invoke", "b", "a", "a")],
        [send(0, "ok", "a"), send(1, "fail", "a")],
        [send(0, "invoke", "a"), send(1, "ok", "a", operation=0), send(2, "invoke", "a")],
        [send(0, "invoke", "a"), send(1, "invoke"), send(2, "ok", "a", operation=1), send(3, "ok", "a", operation=0)],
    ],
)
def test_a_value_that_is_sent_twice_is_refused(events: list[HistoryEvent]) -> None:
    """One of its two outcomes replaced the other, so that the loss of a record could not be seen."""
    told = r"^'a' is sent twice in t-0.*: give each send a value of its own"
    with pytest.raises(BadHistory, match=told):
        judge_history(lambda: events, Promise(values_are_unique=True))
    judge_history(lambda: events)  # of a run of ours, whose load sees to that


def test_a_value_may_be_sent_once_in_each_partition() -> None:
    events = [send(0, "invoke", "a"), send(1, "ok", "a", operation=0)]
    other = msgspec.structs.replace(send(2, "invoke"), sent=(Sent("t-1", "a"),))
    assert judge_history(lambda: [*events, other], Promise(values_are_unique=True)).operations == 2
