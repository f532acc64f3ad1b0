"""A check whose output has no reader any more (`| head`, `| grep -q`) still ends with its verdict."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.command_line import EXIT_FINE, EXIT_FOUND_WRONG
from minibroker.protocol.ids import TopicPartition
from minibroker.unread_output import read_or_not
from tests.audit import damage
from tests.audit.damage import BROKER, ENCODED
from tests.audit.planted_cluster import PlantedCluster

LINES = TopicPartition("lines", 0)


def exit_code_without_reader(*arguments: object, of_stderr: bool = False) -> int:
    """`of_stderr`: too (`2>&1 | head`)."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "minibroker", *map(str, arguments)]
        stderr = writer if of_stderr else subprocess.PIPE
        run = subprocess.run(command, stdout=writer, stderr=stderr, timeout=60, check=False)
    finally:
        os.close(writer)
    assert b"Traceback" not in (run.stderr or b"")
    return run.returncode


CHECKS = {
    "audit": ("audit", "--engine", "local"),
    "audit --json": ("audit", "--engine", "local", "--json"),
    "log verify": ("log", "verify"),
    "log verify --json": ("log", "verify", "--json"),
    "log repair": ("log", "repair"),
}


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_without_a_reader_keeps_its_verdict(tmp_path: Path, check: str) -> None:
    """`log verify` said 0 of a damaged log, and `audit` 1 of any log."""
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, ENCODED)
    checked = cluster.replica(BROKER, LINES).directory.parent if check == "log repair" else cluster.root
    assert exit_code_without_reader(*CHECKS[check], checked) == EXIT_FINE
    damage.flip_bit(cluster.replica(BROKER, LINES))
    assert exit_code_without_reader(*CHECKS[check], checked) == EXIT_FOUND_WRONG


def test_a_check_without_a_reader_of_its_remarks_keeps_its_verdict(tmp_path: Path) -> None:
    """`audit --output DIR 2>&1 | head` said 0 of a damaged log: the remark that names the report met a closed pipe."""
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, ENCODED)
    damage.flip_bit(cluster.replica(BROKER, LINES))
    options = ("--engine", "local", "--output", tmp_path / "report")
    assert exit_code_without_reader("audit", cluster.root, *options, of_stderr=True) == EXIT_FOUND_WRONG


def test_a_chaos_run_without_a_reader_is_convicted(tmp_path: Path) -> None:
    """`chaos run | head` said 0 of a run that it convicted."""
    options = ("--backend", "simulated", "--duration", 8, "--seed", 3, "--lie", "drop", "--out", tmp_path / "run")
    assert exit_code_without_reader("chaos", "run", *options) == EXIT_FOUND_WRONG


def test_what_is_read_is_whole(capfd: pytest.CaptureFixture[str]) -> None:
    with read_or_not():
        print("a", flush=True)
        sys.stdout.buffer.write(b"b\n")
    print("c", flush=True)
    assert capfd.readouterr().out == "a\nb\nc\n"


def test_another_error_of_the_output_is_told() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        with pytest.raises(OSError, match="No space left"), read_or_not():
            print("a")
