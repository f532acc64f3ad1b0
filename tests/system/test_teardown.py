"""Signals during a test, a demo or a scenario leave no process behind, and nothing in the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minibroker.local_cluster.processes import PROC, free_ports
from tests.system.compose_cluster import why_no_engine, why_no_images

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(100)]

TEST = """
import asyncio

pytest_plugins = ["minibroker.testing.plugin"]


async def test_waits(minibroker_cluster):
    print("the cluster runs", flush=True)
    await asyncio.sleep(60)
"""
PROGRAMS = {
    "pytest": ["-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--minibroker-backend", "processes", "test_it.py"],
    "demo": ["-m", "minibroker.demo"],
    "scenario": ["-m", "minibroker", "scenario", "run", "loss", "--live"],
}
INT, TERM = signal.SIGINT, signal.SIGTERM


def processes_below(directory: Path) -> list[str]:
    """Command lines that name a file of this directory."""
    found = []
    for process in PROC.glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{directory}/" in line:
            found.append(line)
    return found


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("signals", [(TERM,), (INT, INT, INT), (INT, TERM)], ids=["TERM", "INT-INT-INT", "INT-TERM"])
def test_no_process_outlives_an_interrupted_program(
    tmp_path: Path, program: str, signals: tuple[signal.Signals, ...]
) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "DEMO_ENGINE": "local"}
    with subprocess.Popen(
        [sys.executable, *PROGRAMS[program]],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        deadline = time.monotonic() + 60
        while len(processes_below(tmp_path)) < 4:  # ZooKeeper and three brokers
            assert time.monotonic() < deadline
            time.sleep(0.05)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
        output, _ = process.communicate(timeout=60)
    assert processes_below(tmp_path) == [], output.decode()


def in_engine(project: str) -> list[str]:
    """The containers, volumes, networks and images of this project."""
    label = ("-q", "--filter", f"label=com.docker.compose.project={project}")
    images = ["images", "-q", f"{project}-broker"]
    listings = (images, ["ps", "-a", *label], ["volume", "ls", *label], ["network", "ls", *label])
    return [line for words in listings for line in subprocess.check_output(["docker", *words], text=True).splitlines()]


@pytest.mark.docker
@pytest.mark.timeout(900)
@pytest.mark.skipif(bool(why_no_engine()), reason=why_no_engine() or "an engine runs")
@pytest.mark.parametrize("signals", [(TERM,), (INT, INT)], ids=["TERM", "INT-INT"])
def test_no_container_outlives_an_interrupted_test(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    if why_no_images():
        pytest.skip(str(why_no_images()))
    (tmp_path / "test_it.py").write_text(TEST)
    words = [*PROGRAMS["pytest"], "--minibroker-backend", "compose"]  # the last one counts
    with subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while "the cluster runs" not in (line := process.stdout.readline()):
            assert line, "it ended early"
        project = f"minibroker-harness-{process.pid}-1"
        assert len(in_engine(project)) >= 6  # four containers, a network, an image, volumes
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
        process.communicate(timeout=200)
    assert in_engine(project) == []


@pytest.mark.parametrize("signals", [(INT,), (TERM,), (INT, INT, TERM)], ids=["INT", "TERM", "INT-INT-TERM"])
def test_an_interrupted_start_of_a_cluster_is_undone(tmp_path: Path, signals: tuple[signal.Signals, ...]) -> None:
    data, (port, zookeeper_port) = tmp_path / "data", free_ports(2)
    command = [sys.executable, "-m", "minibroker", "cluster", "up", "--data-dir", str(data), "--brokers", "1"]
    command += ["--port", str(port), "--zookeeper-port", str(zookeeper_port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not processes_below(data):
            assert process.poll() is None
        for number in signals:
            process.send_signal(number)
            time.sleep(0.1)
        output, errors = process.communicate(timeout=60)
    said = errors.splitlines()[0]  # a warning may follow: ZooKeeper does not answer yet
    assert (output, said) == ("", f"interrupted: stopping the brokers and ZooKeeper in {data}")
    late = [-signals[-1]] if len(signals) > 1 else []  # the last signal may come when all is undone
    assert process.returncode in [130, *late]
    assert processes_below(data) == []
