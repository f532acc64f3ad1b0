"""A user who follows the events that each broker reports, as `minibroker events` does.

Owns: up to which number each broker was read, and the check that numbers have no gap that a broker's limit does not
explain and that each event is one that the project knows. Leaves to others: which broker is asked when.
"""

import json
from collections.abc import Iterator
from functools import partial

from minibroker.protocol.events.cluster_events import EVENTS
from minibroker.protocol.wire.messages import DescribeEventsRequest, DescribeEventsResponse
from minibroker.runtime.request_channel import RequestChannel, RequestFailed
from minibroker.runtime.rpc import connect
from minibroker.simulation.cluster import PORT
from minibroker.simulation.swarm.loads.load_scene import LoadScene

ANSWER_MS = 2_000
EVENTS_MAX = 100


class EventReader:
    """Of one run."""

    def __init__(self, scene: LoadScene) -> None:
        self._scene = scene
        self._next: dict[int, tuple[str, int]] = {}
        """By broker: its incarnation, and the number to ask for."""

    async def read(self, broker_id: int) -> None:
        """Ask for the next events of this broker; one that does not answer is left for later."""
        incarnation, number = self._next.get(broker_id, ("", 0))
        network = self._scene.cluster.client_runtime().network
        dial = partial(connect, network, f"broker-{broker_id}", PORT, client_id="event-reader", timeout_ms=ANSWER_MS)
        with RequestChannel(dial) as channel:
            try:
                request = DescribeEventsRequest(first_number=number, max_events=EVENTS_MAX)
                answer = await channel.ask(request, DescribeEventsResponse, ANSWER_MS)
            except RequestFailed as error:
                self._scene.history.note_error("event reader", error)
                return
        if answer.incarnation_id == incarnation or number == 0:
            for complaint in complaints(number, answer):
                self._scene.find("events", f"broker {broker_id}: {complaint}")
            self._next[broker_id] = (answer.incarnation_id, answer.next_number)
            self._scene.did("events read")
        else:  # it was started again, and counts from 0
            self._next[broker_id] = (answer.incarnation_id, 0)


def complaints(asked: int, answer: DescribeEventsResponse) -> Iterator[str]:
    """What is wrong with an answer to the question for the events from number `asked` on."""
    first = max(asked, answer.first_number)
    numbers = [each.number for each in answer.events]
    if numbers != list(range(first, first + len(numbers))) or answer.next_number != first + len(numbers):
        oldest = f"its oldest is {answer.first_number}"
        yield f"asked from {asked} on, it gives {numbers} and {answer.next_number} as the next; {oldest}"
    for event in answer.events:
        content = json.loads(event.content)
        if content.get("event") not in EVENTS or not content.get("text"):
            yield f"it reports {event.content:.200}"
