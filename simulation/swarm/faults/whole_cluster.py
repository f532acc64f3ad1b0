"""All brokers end, by SIGTERM, SIGKILL or a power cut, and start in any order; one disk may be damaged meanwhile.

Owns: the sequences, one method each, named as `disk_options` names them. Leaves to others: what is allowed
(`fault_injector`, `faulty_disk`). A disk is replaced only if, once all are down, each partition's ISR names another
broker that was sound when it ended.
"""

import asyncio
import random
from collections.abc import Callable

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.faults.crash_points import CALLS_OF_A_START, CrashPoints
from minibroker.simulation.swarm.faults.disk_faults import DiskFaults
from minibroker.simulation.swarm.faults.disk_options import FIRST_ROT, OLDER, SHORTENED
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.only_copy import OnlyCopy
from minibroker.simulation.swarm.promise import Circumstance, allows
from minibroker.simulation.swarm.recreated_topic import RecreatedTopic

END_SECONDS = 15.0
"""By then a clean stop has got the controller's answer or given up."""
BETWEEN_ENDS = (0.0, 0.0, 0.05, 0.3, 1.5)
BETWEEN_STARTS = (0.0, 0.0, 0.05, 0.5, 1.0, 3.0)
DOWN_SECONDS = (0.0, 0.2, 1.0)
FIRST_SHARE = 0.7
IN_FLIGHT_SECONDS = 0.5
"""By then the last requests of a killed controller have reached ZooKeeper; until then the ISRs are not final."""
ONLY_COPY_TRIES = 2
POWERLESS_SHARE = 0.4
READY_SECONDS = 6.0
SETTLED_SECONDS = 10.0
"""By then all brokers are back in every ISR, if nothing else is broken: only then the next fault shows anything."""


