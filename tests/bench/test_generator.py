"""Load generators keep to a schedule, measure latencies, and write complete reports."""

import array
import fcntl
import json
import os
import subprocess
import sys
import termios
from pathlib import Path
from typing import IO

import minibroker
from minibroker.bench.load.generator import latencies, schedule

ROOT = Path(minibroker.__file__).resolve().parent.parent
PIPE_BYTES = 65_536
REPORTS_UNDER_SIGNALS = """
import os, signal
from minibroker.bench.load.generator import report
signal.signal(signal.SIGALRM, lambda number, frame: os.write(2, b"interrupted\\n"))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
report({"acknowledged_ns": [1_234_567_890_123] * 20_000})
signal.setitimer(signal.ITIMER_REAL, 0.0)
"""


def test_a_slow_schedule_is_even() -> None:
    assert schedule(4, 1.0, 0) == [(0, 1), (250_000_000, 1), (500_000_000, 1), (750_000_000, 1)]


def test_a_fast_schedule_is_due_in_groups_of_a_millisecond() -> None:
    assert schedule(15_000, 1.0, 0) == [(millisecond * 1_000_000, 15) for millisecond in range(1_000)]


def test_an_unevenly_divided_schedule_loses_no_record() -> None:
    times = schedule(1_500, 2.0, 7)
    assert sum(records for _, records in times) == 3_000
    assert times[:3] == [(7, 2), (1_000_007, 1), (2_000_007, 2)]


def test_the_first_tenth_is_warm_up_and_left_out() -> None:
    waits_ns = [9_000_000] * 10 + [1_000_000] * 90
    found = latencies(waits_ns)
    assert (found["samples"], found["p50_ms"], found["max_ms"]) == (90, 1.0, 1.0)


def test_a_stall_shows_in_the_high_percentiles() -> None:
    waits_ns = [1_000_000] * 980 + [500_000_000] * 20
    found = latencies(waits_ns)
    assert (found["p50_ms"], found["p99_ms"]) == (1.0, 500.0)


def test_without_latencies_there_are_no_figures() -> None:
    assert latencies([]) == {}


def test_a_report_longer_than_a_pipe_is_written_completely_despite_signals() -> None:
    """With PYTHONUNBUFFERED, `print` stops at the first of them."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)}
    words = [sys.executable, "-c", REPORTS_UNDER_SIGNALS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as generator:
        assert generator.stdout is not None
        assert generator.stderr is not None
        while bytes_waiting(generator.stdout) < PIPE_BYTES:  # then it waits in the middle of its line
            assert generator.stderr.readline()
        assert generator.stderr.readline() == b"interrupted\n"
        assert generator.stderr.readline() == b"interrupted\n"
        output, _ = generator.communicate(timeout=30.0)
    assert len(json.loads(output)["report"]["acknowledged_ns"]) == 20_000


def bytes_waiting(pipe: IO[bytes]) -> int:
    count = array.array("i", [0])
    fcntl.ioctl(pipe.fileno(), termios.FIONREAD, count)
    return count[0]
