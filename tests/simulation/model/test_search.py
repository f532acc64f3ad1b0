"""The search itself, on the unchanged code: small worlds completely, the larger ones in part."""

import pytest

from minibroker.simulation.model.bounds import ALL_BOUNDS, ModelBounds, find_bounds
from minibroker.simulation.model.moves import enabled, perform
from minibroker.simulation.model.replica import freeze
from minibroker.simulation.model.search import SearchCoverage, search
from minibroker.simulation.model.world import ModelWorld

SMALL = [each for each in ALL_BOUNDS if each.is_small]
LARGER = [each for each in ALL_BOUNDS if not each.is_small]
STEPS_OF_LARGER = 6


def _go_on(_: SearchCoverage) -> bool:
    return True


@pytest.mark.invariant("I1", "I2", "I3", "I4", "I5", "I6", "I7", "I8", "I16", "I17", "I18", "I19")
@pytest.mark.parametrize("bounds", SMALL, ids=lambda each: each.name)
def test_no_state_of_a_small_world_breaks_an_invariant(bounds: ModelBounds) -> None:
    coverage = search(bounds, _go_on)
    assert coverage.broken is None, f"{coverage.broken}: {coverage.path}"
    assert coverage.is_complete


@pytest.mark.parametrize("bounds", LARGER, ids=lambda each: each.name)
def test_the_first_steps_of_a_larger_world_break_no_invariant(bounds: ModelBounds) -> None:
    coverage = search(bounds, _go_on, depth_max=STEPS_OF_LARGER)
    assert coverage.broken is None, f"{coverage.broken}: {coverage.path}"
    assert coverage.depth == STEPS_OF_LARGER


def test_a_search_can_be_ended_between_two_states() -> None:
    coverage = search(find_bounds("copying"), lambda _: False)
    assert not coverage.is_complete


def test_the_same_steps_lead_to_the_same_state() -> None:
    """Two worlds number their values in different orders; the effect of a step must not depend on it."""
    bounds = find_bounds("copying")
    one, other = ModelWorld(bounds), ModelWorld(bounds)
    for move in list(enabled(other, other.start())):
        perform(other, other.start(), move)
    there, here = one.start(), other.start()
    for move in (("produce", 1), ("fetch", 2), ("fetch", 2)):
        there, here = perform(one, there, move), perform(other, here, move)
    assert freeze([one.replica(there, each) for each in (1, 2)]) == freeze(
        [other.replica(here, each) for each in (1, 2)]
    )
    assert there.committed == here.committed == ((0, "a"),)
