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


def test_half_of_the_seeds_draw_loads_and_every_load_has_a_class() -> None:
    drawn = [draw_load_options(random.Random(seed), None) for seed in range(200)]
    assert 70 < sum(each is not None for each in drawn) < 130
    assert {name for each in drawn if each is not None for name in each.clients} == set(LOADS) == set(CLASSES)


def test_choice_of_the_caller_overrides_the_seed_and_changes_nothing_else() -> None:
    wanted = draw_load_options(random.Random(1), True)
    assert wanted is not None
    assert draw_load_options(random.Random(1), False) is None
    assert draw_load_options(random.Random(1), None) in (None, wanted)
