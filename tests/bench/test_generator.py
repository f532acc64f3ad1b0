"""Load generators keep to a schedule and count what waited."""

from minibroker.bench.load.generator import latencies, schedule


def test_a_slow_schedule_is_even() -> None:
    assert schedule(4, 1.0, 0) == [(0, 1), (250_000_000, 1), (500_000_000, 1), (750_000_000, 1)]


def test_a_fast_schedule_is_due_in_groups_of_a_millisecond() -> None:
    assert schedule(15_000, 1.0, 0) == [(millisecond * 1_000_000, 15) for millisecond in range(1_000)]


def test_a_schedule_that_divides_unevenly_loses_nothing() -> None:
    times = schedule(1_500, 2.0, 7)
    assert sum(records for _, records in times) == 3_000
    assert times[:3] == [(7, 2), (1_000_007, 1), (2_000_007, 2)]


def test_the_first_tenth_warms_and_is_left_out() -> None:
    waits_ns = [9_000_000] * 10 + [1_000_000] * 90
    found = latencies(waits_ns)
    assert (found["samples"], found["p50_ms"], found["max_ms"]) == (90, 1.0, 1.0)


def test_a_stall_shows_in_the_high_percentiles() -> None:
    waits_ns = [1_000_000] * 980 + [500_000_000] * 20
    found = latencies(waits_ns)
    assert (found["p50_ms"], found["p99_ms"]) == (1.0, 500.0)


def test_nothing_waited_nothing_is_said() -> None:
    assert latencies([]) == {}
