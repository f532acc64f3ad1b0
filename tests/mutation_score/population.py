"""All mutations of the code: each place that an operator can change, and the operators that can change it.

Owns: which folders and places count. Annotations, texts, log calls, what only a type checker runs, and numbers
that were chosen among many do not. cosmic-ray's operators are used as they are; an occurrence counts as its
MutationVisitor counts.
"""

import ast
import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from cosmic_ray.ast import get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

from tests.mutation_score.removed_statement import RemoveCall, RemoveStateChange
from tests.mutation_score.replaced_exception import ExceptionReplacer

FOLDERS = ("broker", "client", "controller", "protocol")
NEED_ARGUMENTS = {"VariableReplacer", "VariableInserter"}
"""They replace names that their arguments choose."""
LEFT_ALONE = {"name", "string", "newline", "endmarker", "fstring_string", "fstring_start", "fstring_end"}
"""Leaves that no operator changes: most of a file, so that leaving them out saves most of the time."""
PUNCTUATION = frozenset("()[]{},.:=;") | {"->", ":="}
UNCHANGED_DECORATORS = ("@override", "@overload", "@abstractmethod")
UNCHANGED_FLAGS = ("frozen=True", "kw_only=True")
"""Without them the code does the same: type checkers and authors need them."""

CHOSEN_MIN = 20
"""A constant's number from here on is one that an author chose among many that would do."""

Position = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of the start and of the end."""


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a module that one or more mutations change."""

    module: str
    """`broker.replication.isr`"""
    function: str
    """`Class.method`; empty for what runs at import."""
    first_line: int
    last_line: int
    """Of the statement. If it has a body: of its head, or, for a definition that runs at import, all of it."""
    start: tuple[int, int]
    names: tuple[str, ...] = ()
    """What a statement that runs at import defines: code that uses a name may notice its change."""
    in_handler: bool = False
    """In the body of an `except` or a `finally`."""
    owner: str = ""
    """The class whose body such a statement is in: code may loop over what the class holds, and use no name of it."""
    repetition: int = 0
    """How many lines before it in its function read the same."""
    mutations: tuple[tuple[str, int], ...] = ()
    """(operator, occurrence of the operator in the module)"""


@functools.cache
def operators() -> dict[str, Any]:
    """By name."""
    provider = OperatorProvider()
    found = {name: provider[name]() for name in provider if name not in NEED_ARGUMENTS}
    own = (RemoveCall(), RemoveStateChange(), ExceptionReplacer())
    return {**found, **{type(operator).__name__: operator for operator in own}}


def module_paths(root: Path) -> dict[str, Path]:
    """Each module that is mutated."""
    paths = sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))
    found = {".".join(path.relative_to(root).with_suffix("").parts): path for path in paths}
    return {module: path for module, path in found.items() if path.name != "__init__.py"}


def mutated_source(source: str, operator: str, occurrence: int) -> str | None:
    """None if the mutation leaves no program, or the same one."""
    text = mutate_code(source, operators()[operator], occurrence)
    assert isinstance(text, str), f"{operator} has no occurrence {occurrence}"
    try:
        is_same = ast.dump(ast.parse(text)) == ast.dump(ast.parse(source))
    except SyntaxError:  # cosmic-ray takes the star of `*values` for a multiplication
        return None
    return None if is_same else text


def sites(module: str, source: str) -> list[Site]:
    """In the order of the text."""
    occurrences: Counter[str] = Counter()
    found: dict[Position, list[tuple[str, int]]] = {}
    nodes: dict[Position, Any] = {}
    for node, counts in _walk(get_ast(source), counts=True):
        for name, operator in operators().items():
            for position in operator.mutation_positions(node):
                if counts:
                    found.setdefault(position, []).append((name, occurrences[name]))
                    nodes.setdefault(position, node)
                occurrences[name] += 1
    return [_site(module, nodes[each], each, tuple(found[each])) for each in sorted(found)]


def _walk(node: Any, counts: bool) -> Iterator[tuple[Any, bool]]:
    """As cosmic-ray walks. Nodes that do not count are visited too: occurrences number them all."""
    counts = counts and not _is_left_out(node)
    if node.type not in LEFT_ALONE and not (node.type == "operator" and node.value in PUNCTUATION):
        yield node, counts
    for child in getattr(node, "children", ()):
        yield from _walk(child, counts)


