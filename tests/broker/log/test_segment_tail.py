"""Where a segment ends, and whether its end is a write that was cut off, at each exact limit."""

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.segments import segment_tail
from minibroker.broker.log.segments.segment_files import SegmentFile
from minibroker.broker.log.segments.segment_tail import SegmentTail, is_cut_off, read_tail
from minibroker.protocol.files.checkpoints import INDEX_ENTRY_BYTES
from minibroker.protocol.record_batch import HEADER_BYTES
from tests.broker.log.machine import PATH, Machine, append, make_batch, truncate

HEADER, LARGE = make_batch(0, value=b"v" * 4_000)
FRONT = bytes(LARGE[:HEADER_BYTES])
"""What is left of a large batch, which claims more bytes than the file has."""
FOLLOWING = bytes(make_batch(HEADER.end_offset)[1])
ELSEWHERE = bytes(make_batch(HEADER.end_offset + 1)[1])
FILLER = b"\xff" * 40


def cut_off(machine: Machine, content: bytes, position: int = 0) -> bool:
    file = machine.disk().open(f"{PATH}/segment", create=True)
    file.append([content])
    found = is_cut_off(file, position, len(content))
    file.close()
    return found


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


@pytest.mark.parametrize("entries", [1, 2, 3])
def test_the_end_is_found_from_the_last_index_entry_however_few_there_are(machine: Machine, entries: int) -> None:
    """What lies in front of that entry is not read, and a sound index is not rebuilt at each start."""
    _, log = machine.open_log(LogConfig(index_interval_bytes=100))
    (_, batch), *_ = append(log, 1 + entries)
    assert [log.segments[-1].save_index() for _ in range(2)] == [True, False], "once is enough"
    assert len(machine.content(f"{0:020d}.index")) == INDEX_ENTRY_BYTES * entries
    machine.storage.flip_bit(log.segments[-1].log_path, len(batch) * (entries - 1) + 7)
    segment = SegmentFile(path=log.segments[-1].path, base_offset=0, size=log.size_bytes)
    assert read_tail(machine.disk(), segment, 100) == SegmentTail(log.log_end_offset, last_epoch=0)


def test_an_index_that_was_cut_is_saved_again_without_what_it_lost(machine: Machine) -> None:
    """Its files would otherwise end with entries of batches that are gone, until more are appended."""
    _, log = machine.open_log(LogConfig(index_interval_bytes=100))
    append(log, 9)
    log.segments[-1].save_index()
    truncate(log, 8)
    assert log.segments[-1].save_index()
    assert len(machine.content(f"{0:020d}.index")) == INDEX_ENTRY_BYTES * 3
