"""Events that a broker reports: every number once, in order, and nothing that is no event."""

import pytest

from minibroker.protocol.wire.messages import DescribeEventsResponse, ReportedEvent
from minibroker.simulation.swarm.loads.event_reader import complaints

CONTENT = '{"event": "broker_stopped", "broker": 1, "text": "broker 1 stopped"}'


def answer(first: int, numbers: list[int], following: int, content: str = CONTENT) -> DescribeEventsResponse:
    events = [ReportedEvent(number=number, at_ms=5, content=content) for number in numbers]
    return DescribeEventsResponse(broker_id=1, first_number=first, next_number=following, events=events)


@pytest.mark.parametrize(
    "right", [answer(0, [3, 4], 5), answer(0, [], 3), answer(7, [7], 8)], ids=["two", "none", "older ones dropped"]
)
def test_numbers_that_go_on_are_right(right: DescribeEventsResponse) -> None:
    assert list(complaints(3, right)) == []


@pytest.mark.parametrize(
    "wrong", [answer(0, [4], 5), answer(0, [3, 5], 6), answer(0, [3], 5), answer(0, [3, 3], 5), answer(0, [], 4)]
)
def test_gap_or_repetition_is_found(wrong: DescribeEventsResponse) -> None:
    assert len(list(complaints(3, wrong))) == 1


@pytest.mark.parametrize("content", ['{"event": "nothing", "text": "?"}', '{"event": "broker_stopped", "text": ""}'])
def test_what_is_no_event_is_found(content: str) -> None:
    assert len(list(complaints(3, answer(0, [3], 4, content)))) == 1
