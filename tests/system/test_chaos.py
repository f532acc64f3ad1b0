"""Chaos on real processes and on containers: a short run is cleared, a lost promise is convicted, Ctrl-C reports."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.chaos.plan.disk_lies import DISK_LIE_BY_NAME
from tests.system.compose_cluster import why_no_engine, why_no_images

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]
COMMAND = [sys.executable, "-m", "minibroker", "chaos", "run", "--json"]
RUN_SECONDS = 350


def finished(*words: str, out: Path) -> tuple[int, dict[str, object]]:
    done = subprocess.run([*COMMAND, *words, "--out", str(out)], capture_output=True, timeout=RUN_SECONDS, check=False)
    assert done.stdout, done.stderr.decode()
    return done.returncode, json.loads(done.stdout)


def test_a_short_run_on_processes_is_cleared(tmp_path: Path) -> None:
    code, said = finished(
        "--seed", "1", "--duration", "10", "--rate", "50", "--faults", "kill:leader", out=tmp_path / "run"
    )
    assert (code, said["outcome"]) == (0, "cleared"), said
    assert (tmp_path / "run" / "report.html").exists()


def test_a_program_of_the_user_is_the_load(tmp_path: Path) -> None:
    words = ["--seed", "1", "--duration", "8", "--rate", "50", "--faults", "kill:leader"]
    words += ["--client", f"{sys.executable} docs/examples/chaos_client.py", "--idempotent", "writer-0,writer-1"]
    code, said = finished(*words, out=tmp_path / "run")
    assert (code, said["outcome"]) == (0, "cleared"), said
    processes = {json.loads(line)["process"] for line in (tmp_path / "run" / "history.jsonl").open()}
    assert {"writer-0", "reader-0", "final-reader"} <= processes


def test_a_program_that_ends_early_tests_nothing(tmp_path: Path) -> None:
    code, said = finished("--duration", "300", "--client", "sh -c 'exit 3'", out=tmp_path / "run")
    assert (code, said["outcome"]) == (1, "nothing was tested"), said
    assert "ended with exit code 3 before the run" in str(said["reasons"]), said


def test_ctrl_c_ends_the_faults_and_reports(tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["--duration", "600", "--rate", "50", "--faults", "kill:follower", "--out", str(out)]
    running = subprocess.Popen([*COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not (out / "history.jsonl").exists() or (out / "history.jsonl").stat().st_size < 20_000:
        assert running.poll() is None, running.stderr and running.stderr.read()
        try:
            running.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=RUN_SECONDS)
    assert running.returncode == 130, stderr
    assert json.loads(stdout)["interrupted"], stderr
    assert json.loads((out / "report.json").read_bytes())["was_interrupted"]


@pytest.mark.docker
@pytest.mark.skipif(why_no_engine() is not None, reason=str(why_no_engine()))
def test_a_short_run_on_containers_is_cleared(tmp_path: Path) -> None:
    missing = why_no_images()
    if missing is not None:
        pytest.skip(missing)
    words = ("--backend", "compose", "--seed", "1", "--duration", "15", "--rate", "50", "--faults", "kill:leader")
    code, said = finished(*words, out=tmp_path / "run")
    assert (code, said["outcome"]) == (0, "cleared"), said


@pytest.mark.docker
@pytest.mark.skipif(why_no_engine() is not None, reason=str(why_no_engine()))
def test_a_lie_on_the_disks_of_containers_convicts(tmp_path: Path) -> None:
    missing = why_no_images()
    if missing is not None:
        pytest.skip(missing)
    words = ("--backend", "compose", "--seed", "1", "--duration", "10", "--rate", "50", "--faults", "kill:leader")
    code, said = finished(*words, "--lie", "rewrite", "--lie-in", "disks", out=tmp_path / "run")
    assert (code, said["outcome"]) == (10, "convicted"), said
    reasons = said["reasons"]
    assert isinstance(reasons, list)
    kinds = {str(reason).split()[1] for reason in reasons}
    lie = DISK_LIE_BY_NAME["rewrite"]
    assert lie.must <= kinds <= lie.must | lie.may
    assert (tmp_path / "run" / "disks" / "brokers" / "broker-1.log").exists()
