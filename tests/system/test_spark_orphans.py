"""Ctrl-C of an audit on Spark leaves no process behind, whenever it comes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minibroker.protocol.ids import TopicPartition
from tests.audit.planted_cluster import PlantedCluster, encode, some_batches

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.system, pytest.mark.spark, pytest.mark.timeout(120)]


def alive_in_session(leader: int) -> list[str]:
    """Command lines of the processes of a session, zombies not counted."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if entry.name.isdigit() and int(fields[3]) == leader and fields[0] != "Z":
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except (OSError, IndexError):
            continue
    return found


@pytest.mark.parametrize("after_s", [0.0, 0.5, 2.0, 4.0])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_audit_ends_its_jvm(tmp_path: Path, after_s: float, number: signal.Signals) -> None:
    PlantedCluster(tmp_path).write(TopicPartition("lines", 0), encode(some_batches()))
    command = [sys.executable, "-m", "minibroker", "audit", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, start_new_session=True
    )
    deadline = time.monotonic() + 30
    while not any("java" in line or "spark-submit" in line for line in alive_in_session(process.pid)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    time.sleep(after_s)
    process.send_signal(number)
    _, errors = process.communicate(timeout=40)
    if after_s == 0.0 and number is signal.SIGINT:
        assert process.returncode == 130
        assert errors.strip() == b"interrupted: the audit has no result"
    deadline = time.monotonic() + 15  # after SIGTERM the JVM itself must notice
    while left := alive_in_session(process.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
