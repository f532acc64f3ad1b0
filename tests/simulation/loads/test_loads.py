"""Loads are drawn from a stream of their own, every one of them, and one seed is one run."""

import random

import pytest

from minibroker.simulation.swarm.loads import load_options
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


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_share_of_the_seeds_has_loads_and_an_option_decides_for_all(
    monkeypatch: pytest.MonkeyPatch, share: float
) -> None:
    monkeypatch.setattr(load_options, "LOADS_SHARE", share)
    for wanted, least, most in ((None, 160 * share, 240 * share), (True, 200, 200), (False, 0, 0)):
        drawn = [draw_load_options(random.Random(seed), wanted) for seed in range(200)]
        assert least <= sum(each is not None for each in drawn) <= most


def test_the_option_changes_nothing_else_in_the_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_options, "LOADS_SHARE", 0.5)
    drawn = next(each for seed in range(9) if (each := draw_load_options(random.Random(seed), None)) is not None)
    assert drawn in [draw_load_options(random.Random(seed), True) for seed in range(9)]
