"""The last events of this broker, for clients that ask (`minibroker events`).

Owns: how many are kept, and their numbers. Leaves to others: the events, and where else they go.
"""

from collections import deque

from minibroker.protocol.cluster_events import ClusterEvent, as_json
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
        self._kept: deque[ReportedEvent] = deque(maxlen=EVENTS_KEPT)
        self._next_number = 0

    @property
    def wants_details(self) -> bool:
        return self._observer.wants_details

    def notify(self, event: object) -> None:
        if isinstance(event, ClusterEvent):
            self._kept.append(
                ReportedEvent(number=self._next_number, at_ms=self._clock.now_ms(), content=as_json(event))
            )
            self._next_number += 1
        self._observer.notify(event)

    def answer(self, broker_id: int, incarnation_id: str, body: DescribeEventsRequest) -> DescribeEventsResponse:
        """The oldest ones from the asked number on. Numbers begin at 0 with each start of the broker."""
        first = self._next_number - len(self._kept)
        skipped = max(0, body.first_number - first)
        limit = min(EVENTS_PER_ANSWER_MAX, max(0, body.max_events))
        found = [self._kept[index] for index in range(skipped, min(len(self._kept), skipped + limit))]
        return DescribeEventsResponse(
            broker_id=broker_id,
            incarnation_id=incarnation_id,
            first_number=first,
            next_number=found[-1].number + 1 if found else max(first, min(body.first_number, self._next_number)),
            events=found,
        )
