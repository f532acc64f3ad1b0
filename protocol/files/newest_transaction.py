"""`zookeeper-transaction`: the newest transaction of ZooKeeper that a broker has seen (docs/FORMATS.md). Pure.

Owns: the text of the file. Leaves to others: any comparison.
"""

import msgspec

from minibroker.protocol.files.checkpoints import (
    CHECKPOINT_VERSION,
    NEWEST_TRANSACTION,
    CorruptCheckpoint,
    parse_number,
    text_under_checksum,
    with_checksum,
)


class NewestTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers are ZooKeeper's zxid."""

    seen: int
    found: int | None = None
    """ZooKeeper had only this one later: its data was an older copy. None: that never came."""


def format_newest_transaction(newest: NewestTransaction) -> bytes:
    """A line each: the version, `seen`, and `found` if it came to that; then their checksum."""
    lines = [CHECKPOINT_VERSION, newest.seen, *([] if newest.found is None else [newest.found])]
    return with_checksum("".join(f"{line}\n" for line in lines))


def parse_newest_transaction(content: bytes) -> NewestTransaction:
    """Raises CorruptCheckpoint."""
    version, *numbers = text_under_checksum(content).split("\n")[:-1] or [""]
    if version != str(CHECKPOINT_VERSION) or len(numbers) not in (1, 2):
        raise CorruptCheckpoint(f"{NEWEST_TRANSACTION} is not a version and one or two numbers: {content!r:.100}")
    seen, found = parse_number(numbers[0], numbers[0]), numbers[1:]
    return NewestTransaction(seen=seen, found=parse_number(found[0], found[0]) if found else None)
