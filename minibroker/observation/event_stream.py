"""The events of all brokers of a cluster, as they are reported.

Owns: up to which number each broker was asked, and the order of the answers. Leaves to others: which events are shown,
and how.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from minibroker.observation.broker_queries import ASK_TIMEOUT_S, BrokerQueries, NoAnswer, Refused
from minibroker.protocol.messages import DescribeEventsRequest, DescribeEventsResponse

POLL_SECONDS = 0.3
"""An event is shown this long after it is reported, at most."""
DISCOVER_SECONDS = 2.0
"""Brokers that joined are looked for this often."""


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
        """Brokers that refuse to report events, with their words: an older version knows no such request."""

    async def poll(self, timeout_s: float = ASK_TIMEOUT_S) -> list[BrokerEvent]:
        """What was reported since the last call, oldest first. Raises NoAnswer if no broker answers at all."""
        if time.monotonic() - self._discovered_at >= DISCOVER_SECONDS:
            await self._discover(timeout_s)
        answers = await asyncio.gather(*(self._ask(broker, timeout_s) for broker in self._brokers))
        return sorted((event for answer in answers for event in answer), key=lambda event: event.at_ms)

    async def follow(self) -> AsyncIterator[BrokerEvent]:
        """Yield events for ever. While no broker answers, it waits for one."""
        while True:
            try:
                for event in await self.poll():
                    yield event
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
        while True:
            incarnation, number = self._next.get(broker, ("", 0))
            request = DescribeEventsRequest(first_number=number)
            try:
                answer = await self._queries.ask(self._brokers[broker], request, DescribeEventsResponse, timeout_s)
            except Refused as error:
                self.refusals[broker] = str(error)
                return found
            except NoAnswer:
                return found
            self.refusals.pop(broker, None)
            if answer.incarnation_id != incarnation and number:
                self._next[broker] = (answer.incarnation_id, 0)
                continue
            self._next[broker] = (answer.incarnation_id, answer.next_number)
            found += [BrokerEvent(each.at_ms, answer.broker_id, json.loads(each.content)) for each in answer.events]
            if not answer.events:
                return found
