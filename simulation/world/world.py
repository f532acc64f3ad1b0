"""A whole simulated world: one loop, one network, one ZooKeeper, and machines with processes that
get their ports here.

A program is a function from a Runtime to a coroutine; starting a node again runs it again over the surviving disk. The
code that drives a world (a test, a fault schedule) runs in the same loop and belongs to no process.
"""

import random
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minibroker.runtime.descriptor_shares import UNLIMITED
from minibroker.runtime.event_log import log_event
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import Coordination, Runtime
from minibroker.simulation.world.clock import SimulatedClock
from minibroker.simulation.world.coordination import SimulatedCoordination
from minibroker.simulation.world.disk import SimulatedDisk
from minibroker.simulation.world.loop import SECONDS_MAX, VirtualLoop, VirtualTask
from minibroker.simulation.world.network import Fabric
from minibroker.simulation.world.node import Process, ProcessDead
from minibroker.simulation.world.observations import ProcessPaused, ProcessResumed, WorldObservers
from minibroker.simulation.world.storage import SimulatedStorage
from minibroker.simulation.world.trace import Trace
from minibroker.simulation.world.zookeeper import SimulatedZooKeeper

T = TypeVar("T")
Program = Callable[[Runtime], Coroutine[Any, Any, Any]]

PROVISIONED_DIRECTORY = "/data"
"""On every machine's disk from the start, on stable storage: log directories belong below it."""


class ProcessCrashed(AssertionError):
    """A program ended with an exception that the run did not expect."""


class SimulatedMachine:
    """A name, a disk, a clock, and at most one living process."""

    def __init__(self, name: str, storage: SimulatedStorage) -> None:
        self.name = name
        self.storage = storage
        self.process: Process | None = None
        self.runtime: Runtime | None = None
        self.program: Program | None = None
        self.task: VirtualTask[Any] | None = None
        self.incarnations = 0
        self.clock_skew_ms = 0


