"""A failing disk takes its directory offline; a full one refuses clearly and heals when there is room."""

from __future__ import annotations

import pytest

from minibroker.broker.log.config import FREE_BYTES_TO_HEAL, LogConfig
from minibroker.broker.log.errors import StorageOffline
from minibroker.broker.log.tail_cache import TailCache
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import DiskError, DiskFull
from tests.broker.log.machine import PARTITION, SMALL, Machine, append, check_log, drive, make_batch, read_all

CALLS = ["append", "open", "truncate", "replace_file", "rename", "sync_directory", "remove", "read"]


@pytest.mark.invariant("I12")
def test_a_failed_append_leaves_nothing_of_it(machine: Machine) -> None:
    directory, log = machine.open_log()
    written = append(log, 3)
    machine.storage.fail("append", times=1)
    with pytest.raises(DiskError):
        append(log, 1)
    assert (log.log_end_offset, directory.offline) == (6, True)
    machine.storage.heal()
    machine.kill()
    assert read_all(machine.open_log()[1]) == b"".join(batch for _, batch in written)


def test_after_an_io_error_nothing_is_written_any_more(machine: Machine) -> None:
    """B38, KAFKA-10778: not by this log and not by another of the directory, though the disk works again."""
    directory, log = machine.open_log()
    other = directory.create_log(TopicPartition("other", 0), "other-id", SMALL)
    append(log, 3)
    append(other, 30)
    machine.storage.fail("append", times=1)
    with pytest.raises(DiskError):
        append(log, 1)
    before = machine.storage.trace.events
    for call in (
        lambda: append(other, 1),
        lambda: other.truncate_to(2),
        lambda: other.reset_to(2),
        lambda: other.write_epoch_entries([(1, 0)], sync=True),
        lambda: drive(other.flush()),
        lambda: directory.create_log(TopicPartition("third", 0), "third-id", SMALL),
        lambda: drive(directory.checkpoint_high_watermarks({})),
        lambda: drive(directory.checkpoint_recovery_points()),
        lambda: drive(directory.checkpoint_log_start_offsets()),
        lambda: other.offset_for_timestamp(0, 10),
    ):
        with pytest.raises(StorageOffline, match=r"/data is offline: cannot append"):
            call()
    other.roll_if_aged(1 << 60)
    other.delete_expired_segments(60, 1 << 60)
    drive(other.remove_deleted(1 << 60))
    drive(directory.maintain(0))
    drive(directory.close(True, {}))
    assert machine.storage.trace.events == before


def test_the_reason_is_told_once(machine: Machine) -> None:
    directory, log = machine.open_log()
    told: list[str] = []
    directory.storage.on_offline = told.append
    machine.storage.fail("append")
    with pytest.raises(DiskError):
        append(log, 1)
    with pytest.raises(StorageOffline):
        append(log, 1)
    assert len(told) == 1
    assert directory.offline_reason == told[0]


def test_a_directory_can_be_marked_offline(machine: Machine) -> None:
    directory, log = machine.open_log()
    directory.mark_offline(OSError("smoke"))
    with pytest.raises(StorageOffline, match="smoke"):
        append(log, 1)


def test_a_full_disk_refuses_and_heals_with_room(machine: Machine) -> None:
    directory, log = machine.open_log()
    written = append(log, 3)
    machine.storage.capacity_bytes = machine.storage.used_bytes + 50
    with pytest.raises(DiskFull, match="no space left"):
        append(log, 1)
    assert (directory.full, directory.offline, log.log_end_offset) == (True, False, 6)
    with pytest.raises(DiskFull, match=r"/data is full"):
        append(log, 1)
    assert read_all(log) == b"".join(batch for _, batch in written)
    assert not directory.try_heal()
    machine.storage.capacity_bytes += FREE_BYTES_TO_HEAL + 10_000
    drive(directory.maintain(0))
    assert not directory.full
    append(log, 1)
    check_log(log)


def test_room_may_come_from_retention(machine: Machine) -> None:
    config = LogConfig(segment_bytes=1_000, retention_ms=None, retention_bytes=1, file_delete_delay_ms=0)
    directory, log = machine.open_log(config)
    append(log, 30)
    machine.storage.capacity_bytes = machine.storage.used_bytes
    with pytest.raises(DiskFull):
        append(log, 1)
    log.delete_expired_segments(60, 0)
    before = machine.storage.used_bytes
    drive(directory.maintain(1 << 60))
    assert machine.storage.used_bytes < before


def test_a_full_disk_can_still_be_truncated_and_reset(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 30)
    machine.storage.capacity_bytes = machine.storage.used_bytes
    with pytest.raises(DiskFull):
        append(log, 1)
    log.truncate_to(20)
    assert log.log_end_offset == 20
    log.reset_to(100)
    assert (log.log_end_offset, log.segment_count) == (100, 1)


@pytest.mark.invariant("I12", "I15")
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("times", range(1, 4))
def test_whatever_call_fails_the_log_is_sound_after_a_restart(
    machine: Machine, call: str, full: bool, times: int
) -> None:
    """Fail the nth call of a kind somewhere in a life with rolls and cuts; go on when the disk is only full."""
    directory, log = machine.open_log(SMALL, tail_cache=TailCache(0))
    append(log, 10)
    drive(directory.sync_metadata())
    fault = machine.storage.fail(call, times=0, is_full=full)
    steps = 0
    for step in range(60):
        fault.times = 1 if step % (7 * times) == 5 else fault.times
        try:
            if step % 10 == 9:
                log.truncate_to(max(log.log_end_offset - 7, log.log_start_offset))
                kept = [entry for entry in log.epoch_entries() if entry[1] < log.log_end_offset]
                log.write_epoch_entries(kept, sync=False)
            elif step % 10 == 4:
                drive(log.flush())
            else:
                append(log, 1, epoch=step // 10, producer=None)
                log.read(log.log_start_offset, 10, log.log_end_offset)
            steps += 1
        except DiskError:
            assert directory.full or directory.offline
            directory.try_heal()
    assert directory.offline != full or steps == 60
    machine.storage.heal()
    machine.kill()
    _, log = machine.open_log()
    check_log(log)


def test_a_log_that_met_a_missing_file_is_offline(machine: Machine) -> None:
    """Somebody removed the data under a running broker."""
    directory, log = machine.open_log(SMALL, tail_cache=TailCache(0))
    append(log, 30)
    log.close()
    machine.disk().remove_tree(log.directory)
    with pytest.raises(DiskError):
        log.read(0, 100, 60)
    assert directory.offline


def test_a_failed_creation_leaves_no_log(machine: Machine) -> None:
    directory = machine.open()
    machine.storage.fail("replace_file", times=1, is_full=True)
    with pytest.raises(DiskFull):
        directory.create_log(PARTITION, "id", SMALL)
    assert directory.logs == {}
    assert directory.try_heal()
    log = directory.create_log(PARTITION, "id", SMALL)
    log.append([make_batch(0)])
