"""Damage hits what it says."""

from __future__ import annotations

import random

import pytest

from minibroker.chaos.plan.damage import flipped, torn
from minibroker.protocol.record_batch import CorruptBatch, build_batch, check_batch, iterate_headers

COUNT = 10


def segment() -> bytes:
    return b"".join(
        build_batch([(None, b"value %d" % number, 1, ())], base_offset=number, leader_epoch=0)
        for number in range(COUNT)
    )


def broken(content: bytes) -> list[int]:
    """The numbers of the batches whose CRC is wrong."""
    found = []
    for number, (position, _) in enumerate(iterate_headers(content)):
        try:
            check_batch(content, position)
        except CorruptBatch:
            found.append(number)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_a_flipped_bit_breaks_one_batch_in_the_first_half_or_the_last_one(seed: int) -> None:
    below = flipped(segment(), random.Random(seed), at_end=False)
    at_end = flipped(segment(), random.Random(seed), at_end=True)
    assert below is not None and at_end is not None
    assert len(broken(below)) == 1 and broken(below)[0] < COUNT / 2
    assert broken(at_end) == [COUNT - 1]


@pytest.mark.parametrize("seed", range(20))
def test_a_torn_tail_keeps_all_but_the_last_batch(seed: int) -> None:
    whole, cut = segment(), torn(segment(), random.Random(seed))
    assert cut is not None and whole.startswith(cut)
    positions = [position for position, _ in iterate_headers(whole)]
    assert positions[-1] < len(cut) < len(whole)


def test_an_empty_log_has_nothing_to_damage() -> None:
    assert torn(b"", random.Random(1)) is None
    assert flipped(b"", random.Random(1), at_end=True) is None
