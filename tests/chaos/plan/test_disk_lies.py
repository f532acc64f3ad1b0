"""A lie on a disk leaves whole batches, and changes one thing."""

from __future__ import annotations

import random

import pytest

from minibroker.chaos.plan.disk_lies import DISK_LIE_BY_NAME, DISK_LIES, DiskLie
from minibroker.protocol.record_batch import build_batch, check_batch, decode_records, iterate_headers

COUNT = 12


def segment() -> bytes:
    """Twelve batches of two records each."""
    return b"".join(
        build_batch([(None, b"%d" % number, 1, ()) for number in (base, base + 1)], base_offset=base, leader_epoch=0)
        for base in range(0, 2 * COUNT, 2)
    )


def records(content: bytes) -> list[tuple[int, bytes | None]]:
    """Offsets and values. Each batch must be whole."""
    found = []
    for position, _ in iterate_headers(content):
        check_batch(content, position)
        found += [(record.offset, record.value) for record in decode_records(content, position)]
    return found


def planted(name: str, seed: int) -> list[tuple[int, bytes | None]]:
    found = DISK_LIE_BY_NAME[name].plant(segment(), random.Random(seed))
    assert found is not None
    return records(found[0])


SEEDS = pytest.mark.parametrize("seed", range(10))
TRUE = [(offset, b"%d" % offset) for offset in range(2 * COUNT)]


@SEEDS
def test_drop_takes_one_batch_out(seed: int) -> None:
    left = planted("drop", seed)
    (one, other) = sorted({*TRUE} - {*left})
    assert left == [each for each in TRUE if each not in (one, other)]
    assert 0 < one[0] < other[0] < COUNT


@SEEDS
def test_duplicate_has_one_batch_twice(seed: int) -> None:
    left = planted("duplicate", seed)
    assert sorted({*left}) == TRUE
    assert len(left) == len(TRUE) + 2


@SEEDS
def test_reorder_exchanges_values_and_keeps_offsets_dense(seed: int) -> None:
    left = planted("reorder", seed)
    assert [offset for offset, _ in left] == [offset for offset, _ in TRUE]
    assert sorted(value for _, value in left if value) == sorted(value for _, value in TRUE)
    assert sum(each != true for each, true in zip(left, TRUE, strict=True)) == 4


@SEEDS
def test_rewrite_changes_one_value(seed: int) -> None:
    left = planted("rewrite", seed)
    assert sum(each != true for each, true in zip(left, TRUE, strict=True)) == 1


@pytest.mark.parametrize("lie", DISK_LIES, ids=lambda lie: lie.name)
def test_a_short_log_has_no_place_for_a_lie(lie: DiskLie) -> None:
    assert lie.plant(b"", random.Random(1)) is None
    assert lie.plant(bytes(build_batch([(None, b"one", 1, ())])), random.Random(1)) is None
