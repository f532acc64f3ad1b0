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
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                what = f"{node.name} has {length} lines, {FUNCTION_LINES_MAX} are allowed: it must fit a screen"
                problems.append(f"{file.path}:{node.lineno}: {what}")
    return problems


def check_name(file: SourceFile) -> list[str]:
    parts = {part.removesuffix(".py") for part in file.path.split("/")}
    return [f"{file.path}: '{name}' says nothing: name it after what it owns" for name in sorted(parts & VAGUE_NAMES)]


def check_finished(file: SourceFile) -> list[str]:
    if file.path.startswith("tests/tidy/"):
        return []  # they contain the words of this rule
    return [
        f"{file.path}:{number}: {line.strip()}: finish it or leave it out"
        for number, line in enumerate(file.text.splitlines(), start=1)
        if UNFINISHED.search(line) and not DECLINES.search(line)
    ]
