"""Where a log starts: a recorded start explains a missing head; anything else missing is damage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.open_log import OpenLog
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.checkpoints import LOG_START, LogStart, LogStartReason, format_log_start, parse_log_start
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import iterate_headers
from minibroker.runtime.ports import OutOfDescriptors
from tests.broker.log.machine import (
    PARTITION,
    PATH,
    TOPIC_ID,
    Machine,
    append,
    drive,
    read_all,
    reset,
    retain,
    truncate,
)

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
BY_SIZE = LogConfig(segment_bytes=600, index_interval_bytes=100, retention_ms=None, retention_bytes=2_000)


def synced(machine: Machine, config: LogConfig = CONFIG, count: int = 30) -> tuple[LogDirectory, PartitionLog]:
    """A log with several closed segments below the recovery point."""
    directory, log = machine.open_log(config)
    append(log, count)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    return directory, log


def restart(machine: Machine, config: LogConfig = CONFIG) -> PartitionLog:
    machine.kill()
    return machine.open_log(config)[1]


def rot_last_base_offset(machine: Machine, log: PartitionLog) -> None:
    """Flip one bit of the last base offset of the second segment, 1 -> 0."""
    content = machine.content(f"{log.segments[1].base_offset:020d}.log")
    position, header = list(iterate_headers(content))[-1]
    bit = next(bit for bit in range(8) if header.base_offset >> bit & 1)
    machine.storage.flip_bit(log.segments[1].log_path, position + 7, bit)


# ------------------------------------------------------------------------------------------------------ contradictions
@pytest.mark.parametrize(
    ("offset", "is_certain", "recorded"), [(None, False, 0), (None, True, 0), (3, False, 0), (3, True, 3), (9, True, 7)]
)
def test_a_start_counts_as_recorded_once_it_is_certain(offset: int | None, is_certain: bool, recorded: int) -> None:
    record = SimpleNamespace(known=None if offset is None else SimpleNamespace(offset=offset), is_certain=is_certain)
    log = cast(Any, SimpleNamespace(start_record=record, log_start_offset=7))
    assert cast(Any, OpenLog.recorded_start_offset).fget(log) == recorded


@pytest.mark.invariant("I39")
@pytest.mark.parametrize("clean", [False, True])
def test_a_flipped_bit_in_a_base_offset_does_not_look_like_a_deletion(machine: Machine, clean: bool) -> None:
    """D01: 63 of 65 records were removed as the leftover of a deletion, and the other replicas followed."""
    directory, log = synced(machine)
    rot_last_base_offset(machine, log)
    if clean:
        drive(directory.close(True, {}))
    names = machine.file_names(".log")
    log = restart(machine)
    assert "does not reach" in str(log.damage)
    assert log.log_start_offset == 0
    assert machine.file_names(".log") == names


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_missing_segment_is_damage(machine: Machine, number: int) -> None:
    """D13: the oldest one, or any below the recovery point; nothing else is removed for it."""
    _, log = synced(machine)
    machine.disk().remove(log.segments[number].log_path)
    names = machine.file_names(".log")
    log = restart(machine)
    assert log.damage is not None
    assert machine.file_names(".log") == names


def test_a_log_without_any_segment_is_damaged(machine: Machine) -> None:
    _, log = synced(machine)
    for name in machine.file_names(".log"):
        machine.disk().remove(f"{log.directory}/{name}")
    assert "no segment" in str(restart(machine).damage)


def test_a_damaged_index_does_not_damage_the_log(machine: Machine) -> None:
    _, log = synced(machine)
    expected = read_all(log)
    for name in machine.file_names(".index"):
        machine.storage.flip_bit(f"{log.directory}/{name}", 3)
        machine.storage.flip_bit(f"{log.directory}/{name}", 7)
    log = restart(machine)
    assert log.damage is None
    assert read_all(log) == expected


def test_a_misfit_above_the_recovery_point_is_a_torn_tail(machine: Machine) -> None:
    _, log = machine.open_log(CONFIG)
    append(log, 30)
    end = log.segments[2].base_offset
    machine.storage.flip_bit(log.segments[2].log_path, 70)
    machine.storage.boots += 1
    log = restart(machine)
    assert (log.damage, log.log_end_offset) == (None, end)


def test_no_closed_segment_is_cut_if_the_recovery_point_is_unreadable(machine: Machine) -> None:
    _, log = synced(machine)
    machine.storage.flip_bit(f"{PATH}/recovery-point-offset-checkpoint", 20)
    machine.storage.flip_bit(log.segments[1].log_path, 70)
    log = restart(machine)
    assert log.damage is not None
    assert log.report.bytes_cut == 0


# ------------------------------------------------------------------------------------------------------------ the file
def test_the_first_start_of_a_new_log_counts_as_recorded(machine: Machine) -> None:
    """It would be written once more otherwise, with a sync."""
    assert machine.open_log(CONFIG)[1].is_start_recorded


def test_a_start_is_recorded_before_the_first_segment_is_deleted(machine: Machine) -> None:
    _, log = synced(machine, BY_SIZE)
    log.trim_before(40, LogStartReason.RETENTION)
    assert delete_head(log, 40) == 0
    drive(log.record_start())
    assert 0 < delete_head(log, 40) <= 40
    assert log.log_start_offset == 40


@pytest.mark.invariant("I10", "I39")
def test_a_deletion_is_explained_after_any_crash(machine: Machine) -> None:
    _, log = synced(machine, BY_SIZE)
    start = retain(log, 60, 0)
    assert start == log.segments[0].base_offset > 0
    machine.lose_power()
    _, log = machine.open_log(BY_SIZE)
    assert (log.damage, log.log_start_offset, log.start_reason) == (None, start, LogStartReason.RETENTION)


@pytest.mark.parametrize("damage", ["missing", "garbled", "empty"])
@pytest.mark.parametrize("has_head", [True, False])
def test_an_unreadable_start_explains_nothing(machine: Machine, damage: str, has_head: bool) -> None:
    """The safe value is 0: a log that begins there is complete; whether one that begins later is, is unknown."""
    _, log = synced(machine, CONFIG if has_head else BY_SIZE)
    retain(log, 60, 0)
    path = f"{log.directory}/log-start"
    if damage == "missing":
        machine.disk().remove(path)
    else:
        machine.disk().replace_file(path, b"" if damage == "empty" else bytes(8_192))
    log = restart(machine)
    assert (log.damage is None) == has_head
    if has_head:
        assert log.log_start_offset == 0


@pytest.mark.parametrize("starts", [(0, 10), (0, 10, 20), (0, 3, 10, 20)])
def test_a_torn_write_of_the_start_leaves_the_earlier_start(machine: Machine, starts: tuple[int, ...]) -> None:
    _, log = synced(machine)
    for start in starts[1:]:
        log.trim_before(start)
        drive(log.record_start())
    content = bytearray(machine.content("log-start"))
    (_, change) = parse_log_start(bytes(content))
    slot = change % 2 * 4_096
    content[slot : slot + 4_096] = bytes(4_096)
    machine.edit("log-start", bytes(content))
    log = restart(machine)
    assert (log.log_start_offset, log.damage) == (starts[-2], None)
    assert log.start_record.known is not None, "the file is sound"


def test_a_start_needs_no_room_on_a_full_disk(machine: Machine) -> None:
    _, log = synced(machine, BY_SIZE)
    machine.storage.capacity_bytes = machine.storage.used_bytes
    assert retain(log, 60, 0) > 0


def test_a_start_is_recorded_anew_if_its_file_was_removed(machine: Machine) -> None:
    _, log = synced(machine, BY_SIZE)
    machine.disk().remove(f"{log.directory}/{LOG_START}")
    start = retain(log, 60, 0)
    machine.lose_power()
    log = machine.open_log(BY_SIZE)[1]
    assert (log.damage, log.log_start_offset) == (None, start)
    assert start > 0


@pytest.mark.parametrize("is_damaged", [True, False])
def test_only_a_start_that_differs_from_the_recorded_one_is_written_and_none_of_a_damaged_log(
    machine: Machine, is_damaged: bool
) -> None:
    directory, log = synced(machine)
    drive(directory.record_log_starts())
    before = machine.storage.trace.events
    drive(directory.record_log_starts())
    assert machine.storage.trace.events == before
    if is_damaged:
        log.mark_damaged("a test says so")
        before = machine.storage.trace.events
    log.trim_before(30)
    drive(directory.record_log_starts())
    assert (machine.storage.trace.events == before) is is_damaged


@pytest.mark.parametrize(("high_watermark", "reason"), [(40, LogStartReason.RESET), (0, LogStartReason.CREATED)])
def test_a_log_that_began_again_says_so_until_no_checkpoint_promises_more(
    machine: Machine, high_watermark: int, reason: LogStartReason
) -> None:
    """Else the next start takes it for a log that has lost what the former one had."""
    directory, log = synced(machine)
    log.reset_to(0)
    log.start_reason = LogStartReason.RESET
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    directory._checkpoints.high_watermarks[PARTITION] = high_watermark
    directory._checkpoints._forget_former_logs()
    assert log.start_reason is reason


def test_a_start_that_falls_is_recorded_at_once(machine: Machine) -> None:
    """Otherwise new records below the old start would count as deleted after a crash."""
    _, log = synced(machine)
    log.trim_before(30)
    drive(log.record_start())
    log.reset_to(5)
    assert (log.recorded_start_offset, log.is_start_recorded) == (5, True)
    append(log, 4)
    log = restart(machine)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 5, 13)


def test_a_start_is_lowered_as_far_as_the_files_reach(machine: Machine) -> None:
    _, log = synced(machine)
    log.trim_before(40)
    assert log.lower_start(7) == 7
    log.trim_before(40)
    drive(log.record_start())
    first = delete_head(log, 40)
    assert first > 7
    assert log.lower_start(7) == first


# ---------------------------------------------------------------------------------------------------------- ownership
@pytest.mark.invariant("I21", "I39")
def test_a_start_of_another_topic_is_damage(machine: Machine) -> None:
    """D04: the start is not applied, and the log does not go to the topic that the start names."""
    _, log = synced(machine)
    other = LogStart(topic_id="another-id", partition=0, offset=40, reason=LogStartReason.RETENTION)
    machine.edit("log-start", format_log_start(other) + bytes(4_096))
    names = machine.file_names(".log")
    machine.kill()
    log = machine.open(CONFIG).logs[PARTITION]
    assert "topic another-id" in str(log.damage)
    assert log.topic_id is None
    assert machine.file_names(".log") == names


def test_a_lost_metadata_file_is_written_again_from_the_start(machine: Machine) -> None:
    _, log = synced(machine)
    machine.disk().remove(f"{log.directory}/partition.metadata")
    machine.kill()
    assert machine.open(CONFIG).logs[PARTITION].topic_id == TOPIC_ID
    assert "partition.metadata" in machine.file_names()


@pytest.mark.invariant("I21")
def test_a_start_that_waits_for_another_one_does_not_replace_a_later_one_written_at_once(machine: Machine) -> None:
    """It would be above records that were appended since."""
    _, log = synced(machine)
    record = log.start_record
    reason = LogStartReason.RETENTION
    first, second, falls = (LogStart(topic_id=TOPIC_ID, partition=0, offset=at, reason=reason) for at in (8, 16, 4))

    def wanted(start: LogStart) -> Callable[[], LogStart]:
        return lambda: start

    async def fall_meanwhile() -> None:
        writes = [asyncio.ensure_future(record.write(wanted(each))) for each in (first, second)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        record.write_at_once(falls)
        await asyncio.gather(*writes)

    machine.loop.run_until_complete(fall_meanwhile())
    assert record.known == falls
    assert parse_log_start(machine.content(LOG_START))[0] == falls


async def raise_start(log: PartitionLog, start: int) -> None:
    await log.record_start(start, LogStartReason.RETENTION)
    log.trim_before(start, LogStartReason.RETENTION)
    delete_head(log, start)


@pytest.mark.invariant("I39")
@pytest.mark.parametrize("waiting", ["correction", "lower start"])
def test_a_start_that_waits_for_a_higher_one_does_not_replace_it(machine: Machine, waiting: str) -> None:
    """Files in front of the higher one are gone by then, so the next start would find damage (seed 17403586). The
    correction is due because an earlier start was recorded and not applied."""
    directory, log = synced(machine)
    drive(log.record_start(20, LogStartReason.RETENTION))
    waits = directory.record_log_starts() if waiting == "correction" else raise_start(log, 24)

    async def raise_meanwhile() -> None:
        await asyncio.gather(raise_start(log, 40), waits)

    machine.loop.run_until_complete(raise_meanwhile())
    assert log.segments[0].base_offset > 24
    log = restart(machine)
    assert (log.damage, log.log_start_offset) == (None, 40)


@pytest.mark.invariant("I44")
def test_a_start_that_waits_is_not_recorded_above_the_end_of_a_log_that_was_cut_meanwhile(machine: Machine) -> None:
    """A leader that another one has deposed meanwhile cuts its log. A kill would show a log that ends below its
    start, which counts as damaged."""
    directory, log = synced(machine)

    async def cut_meanwhile() -> None:
        writes = [asyncio.ensure_future(log.record_start(each, LogStartReason.RETENTION)) for each in (20, 40)]
        await asyncio.sleep(0)
        truncate(log, 30)
        directory.log_was_cut(log)
        await asyncio.gather(*writes)
        await directory.checkpoint_high_watermarks({PARTITION: 30})

    machine.loop.run_until_complete(cut_meanwhile())
    log = restart(machine)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 0, 30)


@pytest.mark.invariant("I21")
def test_a_start_being_written_does_not_land_in_the_next_topic_of_that_name(machine: Machine) -> None:
    """D04: the log is deleted and created again while the old topic's start is being written."""
    directory, log = synced(machine)

    async def delete_meanwhile() -> PartitionLog:
        log.trim_before(40)
        recording = asyncio.ensure_future(log.record_start())
        await asyncio.sleep(0)
        directory.delete_log(PARTITION)
        again = directory.create_log(PARTITION, "another-id", CONFIG)
        await recording
        return again

    again = machine.loop.run_until_complete(delete_meanwhile())
    append(again, 5)
    machine.kill()
    log = machine.open(CONFIG).logs[TopicPartition(*PARTITION)]
    assert (log.damage, log.log_start_offset, log.log_end_offset, log.topic_id) == (None, 0, 10, "another-id")


