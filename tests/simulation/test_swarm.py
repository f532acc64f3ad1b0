"""The unmodified cluster under random faults: nothing acknowledged is lost, nothing read changes, everything heals.

`SEEDS=first-last` runs others than the few that are run always. A failure prints its seed, what was found and what was
done to the cluster; `python -m minibroker.simulation.swarm.run SEED SEED -v` replays it.
"""

import os
from pathlib import Path

import pytest

from minibroker.simulation.swarm.run import run_seed

SEEDS_FILE = Path(__file__).parents[2] / "simulation" / "seeds.txt"
ALWAYS = range(1, 13)


def past_failures() -> list[int]:
    """Seeds that found a bug once."""
    lines = [line.partition("#")[0].strip() for line in SEEDS_FILE.read_text().splitlines()]
    return [int(line) for line in lines if line]


def seeds() -> list[int]:
    """As the environment says, or a fixed set that takes seconds."""
    wanted = os.environ.get("SEEDS")
    if not wanted:
        return sorted({*ALWAYS, *past_failures()})
    first, _, last = wanted.partition("-")
    return list(range(int(first), int(last or first) + 1))


@pytest.mark.timeout(120)
@pytest.mark.invariant(
    *("I1", "I4", "I11", "I18", "I20", "I21", "I22", "I23", "I25", "I26", "I27", "I28", "I30", "I36", "I37", "I38")
)
@pytest.mark.parametrize("seed", seeds())
def test_cluster_keeps_its_promises_under_faults(seed: int) -> None:
    outcome = run_seed(seed)
    if outcome.findings:
        pytest.fail(outcome.report, pytrace=False)


def test_one_seed_is_one_run() -> None:
    assert run_seed(11).trace_hash == run_seed(11).trace_hash


def test_run_counts_only_with_enough_of_everything() -> None:
    outcome = run_seed(11)
    assert outcome.counts, outcome.missing
    outcome.elections = 1
    assert outcome.missing == ["elections: 1 of 2"]
