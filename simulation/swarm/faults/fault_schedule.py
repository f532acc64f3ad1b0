"""The course of a run: which fault or sequence comes when, what a run still lacks, and the repair at the end.

Owns: the order. Leaves to others: how a fault is done (`faults`, `fault_sequences`), what the promise allows
(`fault_injector`).
"""

import asyncio
from collections.abc import Callable

from minibroker.simulation.swarm.faults.fault_injector import FaultInjector, name_of
from minibroker.simulation.swarm.faults.fault_sequences import fault_sequences
from minibroker.simulation.swarm.faults.faults import BENIGN, Faults
from minibroker.simulation.swarm.faults.leader_sequences import LeaderSequences
from minibroker.simulation.swarm.options import DISKS

RESTART_SHARE = 0.3
"""The share of steps that start a dead broker."""
PAUSE_MAX = 3.0
SEQUENCES_AT_ONCE_MAX = 2
STOP_SECONDS = 90
"""A clean stop of 27 logs whose disk takes 0.4 s a call ends after 55 s, though the disk is healed meanwhile: closing
the logs is one job, begun at the cost of that moment (seed 17511994)."""
STAGED_MAX = 4
"""Truncations that are forced at the end of a run that has seen none."""
STAGED_SECONDS = 1.5
FAILED_DISK_SECONDS = 1.0
UNRAVEL_SECONDS = 10.0
"""By then a broker that lost bytes has registered again and left the ISR or caught up, if no bug prevents it."""
ENDINGS = ("DiskError", "DiskFull", "SyncFailed", "StorageOffline", "LogDirectoryError", "FileMissing")
"""With these errors a broker may end, or refuse to start, on a disk that has a fault."""


class FaultSchedule:
    """Injects faults for a while, then repairs everything."""

    def __init__(self, injector: FaultInjector, has_enough: Callable[[], bool]) -> None:
        """`has_enough`: whether the run has seen the elections and truncations that it needs to count."""
        self._injector = injector
        self._world = injector.world
        self._random = injector.random
        self._faults = Faults(injector)
        self._sequences = fault_sequences(injector)
        self._leader_sequences = LeaderSequences(injector)
        self._running: set[asyncio.Task[None]] = set()
        self._has_enough = has_enough

    async def run(self) -> None:
        """The phase under faults."""
        options = self._injector.options
        end = self._world.loop.time() + options.seconds
        while self._world.loop.time() < end:
            pause = min(PAUSE_MAX, self._random.expovariate(1 / options.pause_mean))
            await asyncio.sleep(pause)
            self.forgive_crashes()
            self._step()
        if self._running:
            await asyncio.wait(self._running)

    def _step(self) -> None:
        options, injector = self._injector.options, self._injector
        if self._random.random() < RESTART_SHARE:
            self._faults.restart()
        elif self._random.random() < options.sequence_share and len(self._running) < SEQUENCES_AT_ONCE_MAX:
            kind = self._random.choice(options.sequences)
            if not injector.has_weakened_broker() and not injector.faulty_disks:
                self._play(kind)
        else:
            kind = self._random.choice(options.faults)
            if kind in BENIGN or not (
                injector.has_weakened_broker() or injector.has_no_spare_broker() or self._is_second_disk(kind)
            ):
                before = len(injector.history)
                getattr(self._faults, kind)()
                injector.injected[f"fault {kind}"] += len(injector.history) > before

    def _is_second_disk(self, kind: str) -> bool:
        """At most one disk is faulty at a time."""
        return bool(self._injector.faulty_disks) and kind in (*DISKS, "blank_disk")

    def _play(self, kind: str) -> None:
        self._injector.note("sequence", kind)
        self._injector.injected[f"sequence {kind}"] += 1
        task: asyncio.Task[None] = asyncio.create_task(self._sequences[kind]())
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def stage_what_is_missing(self) -> None:
        """A run in which no leader failed, or none with a tail, shows nothing: force it now, in a healthy cluster."""
        for _ in range(STAGED_MAX):
            if self._has_enough():
                return
            partition = self._injector.reference.states()[0].partition
            if await self._leader_sequences.all_in_sync(partition):
                self._injector.note("staged", partition)
                # a tail that retention overtakes is not truncated, but dropped with the whole log
                self._injector.workload.quiet_until[partition] = self._world.loop.elapsed + 2 * STAGED_SECONDS
                await self._leader_sequences.tail(partition, "bounce")
                await self._injector.wait(self._has_enough, STAGED_SECONDS)

    # ------------------------------------------------------------------------------------------------------ repair
    async def repair(self) -> None:
        """Faults stop: everything works, all brokers run."""
        world, injector = self._world, self._injector
        world.network.heal_all()
        world.zookeeper.start()
        world.zookeeper.heal()
        world.zookeeper.options.extra_delay = 0.0
        for broker_id in injector.cluster.broker_ids:
            machine = world.machine(name_of(broker_id))
            machine.storage.heal()
            machine.storage.cost.append = 0.0
            if machine.process is not None and machine.process.alive and machine.process.paused:
                world.resume(machine.name)
        if injector.broken_disks:
            await asyncio.sleep(FAILED_DISK_SECONDS)  # a broker that meets its failed disk ends
        if injector.counts["blank disk"]:
            await asyncio.sleep(injector.options.session_seconds + FAILED_DISK_SECONDS)  # see forgive_crashes
        await injector.cluster.until(
            lambda: not any(p.alive for p in injector.stopping), STOP_SECONDS, "the end of a SIGTERM"
        )
        self.forgive_crashes()
        await self._restart_broken_disks()
        for broker_id in injector.cluster.broker_ids:
            injector.start(broker_id)
        injector.note("repaired")

    async def _restart_broken_disks(self) -> None:
        """Once no broker counts for bytes that it lost: else the broker that has them would fail, too."""
        injector = self._injector
        if injector.broken_disks and injector.has_weakened_broker():
            for broker_id in injector.cluster.broker_ids:
                injector.start(broker_id)
            await injector.wait(lambda: not injector.has_weakened_broker(), UNRAVEL_SECONDS)
        for broker_id in sorted(injector.broken_disks & set(injector.cluster.alive())):
            injector.note("restart after a disk error", broker_id)
            injector.cluster.kill(broker_id)

    def forgive_crashes(self) -> None:
        """Drop the crashes of brokers without ZooKeeper, or whose disk has had a fault; any other crash is a bug."""
        injector = self._injector
        of_disks = [*ENDINGS]
        if injector.options.disks is not None:
            of_disks.append("OutOfDescriptors")  # at the start of a broker
        allowed = ["RegistrationError", "ZooKeeperUnreachable"]
        if injector.reference.faulty or injector.counts["disk rot_identity"]:
            allowed += ["ClusterMismatch", "BrokerIdTaken"]  # a broker's identity is on its disk
        if injector.counts["blank disk"] or injector.counts["disk replaced"]:
            allowed.append("BrokerIdTaken")  # with another directory id it looks like another broker, and gives up
        had_faults = {name_of(broker_id) for broker_id in injector.disks_with_faults}
        for name, error in list(self._world.crashes):
            kind = type(error).__name__
            if kind in allowed or (kind in of_disks and name in had_faults):
                self._world.crashes.remove((name, error))
                injector.note("ended", name, kind)
