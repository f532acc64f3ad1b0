"""Sizes, names, and unfinished code."""

from __future__ import annotations

import ast
import re

from tests.tidy.source import SourceFile

FILE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
VAGUE_NAMES = {"utils", "util", "helpers", "helper", "common", "base", "misc", "tools", "stuff"}
UNFINISHED = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b|\bNotImplemented\b(?!Error)")
# `return NotImplemented` is how a binary operator declines; it is not a stub.
DECLINES = re.compile(r"return NotImplemented\b")


def check_size(file: SourceFile) -> list[str]:
    problems = []
    lines = file.text.count("\n")
    if lines > FILE_LINES_MAX:
        problems.append(f"{file.path}: {lines} lines, {FILE_LINES_MAX} are allowed: split it by concern")
    for node in file.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                what = f"{node.name} has {length} lines, {FUNCTION_LINES_MAX} are allowed: it must fit a screen"
                problems.append(f"{file.path}:{node.lineno}: {what}")
    return problems


def check_name(file: SourceFile) -> list[str]:
    parts = {part.removesuffix(".py") for part in file.path.split("/")}
    return [f"{file.path}: '{name}' says nothing: name it after what it owns" for name in sorted(parts & VAGUE_NAMES)]


def check_definitions(file: SourceFile) -> list[str]:
    """A module or class defines a name once: of two definitions one has no effect, and a reader may see that one."""
    problems = []
    for scope in file.nodes:
        if not isinstance(scope, ast.Module | ast.ClassDef):
            continue
        seen: set[str] = set()
        for node in scope.body:
            name = _defined(node)
            if name in seen:
                problems.append(f"{file.path}:{node.lineno}: {name} is defined above already")
            if name is not None:
                seen.add(name)
    return problems


def _defined(node: ast.stmt) -> str | None:
    """The name that the statement gives a value. None for functions: ruff knows them, with overloads and properties."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return name
    return None


def check_finished(file: SourceFile) -> list[str]:
    if file.path.startswith("tests/tidy/"):
        return []  # they contain the words of this rule
    return [
        f"{file.path}:{number}: {line.strip()}: finish it or leave it out"
        for number, line in enumerate(file.text.splitlines(), start=1)
        if UNFINISHED.search(line) and not DECLINES.search(line)
    ]
