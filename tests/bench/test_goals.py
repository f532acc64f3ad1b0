"""A goal is met when the cautious bound meets it, and an unmeasured one is not met."""

import pytest

from minibroker.bench.cases.catalogue import CASES
from minibroker.bench.goals import GOALS, Divisor, Goal, check_goals
from tests.bench.documents import case, document

TWICE = Goal(what="twice as fast", case="produce", figure="mb_s", limit=2.0, divisor=Divisor("produce", "mb_s"))


def test_a_ratio_whose_bound_reaches_the_limit_is_met() -> None:
    (verdict,) = check_goals(document(case("produce", [21.0, 22.0, 23.0], [10.0, 10.0, 10.0])), [TWICE])
    assert verdict.result_text == "met"


def test_a_median_above_the_limit_is_not_enough() -> None:
    (verdict,) = check_goals(document(case("produce", [15.0, 22.0, 23.0], [10.0, 10.0, 10.0])), [TWICE])
    assert verdict.summary is not None
    assert verdict.summary.median == 2.2
    assert verdict.result_text == "missed"


def test_where_less_is_better_the_upper_bound_decides() -> None:
    goal = Goal(what="half as slow", case="wait", figure="ms", limit=0.5, at_least=False, divisor=Divisor("wait", "ms"))
    waits = case("wait", [4.0, 4.0, 6.0], [10.0, 10.0, 10.0], figure="ms", more=False)
    (verdict,) = check_goals(document(waits), [goal])
    assert verdict.compared == 0.6
    assert verdict.result_text == "missed"


def test_a_goal_may_use_the_worst_round() -> None:
    goal = Goal(what="short", case="gap", figure="s", limit=0.5, at_least=False, by="worst", unit="s")
    (verdict,) = check_goals(document(case("gap", [0.2, 0.2, 0.6], [], figure="s", more=False)), [goal])
    assert (verdict.compared, verdict.result_text) == (0.6, "missed")


def test_a_goal_without_figures_is_not_measured() -> None:
    (verdict,) = check_goals(document(case("produce", [21.0], [])), [TWICE])
    assert verdict.result_text == "not measured"


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.what)
def test_every_goal_names_a_case(goal: Goal) -> None:
    names = {each.name for each in CASES}
    assert goal.case in names
    assert goal.divisor is None or goal.divisor.case in names
