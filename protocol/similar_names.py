"""A name that does not exist, in a message: the name that its user may have meant.

Owns: which name is similar, and that half sentence. Leaves to others: what exists, and the rest of the message.
"""

from collections.abc import Iterable

LONGEST_COMPARED = 1_000
"""Comparing takes the square of a name's length; names that exist have at most a few hundred characters."""


def similar_name(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that is most like this name; None if none is like it."""
    from difflib import get_close_matches  # takes milliseconds to import, and most programs misspell nothing

    if len(name) > LONGEST_COMPARED:
        return None
    names = list(known)
    near = get_close_matches(name, names, n=1) or get_close_matches(name.lower(), names, n=1)
    return near[0] if near else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean 'lines'?`; empty if no name is similar."""
    similar = similar_name(name, known)
    return f"did you mean '{similar}'?" if similar is not None else ""