class SimulatedWorld:
    """Build it, start nodes, then `run` a coroutine that drives it. One world makes one run."""

    def __init__(self, seed: int = 0, loop: VirtualLoop | None = None) -> None:
        """`loop`: a running loop, if given; then its owner calls `end` instead of `run`."""
        self.seed = seed
        self.loop = loop or VirtualLoop()
        self.trace = Trace(self.loop)
        self.network = Fabric(self.loop, self.random("network"), self.trace)
        self.world_observers = WorldObservers()
        """Reports of the world itself: of its ZooKeeper, its disks and its faults."""
        self.zookeeper = SimulatedZooKeeper(self.loop, self.random("zookeeper"), self.trace, self.world_observers)
        self.observers = Observers(log_event)
        """Reports of all processes; `simulation.node.PROCESS` is the reporting one."""
        self.machines: dict[str, SimulatedMachine] = {}
        self.open_files_max = UNLIMITED
        """File descriptors that each process may have."""
        self.has_disk_threads = False
        """Background work of the disks overlaps with the event loop."""
        self.crashes: list[tuple[str, BaseException]] = []
        """Programs that ended with an exception; a run that expects one removes it from the list."""

    def random(self, purpose: str) -> random.Random:
        """A random stream of its own for each purpose: drawing from one does not shift the others."""
        return random.Random(f"{self.seed}/{purpose}")

    @property
    def trace_hash(self) -> str:
        return self.trace.trace_hash

    def run(self, main: Coroutine[Any, Any, T], seconds_max: float = SECONDS_MAX) -> T:
        """Drive the world to the end of `main`; then kill everything. Raises what failed unnoticed."""
        try:
            return self.loop.run(main, seconds_max)
        finally:
            self.end()

    def end(self) -> None:
        """Kill everything. Raises ProcessCrashed if `crashes` still holds an exception."""
        for name in self.machines:
            self.kill(name)
        if self.crashes:
            name, error = self.crashes[0]
            raise ProcessCrashed(f"{name} crashed: {error!r}") from error

    # ----------------------------------------------------------------------------------------------- processes
    def machine(self, name: str) -> SimulatedMachine:
        machine = self.machines.get(name)
        if machine is None:
            rng = self.random(f"disk/{name}")
            storage = SimulatedStorage(name, self.loop, rng, self.trace, self.world_observers)
            storage.provision(PROVISIONED_DIRECTORY)
            machine = self.machines[name] = SimulatedMachine(name, storage)
        return machine

    def process(self, name: str) -> Process:
        """The living process of a node; a new one if there is none."""
        machine = self.machine(name)
        if machine.process is None or not machine.process.alive:
            machine.incarnations += 1
            machine.process = Process(name, machine.incarnations, self.loop)
            machine.runtime = None
            self.network.power_on(name)
            self.trace.record("start", repr(machine.process))
        return machine.process

    def runtime(self, name: str) -> Runtime:
        """The ports of the node's living process."""
        process, machine = self.process(name), self.machine(name)
        if machine.runtime is None:
            clock = SimulatedClock(self.loop, process, machine)

            def open_coordination(servers: str, session_timeout_ms: int) -> Coordination:
                return SimulatedCoordination(self.zookeeper, process, servers, session_timeout_ms)

            machine.runtime = Runtime(
                network=self.network.network_for(process),
                disk=SimulatedDisk(machine.storage, process, clock, self.has_disk_threads),
                clock=clock,
                random=self.random(f"process/{process!r}"),
                open_coordination=open_coordination,
                observer=self.observers,
                open_files_max=self.open_files_max,
            )
        return machine.runtime

    def spawn(self, name: str, coroutine: Coroutine[Any, Any, T]) -> VirtualTask[T]:
        """Run a coroutine as a part of the node's process."""
        context = self.process(name).context.copy()
        return self.loop.create_task(coroutine, name=f"{name}-spawned", context=context)

    def start(self, name: str, program: Program | None = None) -> Process:
        """Start a node's program (the same as last time if none is given) in a new process."""
        machine = self.machine(name)
        assert machine.process is None or not machine.process.alive, f"{name} runs already"
        machine.program = program or machine.program
        assert machine.program is not None, f"{name} has no program"
        runtime, process = self.runtime(name), self.process(name)
        machine.task = self.loop.create_task(
            machine.program(runtime), name=repr(process), context=process.context.copy()
        )
        machine.task.add_done_callback(lambda task: self._program_ended(process, task))
        return process

    def _program_ended(self, process: Process, task: "VirtualTask[Any]") -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ProcessDead):
            self.crashes.append((process.name, error))
        if process.alive:
            self._end(process)

    def is_alive(self, name: str) -> bool:
        machine = self.machines.get(name)
        return machine is not None and machine.process is not None and machine.process.alive

    # -------------------------------------------------------------------------------------------------- faults
    def kill(self, name: str) -> None:
        """SIGKILL: what was written stays, connections are reset."""
        process = self.machine(name).process
        if process is not None and process.alive:
            self._end(process)

    def _end(self, process: Process) -> None:
        self.trace.record("end", repr(process))
        process.kill()
        self.network.process_killed(process)
        self.machine(process.name).storage.process_ended(process)
        self._discard(process)

    def power_loss(self, name: str, tear: bool = True) -> None:
        """The machine is off: only what was synced stays (with `tear`, maybe a torn piece more),
        peers get no notice."""
        machine = self.machine(name)
        process = machine.process if machine.process is not None and machine.process.alive else None
        self.trace.record("power-loss", name)
        if process is not None:
            process.kill()
        self.network.power_lost(name, process)
        machine.storage.lose_power(tear)
        if process is not None:
            self._discard(process)

    def _discard(self, process: Process) -> None:
        if not self.loop.is_closed():
            self.loop.discard_tasks(lambda task: task.process is process)

    def take_descriptors(self, name: str) -> None:
        """The machine has no file descriptors left, neither for files nor for connections."""
        self.trace.record("no-descriptors", name)
        self.machine(name).storage.lacks_descriptors = True
        self.network.without_descriptors.add(name)

    def give_descriptors(self, name: str) -> None:
        """There are descriptors again."""
        self.trace.record("descriptors", name)
        self.machine(name).storage.lacks_descriptors = False
        self.network.without_descriptors.discard(name)

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self.world_observers.notify(ProcessPaused(name))
        self.trace.record("pause", name)
        self.process(name).pause()

    def resume(self, name: str) -> None:
        """SIGCONT: what arrived meanwhile is read first, then late timers fire."""
        self.world_observers.notify(ProcessResumed(name))
        self.trace.record("resume", name)
        self.process(name).resume(self.loop.time())
