"""Appending and reading one log, through memory and through the files."""

from __future__ import annotations

import pytest

from minibroker.broker.log.config import SEGMENT_POSITION_MAX, LogConfig
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.protocol.files.checkpoints import decode_index
from tests.broker.log.machine import (
    PARTITION,
    PATH,
    SMALL,
    Machine,
    append,
    append_batches,
    check_log,
    drive,
    make_batch,
    read_all,
)


@pytest.fixture(params=["memory", "files"])
def tail_cache(request: pytest.FixtureRequest) -> TailCache:
    return TailCache() if request.param == "memory" else TailCache(bytes_max=0)


def test_an_appended_batch_is_read_back_as_the_same_bytes(machine: Machine, tail_cache: TailCache) -> None:
    _, log = machine.open_log(tail_cache=tail_cache)
    written = append(log, 50)
    assert read_all(log) == b"".join(batch for _, batch in written)


def test_the_log_ends_after_the_last_record(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 3, records=5)
    assert log.log_end_offset == 15


@pytest.mark.parametrize(("missing_bytes", "segments"), [(0, 2), (1, 4)])
def test_a_segment_takes_what_fits_to_the_last_byte(machine: Machine, missing_bytes: int, segments: int) -> None:
    size = len(make_batch(0)[1])
    _, log = machine.open_log(LogConfig(segment_bytes=2 * size - missing_bytes))
    append(log, 4)
    assert len(log.segments) == segments


def test_a_segment_ends_before_a_position_or_offset_has_more_than_its_32_bits(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 1)
    segment = log.segments[0]
    assert not segment.is_exhausted(SEGMENT_POSITION_MAX - segment.size, SEGMENT_POSITION_MAX)
    assert segment.is_exhausted(SEGMENT_POSITION_MAX - segment.size + 1, 1)
    assert segment.is_exhausted(1, SEGMENT_POSITION_MAX + 1)


def test_several_batches_are_written_with_one_append(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 1)  # of this epoch, which the epoch file names from now on
    first, second = make_batch(2, 3), make_batch(5, 2)
    before = machine.storage.trace.events
    log.append([first, second])
    assert log.log_end_offset == 7
    assert machine.storage.trace.events == before + 1


def test_the_epoch_file_is_written_once_for_the_batches_of_an_epoch(machine: Machine) -> None:
    """As a follower appends, which learns of an epoch by its batches."""
    _, log = machine.open_log(LogConfig())
    for epoch in (0, 1, 5):
        log.append([make_batch(log.log_end_offset, epoch=epoch)])
        assert log.epochs_stored
        for _ in range(3):
            before = machine.storage.trace.events
            log.append([make_batch(log.log_end_offset, epoch=epoch)])
            assert machine.storage.trace.events == before + 1, "the batch alone"


@pytest.mark.invariant("I13")
def test_an_epoch_that_was_cut_away_is_written_again_with_its_next_batch(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig())
    for epoch in (0, 0, 1):
        log.append([make_batch(log.log_end_offset, epoch=epoch)])
    log.truncate_to(2)
    log.append([make_batch(2, epoch=1)])
    assert log.epoch_entries() == [(0, 0), (1, 2)]
    assert b"1 2" in machine.content("leader-epoch-checkpoint")


@pytest.mark.parametrize("moved_by", [-2, -1, 1, 2])
@pytest.mark.parametrize("is_behind_a_sound_one", [False, True])
def test_batches_that_do_not_continue_the_log_are_a_bug_and_not_written(
    machine: Machine, moved_by: int, is_behind_a_sound_one: bool
) -> None:
    """Otherwise the file would have a gap or one offset twice, which the next start takes for damage."""
    _, log = machine.open_log()
    append(log, 3)
    sound = [make_batch(6)] if is_behind_a_sound_one else []
    with pytest.raises(AssertionError, match="continue the log"):
        log.append([*sound, make_batch(6 + 2 * len(sound) + moved_by)])
    assert log.log_end_offset == 6
    check_log(log)


