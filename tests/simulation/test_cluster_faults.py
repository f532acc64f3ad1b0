"""The unmodified cluster survives each fault of the doors, heals by itself, and keeps every acknowledged record."""

import pytest

from tests.simulation.faulty_cluster import FAULTS, FaultyRun


def check(run: FaultyRun) -> None:
    run.run()
    assert len(run.acked) > 30, run.history
    assert {position: run.read.get(position) for position in run.acked} == run.acked, run.history


@pytest.mark.invariant("I21", "I23", "I36", "I38")
@pytest.mark.parametrize("fault", FAULTS)
def test_one_kind_of_fault_again_and_again(fault: str) -> None:
    check(FaultyRun(seed=1, faults=[fault], count=3))


@pytest.mark.invariant("I21", "I23", "I36", "I38")
@pytest.mark.parametrize("seed", range(3))
def test_all_kinds_of_faults_mixed(seed: int) -> None:
    check(FaultyRun(seed, FAULTS, count=5))
