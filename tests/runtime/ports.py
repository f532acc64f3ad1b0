"""Runs one case against real and simulated ports.

A case is `async def test_..(ports: RuntimePorts)` under `@conformance`: the decorator makes a plain test of it, whose
parameter (the fixture `bench`, see conftest.py) selects the ports and the event loop.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import msgspec
import uvloop

from minibroker.runtime.adapters.real import real_runtime
from minibroker.runtime.ports import Disk, Network, Runtime
from minibroker.simulation.world.world import SimulatedWorld


class RuntimePorts(msgspec.Struct):
    """What a case may touch."""

    kind: str
    """'asyncio', 'uvloop' or 'simulated'."""
    runtime: Runtime
    directory: str
    """Empty, and only for this case."""
    world: SimulatedWorld | None = None

    @property
    def network(self) -> Network:
        return self.runtime.network

    @property
    def disk(self) -> Disk:
        return self.runtime.disk

    def link(self, path: str, target: str) -> None:
        """A symbolic link made by another program."""
        if self.world is None:
            os.symlink(target, path)
        else:
            self.world.machine("case").storage.link(path, target)

    def make_pipe(self, path: str) -> None:
        """A device without an end, made by another program."""
        if self.world is None:
            os.mkfifo(path)
        else:
            self.world.machine("case").storage.make_special(path)


Case = Callable[[RuntimePorts], Coroutine[Any, Any, None]]


class Bench(Protocol):
    """One kind of ports and the loop that goes with it."""

    def run(self, case: Case) -> None: ...


class RealBench:
    def __init__(self, kind: str, directory: str) -> None:
        self._kind = kind
        self._directory = directory

    def run(self, case: Case) -> None:
        factory = uvloop.new_event_loop if self._kind == "uvloop" else asyncio.new_event_loop
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(case(RuntimePorts(self._kind, real_runtime(), self._directory)))


class SimulatedBench:
    def __init__(self, has_disk_threads: bool = False) -> None:
        self._has_disk_threads = has_disk_threads

    def run(self, case: Case) -> None:
        world = SimulatedWorld(seed=7)
        world.has_disk_threads = self._has_disk_threads
        world.run(case(RuntimePorts("simulated", world.runtime("case"), "/data", world)))


def conformance(case: Case) -> Callable[[Bench], None]:
    def test(bench: Bench) -> None:
        bench.run(case)

    test.__name__, test.__doc__, test.__module__ = case.__name__, case.__doc__, case.__module__
    return test


async def settle(seconds: float = 0.02) -> None:
    """Wait long enough for something that must not happen; on real ports also gives the kernel time."""
    await asyncio.sleep(seconds)
