"""The newest batches of all logs, in memory: followers and consumers that keep up cost no system call.

Owns: which batches are held, and their limit in bytes over all logs of a broker. Leaves to others: files and segments.

Theory: readers that keep up read what was written last, so the oldest bytes of all logs are the least useful: one
global first-in-first-out order. Each log's part is contiguous and ends at its log end, so a lookup is one bisect. The
cache holds the appended buffer itself, never a copy; it must not change afterwards, because its bytes may still wait in
a socket. `truncate_to` must cut here, too: otherwise a reader sees records that no longer exist (mutant H12).
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

from msgspec import Struct

from minibroker.broker.log.config import TAIL_CACHE_BYTES
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.ports import Buffer

ENTRY_OVERHEAD_BYTES = 250
"""Memory of an entry besides its bytes: entry, order, buffer object. If not counted, tiny batches had no limit."""
PINNED_RATIO_MAX = 2
"""A part of a larger buffer keeps all of it in memory, so a part of less than half is copied."""
COMPACT_AFTER = 64
OWNERS = (bytes, bytearray)
"""What a view may be a part of."""


class CachedBatch(Struct, frozen=True, gc=False):
    """One batch: its end, its leader epoch and its bytes; `serial` is its number in the global order."""

    end_offset: int
    leader_epoch: int
    buffer: Buffer
    serial: int


class TailCache:
    """Shared by all logs of a broker."""

    def __init__(self, bytes_max: int = TAIL_CACHE_BYTES) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self.order: deque[tuple[LogTail, int, int]] = deque()
        """(log, serial, cost in bytes) of each batch, the oldest first."""
        self.last_serial = 0

    def tail(self) -> "LogTail":
        """A new, empty part for one log."""
        return LogTail(self)

    def drop_oldest(self) -> None:
        """Drop the oldest batches until the rest fits."""
        while self.size_bytes > self.bytes_max:
            oldest, serial, freed = self.order.popleft()
            self.size_bytes -= freed
            oldest.drop_oldest(serial)


class LogTail:
    """One log's part: contiguous batches that end at the log's end. Lists with a moving head make both ends cheap."""

    __slots__ = ("_bases", "_batches", "_cache", "_head")

    def __init__(self, cache: TailCache) -> None:
        self._cache = cache
        self._bases: list[int] = []
        self._batches: list[CachedBatch | None] = []
        self._head = 0

    def append(self, batches: Sequence[tuple[BatchHeader, Buffer]], size_bytes: int) -> None:
        """Add batches that were just appended to the log."""
        cache, bases, held = self._cache, self._bases, self._batches
        serial, order = cache.last_serial, cache.order
        for header, buffer in batches:
            if isinstance(buffer, memoryview) and _whole_bytes(buffer) > PINNED_RATIO_MAX * size_bytes:
                buffer = bytes(buffer)
            serial += 1
            cost = len(buffer) + ENTRY_OVERHEAD_BYTES
            base_offset = header.base_offset
            bases.append(base_offset)
            end_offset = base_offset + header.record_count
            held.append(CachedBatch(end_offset, header.partition_leader_epoch, buffer, serial))
            order.append((self, serial, cost))
            cache.size_bytes += cost
        cache.last_serial = serial
        if cache.size_bytes > cache.bytes_max:
            cache.drop_oldest()

    def drop_oldest(self, serial: int) -> None:
        """Drop the batch with that serial, unless it was truncated before."""
        head = self._head
        if head == len(self._batches):
            return
        oldest = self._batches[head]
        assert oldest is not None
        if oldest.serial != serial:
            return
        self._batches[head] = None
        self._head = head + 1
        if self._head > COMPACT_AFTER and self._head * 2 > len(self._batches):
            del self._batches[: self._head]
            del self._bases[: self._head]
            self._head = 0

    def truncate_to(self, end_offset: int) -> None:
        """Drop every batch that ends beyond `end_offset`. Their cost stays counted until they are the oldest."""
        while len(self._batches) > self._head:
            newest = self._batches[-1]
            assert newest is not None
            if newest.end_offset <= end_offset:
                return
            self._batches.pop()
            self._bases.pop()

    def clear(self) -> None:
        self._bases.clear()
        self._batches.clear()
        self._head = 0

    def read(self, offset: int, max_bytes: int, end_offset: int) -> tuple[list[Buffer], int, int, int, int] | None:
        """(parts, size, base offset, next offset, last epoch) of whole batches, from the one that holds `offset`, that
        end at or below `end_offset`; the first one whatever its size. None if `offset` is not held."""
        bases, batches = self._bases, self._batches
        start = bisect_right(bases, offset, self._head) - 1
        if start < self._head:
            return None
        parts: list[Buffer] = []
        size = 0
        next_offset, epoch = bases[start], -1
        for index in range(start, len(batches)):
            batch = batches[index]
            assert batch is not None
            buffer = batch.buffer
            if batch.end_offset > end_offset or (parts and size + len(buffer) > max_bytes):
                break
            parts.append(buffer)
            size += len(buffer)
            next_offset, epoch = batch.end_offset, batch.leader_epoch
        return parts, size, bases[start], next_offset, epoch


def _whole_bytes(view: memoryview) -> int:
    whole = view.obj
    return len(whole) if isinstance(whole, OWNERS) else view.nbytes
