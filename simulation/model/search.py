"""Breadth-first search over a small world: every state that can be reached within the budget, each visited once.

Owns: the order of the search, the set of visited states, and the shortest path to a state that breaks an invariant.
Leaves to others: what a step is (`moves`), and time: the watcher is called between states and may end the search.
"""

from array import array
from collections.abc import Callable

from msgspec import Struct

from minibroker.simulation.model.bounds import ModelBounds
from minibroker.simulation.model.moves import Move, enabled, perform
from minibroker.simulation.model.world import InvariantBroken, ModelState, ModelWorld

LOOKS_EVERY = 2_000
"""States between two calls of the watcher."""


class SearchCoverage(Struct, kw_only=True):
    """What a search has covered."""

    bounds: str
    states: int = 1
    steps: int = 0
    """Of all states together, including those that led to known states."""
    depth: int = 0
    """The last layer that was searched completely."""
    is_complete: bool = False
    """Every state within the bounds was visited."""
    replicas: int = 0
    """Different states of one replica."""
    broken: str | None = None
    """The broken invariant, and how it was broken; None for a clean search."""
    path: tuple[Move, ...] = ()
    """The shortest path to it."""


Watcher = Callable[[SearchCoverage], bool]
"""Called at intervals; True continues the search."""


def search(bounds: ModelBounds, watch: Watcher, depth_max: int | None = None) -> SearchCoverage:
    """Search layer by layer until a state breaks an invariant, no new state appears, the depth is reached, or the
    watcher ends it."""
    world = ModelWorld(bounds)
    coverage = SearchCoverage(bounds=bounds.name)
    moves: dict[Move, int] = {}
    parents, taken = array("q", [-1]), array("q", [-1])
    try:
        first = world.settle(world.start())
        for move in bounds.prelude:
            coverage.path = (*coverage.path, move)
            first = perform(world, first, move)
    except InvariantBroken as error:
        coverage.broken = str(error)
        return coverage
    coverage.path = ()
    seen = {first}
    layer = [(0, first)]
    limit = bounds.depth if depth_max is None else min(depth_max, bounds.depth)
    while layer and coverage.depth < limit:
        following: list[tuple[int, ModelState]] = []
        for done, (number, state) in enumerate(layer):
            for move in enabled(world, state):
                coverage.steps += 1
                try:
                    after = perform(world, state, move)
                except InvariantBroken as error:
                    coverage.broken = str(error)
                    coverage.path = (*bounds.prelude, *_path(parents, taken, list(moves), number), move)
                    return coverage
                if after in seen:
                    continue
                seen.add(after)
                parents.append(number)
                taken.append(moves.setdefault(move, len(moves)))
                following.append((len(parents) - 1, after))
            if done % LOOKS_EVERY == 0:
                coverage.states, coverage.replicas = len(seen), len(world.replicas.values) - 1
                if not watch(coverage):
                    return coverage
        layer = following
        coverage.depth += 1
    coverage.states, coverage.replicas = len(seen), len(world.replicas.values) - 1
    coverage.is_complete = not layer
    return coverage


def _path(parents: "array[int]", taken: "array[int]", moves: list[Move], number: int) -> tuple[Move, ...]:
    path: list[Move] = []
    while parents[number] >= 0:
        path.append(moves[taken[number]])
        number = parents[number]
    return tuple(reversed(path))
