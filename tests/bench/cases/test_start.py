"""Timing a command."""

import sys

import pytest

from minibroker.bench.case import CaseFailed
from minibroker.bench.cases.start import time_command


def test_cpu_time_of_a_command_excludes_the_caller() -> None:
    wall_ms, cpu_ms = time_command([sys.executable, "-c", "sum(range(100_000))"])
    assert 0 < cpu_ms < 10_000
    assert wall_ms > 0


def test_a_command_that_fails_is_not_timed() -> None:
    with pytest.raises(CaseFailed, match="ended with 3"):
        time_command([sys.executable, "-c", "raise SystemExit(3)"])
