"""The simulated back end: brokers on the virtual event loop of the caller.

Owns: opening and closing the simulated world around a test, and the runtime of clients that are given none. Leaves to
others: determinism (the loop and ports of simulation/); here only the order of calls matters.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from minibroker.client import default_runtime
from minibroker.harness.cluster import CLIENTS, ZOOKEEPER, ClusterHarness, Condition, Link, Party
from minibroker.harness.hardware import DiskFault, UnsupportedByBackend
from minibroker.local_cluster.cluster_file import write_cluster_state
from minibroker.observation.event_stream import BrokerEvent
from minibroker.protocol.events.cluster_events import as_json_fields
from minibroker.protocol.events.event_base import LEVEL_NAMES, ClusterEvent
from minibroker.protocol.files.cluster_state import ClusterState, PartitionSnapshot
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import PartitionState
from minibroker.runtime.ports import Runtime
from minibroker.simulation.cluster import POLL_SECONDS, SimulatedCluster
from minibroker.simulation.world.exported_disks import files_below
from minibroker.simulation.world.loop import VirtualTask
from minibroker.simulation.world.node import PROCESS
from minibroker.simulation.world.real_waiting import forbid_real_waiting
from minibroker.simulation.world.streams import StreamCalls
from minibroker.simulation.world.world import PROVISIONED_DIRECTORY

CLIENT_MACHINE = "client"
"""Where the test's clients and its own services run."""
LOG = f"{PROVISIONED_DIRECTORY}/log"
START_SECONDS = 30.0
"""Virtual seconds; a start takes about one."""


class ClusterInUse(AssertionError):
    """Two simulated clusters at a time: a client that is given no runtime could not tell them apart."""