def test_a_look_up_walks_no_further_than_the_index_is_sparse(machine: Machine) -> None:
    """Also in a segment that does not begin at offset 0; a large segment would cost megabytes for each read."""
    interval = 300
    _, log = machine.open_log(LogConfig(segment_bytes=2_000, index_interval_bytes=interval))
    append(log, 100)
    assert log.segment_count > 3
    for segment in log.segments:
        for position, header in segment.headers_from(0):
            first, _ = next(segment.headers_around(header.base_offset))
            assert position - first <= interval + 2 * header.size_bytes, (segment.base_offset, position)


def test_a_read_starts_with_the_batch_that_holds_the_offset(machine: Machine, tail_cache: TailCache) -> None:
    _, log = machine.open_log(tail_cache=tail_cache)
    append(log, 40, records=3)
    for offset in range(log.log_end_offset):
        found = log.read(offset, 1, log.log_end_offset)
        assert found.base_offset == offset - offset % 3
        assert found.next_offset == found.base_offset + 3


def test_a_read_ends_at_or_below_the_given_end_offset(machine: Machine, tail_cache: TailCache) -> None:
    _, log = machine.open_log(tail_cache=tail_cache)
    append(log, 4, records=3)
    for end_offset in range(13):
        found = log.read(0, 10_000, end_offset)
        assert found.next_offset == end_offset - end_offset % 3


