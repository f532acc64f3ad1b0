"""`noted-changes`: how many changes of the cluster a broker has noted, on its disk (docs/FORMATS.md). Pure.

Owns: the text of the file. Leaves to others: any comparison.
"""

from minibroker.protocol.files.checkpoints import (
    CHECKPOINT_VERSION,
    NOTED_CHANGES,
    CorruptCheckpoint,
    parse_number,
    text_under_checksum,
    with_checksum,
)


def format_noted_changes(count: int) -> bytes:
    """Two lines, the version and the count, and their checksum."""
    return with_checksum(f"{CHECKPOINT_VERSION}\n{count}\n")


def parse_noted_changes(content: bytes) -> int:
    """Raises CorruptCheckpoint."""
    lines = text_under_checksum(content).split("\n")
    if len(lines) != 3 or lines[0] != str(CHECKPOINT_VERSION):
        raise CorruptCheckpoint(f"{NOTED_CHANGES} is not a version and a number: {content!r:.100}")
    return parse_number(lines[1], lines[1])
