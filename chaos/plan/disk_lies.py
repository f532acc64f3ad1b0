"""One lie, planted in one segment file, to show that the audit of the disks finds it. Pure.

Owns: what each lie does to the content of the file, and which findings of the audit it must and may cause. Leaves to
others: which file (`chaos/run/disk_lie.py`), and the audit. Every batch stays whole by its CRC: a lie is no damage.
"""

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from msgspec import Struct

from minibroker.chaos.plan.damage import whole_batches
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import CRC_COVERS_FROM, BatchHeader, decode_values, stamp

CRC_AT = slice(17, 21)
Batch = tuple[int, BatchHeader]
"""Position and header."""
Planted = tuple[bytes, str]
"""The new content, and what was changed."""


class DiskLie(Struct, frozen=True, kw_only=True):
    """A kind of lie."""

    name: str
    text: str
    must: frozenset[str]
    """The kinds of findings that it always causes."""
    may: frozenset[str]
    """Those that it implies, depending on what lies around it."""
    plant: Callable[[bytes, random.Random], Planted | None]
    """None: the file has no place for it."""


def _inner(content: bytes) -> list[Batch]:
    """Batches with others before and behind them, in the older half: surely committed."""
    batches = whole_batches(content)
    return batches[1 : len(batches) // 2]


def _offsets(header: BatchHeader) -> str:
    return f"offsets {header.base_offset} to {header.last_offset}"


def _drop(content: bytes, rng: random.Random) -> Planted | None:
    batches = _inner(content)
    if not batches:
        return None
    position, header = rng.choice(batches)
    return content[:position] + content[position + header.size_bytes :], f"{_offsets(header)} are taken out"


def _duplicate(content: bytes, rng: random.Random) -> Planted | None:
    batches = _inner(content)
    if not batches:
        return None
    position, header = rng.choice(batches)
    end = position + header.size_bytes
    return content[:end] + content[position:end] + content[end:], f"{_offsets(header)} stand there twice"


def _reorder(content: bytes, rng: random.Random) -> Planted | None:
    pairs = [(one, other) for one, other in pairwise(_inner(content)) if _epoch(one) == _epoch(other)]
    if not pairs:
        return None
    (start, first), (middle, second) = rng.choice(pairs)
    end = middle + second.size_bytes
    swapped = _restamped(content[middle:end], first.base_offset, second)
    moved_to = first.base_offset + second.end_offset - second.base_offset
    swapped += _restamped(content[start:middle], moved_to, first)
    text = f"{_offsets(first)} and {_offsets(second)} change places"
    return content[:start] + swapped + content[end:], text


def _epoch(batch: Batch) -> int:
    return batch[1].partition_leader_epoch


def _restamped(batch: bytes, base_offset: int, header: BatchHeader) -> bytes:
    changed = bytearray(batch)
    stamp(changed, base_offset, header.partition_leader_epoch)
    return bytes(changed)


def _rewrite(content: bytes, rng: random.Random) -> Planted | None:
    batches = _inner(content)
    if not batches:
        return None
    position, header = rng.choice(batches)
    batch = bytearray(content[position : position + header.size_bytes])
    value = decode_values(batch, 0, header)[-1]
    if not value:
        return None
    batch[batch.rindex(value) + len(value) - 1] ^= 1
    batch[CRC_AT] = crc32c(bytes(batch[CRC_COVERS_FROM:])).to_bytes(4, "big")
    new = content[:position] + bytes(batch) + content[position + header.size_bytes :]
    return new, f"another value stands at offset {header.last_offset}, with a CRC that fits"


SHIFTED = frozenset({"index-damage"})
"""Batches behind the lie stand elsewhere than the indexes say."""
CHANGED = frozenset({"acked-changed", "log-matching", "producer-snapshot"})
"""The records were acknowledged, and the newest batches of producers are noted beside the log."""
SEQUENCES = frozenset({"sequence-gap", "sequence-backwards", "sequence-twice"})
"""Of idempotent producers."""
DISK_LIES: Sequence[DiskLie] = (
    DiskLie(
        name="drop",
        text="a batch is missing in the middle of one replica",
        must=frozenset({"missing-range"}),
        may=SHIFTED | SEQUENCES | {"acked-missing", "producer-snapshot"},
        plant=_drop,
    ),
    DiskLie(
        name="duplicate",
        text="a batch stands twice in one replica",
        must=frozenset({"offset-overlap"}),
        may=SHIFTED | SEQUENCES,
        plant=_duplicate,
    ),
    DiskLie(
        name="reorder",
        text="two batches of one replica change places, and their offsets are dense all the same",
        must=frozenset({"diverged-below-high-watermark"}),
        may=SHIFTED | SEQUENCES | CHANGED,
        plant=_reorder,
    ),
    DiskLie(
        name="rewrite",
        text="one value of one replica is another one, under a correct CRC",
        must=frozenset({"diverged-below-high-watermark"}),
        may=CHANGED,
        plant=_rewrite,
    ),
)
DISK_LIE_BY_NAME = {lie.name: lie for lie in DISK_LIES}
