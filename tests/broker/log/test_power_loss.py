"""Crash after every single change on the disk, by a killed process and by a power cut, and check what a restart finds.

A workload of appends, rolls, flushes, truncations, deletions and checkpoints runs once for each of its changes on the
disk, with a crash right after that change. Afterwards the log must be well-formed. Everything synced, and not truncated
later, must be there with the same bytes. It must contain nothing that was never written. A killed process must have
lost nothing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.ports import DiskError
from minibroker.simulation.world.disk import SimulatedDisk
from minibroker.simulation.world.node import ProcessDead
from tests.broker.log.machine import (
    PARTITION,
    TOPIC_ID,
    Machine,
    append_batches,
    check_log,
    drive,
    make_batch,
    retain,
    stored_batches,
    truncate,
)

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, retention_ms=None, file_delete_delay_ms=0)


class Workload:
    """The operations on the log, and what must survive them."""

    def __init__(self, machine: Machine, prompt: bool) -> None:
        self.prompt = prompt
        """Whether the periodic tasks run right after each truncation."""
        self.machine = machine
        self.log: PartitionLog | None = None
        self.ever_written: set[bytes] = set()
        self.current: list[bytes] = []
        self.current_end = 0
        self.synced: list[bytes] = []
        """Bytes of batches that a flush returned for and that no later cut touched."""
        self.cut = False
        """Whether a truncation is in progress: a restart may find the old or the new state."""
        self.epoch = 0
        self.sequence = 0

    def run(self) -> None:
        self.directory = self.machine.open(CONFIG)
        self.log = self.directory.create_log(PARTITION, TOPIC_ID, CONFIG)
        drive(self.directory.sync_metadata())
        self.append(9)
        self.flush()
        drive(self.directory.checkpoint_recovery_points())
        self.append(4)
        self.truncate_to(13)
        self.append(12)
        drive(self.directory.maintain(0))
        self.truncate_to(20)
        self.truncate_to(9)
        self.append(9)
        drive(self.directory.maintain(0))
        self.flush()
        drive(self.directory.checkpoint_recovery_points())
        self.log.trim_before(7)
        retain(self.log, self.log.log_end_offset, 0)
        drive(self.directory.record_log_starts())
        self.append(3)
        drive(self.directory.close(True, {PARTITION: 5}))
        self.directory = self.machine.open(CONFIG)
        self.log = self.directory.logs[PARTITION]
        self.append(6)
        self.truncate_to(12)
        self.append(6)
        self.flush()

    def append(self, count: int) -> None:
        assert self.log is not None
        self.epoch += 1
        for _ in range(count):
            batch = make_batch(
                self.log.log_end_offset,
                2,
                epoch=self.epoch,
                value=b"%4d" % self.sequence,
                producer=(7, 0, self.sequence),
            )
            self.sequence += 2
            self.ever_written.add(bytes(batch[1]))
            self.current.append(bytes(batch[1]))
            self.current_end = batch[0].end_offset
            append_batches(self.log, [batch])

    def flush(self) -> None:
        assert self.log is not None
        drive(self.log.flush())
        self.synced = list(self.current)

    def truncate_to(self, end_offset: int) -> None:
        assert self.log is not None
        kept = [batch for batch in self.current if _end_of(batch) <= end_offset]
        self.synced = [batch for batch in self.synced if batch in kept]
        self.cut = True
        truncate(self.log, end_offset)
        if self.prompt:
            drive(self.directory.maintain(0))
        self.current = kept
        self.cut = False


def _end_of(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big") + 2


def crash_after(machine: Machine, change: int, end: Callable[[], None], prompt: bool) -> Workload | None:
    """Run the workload until that many changes have reached the disk; None if it ended before."""
    workload = Workload(machine, prompt)
    seen = 0

    def count(line: str) -> None:
        nonlocal seen
        seen += 1
        if seen == change:
            machine.process.kill()

    machine.storage.trace.listeners.append(count)
    try:
        workload.run()
    except ProcessDead:
        machine.storage.trace.listeners.clear()
        end()
        return workload
    machine.storage.trace.listeners.clear()
    return None


def every_crash(end: Callable[[Machine], None], seeds: int = 1) -> list[tuple[Machine, Workload]]:
    crashes = []
    for seed, prompt in itertools.product(range(seeds), (True, False)):
        change = 1
        while True:
            machine = Machine(seed)
            workload = crash_after(machine, change, lambda machine=machine: end(machine), prompt)  # type: ignore[misc]
            machine.loop.close()
            if workload is None:
                break
            crashes.append((machine, workload))
            change += 1
    assert len(crashes) > 400 * seeds
    return crashes


def reopened(machine: Machine) -> PartitionLog | None:
    return machine.open(CONFIG).logs.get(PARTITION)


@pytest.mark.invariant("I10", "I12", "I13", "I15")
def test_a_killed_process_loses_nothing() -> None:
    for machine, workload in every_crash(lambda machine: machine.kill()):
        log = reopened(machine)
        if log is None:
            assert not workload.current
            continue
        check_log(log, whole_history=log.segments[0].base_offset == 0)
        there = [batch for _, batch in stored_batches(log)]
        expected = [batch for batch in workload.current if _end_of(batch) > log.segments[0].base_offset]
        if workload.cut:
            assert there == expected[: len(there)]
        else:
            assert there in (expected, expected[:-1])  # the last append may not have happened


@pytest.mark.invariant("I10", "I12", "I13", "I15")
@pytest.mark.parametrize("tear", [False, True])
def test_a_power_cut_loses_nothing_that_was_synced(tear: bool) -> None:
    for machine, workload in every_crash(lambda machine: machine.lose_power(tear), seeds=3 if tear else 1):
        log = reopened(machine)
        if log is None:
            assert not workload.synced
            continue
        check_log(log, whole_history=log.segments[0].base_offset == 0)
        there = [batch for _, batch in stored_batches(log)]
        assert workload.ever_written.issuperset(there)
        wanted = [batch for batch in workload.synced if _end_of(batch) > log.segments[0].base_offset]
        assert there[: len(wanted)] == wanted


def test_after_a_crash_the_log_can_be_appended_to() -> None:
    for machine, _ in every_crash(lambda machine: machine.lose_power(True)):
        directory, log = machine.open_log(CONFIG)
        for _ in range(12):
            append_batches(log, [make_batch(log.log_end_offset, 2, epoch=100)])
        drive(directory.maintain(0))
        check_log(log, whole_history=log.segments[0].base_offset == 0)
        end = log.log_end_offset
        drive(directory.close(True, {}))
        machine.kill()
        log = machine.open_log(CONFIG)[1]
        assert log.report.clean
        assert log.log_end_offset == end


@pytest.mark.invariant("I10", "I12", "I13", "I15")
def test_a_flush_also_syncs_what_a_killed_process_left() -> None:
    """Its names and epochs are only in the kernel's memory, and the new process must assume that (seed 935)."""
    for machine, _ in every_crash(lambda machine: machine.kill()):
        _, log = machine.open_log(CONFIG)
        append_batches(log, [make_batch(log.log_end_offset, 2, epoch=100)])
        drive(log.flush())
        written = [batch for _, batch in stored_batches(log)]
        machine.lose_power()
        found = reopened(machine)
        assert found is not None
        check_log(found, whole_history=found.segments[0].base_offset == 0)
        assert [batch for _, batch in stored_batches(found)] == written


@pytest.mark.parametrize(("path", "parent"), [("/data/log", "/data"), ("/data/log/", "/data"), ("log", ".")])
def test_the_name_of_a_new_log_directory_is_synced(monkeypatch: pytest.MonkeyPatch, path: str, parent: str) -> None:
    """Else a power cut removes it with all its files."""
    synced: list[str] = []

    def stop(disk: SimulatedDisk, directory: str) -> None:
        synced.append(directory)
        raise DiskError("a test says so")

    monkeypatch.setattr(SimulatedDisk, "sync_directory", stop)
    with pytest.raises(DiskError):
        drive(LogDirectory.open(Machine().disk(), RealClock(), path, 1, "c", LogConfig(), rng=random.Random(1)))
    assert synced == [parent]


def test_a_power_cut_leaves_a_new_directory_with_all_its_new_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each parent is an entry of its own parent: if one is lost, so is all that was synced below it."""
    machine = Machine()
    monkeypatch.setattr("tests.broker.log.machine.PATH", "/data/new/deeper")
    _, log = machine.open_log()
    append_batches(log, [make_batch(0)])
    drive(log.flush())
    machine.lose_power()
    assert machine.open_log()[1].log_end_offset == log.log_end_offset > 0
