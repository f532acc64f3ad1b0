"""Deleting from the head: by size, by age, below the log's start, and never above the high watermark."""

from __future__ import annotations

import pytest
from msgspec import structs

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.retention import retention_start
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.runtime.ports import DiskError
from minibroker.simulation.world.clock import WALL_CLOCK_START_MS
from tests.broker.log.machine import PARTITION, PATH, SMALL, Machine, append, check_log, drive, retain, trim_epochs

NOW = WALL_CLOCK_START_MS
BY_SIZE = LogConfig(segment_bytes=1_000, index_interval_bytes=100, retention_ms=None, retention_bytes=2_000)
SMALLEST = LogConfig(segment_bytes=1_000, index_interval_bytes=100, retention_ms=None, retention_bytes=1)
BY_AGE = LogConfig(segment_bytes=1_000, index_interval_bytes=100, retention_ms=10_000)


@pytest.mark.invariant("I14")
@pytest.mark.parametrize("high_watermark", range(0, 82, 3))
def test_no_segment_above_the_high_watermark_is_deleted(machine: Machine, high_watermark: int) -> None:
    """B16, KAFKA-5634: retention must not outrun the followers."""
    _, log = machine.open_log(BY_AGE)
    append(log, 40, timestamp_ms=NOW)
    start = retain(log, high_watermark, NOW + 1_000_000)
    assert start == log.log_start_offset <= high_watermark
    assert log.log_end_offset == 80


def test_retention_by_size_keeps_the_newest_bytes(machine: Machine) -> None:
    _, log = machine.open_log(BY_SIZE)
    append(log, 40)
    start = retain(log, 80, NOW)
    assert start == log.segments[0].base_offset > 0
    assert 2_000 <= log.size_bytes < 3_000


@pytest.mark.parametrize(("too_many", "deleted"), [(0, True), (1, False)])
def test_retention_by_size_stops_at_exactly_its_bytes(machine: Machine, too_many: int, deleted: bool) -> None:
    """A segment goes if as many bytes as are to be kept remain without it, and stays if one would be missing."""
    _, log = machine.open_log(SMALL)
    append(log, 40)
    head, second = log.segments[:2]
    remaining = log.size_bytes - head.size
    log.config = structs.replace(BY_SIZE, retention_bytes=remaining + too_many)
    assert retain(log, 80, NOW) == (second.base_offset if deleted else 0)


def test_retention_by_age_keeps_younger_segments(machine: Machine) -> None:
    _, log = machine.open_log(BY_AGE)
    for number in range(40):
        machine.clock_skew_ms = number * 1_000
        append(log, 1)
    now_ms = machine.clock().now_ms()
    start = retain(log, 80, now_ms)
    assert now_ms - machine.disk().modified_ms(log.segments[0].log_path) <= 10_000
    assert start == log.segments[0].base_offset
    assert log.segment_count > 1


def test_a_disk_that_does_not_tell_the_age_takes_the_directory_offline(machine: Machine) -> None:
    directory, log = machine.open_log(BY_AGE)
    append(log, 40)
    machine.storage.fail("read")
    with pytest.raises(DiskError):
        retention_start(log, 80, NOW)
    assert directory.offline


def test_a_segment_is_as_old_as_its_last_append(machine: Machine) -> None:
    _, log = machine.open_log(BY_AGE)
    append(log, 3)
    machine.clock_skew_ms = 10_000
    append(log, 1)
    assert log.segment_count == 1
    assert retain(log, 8, machine.clock().now_ms()) == 0


@pytest.mark.parametrize("timestamp_ms", [0, NOW - 10**9, NOW + 10**12])
def test_retention_ignores_the_clocks_of_clients(machine: Machine, timestamp_ms: int) -> None:
    """Records are as old as their append: a backfill is not deleted at once, and no record is kept for ever."""
    _, log = machine.open_log(BY_AGE)
    append(log, 20, timestamp_ms=timestamp_ms)
    assert retain(log, 40, NOW + 10_000) == 0
    assert retain(log, 40, NOW + 10_001) == 40


def test_an_old_active_segment_is_rolled_and_deleted(machine: Machine) -> None:
    _, log = machine.open_log(BY_AGE)
    append(log, 2)
    assert retain(log, 4, NOW + 10_001) == 4
    assert (log.log_end_offset, log.size_bytes, log.segment_count) == (4, 0, 1)
    append(log, 1)
    assert log.log_end_offset == 6


