"""The digest of one segment (`protocol.log_digest`), kept while it grows and is cut.

Owns: from which position on it is known. Leaves to others: reading files; `complete` adds the digest of the front part.
"""

from collections.abc import Iterable, Sequence

from minibroker.protocol.log_digest import MODULUS, NOTHING, batch_digest, digest_of
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.ports import Buffer

CUT_BYTES_MAX = 1024 * 1024
"""Batches of a larger cut are not read on the event loop: the digest is then unknown, and computed in background."""


class SegmentDigest:
    """`value` is None while it is unknown: for a segment found at a start without a recorded digest."""

    __slots__ = ("_total", "known_from")

    def __init__(self, size: int, known: int | None) -> None:
        self.known_from = 0 if known is not None else size
        """Position from which on all batches are counted."""
        self._total = known or NOTHING

    @property
    def value(self) -> int | None:
        return self._total % MODULUS if self.known_from == 0 else None

    def append(self, batches: Sequence[tuple[BatchHeader, Buffer]]) -> None:
        """Add batches, stamped as they were written."""
        for _, buffer in batches:
            self._total += batch_digest(buffer)

    def cut(self, position: int, lost: int | None) -> None:
        """The file ends at `position` now; `lost`: the digest of the removed batches, None if unknown."""
        if position <= self.known_from or lost is None:
            self.known_from, self._total = position, NOTHING
        else:
            self._total -= lost

    def complete(self, size: int, value: int) -> None:
        """Add the digest of the batches before `size`, if the unknown part still ends there."""
        if size == self.known_from:
            self.known_from, self._total = 0, self._total + value


def digest_of_headers(headers: Iterable[BatchHeader]) -> int:
    """Digest of batches as they are in the log."""
    return digest_of((each.base_offset, each.size_bytes, each.partition_leader_epoch, each.crc) for each in headers)
