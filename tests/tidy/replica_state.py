"""What may change a replica's state: the replication core, and nothing else.

Owns: how the rule recognises such a state without types. A state is called `state`, or is an attribute of that name. A
name that a function gives to it, or to a part of it, stands for it, too. Leaves to others: the controller, which has
another `state` and never sees a replica's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.tidy.hazards import MUTATORS
from tests.tidy.source import SourceFile

CORE = "broker/replication/"
SEES_STATES = ("broker", "simulation", "scenarios")
"""The folders that may import a replica's state (tests/tidy/imports.py)."""
CONTROLLER = "simulation/model/controller.py"
CHANGES = MUTATORS | {"assign", "truncate_to", "trim_before", "sort", "reverse"}
"""Methods that change a container, or the epoch history."""
PARTS = {"get", "keys", "values", "items"}
COPIES = {"list", "tuple", "sorted", "reversed", "enumerate"}
"""The elements of a copy are those of the original."""

WHY = (
    "changes a replica's state: only `step` does (broker/replication/); make an event of it, or build another state "
    "with msgspec.structs.replace"
)


def check_replica_state(file: SourceFile) -> list[str]:
    if file.folder not in SEES_STATES or file.path.startswith(CORE) or file.path == CONTROLLER:
        return []
    found: dict[int, str] = {}
    for scope in file.nodes:
        if isinstance(scope, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            names = _names_of_states(scope)
            found |= {node.lineno: ast.unparse(node) for node in _changed(scope) if _is_of_state(node, names)}
    return [f"{file.path}:{line}: {what}: {WHY}" for line, what in sorted(found.items())]


def _names_of_states(scope: ast.AST) -> set[str]:
    """`state`, and what the scope binds to a state or to a part of one."""
    names: set[str] = {"state"}
    while True:
        bound = {name for target, value in _bindings(scope) if _is_of_state(value, names) for name in _names(target)}
        if bound <= names:
            return names
        names |= bound


def _bindings(scope: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    yield from zip(target.elts, node.value.elts, strict=False)
                else:
                    yield target, node.value
        elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            for iterated in _iterated(node.iter):
                yield node.target, iterated
        elif isinstance(node, ast.NamedExpr):
            yield node.target, node.value


def _iterated(node: ast.expr) -> list[ast.expr]:
    """The containers over whose elements a loop runs."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in COPIES:
        return node.args
    if isinstance(node, ast.List | ast.Tuple):
        return [element.value if isinstance(element, ast.Starred) else element for element in node.elts]
    return [node]


def _names(target: ast.expr) -> set[str]:
    """The names that an assignment to `target` binds; none for `x.name = ..` and `x[..] = ..`."""
    parts = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _changed(scope: ast.AST) -> Iterator[ast.expr]:
    """Each object that a statement of the scope changes: by an attribute, an element, or a method that changes it."""
    for node in ast.walk(scope):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            yield node.func.value


def _is_of_state(node: ast.expr, names: set[str]) -> bool:
    """Whether the expression is a state or a part of one."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Attribute):
        return node.attr == "state" or _is_of_state(node.value, names)
    if isinstance(node, ast.Subscript):
        return _is_of_state(node.value, names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in PARTS:
        return _is_of_state(node.func.value, names)
    return False
