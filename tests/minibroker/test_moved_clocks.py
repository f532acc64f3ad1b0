"""Wall clocks of processes that are moved, and the true times behind what such a process wrote."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from minibroker.harness.movable_clock import write_offset
from minibroker.harness.moved_clocks import SLACK_MS, MovedClocks

HOUR_S = 3600.0
SHOWS = """
import sys, time
from pathlib import Path
from minibroker.harness.movable_clock import follow, write_offset

file, true, monotonic = Path(sys.argv[1]), time.time, time.monotonic()
follow(file)
for seconds in (None, 3600.0, -3600.0, 0.0):
    if seconds is not None:
        write_offset(file, seconds)
    print(round(time.time() - true()), round(time.time_ns() / 1e9 - true()))
assert time.monotonic() - monotonic < 60
"""


def test_the_clock_follows_the_file_at_once(tmp_path: Path) -> None:
    write_offset(tmp_path / "clock", -60.0)
    words = [sys.executable, "-c", SHOWS, str(tmp_path / "clock")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split("\n")[:4] == ["-60 -60", "3600 3600", "-3600 -3600", "0 0"]


def test_the_command_runs_as_without_it(tmp_path: Path) -> None:
    write_offset(tmp_path / "clock", 0.0)
    words = ["-m", *MovedClocks(tmp_path, [1]).program(1)[:1], str(tmp_path / "clock"), "--version"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("minibroker, version")


def test_times_that_a_broker_wrote_become_true_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = 1_700_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: now_ms * 1_000_000)
    clocks = MovedClocks(tmp_path / "clocks", [1, 2])
    clocks.set_right()
    began_ms = now_ms
    for seconds in (HOUR_S, 0.0, -HOUR_S):
        now_ms += 10_000
        clocks.move(1, seconds)
    now_ms += 10_000
    hour_ms = 3_600_000
    shown = [began_ms + 5_000, began_ms + 15_000 + hour_ms, began_ms + 25_000, began_ms + 35_000 - hour_ms]
    assert [clocks.true_ms(1, each) - began_ms for each in shown] == [5_000, 15_000, 25_000, 35_000]
    assert clocks.true_ms(1, began_ms + 10_000 + SLACK_MS) == began_ms + 10_000 + SLACK_MS  # begun before the move
    assert clocks.true_ms(2, began_ms + 15_000) == began_ms + 15_000
    clocks.close()
    assert not (tmp_path / "clocks").exists()


def test_brokers_find_the_file_of_a_relative_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their working directory is another one: `chaos run --out here` once ended before it began."""
    monkeypatch.chdir(tmp_path)
    assert MovedClocks(Path("clocks"), [1]).program(1)[1] == str(tmp_path / "clocks" / "broker-1")
