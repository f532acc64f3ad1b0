"""An operator that cosmic-ray lacks: a statement that only calls something becomes `pass`.

Forgotten calls (no wake-up, no sync, no check) are the bugs of a program that acts through its calls.
"""

from collections.abc import Iterator
from typing import Any

from cosmic_ray.ast import get_ast


class RemoveCall:
    """Has the methods of cosmic-ray's `Operator`, which has no types to inherit."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if _is_call(node):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        assert index == 0
        node.children[0] = get_ast(node.children[0].get_first_leaf().prefix + "pass")
        return node


def _is_call(node: Any) -> bool:
    """`f(x)` or `await f(x)` as a statement of its own."""
    if node.type != "simple_stmt" or node.children[0].type not in ("atom_expr", "power"):
        return False
    last = node.children[0].children[-1]
    return bool(last.type == "trailer" and last.children[0].value == "(")