class WholeCluster:
    """Each public method is one sequence."""

    def __init__(
        self, injector: FaultInjector, faults: DiskFaults, crash_points: CrashPoints, rng: random.Random
    ) -> None:
        self.injector = injector
        self.random = rng
        self._faults = faults
        self._crash_points = crash_points
        self._disk = faults.disk
        self._recreated_topic = RecreatedTopic(injector, rng)
        self._only_copy = OnlyCopy(injector, faults, rng)

    async def all_stopped(self) -> None:
        await self._all_end(("term",))

    async def all_killed(self) -> None:
        await self._all_end(("kill",))

    async def all_without_power(self) -> None:
        setting = Circumstance.FLUSHED if self.injector.options.flushes else Circumstance.UNFLUSHED
        await self._all_end(("power" if allows("all_without_power", setting) else "kill",))

    async def all_end_anyhow(self) -> None:
        await self._all_end(("term", "kill", "power"))

    async def all_stopped_and_a_disk_replaced(self) -> None:
        await self._all_end(("term", "term", "kill"), self._replace)

    async def all_killed_and_a_disk_replaced(self) -> None:
        await self._all_end(("kill",), self._replace)

    async def all_end_and_a_disk_rots(self) -> None:
        await self._all_end(("term", "kill", "kill", "power"), self._rot)

    async def all_end_and_a_segment_is_gone(self) -> None:
        await self._all_end(("term", "kill"), self._lose_segment)

    async def all_end_and_a_log_is_shorter(self) -> None:
        await self._all_end(("term", "kill", "kill"), lambda victim: self._change(victim, SHORTENED), is_first=True)

    async def all_end_and_an_older_copy_is_back(self) -> None:
        await self._all_end(("term", "kill"), lambda victim: self._change(victim, OLDER), is_first=True)

    async def all_end_and_one_dies_in_its_start(self) -> None:
        """One broker loses power, then the others are killed; it starts before them, and crashes during its start."""
        injector = self.injector
        brokers = list(injector.cluster.broker_ids)
        if not await injector.wait(self._is_ready, READY_SECONDS):
            return
        victim = self.random.choice(brokers)
        if not injector.may_lose({victim}):
            return
        injector.kept_down.update(brokers)
        injector.note("all end", f"{victim} without power")
        try:
            if not injector.options.flushes:
                injector.weaken(victim)
            self._end(victim, "power")
            for broker_id in self.random.sample(injector.others(victim), len(brokers) - 1):
                await asyncio.sleep(self.random.choice(BETWEEN_ENDS))
                last = self._leaves_only(victim, broker_id)
                for each in injector.cluster.alive() if last else [broker_id]:
                    self._end(each, "kill")
            await asyncio.sleep(self.random.choice(DOWN_SECONDS))
        finally:
            injector.kept_down.clear()
        self._crash_points.set_trap("all_end_and_one_dies_in_its_start", victim, CALLS_OF_A_START)
        injector.start(victim)
        await self._crash_points.await_trap(victim)
        injector.start(victim)
        for broker_id in self.random.sample(injector.others(victim), len(brokers) - 1):
            await asyncio.sleep(self.random.choice(BETWEEN_STARTS))
            injector.start(broker_id)
        await injector.wait(lambda: all(map(injector.is_in_every_isr, brokers)), SETTLED_SECONDS)

    async def only_copy_is_damaged(self) -> None:
        """Repeated if there was no damage that the disk shows."""
        for _ in range(ONLY_COPY_TRIES):
            if await self.injector.wait(self._is_ready, READY_SECONDS) and await self._only_copy.play():
                return

    async def topic_reborn(self) -> None:
        """A topic with a risen log start is deleted and made again, with records; then one or all brokers are
        killed."""
        if not await self._recreated_topic.recreate():
            return
        await asyncio.sleep(self.random.choice((0.0, 0.2, 0.6, 1.2)))
        if self.random.random() < 0.5:
            await self._all_end(("kill",))
        else:
            leader = self._recreated_topic.leader()
            if leader is not None and self.injector.bounce(leader):
                self.injector.note("reborn topic's leader bounced", leader)

    # -------------------------------------------------------------------------------------------------------- steps
    async def _all_end(
        self, ways: tuple[str, ...], meanwhile: Callable[[int], bool] | None = None, is_first: bool = False
    ) -> None:
        """`is_first`: the broker with the damaged disk mostly starts before the others."""
        injector = self.injector
        brokers = list(injector.cluster.broker_ids)
        if not await injector.wait(self._is_ready, READY_SECONDS):
            return
        sound = set(brokers)
        ways = tuple(self.random.choice(ways) for _ in brokers)
        if "power" in ways and not injector.may_lose(set(brokers)):
            ways = tuple("kill" if way == "power" else way for way in ways)
        injector.kept_down.update(brokers)
        injector.note("all end", *ways)
        try:
            order = self.random.sample(brokers, len(brokers))
            pause = self.random.choice(BETWEEN_ENDS)
            for broker_id, way in zip(order, ways, strict=True):
                self._end(broker_id, way)
                await asyncio.sleep(pause)
            hurt: int | None = None
            if await injector.wait(lambda: not injector.cluster.alive(), END_SECONDS) and meanwhile is not None:
                await asyncio.sleep(IN_FLIGHT_SECONDS)
                hurt = self._hurt(sound, meanwhile)
            await asyncio.sleep(self.random.choice(DOWN_SECONDS))
        finally:
            injector.kept_down.clear()
        pause = self.random.choice(BETWEEN_STARTS)
        order = self.random.sample(brokers, len(brokers))
        if is_first and hurt is not None and self.random.random() < FIRST_SHARE:
            order.sort(key=lambda each: each != hurt)
        for broker_id in order:
            injector.start(broker_id)
            await asyncio.sleep(pause)
        await injector.wait(lambda: all(map(injector.is_in_every_isr, brokers)), SETTLED_SECONDS)

    def _is_ready(self) -> bool:
        """All brokers are up and sound, so that the next fault shows something."""
        injector = self.injector
        self._disk.settle()
        for broker_id in sorted(set(injector.cluster.broker_ids) - set(injector.cluster.alive()) - injector.kept_down):
            injector.start(broker_id)
        is_whole = injector.steady_brokers() == set(injector.cluster.broker_ids)
        return is_whole and not injector.has_weakened_broker() and not injector.kept_down

    def _end(self, broker_id: int, way: str) -> None:
        injector = self.injector
        if not injector.is_alive(broker_id):
            return
        injector.note(way, broker_id)
        if way == "term":
            injector.end_by_stop(broker_id)
        elif way == "kill":
            injector.end_by_kill(broker_id)
        else:
            injector.cluster.power_loss(broker_id)

    def _leaves_only(self, victim: int, broker_id: int) -> bool:
        """Whether some ISR has no running member without this broker, but has the one without power: a controller that
        ran on would leave the ISR to that one (seed 17492314, docs/SIMULATION.md)."""
        running = set(self.injector.cluster.alive()) - {broker_id}
        members = [set(state.members) for state in self.injector.guarded_states()]
        return any(victim in each and not each & running for each in members)

    def _hurt(self, sound: set[int], act: Callable[[int], bool]) -> int | None:
        """Damage one disk, if another in-sync broker has every record on it. Returns its broker."""
        injector = self.injector
        for victim in self.random.sample(injector.cluster.broker_ids, len(injector.cluster.broker_ids)):
            if all((sound - {victim}) & set(state.members) for state in injector.guarded_states()):
                if not act(victim):
                    return None
                injector.note("disk hurt while all are down", victim)
                return victim
        return None

    def _is_copied(self, victim: int) -> bool:
        """In each partition another member ended with all records of the victim: a damaged record without another copy
        cannot be repaired, committed or not (seed 17072750)."""
        return all(
            max((self._last_end(b, state.partition) for b in state.members if b != victim), default=-1)
            >= self._last_end(victim, state.partition)
            for state in self.injector.guarded_states()
        )

    def _last_end(self, broker_id: int, partition: TopicPartition) -> int:
        manager = self.injector.cluster.manager(broker_id)
        replica = None if manager is None else manager.partitions.get(partition)
        return 0 if replica is None else replica.log.log_end_offset

    def _replace(self, victim: int) -> bool:
        self._disk.mark_faulty(victim)
        self._disk.replace()
        self.injector.note("disk lost_disk", victim)
        return True

    def _rot(self, victim: int) -> bool:
        """The machine may have lost power, too: then a start takes more damage for a torn write."""
        if not self._is_copied(victim):
            return False
        if self.random.random() < POWERLESS_SHARE:
            if not self.injector.options.flushes:
                self.injector.weaken(victim)
            self.injector.note("power loss", victim)
            self.injector.cluster.power_loss(victim)
        return self._faults.rot_now(victim, self.random.choice(FIRST_ROT))

    def _change(self, victim: int, kinds: tuple[str, ...]) -> bool:
        """Make the first of these changes that fits."""
        changes = self._faults.changes
        return any(
            self._faults.apply_change(victim, kind, changes.act(kind)) for kind in self.random.sample(kinds, len(kinds))
        )

    def _lose_segment(self, victim: int) -> bool:
        if not self._is_copied(victim):
            return False
        what = self._faults.remove_segment(self.injector.storage(victim))
        if what is not None:
            self._disk.mark_faulty(victim)
            self.injector.note("disk missing_segment", victim, what)
        return what is not None
