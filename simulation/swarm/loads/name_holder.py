"""Processes that start one after the other under one producer's name, while earlier ones still write.

Owns: what a name promises (docs/CLIENT.md, one process at a time): behind a record of a later process no earlier one
writes, and no process is fenced without a later one. Leaves to others: what is promised of every producer
(`watched_producer`).
"""

import asyncio
import math
import random

import msgspec

from minibroker.client.errors import ProducerFenced
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.loads.load_options import PRODUCER_EXPIRY
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.watched_producer import DrawnRecord, WatchedProducer

NAME = "holder"
PROCESSES = 2
"""At a time, so that a start meets a process that still writes."""
RECORDS_MAX = 12
PAUSE_SECONDS_MAX = 0.5
DELIVERY_MS = 4_000
REQUEST_MS = 1_000


class Process(msgspec.Struct, eq=False):
    """One start under the name. Times are virtual seconds."""

    start_called: float
    start_returned: float = math.inf
    offsets: dict[TopicPartition, tuple[int, int]] = msgspec.field(default_factory=dict)
    """The lowest and the highest acknowledged one."""

    def is_later_than(self, other: "Process") -> bool:
        """For sure: two starts at the same time may be granted in either order."""
        return self.start_called > other.start_returned

    def wrote(self, partition: TopicPartition, offset: int) -> None:
        low, high = self.offsets.get(partition, (offset, offset))
        self.offsets[partition] = min(low, offset), max(high, offset)


class NameHolder:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng
        self._processes: list[Process] = []
        self._records = 0

    async def run(self) -> None:
        await asyncio.gather(*(self._restart() for _ in range(PROCESSES)))

    async def _restart(self) -> None:
        while not self._scene.is_over:
            await self._scene.until_writable()
            await self._scene.attempt("name holder", self._live())
            await asyncio.sleep(self._random.uniform(0.0, PAUSE_SECONDS_MAX))

    async def _live(self) -> None:
        """One process: it starts, writes, and ends when it is fenced or done."""
        process = Process(start_called=self._scene.now)
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
        async with WatchedProducer(self._scene, f"{NAME}-{len(self._processes)}", True, settings) as producer:
            process.start_returned = self._scene.now
            producer.on_acknowledged = lambda partition, offset: self._acknowledged(process, partition, offset)
            producer.on_fenced = lambda error: self._fenced(process, error)
            self._scene.did("started under a name")
            try:
                await self._write(producer)
            except ProducerFenced as error:
                self._fenced(process, error)

    async def _write(self, producer: WatchedProducer) -> None:
        for _ in range(self._random.randint(1, RECORDS_MAX)):
            await self._scene.until_writable()
            if self._scene.is_over:
                return
            self._records += 1
            name = f"{producer.prefix}-{self._records}-"
            place = self._random.choice(self._scene.partitions)
            await producer.send(
                DrawnRecord(name=name, topic=place.topic, value=name.encode(), partition=place.partition)
            )
            await asyncio.sleep(self._random.choice((0.0, 0.05, 0.2)))

    # ------------------------------------------------------------------------------------------------------ judgement
    def _acknowledged(self, process: Process, partition: TopicPartition, offset: int) -> None:
        process.wrote(partition, offset)
        if self._may_be_forgotten(partition):
            return
        for other in self._processes:
            if partition not in other.offsets:
                continue
            low, high = other.offsets[partition]
            if other.is_later_than(process) and low < offset:
                self._find(f"an earlier process wrote offset {offset} behind {low} of a later one", partition)
            if process.is_later_than(other) and offset < high:
                self._find(f"an earlier process wrote offset {high} behind {offset} of a later one", partition)

    def _may_be_forgotten(self, partition: TopicPartition) -> bool:
        """Whether a replica may forget the later process (docs/REPLICATION.md, an earlier process of a producer's
        name)."""
        forgets = {*self._scene.settings, *self._scene.options.broker_changes}
        return PRODUCER_EXPIRY in forgets or self._scene.deletes(partition.topic)

    def _fenced(self, process: Process, error: ProducerFenced) -> None:
        """Only a process that is not surely earlier may have fenced it."""
        self._scene.did("ProducerFenced")
        if all(other is process or process.is_later_than(other) for other in self._processes):
            self._find(f"the latest process was fenced: {error}")

    def _find(self, text: str, partition: TopicPartition | None = None) -> None:
        self._scene.find("producer_name", text, partition)
