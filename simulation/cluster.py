"""A whole cluster in one process: the unmodified broker and controller, and clients, on simulated ports.

Owns: how brokers are configured and started in a simulated world, and queries about the cluster's state for tests and
stories. Leaves to others: replication; it reads states and changes none.
"""

import asyncio
from collections.abc import Callable

from minibroker.broker.__main__ import compose
from minibroker.broker.broker import Broker
from minibroker.broker.configuration.config import load_config
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import (
    BROKER_TOPICS,
    CONTROLLER,
    ControllerNode,
    PartitionState,
    TopicAssignment,
    partition_state_path,
    topic_path,
)
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.world import PROVISIONED_DIRECTORY, SimulatedWorld

PORT = 9092
POLL_SECONDS = 0.05
HELD_SECONDS = 0.1
"""A call to a disk that holds its process for longer is a slow one."""


class SimulatedCluster:
    """Brokers `broker-1`.. in a world; `client` is a separate node."""

    def __init__(
        self,
        seed: int = 0,
        brokers: int = 3,
        settings: dict[str, str] | None = None,
        loop: VirtualLoop | None = None,
    ) -> None:
        self.world = SimulatedWorld(seed, loop)
        self.broker_ids = tuple(range(1, brokers + 1))
        self.brokers: dict[int, Broker] = {}
        self._settings = settings or {}
        self._stops: dict[int, asyncio.Event] = {}
        self.asked_to_stop_at: dict[int, float] = {}
        """When a process of that broker was last asked to stop."""
        self.starting: set[int] = set()
        """Brokers with a new process that has not run yet: `brokers` still holds the previous one."""
        self._failed_reads: list[tuple[int, str]] = []
        """Of the processes before."""
        for broker_id in self.broker_ids:
            self.world.machine(f"broker-{broker_id}")

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"broker-{b}:{PORT}" for b in self.broker_ids)

    def client_runtime(self) -> Runtime:
        """The ports for a producer or consumer."""
        return self.world.runtime("client")

    # ------------------------------------------------------------------------------------------------------ brokers
    def start(self, broker_id: int) -> None:
        """Start a broker's process, again over its old disk if it ran before."""
        self.starting.add(broker_id)
        self._stops[broker_id] = asyncio.Event()  # at once: a SIGTERM may come before the process runs
        self.world.start(f"broker-{broker_id}", lambda runtime: self._run(broker_id, runtime))

    def start_all(self) -> None:
        for broker_id in self.broker_ids:
            self.start(broker_id)

    async def _run(self, broker_id: int, runtime: Runtime) -> None:
        settings = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://broker-{broker_id}:{PORT}",
            "log.dirs": f"{PROVISIONED_DIRECTORY}/log",
            "zookeeper.connect": "zookeeper:2181",
            "zookeeper.session.timeout.ms": "3000",
            "default.replication.factor": str(min(3, len(self.broker_ids))),
            "min.insync.replicas": str(min(2, len(self.broker_ids))),
            **self._settings,
        }
        broker = compose(load_config(None, [f"{key}={value}" for key, value in settings.items()], {}), runtime)
        if broker_id in self.brokers:
            self._failed_reads += [(broker_id, api) for api in self.brokers[broker_id].failed_reads()]
        self.brokers[broker_id] = broker
        self.starting.discard(broker_id)
        stop = self._stops[broker_id]
        try:
            await broker.start()
            await broker.serve(stop)
        finally:
            await broker.stop()

    def kill(self, broker_id: int) -> None:
        """SIGKILL: what was written stays."""
        self.world.kill(f"broker-{broker_id}")

    def power_loss(self, broker_id: int) -> None:
        """Only what was synced stays."""
        self.world.power_loss(f"broker-{broker_id}")

    def stop(self, broker_id: int) -> None:
        """SIGTERM."""
        self.asked_to_stop_at[broker_id] = self.world.loop.elapsed
        self._stops[broker_id].set()

    # ------------------------------------------------------------------------------------------------------ queries
    def failed_reads(self) -> list[tuple[int, str]]:
        """Each query that hit a bug of ours, in whichever process of a broker: its broker, and its API."""
        present = [(b, api) for b, broker in sorted(self.brokers.items()) for api in broker.failed_reads()]
        return self._failed_reads + present

    def is_stopping(self, broker_id: int) -> bool:
        """Whether its newest process was asked to stop."""
        return broker_id in self._stops and self._stops[broker_id].is_set()

    def alive(self) -> list[int]:
        return [b for b in self.broker_ids if self.world.is_alive(f"broker-{b}")]

    def held_seconds(self) -> float:
        """How much longer a synchronous call to its disk holds some living broker: it takes as long as the disk was
        slow when it began, also if the disk is healed meanwhile."""
        processes = [self.world.process(f"broker-{b}") for b in self.alive()]
        return max([0.0, *(process.busy_until - self.world.loop.time() for process in processes)])

    def manager(self, broker_id: int) -> ReplicaManager | None:
        """Of the broker's process, or of the one before if it has not run yet; it may be dead. None until it got so far
        in its start."""
        broker = self.brokers.get(broker_id)
        return broker.manager if broker is not None and hasattr(broker, "manager") else None

    def has_offline_directory(self, broker_id: int) -> bool:
        """Whether its log directory failed: until it is started again (seed 17290369)."""
        manager = self.manager(broker_id)
        return manager is not None and manager.log_directory.offline

    def replica(self, broker_id: int, topic: str, partition: int = 0) -> Partition | None:
        """A living broker's replica. A process that has just been started has none: until it runs, `brokers` holds the
        broker of the one before."""
        if broker_id in self.starting or not self.world.is_alive(f"broker-{broker_id}"):
            return None
        manager = self.manager(broker_id)
        return None if manager is None else manager.partitions.get(TopicPartition(topic, partition))

    def leader(self, topic: str, partition: int = 0) -> int | None:
        """The living leader with the highest epoch."""
        found = [
            (replica.state.leader_epoch or 0, b)
            for b in self.alive()
            if (replica := self.replica(b, topic, partition)) is not None and replica.state.is_leader
        ]
        return max(found)[1] if found else None

    def controller(self) -> int | None:
        """The controller in ZooKeeper; it may have failed unnoticed."""
        node = self.world.zookeeper.tree.nodes.get(CONTROLLER)
        return None if node is None else ControllerNode.decode(node.data).brokerid

    def assignments(self) -> dict[TopicPartition, tuple[int, ...]]:
        """The brokers of each partition, as ZooKeeper has them."""
        tree = self.world.zookeeper.tree
        names = tree.children(BROKER_TOPICS) if BROKER_TOPICS in tree.nodes else []
        topics = {name: tree.nodes[topic_path(name)] for name in names}
        return {
            TopicPartition(name, number): replicas
            for name, node in topics.items()
            for number, replicas in TopicAssignment.decode(node.data).replicas().items()
        }

    def partition_state(self, partition: TopicPartition) -> PartitionState | None:
        """Leader, epoch and ISR as ZooKeeper has them, which is authoritative; None if they were never written."""
        node = self.world.zookeeper.tree.nodes.get(partition_state_path(partition))
        return None if node is None else PartitionState.decode(node.data)

    def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ISR, as the leader has it."""
        leader = self.leader(topic, partition)
        replica = None if leader is None else self.replica(leader, topic, partition)
        return () if replica is None else tuple(sorted(replica.state.in_sync_replicas))

    async def until(self, condition: Callable[[], bool], seconds: float = 30, what: str = "the condition") -> None:
        """Wait in virtual time."""
        try:
            async with asyncio.timeout(seconds):
                while not condition():  # noqa: ASYNC110  (conditions are polled from outside, nothing signals them)
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise AssertionError(f"{what} did not come true within {seconds} virtual seconds") from None

    async def until_ready(self) -> None:
        """Wait until all brokers are registered and have the metadata of all."""
        await self.until(
            lambda: (
                all(
                    hasattr(broker, "image") and len(broker.image.live_broker_ids()) == len(self.broker_ids)
                    for broker in self.brokers.values()
                )
                and len(self.brokers) == len(self.broker_ids)
            ),
            what="a ready cluster",
        )
