"""How each kind of fault is done, with the verbs of the harness, and undone.

Owns: which brokers a role names at that moment. Leaves to others: when (`chaos_run`), and the verbs (the harness).
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

from minibroker.chaos.plan.damage import flipped, torn
from minibroker.chaos.plan.drawing import PARTITIONS, PlannedFault
from minibroker.chaos.plan.fault_kinds import BY_NAME
from minibroker.chaos.run.chaos_load import TOPIC
from minibroker.chaos.run.held_links import HeldLinks
from minibroker.harness.cluster import CLIENTS, ZOOKEEPER, ClusterHarness, Link, Misuse, Party, UnsupportedByBackend
from minibroker.harness.container_engine import ComposeFailed
from minibroker.harness.hardware import DiskFault

LEADER_S = 8.0
"""A leader that does not exist within this time is no target: the fault is left out."""
CHASED = 3
SLOW_S = 0.5
LOST_SHARE = 0.2
OUT_POLL_S = 0.02
RESET_EVERY_S = 0.5
HOUR_S = 3600.0
EMPTY_S = 4.0
"""Longer than `replica.lag.time.max.ms` of a run: a replica that is in sync after that has been copied again."""


class NoTarget(Exception):
    """The fault does not fit the cluster at this moment; it is left out. A part of a sentence."""


def _parties(fault: PlannedFault, targets: Sequence[int]) -> list[Party]:
    """Those that no other fault may have at the same time: a pause that ends inside another would end both, and no
    session expires while ZooKeeper is down."""
    has_zookeeper = fault.target == "cluster" or fault.kind == "expire-session"
    return [*targets, *([ZOOKEEPER] if has_zookeeper else [])]


class FaultActions:
    """On one cluster. A broker, or ZooKeeper, that a fault holds is no target of another."""

    def __init__(self, cluster: ClusterHarness, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"faults {seed}")
        self._busy: set[Party] = set()
        self._links = HeldLinks(cluster)

    async def targets(self, fault: PlannedFault) -> list[int]:
        """The brokers that the fault hits now. Raises NoTarget."""
        c = self._cluster
        ids = list(c.broker_ids)
        match fault.target:
            case "cluster":
                return []
            case "all":
                found = ids
            case "majority":
                leader = await self._leader(fault.partition)
                found = [leader, *(b for b in ids if b != leader)][: len(ids) // 2 + 1]
            case "controller":
                controller = await c.controller()
                if controller is None:
                    raise NoTarget("there is no controller")
                found = [controller]
            case "leader":
                found = [await self._leader(fault.partition)]
                if BY_NAME[fault.kind].is_sequence:
                    found = [await self._leader_that_is_no_controller(found[0])]
            case "follower":
                leader = await self._leader(fault.partition)
                others = [b for b in ids if b != leader]
                found = [others[fault.partition % len(others)]]
        return found

    async def _leader_that_is_no_controller(self, otherwise: int) -> int:
        """Of any partition: orders of the controller should arrive while a leader is cut off."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEADER_S):
                while True:
                    controller = await self._cluster.controller()
                    leaders = [await self._cluster.leader(TOPIC, partition) for partition in range(PARTITIONS)]
                    for leader in leaders if controller is not None else ():
                        if leader is not None and leader != controller:
                            return leader
                    await asyncio.sleep(OUT_POLL_S)
        return otherwise

    async def _leader(self, partition: int) -> int:
        try:
            return await self._cluster.wait_for_leader(TOPIC, partition, timeout_s=LEADER_S)
        except AssertionError as error:
            raise NoTarget(str(error)) from None

    @contextlib.asynccontextmanager
    async def during(self, fault: PlannedFault, targets: Sequence[int]) -> AsyncIterator[None]:
        """The fault lasts as long as the block. Raises NoTarget if it cannot begin."""
        has_begun = False
        try:
            with self._held(_parties(fault, targets)):
                async with ACTIONS[fault.kind](self, list(targets)):
                    has_begun = True
                    yield
        except (Misuse, UnsupportedByBackend, ComposeFailed) as error:
            if has_begun:
                raise  # nothing else touches its targets: what does not fit now is the cluster's doing
            raise NoTarget(str(error)) from None  # a broker that it left down convicts at the end

    @contextlib.contextmanager
    def _held(self, parties: Iterable[Party]) -> Iterator[None]:
        """No other fault gets them during the block. Raises NoTarget if another has one of them."""
        wanted = {*parties}
        if taken := self._busy & wanted:
            party = min(taken, key=str)
            name = "ZooKeeper" if party == ZOOKEEPER else f"broker {party}"
            raise NoTarget(f"{name} is still the target of another fault")
        self._busy |= wanted
        try:
            yield
        finally:
            self._busy -= wanted

    # ------------------------------------------------------------------------------------------------------ brokers
    @contextlib.asynccontextmanager
    async def kill(self, targets: list[int]) -> AsyncIterator[None]:
        await asyncio.gather(*map(self._cluster.kill, targets))
        try:
            yield
        finally:
            await self._start_down(targets)

    @contextlib.asynccontextmanager
    async def stop(self, targets: list[int]) -> AsyncIterator[None]:
        await asyncio.gather(*map(self._cluster.stop, targets))
        try:
            yield
        finally:
            await self._start_down(targets)

    @contextlib.asynccontextmanager
    async def pause(self, targets: list[int]) -> AsyncIterator[None]:
        await asyncio.gather(*map(self._cluster.pause, targets))
        try:
            yield
        finally:
            await asyncio.gather(*map(self._cluster.resume, targets))

    @contextlib.asynccontextmanager
    async def rolling_restart(self, targets: list[int]) -> AsyncIterator[None]:
        for broker in targets:
            await self._cluster.restart(broker)
        yield

    @contextlib.asynccontextmanager
    async def chase_leader(self, targets: list[int]) -> AsyncIterator[None]:
        killed = list(targets)
        await self._cluster.kill(targets[0])
        with contextlib.ExitStack() as chased:
            try:
                for _ in range(CHASED - 1):
                    leader = await self._other_leader(killed[-1])
                    if leader is None or leader in self._busy:
                        break
                    chased.enter_context(self._held([leader]))
                    killed.append(leader)
                    await self._cluster.kill(leader)
                yield
            finally:
                await self._start_down(killed)

    async def _other_leader(self, before: int) -> int | None:
        try:
            return await self._cluster.wait_for_leader(TOPIC, 0, other_than=before, timeout_s=LEADER_S)
        except AssertionError:
            return None

    @contextlib.asynccontextmanager
    async def follower_then_leader(self, targets: list[int]) -> AsyncIterator[None]:
        """The order of KIP-101, scenario 1, without a restart: the last follower learns late what is committed, begins
        to follow in a new epoch, and must lead before its next fetch is answered."""
        (leader,) = targets
        followers = [broker for broker in self._cluster.broker_ids if broker != leader]
        controller = await self._cluster.controller()
        if controller not in followers:
            raise NoTarget("the controller leads, and its orders would be as slow as its records")
        last = controller  # it gives the orders, so it must live and hear itself
        dead = self._rng.choice([broker for broker in followers if broker != last])
        if not all(map(self._cluster.is_running, self._cluster.broker_ids)):
            raise NoTarget("all brokers must run")
        led = await self._led_by(leader)
        link = (leader, last)
        with self._held(followers):
            try:
                async with self._links.slowed({link: SLOW_S}):
                    await asyncio.sleep(2 * SLOW_S)
                    async with self._links.blocked([link]):
                        await self._cluster.kill(dead)
                        await self._until_out(dead, led)
                        await self._cluster.kill(leader)
                        yield
            finally:
                await self._start_down([leader, dead])

    async def _led_by(self, broker: int) -> int:
        """A partition that it leads. Raises NoTarget."""
        for partition in range(PARTITIONS):
            if await self._cluster.leader(TOPIC, partition) == broker:
                return partition
        raise NoTarget(f"broker {broker} leads no partition any more")

    async def _until_out(self, dead: int, partition: int) -> None:
        """The leader of the partition no longer counts the dead broker as in sync: another epoch has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEADER_S):
                while not (isr := await self._cluster.in_sync_replicas(TOPIC, partition)) or dead in isr:
                    await asyncio.sleep(OUT_POLL_S)

    @contextlib.asynccontextmanager
    async def power_loss(self, targets: list[int]) -> AsyncIterator[None]:
        for broker in targets:
            await self._cluster.power_loss(broker)
        try:
            yield
        finally:
            await self._start_down(targets)

    async def _start_down(self, brokers: Sequence[int]) -> None:
        """Those that are down, at the same time."""
        down = [broker for broker in brokers if not self._cluster.is_running(broker)]
        await asyncio.gather(*map(self._cluster.start, down))

    @contextlib.asynccontextmanager
    async def expire_session(self, targets: list[int]) -> AsyncIterator[None]:
        for broker in targets:
            await self._cluster.expire_session(broker)
        yield

    # ------------------------------------------------------------------------------------------ network, ZooKeeper
    def _others(self, targets: Sequence[int]) -> list[Party]:
        return [broker for broker in self._cluster.broker_ids if broker not in targets]

    @contextlib.asynccontextmanager
    async def partition(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._cut(targets, [*self._others(targets), CLIENTS, ZOOKEEPER]):
            yield

    @contextlib.asynccontextmanager
    async def cut_from_brokers(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._cut(targets, self._others(targets)):
            yield

    @contextlib.asynccontextmanager
    async def cut_from_zookeeper(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._cut(targets, [ZOOKEEPER]):
            yield

    @contextlib.asynccontextmanager
    async def one_way(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._cut(targets, self._others(targets), both_ways=False):
            yield

    @contextlib.asynccontextmanager
    async def _cut(
        self, targets: Sequence[int], others: Sequence[Party], both_ways: bool = True
    ) -> AsyncIterator[None]:
        links: list[Link] = [(one, other) for one in targets for other in others]
        links += [(other, one) for one, other in links] if both_ways else []
        async with self._links.blocked(links):
            yield

    @contextlib.asynccontextmanager
    async def zookeeper_kill(self, targets: list[int]) -> AsyncIterator[None]:
        await self._cluster.stop_zookeeper()
        try:
            yield
        finally:
            await self._cluster.start_zookeeper()

    @contextlib.asynccontextmanager
    async def zookeeper_pause(self, targets: list[int]) -> AsyncIterator[None]:
        await self._cluster.pause_zookeeper()
        try:
            yield
        finally:
            await self._cluster.resume_zookeeper()

    @contextlib.asynccontextmanager
    async def slow(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._slowed([(one, other) for one in targets for other in self._others(targets)]):
            yield

    @contextlib.asynccontextmanager
    async def loss(self, targets: list[int]) -> AsyncIterator[None]:
        pairs: list[Link] = [(one, other) for one in targets for other in self._others(targets)]
        async with self._links.losing([*pairs, *((other, one) for one, other in pairs)], LOST_SHARE):
            yield

    @contextlib.asynccontextmanager
    async def zookeeper_slow(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._slowed([(broker, ZOOKEEPER) for broker in self._cluster.broker_ids]):
            yield

    def _slowed(self, pairs: Sequence[Link]) -> contextlib.AbstractAsyncContextManager[None]:
        links = [link for one, other in pairs for link in ((one, other), (other, one))]
        return self._links.slowed({link: self._rng.uniform(0.02, SLOW_S) for link in links})

    @contextlib.asynccontextmanager
    async def reset(self, targets: list[int]) -> AsyncIterator[None]:
        links: list[Link] = [(one, other) for one in targets for other in [*self._others(targets), CLIENTS]]
        ending = asyncio.Event()

        async def again_and_again() -> None:
            while not ending.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ending.wait(), RESET_EVERY_S)
                await self._reset_all(links)

        await self._reset_all(links)
        resetting = asyncio.create_task(again_and_again())
        try:
            yield
        finally:
            ending.set()  # not cancelled: a reset ends what it began
            await resetting

    async def _reset_all(self, links: Sequence[Link]) -> None:
        await asyncio.gather(*(self._cluster.reset(*link) for link in links))

    # -------------------------------------------------------------------------------------------------------- disks
    @contextlib.asynccontextmanager
    async def disk_full(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._failing(targets, "full"):
            yield

    @contextlib.asynccontextmanager
    async def write_error(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._failing(targets, "write"):
            yield
        await self._restart_now(targets)

    @contextlib.asynccontextmanager
    async def sync_error(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._failing(targets, "sync"):
            yield
        await self._restart_now(targets)

    @contextlib.asynccontextmanager
    async def _failing(self, targets: list[int], fault: DiskFault) -> AsyncIterator[None]:
        try:
            for broker in targets:
                await self._cluster.fail_disk(broker, fault)
            yield
        finally:
            for broker in targets:
                await self._cluster.mend_disk(broker)

    async def _restart_now(self, targets: Sequence[int]) -> None:
        """A log whose disk failed stays offline until the next start."""
        for broker in targets:
            if self._cluster.is_running(broker):
                await self._cluster.kill(broker)
        await self._start_down(targets)

    @contextlib.asynccontextmanager
    async def torn_tail(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._damaged(targets, lambda content: torn(content, self._rng)):
            yield

    @contextlib.asynccontextmanager
    async def bit_flip(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._damaged(targets, lambda content: flipped(content, self._rng, at_end=False)):
            yield

    @contextlib.asynccontextmanager
    async def bit_flip_at_end(self, targets: list[int]) -> AsyncIterator[None]:
        async with self._damaged(targets, lambda content: flipped(content, self._rng, at_end=True)):
            yield

    @contextlib.asynccontextmanager
    async def _damaged(self, targets: list[int], change: Callable[[bytes], bytes | None]) -> AsyncIterator[None]:
        """Killed, one segment of the load's topic damaged, and started again."""
        async with self.kill(targets):
            for broker in targets:
                segments = [name for name in await self._files(broker, ".log") if name.startswith(f"{TOPIC}-")]
                name = self._rng.choice(segments) if segments else None
                damaged = None if name is None else change(await self._cluster.read_file(broker, name))
                if name is None or damaged is None:
                    raise NoTarget("there is no batch to damage")
                await self._cluster.write_file(broker, name, damaged)
            yield

    @contextlib.asynccontextmanager
    async def index_lost(self, targets: list[int]) -> AsyncIterator[None]:
        async with self.kill(targets):
            for broker in targets:
                for name in await self._files(broker, "index"):
                    await self._cluster.write_file(broker, name, None)
            yield

    @contextlib.asynccontextmanager
    async def disk_lost(self, targets: list[int]) -> AsyncIterator[None]:
        async with self.kill(targets):
            for broker in targets:
                await self._cluster.replace_disk(broker)
            yield
        # The ISR of before its death may still name it; then its leader sees by then that it holds nothing.
        await asyncio.sleep(EMPTY_S)

    async def _files(self, broker: int, ending: str) -> list[str]:
        return [name for name in await self._cluster.list_files(broker) if name.endswith(ending)]

    @contextlib.asynccontextmanager
    async def clock_jump(self, targets: list[int]) -> AsyncIterator[None]:
        try:
            for broker in targets:
                await self._cluster.move_clock(broker, self._rng.choice((-HOUR_S, HOUR_S)))
            yield
        finally:
            for broker in targets:
                await self._cluster.move_clock(broker, 0.0)


