"""Replicas of one partition lead, follow, are cut, reset, trimmed, killed and lose power in any order: no start calls a
log damaged, for what its epoch file says is lawful."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.replication.epoch_history import EpochHistory
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.simulation.world.node import ProcessDead
from tests.broker.log.machine import Batch, Machine, drive, make_batch, stored_batches

STEPS = 120
SEGMENT_BYTES = (400, 900, 100_000)
CHOICES = {"elect": 4, "produce": 12, "follow": 20, "sync": 12, "trim": 2, "clean": 1, "kill": 2, "power": 2, "tear": 2}


class Replica:
    """A log on a machine of its own, and the epoch history that the core would keep of it."""

    def __init__(self, seed: int, config: LogConfig) -> None:
        self.machine, self.config = Machine(seed), config
        self.start()
        drive(self.directory.sync_metadata())

    def start(self) -> None:
        self.directory, self.log = self.machine.open_log(self.config)
        self.history = EpochHistory(self.log.epoch_entries())
        self.is_aligned = False
        assert self.log.damage is None

    def restart(self, how: str) -> None:
        if how == "clean":
            drive(self.directory.close(True, {}))
        self.machine.kill()
        if how in ("power", "tear"):
            self.machine.lose_power(how == "tear")
        self.start()

    def write_epochs(self, is_changed: bool) -> None:
        if is_changed:
            self.log.write_epoch_entries(self.history.entries)

    def lead(self, epoch: int) -> None:
        self.write_epochs(self.history.assign(epoch, self.log.log_end_offset))

    def cut(self, end_offset: int) -> None:
        is_changed = self.history.truncate_to(min(end_offset, self.log.log_end_offset))
        if end_offset < self.log.log_start_offset:
            self.log.reset_to(end_offset)
        elif end_offset < self.log.log_end_offset:
            self.log.truncate_to(end_offset)
        self.write_epochs(self.history.truncate_to(self.log.log_end_offset) or is_changed)

    def reset(self, offset: int) -> None:
        self.history.clear()
        self.log.reset_to(offset)
        self.write_epochs(True)

    def append(self, batches: list[Batch]) -> None:
        self.log.append(batches)
        starts = [(header.partition_leader_epoch, header.base_offset) for header, _ in batches]
        self.write_epochs(any([self.history.assign(*start) for start in starts]))

    def drop_up_to(self, start: int) -> None:
        """Where the leader's log starts, which nothing here was compared with."""
        self.log.trim_before(start, LogStartReason.COPIED, drops_all=True)
        self.write_epochs(self.history.trim_before(self.log.segments[0].base_offset))

    def raise_start(self, start: int, low_watermark: int) -> None:
        drive(self.log.record_start(start, LogStartReason.TRIM))
        self.log.trim_before(start, LogStartReason.TRIM)
        before = self.log.segments[0].base_offset
        first = delete_head(self.log, low_watermark)
        self.write_epochs(first > before and self.history.trim_before(first))

    def align(self, leader: Replica) -> None:
        """As a follower does: epoch by epoch downwards, until both know one."""
        self.is_aligned = True
        while (asked := self.history.latest_epoch) is not None:
            end = self.log.log_end_offset
            theirs = leader.history.end_offset_for(asked, leader.log.log_end_offset)
            mine = None if theirs is None else self.history.end_offset_for(theirs[0], end)
            if theirs is None:
                return self.cut(self.log.log_start_offset)
            if mine is None or mine[0] >= theirs[0]:
                return self.cut(min(theirs[1], end, end if mine is None else mine[1]))
            self.cut(min(mine[1], end))
            if mine[0] == asked:
                return None
        return None


