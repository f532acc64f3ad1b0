"""Operators that cosmic-ray lacks: a statement that only calls something, or only changes state, becomes `pass`.

Forgotten calls (no wake-up, no sync, no check) and forgotten changes (a flag, an entry, a deadline that stays) are the
bugs of a program that acts through its calls and remembers in its objects.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from cosmic_ray.ast import get_ast


class _RemoveStatement(ABC):
    """Has the methods of cosmic-ray's `Operator`, which has no types to inherit."""

    @abstractmethod
    def is_removed(self, node: Any) -> bool:
        """Whether this statement, a node of type `simple_stmt`, is one of the kind."""

    def mutation_positions(self, node: Any) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        if node.type == "simple_stmt" and self.is_removed(node):
            yield node.children[0].start_pos, node.children[0].end_pos

    def mutate(self, node: Any, index: int) -> Any:
        assert index == 0
        node.children[0] = get_ast(node.children[0].get_first_leaf().prefix + "pass")
        return node


class RemoveCall(_RemoveStatement):
    """`f(x)` or `await f(x)` as a statement of its own."""

    def is_removed(self, node: Any) -> bool:
        if node.children[0].type not in ("atom_expr", "power"):
            return False
        last = node.children[0].children[-1]
        return bool(last.type == "trailer" and last.children[0].value == "(")


class RemoveStateChange(_RemoveStatement):
    """`a.b = x`, `a[b] = x`, `a.b += x` or `del a[b]`.

    Not in `__init__`: without its attributes an object is of no use, which every test notices.
    """

    def is_removed(self, node: Any) -> bool:
        statement, function = node.children[0], node.parent.parent
        if function is not None and function.type == "funcdef" and function.name.value == "__init__":
            return False
        if statement.type == "del_stmt":
            return True
        return bool(
            statement.type == "expr_stmt"
            and statement.children[0].type in ("atom_expr", "power")
            and statement.children[1].type != "annassign"
        )
