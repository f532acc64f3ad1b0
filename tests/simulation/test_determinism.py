"""One seed is one run: in this process, after other work, and in other processes with other string hashes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.seeded_run import trace_of

ROOT = Path(__file__).parents[2]


def hash_in_another_process(seed: int, string_hash_seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": string_hash_seed, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation.seeded_run", str(seed)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return run.stdout.strip()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_same_seed_same_trace_in_every_process(seed: int) -> None:
    assert trace_of(seed).trace_hash == hash_in_another_process(seed, "0") == hash_in_another_process(seed, "4711")


def test_same_seed_same_trace_after_other_work() -> None:
    first = trace_of(7).trace_hash
    for seed in range(100, 103):
        trace_of(seed)
    assert trace_of(7).trace_hash == first


def test_other_seeds_are_other_runs() -> None:
    assert len({trace_of(seed).trace_hash for seed in range(5)}) == 5


def test_a_trace_holds_every_kind_of_event() -> None:
    world = trace_of(1)
    kinds = {line.split()[1] for line in world.trace.lines}
    assert {"net", "append", "sync", "zk-write", "zk-connect", "start", "end"} <= kinds
    assert world.trace.events > 1_000
