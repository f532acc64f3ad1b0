"""The last events of this broker, for clients that ask (`minibroker events`).

Owns: how many are kept, in how much memory, and their numbers. Leaves to others: the events, and where else they go.
"""

from collections import deque
from itertools import islice

import msgspec

from minibroker.protocol.events.cluster_events import as_json
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.protocol.wire.messages import DescribeEventsRequest, DescribeEventsResponse, ReportedEvent
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Clock

EVENTS_KEPT = 2_000
"""Half an hour of a cluster under chaos."""
KEPT_CHARACTERS_MAX = 1_000_000
"""Of all kept events together: about a megabyte. 2,000 ordinary events have a third of it."""
WHOLE_EVENT_CHARACTERS_MAX = 600
"""A longer event is packed when it is reported, since packing clips it; few are as long. It is more than all settings
of a topic need."""
NUMBER_CHARACTERS = 10
"""What a number counts."""
EVENTS_PER_ANSWER_MAX = 200
ANSWER_BYTES_MAX = 100_000
"""Packing as much takes the event loop a few milliseconds. 200 ordinary events have half of it."""


class RecentEvents:
    """The observer of one broker: keeps what it reports, and hands it on."""

    def __init__(self, observer: Observer, clock: Clock) -> None:
        self._observer = observer
        self._clock = clock
        self._kept: deque[tuple[int, ClusterEvent | str]] = deque()
        """With the time of the report, ms. Packed when a client asks, because most events are never asked for; a long
        one is packed already."""
        self._characters = 0
        """Of all kept events."""
        self._next_number = 0

    @property
    def wants_details(self) -> bool:
        return self._observer.wants_details

    def notify(self, event: object) -> None:
        if isinstance(event, ClusterEvent):
            self._keep(event)
        self._observer.notify(event)

    def _keep(self, event: ClusterEvent) -> None:
        content = event if _characters(event) <= WHOLE_EVENT_CHARACTERS_MAX else as_json(event)
        self._kept.append((self._clock.now_ms(), content))
        self._next_number += 1
        self._characters += _characters(content)
        while len(self._kept) > EVENTS_KEPT or self._characters > KEPT_CHARACTERS_MAX:
            self._characters -= _characters(self._kept.popleft()[1])

    def answer(self, broker_id: int, incarnation_id: str, body: DescribeEventsRequest) -> DescribeEventsResponse:
        """The oldest ones from the asked number on. Numbers begin at 0 with each start of the broker."""
        first = self._next_number - len(self._kept)
        skipped = min(max(0, body.first_number - first), len(self._kept))
        limit = min(EVENTS_PER_ANSWER_MAX, max(0, body.max_events))
        found: list[ReportedEvent] = []
        size = 0
        asked = islice(self._kept, skipped, skipped + limit)
        for number, (at_ms, event) in enumerate(asked, start=first + skipped):
            content = event if isinstance(event, str) else as_json(event)
            size += len(content.encode())
            if found and size > ANSWER_BYTES_MAX:
                break
            found.append(ReportedEvent(number=number, at_ms=at_ms, content=content))
        return DescribeEventsResponse(
            broker_id=broker_id,
            incarnation_id=incarnation_id,
            first_number=first,
            next_number=found[-1].number + 1 if found else max(first, min(body.first_number, self._next_number)),
            events=found,
        )


def _characters(value: object) -> int:
    """How much text is in an event, or in a field of it."""
    if isinstance(value, ClusterEvent):
        return _characters(msgspec.structs.astuple(value))
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(name) + _characters(each) for name, each in value.items())
    if isinstance(value, list | tuple):
        return sum(_characters(each) for each in value)
    return NUMBER_CHARACTERS
