"""A process is killed between two disk calls, and what it had not synced is neither lost nor believed too early."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.checkpoints import LOG_SUFFIX, LogStartReason
from minibroker.runtime.ports import OutOfDescriptors, SyncFailed
from minibroker.simulation.world.disk import SimulatedFile
from minibroker.simulation.world.node import ProcessDead
from tests.broker.log.machine import PATH, SMALL, Machine, append, check_log, drive, reset, start_at
from tests.broker.log.test_recovery import FIRST, ONE_SEGMENT, restart

CALLS_MAX = 40
EPOCH_FIELD_END = 16


def is_killed_at(machine: Machine, call: int, step: Callable[[], object]) -> bool:
    """Kill the process instead of its n-th disk call of `step` that changes something; False if it makes fewer."""

    def kill() -> None:
        machine.kill()
        raise ProcessDead("broker")

    assert call < CALLS_MAX
    machine.storage.trap(call, kill)
    try:
        step()
    except ProcessDead:
        return True
    machine.storage.clear_trap()
    machine.kill()
    return False


def store(directory: LogDirectory, log: PartitionLog) -> None:
    drive(log.flush())
    drive(directory.maintain(0))
    drive(directory.checkpoint_recovery_points())


def lose_power_and_start(machine: Machine, tear: bool = False) -> PartitionLog:
    machine.lose_power(tear)
    log = machine.open_log(SMALL)[1]
    check_log(log)
    return log


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_start_that_a_killed_reset_wrote_is_synced_before_records_count_on_it(is_clean: bool) -> None:
    for call in range(1, CALLS_MAX):
        machine = Machine()
        directory, log = machine.open_log(ONE_SEGMENT)
        append(log, 4, epoch=3)
        store(directory, log)
        killed = is_killed_at(machine, call, lambda log=log: reset(log, 20))  # type: ignore[misc]
        directory, log = machine.open_log(ONE_SEGMENT)
        append(log, 2, epoch=5)
        drive(log.flush())
        if is_clean:
            drive(directory.close(clean=True, high_watermarks={}))
        end = log.log_end_offset
        log = lose_power_and_start(machine)
        assert (log.damage, log.log_end_offset) == (None, end)
        if not killed:
            return


@pytest.mark.invariant("I44")
def test_a_start_that_a_killed_deletion_wrote_is_synced_before_files_go() -> None:
    for call in range(1, CALLS_MAX):
        machine = Machine()
        directory, log = machine.open_log(SMALL)
        append(log, 30, epoch=3)
        store(directory, log)
        record = log.record_start(30, LogStartReason.RETENTION)
        killed = is_killed_at(machine, call, lambda record=record: drive(record))  # type: ignore[misc]
        directory, log = machine.open_log(SMALL)
        delete_head(log, 30)
        drive(directory.maintain(1 << 50))
        drive(log.flush())
        log = lose_power_and_start(machine)
        assert (log.damage, log.log_end_offset) == (None, 60)
        if not killed:
            return


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("seed", range(8))
def test_a_segment_that_a_killed_cut_removed_does_not_return_behind_new_records(seed: int) -> None:
    for call in range(1, CALLS_MAX):
        machine = Machine(seed)
        directory, log = machine.open_log(SMALL)
        append(log, 9, epoch=3)
        store(directory, log)
        end = log.segments[-1].base_offset - 2
        killed = is_killed_at(machine, call, lambda log=log, end=end: log.truncate_to(end))  # type: ignore[misc]
        _, log = machine.open_log(SMALL)
        append(log, 3, epoch=5)
        log = lose_power_and_start(machine, tear=True)
        assert log.damage is None
        if not killed:
            return


@pytest.mark.invariant("I44")
def test_a_segment_that_a_failed_cut_removed_does_not_return_behind_new_records(machine: Machine) -> None:
    """There was no descriptor to sync its removal with. The records in front of it are synced by chance."""
    directory, log = machine.open_log(SMALL)
    append(log, 9, epoch=3)
    store(directory, log)
    base = log.segments[1].base_offset
    machine.storage.fail("sync_directory", log.directory, times=1, no_descriptor=True)
    with pytest.raises(OutOfDescriptors):
        log.truncate_to(base - 2)
    log.finish_cut()
    log.truncate_to(base - 2)
    append(log, 1, epoch=5)
    machine.disk().open(log.segments[0].log_path).sync()
    log = lose_power_and_start(machine)
    assert (log.damage, log.log_end_offset) == (None, base)


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("is_full", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_a_clean_marker_that_a_killed_start_removed_does_not_return(seed: int, is_full: bool) -> None:
    for call in range(1, CALLS_MAX):
        machine = Machine(seed)
        directory, log = machine.open_log(ONE_SEGMENT, incarnation_id="one")
        append(log, 4, epoch=3)
        drive(directory.close(clean=True, high_watermarks={}))
        machine.kill()
        killed = is_killed_at(machine, call, lambda machine=machine: machine.open(incarnation_id="two"))  # type: ignore[misc]
        if is_full:
            machine.storage.fail("replace_file", f"{PATH}/whole-since", times=1, is_full=True)
        directory, log = machine.open_log(ONE_SEGMENT, incarnation_id="three")
        machine.storage.heal()
        directory.try_heal()
        append(log, 3, epoch=5)
        assert lose_power_and_start(machine, tear=True).damage is None
        if not killed:
            return


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("target", [4, 10])
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_a_kill_within_a_reset_to_an_earlier_start_is_no_damage(target: int, is_power_cut: bool) -> None:
    for call in range(1, CALLS_MAX):
        machine = Machine()
        directory, log = machine.open_log(SMALL)
        reset(log, 10)
        append(log, 9, epoch=3)
        store(directory, log)
        drive(directory.maintain(0))
        drive(directory.record_log_starts())
        killed = is_killed_at(machine, call, lambda log=log: reset(log, target))  # type: ignore[misc]
        if is_power_cut:
            machine.lose_power()
        log = machine.open_log(SMALL)[1]
        assert log.damage is None
        check_log(log)
        if not killed:
            return


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("failed", [None, "sync_directory", "open"])
@pytest.mark.parametrize("first", [0, 10, 20])
def test_a_kill_within_a_reset_behind_the_end_is_no_damage(first: int, failed: str | None) -> None:
    """What is left lies in front of the recorded start. The start before explains where it begins: the log was created
    there, reset to there, or its head deleted. A first reset may have failed for want of a descriptor."""
    for call in range(1, CALLS_MAX):
        machine = Machine()
        directory, log = machine.open_log(SMALL)
        if first == 10:
            reset(log, first)
        append(log, 20, epoch=3)
        store(directory, log)
        if first == 20:
            drive(log.record_start(first, LogStartReason.RETENTION))
            log.trim_before(first)
            delete_head(log, first)
        assert 0 <= first - log.segments[0].base_offset < 10
        if failed is not None:
            path = log.directory if failed == "sync_directory" else f"{log.directory}/log-start"
            machine.storage.fail(failed, path, times=1, no_descriptor=True)
            with pytest.raises(OutOfDescriptors):
                reset(log, 100)
            log.finish_cut()
        killed = is_killed_at(machine, call, lambda log=log: reset(log, 100))  # type: ignore[misc]
        log = machine.open_log(SMALL)[1]
        assert log.damage is None
        check_log(log, whole_history=first != 20)
        if not killed:
            assert log.log_start_offset == log.log_end_offset == 100
            return


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("is_lowered", [True, False])
def test_a_kill_within_a_truncation_below_the_recorded_start_is_no_damage(is_lowered: bool) -> None:
    """The start was lowered, and not recorded yet; or the cut itself lowers it."""
    for call in range(1, CALLS_MAX):
        machine = Machine()
        _, log = machine.open_log(ONE_SEGMENT)
        append(log, 10, epoch=3)
        drive(log.record_start(14, LogStartReason.RETENTION))
        log.trim_before(14)
        if is_lowered:
            log.lower_start(0)
        killed = is_killed_at(machine, call, lambda log=log: log.truncate_to(9))  # type: ignore[misc]
        log = restart(machine)
        assert log.damage is None
        assert log.log_end_offset in {8, 20}
        check_log(log)
        if not killed:
            return


@pytest.mark.invariant("I44")
def test_a_kill_right_after_a_start_that_rebuilt_an_older_epoch_file_is_no_damage(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=3)
    older = machine.content("leader-epoch-checkpoint")
    append(log, 4, epoch=5)
    drive(directory.close(clean=True, high_watermarks={}))
    machine.kill()
    machine.edit("leader-epoch-checkpoint", older)
    machine.open_log(ONE_SEGMENT)
    log = restart(machine)
    assert (log.damage, log.epoch_entries()) == (None, [(3, 0), (5, 8)])


def rot_epoch(machine: Machine, batch: int, count: int) -> None:
    """Flip a bit of one batch's epoch upward; `count` batches of the same size are in the file."""
    content = bytearray(machine.content(FIRST))
    content[batch * (len(content) // count) + EPOCH_FIELD_END - 1] ^= 8
    machine.edit(FIRST, bytes(content))


@pytest.mark.invariant("I20")
def test_a_boot_id_without_room_is_written_once_there_is_room(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=3)
    store(directory, log)
    machine.lose_power()
    machine.storage.fail("replace_file", f"{PATH}/meta.properties", times=1, is_full=True)
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=5)
    drive(directory.maintain(0))
    fault = machine.storage.fail("replace_file", f"{PATH}/meta.properties", times=1, is_full=True)
    drive(directory.maintain(0))
    assert fault.times == 1, "it is not written again"
    machine.kill()
    rot_epoch(machine, 7, 8)
    directory, log = machine.open_log(ONE_SEGMENT)
    assert directory.same_boot
    assert log.damage is not None


@pytest.mark.invariant("I44")
def test_a_deletion_at_the_head_does_not_count_later_segments_as_synced(machine: Machine) -> None:
    directory, log = machine.open_log(SMALL)
    append(log, 30, epoch=3)
    drive(log.record_start(30, LogStartReason.RETENTION))
    log.trim_before(30)
    delete_head(log, 30)
    drive(directory.checkpoint_recovery_points())
    assert lose_power_and_start(machine).damage is None


@pytest.mark.invariant("I25", "I44")
def test_producers_of_a_deleted_head_outlive_a_kill_and_a_later_power_cut(machine: Machine) -> None:
    """A killed process or the start after it wrote the snapshots, and nothing synced them. Once the head is deleted the
    snapshot at its end is all that is known of the producers there: a retry was written a second time."""
    _, log = machine.open_log(SMALL)
    append(log, 1, producer=(7, 0, 0))
    append(log, 20)
    machine.kill()
    directory, log = machine.open_log(SMALL)
    append(log, 1)
    store(directory, log)
    base, end = log.segments[-1].base_offset, log.log_end_offset
    assert start_at(log, base) == base
    drive(directory.maintain(1 << 50))
    assert log.producers.get(7) is not None
    machine.lose_power()
    log = machine.open_log(SMALL)[1]
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, base, end)
    assert log.producers.get(7) is not None


def test_a_reset_whose_file_cannot_be_closed_leaves_no_log_without_a_segment(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems (NFS, quotas) report only then that bytes did not reach the disk. The next look at such a log
    ended the broker as by a bug, where its directory is to be offline."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 3)
    closed = SimulatedFile.close

    def close(file: SimulatedFile) -> None:
        closed(file)
        if file._path.endswith(LOG_SUFFIX):
            raise SyncFailed(f"cannot close {file._path}")

    with monkeypatch.context() as patch:
        patch.setattr(SimulatedFile, "close", close)
        with pytest.raises(SyncFailed):
            log.reset_to(100)
    assert directory.offline
    assert [(each.base_offset, log.log_end_offset) for each in log.segments] == [(0, 6)]
    drive(directory.maintain(0))
