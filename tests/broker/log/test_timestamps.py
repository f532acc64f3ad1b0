"""Looking up the first record at or after a time."""

from __future__ import annotations

import random
import struct
from unittest.mock import Mock

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.segments import time_lookup
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.record_batch import build_batch, decode_records, read_header
from tests.broker.log.machine import Machine, append, append_batches, drive, make_batch, retain
from tests.undecodable import beyond_all_times, undecodable

CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=200, retention_ms=None)


def fill(log: PartitionLog, timestamps: list[int], records: int = 3) -> None:
    for start in range(0, len(timestamps), records):
        chunk = timestamps[start : start + records]
        batch = build_batch([(None, b"x" * 30, at, ()) for at in chunk], base_offset=start, leader_epoch=0)
        append_batches(log, [(read_header(batch), batch)])


def expected(timestamps: list[int], time_ms: int, start: int, end: int) -> tuple[int, int] | None:
    return next(((timestamps[offset], offset) for offset in range(start, end) if timestamps[offset] >= time_ms), None)


@pytest.mark.parametrize("order", ["rising", "equal", "random", "falling", "one far in the future"])
@pytest.mark.parametrize("reopen", [False, True])
def test_the_first_record_at_or_after_a_time_is_found(machine: Machine, order: str, reopen: bool) -> None:
    directory, log = machine.open_log(CONFIG)
    rng = random.Random(5)
    timestamps = {
        "rising": [1_000 + 7 * number for number in range(300)],
        "equal": [2_000] * 300,
        "random": [rng.randrange(1_000, 3_000) for _ in range(300)],
        "falling": [3_000 - number for number in range(300)],
        "one far in the future": [*range(1_000, 1_100), 10**13, *range(1_100, 1_299)],
    }[order]
    fill(log, timestamps)
    if reopen:
        drive(directory.close(True, {}))
        machine.kill()
        _, log = machine.open_log(CONFIG)
    for time_ms in (0, 1_000, 1_001, 1_050, 1_777, 2_000, 2_001, 2_999, 3_000, 9_000, 10**13, 10**14):
        for end in (0, 150, 299, 300):
            assert log.offset_for_timestamp(time_ms, end) == expected(timestamps, time_ms, 0, end)


