"""What a user typed, in an error: cut where it is so long that the rest of the sentence is lost.

Owns: how long is too long, and the cut. Leaves to others: the messages.
"""

import re

LONGEST_SHOWN = 1_000
"""Longer than what makes sense: the addresses of fifty brokers, or a path that is deep."""
KEPT = 100
QUOTED = rf"(?:(?<=\s')|(?<=^')|(?<=\('))[^']{{{LONGEST_SHOWN + 1},}}(?=')"
WORD = rf"[^\s']{{{LONGEST_SHOWN + 1},}}?(?=[:;,.)]?(?:[\s']|$))"
TOO_LONG = re.compile(f"{QUOTED}|{WORD}")


def shortened(text: str) -> str:
    """The text; of each word or quotation that is too long, only its beginning and its length."""
    return TOO_LONG.sub(lambda found: f"{found[0][:KEPT]}.. ({len(found[0])} characters)", text)
