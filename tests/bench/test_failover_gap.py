"""The longest gap between acknowledgements, and the steps in the brokers' logs."""

from datetime import datetime

import pytest

from minibroker.bench.broker_log import parse_log
from minibroker.bench.failover_gap import longest_gap, step_times

MS = 1_000_000
LOG = """\
2026-11-21 16:33:33,400 INFO minibroker.partition: t-0: leader in leader epoch 0 (leader 3, log end 0, high watermark 0)
2026-11-21 16:33:33,509 WARNING minibroker.controller: the controller, broker 3, is dead: its connection was lost, 127.0.0.1:16952 refuses, broker 1 confirms (9 ms)
Traceback (most recent call last):
2026-11-21 16:33:33,519 INFO minibroker.controller: took over as controller of epoch 3: 2 brokers [1, 2], 1 topics
2026-11-21 16:33:33,522 INFO minibroker.controller: t-0: leader 3 -> 1, epoch 0 -> 1, ISR [3, 1, 2] -> [1, 2]: failover
2026-11-21 16:33:33,530 INFO minibroker.partition: t-0: leader in leader epoch 1 (leader 1, log end 306, high watermark 305)
2026-11-21 16:33:41,599 WARNING minibroker.controller: broker 1 is gone
"""  # noqa: E501
SIGNALLED_S = datetime(2026, 11, 21, 16, 33, 33, 500_000).timestamp()


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
