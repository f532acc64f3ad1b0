"""`minibroker events`: what it prints, and what it warns of."""

import asyncio
import json
import os
import sys
from typing import Any

import pytest
from click.testing import CliRunner, Result

from minibroker.command_line import EXIT_COULD_NOT, EXIT_FINE, EXIT_USAGE, print_json
from minibroker.commands.events import _show, _warn_of_silence, events
from minibroker.protocol.wire.messages import DescribeEventsResponse, MetadataResponse, MetadataTopic
from tests.minibroker.test_event_stream import FakeBrokers, stream_of


class FakeQueries(FakeBrokers):
    """Takes the place of BrokerQueries."""

    async def __aenter__(self) -> "FakeQueries":
        return self

    async def __aexit__(self, *details: object) -> None:
        return None

    async def metadata(self, servers: str) -> MetadataResponse:
        return MetadataResponse(topics=[MetadataTopic(name="lines")])


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> FakeQueries:
    fake = FakeQueries()
    fake.events = {1: [(1, "broker_joined")], 2: [(2, "broker_left")]}
    monkeypatch.setattr("minibroker.observation.broker_queries.BrokerQueries", lambda: fake)
    return fake


def printed(*arguments: str) -> Result:
    return CliRunner().invoke(events, ["--once", "-b", "host:1", *arguments])


def test_a_broker_that_does_not_answer_is_named_on_stderr_and_the_others_are_shown(brokers: FakeQueries) -> None:
    brokers.down = {2}
    result = printed()
    assert result.exit_code == EXIT_FINE
    assert "broker_joined" in result.stdout
    assert result.stderr == "warning: broker 2 does not answer: host:2\n"


def test_once_prints_all_stored_events_or_the_last_of_them(brokers: FakeQueries) -> None:
    """Once `--once --last 5` printed all."""
    assert [line.split()[-1] for line in printed().stdout.splitlines()] == ["broker_joined", "broker_left"]
    assert [line.split()[-1] for line in printed("--last", "1").stdout.splitlines()] == ["broker_left"]
    assert printed("--last", "0").stdout == ""


def test_a_broker_is_named_once_while_it_does_not_answer(
    brokers: FakeQueries, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it was named by every poll."""
    stream, warned = stream_of(brokers), set[int]()
    for down in ({2}, {2}, set[int](), {2}):
        brokers.down = down
        asyncio.run(stream.poll())
        _warn_of_silence(stream, warned)
    assert capsys.readouterr().err == 2 * "warning: broker 2 does not answer: host:2\n"


def test_answers_that_are_no_events_end_in_one_sentence(brokers: FakeQueries) -> None:
    brokers.contents = {1: "{", 2: "{"}
    result = printed()
    assert result.exit_code == EXIT_COULD_NOT
    assert result.stderr.startswith(
        "error: broker 1 reports no events: its event 0 is not a JSON object: '{'; broker 2"
    )
    assert result.stderr.count("\n") == 1


def test_an_unknown_broker_and_an_unknown_topic_are_named(brokers: FakeQueries) -> None:
    """With --once they cannot come later, and once it exited with 0."""
    for arguments, text in (
        (("--broker", "9"), "error: no broker 9 is known; there are: 1, 2"),
        (("-t", "lime"), "error: there is no topic 'lime'; did you mean 'lines'?"),
        (("-t", "x", "-t", "y", "--broker", "2"), "error: there are no topics 'x', 'y'."),
    ):
        result = printed(*arguments)
        assert (result.exit_code, result.stdout) == (EXIT_COULD_NOT, "")
        assert result.stderr.startswith(text)
    assert printed("-t", "lines", "--broker", "2").stderr == ""


def test_a_json_line_says_when_in_words_and_in_milliseconds(brokers: FakeQueries) -> None:
    brokers.events = {1: [(1_700_000_000_123, "broker_joined")]}
    assert json.loads(printed("--json").stdout) == {
        "event": "broker_joined",
        "text": "broker_joined",
        "time": "2023-11-14T22:13:20.123Z",
        "at_ms": 1_700_000_000_123,
        "reported_by": 1,
    }


def test_json_for_a_terminal_has_no_control_characters(capsys: Any) -> None:
    print_json({"path": "\x1b\x7f\x9bä"})
    assert capsys.readouterr().out == '{"path": "\\u001b\\u007f\\u009bä"}\n'


def test_a_closed_pipe_ends_it_before_the_next_event(brokers: FakeQueries, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once `minibroker events --last 2000 | head -1` ended with the next event only."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        os.close(reading)
        with pytest.raises(BrokenPipeError):
            asyncio.run(asyncio.wait_for(_show("host:1", ((), (), ()), 0, False, False), 5))


def test_events_that_came_too_fast_are_told_as_missing(
    brokers: FakeQueries, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def ask(*arguments: Any) -> DescribeEventsResponse:
        if brokers.asked > 14:
            raise BrokenPipeError
        answer = await FakeBrokers.ask(brokers, *arguments)
        if brokers.asked == 5:  # each broker was asked twice, until it had nothing more
            brokers.events[1], brokers.forgotten[1] = 9 * [(3, "broker_left")], 7
            return await FakeBrokers.ask(brokers, *arguments)
        return answer

    monkeypatch.setattr(brokers, "ask", ask)
    monkeypatch.setattr("minibroker.observation.event_stream.POLL_SECONDS", 0.0)
    with pytest.raises(BrokenPipeError):
        asyncio.run(asyncio.wait_for(_show("host:1", ((), (), ()), 0, False, False), 5))
    text = "warning: broker 1 reported more at once than it keeps: its log has 6 events more\n"
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("isr-chnaged", "error: no event has the name 'isr-chnaged'; did you mean 'isr_changed'?\n"),
        (
            "LEADERSHIP_CHANGED",
            "error: no event has the name 'LEADERSHIP_CHANGED'; did you mean 'leadership_changed'?\n",
        ),
        ("qqqq", "there are: alter_partition_failed, "),
    ],
)
def test_a_misspelt_kind_is_a_usage_error_with_a_similar_one(kind: str, text: str) -> None:
    run = printed("-k", kind)
    assert run.exit_code == EXIT_USAGE
    assert text in run.stderr
