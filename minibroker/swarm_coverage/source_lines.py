"""The lines and functions of the folders that a swarm should run, read from the sources.

Owns: which lines count, and which functions are worth a name. Leaves to others: which of them ran (`line_trace`).
"""

import ast
import dis
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType

import msgspec

FOLDERS = ("broker", "client", "controller", "protocol")


class SourceFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function, with the lambdas and comprehensions in it."""

    name: str
    """As in `Class.method` or `outer.<locals>.inner`."""
    lines: frozenset[int]
    """Of its body: its `def` runs when its module is imported."""


class SourceFile(msgspec.Struct, frozen=True, kw_only=True):
    """A module of one of the folders."""

    path: str
    """From the project's folder on, as in `broker/broker.py`."""
    lines: frozenset[int]
    """All that have code, those that run at the import included."""
    functions: tuple[SourceFunction, ...]


def folder_path(folder: str) -> Path:
    """Where the sources of a folder are; a symbolic link in a checkout, as traces do not name it."""
    return (Path(__file__).parents[1] / folder).resolve()


@cache
def read_sources() -> tuple[SourceFile, ...]:
    """All modules of the folders, in the order of their paths."""
    return tuple(
        read_source(f"{folder}/{path.relative_to(folder_path(folder)).as_posix()}", path.read_text())
        for folder in FOLDERS
        for path in sorted(folder_path(folder).rglob("*.py"))
    )


def read_source(path: str, text: str) -> SourceFile:
    """One module. Functions without an effect (a protocol's, an overload) and what only type checkers read are left
    out."""
    tree = ast.parse(text)
    unused = set(_lines_without_effect(tree))
    module = compile(text, path, "exec", dont_inherit=True)
    functions = [each for each in _functions(module, unused) if each.lines]
    lines = frozenset(_own_lines(module)).union(*(each.lines for each in functions))
    return SourceFile(path=path, lines=lines - unused, functions=tuple(functions))


def _functions(code: CodeType, unused: set[int]) -> Iterator[SourceFunction]:
    for part in _nested(code):
        if part.co_flags & _IS_FUNCTION and not part.co_name.startswith("<"):
            lines = frozenset(_own_lines(part)) - unused - {part.co_firstlineno}
            yield SourceFunction(name=part.co_qualname, lines=lines)
        yield from _functions(part, unused)


_IS_FUNCTION = 0x02
"""The flag of code that has local variables of its own (CO_NEWLOCALS): functions, not modules and classes."""


def _nested(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _own_lines(code: CodeType) -> Iterator[int]:
    """Those of the code and of the classes, lambdas and comprehensions in it."""
    yield from (line for _, line in dis.findlinestarts(code) if line)
    for part in _nested(code):
        if not part.co_flags & _IS_FUNCTION or part.co_name.startswith("<"):
            yield from _own_lines(part)


def _lines_without_effect(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and all(map(_is_void, node.body)):
            yield from range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            yield from range(node.body[0].lineno, (node.body[-1].end_lineno or 0) + 1)


def _is_void(statement: ast.stmt) -> bool:
    is_constant = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass)
