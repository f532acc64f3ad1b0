"""References to docs/REPLICATION.md: sections, hardening rules and invariants that exist, each named in one form.

Owns: the forms "replication rules, section 4", "hardening rule 8" and "I12". A number alone, or with a dot, is not
found by a search of the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NUMBERS = r"(?P<numbers>\d[\d.]*(?:(?:, and|,| and| to) \d[\d.]*)*)"
SECTION = re.compile(rf"\breplication rules?,? (?P<word>sections? )?{NUMBERS}", re.IGNORECASE)
HARDENING = re.compile(rf"\bhardening,? (?P<word>rules? )?{NUMBERS}", re.IGNORECASE)
STRICTER = re.compile(r"\bstricter rules? \d+", re.IGNORECASE)
INVARIANT = re.compile(r"\bI(?P<number>(?!64\b)\d{1,2})\b")  # I64 is a type of messages


@dataclass(frozen=True)
class Page:
    """What docs/REPLICATION.md defines."""

    sections: frozenset[int]
    rules: frozenset[int]
    invariants: frozenset[int]

    @classmethod
    def read(cls, text: str) -> Page:
        hardening = re.split(r"^## ", text, flags=re.MULTILINE)
        rules = next((part for part in hardening if part.startswith("Hardening rules")), "")
        return cls(
            frozenset(int(number) for number in re.findall(r"^## (\d+)\. ", text, re.MULTILINE)),
            frozenset(int(number) for number in re.findall(r"^(\d+)\. ", rules, re.MULTILINE)),
            frozenset(int(number) for number in re.findall(r"^\| I(\d+) \|", text, re.MULTILINE)),
        )


def check_references(path: str, text: str, page: Page) -> list[str]:
    """Check one text file, comments and docstrings included; a reference may be wrapped."""
    flat = re.sub(r"\s+(?:# )?", " ", text)
    problems = []
    for form, known, what in (
        (SECTION, page.sections, "replication rules, section N"),
        (HARDENING, page.rules, "hardening rule N"),
    ):
        for match in form.finditer(flat):
            numbers = [number.rstrip(".") for number in re.findall(r"\d[\d.]*", match["numbers"])]
            if match["word"] is None:
                problems.append(f"{path}: '{match[0]}': write '{what}'")
            elif missing := [number for number in numbers if "." in number or int(number) not in known]:
                problems.append(f"{path}: '{match[0]}': docs/REPLICATION.md has no {', '.join(missing)}")
    problems += [f"{path}: '{match[0]}': write 'hardening rule N'" for match in STRICTER.finditer(flat)]
    for match in INVARIANT.finditer(flat):
        if int(match["number"]) not in page.invariants:
            problems.append(f"{path}: '{match[0]}': docs/REPLICATION.md has no such invariant")
    return problems