def test_an_old_active_segment_stays_on_a_full_disk_which_is_noted(machine: Machine) -> None:
    """There is no room for its successor."""
    _, log = machine.open_log(BY_AGE)
    append(log, 2)
    machine.storage.fail("open", f"{PATH}/{PARTITION}/{4:020d}.log", times=1, is_full=True)
    retain(log, 4, NOW + 10_001)
    assert machine.file_names(".log") == [f"{0:020d}.log"]
    assert log.health.full
    before = machine.storage.trace.events
    assert not log.rolled_for_retention()
    assert machine.storage.trace.events == before, "it is not tried again on a full disk"
    assert log.health.try_heal()
    retain(log, 4, NOW + 10_001)
    assert machine.file_names(".log") == [f"{4:020d}.log"]


@pytest.mark.invariant("I21")
def test_an_empty_active_segment_outlives_all_that_is_deleted_in_front_of_it(machine: Machine) -> None:
    """An idle log is rolled by segment.ms, and then all in front of its empty segment is too old (seed 18000207): that
    segment was rolled to its own name and deleted, and what was appended next went into a deleted file."""
    config = LogConfig(segment_bytes=1_000, segment_ms=5_000, index_interval_bytes=100, retention_ms=10_000)
    _, log = machine.open_log(config)
    append(log, 3)
    log.roll_if_aged(NOW + 1_000_000)
    assert log.segments[-1].size == 0
    assert retain(log, 6, NOW + 1_000_000) == 6
    assert machine.file_names(".log") == [f"{6:020d}.log"]
    append(log, 1)
    drive(log.flush())
    machine.kill()
    _, log = machine.open_log(config)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 6, 8)


def test_retention_by_size_keeps_the_active_segment(machine: Machine) -> None:
    config = LogConfig(retention_ms=None, retention_bytes=0)
    _, log = machine.open_log(config)
    append(log, 10)
    assert retain(log, 20, NOW) == 0


def test_segments_below_the_log_start_are_deleted(machine: Machine) -> None:
    _, log = machine.open_log(SMALL)
    append(log, 40)
    log.trim_before(33)
    assert retain(log, 80, NOW) == 33
    assert log.segments[0].base_offset <= 33 < log.segments[1].base_offset
    trim_epochs(log)
    check_log(log, whole_history=False)


def test_files_are_renamed_at_once_and_removed_after_the_delay(machine: Machine) -> None:
    config = LogConfig(segment_bytes=1_000, retention_ms=None, retention_bytes=1, file_delete_delay_ms=60_000)
    _, log = machine.open_log(config)
    append(log, 30)
    before = len(machine.file_names(".log"))
    retain(log, 60, NOW)
    renamed = len(machine.file_names(".log.deleted"))
    assert renamed == before - len(machine.file_names(".log")) > 0
    assert drive(log.remove_deleted(NOW + 59_999)) == 0
    assert drive(log.remove_deleted(NOW + 60_000)) >= renamed
    assert machine.file_names(".deleted") == []
    logs = {name.removesuffix(".log") for name in machine.file_names(".log")}
    assert {name.split(".")[0] for suffix in ("index", ".snapshot") for name in machine.file_names(suffix)} <= logs


def test_files_whose_delay_was_shortened_go_before_earlier_ones(machine: Machine) -> None:
    """The files that are not due yet must not be forgotten for those that are."""
    long, short = (
        LogConfig(segment_bytes=1_000, retention_ms=None, retention_bytes=1, file_delete_delay_ms=delay_ms)
        for delay_ms in (60_000, 0)
    )
    _, log = machine.open_log(long)
    append(log, 30)
    retain(log, 60, NOW)
    waiting = machine.file_names(".deleted")
    log.config = short
    append(log, 30)
    retain(log, 120, NOW)
    assert drive(log.remove_deleted(NOW)) > 0
    assert machine.file_names(".deleted") == waiting
    drive(log.remove_deleted(NOW + 60_000))
    assert machine.file_names(".deleted") == []


