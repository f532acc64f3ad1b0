"""A failing disk takes its directory offline; a full disk refuses appends and heals when there is room."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minibroker.broker.log.config import FREE_BYTES_TO_HEAL, LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.errors import StorageOffline
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.retention import retention_start
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, OutOfDescriptors, SyncFailed
from minibroker.simulation.world.storage import Fault
from tests.broker.log.machine import (
    PARTITION,
    PATH,
    SMALL,
    Machine,
    append,
    check_log,
    drive,
    make_batch,
    read_all,
    retain,
    trim_epochs,
    truncate,
)

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
    """B38, KAFKA-10778: neither by this log nor by another of the directory, even if the disk works again."""
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
        lambda: other.trim_before(other.log_end_offset, drops_all=True),
        lambda: other.write_epoch_entries([(1, 0)]),
        lambda: drive(other.flush()),
        lambda: directory.create_log(TopicPartition("third", 0), "third-id", SMALL),
        lambda: drive(directory.checkpoint_high_watermarks({})),
        lambda: drive(directory.checkpoint_recovery_points()),
        lambda: drive(other.record_start()),
        lambda: other.offset_for_timestamp(0, 10),
        lambda: other.check_at(0),
    ):
        with pytest.raises(StorageOffline, match=r"/data is offline: cannot append"):
            call()
    other.roll_if_aged(1 << 60)
    assert retention_start(other, 60, 1 << 60) == delete_head(other, 60) == 0
    drive(other.remove_deleted(1 << 60))
    drive(directory.maintain(0))
    drive(directory.close(True, {}))
    assert machine.storage.trace.events == before


def test_the_reason_for_going_offline_is_reported_once(machine: Machine) -> None:
    directory, log = machine.open_log()
    reasons: list[str] = []
    directory.health.on_offline.append(reasons.append)
    machine.storage.fail("append")
    with pytest.raises(DiskError):
        append(log, 1)
    with pytest.raises(StorageOffline):
        append(log, 1)
    assert len(reasons) == 1
    assert directory.offline_reason == reasons[0]


def test_a_directory_can_be_marked_offline(machine: Machine) -> None:
    directory, log = machine.open_log()
    directory.mark_offline(OSError("smoke"))
    with pytest.raises(StorageOffline, match="smoke"):
        append(log, 1)


def test_a_full_disk_refuses_and_heals_with_room(machine: Machine) -> None:
    directory, log = machine.open_log()
    told: list[bool] = []
    directory.health.on_full = told.append
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
    assert told == [True, False]
    segments = log.segment_count
    log.roll_if_aged(machine.clock().now_ms() + log.config.segment_ms)
    assert log.segment_count == segments + 1, "as on a disk that was never full"


def test_room_may_come_from_retention(machine: Machine) -> None:
    config = LogConfig(segment_bytes=1_000, retention_ms=None, retention_bytes=1, file_delete_delay_ms=0)
    directory, log = machine.open_log(config)
    append(log, 30)
    machine.storage.capacity_bytes = machine.storage.used_bytes
    with pytest.raises(DiskFull):
        append(log, 1)
    retain(log, 60, 0)
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
def test_the_log_is_sound_after_a_restart_whichever_call_fails(
    machine: Machine, call: str, full: bool, times: int
) -> None:
    """Fail every nth call of a kind during appends, rolls and truncations; continue if the disk is only full."""
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
                log.write_epoch_entries(kept)
            elif step % 10 == 4:
                drive(log.flush())
            else:
                append(log, 1, epoch=step // 10, producer=None)
                log.read(log.log_start_offset, 10, log.log_end_offset)
            steps += 1
        except DiskError:
            assert directory.full or directory.offline
            directory.try_heal()
    heals = full and call != "sync_directory"  # a failed sync never heals, whatever its reason
    assert directory.offline != heals or steps == 60
    machine.storage.heal()
    machine.kill()
    _, log = machine.open_log()
    check_log(log)


@pytest.mark.parametrize("forgotten", ["sync", "sync_directory"])
def test_a_failed_sync_never_heals_for_lack_of_space_either(machine: Machine, forgotten: str) -> None:
    """D05, "Can Applications Recover from fsync Failures?" (ATC 2020): the kernel has dropped the pages and counts them
    as clean. The next sync would succeed, and a power cut would lose the records."""
    directory, log = machine.open_log()
    drive(directory.sync_metadata())
    append(log, 3)
    log.unsynced.add_directory(log.directory)
    machine.storage.fail(forgotten, times=1, is_full=True, forgets=True)
    with pytest.raises(SyncFailed, match="no space left"):
        drive(log.flush())
    assert (directory.offline, directory.full) == (True, False)
    assert not directory.try_heal()
    with pytest.raises(StorageOffline):
        drive(log.flush())
    assert log.recovery_point == 0


@pytest.mark.parametrize("is_bad_entry", [False, True])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_failed_sync_of_the_name_of_a_deleted_log_takes_the_directory_offline(
    machine: Machine, is_bad_entry: bool, is_late: bool
) -> None:
    """Without a descriptor it is tried again later. A directory that cannot be synced at all is of no use."""
    directory, _ = machine.open_log()
    other = directory.create_log(TopicPartition("other", 0), "other-id", SMALL)
    if is_late:
        machine.storage.lacks_descriptors = True
        directory.delete_log(PARTITION)
        machine.storage.lacks_descriptors = False
    machine.storage.fail("sync_directory", times=1, is_bad_entry=is_bad_entry)
    if is_late:
        drive(directory.maintain(0))
    else:
        with pytest.raises(DiskError):
            directory.delete_log(PARTITION)
    assert directory.offline
    with pytest.raises(StorageOffline):
        append(other, 1)


def test_a_failed_sync_of_a_checkpoint_takes_the_directory_offline(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    machine.storage.fail("sync", times=1, is_full=True)
    with pytest.raises(SyncFailed):
        drive(directory.checkpoint_recovery_points())
    assert directory.offline


CUTS: dict[str, Callable[[PartitionLog], object]] = {
    "truncate": lambda log: log.truncate_to(15),
    "reset": lambda log: log.reset_to(2),
    "reset to a later offset": lambda log: log.reset_to(1_000),
    "trim all": lambda log: log.trim_before(log.log_end_offset, drops_all=True),
    "expire": lambda log: retain(log, log.log_end_offset, 0),
}


@pytest.mark.invariant("I10", "I12")
@pytest.mark.parametrize("fault", ["full", "no descriptor"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("call", ["rename", "truncate", "open", "read", "remove", "replace_file", "sync_directory"])
def test_offsets_match_the_files_after_a_truncation_that_fails_halfway(call: str, cut: str, fault: str) -> None:
    """D09: whichever of its calls fails, offsets, producers and files agree afterwards; the cut can be repeated."""
    if fault == "full" and call == "sync_directory":
        pytest.skip("a failed sync never heals")
    config = LogConfig(segment_bytes=300, index_interval_bytes=100, retention_ms=None, retention_bytes=1)
    for number in range(100):
        machine = Machine()
        directory, log = machine.open_log(config, tail_cache=TailCache(0))
        for _ in range(30):
            append(log, 1, producer=(7, 0, log.log_end_offset))
        for segment in log.segments:
            segment.save_index()
            segment.close_file()
        failing = machine.storage.fail(call, times=0, is_full=fault == "full", no_descriptor=fault == "no descriptor")
        check = machine.storage.check_fault
        machine.storage.check_fault = failing_after(number, failing, check)  # type: ignore[assignment,method-assign]
        failed = False
        try:
            CUTS[cut](log)
        except DiskError:
            failed = True
        machine.storage.check_fault = check  # type: ignore[method-assign]
        machine.storage.heal()
        assert directory.try_heal()
        log.finish_cut()
        assert directory.try_heal()
        follow_with_epochs(log)
        check_log(log, whole_history=not log.log_start_offset)
        CUTS[cut](log)
        append(log, 3)
        drive(log.flush())
        end = log.log_end_offset
        machine.kill()
        _, log = machine.open_log(config)
        assert log.log_end_offset == end
        check_log(log, whole_history=not log.log_start_offset)
        if not failed and number > 3:
            return  # the cut makes fewer such calls
    raise AssertionError("the cut never succeeded")


def follow_with_epochs(log: PartitionLog) -> None:
    """Update the epochs as the core does on TailTruncated and HeadDeleted."""
    is_empty = log.log_start_offset == log.log_end_offset
    kept = [] if is_empty else [each for each in log.epoch_entries() if each[1] < log.log_end_offset]
    log.write_epoch_entries(kept)
    trim_epochs(log)


def failing_after(number: int, fault: Fault, check: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """Let the fault's call fail once, after `number` successful ones."""
    left = number

    def checked(call: str, path: str) -> None:
        nonlocal left
        if call == fault.call:
            fault.times = 1 if left == 0 else 0
            left -= 1
        check(call, path)

    return checked


