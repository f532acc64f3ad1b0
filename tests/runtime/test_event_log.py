"""Typed events in the log: a sentence for people, an object per line for programs."""

import json
import logging

import pytest

from minibroker.protocol.events.broker_events import LogDirectoryFailed
from minibroker.protocol.events.replica_events import IsrChanged
from minibroker.runtime.adapters.json_lines import JsonLines
from minibroker.runtime.event_log import log_event
from minibroker.runtime.observer import Observers

EVENT = IsrChanged(topic="lines", partition=2, before=[1, 2], after=[1], leader_epoch=4, partition_epoch=9)


def test_an_event_is_logged_as_its_sentence(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "minibroker"):
        Observers(log_event).notify(EVENT)
    assert caplog.messages == ["lines-2: ISR [1, 2] -> [1] (leader epoch 4, partition epoch 9)"]


def test_a_json_line_has_the_fields_of_the_event(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "minibroker"):
        log_event(EVENT)
    line = json.loads(JsonLines(broker_id=3).format(caplog.records[0]))
    assert line.pop("time").endswith("Z")
    assert line.pop("at_ms") == round(caplog.records[0].created * 1000)
    assert line == {
        "level": "INFO",
        "reported_by": 3,
        "event": "isr_changed",
        "topic": "lines",
        "partition": 2,
        "before": [1, 2],
        "after": [1],
        "leader_epoch": 4,
        "partition_epoch": 9,
        "text": caplog.messages[0],
    }


def test_a_line_that_is_no_event_is_one_json_line_too() -> None:
    record = logging.LogRecord("minibroker.x", logging.ERROR, "x.py", 1, "two\nlines of %s", ("text",), None)
    line = JsonLines().format(record)
    assert "\n" not in line
    assert json.loads(line)["event"] == "log"
    assert json.loads(line)["text"] == "two\nlines of text"


def test_names_that_are_no_utf_8_break_no_line(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "minibroker"):
        log_event(LogDirectoryFailed(path="/d/\udcff", state="full", reason="r"))
    line = JsonLines().format(caplog.records[0])
    assert json.loads(line.encode())["path"] == r"/d/\udcff"


def test_a_subscriber_that_wants_details_is_served_until_it_ends() -> None:
    observers = Observers()
    seen: list[object] = []
    with observers.subscribed(seen.append):
        assert observers.wants_details
        observers.notify(EVENT)
    observers.notify(EVENT)
    assert seen == [EVENT]
    assert not observers.wants_details