@pytest.mark.parametrize("offset", range(31))
def test_only_whole_segments_below_the_given_offset_are_deleted(machine: Machine, offset: int) -> None:
    """Other replicas may still need what lies between it and the recorded start."""
    _, log = machine.open_log(CONFIG)
    append(log, 15)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) > 3
    drive(log.record_start(30, LogStartReason.RETENTION))
    log.trim_before(30)
    assert delete_head(log, offset) == max(base for base in [*bases, 30] if base <= offset)
    kept = [base for base in bases if base > offset]
    assert [segment.base_offset for segment in log.segments][1:] == kept
    assert delete_head(log, offset) == log.segments[0].base_offset


def test_an_older_recovery_point_does_not_damage_a_reset_log(machine: Machine) -> None:
    """The checkpoint is from before the reset, and retention has deleted what was appended since."""
    directory, log = machine.open_log(CONFIG)
    append(log, 20)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    reset(log, 0)
    append(log, 5)
    drive(log.record_start(10, LogStartReason.RETENTION))
    machine.lose_power()
    assert machine.open_log(CONFIG)[1].damage is None


@pytest.mark.invariant("I21")
@pytest.mark.parametrize("is_reset", [True, False])
def test_a_start_whose_write_failed_half_way_does_not_count_after_the_next_start(
    machine: Machine, is_reset: bool
) -> None:
    """A torn file is replaced, and its name cannot be synced for want of a descriptor. The log stays as it was."""
    directory, log = synced(machine)
    machine.edit("log-start", machine.content("log-start")[:5_000])
    whole, end = read_all(log), log.log_end_offset
    machine.storage.fail("sync_directory", log.directory, times=1, no_descriptor=True)
    with pytest.raises(OutOfDescriptors):
        log.reset_to(end + 20) if is_reset else drive(log.record_start(end, LogStartReason.RETENTION))
    log.finish_cut()
    drive(directory.record_log_starts())
    drive(directory.close(clean=True, high_watermarks={}))
    log = restart(machine)
    assert (log.log_start_offset, log.log_end_offset, log.damage) == (0, end, None)
    assert read_all(log) == whole


