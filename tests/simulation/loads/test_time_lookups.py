"""Answers to look-ups by time are judged by the records that readers saw."""

import pytest

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.loads.time_lookups import TimeLookups

PARTITION = TopicPartition("load", 0)
TIMES_MS = {(PARTITION, offset): timestamp for offset, timestamp in enumerate((10, 50, 20, 60))}


def judge(timestamp_ms: int, offset: int | None, told_ms: int | None, end: int = 4, deleting: str = "") -> list[str]:
    lookups = TimeLookups()
    lookups.add(PARTITION, timestamp_ms, 0, end, offset, told_ms)
    return [why for _, why in lookups.wrong(TIMES_MS, {deleting})]


@pytest.mark.parametrize(("asked", "offset", "told"), [(0, 0, 10), (11, 1, 50), (50, 1, 50), (51, 3, 60)])
def test_first_record_that_is_not_older_is_right(asked: int, offset: int, told: int) -> None:
    assert judge(asked, offset, told) == []


def test_no_record_is_right_if_all_are_older_or_came_later() -> None:
    assert judge(61, None, None) == []
    assert judge(51, None, None, end=3) == []


@pytest.mark.parametrize(
    ("asked", "offset", "told", "why"),
    [
        (11, 3, 60, "in front of the answer"),
        (60, None, None, "in front of the answer"),
        (11, 2, 20, "offset 1 has timestamp 50"),
        (11, 1, 51, "not 51"),
        (51, 1, 50, "older"),
    ],
)
def test_wrong_answer_is_named(asked: int, offset: int | None, told: int | None, why: str) -> None:
    [found] = judge(asked, offset, told)
    assert why in found


def test_where_retention_deletes_earlier_records_may_be_gone() -> None:
    assert judge(11, 3, 60, deleting="load") == []
    assert judge(11, 3, 61, deleting="load") != []
