"""One word for one thing: finds private words that have a term of the field, and doubled class names.

Owns: the lists of banned words and phrases, and the rule on class names. The terms are in docs/GLOSSARY.md.
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

_COUNT = r"(?:\d|\}|\b(?:one|once|twice|times|hundred|records|bytes|[KMG]i?B|CPU|of them|object|event|buffers|keys))"
_UNIT = (
    "(?:batch|broker|call|core|leader|line|minute|partition|process|producer|record|replica|request|round|second|seed"
    "|session)"
)
_PROGRAM = "(?:broker|client|consumer|controller|follower|leader|process|producer|program|replica|server)s?"
PHRASES = {
    re.compile(
        rf"{_COUNT} an? {_UNIT}\b(?!['’-]| (?:of its|that|undisturbed|time)\b)"
    ): "'per', as in 'six times per session'",
    re.compile(rf"\b{_PROGRAM},? who\b"): "'that' or 'which': a program is 'it'",
    re.compile(r"\bas (?:it is|they are) told\b"): "what it does, as in 'as configured'",
    re.compile(r"\b(?:said|says?|saying) aloud\b"): "'reported' or 'logged'",
    re.compile(r"\bwrong usage\b"): "usage error",
    re.compile(r"\bbytes (?:are|form) no batch\b"): "'do not form a valid batch'",
    re.compile(r"(?<=[a-z])\(s\)"): "singular and plural: `counted` in protocol/counted.py",
    re.compile(r"(?<!\d)(?<!\d[.,])\b1 (?:records|replicas|partitions|brokers|topics|batches|findings|lines|runs)\b"): (
        "the singular: `counted` in protocol/counted.py"
    ),
}
"""Banned in any text, with what to write instead."""


def check_words(path: Path, text: str) -> list[str]:
    """Check one text file, including code."""
    problems = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = sorted({each.lower() for each in _WORD.findall(line)} & INSTEAD.keys())
        problems += [f"{path}:{number}: '{word}': write {INSTEAD[word]}" for word in words]
        found = [(match[0], instead) for phrase, instead in PHRASES.items() if (match := phrase.search(line))]
        problems += [f"{path}:{number}: '{phrase}': write {instead}" for phrase, instead in found]
    return problems


def check_class_names(files: Iterable[SourceFile]) -> list[str]:
    """Public classes of the product must have different names, so that a name has one meaning."""
    places: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in file.nodes:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(f"{file.path}:{node.lineno}")
    return [
        f"{name}: {', '.join(found)}: name each after what it means"
        for name, found in sorted(places.items())
        if len(found) > 1
    ]
