"""The promise of `flush`: everything below the recovery point survives a power cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.unsynced_files import UnsyncedFiles, gather_all
from minibroker.protocol.files.checkpoints import (
    EPOCH_CHECKPOINT,
    LOG_START,
    PARTITION_METADATA,
    format_epoch_checkpoint,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError, SyncFailed, disk_error_of
from minibroker.simulation.world.disk import SimulatedDisk
from minibroker.simulation.world.world import SimulatedWorld
from tests.broker.log.machine import (
    OWNER,
    PARTITION,
    PATH,
    SMALL,
    TOPIC_ID,
    Machine,
    append,
    check_log,
    drive,
    truncate,
)

ONE_SEGMENT = LogConfig(index_interval_bytes=100)
SEGMENT = f"{PATH}/{PARTITION}/{{:020d}}.log"

SYNCS: dict[str, Callable[[LogDirectory, PartitionLog], Coroutine[Any, Any, object]]] = {
    "flush": lambda _, log: log.flush(),
    "flush of closed segments": lambda _, log: log.flush(closed_only=True),
    "metadata": lambda directory, _: directory.sync_metadata(),
}


def test_the_first_flush_of_a_log_makes_its_side_files_durable(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 2)
    before = {name: machine.content(name) for name in (PARTITION_METADATA, EPOCH_CHECKPOINT, LOG_START)}
    drive(log.flush())
    machine.lose_power()
    assert {name: machine.content(name) for name in before} == before


def test_a_sync_of_all_metadata_waits_for_no_flush(machine: Machine) -> None:
    """A flush takes its files itself; if this sync waited for it, one slow flush would hold up all other logs."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 2)
    drive(directory.sync_metadata())
    assert not log.unsynced
    log.unsynced.add(log.segments[0].log_path)

    async def during_a_flush() -> None:
        async with log.flushing, asyncio.timeout(5):
            await directory.sync_metadata()

    drive(during_a_flush())
    assert log.unsynced
    drive(directory.sync_metadata())
    assert not log.unsynced


def test_a_directory_alone_is_something_to_sync() -> None:
    """Its new names would be gone after a power cut."""
    files = UnsyncedFiles()
    assert not files
    files.add_directory("/data/t-0")
    assert files
    assert files.take()
    assert not files


def test_a_start_without_room_for_an_epoch_file_does_not_rely_on_this_boot(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 2)
    log.epochs_stored = False
    machine.storage.fail("replace_file", f"{log.directory}/{EPOCH_CHECKPOINT}", is_full=True)
    assert not drive(directory._checkpoints.forget_lost_tails())
    machine.storage.heal()
    assert drive(directory._checkpoints.forget_lost_tails())


class SlowSync:
    """Lets a test act during a sync off the loop."""

    def __init__(self, log: PartitionLog, *, works_first: bool = True) -> None:
        self.works_first = works_first
        self.disk = log.health.disk
        self.go = asyncio.Event()
        self.calls = 0
        assert isinstance(self.disk, SimulatedDisk)
        self.disk.in_background = self.in_background  # type: ignore[method-assign, assignment]

    async def in_background(self, call: Callable[[], object]) -> object:
        self.calls += 1
        if not self.works_first:
            await self.go.wait()
        result = call()
        await self.go.wait()
        return result


def test_flushed_records_survive_a_power_cut(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 30)
    drive(directory.sync_metadata())
    assert drive(log.flush()) == 60
    append(log, 5)
    machine.lose_power()
    _, log = machine.open_log()
    assert log.log_end_offset == 60
    check_log(log)


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("start", [0, 20])
@pytest.mark.parametrize("is_created_by", ["the next attempt", "the first append"])
def test_the_name_of_a_file_that_is_created_late_is_synced_with_its_records(
    machine: Machine, start: int, is_created_by: str
) -> None:
    """There was no descriptor for it when the log was made, or reset, and its directory was synced meanwhile."""
    directory = machine.open()
    if start:
        append(directory.create_log(PARTITION, TOPIC_ID, directory.default_config), 3)
    machine.storage.fail("open", SEGMENT.format(start), times=1, no_descriptor=True)
    log = directory.create_log(PARTITION, TOPIC_ID, directory.default_config)
    if start:
        log.reset_to(start)
    log.write_epoch_entries([(3, start)])
    drive(directory.sync_metadata())
    assert not machine.disk().exists(SEGMENT.format(start))
    if is_created_by == "the next attempt":
        log.finish_cut()
    append(log, 3, epoch=3)
    end = drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    machine.lose_power()
    _, log = machine.open_log()
    assert (log.damage, log.log_end_offset) == (None, end)


