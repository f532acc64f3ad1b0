"""A start must find exactly what a clean stop left: not less, and not more."""

from __future__ import annotations

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.unsynced_files import SYNCS_AT_ONCE
from minibroker.protocol.files.checkpoints import (
    LOG_START,
    LOG_START_SLOT_BYTES,
    LOG_START_SLOTS,
    MAX_SEGMENT_OFFSET,
    RECOVERY_POINT_CHECKPOINT,
    SMALL_FILE_BYTES_MAX,
    LogStart,
    LogStartReason,
    format_log_start,
    parse_log_start,
    segment_file_name,
)
from minibroker.protocol.ids import TopicPartition
from tests.broker.log.machine import PARTITION, PATH, SMALL, TOPIC_ID, Machine, append, drive, reset, truncate

ONE_SEGMENT = LogConfig(index_interval_bytes=100)
FIRST = segment_file_name(0)


@pytest.mark.invariant("I19", "I21")
@pytest.mark.parametrize("offset", [21, 500, MAX_SEGMENT_OFFSET])
def test_a_stray_empty_segment_does_not_move_the_end_after_a_clean_stop(machine: Machine, offset: int) -> None:
    directory, _ = machine.open_log(ONE_SEGMENT)
    append(directory.logs[PARTITION], 10)
    drive(directory.close(True, {}))
    machine.kill()
    machine.edit(segment_file_name(offset), b"")
    log = machine.open(ONE_SEGMENT).logs[PARTITION]
    assert log.log_end_offset == 20
    assert log.damage is not None
    assert f"does not reach to {offset}, the next one: ends at offset 20" in log.damage


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("stray", [27, 200])
def test_bytes_behind_the_last_batch_of_a_closed_segment_are_damage(machine: Machine, clean: bool, stray: int) -> None:
    """The audit convicts them; a broker did not, and after a kill it removed the next segment for them."""
    directory, log = machine.open_log(SMALL)
    append(log, 20)
    drive(log.flush())
    drive(directory.close(clean, {}))
    machine.kill()
    names = machine.file_names(".log")
    closed = names[-2]
    machine.edit(closed, machine.content(closed) + b"\0" * stray)
    log = machine.open(SMALL).logs[PARTITION]
    assert f"{closed} holds more than the batches up to" in str(log.damage)
    assert machine.file_names(".log") == names


def test_an_older_recovery_point_checkpoint_does_not_damage_a_log(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    path = f"{PATH}/{RECOVERY_POINT_CHECKPOINT}"
    older = machine.disk().read_file(path, SMALL_FILE_BYTES_MAX)
    append(log, 10)
    drive(directory.close(True, {}))
    machine.kill()
    machine.disk().replace_file(path, older)
    log = machine.open(ONE_SEGMENT).logs[PARTITION]
    assert (log.damage, log.log_end_offset) == (None, 40)


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_file_name_with_the_largest_offset_is_ignored(machine: Machine, clean: bool) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(directory.close(clean, {}))
    machine.kill()
    machine.edit(segment_file_name(2**63 - 1), b"")
    log = machine.open(ONE_SEGMENT).logs[PARTITION]
    assert log.damage is None
    append(log)
    assert log.log_end_offset == 22


@pytest.mark.invariant("I19", "I21")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("reason", [LogStartReason.RETENTION, LogStartReason.COPIED])
def test_no_segment_is_removed_if_the_recorded_start_is_after_the_end(
    machine: Machine, clean: bool, reason: LogStartReason
) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(directory.close(clean, {}))
    machine.kill()
    content = machine.content(FIRST)
    start = LogStart(topic_id=TOPIC_ID, partition=PARTITION.partition, offset=1_000_000, reason=reason)
    machine.edit("log-start", format_log_start(start, 99))
    log = machine.open(ONE_SEGMENT).logs[PARTITION]
    assert log.damage is not None
    assert "begins at 1000000" in log.damage
    assert machine.content(FIRST) == content


@pytest.mark.invariant("I19", "I21")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("is_older", [True, False])
def test_no_segment_is_removed_if_an_earlier_reset_is_recorded_after_the_end(
    machine: Machine, clean: bool, is_older: bool
) -> None:
    """An older copy of the file, or one flipped bit in its newest slot. A reset that a kill interrupted is the newest
    change, and the one before it explains where the files begin; a clean stop interrupts none."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    reset(log, 100)
    append(log, 5)
    content = bytearray(machine.content(LOG_START))
    truncate(log, 50)  # a leader after an unclean election ends there
    append(log, 5)
    drive(directory.close(clean, {}))
    machine.kill()
    if not is_older:
        content = bytearray(machine.content(LOG_START))
        change = parse_log_start(bytes(content))[1]
        content[change % LOG_START_SLOTS * LOG_START_SLOT_BYTES + 30] ^= 4
    machine.edit(LOG_START, bytes(content))
    name = segment_file_name(50)
    batches = machine.content(name)
    log = machine.open(ONE_SEGMENT).logs[PARTITION]
    assert log.damage == "the log ends at 60, its log-start file says that it begins at 100"
    assert machine.content(name) == batches


@pytest.mark.parametrize("is_recorded", [True, False])
def test_a_log_that_begins_behind_its_recorded_start_says_which_file_does_not_explain_it(
    machine: Machine, is_recorded: bool
) -> None:
    """Its first segment is gone."""
    _, log = machine.open_log()
    append(log, 20)
    second = log.segments[1].base_offset
    machine.kill()
    machine.disk().remove(f"{log.segments[0].log_path}")
    if not is_recorded:
        machine.disk().remove(f"{log.directory}/log-start")
    log = machine.open().logs[PARTITION]
    why = "its" if is_recorded else "no readable"
    assert log.damage == f"the log begins at {second}, {why} log-start file explains only 0"


def test_a_clean_stop_writes_the_producers_at_the_end(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 3)
    drive(directory.close(True, {}))
    assert machine.file_names(".snapshot") == [f"{log.log_end_offset:020d}.snapshot"]


@pytest.mark.invariant("I10", "I21")
def test_a_clean_stop_syncs_each_log_of_a_directory_however_many_at_once(machine: Machine) -> None:
    directory = machine.open()
    partitions = [TopicPartition(PARTITION.topic, number) for number in range(2 * SYNCS_AT_ONCE + 1)]
    for partition in partitions:
        append(directory.create_log(partition, TOPIC_ID, ONE_SEGMENT), 2)
    drive(directory.close(True, {}))
    machine.lose_power()
    found = machine.open().logs
    assert {partition: log.log_end_offset for partition, log in found.items()} == dict.fromkeys(partitions, 4)
