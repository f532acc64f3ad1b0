"""The digest of one segment (`protocol.log_digest`), kept while it grows and is cut.

Owns: from which position on it is known. Refuses to read files; who knows the front part adds it with `complete`.
"""

from collections.abc import Iterable, Sequence

from minibroker.protocol.log_digest import MODULUS, NOTHING, batch_digest, digest_of
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.ports import Buffer

CUT_BYTES_MAX = 1024 * 1024
"""A cut of more is not walked on the event loop: the digest is unknown then, and found again in the background."""


class SegmentDigest:
    """`value` is None while it is unknown: of a segment that was found at a start, and nothing said what is in it."""

    __slots__ = ("_total", "known_from")

    def __init__(self, size: int, known: int | None) -> None:
        self.known_from = 0 if known is not None else size
        """Position from which on all batches are counted."""
        self._total = known or NOTHING

    @property
    def value(self) -> int | None:
        return self._total % MODULUS if self.known_from == 0 else None

    def append(self, batches: Sequence[tuple[BatchHeader, Buffer]]) -> None:
        """Stamped ones, as they were written."""
        for _, buffer in batches:
            self._total += batch_digest(buffer)

    def cut(self, position: int, lost: int | None) -> None:
        """The file ends at `position` now; `lost`: the digest of what was behind it, None if nobody looked."""
        if position <= self.known_from or lost is None:
            self.known_from, self._total = position, NOTHING
        else:
            self._total -= lost

    def complete(self, size: int, value: int) -> None:
        """Somebody has read what lies before `size`, where the unknown part ended then."""
        if size == self.known_from:
            self.known_from, self._total = 0, self._total + value


def digest_of_headers(headers: Iterable[BatchHeader]) -> int:
    """Of batches as they lie in the log."""
    return digest_of((each.base_offset, each.size_bytes, each.partition_leader_epoch, each.crc) for each in headers)
