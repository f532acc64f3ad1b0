"""The events of all brokers of a cluster, as they are reported.

Owns: up to which number each broker was asked, the order of the answers, the check of what they hold, and which brokers
report nothing. Leaves to others: which events are shown, and how.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from minibroker.observation.broker_queries import ASK_TIMEOUT_S, BrokerQueries, NoAnswer, Refused
from minibroker.protocol.wire.messages import DescribeEventsRequest, DescribeEventsResponse, ReportedEvent

POLL_SECONDS = 0.3
"""An event is shown this long after it is reported, at most."""
DISCOVER_SECONDS = 2.0
"""Brokers that joined are looked for this often."""
ANSWERS_PER_POLL_MAX = 50
"""Of one broker. It keeps 2,000 events in 20 answers or so; the rest is asked for by the next poll."""
AT_MS_MAX = 32_503_680_000_000
"""The year 3000: a later time is none, and Python cannot show any."""


class BrokerEvent(msgspec.Struct, frozen=True):
    """One event, and the broker that reported it."""

    at_ms: int
    reported_by: int
    fields: dict[str, Any]
    """`event`: its name; its own fields; `level`; `text`: its sentence."""

    def concerns(self, kinds: tuple[str, ...], topics: tuple[str, ...], brokers: tuple[int, ...]) -> bool:
        """Whether it passes the filters; an empty filter lets everything pass. A broker filter fits the broker that
        reported the event, and one that the event names."""
        is_of_broker = not brokers or self.reported_by in brokers or self.fields.get("broker") in brokers
        is_of_kind = not kinds or self.fields["event"] in kinds
        return is_of_kind and is_of_broker and (not topics or self.fields.get("topic") in topics)


class MalformedEvents(Exception):
    """A broker answered with what is no list of events; the message says what is wrong."""


def printable(text: str) -> str:
    """The text with escapes for characters that a terminal would obey, such as `\\x1b`, or could not show."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class EventStream:
    """Polls the brokers of a cluster."""

    def __init__(self, queries: BrokerQueries, servers: str) -> None:
        self._queries = queries
        self._servers = servers
        self._brokers: dict[int, str] = {}
        self._next: dict[int, tuple[str, int]] = {}
        """By broker: its incarnation, and the number to ask for."""
        self._discovered_at = -DISCOVER_SECONDS
        self.refusals: dict[int, str] = {}
        """Brokers that refuse to report events, with their words (an older version knows no such request), or that
        report what are none."""
        self.silent: dict[int, str] = {}
        """Brokers that do not answer, and why."""

    @property
    def brokers(self) -> list[int]:
        """All that were found so far."""
        return sorted(self._brokers)

    async def poll(self, timeout_s: float = ASK_TIMEOUT_S) -> list[BrokerEvent]:
        """What was reported since the last call, oldest first. Raises NoAnswer if no broker was ever found."""
        if time.monotonic() - self._discovered_at >= DISCOVER_SECONDS:
            try:
                await self._discover(timeout_s)
            except NoAnswer:
                if not self._brokers:
                    raise
        answers = await asyncio.gather(*(self._ask(broker, timeout_s) for broker in self._brokers))
        return sorted((event for answer in answers for event in answer), key=lambda event: event.at_ms)

    async def follow(self) -> AsyncIterator[list[BrokerEvent]]:
        """Yield the events of each poll for ever, also of one that found none. While no broker is found, it waits for
        one."""
        while True:
            try:
                yield await self.poll()
            except NoAnswer:
                pass
            await asyncio.sleep(POLL_SECONDS)

    async def _discover(self, timeout_s: float) -> None:
        known = ",".join(self._brokers.values())
        servers = f"{known},{self._servers}" if known else self._servers
        found = await self._queries.describe_cluster(servers, timeout_s)
        self._brokers |= {each.broker_id: f"{each.host}:{each.port}" for each in found.brokers}
        self._discovered_at = time.monotonic()

    async def _ask(self, broker: int, timeout_s: float) -> list[BrokerEvent]:
        """New events of one broker; none if it does not answer."""
        found: list[BrokerEvent] = []
        for _ in range(ANSWERS_PER_POLL_MAX):
            incarnation, number = self._next.get(broker, ("", 0))
            request = DescribeEventsRequest(first_number=number)
            try:
                answer = await self._queries.ask(self._brokers[broker], request, DescribeEventsResponse, timeout_s)
            except Refused as error:
                self.silent.pop(broker, None)
                self.refusals[broker] = printable(str(error))
                break
            except NoAnswer as error:
                self.silent[broker] = printable(str(error))
                break
            self.silent.pop(broker, None)
            if answer.incarnation_id != incarnation and number:
                self._next[broker] = (answer.incarnation_id, 0)
                continue
            try:
                found += _events_of(answer, number)
            except MalformedEvents as error:
                self.refusals[broker] = str(error)
                break
            self.refusals.pop(broker, None)
            self._next[broker] = (answer.incarnation_id, answer.next_number)
            if not answer.events:
                break
        return found


def _events_of(answer: DescribeEventsResponse, asked_number: int) -> list[BrokerEvent]:
    """Raises MalformedEvents: no answer of a broker ends a command with a traceback, or keeps it busy for ever."""
    if answer.events and answer.next_number <= asked_number:
        raise MalformedEvents(
            f"asked for events from number {asked_number} on, it gives {answer.next_number} as the next"
        )
    return [BrokerEvent(each.at_ms, answer.broker_id, _fields_of(each)) for each in answer.events]


def _fields_of(event: ReportedEvent) -> dict[str, Any]:
    try:
        fields = json.loads(event.content)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise MalformedEvents(f"its event {event.number} is no JSON object: {event.content!a:.100}")
    for name in ("event", "text"):
        if not isinstance(fields.get(name), str):
            raise MalformedEvents(f"its event {event.number} has no {name}: {event.content!a:.100}")
    if not 0 <= event.at_ms <= AT_MS_MAX:
        raise MalformedEvents(f"its event {event.number} has no possible time: {event.at_ms} ms")
    return {**fields, "text": printable(fields["text"])}
