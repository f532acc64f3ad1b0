"""Reading a start from a broker's log."""

from datetime import UTC, datetime

import pytest

from minibroker.bench.case import CaseFailed
from minibroker.bench.cases.recovery import Recovery, rate, recovery

LOG = """\
{"time": "2026-11-21T16:30:00Z", "event": "log_scanned", "scanned_bytes": 77}
{"time": "2026-11-21T16:33:01Z", "event": "log_scanned", "scanned_bytes": 1000}
{"time": "2026-11-21T16:33:01.500Z", "event": "log_scanned", "scanned_bytes": 2000}
{"time": "2026-11-21T16:33:02Z", "event": "broker_registered", "broker": 1}
"""
BEGAN_S = datetime(2026, 11, 21, 16, 33, 0, tzinfo=UTC).timestamp()


def test_a_start_ends_with_its_last_loaded_log_and_earlier_starts_are_ignored() -> None:
    assert recovery(LOG, BEGAN_S) == Recovery(seconds=1.5, bytes=3000)


def test_a_start_after_a_clean_stop_gives_no_recovery() -> None:
    assert recovery(LOG, BEGAN_S + 10.0) is None


def test_other_costs_of_a_start_are_subtracted() -> None:
    assert rate(Recovery(0.5, 1_000_000), Recovery(1.5, 201_000_000)) == pytest.approx(200.0)


def test_two_equal_starts_give_no_rate() -> None:
    with pytest.raises(CaseFailed, match="that gives no rate"):
        rate(Recovery(0.5, 1000), Recovery(0.5, 1000))