class Cluster:
    """Any replica may be elected, also uncleanly, and each election begins a new epoch."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        config = LogConfig(
            segment_bytes=self.rng.choice(SEGMENT_BYTES),
            index_interval_bytes=200,
            file_delete_delay_ms=0,
            retention_ms=None,
        )
        self.replicas = [Replica(10 * seed + number, config) for number in range(3)]
        self.epoch, self.leader = -1, self.replicas[0]
        self.elect()

    def elect(self) -> None:
        self.epoch += self.rng.randint(1, 2)
        self.leader = self.rng.choice(self.replicas)
        for replica in self.replicas:
            replica.is_aligned = False
        self.leader.lead(self.epoch)

    def produce(self) -> None:
        batches, end = list[Batch](), self.leader.log.log_end_offset
        for _ in range(self.rng.randint(1, 3)):
            batches.append(make_batch(end, self.rng.randint(1, 3), epoch=self.epoch))
            end = batches[-1][0].end_offset
        self.leader.log.append(batches)

    def follow(self, replica: Replica) -> None:
        """One fetch, and what an answer out of range leads to."""
        if replica is self.leader:
            return None
        if not replica.is_aligned:
            replica.align(self.leader)
        log, theirs = replica.log, self.leader.log
        start = theirs.log_start_offset
        if log.log_end_offset > theirs.log_end_offset:
            return replica.cut(theirs.log_end_offset)
        if start > log.log_end_offset or start < log.log_start_offset == log.log_end_offset:
            return replica.reset(start)
        if start < log.log_start_offset:
            log.lower_start(start)
        if log.log_start_offset < start == log.log_end_offset and self.rng.random() < 0.5:
            replica.drop_up_to(start)
        there = [(header, bytearray(batch)) for header, batch in stored_batches(theirs)]
        batches = [each for each in there if each[0].base_offset >= log.log_end_offset][: self.rng.randint(0, 6)]
        if batches and batches[0][0].base_offset == log.log_end_offset:
            replica.append(batches)
        if log.log_start_offset < start <= log.log_end_offset and self.rng.random() < 0.5:
            replica.raise_start(start, self.rng.randint(0, start))
        return None

    def sync(self, replica: Replica) -> None:
        directory = replica.directory
        steps: list[Callable[[], Coroutine[Any, Any, object]]] = [
            replica.log.flush,
            directory.sync_metadata,
            directory.checkpoint_recovery_points,
            directory.record_log_starts,
            lambda: directory.maintain(1 << 50),
        ]
        drive(self.rng.choice(steps)())

    def step(self) -> None:
        replica, log = self.rng.choice(self.replicas), self.leader.log
        [choice] = self.rng.choices(list(CHOICES), list(CHOICES.values()))
        if choice == "elect":
            self.elect()
        elif choice == "produce":
            self.produce()
        elif choice == "follow":
            self.follow(replica)
        elif choice == "sync":
            self.sync(replica)
        elif choice == "trim":
            start = self.rng.randint(log.log_start_offset, log.log_end_offset)
            self.leader.raise_start(start, self.rng.randint(0, start))
        else:
            replica.restart(choice)
            self.elect_another(replica)

    def elect_another(self, replica: Replica) -> None:
        """A leader that ended leads no more under its epoch."""
        if replica is self.leader:
            self.elect()

    def end_within_a_step(self) -> None:
        """A process ends between two calls of its disk, by a kill or with the power."""
        replica = self.rng.choice(self.replicas)

        def kill() -> None:
            replica.machine.kill()
            raise ProcessDead("broker")

        replica.machine.storage.trap(self.rng.randint(1, 6), kill)
        try:
            for _ in range(3):
                self.step()
        except ProcessDead:
            replica.machine.storage.clear_trap()
            replica.restart(self.rng.choice(["kill", "power", "tear"]))
            self.elect_another(replica)
        replica.machine.storage.clear_trap()


@pytest.mark.invariant("I13", "I44")
@pytest.mark.parametrize("seed", range(60))
def test_no_start_calls_a_log_damaged_while_no_disk_is_faulty(seed: int) -> None:
    """An epoch begins at one offset in all logs, so a file that says otherwise is damage. Whatever replicas go through,
    no file and no rebuilt history may say otherwise."""
    cluster = Cluster(seed)
    for _ in range(STEPS):
        if cluster.rng.random() < 0.1 * (seed % 2):
            cluster.end_within_a_step()
        else:
            cluster.step()
    for replica in cluster.replicas:
        replica.machine.loop.close()
