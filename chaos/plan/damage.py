"""Which bytes of a log a damaged disk changes. Pure: gets the content of a segment file, gives the damaged one.

Owns: where damage lies. Leaves to others: reading and writing the files (the harness).
"""

import random

from minibroker.protocol.record_batch import HEADER_BYTES, BatchHeader, iterate_headers


def torn(content: bytes, rng: random.Random) -> bytes | None:
    """Cut inside the last batch; None if there is none."""
    batches = whole_batches(content)
    if not batches:
        return None
    position, header = batches[-1]
    return content[: position + rng.randrange(1, header.size_bytes)]


def flipped(content: bytes, rng: random.Random, *, at_end: bool) -> bytes | None:
    """One bit of a batch's records changes: of the last batch, or of one in the first half; None if there is none."""
    batches = whole_batches(content)
    if not batches:
        return None
    position, header = batches[-1] if at_end else rng.choice(batches[: max(1, len(batches) // 2)])
    at = position + rng.randrange(HEADER_BYTES, header.size_bytes)
    return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]


def whole_batches(content: bytes) -> list[tuple[int, BatchHeader]]:
    """(position, header) of each batch that is there to its end."""
    found = []
    for position, header in iterate_headers(content):
        if position + header.size_bytes > len(content):
            break
        found.append((position, header))
    return found
