"""The last events of this broker, for clients that ask (`minibroker events`).

Owns: how many are kept, and their numbers. Leaves to others: the events, and where else they go.
"""

from collections import deque
from itertools import islice

from minibroker.protocol.cluster_events import as_json
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.protocol.messages import DescribeEventsRequest, DescribeEventsResponse, ReportedEvent
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Clock

EVENTS_KEPT = 2_000
"""Half an hour of a cluster under chaos; about a megabyte."""
EVENTS_PER_ANSWER_MAX = 200


class RecentEvents:
    """The observer of one broker: keeps what it reports, and hands it on."""

    def __init__(self, observer: Observer, clock: Clock) -> None:
        self._observer = observer
        self._clock = clock
        self._kept: deque[tuple[int, ClusterEvent]] = deque(maxlen=EVENTS_KEPT)
        """With the time of the report, ms. Packed when a client asks: most events are never asked for."""
        self._next_number = 0

    @property
    def wants_details(self) -> bool:
        return self._observer.wants_details

    def notify(self, event: object) -> None:
        if isinstance(event, ClusterEvent):
            self._kept.append((self._clock.now_ms(), event))
            self._next_number += 1
        self._observer.notify(event)

    def answer(self, broker_id: int, incarnation_id: str, body: DescribeEventsRequest) -> DescribeEventsResponse:
        """The oldest ones from the asked number on. Numbers begin at 0 with each start of the broker."""
        first = self._next_number - len(self._kept)
        skipped = min(max(0, body.first_number - first), len(self._kept))
        limit = min(EVENTS_PER_ANSWER_MAX, max(0, body.max_events))
        found = [
            ReportedEvent(number=first + index, at_ms=at_ms, content=as_json(event))
            for index, (at_ms, event) in enumerate(islice(self._kept, skipped, skipped + limit), start=skipped)
        ]
        return DescribeEventsResponse(
            broker_id=broker_id,
            incarnation_id=incarnation_id,
            first_number=first,
            next_number=found[-1].number + 1 if found else max(first, min(body.first_number, self._next_number)),
            events=found,
        )
