"""One word for one thing: finds private words that have a term of the field, and doubled class names.

Owns: the list of banned words and the rule on class names. The terms are in docs/GLOSSARY.md.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.tidy.source import SourceFile

INSTEAD = {
    "accused": "suspected",
    "anybody": "any broker, any client",
    "breath": "yield",
    "chore": "periodic task",
    "chores": "periodic tasks",
    "doors": "ports, or the runtime",
    "everybody": "every broker, each member",
    "hearsay": "observed",
    "incumbent": "active controller",
    "lifeline": "liveness connection",
    "moral": "lesson",
    "nobody": "no broker, no client",
    "parked": "delayed",
    "reign": "leader epoch",
    "scenery": "model bounds",
    "somebody": "a broker, a client",
    "whoever": "the broker that, the client that",
    "whom": "which broker",
    "wish": "proposal",
    "wishes": "proposals",
}
"""Banned as a whole word in any text, and as a part of any name. A broker, a replica or a client is 'it'."""
ALLOWED_IN = ("docs/GLOSSARY.md", "CHANGELOG.md", "tests/tidy/vocabulary.py")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def check_words(path: Path, text: str) -> list[str]:
    """Check one text file, including code."""
    return [
        f"{path}:{number}: '{word}': write {INSTEAD[word]}"
        for number, line in enumerate(text.splitlines(), start=1)
        for word in sorted({each.lower() for each in _WORD.findall(line)} & INSTEAD.keys())
    ]


def check_class_names(files: Iterable[SourceFile]) -> list[str]:
    """Public classes of the product must have different names, so that a name has one meaning."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in ast.walk(file.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file.path}:{node.lineno}")
    return [
        f"{name}: {', '.join(found)}: name each after what it means"
        for name, found in sorted(places.items())
        if len(found) > 1
    ]
