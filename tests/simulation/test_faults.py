"""The unmodified cluster under random faults: nothing acknowledged is lost, nothing read changes, everything heals.

`SEEDS=first-last` runs others than the few that are run always. A failure prints its seed, what was found and what was
done to the cluster; `python -m minibroker.simulation.swarm.run SEED SEED -v` replays it.
"""

import os

import pytest

from minibroker.simulation.swarm.run import run_seed

ALWAYS = (1, 6, 102, 111, 208)
FOUND_BUGS = {
    105: "a disk that healed before its failure was heard: replicas without a role, or ineligible, for ever",
    108: "the same with every broker's disk",
    121: "a fetch session replaced by a new one left its parked fetch unanswered: the follower stood still",
    134: "a disk error met by retention ended the broker",
    338: "a disk that failed again under another controller was taken for one that the controller knew of",
    138: "a full disk between storing the cut history and the cut: state and log disagreed",
}


def seeds() -> list[int]:
    """As the environment says, or a fixed set that takes seconds."""
    wanted = os.environ.get("SEEDS")
    if not wanted:
        return sorted({*ALWAYS, *FOUND_BUGS})
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
    assert run_seed(111).trace_hash == run_seed(111).trace_hash


def test_faults_break_something() -> None:
    """A swarm that never causes an election or a changed ISR tests nothing."""
    outcome = run_seed(102)
    assert outcome.elections
    assert outcome.isr_changes
    assert outcome.history.acked
