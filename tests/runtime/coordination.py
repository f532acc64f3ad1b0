"""Runs one coordination case against a real ZooKeeper (marked `system`) and against the simulated one."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import uvloop

from minibroker.runtime.adapters.zookeeper import ZooKeeperCoordination
from minibroker.runtime.ports import Coordination, SessionEvent
from minibroker.simulation.world.world import SimulatedWorld
from tests.runtime.zookeeper_proxy import ZooKeeperProxy

SESSION_MS = 2_000


class Faults(Protocol):
    """What may happen between the client under test and ZooKeeper."""

    def cut(self) -> None: ...

    def heal(self) -> None: ...

    def drop_connection(self) -> None: ...

    def lose_next_reply(self) -> None: ...


class Coordinations:
    """What a case may touch: clients, and faults that hit only `subject`."""

    def __init__(self, root: str, subject: Coordination, observer: Coordination, faults: Faults) -> None:
        self.root = root
        """A path of this case alone; it exists."""
        self.subject = subject
        self.observer = observer
        self.faults = faults
        self.events: list[SessionEvent] = []
        self._changed = asyncio.Event()

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def on_event(self, event: SessionEvent) -> None:
        self.events.append(event)
        self._changed.set()

    def on_watch(self) -> None:
        self._changed.set()

    async def until(self, condition: Callable[[], bool], seconds: float = 20) -> None:
        """Wait until a watch or an event makes the condition true."""
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


class Fired:
    """Counts a watch's calls."""

    def __init__(self, ports: Coordinations) -> None:
        self._default_runtime = ports
        self.times = 0

    def __call__(self) -> None:
        self.times += 1
        self._default_runtime.on_watch()

    async def until_fired(self, seconds: float = 20) -> None:
        await self._default_runtime.until(lambda: self.times > 0, seconds)


Case = Callable[[Coordinations], Coroutine[Any, Any, None]]


class CoordinationBench(Protocol):
    def run(self, case: Case) -> None: ...


async def run_case(case: Case, subject: Coordination, observer: Coordination, faults: Faults, root: str) -> None:
    coordinations = Coordinations(root, subject, observer, faults)
    subject.add_session_listener(coordinations.on_event)
    await observer.start()
    try:
        await observer.create(root, b"")
        await subject.start()
        await case(coordinations)
    finally:
        faults.heal()
        await subject.close()
        await observer.close()


class ProxyFaults:
    def __init__(self, proxy: ZooKeeperProxy) -> None:
        self._proxy = proxy

    def cut(self) -> None:
        self._proxy.cut()

    def heal(self) -> None:
        self._proxy.heal()

    def drop_connection(self) -> None:
        self._proxy.reset()

    def lose_next_reply(self) -> None:
        self._proxy.cut_answers()
        asyncio.get_running_loop().call_later(0.2, self._break)

    def _break(self) -> None:
        self._proxy.reset()
        self._proxy.heal()


class RealCoordinationBench:
    def __init__(self, port: int) -> None:
        self._port = port

    def run(self, case: Case) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._run(case))

    async def _run(self, case: Case) -> None:
        proxy = ZooKeeperProxy(self._port)
        subject = ZooKeeperCoordination(await proxy.start(), SESSION_MS)
        observer = ZooKeeperCoordination(f"127.0.0.1:{self._port}", 5_000)
        try:
            await run_case(case, subject, observer, ProxyFaults(proxy), f"/case-{uuid.uuid4().hex}")
        finally:
            await proxy.close()


class SimulatedFaults:
    def __init__(self, world: SimulatedWorld) -> None:
        self._zookeeper = world.zookeeper

    def cut(self) -> None:
        self._zookeeper.cut("subject")

    def heal(self) -> None:
        self._zookeeper.heal()

    def drop_connection(self) -> None:
        self._zookeeper.drop_connection("subject")

    def lose_next_reply(self) -> None:
        self._zookeeper.lose_next_reply("subject")


class SimulatedCoordinationBench:
    def run(self, case: Case) -> None:
        world = SimulatedWorld(seed=7)
        subject = world.runtime("subject").open_coordination("zookeeper:2181", SESSION_MS)
        observer = world.runtime("observer").open_coordination("zookeeper:2181", 5_000)
        world.run(run_case(case, subject, observer, SimulatedFaults(world), "/case"))


def conformance(case: Case) -> Callable[[CoordinationBench], None]:
    def test(coordination_bench: CoordinationBench) -> None:
        coordination_bench.run(case)

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test
