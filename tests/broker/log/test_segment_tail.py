"""Whether the end of a segment is a write that was cut off, at each exact limit."""

import pytest

from minibroker.broker.log.segments import segment_tail
from minibroker.broker.log.segments.segment_tail import is_cut_off
from minibroker.protocol.record_batch import HEADER_BYTES
from tests.broker.log.machine import PATH, Machine, make_batch

HEADER, LARGE = make_batch(0, value=b"v" * 4_000)
FRONT = bytes(LARGE[:HEADER_BYTES])
"""What is left of a large batch, which claims more bytes than the file has."""
FOLLOWING = bytes(make_batch(HEADER.end_offset)[1])
ELSEWHERE = bytes(make_batch(HEADER.end_offset + 1)[1])
FILLER = b"\xff" * 40


def cut_off(machine: Machine, content: bytes, position: int = 0) -> bool:
    file = machine.disk().open(f"{PATH}/segment", create=True)
    file.append([content])
    return is_cut_off(file, position, len(content))


@pytest.mark.parametrize("rest", [b"", FILLER, ELSEWHERE, FOLLOWING[:-1], HEADER.end_offset.to_bytes(8) + FILLER])
def test_a_front_part_that_no_batch_of_the_next_offset_follows_was_cut_off(machine: Machine, rest: bytes) -> None:
    assert cut_off(machine, FRONT + rest)


@pytest.mark.parametrize("between", [b"", FILLER[:1], FILLER, HEADER.end_offset.to_bytes(8), FOLLOWING[:-1]])
def test_a_front_part_that_a_sound_batch_follows_was_not_cut_off(machine: Machine, between: bytes) -> None:
    assert not cut_off(machine, FRONT + between + FOLLOWING)
    assert not cut_off(machine, FRONT + between + FOLLOWING + FILLER)


@pytest.mark.parametrize("scan_bytes", range(len(FILLER), len(FILLER) + 10))
def test_a_following_batch_is_found_wherever_a_read_ends(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, scan_bytes: int
) -> None:
    monkeypatch.setattr(segment_tail, "SCAN_BYTES", scan_bytes)
    assert not cut_off(machine, FRONT + FILLER + FOLLOWING)


def test_a_batch_that_is_there_to_its_last_byte_was_not_cut_off(machine: Machine) -> None:
    damaged = LARGE[:-1] + bytes([LARGE[-1] ^ 1])
    assert not cut_off(machine, bytes(damaged))


def test_a_batch_without_its_last_byte_was_cut_off(machine: Machine) -> None:
    assert cut_off(machine, FOLLOWING + bytes(LARGE[:-1]), len(FOLLOWING))


def test_fewer_bytes_than_a_header_were_cut_off_and_a_whole_header_must_make_sense(machine: Machine) -> None:
    nonsense = b"\xff" * HEADER_BYTES
    assert not cut_off(machine, nonsense)
    assert cut_off(machine, nonsense, 1)
