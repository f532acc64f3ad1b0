"""What a reader gets of a topic that was made again is judged by what was written to this one."""

import pytest

from minibroker.simulation.swarm.loads.topic_maker import TopicLife

Found = list[tuple[int, bytes | None]]


def life() -> TopicLife:
    return TopicLife(topic_id="new", acknowledged={0: b"one", 2: b"three"}, in_doubt={b"two"})


def test_acknowledged_records_and_any_in_doubt_are_right() -> None:
    assert life().wrong([(0, b"one"), (1, b"two"), (2, b"three")]) == []
    assert TopicLife(topic_id="empty").wrong([]) == []


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ([(0, b"one"), (1, b"two")], "b'three' was acknowledged at 2"),
        ([(0, b"one"), (1, b"of the last life"), (2, b"three")], "was not written to it"),
        ([(2, b"three")], "its offsets are [2]"),
        ([(0, b"one"), (1, b"one"), (2, b"three")], "b'one' is there twice"),
    ],
)
def test_each_wrong_record_is_named(found: Found, why: str) -> None:
    assert any(why in each for each in life().wrong(found))
