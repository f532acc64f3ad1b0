"""The events that a broker keeps for clients."""

import contextlib
import json

import pytest

from minibroker.broker.monitoring import recent_events
from minibroker.broker.monitoring.recent_events import RecentEvents
from minibroker.protocol.events.broker_events import LogDirectoryFailed, ProcessStalled
from minibroker.protocol.events.controller_events import TopicSettingsChanged
from minibroker.protocol.events.replica_events import ReplicaWarned
from minibroker.protocol.wire.codec import encode_response
from minibroker.protocol.wire.messages import DescribeEventsRequest, DescribeEventsResponse
from minibroker.runtime.observer import Observers
from minibroker.simulation.world.world import SimulatedWorld


def kept(events: int) -> RecentEvents:
    recent = RecentEvents(Observers(), SimulatedWorld().runtime("broker").clock)
    for number in range(events):
        recent.notify(ProcessStalled(stalled_ms=number))
    return recent


def asked(recent: RecentEvents, first_number: int, max_events: int = 500) -> DescribeEventsResponse:
    return recent.answer(1, "i", DescribeEventsRequest(first_number=first_number, max_events=max_events))


def test_events_are_told_once_each_in_their_order() -> None:
    recent, number, seen = kept(450), 0, []
    while answer := asked(recent, number).events:
        seen += [json.loads(each.content)["stalled_ms"] for each in answer]
        number = answer[-1].number + 1
    assert seen == list(range(450))
    assert asked(recent, 450).next_number == 450


def test_the_oldest_events_go_and_the_answer_says_so() -> None:
    over = recent_events.EVENTS_KEPT + 10
    answer = asked(kept(over), 0)
    assert (answer.first_number, answer.events[0].number) == (10, 10)


@pytest.mark.parametrize("wanted", [False, True])
def test_details_are_wanted_if_the_broker_s_own_observers_want_them(wanted: bool) -> None:
    observers = Observers()
    recent = RecentEvents(observers, SimulatedWorld().runtime("broker").clock)
    with observers.subscribed(lambda event: None) if wanted else contextlib.nullcontext():
        assert recent.wants_details is wanted


def test_absurd_questions_have_small_answers() -> None:
    recent = kept(3)
    assert asked(recent, -5).events[0].number == 0
    assert asked(recent, 1 << 60).events == []
    assert asked(recent, 1 << 60).next_number == 3
    assert asked(recent, (1 << 63) - 1).events == []
    assert asked(recent, 0, -1).events == []
    assert len(asked(kept(1_000), 0, 1 << 30).events) == recent_events.EVENTS_PER_ANSWER_MAX


def test_a_long_event_is_told_by_its_beginning() -> None:
    recent = kept(0)
    recent.notify(ReplicaWarned(topic="a", partition=0, message="x" * 100_000))
    (event,) = asked(recent, 0).events
    assert len(event.content) < 1_500
    fields = json.loads(event.content)
    assert (fields["event"], fields["topic"], fields["partition"]) == ("replica_warned", "a", 0)


def test_long_events_take_no_more_memory_and_time_than_many_ordinary_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_events, "KEPT_CHARACTERS_MAX", 150_000)  # a million takes 20 seconds
    recent = kept(0)
    settings = {f"name.{number}": " " * 32_000 for number in range(10)}
    for _ in range(recent_events.EVENTS_KEPT // 5):
        recent.notify(TopicSettingsChanged(topic="a", settings=dict(settings)))
    recent.notify(ReplicaWarned(topic="a", partition=0, message="x" * 32_000))
    texts = [content for _, content in recent._kept]
    assert all(isinstance(each, str) for each in texts)
    assert sum(map(len, map(str, texts))) <= recent_events.KEPT_CHARACTERS_MAX
    answer = asked(recent, 0)
    assert sum(len(each.content) for each in answer.events) <= recent_events.ANSWER_BYTES_MAX
    assert answer.next_number == answer.events[-1].number + 1 < recent._next_number


def test_names_that_are_no_utf_8_break_no_answer() -> None:
    recent = kept(0)
    recent.notify(LogDirectoryFailed(path="/d/\udcff", state="full", reason="r"))
    recent.notify(LogDirectoryFailed(path="/d/\udcff" * 1_000, state="full", reason="r"))
    answer = asked(recent, 0)
    assert b"".join(bytes(each) for each in encode_response(1, answer))
    assert json.loads(answer.events[0].content)["path"] == r"/d/\udcff"


def test_the_oldest_of_many_rather_long_events_go() -> None:
    recent = kept(10)
    for _ in range(recent_events.EVENTS_KEPT):
        recent.notify(ReplicaWarned(topic="a", partition=0, message="x" * 590))
    assert asked(recent, 0).first_number > 10 + recent_events.EVENTS_KEPT - recent_events.KEPT_CHARACTERS_MAX // 590
    number, told = 0, 0
    while events := asked(recent, number).events:
        number, told = events[-1].number + 1, told + len(events)
    assert told == len(recent._kept)
    assert number == recent._next_number
