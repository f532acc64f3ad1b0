"""docs/OPERATIONS.md states the promise that the fault schedule obeys, and covers every fault that it draws."""

import pytest

from minibroker.simulation.swarm.faults.disk_options import CLUSTER_SEQUENCES, DISK_FAULTS
from minibroker.simulation.swarm.promise import PROMISE, Circumstance, Guarantee, allows
from tests.docs.promise_table import PAGE, page_with_table


def test_page_shows_the_promise() -> None:
    assert PAGE.read_text(encoding="utf-8") == page_with_table(), "run python -m tests.docs.promise_table"


@pytest.mark.parametrize("kind", [*DISK_FAULTS, *CLUSTER_SEQUENCES])
def test_promise_covers_every_fault_that_is_drawn(kind: str) -> None:
    assert any(kind in row.kinds and row.guarantee is not Guarantee.MAY_LOSE for row in PROMISE)


def test_power_cut_of_all_is_drawn_only_with_flushing() -> None:
    assert allows("all_without_power", Circumstance.FLUSHED)
    assert not allows("all_without_power", Circumstance.UNFLUSHED)


def test_fault_without_a_row_is_refused() -> None:
    with pytest.raises(AssertionError, match="says nothing of meteorite"):
        allows("meteorite", Circumstance.ANY)
