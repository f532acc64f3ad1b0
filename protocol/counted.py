"""Numbers with their nouns, and lists of names, for sentences.

Owns: singular and plural; how many names a sentence has. Leaves to others: every sentence.
"""

from collections.abc import Sequence

NAMES_SHOWN = 5
"""A request may be about thousands of partitions."""


def counted(number: int, noun: str) -> str:
    """'1 record', '2 records', '0 batches'."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 'x')) else 's'}"


def some_of(names: Sequence[object], separator: str = ", ") -> str:
    """'a, b'; of more than NAMES_SHOWN names the first ones 'and 3 more'."""
    shown = separator.join(map(str, names[:NAMES_SHOWN]))
    return f"{shown} and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else shown
