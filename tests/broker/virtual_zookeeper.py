"""A virtual loop, a simulated ZooKeeper and processes that use it, for tests of a broker's registration and
settings."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minibroker.runtime.ports import Coordination, CoordinationError, CoordinationUnavailable
from minibroker.simulation.world.coordination import SimulatedCoordination
from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.trace import Trace
from minibroker.simulation.world.zookeeper import SimulatedZooKeeper

T = TypeVar("T")

SESSION_MS = 3_000


class VirtualClock:
    """Wall-clock time that is loop time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def monotonic_ns(self) -> int:
        return int(self._loop.time() * 1_000_000_000)


class World:
    """One ZooKeeper and its clients."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop
        self.clock = VirtualClock(loop)
        self.random = random.Random(7)
        self.zookeeper = SimulatedZooKeeper(loop, self.random, Trace(loop))

    def process(self, name: str) -> Process:
        return Process(name, 1, self.loop)

    async def inside(self, process: Process, work: Coroutine[Any, Any, T]) -> T:
        """Run as code of that process, so that it ends with the process."""
        task: asyncio.Task[T] = self.loop.create_task(work, context=process.context)
        return await task

    def open_for(self, process: Process) -> Callable[[str, int], Coordination]:
        return lambda servers, timeout_ms: SimulatedCoordination(self.zookeeper, process, servers, timeout_ms)

    async def connect(self, process: Process, timeout_ms: int = SESSION_MS) -> Coordination:
        coordination = self.open_for(process)("zk:2181", timeout_ms)
        await self.inside(process, coordination.start())
        return coordination

    async def observer(self) -> Coordination:
        """A client that only observes."""
        return await self.connect(self.process("observer"))


class AskedCoordination:
    """Counts the reads of a client, and lets the next ones fail, without any change of the session that would announce
    that ZooKeeper answers again."""

    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination
        self.reads = 0
        self.failures_left = 0
        self.failure: CoordinationError = CoordinationUnavailable("no answer")

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._coordination, name)
        if name not in ("get", "exists"):
            return found

        async def asked(*arguments: Any) -> Any:
            self.reads += 1
            if self.failures_left:
                self.failures_left -= 1
                raise self.failure
            return await found(*arguments)

        return asked


async def pass_time(seconds: float) -> None:
    """Virtual seconds, which cost nothing."""
    await asyncio.sleep(seconds)


def run(story: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    """Run one test's story in virtual time."""
    loop = VirtualLoop()
    loop.run(story(World(loop)))
