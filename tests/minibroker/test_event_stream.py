"""The events of a cluster, polled from all of its brokers."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from minibroker.observation import event_stream
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer, Refused
from minibroker.observation.cluster_changes import ClusterWatch
from minibroker.observation.event_stream import ANSWERS_PER_POLL_MAX, BrokerEvent, EventStream
from minibroker.protocol.wire.messages import (
    DescribeClusterBroker,
    DescribeClusterResponse,
    DescribeEventsRequest,
    DescribeEventsResponse,
    ReportedEvent,
)


class FakeBrokers:
    """Two brokers; each keeps the events that a test gives it."""

    def __init__(self) -> None:
        self.events: dict[int, list[tuple[int, str]]] = {1: [], 2: []}
        self.incarnations = {1: "a", 2: "b", 3: "c"}
        self.down: set[int] = set()
        self.paused: dict[int, asyncio.Event] = {}
        """By broker: when it answers again."""
        self.without_events: set[int] = set()
        self.contents: dict[int, str] = {}
        """By broker: what it sends instead of the JSON of its events."""
        self.following: dict[int, Callable[[int], int]] = {}
        """By broker: from the number that it is asked for, the next number that it gives."""
        self.forgotten = {1: 0, 2: 0, 3: 0}
        """By broker: how many of its first events it does not keep any more."""
        self.asked = 0
        self.describes: asyncio.Event | None = None
        """When it answers what the cluster is; None: at once."""
        self.found = True

    async def describe_cluster(self, servers: str, timeout_s: float) -> DescribeClusterResponse:
        if self.describes is not None:
            await self.describes.wait()
        if not self.found:
            raise NoAnswer(servers)
        brokers = [DescribeClusterBroker(broker_id=each, host="host", port=each) for each in self.events]
        return DescribeClusterResponse(brokers=brokers)

    async def ask(
        self, server: str, request: DescribeEventsRequest, kind: object, timeout_s: float
    ) -> DescribeEventsResponse:
        broker = int(server.rpartition(":")[2])
        self.asked += 1
        if broker in self.without_events:
            raise Refused("UNSUPPORTED_VERSION")
        if broker in self.down:
            raise NoAnswer(server)
        if broker in self.paused:
            await self.paused[broker].wait()
        kept = self.events[broker]
        found = [
            ReportedEvent(
                number=number,
                at_ms=at_ms,
                content=self.contents.get(broker, json.dumps({"event": name, "text": name})),
            )
            for number, (at_ms, name) in enumerate(kept)
            if number >= max(request.first_number, self.forgotten[broker]) or broker in self.following
        ][:2]
        following = found[-1].number + 1 if found else min(request.first_number, len(kept))
        if broker in self.following:
            following = self.following[broker](request.first_number)
        incarnation = self.incarnations[broker]
        return DescribeEventsResponse(
            broker_id=broker,
            incarnation_id=incarnation,
            first_number=self.forgotten[broker],
            next_number=following,
            events=found,
        )


def polled(brokers: FakeBrokers, stream: EventStream) -> list[tuple[int, str]]:
    events = asyncio.run(stream.poll())
    return [(each.reported_by, each.fields["event"]) for each in events]


def stream_of(brokers: FakeBrokers) -> EventStream:
    return EventStream(cast(BrokerQueries, cast(Any, brokers)), "host:1")


def test_events_of_all_brokers_come_once_in_the_order_of_their_times() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events = {1: [(1, "a"), (4, "d"), (5, "e")], 2: [(2, "b"), (3, "c")]}
    assert polled(brokers, stream) == [(1, "a"), (2, "b"), (2, "c"), (1, "d"), (1, "e")]
    brokers.events[2].append((6, "f"))
    assert polled(brokers, stream) == [(2, "f")]
    assert polled(brokers, stream) == []


def test_a_paused_broker_does_not_slow_down_the_others() -> None:
    """Once every poll waited for it, so the others' events came three seconds late."""
    brokers = FakeBrokers()
    stream = stream_of(brokers)

    async def story() -> None:
        async def names(patience_s: float) -> list[str]:
            return [event.fields["event"] for event in await stream.poll(patience_s=patience_s)]

        brokers.events = {1: [(1, "a")], 2: [(2, "b")]}
        brokers.paused[2] = asyncio.Event()
        assert await names(0.01) == ["a"]
        brokers.events[1].append((3, "c"))
        async with asyncio.timeout(5):  # no poll waits for an answer that is late already
            assert await names(60.0) == ["c"]
        brokers.paused[2].set()
        brokers.events[1].append((4, "d"))
        await asyncio.sleep(0)
        assert await names(60.0) == ["b", "d"]
        assert stream.silent == {}

    asyncio.run(story())


