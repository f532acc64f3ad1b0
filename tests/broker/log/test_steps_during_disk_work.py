"""Steps of a log while work on its files goes on in the background: neither may forget what the other did.

Each work of a log directory that awaits the disk is begun. While one of its calls is in the background, the log takes a
step, as it does when a leader's answer or a producer's request comes meanwhile. Then the machine ends, and the next
start must find a sound log with what was synced and not cut.

What is noted as done before the disk has answered, or noted as done although a step has undone it since, shows here. It
does not see two steps within one call, and nothing of other logs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_digests import complete_one
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.checkpoints import PARTITION_METADATA, LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.world.disk import SimulatedDisk
from tests.broker.log.machine import (
    PARTITION,
    TOPIC_ID,
    Machine,
    append,
    check_log,
    drive,
    reset,
    stored_batches,
    trim_epochs,
    truncate,
)

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, retention_ms=None, file_delete_delay_ms=0)
CALLS_MAX = 20
TORN_SEEDS = 3
"""Of a power cut that spares a random part of what was not synced."""

Work = Callable[[LogDirectory, PartitionLog], Coroutine[Any, Any, object]]
Step = Callable[[LogDirectory, PartitionLog], object]


def cut_to(log: PartitionLog, directory: LogDirectory, end: int) -> None:
    truncate(log, end)
    directory.log_was_cut(log)


def start_again(directory: LogDirectory, log: PartitionLog) -> None:
    reset(log, log.log_end_offset + 10)
    directory.log_was_cut(log)


def expire(_: LogDirectory, log: PartitionLog) -> None:
    """Its start was recorded before."""
    log.trim_before(START, LogStartReason.RETENTION)
    delete_head(log, START)
    trim_epochs(log)


START, END = 10, 46
WORKS: dict[str, Work] = {
    "flush": lambda _, log: log.flush(),
    "flush of closed segments": lambda _, log: log.flush(closed_only=True),
    "sync of metadata": lambda directory, _: directory.sync_metadata(),
    "maintenance": lambda directory, _: directory.maintain(1),
    "recovery points": lambda directory, _: directory.checkpoint_recovery_points(),
    "high watermarks": lambda directory, _: directory.checkpoint_high_watermarks({PARTITION: END}),
    "log start": lambda _, log: log.record_start(START, LogStartReason.RETENTION),
    "log starts": lambda directory, _: directory.record_log_starts(),
    "digests": lambda _, log: complete_one(log),
}
STEPS: dict[str, Step] = {
    "appends": lambda _, log: append(log, 2, epoch=5),
    "appends that begin a segment": lambda _, log: append(log, 9, epoch=5),
    "cut of the last segment": lambda directory, log: cut_to(log, directory, END - 2),
    "cut of segments": lambda directory, log: cut_to(log, directory, 21),
    "cut below all that is stored": lambda directory, log: cut_to(log, directory, 4),
    "new start": start_again,
    "expiry": expire,
}


class DuringCall:
    """Takes a step while the n-th call of the disk is in the background: before the disk does it, or after."""

    def __init__(self, disk: SimulatedDisk, number: int, is_done_before: bool, step: Callable[[], object]) -> None:
        self.calls = 0
        self._number, self._is_done_before, self._step = number, is_done_before, step
        disk.in_background = self._in_background  # type: ignore[method-assign, assignment]

    async def _in_background(self, call: Callable[[], object]) -> object:
        self.calls += 1
        if self.calls == self._number and not self._is_done_before:
            self._step()
        result = call()
        if self.calls == self._number and self._is_done_before:
            self._step()
        return result


def prepared(machine: Machine) -> tuple[LogDirectory, PartitionLog]:
    """Segments, of which a part is stored; a cut that is not synced; a last segment that grows."""
    directory, log = machine.open_log(CONFIG)
    append(log, 9, epoch=1)
    drive(log.flush())
    drive(directory.maintain(0))
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: 8}))
    append(log, 8, epoch=2)
    cut_to(log, directory, 30)
    append(log, 8, epoch=3)
    assert log.log_end_offset == END
    return directory, log


class End(NamedTuple):
    """Of the machine, some records after the work."""

    take: Callable[[Machine], object]
    is_soon: bool = False
    """Before the maintenance. A log that was cut below its checkpoints counts as damaged then, until they are written
    within a second."""
    seed: int = 0


ENDS = (
    End(lambda machine: machine.kill()),
    End(lambda machine: machine.lose_power()),
    *(End(lambda machine: machine.lose_power(tear=True), is_soon=True, seed=seed) for seed in range(TORN_SEEDS)),
)


def ended(work: Work, step: Step, number: int, is_done_before: bool, end: End) -> bool:
    """False if the work makes fewer calls."""
    machine = Machine(end.seed)
    directory, log = prepared(machine)
    if step is expire:
        drive(log.record_start(START, LogStartReason.RETENTION))
    disk = log.health.disk
    assert isinstance(disk, SimulatedDisk)
    during = DuringCall(disk, number, is_done_before, lambda: step(directory, log))
    drive(work(directory, log))
    if during.calls < number:
        machine.loop.close()
        return False
    append(log, 9, epoch=7)
    if not end.is_soon:
        drive(directory.maintain(2))
    is_damage_known = end.is_soon and bool(directory.health.checkpoints_due)
    written, synced, start = stored_batches(log), log.recovery_point, log.segments[0].base_offset
    end.take(machine)
    found = machine.open(CONFIG).logs[PARTITION]
    if is_damage_known and found.damage is not None:
        return True
    assert found.damage is None
    check_log(found, whole_history=found.segments[0].base_offset == 0)
    there = [batch for batch in stored_batches(found) if batch[0].base_offset >= start]
    kept = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(there, written, strict=False)))
    assert (there[kept - 1][0].end_offset if kept else start) >= synced
    assert not {batch for _, batch in there[kept:]} & {batch for _, batch in written}, (
        "records behind a cut that is undone"
    )
    machine.loop.close()
    return True


@pytest.mark.invariant("I10", "I12", "I44")
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_during_a_call_of_the_disk_leaves_a_sound_log(step: str, work: str) -> None:
    for end, is_done_before in itertools.product(ENDS, (False, True)):
        number = 1
        while ended(WORKS[work], STEPS[step], number, is_done_before, end):
            number += 1
            assert number < CALLS_MAX
        assert number > 1 or work in ("log start", "log starts", "digests")


@pytest.mark.invariant("I21")
@pytest.mark.parametrize("is_done_before", [False, True])
def test_a_log_made_again_during_the_write_of_its_first_recovery_point_is_known_to_start_over(
    is_done_before: bool,
) -> None:
    """The file names what the earlier log had synced: the new one would count as one that lost it."""
    machine = Machine()
    directory, log = machine.open_log(CONFIG)
    append(log, 3)
    drive(log.flush())
    disk = log.health.disk
    assert isinstance(disk, SimulatedDisk)

    def make_again() -> None:
        directory.delete_log(PARTITION)
        directory.create_log(PARTITION, TOPIC_ID, CONFIG)

    DuringCall(disk, 1, is_done_before, make_again)
    drive(directory.checkpoint_recovery_points())
    assert directory.logs[PARTITION].start_reason is LogStartReason.RESET


def test_a_flush_waits_for_the_files_that_a_sync_of_metadata_has_taken(machine: Machine) -> None:
    """Otherwise it would find nothing to sync, and call the records synced whose names are not."""
    directory, log = machine.open_log(CONFIG)
    append(log, 2, epoch=1)
    disk, seen = log.health.disk, list[bool]()
    assert isinstance(disk, SimulatedDisk)
    DuringCall(disk, 1, False, lambda: seen.append(log.flushing.locked()))
    drive(directory.sync_metadata())
    assert seen == [True]


async def test_a_sync_of_metadata_that_ends_while_it_waits_for_a_log_forgets_the_files_of_no_other(
    machine: Machine,
) -> None:
    """At a stop, while a second flush of that log is about to begin: a power cut after the clean stop would take the
    names of the other log's files."""
    directory = machine.open(CONFIG)
    log, other = (directory.create_log(each, TOPIC_ID, CONFIG) for each in (PARTITION, TopicPartition("other", 0)))
    append(log, 2, epoch=1)
    async with other.flushing:
        flushing = asyncio.ensure_future(other.flushing.acquire())
        await asyncio.sleep(0)
    syncing = directory.sync_metadata()
    syncing.send(None)
    with pytest.raises(asyncio.CancelledError):
        syncing.throw(asyncio.CancelledError())
    await flushing
    assert log.unsynced.holds(f"{log.directory}/{PARTITION_METADATA}")
    assert not log.flushing.locked()
