"""A stage of simulated brokers: the unmodified broker, controller and client code, in virtual time.

Owns: how the verbs are done in a simulated world, further verbs that only a simulation can do, and `cluster` for
variants that need more.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from minibroker.broker.replication.state import ReplicaState, Role, TruncationRule
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.znodes import CONTROLLER, PartitionState
from minibroker.scenarios.staging.broker_events import letter
from minibroker.scenarios.staging.client_stage import ClientStage, in_words, settings_of
from minibroker.scenarios.staging.clients import PARTITION
from minibroker.scenarios.staging.disks import read_disk, sync_all
from minibroker.scenarios.staging.rows import ReplicaRow
from minibroker.scenarios.staging.scenario import TOPIC, Setup
from minibroker.scenarios.staging.stage import StepListener
from minibroker.scenarios.staging.wire import FrameObserver
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.message_holds import Match, MessageHold
from minibroker.simulation.world.world import PROVISIONED_DIRECTORY
from minibroker.simulation.world.zookeeper_links import RequestHold

SEED = 1
OPERATOR_SESSION_MS = 4_000
CHECKPOINTED_SECONDS = 6.0
"""High watermarks are checkpointed every five seconds."""


class SimulatedStage(ClientStage):
    """Simulated brokers. `opened` builds the cluster and the topic."""

    notes_broker_logs = True
    settle_seconds = 0.05
    poll_seconds = 0.02

    def __init__(self, setup: Setup, rule: TruncationRule, listener: StepListener) -> None:
        self.cluster = SimulatedCluster(SEED, brokers=len(setup.brokers), settings=settings_of(setup, rule))
        self.world = self.cluster.world
        super().__init__(setup, rule, listener, SimulatedHarness(self.cluster))
        self.patched = False
        """A rule is removed for this variant (`Variant.patch`)."""
        self.isr_changes: list[str] = []
        self.world.network.count_frames(None, None, FrameObserver(self.note).observe)

    def machine(self, broker: str) -> str:
        return f"broker-{self.number(broker)}"

    # --------------------------------------------------------------------------------------------- before and after
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Brokers run, the first replica leads an empty topic, producers are connected."""
        setup, cluster = self.setup, self.cluster
        first = setup.controller or setup.brokers[-1]
        cluster.start(self.number(first))
        await cluster.until(lambda: cluster.controller() is not None, what="a controller")
        for broker in setup.brokers:
            if broker != first:
                cluster.start(self.number(broker))
        await cluster.until_ready()
        await self._create_topic()
        await cluster.until(lambda: len(cluster.in_sync_replicas(TOPIC)) == len(setup.replicas), what="a full ISR")
        try:
            await self._open_producers()
            yield
        finally:
            await self._clients.stop_waiting()

    def _servers(self) -> list[str]:
        servers = dict(zip(self.setup.brokers, self.cluster.bootstrap_servers.split(","), strict=True))
        awake = [b for b in servers if (process := self.world.machine(self.machine(b)).process) and not process.paused]
        return [servers[broker] for broker in awake]

    async def checkpointed(self) -> None:
        await asyncio.sleep(CHECKPOINTED_SECONDS)

    async def reference(self) -> str:
        return in_words(self.zookeeper_state())

    def zookeeper_state(self) -> PartitionState:
        """Leader, epoch and ISR as ZooKeeper has them."""
        state = self.cluster.partition_state(PARTITION)
        assert state is not None
        return state

    def note_broker_log(self, line: str) -> None:
        """A broker has logged a relevant line."""
        if ": ISR " in line:
            self.isr_changes.append(line)
        self.note(line)

    # ------------------------------------------------------------------------------------------------------ looking
    def now(self) -> float:
        return self.world.loop.elapsed

    async def look(self) -> list[ReplicaRow]:
        return [self._row(broker) for broker in sorted(self.setup.replicas)]

    def _row(self, broker: str) -> ReplicaRow:
        disk = read_disk(self.world.machine(self.machine(broker)).storage, PARTITION)
        replica = self.cluster.replica(self.number(broker), TOPIC)
        if replica is None:
            return ReplicaRow(
                broker=broker,
                role="starting" if self.world.is_alive(self.machine(broker)) else "dead",
                log_start_offset=disk.log_start_offset,
                log_end_offset=disk.log_end_offset,
                high_watermark=disk.high_watermark,
                epoch_file=disk.epoch_file,
                records=disk.records,
            )
        state = replica.state
        return ReplicaRow(
            broker=broker,
            role=self._role(broker, state),
            leader_epoch=state.leader_epoch,
            log_start_offset=state.log_start_offset,
            log_end_offset=state.log_end_offset,
            high_watermark=state.high_watermark,
            remote_ends={letter(each): remote.log_end_offset for each, remote in sorted(state.remotes.items())},
            isr="".join(letter(each) for each in sorted(state.in_sync_replicas)),
            pending_isr=""
            if state.pending_isr is None
            else "".join(letter(each) for each in sorted(state.pending_isr.in_sync_replicas)),
            epoch_file=tuple(state.epoch_history.entries),
            records=disk.records,
        )

    def _role(self, broker: str, state: ReplicaState) -> str:
        role = "no leader" if state.role is Role.NONE else state.role.value
        if self.world.process(self.machine(broker)).paused:
            role += ", paused"
        return role + (", fenced" if state.fenced and state.is_leader else "")

    # ------------------------------------------------------------------------------------------------------- faults
    async def cut_power(self, *brokers: str) -> None:
        """Without torn writes: what is left of a log must be the same in each run of a variant."""
        for broker in brokers:
            self.world.power_loss(self.machine(broker), tear=False)

    async def start(self, *brokers: str) -> None:
        """Without waiting until it serves, which a script may want to prevent."""
        for broker in brokers:
            self.cluster.start(self.number(broker))

    def hold_messages(self, source: str, target: str, match: Match) -> MessageHold:
        """Hold only such frames from one broker to another (`*`: from or to any machine)."""
        one, other = (None if name == "*" else self.machine(name) for name in (source, target))
        return self.world.network.hold(one, other, match)

    def count(self, client: str, match: Match) -> MessageHold:
        """Record such frames of a client, and let them pass."""
        return self.world.network.count_frames(client, None, match)

    def slow_link(self, source: str, target: str, seconds: float) -> None:
        """Add a delay in one direction."""
        self.world.network.slow_links[self.machine(source), self.machine(target)] = seconds

    def slow_disk(self, broker: str, append_seconds: float) -> None:
        """Each write takes this long, and blocks the process."""
        self.world.machine(self.machine(broker)).storage.cost.append = append_seconds

    def blank_disk(self, broker: str) -> None:
        """A new one is put into the machine."""
        storage = self.world.machine(self.machine(broker)).storage
        storage.wipe()
        storage.provision(PROVISIONED_DIRECTORY)

    def hold_zookeeper_write(self, broker: str) -> RequestHold:
        """Hold the broker's next write to ZooKeeper."""
        return self.world.zookeeper.hold(self.machine(broker), lambda request: request.kind == "write")

    async def delete_controller_node(self) -> None:
        """As an operator does to get another controller."""
        operator = self.world.runtime("operator").open_coordination("zookeeper:2181", OPERATOR_SESSION_MS)
        await operator.start()
        await operator.delete(CONTROLLER)
        await operator.close()

    def controller(self) -> str:
        """The active controller according to ZooKeeper."""
        found = self.cluster.controller()
        assert found is not None, "no controller"
        return letter(found)

    def sync_disk(self, *brokers: str) -> None:
        """The kernel writes back its cache, as it may at any time."""
        for broker in brokers:
            sync_all(self.world.machine(self.machine(broker)).storage)
