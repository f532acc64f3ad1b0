"""Reading a start from a broker's log."""

from datetime import datetime

import pytest

from minibroker.bench.case import CaseFailed
from minibroker.bench.cases.recovery import Recovery, rate, recovery

LOG = """\
2026-11-21 16:30:00,000 INFO minibroker.broker: loaded 1 of 1 logs; t-0: scanned 77 bytes, cut 0
2026-11-21 16:33:01,000 INFO minibroker.broker: loaded 1 of 2 logs; t-0: scanned 1000 bytes, cut 0
2026-11-21 16:33:01,500 INFO minibroker.broker: loaded 2 of 2 logs; t-1: scanned 2000 bytes, cut 10
2026-11-21 16:33:02,000 INFO minibroker.broker: broker 1 registered under broker epoch 7 at PLAINTEXT://127.0.0.1:9092
"""
BEGAN_S = datetime(2026, 11, 21, 16, 33, 0).timestamp()


def test_a_start_ends_with_its_last_loaded_log_and_earlier_starts_are_ignored() -> None:
    assert recovery(LOG, BEGAN_S) == Recovery(seconds=1.5, bytes=3000)


def test_a_start_after_a_clean_stop_gives_no_recovery() -> None:
    assert recovery(LOG, BEGAN_S + 10.0) is None


def test_other_costs_of_a_start_are_subtracted() -> None:
    assert rate(Recovery(0.5, 1_000_000), Recovery(1.5, 201_000_000)) == pytest.approx(200.0)


def test_two_equal_starts_give_no_rate() -> None:
    with pytest.raises(CaseFailed, match="that gives no rate"):
        rate(Recovery(0.5, 1000), Recovery(0.5, 1000))
