"""The digest of a range of a log: a number that is equal for equal batches. Pure.

Owns: what goes into it, and how ranges are added and subtracted. Leaves to others: files, and the comparison.

Each batch is hashed by its first 21 bytes: base offset, length, leader epoch, magic and the CRC-32C of all the rest.
The digest of a range is the sum of its batches' hashes, modulo 2^128 (an incremental hash after Bellare and Micciancio,
EUROCRYPT'97). So it does not depend on where segments begin, the digest of what retention or a truncation removes can
be subtracted, and two replicas that begin at different offsets agree on every range that both hold. It detects
accidents, bugs and careless changes, but not forgery: an attacker can construct two logs with one sum.
"""

import struct
from collections.abc import Iterable
from hashlib import blake2b

from minibroker.protocol.record_batch import LENGTH_PREFIX_BYTES, MAGIC, Buffer

HASHED_BYTES = 21
"""Of a batch: base offset, length, leader epoch, magic, CRC. The CRC covers what follows."""
DIGEST_BYTES = 16
MODULUS = 1 << (8 * DIGEST_BYTES)
NOTHING = 0
"""The digest of an empty range."""
_HASHED = struct.Struct(">qiibI")


def batch_digest(buffer: Buffer, position: int = 0) -> int:
    """The hash of the batch at `position`, as it is in the log: stamped with its offset and epoch."""
    return int.from_bytes(blake2b(buffer[position : position + HASHED_BYTES], digest_size=DIGEST_BYTES).digest())


def digest_of(cells: Iterable[tuple[int, int, int, int]]) -> int:
    """The digest of batches given by (base offset, size in bytes, leader epoch, CRC)."""
    pack = _HASHED.pack
    total = 0
    for base_offset, size_bytes, epoch, crc in cells:
        hashed = pack(base_offset, size_bytes - LENGTH_PREFIX_BYTES, epoch, MAGIC, crc)
        total += int.from_bytes(blake2b(hashed, digest_size=DIGEST_BYTES).digest())
    return total % MODULUS


def format_digest(digest: int) -> str:
    """32 hexadecimal digits."""
    return f"{digest:0{2 * DIGEST_BYTES}x}"
