"""A broker's log file: its size, and that it contains everything that the process prints."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import faulthandler, logging, os, sys
from minibroker.runtime.adapters.log_file import RotatedLog
logging.basicConfig(level="INFO", handlers=[RotatedLog(sys.argv[1], file_bytes_max=2_000, files_before=2)])
for number in range(int(sys.argv[2])):
    logging.info("line %d %s", number, "x" * 100)
print("printed")
faulthandler.enable()
sys.stdout.flush()
os.abort()
"""


def write_log(path: Path, lines: int) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", PROGRAM, str(path), str(lines)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_log_is_rotated_and_the_oldest_lines_go(tmp_path: Path) -> None:
    write_log(tmp_path / "b.log", 100)
    assert sorted(os.listdir(tmp_path)) == ["b.log", "b.log.1", "b.log.2"]
    assert all(file.stat().st_size <= 2_000 for file in tmp_path.glob("b.log.*"))
    newest = (tmp_path / "b.log").read_text()
    assert "line 99" in newest
    assert "line 0 " not in "".join(file.read_text() for file in tmp_path.iterdir())


def test_what_a_crash_prints_is_in_the_file_being_written(tmp_path: Path) -> None:
    assert write_log(tmp_path / "b.log", 40).stderr == ""
    newest = (tmp_path / "b.log").read_text()
    assert newest.index("line 39") < newest.index("printed") < newest.index("Fatal Python error: Aborted")


def test_a_restart_appends(tmp_path: Path) -> None:
    for _ in range(2):
        write_log(tmp_path / "b.log", 3)
    assert (tmp_path / "b.log").read_text().count("line 2 ") == 2


def test_a_log_that_cannot_be_renamed_stays_small_and_keeps_the_newest_lines(tmp_path: Path) -> None:
    """As where the directory belongs to root, or an entry is in the way. Otherwise each later line would be lost, and a
    traceback of its own would let the file grow without end."""
    (tmp_path / "b.log.1" / "in the way").mkdir(parents=True)
    (tmp_path / "b.log.2").mkdir()
    write_log(tmp_path / "b.log", 100)
    newest = (tmp_path / "b.log").read_text()
    assert "line 99 " in newest
    assert newest.index("line 99 ") < newest.index("printed") < newest.index("Fatal Python error: Aborted")
    assert newest.count("Traceback") == 0
    assert newest.index("printed") <= 2_000
