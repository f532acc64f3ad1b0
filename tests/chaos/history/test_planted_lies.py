"""Random valid histories show nothing; with one lie in it, a history shows that lie and nothing else."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from minibroker.chaos.history.anomalies import check_history, judge_history
from minibroker.chaos.history.client_history import HistoryEvent, from_json_lines, to_json_lines
from minibroker.chaos.history.lies import LIES, LieKind, NoPlace
from tests.chaos.history.valid_histories import PROMISE, valid_histories

LENIENT = settings(suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow], deadline=None)


@given(valid_histories())
@LENIENT
def test_a_valid_history_shows_nothing(events: list[HistoryEvent]) -> None:
    assert check_history(events, PROMISE) == []


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
@given(events=valid_histories(), seed=st.integers(0, 99))
@LENIENT
def test_a_lie_is_found_and_nothing_else(lie: LieKind, events: list[HistoryEvent], seed: int) -> None:
    try:
        planted = lie.plant(events, random.Random(seed))
    except NoPlace:
        assume(False)
    found = check_history(planted.events, PROMISE)
    names = {each.name for each in found}
    assert lie.must <= names <= lie.must | lie.may
    assert {each.key for each in found} == {planted.key}


@given(valid_histories())
@LENIENT
def test_the_file_tells_the_same(events: list[HistoryEvent]) -> None:
    assert from_json_lines(to_json_lines(events)) == events
    judged = judge_history(lambda: iter(events), PROMISE)
    assert judged.operations == sum(1 for event in events if event.type == "invoke")
    assert judged.lag_s >= 0