def test_unflushed_records_do_not_survive_a_power_cut(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    drive(directory.sync_metadata())
    append(log, 5)
    machine.lose_power()
    assert machine.open_log(ONE_SEGMENT)[1].log_end_offset == 0


@pytest.mark.parametrize("cause", ["killed", "index lost"])
def test_indexes_of_closed_segments_are_on_disk_before_the_recovery_point_rises(machine: Machine, cause: str) -> None:
    """One that a power cut took is rebuilt on the event loop, from all headers of its segment."""
    directory, log = machine.open_log()
    append(log, 30)
    indexes = [name for name in machine.file_names("index") if int(name[:20]) < log.segments[-1].base_offset]
    before = [machine.content(name) for name in indexes]
    assert all(before)
    assert len(indexes) > 4
    if cause == "killed":
        machine.kill()
        directory, log = machine.open_log()
    else:
        for segment in log.segments[:-1]:
            segment.close()
            machine.disk().remove(segment.index_paths[0])
            segment.end_at(segment.base_offset)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    machine.lose_power()
    assert [machine.content(name) for name in indexes] == before


def test_nothing_is_synced_twice(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 5)
    drive(log.flush())
    before = machine.storage.trace.events
    assert drive(log.flush()) == 10
    assert machine.storage.trace.events == before


def test_only_closed_segments_can_be_flushed_alone(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 30)
    assert drive(log.flush(closed_only=True)) == log.segments[-1].base_offset < 60


def test_maintenance_flushes_closed_segments(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 30)
    drive(directory.maintain(0))
    assert log.recovery_point == log.segments[-1].base_offset > 0


async def test_concurrent_callers_share_one_sync(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 1)
    slow = SlowSync(log)
    first = asyncio.ensure_future(log.flush())
    await asyncio.sleep(0)
    append(log, 1)
    later = [asyncio.ensure_future(log.flush()) for _ in range(10)]
    await asyncio.sleep(0)
    slow.go.set()
    assert await first == 2
    assert await asyncio.gather(*later) == [4] * 10
    assert slow.calls == 2


@pytest.mark.invariant("I10")
async def test_a_truncation_during_a_sync_limits_the_recovery_point(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    slow = SlowSync(log)
    flushing = asyncio.ensure_future(log.flush())
    await asyncio.sleep(0)
    truncate(log, 8)
    append(log, 5)
    slow.go.set()
    assert await flushing == 8
    assert log.recovery_point == 8


@pytest.mark.invariant("I10")
@pytest.mark.parametrize("cuts", [(8, 14), (14, 8)])
async def test_of_two_truncations_during_a_sync_the_lower_one_limits_the_recovery_point(
    machine: Machine, cuts: tuple[int, int]
) -> None:
    """What came between the two was written after the sync began, and counts as synced for ever otherwise."""
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    slow = SlowSync(log)
    flushing = asyncio.ensure_future(log.flush())
    await asyncio.sleep(0)
    for end in cuts:
        truncate(log, end)
        append(log, 5)
    slow.go.set()
    assert await flushing == 8
    assert log.recovery_point == 8


async def test_a_reset_during_a_sync_is_safe(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 30)
    slow = SlowSync(log)
    flushing = asyncio.ensure_future(log.flush())
    await asyncio.sleep(0)
    log.reset_to(7)
    append(log, 3)
    slow.go.set()
    assert await flushing == 7


@pytest.mark.parametrize("sync", SYNCS)
async def test_a_cancelled_sync_keeps_the_list_of_unsynced_files(machine: Machine, sync: str) -> None:
    """Each by its content: a log finds its end and its name without some of them, too."""
    directory, log = machine.open_log()
    append(log, 30)
    before = {name: machine.content(name) for name in (PARTITION_METADATA, EPOCH_CHECKPOINT, LOG_START)}
    slow = SlowSync(log, works_first=False)
    flushing = asyncio.ensure_future(SYNCS[sync](directory, log))
    await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    assert (log.recovery_point, directory.offline) == (0, False)
    slow.go.set()
    assert await log.flush() == 60
    await directory.checkpoint_recovery_points()
    machine.lose_power()
    assert {name: machine.content(name) for name in before} == before
    log = machine.open().logs[PARTITION]
    assert (log.log_end_offset, log.topic_id) == (60, TOPIC_ID)
    check_log(log)


@pytest.mark.invariant("I12")
@pytest.mark.parametrize("sync", SYNCS)
async def test_a_cut_during_a_sync_waits_for_the_next_one_before_a_segment_is_closed(
    machine: Machine, sync: str
) -> None:
    """A power cut may bring back what was cut: never in front of newer segments."""
    directory, log = machine.open_log()
    append(log, 31)
    slow = SlowSync(log)
    syncing = asyncio.ensure_future(SYNCS[sync](directory, log))
    await asyncio.sleep(0)
    truncate(log, log.log_end_offset - 2)
    count = len(log.segments)
    slow.go.set()
    await syncing
    append(log, 31, epoch=1)
    assert len(log.segments) == count
    await log.flush()
    append(log, 1, epoch=1)
    assert len(log.segments) > count


GIVEN_UP: dict[str, Callable[[LogDirectory, PartitionLog], Coroutine[Any, Any, object]]] = {
    **SYNCS,
    "recovery points": lambda directory, _: directory.checkpoint_recovery_points(),
    "log start": lambda _, log: log.record_start(10),
}


@pytest.mark.parametrize("logs", [1, 2])
@pytest.mark.parametrize("sync", GIVEN_UP)
async def test_a_sync_that_fails_when_its_caller_has_given_up_takes_the_directory_offline(
    machine: Machine, sync: str, logs: int
) -> None:
    """As at a stop. The kernel reports the failure once: the sync of a clean close would succeed."""
    directory, log = machine.open_log()
    for number in range(1, logs):
        append(directory.create_log(TopicPartition("lines", number), TOPIC_ID, SMALL))
    append(log, 30)

    async def in_background(call: Callable[[], object]) -> object:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as cancelled:
            raise cancelled from SyncFailed("input/output error")

    log.health.disk.in_background = in_background  # type: ignore[method-assign, assignment]
    syncing = asyncio.ensure_future(GIVEN_UP[sync](directory, log))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    syncing.cancel()
    await asyncio.gather(syncing, return_exceptions=True)
    assert syncing.cancelled()
    assert directory.offline


async def test_deleting_the_log_during_a_sync_is_safe(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 30)
    slow = SlowSync(log)
    slow.go.set()
    flushing = asyncio.ensure_future(log.flush())
    directory.delete_log(PARTITION)
    await flushing
    assert not directory.offline


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("call", ["sync", "sync_directory"])
def test_a_failed_sync_takes_the_directory_offline(machine: Machine, sync: str, call: str) -> None:
    """Then it is unknown what is on the disk: the kernel may have dropped the pages."""
    directory, log = machine.open_log()
    append(log, 30)
    assert log.segment_count > 1
    machine.storage.fail(call, times=1)
    with pytest.raises(DiskError):
        drive(SYNCS[sync](directory, log))
    assert directory.offline
    assert log.recovery_point == 0
    with pytest.raises(DiskError, match="offline"):
        drive(log.flush())


@pytest.mark.invariant("I13")
def test_the_recovery_point_waits_for_the_epoch_file(machine: Machine) -> None:
    """KAFKA-16541: otherwise recovery, which starts at the recovery point, could not rebuild the entry."""
    directory, log = machine.open_log()
    drive(directory.sync_metadata())
    for epoch in range(5):
        append(log, 8, epoch=epoch)
    entries = log.epoch_entries()
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    machine.lose_power()
    _, log = machine.open_log()
    assert log.log_end_offset == 80
    assert log.epoch_entries() == entries


@pytest.mark.invariant("I13")
def test_the_recovery_point_waits_for_epochs_that_the_start_had_no_room_for(machine: Machine) -> None:
    """The last epoch in the file is right, so appends need no new file; the next start reads no older batches."""
    directory, log = machine.open_log()
    for epoch in range(3):
        append(log, 8, epoch=epoch)
    drive(directory.sync_metadata())
    entries = log.epoch_entries()
    machine.kill()
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint([entries[0], entries[2]], OWNER))
    machine.storage.boots += 1
    machine.storage.fail("replace_file", f"{log.directory}/{EPOCH_CHECKPOINT}", is_full=True)
    directory, log = machine.open_log()
    machine.storage.heal()
    append(log, 1, epoch=2)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    machine.lose_power()
    _, log = machine.open_log()
    assert log.epoch_entries() == entries
    check_log(log)


def test_epoch_files_of_many_logs_are_synced_together(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 1, epoch=3)
    drive(directory.sync_metadata())
    assert not log.unsynced
    assert log.recovery_point == 0


def test_an_epoch_file_without_room_is_written_with_the_next_flush(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 1, epoch=1)
    machine.storage.fail("replace_file", times=1, is_full=True)
    with pytest.raises(DiskError):
        log.write_epoch_entries([(1, 0), (2, 2)])
    assert directory.try_heal()
    append(log, 1, epoch=2)
    drive(log.flush())
    assert machine.content("leader-epoch-checkpoint") == format_epoch_checkpoint([(1, 0), (2, 2)], OWNER)


def test_what_is_written_while_a_sync_runs_in_its_thread_waits_for_the_next_one() -> None:
    async def flush_and_write(log: PartitionLog) -> int:
        flushing = asyncio.create_task(log.flush())
        while not flushing.done():
            append(log, 2)
            await asyncio.sleep(0)
        return await flushing

    for seed in range(20):
        machine = Machine(seed, has_disk_threads=True)
        _, log = machine.open_log(SMALL)
        append(log, 10)
        synced = drive(flush_and_write(log))
        assert 20 <= synced < log.log_end_offset
        machine.lose_power()
        assert machine.open(SMALL).logs[PARTITION].log_end_offset >= synced


ENTRY, SYNC = BadEntry("it is a directory"), SyncFailed("the disk says so")


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize(
    ("errors", "told"),
    [
        ([None, None], None),
        ([None, SYNC], SYNC),
        ([ENTRY, None], ENTRY),
        ([ENTRY, SYNC], SYNC),
        ([SYNC, ENTRY], SYNC),
    ],
)
def test_a_wait_for_several_syncs_tells_the_gravest_error(
    errors: list[DiskError | None], told: DiskError | None, is_cancelled: bool
) -> None:
    """A kernel reports a failed sync once, so it must not be hidden by an entry of one log that cannot be used, nor
    from a caller that is cancelled meanwhile."""

    async def sync(error: DiskError | None) -> None:
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError as cancelled:
            raise cancelled from error
        if error is not None:
            raise error

    async def main() -> None:
        waiting = asyncio.create_task(gather_all([sync(error) for error in errors]))
        await asyncio.sleep(0.05)
        if is_cancelled:
            waiting.cancel()
        try:
            await waiting
        except (asyncio.CancelledError, DiskError) as error:
            assert isinstance(error, asyncio.CancelledError) is is_cancelled
            found.append(disk_error_of(error))

    found: list[DiskError | None] = []
    SimulatedWorld().run(main())
    assert found == ([told] if told is not None or is_cancelled else [])