def test_brokers_are_looked_for_without_waiting_for_one_that_does_not_answer() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)

    async def story() -> None:
        await stream.poll()
        brokers.describes, stream._discovered_at = asyncio.Event(), float("-inf")
        brokers.events[1], brokers.events[3] = [(1, "a")], [(2, "b")]
        assert [event.at_ms for event in await stream.poll(patience_s=0.01)] == [1]
        brokers.describes.set()
        await asyncio.sleep(0)
        assert [event.at_ms for event in await stream.poll(patience_s=60.0)] == [2]

    asyncio.run(story())


def test_a_broker_that_was_started_again_is_read_from_its_first_event() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events[1] = [(1, "a"), (2, "b"), (3, "c")]
    polled(brokers, stream)
    brokers.down = {1}
    assert polled(brokers, stream) == []
    brokers.down, brokers.incarnations[1], brokers.events[1] = set(), "later", [(9, "new")]
    assert polled(brokers, stream) == [(1, "new")]


def test_events_that_a_broker_forgot_before_it_was_asked_are_counted() -> None:
    """The end of a broker with thousands of partitions is told in more events at once than the controller keeps. The
    first ones say why, and nothing said that they were missing. Those before the first question are missed by none."""
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events[1], brokers.forgotten[1] = [(number, "a") for number in range(4)], 3
    assert (polled(brokers, stream), stream.take_missed()) == ([(1, "a")], {})
    brokers.events[1], brokers.forgotten[1] = [(number, "a") for number in range(9)], 7
    assert (polled(brokers, stream), stream.take_missed()) == (
        [(1, "a"), (1, "a")],
        {1: "broker 1 reported more at once than it keeps: its log has 3 events more"},
    )
    assert (polled(brokers, stream), stream.take_missed()) == ([], {})


def test_a_broker_of_a_version_without_events_is_named_and_the_others_are_read() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events, brokers.without_events = {1: [(1, "a")], 2: [(2, "b")]}, {2}
    assert polled(brokers, stream) == [(1, "a")]
    assert stream.refusals == {2: "UNSUPPORTED_VERSION"}
    brokers.without_events = set()
    assert polled(brokers, stream) == [(2, "b")]
    assert stream.refusals == {}


def test_filters_pass_events_of_and_about_a_broker() -> None:
    brokers = FakeBrokers()
    brokers.events[1] = [(1, "broker_left")]
    (event,) = asyncio.run(stream_of(brokers).poll())
    assert event.concerns((), (), (1,))
    assert event.concerns(("broker_left",), (), ())
    assert not event.concerns(("isr_changed",), (), ())
    assert not event.concerns((), ("lines",), ())
    assert not event.concerns((), (), (2,))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"broker": 2}, {2}),
        ({"brokers": [2, 3]}, {2, 3}),
        ({"leader": 2, "leader_before": 1, "isr_before": [1, 2, 3], "isr": [2, 3]}, {1, 2}),
        ({"leader": None, "leader_before": 1, "isr_before": [1], "isr": [1]}, {1}),
        ({"before": [1, 2, 3], "after": [2, 3]}, {1}),
        ({"isr": [1, 2, 3]}, set()),
        ({"broker": "2", "brokers": 3, "isr_before": None, "isr": ["x"]}, set()),
    ],
)
def test_an_event_is_about_the_brokers_that_it_names(fields: dict[str, Any], named: set[int]) -> None:
    """Once a broker's filter did not show the elections after its end."""
    event = BrokerEvent(1, 9, fields)
    assert event.about == named
    assert all(event.concerns((), (), (broker,)) for broker in named)


