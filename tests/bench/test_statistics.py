"""Medians, ratios by alternation, and bounds that repeat."""

import pytest

from minibroker.bench.statistics import bootstrap_bounds, percentile, ratios, summarise


def test_a_ratio_is_taken_within_one_alternation() -> None:
    assert ratios({0: 10.0, 1: 30.0}, {0: 5.0, 1: 10.0}) == [2.0, 3.0]


def test_an_alternation_that_one_peer_missed_is_left_out() -> None:
    assert ratios({0: 10.0, 2: 30.0}, {1: 5.0, 2: 10.0}) == [3.0]


def test_a_zero_of_the_other_peer_gives_no_ratio() -> None:
    assert ratios({0: 10.0}, {0: 0.0}) == []


def test_bounds_enclose_the_median_and_repeat() -> None:
    values = [1.9, 2.0, 2.1, 2.2, 2.3, 2.4, 9.0]
    found = summarise(values)
    assert found == summarise(values)
    assert found.lowest <= found.lower < found.median == 2.2 < found.upper <= found.highest


def test_an_outlier_moves_the_median_of_seven_rounds_no_further_than_its_bound() -> None:
    steady = bootstrap_bounds([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    with_outlier = bootstrap_bounds([2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 50.0])
    assert steady == with_outlier == (2.0, 2.0)


def test_spread_out_rounds_give_a_cautious_bound() -> None:
    lower, upper = bootstrap_bounds([1.0, 1.0, 1.0, 2.0, 3.0, 3.0, 3.0])
    assert (lower, upper) == (1.0, 3.0)


def test_a_single_round_is_both_of_its_bounds() -> None:
    assert bootstrap_bounds([1.7]) == (1.7, 1.7)


@pytest.mark.parametrize(("share", "expected"), [(0.5, 50), (0.99, 99), (0.999, 100), (1.0, 100)])
def test_a_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    assert percentile(range(1, 101), share) == expected
