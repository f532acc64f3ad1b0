"""How each kind of fault is done, with the verbs of the harness, and undone.

Owns: which brokers a role names at that moment. Leaves to others: when (`chaos_run`), and the verbs (the harness).
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence

from minibroker.chaos.plan.drawing import PlannedFault
from minibroker.chaos.run.chaos_load import TOPIC
from minibroker.harness.cluster import CLIENTS, ZOOKEEPER, ClusterHarness, Misuse, Party

LEADER_S = 8.0
"""A leader that does not exist within this time is no target: the fault is left out."""
CHASED = 3


class NoTarget(Exception):
    """The fault does not fit the cluster at this moment; it is left out. A part of a sentence."""


class FaultActions:
    """On one cluster. A broker that a fault holds down is no target of another."""

    def __init__(self, cluster: ClusterHarness) -> None:
        self._cluster = cluster
        self._busy: set[int] = set()

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
            case "follower":
                leader = await self._leader(fault.partition)
                others = [b for b in ids if b != leader]
                found = [others[fault.partition % len(others)]]
        if taken := self._busy & {*found}:
            raise NoTarget(f"broker {min(taken)} is still the target of another fault")
        return found

    async def _leader(self, partition: int) -> int:
        try:
            return await self._cluster.wait_for_leader(TOPIC, partition, timeout_s=LEADER_S)
        except AssertionError as error:
            raise NoTarget(str(error)) from None

    @contextlib.asynccontextmanager
    async def during(self, fault: PlannedFault, targets: Sequence[int]) -> AsyncIterator[None]:
        """The fault lasts as long as the block. Raises NoTarget if it cannot begin."""
        begin = ACTIONS[fault.kind]
        self._busy.update(targets)
        try:
            async with begin(self, list(targets)):
                yield
        except Misuse as error:
            raise NoTarget(str(error)) from None
        finally:
            self._busy.difference_update(targets)

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
        killed: list[int] = []
        try:
            for _ in range(CHASED):
                leader = targets[0] if not killed else await self._other_leader(killed[-1])
                if leader is None:
                    break
                await self._cluster.kill(leader)
                killed.append(leader)
            yield
        finally:
            await self._start_down(killed)

    async def _other_leader(self, before: int) -> int | None:
        try:
            return await self._cluster.wait_for_leader(TOPIC, 0, other_than=before, timeout_s=LEADER_S)
        except AssertionError:
            return None

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
        links: list[tuple[Party, Party]] = [(one, other) for one in targets for other in others]
        links += [(other, one) for one, other in links] if both_ways else []
        try:
            for source, target in links:
                await self._cluster.block(source, target)
            yield
        finally:
            for source, target in links:
                await self._cluster.unblock(source, target)

    @contextlib.asynccontextmanager
    async def zookeeper_kill(self, targets: list[int]) -> AsyncIterator[None]:
        await self._cluster.stop_zookeeper()
        try:
            yield
        finally:
            await self._cluster.start_zookeeper()


Action = Callable[[FaultActions, list[int]], contextlib.AbstractAsyncContextManager[None]]
ACTIONS: dict[str, Action] = {
    "kill": FaultActions.kill,
    "stop": FaultActions.stop,
    "pause": FaultActions.pause,
    "rolling-restart": FaultActions.rolling_restart,
    "chase-leader": FaultActions.chase_leader,
    "power-loss": FaultActions.power_loss,
    "partition": FaultActions.partition,
    "cut-from-brokers": FaultActions.cut_from_brokers,
    "cut-from-zookeeper": FaultActions.cut_from_zookeeper,
    "one-way": FaultActions.one_way,
    "expire-session": FaultActions.expire_session,
    "zookeeper-kill": FaultActions.zookeeper_kill,
}
"""By the name of the kind."""
