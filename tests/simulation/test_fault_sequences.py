"""The table of fault sequences has exactly the names that options draw."""

from types import SimpleNamespace
from typing import Any, cast

from minibroker.simulation.swarm.faults.fault_sequences import fault_sequences
from minibroker.simulation.swarm.options import SEQUENCES


def test_each_sequence_that_options_draw_is_in_the_table() -> None:
    table = fault_sequences(cast(Any, SimpleNamespace(random=None)))
    assert tuple(table) == SEQUENCES
