"""The unmodified broker, controller and client survive a leader's death on simulated doors; one seed is one run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.cluster_run import RECORDS, live

ROOT = Path(__file__).parents[2]


@pytest.mark.invariant("I21", "I23", "I28", "I36")
def test_a_cluster_survives_the_death_of_a_leader() -> None:
    report = live(seed=1)
    assert len(report.acked) == RECORDS
    assert report.read == report.acked
    assert len(report.epochs) > 1
    assert report.isr_at_end == (1, 2, 3)


def test_one_seed_is_one_run_in_every_process() -> None:
    def hash_with(string_hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": string_hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "tests.simulation.cluster_run", "2"]
        run = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=True
        )
        return run.stdout.strip()

    assert hash_with("0") == hash_with("4711") == live(seed=2).trace_hash
