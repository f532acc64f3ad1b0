"""Docstrings that name what exists.

Owns: names in backticks. A name with an underscore or in camel case, in any docstring, exists somewhere in the project.
In the docstring of a module, where modules and functions nearby are named by one lower-case word, that word is a name
of the same top folder: the wrong one mostly exists elsewhere.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator

from tests.tidy.source import CODE_FOLDERS, SourceFile

IDENTIFIER = re.compile(r"(?=\w*_|\w*[a-z]\w*[A-Z])[A-Za-z_]\w*(\.\w+)*")
"""With an underscore, or a capital letter behind a small one."""
BACKTICKS = re.compile(r"`([^`\n]*)`")
LOWER_CASE = re.compile(r"[a-z_]+")
METRIC = "minibroker_"


def check_docstrings(files: Iterable[SourceFile]) -> list[str]:
    """Check the files together: a name may be defined in any of them."""
    listed = list(files)
    named: dict[str, set[str]] = defaultdict(set)
    for file in listed:
        named[file.folder].update(_names(file), file.path.removesuffix(".py").split("/"))
    everywhere = set().union(*named.values())
    problems = []
    for file in listed:
        for node, text in _docstrings(file):
            for name in (code.removesuffix("()") for code in BACKTICKS.findall(text)):
                is_name = IDENTIFIER.fullmatch(name) and not name.startswith(METRIC)
                if is_name and not set(name.split(".")) <= everywhere:
                    problems.append(f"{file.path}:{node.lineno}: `{name}`: nothing has that name")
        near = named[file.folder] | {*CODE_FOLDERS}
        for name in sorted({code.removesuffix("()") for code in BACKTICKS.findall(ast.get_docstring(file.tree) or "")}):
            if LOWER_CASE.fullmatch(name) and not name.startswith(METRIC) and name not in near:
                problems.append(f"{file.path}: `{name}`: nothing in {file.folder}/ has that name")
    return problems


def _docstrings(file: SourceFile) -> Iterator[tuple[ast.Constant, str]]:
    """Also those behind a field."""
    for node in file.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value, node.value.value


def _names(file: SourceFile) -> Iterator[str]:
    """What the code defines or uses, and strings without a space: names of fields and events stand in some."""
    prose = {id(node) for node, _ in _docstrings(file)}
    for node in file.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield name
            case ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.alias(name=name, asname=asname):
                yield from (*name.split("."), asname or "")
            case ast.Constant(value=str(text)) if id(node) not in prose and " " not in text:
                yield from re.findall(r"[A-Za-z_]\w*", text)
