"""Each fault and each sequence that options draw exists."""

from types import SimpleNamespace
from typing import Any, cast

from minibroker.simulation.swarm.faults.fault_sequences import fault_sequences
from minibroker.simulation.swarm.faults.faults import BENIGN, Faults
from minibroker.simulation.swarm.options import FAULTS, SEQUENCES


def test_each_sequence_that_options_draw_is_in_the_table() -> None:
    table = fault_sequences(cast(Any, SimpleNamespace(random=None)))
    assert tuple(table) == SEQUENCES


def test_options_draw_each_method_that_is_a_fault() -> None:
    assert {name for name in vars(Faults) if not name.startswith("_")} - {"restart"} == set(FAULTS)
    assert set(FAULTS) >= BENIGN
