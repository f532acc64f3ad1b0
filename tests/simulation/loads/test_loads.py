"""Loads are drawn from a stream of their own, every one of them, and one seed is one run."""

import random

from minibroker.simulation.swarm.loads.all_loads import CLASSES
from minibroker.simulation.swarm.loads.load_options import LOADS, draw_load_options
from minibroker.simulation.swarm.run import run_seed


def test_seed_with_loads_is_one_run_and_another_than_without() -> None:
    first, again = run_seed(3, loads=True), run_seed(3, loads=True)
    without = run_seed(3, loads=False)
    assert first.trace_hash == again.trace_hash != without.trace_hash
    assert first.findings == []


def test_every_load_is_drawn_and_has_a_class() -> None:
    drawn = [draw_load_options(random.Random(seed), True) for seed in range(100)]
    assert {name for each in drawn if each is not None for name in each.clients} == set(LOADS) == set(CLASSES)


def test_a_run_has_loads_only_if_they_are_wanted() -> None:
    assert draw_load_options(random.Random(1), False) is None
    assert draw_load_options(random.Random(1), None) is None
