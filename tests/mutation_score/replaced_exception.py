"""An operator that cosmic-ray has for plain names only: one of the exceptions that a handler takes becomes another.

cosmic-ray ends with an error of its own at the first dotted name of a tuple, and leaves no program of a dotted name
alone.
"""

from collections.abc import Iterator
from typing import Any

from cosmic_ray.ast import get_ast
from cosmic_ray.exceptions import CosmicRayTestingException

NAMES = ("name", "atom_expr", "power")
"""The last two are `asyncio.CancelledError`, as parso versions call it."""


class ExceptionReplacer:
    """`except (OSError, codec.Refused):` no longer takes one of them, and fails where it is asked.

    Has the methods of cosmic-ray's `Operator`, which has no types to inherit.
    """

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if node.type == "except_clause":
            yield from ((name.start_pos, name.end_pos) for name in _names(node.children[1]))

    def mutate(self, node: Any, index: int) -> Any:
        name = _names(node.children[1])[index]
        siblings = name.parent.children
        text = name.get_first_leaf().prefix + CosmicRayTestingException.__name__
        siblings[siblings.index(name)] = get_ast(text)
        return node


def _names(caught: Any) -> list[Any]:
    """What `except` takes: a name, or each name of a tuple."""
    if caught.type in NAMES:
        return [caught]
    return [each for child in caught.children if child.type != "operator" for each in _names(child)]
