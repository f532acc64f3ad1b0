"""Each fault and each sequence that options draw exists."""

from types import SimpleNamespace
from typing import Any, cast

from minibroker.simulation.swarm.faults.fault_sequences import fault_sequences
from minibroker.simulation.swarm.faults.faults import BENIGN, Faults
from minibroker.simulation.swarm.options import FAULTS, SEQUENCES


def test_each_sequence_that_options_draw_is_in_the_table() -> None:
    table = fault_sequences(cast(Any, SimpleNamespace(random=None)))
    assert tuple(table) == SEQUENCES


def test_each_fault_that_options_draw_is_a_method() -> None:
    assert [each for each in FAULTS if not callable(getattr(Faults, each, None))] == []
    assert set(FAULTS) >= BENIGN