Action = Callable[[FaultActions, list[int]], contextlib.AbstractAsyncContextManager[None]]
ACTIONS: dict[str, Action] = {
    "kill": FaultActions.kill,
    "stop": FaultActions.stop,
    "pause": FaultActions.pause,
    "rolling-restart": FaultActions.rolling_restart,
    "chase-leader": FaultActions.chase_leader,
    "follower-then-leader": FaultActions.follower_then_leader,
    "power-loss": FaultActions.power_loss,
    "partition": FaultActions.partition,
    "cut-from-brokers": FaultActions.cut_from_brokers,
    "cut-from-zookeeper": FaultActions.cut_from_zookeeper,
    "one-way": FaultActions.one_way,
    "expire-session": FaultActions.expire_session,
    "zookeeper-kill": FaultActions.zookeeper_kill,
    "slow": FaultActions.slow,
    "loss": FaultActions.loss,
    "reset": FaultActions.reset,
    "zookeeper-pause": FaultActions.zookeeper_pause,
    "zookeeper-slow": FaultActions.zookeeper_slow,
    "disk-full": FaultActions.disk_full,
    "write-error": FaultActions.write_error,
    "sync-error": FaultActions.sync_error,
    "torn-tail": FaultActions.torn_tail,
    "bit-flip": FaultActions.bit_flip,
    "bit-flip-at-end": FaultActions.bit_flip_at_end,
    "index-lost": FaultActions.index_lost,
    "disk-lost": FaultActions.disk_lost,
    "clock-jump": FaultActions.clock_jump,
}
"""By the name of the kind."""