def _is_left_out(node: Any) -> bool:
    parent = node.parent
    if parent is None:
        return False
    if parent.type == "annassign":
        return bool(node is parent.children[1])
    if parent.type == "tfpdef":
        return bool(node is not parent.children[0])
    if parent.type == "funcdef":
        return bool(node is parent.annotation)
    if node.type == "number":
        return _is_chosen(node)
    if node.type == "fstring" or (node.type == "operator" and parent.type in ("parameters", "lambdef")):
        return True  # texts; the star and the slash between parameters
    if node.type == "argument" and parent.parent is not None and "classdef" in (parent.type, parent.parent.type):
        return node.get_code().strip() in UNCHANGED_FLAGS
    if node.type == "decorator":
        return any(word in node.get_code() for word in UNCHANGED_DECORATORS)
    if node.type == "simple_stmt":
        return bool(node.get_code(include_prefix=False).startswith(("logger.", "log.", "self._log.")))
    if node.type == "if_stmt":
        return node.children[1].get_code().strip() == "TYPE_CHECKING" or "__name__" in node.children[1].get_code()
    return bool(node.type == "operator" and node.value == "|" and _function(node) is None)  # a union of types


def _is_chosen(node: Any) -> bool:
    """A module's limit or pause, which might as well be one more.

    Small numbers shift, index or count; hexadecimal and binary ones are formats.
    """
    statement = _statement(node)
    if statement.type != "simple_stmt" or statement.parent.type != "file_input" or node.value.startswith(("0x", "0b")):
        return False
    names = _defined(statement)
    return bool(names) and all(name.isupper() for name in names) and float(node.value) >= CHOSEN_MIN


def _function(node: Any) -> Any:
    """The innermost function whose body holds this node; None if it runs at import."""
    child, parent = node, node.parent
    while parent is not None:
        if parent.type == "funcdef" and child is parent.children[-1]:
            return parent
        child, parent = parent, parent.parent
    return None


def _site(module: str, node: Any, position: Position, mutations: tuple[tuple[str, int], ...]) -> Site:
    statement, function = _statement(node), _function(node)
    first, last = position[0][0], position[1][0]
    if statement.type == "simple_stmt":
        first, last = statement.start_pos[0], statement.children[-2].end_pos[0]
    elif function is None:
        first, last = statement.start_pos[0], statement.end_pos[0]
    return Site(
        module=module,
        function="" if function is None else _qualified(function),
        first_line=first,
        last_line=last,
        start=position[0],
        names=() if function is not None else _defined(statement),
        in_handler=_is_in_handler(node),
        owner="" if function is not None else _owner(statement),
        mutations=mutations,
    )


def _is_in_handler(node: Any) -> bool:
    child, parent = node, node.parent
    while parent is not None and parent.type != "funcdef":
        if parent.type == "try_stmt":
            before = parent.children[parent.children.index(child) - 2]
            if child.type == "suite" and (before.type == "except_clause" or before.get_code().strip() == "finally"):
                return True
        child, parent = parent, parent.parent
    return False


def _statement(node: Any) -> Any:
    kinds = ("simple_stmt", "if_stmt", "while_stmt", "for_stmt", "try_stmt", "with_stmt", "funcdef", "classdef")
    while node.type not in (*kinds, "decorated") and node.parent.type not in ("suite", "file_input"):
        node = node.parent
    return node


def _defined(statement: Any) -> tuple[str, ...]:
    if statement.type == "decorated":
        statement = statement.children[-1]
    if statement.type == "async_stmt":
        statement = statement.children[-1]
    if statement.type in ("funcdef", "classdef"):
        return (statement.name.value,)
    if statement.type == "simple_stmt" and statement.children[0].type == "expr_stmt":
        return tuple(name.value for name in statement.children[0].get_defined_names())
    return ()


def _owner(statement: Any) -> str:
    place = statement.parent
    while place is not None and place.type != "classdef":
        place = place.parent
    return "" if place is None else str(place.name.value)


def _qualified(function: Any) -> str:
    names, node = [], function
    while node is not None:
        if node.type in ("funcdef", "classdef"):
            names.append(node.name.value)
        node = node.parent
    return ".".join(reversed(names))
