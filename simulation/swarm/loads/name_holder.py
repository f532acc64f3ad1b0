"""Processes that start one after the other under one producer's name, while earlier ones still write.

Owns: what a name promises (docs/CLIENT.md, one process at a time): behind a record of a later process no earlier one
writes, and no process is fenced without a later one. Leaves to others: what is promised of every producer
(`watched_producer`).
"""

import asyncio
import math
import random

from minibroker.client.errors import ProducerFenced
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.loads.load_options import PRODUCER_EXPIRY
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.watched_producer import WatchedProducer

NAME = "holder"
PROCESSES = 2
"""At a time, so that a start meets a process that still writes."""
RECORDS_MAX = 12
PAUSE_SECONDS_MAX = 0.5
DELIVERY_MS = 4_000
REQUEST_MS = 1_000


class NamedProcess:
    """One start under the name, and what it may and may not meet."""

    def __init__(self, scene: LoadScene, all_processes: "list[NamedProcess]") -> None:
        self._scene = scene
        self._all = all_processes
        self._start_called = scene.now
        self._start_returned = math.inf
        self._offsets: dict[TopicPartition, tuple[int, int]] = {}
        """The lowest and the highest acknowledged one."""

    def started(self) -> None:
        self._start_returned = self._scene.now

    def is_later_than(self, other: "NamedProcess") -> bool:
        """For sure: two starts at the same time may be granted in either order."""
        return self._start_called > other._start_returned

    def acknowledged(self, partition: TopicPartition, offset: int) -> None:
        low, high = self._offsets.get(partition, (offset, offset))
        self._offsets[partition] = min(low, offset), max(high, offset)
        if self._may_be_forgotten(partition):
            return
        for other in self._all:
            if partition not in other._offsets:
                continue
            low, high = other._offsets[partition]
            if other.is_later_than(self) and low < offset:
                self._find(f"an earlier process wrote offset {offset} behind {low} of a later one", partition)
            if self.is_later_than(other) and offset < high:
                self._find(f"an earlier process wrote offset {high} behind {offset} of a later one", partition)

    def _may_be_forgotten(self, partition: TopicPartition) -> bool:
        """Whether a replica may forget the later process (docs/REPLICATION.md, an earlier process of a producer's
        name)."""
        forgets = {*self._scene.settings, *self._scene.options.broker_changes}
        return PRODUCER_EXPIRY in forgets or self._scene.deletes(partition.topic)

    def fenced(self, error: ProducerFenced) -> None:
        """Only a process that is not surely earlier may have fenced it."""
        self._scene.did("ProducerFenced")
        if all(other is self or self.is_later_than(other) for other in self._all):
            self._find(f"the latest process was fenced: {error}")

    def _find(self, text: str, partition: TopicPartition | None = None) -> None:
        self._scene.find("producer_name", text, partition)


class NameHolder:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng
        self._processes: list[NamedProcess] = []
        self._records = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._restart() for _ in range(PROCESSES)))

    async def _restart(self) -> None:
        await self._scene.repeat("name holder", self._live, self._random, PAUSE_SECONDS_MAX, writes=True)

    async def _live(self) -> None:
        """One process: it starts, writes, and ends when it is fenced or done."""
        process = NamedProcess(self._scene, self._processes)
        self._processes.append(process)
        settings = {
            "acks": "all",
            "enable_idempotence": True,
            "producer_name": NAME,
            "delivery_timeout_ms": DELIVERY_MS,
            "request_timeout_ms": REQUEST_MS,
            "max_block_ms": DELIVERY_MS,
            "linger_ms": self._random.choice((0, 5)),
        }
        name = f"{NAME}-{len(self._processes)}"
        async with WatchedProducer(self._scene, name, True, settings, process) as producer:
            process.started()
            self._scene.did("started under a name")
            try:
                await self._write(producer)
            except ProducerFenced as error:
                process.fenced(error)

    async def _write(self, producer: WatchedProducer) -> None:
        for _ in range(self._random.randint(1, RECORDS_MAX)):
            await self._scene.until_writable()
            if self._scene.is_over:
                return
            self._records += 1
            await producer.send_named(self._records, self._random.choice(self._scene.partitions))
            await asyncio.sleep(self._random.choice((0.0, 0.05, 0.2)))
