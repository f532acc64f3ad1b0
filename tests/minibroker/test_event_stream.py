"""The events of a cluster, polled from all of its brokers."""

import asyncio
import json
from typing import Any, cast

from minibroker.observation.broker_queries import BrokerQueries, NoAnswer, Refused
from minibroker.observation.event_stream import EventStream
from minibroker.protocol.messages import (
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
        self.incarnations = {1: "a", 2: "b"}
        self.down: set[int] = set()
        self.without_events: set[int] = set()

    async def describe_cluster(self, servers: str, timeout_s: float) -> DescribeClusterResponse:
        brokers = [DescribeClusterBroker(broker_id=each, host="host", port=each) for each in self.events]
        return DescribeClusterResponse(brokers=brokers)

    async def ask(
        self, server: str, request: DescribeEventsRequest, kind: object, timeout_s: float
    ) -> DescribeEventsResponse:
        broker = int(server.rpartition(":")[2])
        if broker in self.without_events:
            raise Refused("UNSUPPORTED_VERSION")
        if broker in self.down:
            raise NoAnswer(server)
        kept = self.events[broker]
        found = [
            ReportedEvent(number=number, at_ms=at_ms, content=json.dumps({"event": name, "text": name}))
            for number, (at_ms, name) in enumerate(kept)
            if number >= request.first_number
        ][:2]
        following = found[-1].number + 1 if found else min(request.first_number, len(kept))
        incarnation = self.incarnations[broker]
        return DescribeEventsResponse(broker_id=broker, incarnation_id=incarnation, next_number=following, events=found)


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


def test_a_broker_that_was_started_again_is_read_from_its_first_event() -> None:
    brokers = FakeBrokers()
    stream = stream_of(brokers)
    brokers.events[1] = [(1, "a"), (2, "b"), (3, "c")]
    polled(brokers, stream)
    brokers.down = {1}
    assert polled(brokers, stream) == []
    brokers.down, brokers.incarnations[1], brokers.events[1] = set(), "later", [(9, "new")]
    assert polled(brokers, stream) == [(1, "new")]


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
