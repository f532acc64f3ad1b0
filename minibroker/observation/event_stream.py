"""The events of all brokers of a cluster, as they are reported.

Owns: up to which number each broker was asked, the order of the answers, the check of what they hold, and which brokers
report nothing. Leaves to others: which events are shown, and how.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from minibroker.observation.broker_queries import ASK_TIMEOUT_S, BrokerQueries, NoAnswer, Refused
from minibroker.protocol.counted import counted
from minibroker.protocol.printable_text import printable
from minibroker.protocol.wire.messages import DescribeEventsRequest, DescribeEventsResponse, ReportedEvent

POLL_SECONDS = 0.3
"""Between two polls. An event of a broker that answers is shown this long after it is reported, at most, and
PATIENCE_SECONDS later while another broker begins to be silent."""
PATIENCE_SECONDS = 0.5
"""A poll waits this long for a broker that answered before. Its answer counts whenever it comes: the later polls do not
wait for it."""
DISCOVER_SECONDS = 2.0
"""Brokers that joined are looked for this often."""
ANSWERS_PER_POLL_MAX = 50
"""Of one broker. It keeps 2,000 events in 20 answers or so; the rest is asked for by the next poll."""
EVENT_BYTES_PER_POLL = 64 * 1024 * 1024
"""Of all brokers together. Each keeps a megabyte, but a broken one has no end. The next poll asks for the rest."""
AT_MS_MAX = 32_503_680_000_000
"""The year 3000: a later time is none, and Python cannot show any."""

NAMING_FIELDS = ("broker", "leader", "leader_before", "confirmer")
"""Fields of events that hold a broker."""
ISR_FIELDS = (("before", "after"), ("isr_before", "isr"))
"""An ISR before and after an event."""


class BrokerEvent(msgspec.Struct, frozen=True):
    """One event, and the broker that reported it."""

    at_ms: int
    reported_by: int
    fields: dict[str, Any]
    """`event`: its name; its own fields; `level`; `text`: its sentence."""

    def concerns(self, kinds: tuple[str, ...], topics: tuple[str, ...], brokers: tuple[int, ...]) -> bool:
        """Whether it passes the filters; an empty filter lets everything pass."""
        is_of_broker = not brokers or not {self.reported_by, *self.about}.isdisjoint(brokers)
        is_of_kind = not kinds or self.fields["event"] in kinds
        return is_of_kind and is_of_broker and (not topics or self.fields.get("topic") in topics)

    @property
    def about(self) -> set[int]:
        """The brokers that it names, except members that stay in an ISR."""
        fields = self.fields
        named = {each for name in NAMING_FIELDS if isinstance(each := fields.get(name), int)}
        moved = (_listed(fields, before) ^ _listed(fields, isr) for before, isr in ISR_FIELDS if before in fields)
        return named.union(_listed(fields, "brokers"), *moved)


def _listed(fields: dict[str, Any], name: str) -> set[int]:
    listed = fields.get(name)
    return {each for each in listed if isinstance(each, int)} if isinstance(listed, list) else set()


class MalformedEvents(Exception):
    """A broker answered with what is no list of events; the message says what is wrong."""


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
        self._missed = Counter[int]()
        """Events, by broker, that it did not keep until it was asked for them."""
        self._asked: dict[int, asyncio.Task[list[BrokerEvent]]] = {}
        """Questions to brokers that are not answered yet."""
        self._discovery: asyncio.Task[None] | None = None
        self._room_bytes = 0
        """For further events of this poll."""

    @property
    def brokers(self) -> list[int]:
        """All that were found so far."""
        return sorted(self._brokers)

    async def poll(self, timeout_s: float = ASK_TIMEOUT_S, patience_s: float | None = None) -> list[BrokerEvent]:
        """What was reported since the last call, oldest first. Raises NoAnswer if no broker was ever found.

        With `patience_s` it does not wait longer for a broker: its events come with the poll that finds them. Then call
        `end` in the end."""
        await self._discovered(timeout_s, patience_s)
        self._room_bytes = EVENT_BYTES_PER_POLL
        new = [broker for broker in self._brokers if broker not in self._asked]
        self._asked |= {broker: asyncio.create_task(self._ask(broker, timeout_s)) for broker in new}
        waiting = new if patience_s is not None else list(self._asked)
        if waiting:
            await asyncio.wait([self._asked[broker] for broker in waiting], timeout=patience_s)
        answered = [broker for broker, question in self._asked.items() if question.done()]
        answers = [self._asked.pop(broker).result() for broker in answered]
        return sorted((event for answer in answers for event in answer), key=lambda event: event.at_ms)

    async def follow(self) -> AsyncIterator[list[BrokerEvent]]:
        """Yield the events of each poll for ever, also of one that found none. While no broker is found, it waits for
        one."""
        try:
            while True:
                try:
                    yield await self.poll(patience_s=PATIENCE_SECONDS)
                except NoAnswer:
                    pass
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self.end()

    def take_missed(self) -> dict[int, str]:
        """By broker, what is said of the events that it has forgotten unasked since the last call."""
        missed, self._missed = self._missed, Counter()
        return {
            each: f"broker {each} reported more at once than it keeps: its log has {counted(number, 'event')} more"
            for each, number in sorted(missed.items())
        }

    def end(self) -> None:
        """Ask no more."""
        for task in [*self._asked.values(), *([self._discovery] if self._discovery is not None else [])]:
            task.cancel()
        self._asked, self._discovery = {}, None

    async def _discovered(self, timeout_s: float, patience_s: float | None) -> None:
        """Look for brokers when it is time to. Raises NoAnswer if no broker was ever found."""
        if self._discovery is None and time.monotonic() - self._discovered_at >= DISCOVER_SECONDS:
            self._discovery = asyncio.create_task(self._discover(timeout_s))
        if self._discovery is not None:
            await asyncio.wait([self._discovery], timeout=patience_s if self._brokers else None)
        if self._discovery is not None and self._discovery.done():
            done, self._discovery = self._discovery, None
            if not self._brokers or not isinstance(done.exception(), NoAnswer):
                done.result()

    async def _discover(self, timeout_s: float) -> None:
        """Ask those first that answer."""
        slow = {*self._asked, *self.silent}
        known = [self._brokers[each] for each in sorted(self._brokers, key=lambda each: (each in slow, each))]
        found = await self._queries.describe_cluster(",".join([*known, self._servers]), timeout_s)
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
            size_bytes = sum(len(each.content) for each in answer.events)
            if size_bytes > self._room_bytes:
                break
            self._room_bytes -= size_bytes
            try:
                found += _events_of(answer, number)
            except MalformedEvents as error:
                self.refusals[broker] = str(error)
                break
            self.refusals.pop(broker, None)
            if number and answer.first_number > number:
                self._missed[broker] += answer.first_number - number
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
        raise MalformedEvents(f"its event {event.number} is not a JSON object: {event.content!a:.100}")
    for name in ("event", "text"):
        if not isinstance(fields.get(name), str):
            raise MalformedEvents(f"its event {event.number} has no {name}: {event.content!a:.100}")
    if not 0 <= event.at_ms <= AT_MS_MAX:
        raise MalformedEvents(f"its event {event.number} has no possible time: {event.at_ms} ms")
    return {**fields, "text": printable(fields["text"])}
