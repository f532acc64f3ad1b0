"""What a program of the user writes becomes the history of the run, and wrong lines are refused."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

import pytest

from minibroker.chaos.history.anomalies import judge_history
from minibroker.chaos.history.promise import Promise
from minibroker.chaos.run.client_lines import OPEN_MAX, BadLine, ClientLines
from minibroker.chaos.run.recorder import Recorder

SENT = {"key": "chaos-0", "value": "w/0"}


class Run:
    """Its lines, one second apart."""

    def __init__(self) -> None:
        seconds = count()
        self.recorder = Recorder(lambda: float(next(seconds)))
        self.lines = ClientLines(self.recorder, frozenset({"chaos-0", "chaos-1"}))

    def take(self, process: str, kind: str, call: str, **fields: Any) -> None:
        self.lines.take(json.dumps({"process": process, "type": kind, "f": call, **fields}).encode())

    def counts(self) -> dict[str, int]:
        return dict(judge_history(lambda: self.recorder.log.events, Promise(knows_all_sends=True)).counts)


def test_a_program_numbers_its_operations_as_it_likes() -> None:
    run = Run()
    run.take("r", "invoke", "poll", index=900)
    run.take("w", "invoke", "send", index=7, sent=[SENT])
    run.take("w", "ok", "send", operation=7, sent=[{**SENT, "offset": 0}], time_ns=-5, more="is ignored")
    run.take("r", "ok", "poll", operation=900, polled=[{**SENT, "offset": 0, "leader_epoch": 0}])
    run.take("w", "invoke", "send", index=7, sent=[{**SENT, "value": "w/1"}])
    events = run.recorder.log.events
    assert [(each.index, each.time_ns, each.type, each.operation) for each in events] == [
        (0, 0, "invoke", None),
        (1, 1_000_000_000, "invoke", None),
        (2, 2_000_000_000, "ok", 1),
        (3, 3_000_000_000, "ok", 0),
        (4, 4_000_000_000, "invoke", None),
    ]
    assert run.counts() == {}


def test_the_history_of_a_program_is_judged_as_any_other() -> None:
    run = Run()
    run.take("w", "invoke", "send", index=0, sent=[SENT])
    run.take("w", "ok", "send", operation=0, sent=[{**SENT, "offset": 0}])
    run.take("r", "invoke", "poll", index=1)
    run.take("r", "ok", "poll", operation=1, polled=[{**SENT, "value": "x", "offset": 0}])
    assert "inconsistent-offsets" in run.counts()


def test_a_send_without_an_outcome_is_unknown_and_errors_are_counted() -> None:
    run = Run()
    run.take("w", "invoke", "send", index=0, sent=[SENT])
    run.take("v", "invoke", "send", index=1, sent=[{**SENT, "value": "v/0"}])
    run.take("v", "fail", "send", operation=1, error="NotWritten: broker 2 refused it")
    run.recorder.end_sends()
    assert [(each.process, each.type) for each in run.recorder.log.events[2:]] == [("v", "fail"), ("w", "info")]
    assert run.recorder.errors == {"NotWritten": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"started", "no event"),
        (b"[1]", "no event"),
        (b"\xff\n", "no event"),
        (b"[" * 100_000, "no event"),
        (b'{"process":"w","type":"invoke","f":"fault","index":1}', "no event"),
        (b'{"process":"w","type":"invoke","f":"send","sent":[{"key":"chaos-0","value":"a"}]}', "needs an index"),
        (b'{"process":"w","type":"invoke","f":"send","index":1}', "names what it sends"),
        (
            b'{"process":"w","type":"invoke","f":"send","index":1,"sent":[{"key":"other-0","value":"a"}]}',
            "no partition of this run",
        ),
        (b'{"process":"w","type":"ok","f":"send","operation":3}', "no open send of 'w'"),
        (b'{"process":"final-reader","type":"invoke","f":"poll","index":1}', "the run's own"),
        (
            b'{"process":"w","type":"invoke","f":"send","index":1,"sent":[{"key":"chaos-0","value":"a."}]}',
            "must not end with a dot",
        ),
        (b'{"process":"w","type":"ok","f":"poll"}', "no open poll of 'w'"),
    ],
)
def test_what_is_no_event_is_refused(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=reason):
        Run().lines.take(line)


def test_an_operation_has_one_outcome_and_it_is_of_its_own_kind() -> None:
    run = Run()
    run.take("w", "invoke", "send", index=0, sent=[SENT])
    with pytest.raises(BadLine, match="no open poll"):
        run.take("w", "ok", "poll", operation=0)
    with pytest.raises(BadLine, match="no open send"):
        run.take("w", "ok", "send", operation=0)


def test_a_program_that_tells_no_outcomes_is_stopped() -> None:
    run = Run()
    for number in range(OPEN_MAX):
        run.take("w", "invoke", "send", index=number, sent=[{**SENT, "value": f"w/{number}"}])
    with pytest.raises(BadLine, match="have no outcome"):
        run.take("w", "invoke", "send", index=OPEN_MAX, sent=[{**SENT, "value": "one more"}])


def test_a_value_that_is_sent_again_is_refused() -> None:
    run = Run()
    run.take("w", "invoke", "send", index=0, sent=[SENT])
    run.take("w", "invoke", "send", index=1, sent=[{**SENT, "key": "chaos-1"}])
    with pytest.raises(BadLine, match="again"):
        run.take("w", "invoke", "send", index=2, sent=[SENT])


@pytest.mark.parametrize(
    "sent", [[{**SENT, "value": "w/1"}], [{**SENT, "key": "chaos-1"}], [SENT, {**SENT, "value": "w/1"}]]
)
def test_an_acknowledgement_is_of_the_records_that_were_sent(sent: list[Any]) -> None:
    run = Run()
    run.take("w", "invoke", "send", index=0, sent=[SENT])
    with pytest.raises(BadLine, match="other records"):
        run.take("w", "ok", "send", operation=0, sent=sent)
