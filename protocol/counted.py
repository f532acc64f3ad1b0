"""A number with its noun, for sentences.

Owns: singular and plural. Leaves to others: every sentence.
"""


def counted(number: int, noun: str) -> str:
    """'1 record', '2 records', '0 batches'."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number} {noun[:-1]}ies"
    return f"{number} {noun}{'es' if noun.endswith(('ch', 'x')) else 's'}"