@pytest.mark.invariant("I44")
def test_a_cut_below_a_start_whose_write_failed_half_way_leaves_no_log_that_ends_below_its_start(
    machine: Machine,
) -> None:
    """The file may hold that start, although it does not count."""
    directory, log = synced(machine)
    drive(directory.close(clean=True, high_watermarks={}))
    machine.kill()
    machine.edit("log-start", machine.content("log-start")[:5_000])
    _, log = machine.open_log(CONFIG)
    log.trim_before(40)
    machine.storage.fail("sync_directory", log.directory, times=1, no_descriptor=True)
    with pytest.raises(OutOfDescriptors):
        drive(log.record_start())
    truncate(log, 20)
    log = restart(machine)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 20, 20)


@pytest.mark.invariant("I44")
def test_a_lower_start_is_recorded_after_a_failed_reset_before_records_count_below_the_earlier_one(
    machine: Machine,
) -> None:
    _, log = machine.open_log(CONFIG)
    reset(log, 20)
    append(log, 2)
    machine.storage.fail("sync_directory", log.directory, times=1, no_descriptor=True)
    with pytest.raises(OutOfDescriptors):
        log.reset_to(4)
    log.finish_cut()
    append(log, 3)
    assert drive(log.flush()) == 10
    machine.lose_power()
    _, log = machine.open_log(CONFIG)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 4, 10)
