"""Cutting both ends of a log: `truncate_to`, `trim_before`, `reset_to`."""

from __future__ import annotations

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.runtime.ports import DiskFull
from minibroker.simulation.world.storage import CHANGES
from tests.broker.log.machine import (
    SMALL,
    Machine,
    append,
    check_log,
    drive,
    make_batch,
    read_all,
    reset,
    retain,
    trim_epochs,
    truncate,
)

ONE_SEGMENT = LogConfig(index_interval_bytes=100)


@pytest.mark.invariant("I12", "I15")
@pytest.mark.parametrize("end_offset", range(61))
def test_truncation_keeps_every_batch_that_ends_at_or_below_the_offset(machine: Machine, end_offset: int) -> None:
    _, log = machine.open_log()
    written = append(log, 20, records=3, producer=None)
    truncate(log, end_offset)
    assert log.log_end_offset == end_offset - end_offset % 3
    assert read_all(log) == b"".join(batch for header, batch in written if header.end_offset <= end_offset)
    check_log(log)


@pytest.mark.parametrize("cache_bytes", [0, 1_000_000])
def test_a_reader_never_sees_truncated_records(machine: Machine, cache_bytes: int) -> None:
    _, log = machine.open_log(ONE_SEGMENT, tail_cache=TailCache(cache_bytes))
    first = append(log, 2, value=b"kept")
    append(log, 3, value=b"cut", epoch=0)
    truncate(log, 4)
    assert log.read(0, 10_000, 100).next_offset == 4
    second = append(log, 2, value=b"new", epoch=1)
    assert read_all(log) == b"".join(batch for _, batch in first + second)
    assert b"".join(log.read(4, 10_000, 100).parts) == b"".join(batch for _, batch in second)


def test_the_whole_log_can_be_cut(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 20)
    truncate(log, 0)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (0, 0, 0)
    append(log, 3)
    check_log(log)


def test_truncation_at_or_after_the_end_does_nothing(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 3)
    before = machine.storage.trace.events
    log.truncate_to(6)
    log.truncate_to(60)
    assert log.log_end_offset == 6
    assert machine.storage.trace.events == before


def test_truncation_lowers_the_recovery_point(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 20)
    drive(log.flush())
    truncate(log, 11)
    assert log.recovery_point == log.log_end_offset == 10


@pytest.mark.invariant("I10")
def test_truncation_below_the_log_s_start_lowers_it(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 5)
    log.trim_before(8)
    truncate(log, 4)
    assert log.log_start_offset == log.log_end_offset == 4


def test_truncation_below_the_first_segment_resets(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 40)
    log.trim_before(40)
    retain(log, 80, 0)
    assert log.segments[0].base_offset > 5
    truncate(log, 5)
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (5, 5, 5)
    check_log(log)


@pytest.mark.invariant("I10")
def test_a_reset_starts_empty_anywhere(machine: Machine) -> None:
    """B17, KAFKA-9491: start, end and recovery point move to the new offset."""
    for offset in (1_000, 7, 0):
        _, log = machine.open_log()
        append(log, 20, producer=None)
        reset(log, offset)
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (offset, offset, offset)
        assert log.segment_count == 1
        check_log(log)
        machine.kill()
        assert machine.open_log()[1].log_end_offset == offset
        machine.kill()


def test_a_reset_forgets_the_producers(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 1, producer=(7, 0, 0))
    reset(log, 50)
    assert len(log.producers) == 0
    append(log, 1, producer=(7, 0, 30))
    check_log(log)


def test_trimming_raises_the_start_only(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 20)
    log.trim_before(13)
    log.trim_before(9)
    assert (log.log_start_offset, log.log_end_offset) == (13, 40)
    assert log.read(13, 10, 40).base_offset == 12


@pytest.mark.invariant("I22")
@pytest.mark.parametrize("config", [SMALL, ONE_SEGMENT])
@pytest.mark.parametrize("has_power", [True, False])
def test_a_log_trimmed_up_to_its_end_stays_empty_after_a_restart(
    machine: Machine, config: LogConfig, has_power: bool
) -> None:
    """Records below may never have been committed: no start may find them again, even without a checkpoint."""
    _, log = machine.open_log(config)
    append(log, 20, producer=(7, 0, 0))
    drive(log.flush())
    truncate(log, 22)
    log.trim_before(22, drops_all=True)
    trim_epochs(log)
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (22, 22, 0)
    append(log, 2, producer=(8, 0, 0))
    check_log(log, whole_history=False)
    if has_power:
        machine.kill()
    else:
        drive(log.flush())
        machine.lose_power()
    _, again = machine.open_log(config)
    assert (again.log_start_offset, again.log_end_offset) == (22, 26)
    assert [producer for producer, _ in again.producers] == [8]