@pytest.mark.parametrize(
    ("content", "at_ms", "problem"),
    [
        ("{", 1, "not a JSON object"),
        ("[]", 1, "not a JSON object"),
        ("[" * 30_000, 1, "not a JSON object"),
        ('{"text": "t"}', 1, "has no event"),
        ('{"event": "e", "text": 5}', 1, "has no text"),
        ('{"event": "e", "text": "t"}', 1 << 62, "no possible time"),
    ],
)
def test_a_broker_that_sends_what_is_no_event_is_named_and_the_others_are_read(
    content: str, at_ms: int, problem: str
) -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events, brokers.contents = {1: [(1, "a")], 2: [(at_ms, "b")]}, {2: content}
    assert polled(brokers, stream) == [(1, "a")]
    assert problem in stream.refusals[2]
    assert len(stream.refusals[2]) < 200


def test_numbers_that_do_not_rise_end_the_poll() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events, brokers.following = {1: [(1, "a")]}, {1: lambda asked: asked}
    assert polled(brokers, stream) == []
    assert stream.refusals == {1: "asked for events from number 0 on, it gives 0 as the next"}
    assert brokers.asked == 1


def test_a_broker_that_has_ever_more_events_does_not_keep_a_poll_from_ending() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events, brokers.following = {1: [(1, "a")]}, {1: lambda asked: asked + 1}
    assert len(polled(brokers, stream)) == brokers.asked == ANSWERS_PER_POLL_MAX


def test_a_watch_that_closes_looks_for_brokers_no_more() -> None:
    async def closed_early() -> asyncio.Task[None] | None:
        """`top` printed a traceback when q came before its first look: the search failed, and no task asked why."""
        brokers = FakeBrokers()
        brokers.describes = asyncio.Event()
        watch = ClusterWatch("test", "localhost:1")
        watch._stream = stream_of(brokers)
        poll = asyncio.create_task(watch._poll(1.0))
        await asyncio.sleep(0)
        poll.cancel()
        await asyncio.wait([poll])
        search = watch._stream._discovery
        await watch.close()
        assert search is not None
        await asyncio.wait([search])
        assert search.cancelled()
        return watch._stream._discovery

    assert asyncio.run(asyncio.wait_for(closed_early(), 10)) is None


def test_characters_that_a_terminal_obeys_are_escaped() -> None:
    brokers = FakeBrokers()
    brokers.events = {1: [(1, "ä \x1b[2J\n\x9b\x7f\ud800")]}
    (event,) = asyncio.run(stream_of(brokers).poll())
    assert event.fields["text"] == r"ä \x1b[2J\n\x9b\x7f\ud800"


def test_brokers_that_do_not_answer_are_named_until_they_do() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.down = {2}
    polled(brokers, stream)
    assert list(stream.silent) == [2]
    brokers.down, brokers.found, stream._discovered_at = {1, 2}, False, float("-inf")
    assert polled(brokers, stream) == []
    assert sorted(stream.silent) == [1, 2]
    brokers.down = set()
    polled(brokers, stream)
    assert stream.silent == {}


def test_brokers_with_endless_events_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A poll took fifty answers of 32 MB of each broker."""
    brokers = FakeBrokers()
    brokers.events = {1: [(1, "a")], 2: [(1, "b")]}
    brokers.following = dict.fromkeys(brokers.events, lambda number: number + 1)
    event = brokers.contents[1] = brokers.contents[2] = json.dumps({"event": "x", "text": "y" * 1_000})
    monkeypatch.setattr(event_stream, "EVENT_BYTES_PER_POLL", 10 * len(event))
    stream = stream_of(brokers)
    assert [len(polled(brokers, stream)) for _ in range(3)] == [10, 10, 10]
    numbers = {broker: number for broker, (_, number) in stream._next.items()}
    assert sum(numbers.values()) == 30, "none is left out"