def test_a_read_that_ends_anywhere_within_a_batch_gives_the_whole_ones_before_it(machine: Machine) -> None:
    _, log = machine.open_log(tail_cache=TailCache(bytes_max=0))
    (_, batch), *_ = append(log, 3)
    size = len(batch)
    for max_bytes in range(size, 3 * size + 2):
        found = log.read(0, max_bytes, log.log_end_offset)
        assert (found.size_bytes, found.next_offset) == (max_bytes // size * size, max_bytes // size * 2)


def test_an_index_entry_that_points_elsewhere_changes_no_read_and_no_cut(machine: Machine) -> None:
    """An index is only a hint: an entry of another batch, or of none, is not followed."""
    _, log = machine.open_log(LogConfig(index_interval_bytes=200), tail_cache=TailCache(bytes_max=0))
    (_, batch), *_ = append(log, 11)
    [segment] = log.segments
    segment.save_index()
    name = f"{0:020d}.index"
    sound = machine.content(name)
    assert len(decode_index(sound)) == 5
    for at, entry in enumerate(decode_index(sound)):
        for moved_by in (-len(batch), -1, 1, len(batch) - 1, len(batch)):
            position = (entry.position + moved_by).to_bytes(4)
            segment.close()
            machine.edit(name, sound[: 8 * at + 4] + position + sound[8 * at + 8 :])
            for offset in range(22):
                assert log.read(offset, 1, 22).base_offset == offset - offset % 2, (at, moved_by, offset)
                assert segment.end_at(offset) == offset - offset % 2, (at, moved_by, offset)


def test_the_first_batch_is_read_even_if_it_exceeds_max_bytes(machine: Machine, tail_cache: TailCache) -> None:
    _, log = machine.open_log(tail_cache=tail_cache)
    (header, batch), *_ = append(log, 2, value=b"x" * 300)
    found = log.read(0, 10, log.log_end_offset)
    assert b"".join(found.parts) == batch
    assert found.next_offset == header.end_offset


def test_a_read_returns_at_most_max_bytes(machine: Machine, tail_cache: TailCache) -> None:
    _, log = machine.open_log(LogConfig(index_interval_bytes=100), tail_cache=tail_cache)
    (_, batch), *_ = append(log, 10)
    for max_bytes in (3 * len(batch), 3 * len(batch) + 5):
        assert log.read(0, max_bytes, log.log_end_offset).size_bytes == 3 * len(batch)


def test_a_read_at_the_end_is_empty(machine: Machine, tail_cache: TailCache) -> None:
    _, log = machine.open_log(tail_cache=tail_cache)
    append(log, 1)
    found = log.read(2, 1_000, 2)
    assert (found.parts, found.size_bytes, found.next_offset, found.last_epoch) == ([], 0, 2, None)


def test_a_read_names_the_epoch_of_its_last_batch(machine: Machine, tail_cache: TailCache) -> None:
    _, log = machine.open_log(LogConfig(), tail_cache=tail_cache)
    append(log, 2, epoch=3)
    append(log, 2, epoch=7)
    assert log.read(0, 10_000, 4).last_epoch == 3
    assert log.read(0, 10_000, 8).last_epoch == 7


def test_recent_batches_cost_no_system_call(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 30)
    machine.storage.fail("read")
    machine.storage.fail("open")
    assert log.read(0, 1_000_000, log.log_end_offset).next_offset == log.log_end_offset


def test_damaged_bytes_are_never_served(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig(), tail_cache=TailCache(bytes_max=0))
    (_, batch), *_ = append(log, 3)
    machine.storage.flip_bit(f"{PATH}/{PARTITION}/{0:020d}.log", len(batch) + 70)
    assert log.read(0, 10_000, log.log_end_offset).next_offset == 2
    with pytest.raises(CorruptLog, match=f"position {len(batch)}"):
        log.read(2, 10_000, log.log_end_offset)


def test_a_first_batch_of_an_epoch_under_the_epoch_before_is_not_served(machine: Machine) -> None:
    """The CRC does not cover the epoch: only the history tells that a bit of it rotted."""
    _, log = machine.open_log(LogConfig(index_interval_bytes=100), tail_cache=TailCache(0))
    append(log, 4, epoch=2)
    append(log, 4, epoch=3)
    machine.storage.flip_bit(log.segments[0].log_path, 4 * len(make_batch(0)[1]) + 15)
    assert log.read(0, 100_000, 16).next_offset == 8
    with pytest.raises(CorruptLog, match="leader epoch 2 at offset 8, which epoch 3 wrote"):
        log.read(8, 100_000, 16)


def test_a_check_reads_the_disk_where_the_log_has_a_batch_and_nowhere_else(machine: Machine) -> None:
    """What was deleted or cut away meanwhile is no damage."""
    _, log = machine.open_log()
    (_, batch), *_ = append(log, 3)
    log.trim_before(2)
    for number in range(3):
        machine.storage.flip_bit(log.segments[0].log_path, len(batch) * number + 70)
    for offset in (0, 1, 6, 7):
        log.check_at(offset)
    for offset in (2, 3, 4, 5):
        with pytest.raises(CorruptLog):
            log.check_at(offset)


def test_a_changed_base_offset_is_detected_without_a_crc(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig(), tail_cache=TailCache(bytes_max=0))
    (_, batch), *_ = append(log, 3)
    machine.storage.flip_bit(f"{PATH}/{PARTITION}/{0:020d}.log", len(batch) + 7, bit=5)
    assert log.read(0, 10_000, log.log_end_offset).next_offset == 2


@pytest.mark.invariant("I12", "I15")
def test_segments_roll_by_size_and_their_indexes_follow_from_the_batches(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 60)
    assert log.segment_count > 5
    assert all(segment.size <= SMALL.segment_bytes for segment in log.segments)
    check_log(log)


def test_a_set_larger_than_a_segment_gets_one_of_its_own(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 1)
    batches = [make_batch(2 + 2 * number) for number in range(20)]
    append_batches(log, batches)
    append(log, 1)
    assert [segment.base_offset for segment in log.segments] == [0, 2, 42]


def test_a_full_index_rolls_the_segment(machine: Machine) -> None:
    config = LogConfig(index_interval_bytes=10, segment_index_bytes=32)
    _, log = machine.open_log(config)
    append(log, 20)
    assert all(len(segment._loaded_index()) <= 4 for segment in log.segments)
    assert log.segment_count > 1


def test_an_aged_segment_rolls(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig(segment_ms=1_000))
    append(log, 1)
    started = machine.clock().now_ms()
    log.roll_if_aged(started + 999)
    assert log.segment_count == 1
    log.roll_if_aged(started + 1_000)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_an_empty_segment_never_rolls(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig(segment_ms=1))
    log.roll_if_aged(machine.clock().now_ms() + 1_000_000)
    assert log.segment_count == 1


@pytest.mark.parametrize(("kept", "segments"), [(0, 1), (2, 2)])
def test_a_segment_that_was_cut_to_nothing_is_as_old_as_its_next_record(
    machine: Machine, kept: int, segments: int
) -> None:
    """Its age was once that of a record that was gone."""
    _, log = machine.open_log(LogConfig(segment_ms=1_000))
    append(log, 2)
    started = machine.clock().now_ms()
    log.truncate_to(kept)
    machine.clock_skew_ms += 900
    append(log, 1)
    drive(log.flush())
    log.roll_if_aged(started + 1_000)
    assert log.segment_count == segments


def test_an_append_right_after_a_restart_does_not_make_the_segment_young(machine: Machine) -> None:
    """Before its age was first asked for, it began again, so that a broker that is restarted often rolled no segment by
    segment.ms."""
    directory, log = machine.open_log(LogConfig(segment_ms=1_000))
    written_ms = machine.clock().now_ms()
    append(log, 1, timestamp_ms=written_ms)
    drive(directory.close(True, {}))
    machine.clock_skew_ms += 900
    log = machine.open_log(LogConfig(segment_ms=1_000))[1]
    append(log, 1, timestamp_ms=written_ms + 900)
    log.roll_if_aged(written_ms + 999)
    assert log.segment_count == 1
    log.roll_if_aged(written_ms + 1_000)
    assert log.segment_count == 2


def test_after_a_restart_the_age_counts_from_the_first_batch(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig(segment_ms=1_000))
    written_ms = machine.clock().now_ms()
    append(log, 1, timestamp_ms=written_ms)
    machine.kill()
    directory, log = machine.open_log(LogConfig(segment_ms=1_000))
    drive(directory.maintain(0))
    log.roll_if_aged(written_ms + 999)
    assert log.segment_count == 1
    log.roll_if_aged(written_ms + 1_000)
    assert log.segment_count == 2


def test_a_segment_whose_first_batch_is_damaged_is_as_old_as_its_file(machine: Machine) -> None:
    config = LogConfig(segment_ms=1_000)
    directory, log = machine.open_log(config)
    append(log, 3)
    drive(directory.close(True, {}))
    log = machine.open_log(config)[1]
    machine.storage.flip_bit(log.segments[0].log_path, 16, 1)
    log.roll_if_aged(machine.clock().now_ms() + 999)
    assert log.segment_count == 1
    log.roll_if_aged(machine.clock().now_ms() + 1_001)
    assert log.segment_count == 2


def test_a_client_s_clock_does_not_roll_segments(machine: Machine) -> None:
    _, log = machine.open_log(LogConfig(segment_ms=1_000))
    now_ms = machine.clock().now_ms()
    for step in range(10):
        append(log, 1, timestamp_ms=now_ms + step * 1_000_000)
        log.roll_if_aged(now_ms + step)
    assert log.segment_count == 1


def test_there_is_data_only_below_both_bounds(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 1)
    assert log.has_data(1, 2)
    assert not log.has_data(2, 10)
    assert not log.has_data(0, 0)


@pytest.mark.parametrize("end_offset", [4, 5, 20])
def test_a_read_without_a_whole_batch_below_the_end_is_empty(machine: Machine, end_offset: int) -> None:
    """At the log's end, and where the high watermark lies within the batch."""
    _, log = machine.open_log()
    append(log, 10)
    offset = 4 if end_offset < 20 else 20
    for _ in range(2):
        part = log.read(offset, 1_000, end_offset)
        assert (part.parts, part.size_bytes, part.base_offset, part.next_offset) == ([], 0, offset, offset)
        log._tail.clear()
