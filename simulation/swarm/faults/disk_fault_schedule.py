"""When faults of the one faulty disk and of the whole cluster come, in addition to `fault_schedule`; and their repair.

Owns: the order, from a random stream of its own, so that runs without these faults stay the same. Leaves to others: how
a fault is done.
"""

import asyncio
import random

from minibroker.simulation.swarm.faults.crash_points import CrashPoints
from minibroker.simulation.swarm.faults.disk_faults import DiskFaults
from minibroker.simulation.swarm.faults.disk_options import (
    CRASHES,
    FILE_CHANGES,
    LATER_FAULTS,
    OLDER,
    RUNNING_ROT,
    DiskOptions,
)
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.faults.faulty_disk import FaultyDisk
from minibroker.simulation.swarm.faults.whole_cluster import WholeCluster
from minibroker.simulation.swarm.loads.load_options import SCRUB_RATE
from minibroker.simulation.swarm.promise import Circumstance, allows

FIRST_SECONDS = 0.7
"""Some records are written first."""
LOOK_SECONDS = 0.25
START_SECONDS = 2.0
"""A broker that refuses its disk has ended by then."""
SCRUBBED_SECONDS = 20.0
"""By then a scrubber of the usual speed has read every byte of these small disks, and has repaired all rot."""
SCRUB_ROUNDS = 3
"""A slow one may have passed the rot just before; each round begins at another log, and the disk grows meanwhile."""


class DiskFaultSchedule:
    """Of one run."""

    def __init__(self, injector: FaultInjector, options: DiskOptions, rng: random.Random) -> None:
        self.disk = FaultyDisk(injector)
        self._injector = injector
        self._options = options
        self._random = rng
        self._faults = DiskFaults(injector, self.disk, rng)
        self._crash_points = CrashPoints(injector, rng)
        self._cluster = WholeCluster(injector, self._faults, self._crash_points, rng)
        self._takes_copies = bool({*OLDER, "all_end_and_an_older_copy_is_back"} & {*options.faults, *options.sequences})

    async def run(self) -> None:
        """The phase under faults: one fault at a time, each awaited."""
        injector, options = self._injector, self._options
        end = injector.world.loop.time() + injector.options.seconds
        await asyncio.sleep(FIRST_SECONDS)
        for broker_id in injector.cluster.broker_ids if self._takes_copies else ():
            self._faults.changes.copies.take(injector.storage(broker_id))
        while injector.world.loop.time() < end:
            await asyncio.sleep(self._random.expovariate(1 / options.pause_mean))
            self.disk.settle()
            if self._takes_copies:
                broker_id = self._random.choice(injector.cluster.broker_ids)
                if broker_id not in injector.faulty_disks:  # else its damage could return after it counts as repaired
                    self._faults.changes.copies.take(injector.storage(broker_id))
            if self._random.random() < options.sequence_share:
                await self._play(self._random.choice(options.sequences))
            else:
                await self._break_something()

    async def _play(self, kind: str) -> None:
        before = len(self._injector.history)
        await getattr(self._cluster, kind)()
        self._injector.injected[f"cluster {kind}"] += len(self._injector.history) > before

    async def _break_something(self) -> None:
        """Try one kind after another until one fits. Kinds that this run has not had yet come first."""
        faults, injected = self._options.faults, self._injector.injected
        if not set(faults) & set(LATER_FAULTS):
            await self._break(self._random.choice(faults))
            return
        kinds = self._random.sample(faults, len(faults))
        for kind in sorted(kinds, key=lambda each: injected[f"disk {each}"] > 0):
            if await self._break(kind):
                return

    async def _break(self, kind: str) -> bool:
        assert allows(kind, Circumstance.ANOTHER_COPY), "FaultyDisk.may_become_faulty requires that circumstance"
        before = self._injector.counts[f"disk {kind}"]
        if kind in RUNNING_ROT:
            await self._faults.rot(kind)
        elif kind in FILE_CHANGES:
            await self._faults.change(kind)
        elif kind in CRASHES:
            await getattr(self._crash_points, kind)()
        else:
            await getattr(self._faults, kind)()
        times = self._injector.counts[f"disk {kind}"] - before
        self._injector.injected[f"disk {kind}"] += times
        return times > 0

    # ------------------------------------------------------------------------------------------------------ repair
    async def repair(self) -> list[str]:
        """After the other faults have stopped and all brokers were started. Returns the rot that the brokers should
        have repaired themselves, and did not."""
        injector, broker = self._injector, self.disk.broker
        if broker is None:
            return []
        await asyncio.sleep(START_SECONDS)
        if not injector.is_alive(broker):
            await self._replace_disk(broker)
        self.disk.undo_unscrubbed_rot()
        seconds = self._scrubbing_seconds(broker)
        await injector.wait(lambda: not self.disk.remaining() or self._has_given_up(broker), seconds)
        if self._has_given_up(broker) and await injector.wait(lambda: injector.bounce(broker), SCRUBBED_SECONDS):
            await injector.wait(lambda: not self.disk.remaining(), seconds)
        return [f"{rot.path} at {rot.position}" for rot in self.disk.unrepaired()]

    def _has_given_up(self, broker: int) -> bool:
        """Whether a replica was damaged so often that it stays offline until an operator starts its broker again."""
        manager = self._injector.cluster.manager(broker)
        if manager is None or not self._injector.is_alive(broker):
            return False
        promised = [each for each in manager.partitions if self._injector.reference.is_promised(each.topic)]
        damaged = [each for each in promised if manager.partitions[each].state.damage is not None]
        return any(map(manager.repairs.is_hopeless, damaged))

    def _scrubbing_seconds(self, broker: int) -> float:
        """How long this broker's scrubber may take to find all rot: it has its lowest speed, and begins once no slow
        call holds it."""
        rates = self._injector.options.possible_settings_of_brokers(SCRUB_RATE)
        rounds = SCRUB_ROUNDS * self._injector.storage(broker).used_bytes
        slow_seconds = max((rounds / int(rate) for rate in rates if rate is not None), default=0.0)
        return SCRUBBED_SECONDS + slow_seconds + self._injector.cluster.held_seconds()

    async def _replace_disk(self, broker: int) -> None:
        """The broker refuses to start on its disk. As the promise says, an operator puts in a blank disk once the old
        registration is gone."""
        injector = self._injector
        injector.note("operator puts in a blank disk", broker)
        await asyncio.sleep(injector.options.session_seconds + START_SECONDS)
        if not injector.is_alive(broker):
            self.disk.replace()
            injector.start(broker)

    async def settle(self) -> None:
        """Wait until the disk counts as repaired, after all replicas are in sync again."""
        await self._injector.wait(self._is_settled, SCRUBBED_SECONDS)

    def _is_settled(self) -> bool:
        self.disk.settle()
        return self.disk.broker is None
