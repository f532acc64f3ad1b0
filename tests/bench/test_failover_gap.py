"""The longest gap between acknowledgements, and the steps in the brokers' logs."""

from datetime import UTC, datetime

import pytest

from minibroker.bench.broker_log import parse_log
from minibroker.bench.failover_gap import longest_gap, step_times

MS = 1_000_000
LOG = """\
{"time": "2026-11-21T16:33:33.400Z", "event": "replica_role_changed", "role": "leader"}
{"time": "2026-11-21T16:33:33.509Z", "event": "broker_failure_confirmed", "broker": 3}
Traceback (most recent call last):
{"time": "2026-11-21T16:33:33.519Z", "event": "controller_elected", "controller_epoch": 3}
{"time": "2026-11-21T16:33:33.520Z", "event": "leadership_changed", "leader": null}
{"time": "2026-11-21T16:33:33.522Z", "event": "leadership_changed", "leader": 1}
{"time": "2026-11-21T16:33:33.530Z", "event": "replica_role_changed", "role": "leader"}
{"time": "2026-11-21T16:33:41.599Z", "event": "broker_left", "broker": 1}
"""
SIGNALLED_S = datetime(2026, 11, 21, 16, 33, 33, 500_000, UTC).timestamp()


def test_the_gap_is_the_longest_that_ends_after_the_signal() -> None:
    gap = longest_gap([0, 500 * MS, 600 * MS, 690 * MS, 840 * MS, 845 * MS], signalled_ns=700 * MS)
    assert gap is not None
    assert (gap.seconds, gap.starts_ms, gap.ends_ms) == (0.15, -10.0, 140.0)


def test_a_longer_gap_before_the_signal_is_ignored() -> None:
    gap = longest_gap([0, 900 * MS, 905 * MS, 910 * MS], signalled_ns=901 * MS)
    assert gap is not None
    assert gap.seconds == 0.005


def test_without_an_acknowledgement_after_the_signal_there_is_no_gap() -> None:
    assert longest_gap([1 * MS, 2 * MS], signalled_ns=3 * MS) is None
    assert longest_gap([], signalled_ns=3 * MS) is None


def test_steps_are_timed_from_the_signal_and_earlier_lines_are_ignored() -> None:
    found = step_times(parse_log(1, LOG), SIGNALLED_S, SIGNALLED_S + 5.0)
    assert found == pytest.approx(
        {"confirmed_ms": 9.0, "controller_ms": 19.0, "elected_ms": 22.0, "leading_ms": 30.0}, abs=0.01
    )


def test_lines_after_the_last_acknowledgement_are_ignored() -> None:
    assert "gone_ms" not in step_times(parse_log(1, LOG), SIGNALLED_S, SIGNALLED_S + 5.0)
    assert "gone_ms" in step_times(parse_log(1, LOG), SIGNALLED_S, SIGNALLED_S + 10.0)
