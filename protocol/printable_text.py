"""Text of others as a terminal may show it. Pure.

Owns: which characters a terminal would obey or could not show, and their escapes. Why: a peer's sentence or a file's
name could otherwise clear the screen, set the window's title, or look like a sentence of ours.
"""


def printable(text: str) -> str:
    """The text on one line, with escapes for characters that a terminal would obey, such as `\\x1b`, or could not
    show."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def printable_lines(text: str) -> str:
    """The same, but its lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))