@pytest.mark.parametrize("call", ["open", "replace_file", "sync_directory", "read"])
def test_a_lack_of_descriptors_does_not_harm_a_directory(machine: Machine, call: str) -> None:
    """D08: EMFILE says nothing about the disk. After a call that fails with it the next one finds no change."""
    directory, log = machine.open_log(SMALL, tail_cache=TailCache(0))
    reports: list[str] = []
    directory.health.on_no_descriptor = reports.append
    drive(directory.sync_metadata())
    for step in range(200):
        machine.storage.fail(call, times=step % 2, no_descriptor=True)
        try:
            if step % 10 == 9:
                truncate(log, max(0, log.log_end_offset - 7))
            elif step % 10 == 4:
                drive(log.flush())
            elif step % 10 == 5:
                drive(directory.maintain(0))
            else:
                append(log, 1, epoch=step // 10, producer=None)
                log.read(log.log_start_offset, 10, log.log_end_offset)
        except OutOfDescriptors:
            machine.storage.heal()
            log.finish_cut()
        assert not directory.offline
        assert not directory.full
    machine.storage.heal()
    assert reports or call not in ("open", "replace_file")
    log.write_epoch_entries([each for each in log.epoch_entries() if each[1] < log.log_end_offset])
    drive(log.flush())
    machine.kill()
    check_log(machine.open_log()[1])


def test_epochs_are_written_with_the_next_sync_after_a_lack_of_descriptors(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    machine.storage.lacks_descriptors = True
    log.write_epoch_entries([(0, 0), (4, 6)])
    with pytest.raises(OutOfDescriptors):
        drive(directory.sync_metadata())
    machine.storage.lacks_descriptors = False
    drive(directory.sync_metadata())
    machine.lose_power()
    assert b"4 6" in machine.content("leader-epoch-checkpoint")


def test_a_segment_takes_the_descriptor_of_an_idle_one(machine: Machine) -> None:
    directory, log = machine.open_log(SMALL, tail_cache=TailCache(0))
    append(log, 30)
    log.segments[0].close_file()
    log.segments[1].file()
    machine.storage.fail("open", times=1, no_descriptor=True)
    assert log.read(0, 100, 60).size_bytes
    assert directory.health.segments.open_files >= 1


def test_a_directory_reports_an_error_of_its_periodic_task(machine: Machine) -> None:
    """D12a: no caller gets the error, so the listeners must."""
    directory, log = machine.open_log()
    reasons: list[str] = []
    directory.health.on_offline.append(reasons.append)
    append(log, 30)
    machine.storage.fail("sync", times=1)
    drive(directory.maintain(0))
    assert directory.offline
    assert len(reasons) == 1


def test_a_full_disk_gives_back_the_room_of_a_deleted_topic(machine: Machine) -> None:
    """D16a: although periodic checkpoints find no room."""
    directory, log = machine.open_log(LogConfig(segment_bytes=1_000_000))
    other = directory.create_log(TopicPartition("other", 0), "other-id", SMALL)
    append(log, 100)
    append(other, 3)
    log.truncate_to(150)  # its recovery point fell: a checkpoint is urgent
    machine.storage.capacity_bytes = machine.storage.used_bytes
    with pytest.raises(DiskFull):
        append(other, 1)
    before = machine.storage.used_bytes
    directory.delete_log(PARTITION)
    drive(directory.maintain(0))
    assert machine.storage.used_bytes < before - 5_000
    assert not directory.offline


def test_a_full_disk_removes_expired_segments_at_once(machine: Machine) -> None:
    """D16a: file.delete.delay.ms is for readers that still read the file, and here there are none."""
    config = LogConfig(segment_bytes=1_000, retention_ms=1, retention_bytes=1, file_delete_delay_ms=3_600_000)
    directory, log = machine.open_log(config)
    append(log, 30)
    drive(log.flush())
    machine.storage.capacity_bytes = machine.storage.used_bytes
    with pytest.raises(DiskFull):
        append(log, 1)
    before = machine.storage.used_bytes
    retain(log, 60, 1 << 60)  # with room for another one the active segment would go, too
    assert (log.segment_count, log.log_start_offset) == (1, 60)
    drive(directory.maintain(0))
    assert machine.storage.used_bytes < before - 1_000
    trim_epochs(log)
    check_log(log)


def test_a_deletion_that_fails_leaves_the_partition_for_another_attempt(machine: Machine) -> None:
    directory, _ = machine.open_log()
    machine.storage.fail("rename", times=1, is_full=True)
    with pytest.raises(DiskFull):
        directory.delete_log(PARTITION)
    assert PARTITION in directory.logs
    directory.delete_log(PARTITION)
    assert PARTITION not in directory.logs
    assert not machine.disk().exists(f"/data/{PARTITION}")


@pytest.mark.parametrize("gone", ["segment", "partition"])
def test_a_missing_file_damages_only_its_log(machine: Machine, gone: str) -> None:
    """The file was removed while the broker ran."""
    directory, log = machine.open_log(SMALL, tail_cache=TailCache(0))
    other = directory.create_log(TopicPartition("others", 0), "other id", SMALL)
    append(log, 30)
    log.close()
    if gone == "segment":
        machine.disk().remove(log.segments[0].log_path)
    else:
        machine.disk().remove_tree(log.directory)
    with pytest.raises(BadEntry, match="no such"):
        log.read(0, 100, 60)
    if gone == "partition":
        with pytest.raises(BadEntry, match="no such"):
            log.write_epoch_entries([(3, 0)])
    assert not directory.offline
    append(other, 3)
    drive(directory.maintain(0))
    assert (drive(other.flush()), directory.offline) == (other.log_end_offset, False)


def test_a_partition_without_its_directory_starts_empty(machine: Machine) -> None:
    directory, log = machine.open_log(SMALL)
    append(log, 30)
    machine.disk().remove_tree(log.directory)
    directory.set_log_aside(PARTITION)
    assert (directory.offline, directory.set_aside) == (False, {})
    new = directory.create_log(PARTITION, "id", SMALL)
    append(new, 1)
    assert drive(new.flush()) == new.log_end_offset


def test_a_missing_log_directory_is_offline(machine: Machine) -> None:
    directory, log = machine.open_log(SMALL, tail_cache=TailCache(0))
    append(log, 30)
    log.close()
    machine.disk().remove_tree(PATH)
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


def test_a_file_missing_before_its_sync_damages_only_its_log(machine: Machine) -> None:
    """The disk works: the other logs of the directory stay in use."""
    directory, log = machine.open_log()
    append(log, 3)
    machine.disk().remove(log.segments[0].log_path)
    with pytest.raises(BadEntry, match="has vanished"):
        drive(log.flush())
    assert not directory.offline
    assert log.recovery_point == 0
    with pytest.raises(BadEntry, match="has vanished"):
        drive(log.flush())


def test_a_failed_sync_of_a_damage_note_takes_the_directory_offline(machine: Machine) -> None:
    """Seed 17021093: it was only a warning, and the broker continued to write."""
    directory, log = machine.open_log()
    machine.storage.fail("sync_directory", times=1)
    log.mark_damaged("a test says so")
    assert directory.offline
