"""What every load of a run shares: its cluster, clients, history and the limits in force.

Owns: the rounds of a load, opening clients with drawn parameters, and the wait for moments at which clients may write.
Leaves to others: what a load does.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.options import RunOptions
from minibroker.simulation.swarm.workload import Workload

LOOK_SECONDS = 0.1
MESSAGE_BYTES_DEFAULT = 1_048_588
"""The broker's default of message.max.bytes."""


class LoadScene:
    """Of one run."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        reference: ReferenceState,
        workload: Workload,
        history: History,
        options: RunOptions,
        done: Counter[str],
    ) -> None:
        """`done` counts what loads did, by kind."""
        self.cluster = cluster
        self.reference = reference
        self.history = history
        assert options.loads is not None
        self.options = options.loads
        self.settings = options.settings
        """Of every broker."""
        self._workload = workload
        self._done = done
        self.partitions = [each for each in workload.partitions if each.topic in options.loads.topics]
        self.shapes = options.topics
        """name: (partitions, replication factor, ..) of every topic under promise."""
        self.all_partitions = workload.partitions
        self.message_bytes = {
            topic: {
                MESSAGE_BYTES_DEFAULT if value is None else int(value)
                for value in options.possible_settings(topic, "max.message.bytes", "message.max.bytes")
            }
            for topic in options.loads.topics
        }
        """Every max.message.bytes that each topic may have in this run."""
        self.placed: dict[tuple[str, str, bytes], int] = {}
        """(partitioner, topic, key): the partition of the first record with it."""

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.cluster.world.loop.elapsed

    @property
    def is_over(self) -> bool:
        return self._workload.stop.is_set()

    @property
    def is_paused(self) -> bool:
        """Nothing may be written, and what was sent before is expected to get its outcome."""
        return not self._workload.may_write.is_set()

    def deletes(self, topic: str) -> bool:
        """Whether retention may delete records of this topic."""
        return self._workload.deletes(topic)

    def deleted_below(self, partition: TopicPartition) -> float:
        """In front of which offset retention may have taken records."""
        return self._workload.deleted_below(partition)

    def did(self, what: str) -> None:
        self._done[f"load {what}"] += 1

    def find(self, promise: str, text: str, partition: TopicPartition | None = None, *facts: str) -> None:
        """A promise of the client library did not hold."""
        self.history.find(f"client: {promise}", text, partition, *facts)

    def had_one_leadership(self, partition: TopicPartition) -> bool:
        """Whether it has been in its first leader epoch all the time: no new leader knew less."""
        state = self.reference.state(partition)
        return state is not None and state.leader_epoch == 0

    async def repeat(
        self,
        client: str,
        one_round: Callable[[], Awaitable[None]],
        rng: random.Random,
        pause_seconds_max: float,
        *,
        writes: bool = False,
    ) -> None:
        """Rounds of a load until the workload ends, with pauses. A round's clients may find no broker, and its calls
        may fail while faults last. `writes`: a round begins at a moment at which clients may write."""
        while not self.is_over:
            if writes:
                await self.until_writable()
            try:
                await one_round()
            except MinibrokerError as error:
                self.history.note_error(client, error)
            await asyncio.sleep(rng.uniform(0.0, pause_seconds_max))

    async def until_writable(self) -> None:
        """Wait while the run, or a fault sequence, needs partitions without writes."""
        await self._workload.may_write.wait()
        while not self.is_over and any(until > self.now for until in self._workload.quiet_until.values()):  # noqa: ASYNC110  (nothing signals it)
            await asyncio.sleep(LOOK_SECONDS)

    # ------------------------------------------------------------------------------------------------------- clients
    def producer(self, **settings: Any) -> Producer:
        return Producer(
            bootstrap_servers=self.cluster.bootstrap_servers, runtime=self.cluster.client_runtime(), **settings
        )

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(
            bootstrap_servers=self.cluster.bootstrap_servers, runtime=self.cluster.client_runtime(), **settings
        )

    def admin(self) -> AdminClient:
        return AdminClient(bootstrap_servers=self.cluster.bootstrap_servers, runtime=self.cluster.client_runtime())