@pytest.mark.parametrize("order", ["rising", "falling", "rising and falling"])
def test_the_index_of_sound_files_is_used_as_it_is(
    machine: Machine, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If sound entries looked wrong, each lookup of a segment that is no longer in memory would walk all of it."""
    config = LogConfig(segment_bytes=10_000, index_interval_bytes=200, retention_ms=None)
    directory, log = machine.open_log(config)
    timestamps = {
        "rising": [1_000 + number for number in range(300)],
        "falling": [3_000 - number for number in range(300)],
        "rising and falling": [2_000 - abs(number % 150 - 100) for number in range(300)],
    }[order]
    fill(log, timestamps)
    drive(directory.close(True, {}))
    machine.kill()
    _, log = machine.open_log(config)
    assert len(log.segments) > 1
    for time_ms in (0, *timestamps, 4_000):
        log.offset_for_timestamp(time_ms, 300)
    assert "rebuilding the index" not in caplog.text


def test_records_below_the_log_s_start_are_not_found(machine: Machine) -> None:
    _, log = machine.open_log(CONFIG)
    timestamps = [1_000 + number for number in range(300)]
    fill(log, timestamps)
    log.trim_before(100)
    retain(log, 300, 0)
    assert log.offset_for_timestamp(0, 300) == (1_100, 100)
    assert log.offset_for_timestamp(1_250, 300) == (1_250, 250)


def test_an_empty_log_has_no_record_of_any_time(machine: Machine) -> None:
    _, log = machine.open_log(CONFIG)
    assert log.offset_for_timestamp(0, 0) is None


def test_truncated_records_are_not_found(machine: Machine) -> None:
    _, log = machine.open_log(CONFIG)
    append(log, 10, timestamp_ms=1_000)
    append(log, 10, timestamp_ms=9_000)
    log.truncate_to(20)
    append(log, 10, timestamp_ms=2_000)
    assert log.offset_for_timestamp(1_500, 40) == (2_000, 20)
    assert log.offset_for_timestamp(9_000, 40) is None


def test_only_a_batch_with_a_matching_time_is_decoded(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig())
    append(log, 50, timestamp_ms=1_000)
    append(log, 1, timestamp_ms=2_000)
    machine.storage.flip_bit(f"{log.directory}/{0:020d}.log", 70)  # in a record that is not needed
    assert log.offset_for_timestamp(2_000, 102) == (2_000, 100)


def append_undecodable(log: PartitionLog, records: int, timestamp_ms: int) -> None:
    _, batch = make_batch(log.log_end_offset, records, timestamp_ms=timestamp_ms)
    broken = undecodable(batch)
    append_batches(log, [(read_header(broken), broken)])


def test_the_header_answers_for_an_undecodable_batch(machine: Machine) -> None:
    """Its CRC is valid: the bytes are what the producer sent, so the log is not damaged."""
    _, log = machine.open_log(LogConfig())
    append(log, 1, timestamp_ms=1_000)
    append_undecodable(log, 40, timestamp_ms=2_000)
    append(log, 1, timestamp_ms=3_000)
    assert log.offset_for_timestamp(1_500, 44) == (2_000, 2)
    assert log.offset_for_timestamp(2_500, 44) == (3_000, 42)
    assert log.offset_for_timestamp(1_500, 2) is None


def test_a_timestamp_beyond_64_bits_is_never_returned(machine: Machine) -> None:
    """The batch is large, so the leader checked only its CRC."""
    _, log = machine.open_log(LogConfig())
    batch = beyond_all_times(40)
    append_batches(log, [(read_header(batch), batch)])
    assert log.offset_for_timestamp(1_500, 40) == (2**63 - 1, 0)


def test_an_undecodable_batch_yields_no_offset_below_the_log_start(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig())
    append_undecodable(log, 40, timestamp_ms=2_000)
    log.trim_before(10)
    assert log.offset_for_timestamp(1_500, 40) == (2_000, 10)


def test_rotten_bytes_of_a_batch_are_damage(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig())
    append(log, 1, timestamp_ms=1_000)
    machine.storage.flip_bit(f"{log.directory}/{0:020d}.log", 70)
    with pytest.raises(CorruptLog, match="CRC does not match"):
        log.offset_for_timestamp(1_000, 2)


@pytest.mark.parametrize("order", ["rising", "random"])
@pytest.mark.parametrize("suffix", [".timeindex", ".index"])
def test_a_flipped_bit_in_an_index_changes_no_answer(suffix: str, order: str) -> None:
    """An index is only a hint. D26: an answer that is too late makes a consumer skip records."""
    rng = random.Random(7)
    timestamps = [1_000 + 7 * number if order == "rising" else rng.randrange(1_000, 1_400) for number in range(60)]
    machine = Machine()
    directory, log = machine.open_log(CONFIG)
    fill(log, timestamps)
    drive(directory.close(True, {}))
    machine.kill()
    for name in machine.file_names(suffix):
        sound = machine.content(name)
        for bit in range(8 * len(sound)):
            rotten = bytearray(sound)
            rotten[bit // 8] ^= 1 << bit % 8
            machine.edit(name, bytes(rotten))
            directory, log = machine.open_log(CONFIG)
            for time_ms in sorted(set(timestamps))[::5]:
                assert log.offset_for_timestamp(time_ms, 60) == expected(timestamps, time_ms, 0, 60), (name, bit)
            drive(directory.close(True, {}))
            machine.kill()
        machine.edit(name, sound)


def test_a_time_index_of_another_segment_changes_no_answer(machine: Machine) -> None:
    directory, log = machine.open_log(CONFIG)
    timestamps = [1_000 + 7 * number for number in range(300)]
    fill(log, timestamps)
    drive(directory.close(True, {}))
    machine.kill()
    names = machine.file_names(".timeindex")
    machine.edit(names[2], machine.content(names[1]))
    _, log = machine.open_log(CONFIG)
    for offset in range(300):
        assert log.offset_for_timestamp(timestamps[offset], 300) == (timestamps[offset], offset)


def test_damage_that_hides_a_segments_largest_timestamp_is_reported(machine: Machine) -> None:
    """The segment is not skipped: the requested record may be after the damage."""
    config = LogConfig(segment_bytes=2_000, index_interval_bytes=10_000, retention_ms=None)
    directory, log = machine.open_log(config)
    timestamps = [1_000 + 7 * number for number in range(300)]
    fill(log, timestamps)
    drive(directory.close(True, {}))
    machine.kill()
    _, log = machine.open_log(config)
    first = log.segments[0]
    *_, (position, _) = first.headers_from(0)
    machine.storage.flip_bit(first.log_path, position + 16)  # the magic of its last batch
    last = log.segment_end(0) - 1
    with pytest.raises(CorruptLog, match="magic"):
        log.offset_for_timestamp(timestamps[last], 300)


def test_a_rotten_offset_is_never_returned(machine: Machine) -> None:
    """The CRC does not cover it."""
    _, log = machine.open_log(LogConfig())
    append(log, 3, timestamp_ms=1_000)
    append(log, 1, timestamp_ms=2_000)
    *_, (position, _) = log.segments[0].headers_from(0)
    machine.storage.flip_bit(log.segments[0].log_path, position + 7, 4)
    with pytest.raises(CorruptLog, match="belongs"):
        log.offset_for_timestamp(2_000, 8)


def claiming(batch: bytes | bytearray, max_timestamp: int) -> bytearray:
    """The batch with another largest timestamp in its header, under a sound CRC."""
    lying = bytearray(batch)
    struct.pack_into(">q", lying, 35, max_timestamp)
    struct.pack_into(">I", lying, 17, crc32c(memoryview(lying)[21:]))
    return lying


def test_a_header_that_claims_too_late_a_time_is_the_answer(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one lookup would decode all batches of a producer that lies, in the only loop of the broker."""
    _, log = machine.open_log(LogConfig())
    for _ in range(5):
        _, batch = make_batch(log.log_end_offset, 40, timestamp_ms=1_000)
        lying = claiming(batch, 9_000)
        append_batches(log, [(read_header(lying), lying)])
    decoding = Mock(side_effect=decode_records)
    monkeypatch.setattr(time_lookup, "decode_records", decoding)
    assert log.offset_for_timestamp(5_000, 200) == (9_000, 0)
    assert decoding.call_count == 1
