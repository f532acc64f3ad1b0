"""The newest batches in memory: limited over all logs, never stale."""

from __future__ import annotations

import weakref

from minibroker.broker.log.segments.tail_cache import ENTRY_OVERHEAD_BYTES, LogTail, TailCache
from tests.broker.log.machine import Batch, Machine, append, make_batch

SIZE = len(make_batch(0)[1])
COST = SIZE + ENTRY_OVERHEAD_BYTES


def batches(start: int, count: int) -> list[Batch]:
    return [make_batch(start + 2 * number) for number in range(count)]


def first_held(tail: LogTail) -> int | None:
    """First offset held; None if empty."""
    return tail._bases[tail._head] if tail._head < len(tail._bases) else None


def test_the_oldest_bytes_of_all_logs_are_dropped_first() -> None:
    cache = TailCache(bytes_max=4 * COST)
    one, two = cache.tail(), cache.tail()
    one.append(batches(0, 2), 2 * SIZE)
    two.append(batches(0, 2), 2 * SIZE)
    one.append(batches(4, 1), SIZE)
    assert (first_held(one), first_held(two)) == (2, 0)
    two.append(batches(4, 2), 2 * SIZE)
    assert (first_held(one), first_held(two)) == (4, 2)
    assert cache.size_bytes == 4 * COST


class Records(bytearray):
    """Bytes of a batch; a test can see when nothing keeps them any more."""


def test_a_batch_that_is_dropped_leaves_the_memory_at_once() -> None:
    """Places at the front of the list are given up later, and some dozens of large batches of each of a thousand logs
    would be many times the limit."""
    cache = TailCache(bytes_max=2 * COST)
    tail = cache.tail()
    kept: list[weakref.ref[Records]] = []
    for header, batch in batches(0, 5):
        records = Records(batch)
        kept.append(weakref.ref(records))
        tail.append([(header, records)], SIZE)
        del records
    assert [each() is not None for each in kept] == [False, False, False, True, True]


def test_the_byte_limit_always_holds() -> None:
    cache = TailCache(bytes_max=10_000)
    tails = [cache.tail() for _ in range(3)]
    ends = [0, 0, 0]
    for step in range(500):
        which = step % 3
        tails[which].append(batches(ends[which], 1 + step % 4), SIZE)
        ends[which] += 2 * (1 + step % 4)
        if step % 7 == 0:
            ends[which] = max(ends[which] - 6, 0)
            tails[which].truncate_to(ends[which])
        if step % 31 == 0:
            tails[which].clear()
        assert cache.size_bytes <= 10_000
        start = first_held(tails[which])
        assert start is None or start < ends[which]


def test_a_batch_larger_than_the_cache_is_not_kept() -> None:
    cache = TailCache(bytes_max=SIZE)
    tail = cache.tail()
    tail.append(batches(0, 1), SIZE)
    assert first_held(tail) is None
    assert tail.read(0, 1_000, 100) is None


def test_truncated_batches_do_not_evict_later_ones() -> None:
    cache = TailCache(bytes_max=4 * COST)
    tail = cache.tail()
    tail.append(batches(0, 3), 3 * SIZE)
    tail.truncate_to(0)
    tail.append(batches(0, 1), SIZE)
    tail.append(batches(2, 2), 2 * SIZE)  # evicts two that were truncated already
    assert first_held(tail) == 0


def test_the_appended_buffer_itself_is_served() -> None:
    tail = TailCache().tail()
    header, batch = make_batch(0)
    tail.append([(header, batch)], len(batch))
    found = tail.read(0, 1_000, 2)
    assert found is not None
    assert found[0][0] is batch


def test_a_small_part_of_a_large_frame_is_copied() -> None:
    header, batch = make_batch(0)
    frame = bytes(batch) + bytes(100_000)
    tail = TailCache().tail()
    tail.append([(header, memoryview(frame)[: len(batch)])], len(batch))
    found = tail.read(0, 1_000, 2)
    assert found is not None
    assert found[0] == [batch]
    assert not isinstance(found[0][0], memoryview)


def test_parts_of_a_frame_that_is_mostly_batches_are_not_copied() -> None:
    many = batches(0, 10)
    frame = memoryview(b"header" + b"".join(batch for _, batch in many))
    views = [(header, frame[6 + SIZE * number : 6 + SIZE * (number + 1)]) for number, (header, _) in enumerate(many)]
    tail = TailCache().tail()
    tail.append(views, 10 * SIZE)
    found = tail.read(0, 1_000_000, 20)
    assert found is not None
    assert all(part is view for part, (_, view) in zip(found[0], views, strict=True))


def test_a_log_that_is_closed_holds_no_batches(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 5)
    assert first_held(log._tail) == 0
    log.close()
    assert first_held(log._tail) is None


def test_evicted_entries_do_not_accumulate() -> None:
    cache = TailCache(bytes_max=10 * COST)
    tail = cache.tail()
    for number in range(5_000):
        tail.append([make_batch(2 * number)], SIZE)
        oldest = 2 * max(number - 9, 0)
        assert tail.read(oldest, 1, 10_000) is not None, "it is held, whatever was removed in front of it"
        assert tail.read(oldest - 1, 1, 10_000) is None
    assert len(tail._bases) < 200