def test_files_that_could_not_be_removed_are_removed_later(machine: Machine) -> None:
    """On some file systems a removal needs room. Files that were forgotten then would stay until a restart, and with
    them the disk would stay full."""
    directory, log = machine.open_log(BY_SIZE)
    append(log, 40)
    retain(log, 80, NOW)
    waiting = machine.file_names(".deleted")
    assert len(waiting) > 1
    machine.storage.fail("remove", f"{PATH}/{PARTITION}/{waiting[-1]}", times=1, is_full=True)
    drive(directory.maintain(NOW + 1_000_000))
    assert machine.file_names(".deleted")
    drive(directory.maintain(NOW + 1_000_000))
    assert machine.file_names(".deleted") == []


@pytest.mark.parametrize("lack", ["is_full", "no_descriptor"])
def test_the_directory_of_a_deleted_log_that_could_not_be_removed_is_removed_later(machine: Machine, lack: str) -> None:
    directory, log = machine.open_log(BY_SIZE)
    append(log, 40)
    directory.delete_log(PARTITION)
    deleted = [name for name in machine.disk().list_directory(PATH) if name.endswith("-delete")]
    assert len(deleted) == 1
    machine.storage.fail("remove", f"{PATH}/{deleted[0]}", times=1, **{lack: True})
    drive(directory.maintain(NOW))
    assert deleted[0] in machine.disk().list_directory(PATH)
    drive(directory.maintain(NOW))
    assert deleted[0] not in machine.disk().list_directory(PATH)


@pytest.mark.parametrize("is_due", [True, False])
def test_nothing_is_removed_in_a_directory_that_has_failed(machine: Machine, is_due: bool) -> None:
    _, log = machine.open_log(BY_SIZE)
    append(log, 40)
    retain(log, 80, NOW)
    waiting = machine.file_names(".deleted")
    assert waiting
    log.health.record_error(DiskError("a test says so"))
    assert log.health.offline
    assert drive(log.remove_deleted(NOW + (1_000_000 if is_due else -1))) == 0
    assert machine.file_names(".deleted") == waiting


def test_a_renamed_file_is_removed_after_a_restart(machine: Machine) -> None:
    _, log = machine.open_log(BY_SIZE)
    append(log, 40)
    start = retain(log, 80, NOW)
    machine.kill()
    _, log = machine.open_log(BY_SIZE)
    assert machine.file_names(".deleted") == []
    assert log.log_start_offset == start


def test_snapshots_are_deleted_with_their_segments(machine: Machine) -> None:
    _, log = machine.open_log(BY_SIZE)
    append(log, 40)
    retain(log, 80, NOW)
    assert int(machine.file_names(".snapshot")[0][:20]) == log.log_start_offset


@pytest.mark.parametrize("cause", ["damaged", "made again"])
def test_nothing_is_deleted_for_a_log_that_is_damaged_or_gone(machine: Machine, cause: str) -> None:
    """A damaged log may be the only copy; where a deleted one was, there may be the log of another topic."""
    directory, log = machine.open_log(BY_SIZE)
    append(log, 40)
    retain(log, 80, NOW)
    append(log, 40)
    drive(log.record_start(150, LogStartReason.RETENTION))
    log.trim_before(150)
    if cause == "damaged":
        log.mark_damaged("a test says so")
    else:
        directory.delete_log(PARTITION)
        append(directory.create_log(PARTITION, "another-id", BY_SIZE), 80)
    before = machine.storage.trace.events
    log.config = SMALLEST
    assert retention_start(log, 160, NOW + 1_000_000) == 150
    assert delete_head(log, 150) == log.segments[0].base_offset < 100
    assert drive(log.remove_deleted(NOW + 1_000_000)) == 0
    assert machine.storage.trace.events == before


def test_settings_can_be_changed_at_runtime(machine: Machine) -> None:
    _, log = machine.open_log(SMALL)
    append(log, 40)
    assert retain(log, 80, NOW) == 0
    log.config = BY_SIZE
    assert retain(log, 80, NOW) > 0


def test_reading_continues_after_the_deleted_segments(machine: Machine) -> None:
    _, log = machine.open_log(BY_SIZE)
    written = append(log, 40)
    start = retain(log, 80, NOW)
    found = log.read(start, 1_000_000, 80)
    assert b"".join(found.parts).startswith(bytes(written[start // 2][1]))