class SimulatedHarness(ClusterHarness):
    """The verbs on a simulated cluster. Entered as a context, it starts the cluster and ends its world."""

    def __init__(self, simulation: SimulatedCluster, *, keeps_events: bool = False) -> None:
        """`keeps_events`: for `reported_events`."""
        self._keeps_events = keeps_events
        self._events: list[BrokerEvent] = []
        self._subscription = contextlib.ExitStack()
        self.broker_ids = simulation.broker_ids
        self.seed = simulation.world.seed
        self.simulation = simulation
        self.world = simulation.world
        self._loop = self.world.loop
        self._began = self._loop.elapsed
        self._guard = forbid_real_waiting()
        self._runtime_before: Any = None

    async def __aenter__(self) -> Self:
        if getattr(default_runtime.open_default, "belongs_to", None) is self._loop:
            raise ClusterInUse("one simulated cluster at a time: leave the first before you open the second")
        self._guard.__enter__()
        self._lend_runtime()
        self.note_tasks()
        if self._keeps_events:
            self._subscription.enter_context(self.world.observers.subscribed(self._keep))
        self.simulation.start_all()
        try:
            await self.simulation.until_ready()
        except BaseException:
            self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.explain(error)
        try:
            await self.end_leftovers()
        finally:
            ignoring = self.leftovers()
            self._loop.discard_tasks(lambda task: task in ignoring)
            for task in ignoring:
                asyncio._unregister_task(task)
            self.close(has_failed=error is not None)

    def close(self, has_failed: bool = False) -> None:
        """End everything. Raises ProcessCrashed if a broker crashed, unless the test has failed anyway."""
        self._subscription.close()
        default_runtime.open_default = self._runtime_before
        self._loop.streams = None
        self._guard.__exit__(None, None, None)
        if not has_failed and (bugs := self._take_unhandled()):
            self.world.crashes += [(name, AssertionError(line)) for name, line in bugs]
        for line in self._loop.unhandled:
            logging.getLogger("asyncio").error("%s", line)
        self._loop.unhandled.clear()
        if has_failed:
            self.world.crashes.clear()
        try:
            self.world.end()
        finally:
            self._forget_dead_tasks()

    def take_bugs(self) -> list[str]:
        ended = [f"{name} ended by itself: {error!r}" for name, error in self.world.crashes]
        self.world.crashes.clear()
        unhandled = [f"{name} met a bug that would have ended it: {line}" for name, line in self._take_unhandled()]
        answered = [f"broker-{b} met a bug in {api}" for b, api in sorted(set(self.simulation.failed_reads()))]
        return ended + unhandled + answered

    def _take_unhandled(self) -> list[tuple[str, str]]:
        """Of the brokers; what is left is the test's own."""
        found = [each for each in self._loop.unhandled_in if each[0] != CLIENT_MACHINE]
        for each in found:
            self._loop.unhandled_in.remove(each)
            self._loop.unhandled.remove(each[1])
        return found

    def _is_the_tests(self, task: "asyncio.Task[Any]") -> bool:
        assert isinstance(task, VirtualTask)
        return super()._is_the_tests(task) and (task.process is None or task.process.name == CLIENT_MACHINE)

    def _forget_dead_tasks(self) -> None:
        """Unregister the tasks of killed processes, which never end: closing the loop would wait for them."""
        for task in self._loop.tasks():
            if task.process is not None and not task.process.alive:
                asyncio._unregister_task(task)  # documented for extensions of asyncio

    def _lend_runtime(self) -> None:
        before, loop, lend = default_runtime.open_default, self._loop, self.simulation.client_runtime

        def open_default() -> Runtime:
            if asyncio.get_running_loop() is loop:
                return lend()
            assert before is not None
            return before()

        open_default.belongs_to = loop  # type: ignore[attr-defined]
        self._runtime_before = before
        default_runtime.open_default = open_default
        loop.streams = StreamCalls(lambda: self.simulation.client_runtime().network)

    # ---------------------------------------------------------------------------------------------------- questions
    @property
    def bootstrap_servers(self) -> str:
        return self.simulation.bootstrap_servers

    @property
    def runtime(self) -> Runtime:
        return self.simulation.client_runtime()

    @property
    def trace_hash(self) -> str:
        """Equal for two runs that did the same things at the same times."""
        return self.world.trace_hash

    @property
    def _poll_seconds(self) -> float:
        return POLL_SECONDS

    async def leader(self, topic: str, partition: int = 0) -> int | None:
        found = self.simulation.partition_state(TopicPartition(topic, partition))
        is_led = found is not None and self._is_running(found.leader)
        leader = self.simulation.leader(topic, partition)
        return leader if is_led and found is not None and leader == found.leader else None

    async def controller(self) -> int | None:
        return self.simulation.controller()

    async def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        if await self.leader(topic, partition) is None:
            return ()
        return self.simulation.in_sync_replicas(topic, partition)

    async def under_replicated(self, topic: str | None = None) -> list[str]:
        problems = []
        for (name, number), replicas in sorted(self.simulation.assignments().items()):
            if topic not in (None, name):
                continue
            leader, isr = await self.leader(name, number), await self.in_sync_replicas(name, number)
            if leader is None:
                problems.append(f"{name}-{number} has no leader")
            elif set(isr) < set(replicas):
                problems.append(f"{name}-{number}, led by {leader}: ISR {list(isr)} of {sorted(replicas)}")
        return problems

    async def _partitions_of(self, topic: str) -> Collection[int]:
        return [number for name, number in self.simulation.assignments() if name == topic]

    def describe(self) -> list[str]:
        elapsed = self._loop.elapsed - self._began
        lines = [f"minibroker: seed {self.seed}, trace hash {self.trace_hash}, {elapsed:.3f} virtual seconds"]
        lines.append("minibroker: brokers " + ", ".join(f"{b} {self._condition_of(b)}" for b in self.broker_ids))
        for partition, state in self._states().items():
            leader = "no leader" if state.leader < 0 else f"leader {state.leader}"
            lines.append(f"minibroker: {partition} {leader}, epoch {state.leader_epoch}, ISR {state.isr}")
        return lines

    async def _condition(self, broker_id: int) -> Condition:
        return self._condition_of(broker_id)

    def _condition_of(self, broker_id: int) -> Condition:
        process = self.world.machine(f"broker-{broker_id}").process
        if process is None or not process.alive:
            return "down"
        return "paused" if process.paused else "running"

    def _states(self) -> dict[TopicPartition, PartitionState]:
        found = {each: self.simulation.partition_state(each) for each in sorted(self.simulation.assignments())}
        return {partition: state for partition, state in found.items() if state is not None}

    # ------------------------------------------------------------------------------------------------------- faults
    async def _kill(self, broker_id: int) -> None:
        self.simulation.kill(broker_id)

    async def _power_loss(self, broker_id: int) -> None:
        self.simulation.power_loss(broker_id)

    async def _stop(self, broker_id: int) -> None:
        self.simulation.stop(broker_id)
        await self.simulation.until(lambda: not self._is_running(broker_id), what=f"a clean stop of broker {broker_id}")

    async def _start(self, broker_id: int) -> None:
        before = self.simulation.brokers.get(broker_id)
        self.simulation.start(broker_id)

        def serves() -> bool:
            broker = self.simulation.brokers.get(broker_id)
            if broker is None or broker is before or not hasattr(broker, "image"):
                return False
            return broker_id in broker.image.live_broker_ids()

        await self.simulation.until(serves, START_SECONDS, f"broker {broker_id} that serves")

    async def _pause(self, broker_id: int) -> None:
        self.world.pause(_machine(broker_id))

    async def _resume(self, broker_id: int) -> None:
        self.world.resume(_machine(broker_id))

    def _is_running(self, broker_id: int) -> bool:
        return self.world.is_alive(f"broker-{broker_id}")

    async def _block(self, links: Sequence[Link]) -> None:
        for source, target in links:
            if ZOOKEEPER in (source, target):
                self.world.zookeeper.cut(_machine(target if source == ZOOKEEPER else source))
            else:
                self.world.network.cut(_machine(source), _machine(target))

    async def _unblock(self, source: Party, target: Party) -> None:
        if ZOOKEEPER in (source, target):
            self.world.zookeeper.heal(_machine(target if source == ZOOKEEPER else source))
        else:
            self.world.network.heal(_machine(source), _machine(target))

    async def heal(self) -> None:
        self.world.network.heal_all()
        for broker_id in self.broker_ids:
            self.world.zookeeper.heal(_machine(broker_id))

    # ----------------------------------------------------------------------------------------------------- hardware
    async def slow(self, source: Party, target: Party, delay_s: float) -> None:
        """Links to ZooKeeper are not slowed here: its simulated calls have times of their own."""
        if ZOOKEEPER in self._link(source, target):
            raise UnsupportedByBackend("the way to a simulated ZooKeeper is not slowed: use processes")
        self.world.network.slow_links[_machine(source), _machine(target)] = delay_s

    async def reset(self, one: Party, other: Party) -> None:
        if ZOOKEEPER in self._link(one, other):
            self.world.zookeeper.drop_connection(_machine(other if one == ZOOKEEPER else one))
        else:
            self.world.network.reset_connections(_machine(one), _machine(other))

    async def pause_zookeeper(self) -> None:
        """It keeps silent: no machine reaches it."""
        self.world.zookeeper.cut()

    async def resume_zookeeper(self) -> None:
        self.world.zookeeper.reach_all()

    async def fail_disk(self, broker_id: int, fault: DiskFault) -> None:
        await self._require_up(broker_id)
        storage = self.world.machine(_machine(broker_id)).storage
        if fault == "full":
            storage.fill()
        else:
            storage.fail("append" if fault == "write" else "sync")

    async def mend_disk(self, broker_id: int) -> None:
        self.world.machine(_machine(self._known(broker_id))).storage.heal()

    async def move_clock(self, broker_id: int, seconds: float) -> None:
        self.world.machine(_machine(self._known(broker_id))).clock_skew_ms = round(seconds * 1000)

    async def list_files(self, broker_id: int) -> list[str]:
        storage = self.world.machine(_machine(self._known(broker_id))).storage
        return sorted(name.removeprefix(f"{LOG}/") for name, _ in storage.files(LOG))

    async def read_file(self, broker_id: int, name: str) -> bytes:
        return bytes(self.world.machine(_machine(self._known(broker_id))).storage.find_file(f"{LOG}/{name}").content)

    async def replace_disk(self, broker_id: int) -> None:
        await self._require_down(broker_id)
        storage = self.world.machine(_machine(broker_id)).storage
        storage.wipe()
        storage.provision(PROVISIONED_DIRECTORY)

    async def write_file(self, broker_id: int, name: str, content: bytes | None) -> None:
        await self._require_down(broker_id)
        storage = self.world.machine(_machine(broker_id)).storage
        path = f"{LOG}/{name}"
        if content is None:
            directory, entry = storage.parent_of(path)
            del directory.entries[entry]
            directory.sync()
        else:
            file = storage.find_file(path)
            file.content[:] = content
            file.sync()

    def _keep(self, event: object) -> None:
        process = PROCESS.get()
        if process is not None and isinstance(event, ClusterEvent):
            fields = {**as_json_fields(event), "text": event.text(), "level": LEVEL_NAMES[event.level]}
            number = int(process.name.rpartition("-")[2])
            self._events.append(BrokerEvent(self.runtime.clock.now_ms(), number, fields))

    async def reported_events(self) -> list[BrokerEvent]:
        assert self._keeps_events
        return list(self._events)

    async def _expire_session(self, broker_id: int) -> None:
        for session_id in self.world.zookeeper.sessions_of(_machine(broker_id)):
            self.world.zookeeper.expire_session(session_id)

    async def _zookeeper_runs(self) -> bool:
        return self.world.zookeeper.is_running

    async def _stop_zookeeper(self) -> None:
        self.world.zookeeper.stop()

    async def _start_zookeeper(self) -> None:
        self.world.zookeeper.start()

    async def _files_for_audit(self, scratch: Path) -> Path:
        directory = scratch / "brokers"
        for broker_id in self.broker_ids:
            storage = self.world.machine(f"broker-{broker_id}").storage
            for name, content in files_below(storage, f"{PROVISIONED_DIRECTORY}/log"):
                file = directory / f"broker-{broker_id}" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        snapshots = {
            str(partition): PartitionSnapshot(
                leader=state.leader, leader_epoch=state.leader_epoch, isr=tuple(state.isr)
            )
            for partition, state in self._states().items()
        }
        write_cluster_state(directory, ClusterState(partitions=snapshots))
        return directory


def _machine(party: Party) -> str:
    return CLIENT_MACHINE if party == CLIENTS else f"broker-{party}"