def test_trimming_after_the_end_raises(machine: Machine) -> None:
    _, log = machine.open_log()
    with pytest.raises(AssertionError, match="reset_to"):
        log.trim_before(1)


@pytest.mark.invariant("I15", "I25")
@pytest.mark.parametrize("end_offset", [0, 3, 10, 17, 24, 38])
def test_producer_states_follow_a_truncation(machine: Machine, end_offset: int) -> None:
    """B40: the remembered last batches are truncated, too, and those that they had displaced come back."""
    _, log = machine.open_log()
    for number in range(20):
        append(log, 1, producer=(number % 3, 0, 2 * (number // 3)))
    truncate(log, end_offset)
    check_log(log)


def test_producer_states_survive_a_damaged_snapshot(machine: Machine) -> None:
    _, log = machine.open_log()
    for number in range(20):
        append(log, 1, producer=(number % 3, 0, 2 * (number // 3)))
    for name in machine.file_names(".snapshot"):
        machine.edit(name, b"\0" * 20)
    truncate(log, 31)
    check_log(log)


def test_truncation_works_without_the_index_files(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 40)
    drive(directory.close(True, {}))
    machine.kill()
    for name in machine.file_names("index"):
        machine.disk().remove(f"{log.directory}/{name}")
    _, log = machine.open_log()
    truncate(log, 31)
    check_log(log)


def test_truncation_after_damage_cuts_nothing(machine: Machine) -> None:
    """A cut there would remove records in front of the offset: the log is damaged, and its replica starts empty."""
    _, log = machine.open_log(LogConfig(), tail_cache=TailCache(0))
    (_, batch), *_ = append(log, 10)
    machine.storage.flip_bit(f"{log.directory}/{0:020d}.log", 3 * len(batch) + 16)
    with pytest.raises(CorruptLog):
        log.truncate_to(16)
    assert log.log_end_offset == 20
    assert log.read(0, 10_000, 6).next_offset == 6


def test_a_segment_is_not_closed_until_its_lowered_recovery_point_is_on_disk(machine: Machine) -> None:
    """KAFKA-10101: a closed segment below the old recovery point would not be scanned after a power cut."""
    directory, log = machine.open_log(SMALL)
    append(log, 30)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    truncate(log, 20)
    append(log, 30)
    assert log.segments[-1].base_offset <= 20
    drive(directory.maintain(0))
    append(log, 1)
    assert log.segments[-1].base_offset == 80


@pytest.mark.invariant("I12")
def test_a_segment_is_not_closed_until_its_cut_is_on_disk(machine: Machine) -> None:
    """A power cut would restore the old tail in front of newer segments: a log that no leader ever had."""
    directory, log = machine.open_log(SMALL)
    append(log, 6)
    drive(log.flush())
    truncate(log, 8)
    append(log, 30, epoch=1)
    assert log.segment_count == 1
    drive(directory.sync_metadata())
    append(log, 1, epoch=1)
    assert log.segment_count == 2
    drive(log.flush())
    machine.lose_power()
    _, log = machine.open_log(SMALL)
    assert log.log_end_offset == 70
    check_log(log)


def test_appending_after_a_truncation_continues_at_the_cut(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 3)
    truncate(log, 2)
    log.append([make_batch(2)])
    assert log.log_end_offset == 4


def test_snapshots_of_what_was_cut_are_forgotten_with_their_files(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 40)
    assert len(log.snapshots.offsets) > 2
    end = log.snapshots.offsets[1]
    truncate(log, end)
    assert log.snapshots.offsets[-1] <= end
    assert machine.file_names(".snapshot") == [f"{offset:020d}.snapshot" for offset in log.snapshots.offsets]


def test_nothing_is_changed_in_a_damaged_log_once_its_directory_has_healed(machine: Machine) -> None:
    """Its files may be the only trace of a record. A cut had failed in the middle before the damage was found."""
    _, log = machine.open_log()
    append(log, 20, producer=(7, 0, 0))
    machine.storage.fail("remove", times=1, is_full=True)
    with pytest.raises(DiskFull):
        log.truncate_to(10)
    log.mark_damaged("a bit has flipped")
    changed, check = list[str](), machine.storage.check_fault

    def noted(call: str, path: str) -> None:
        if call in CHANGES:
            changed.append(f"{call} {path}")
        check(call, path)

    machine.storage.check_fault = noted  # type: ignore[method-assign]
    log.finish_cut()
    assert changed == []
