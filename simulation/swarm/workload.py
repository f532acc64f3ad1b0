"""Clients under faults, and what they saw: producers of every kind, consumers, a poller of end offsets, topic changes.

Owns: the history of what was sent, acknowledged and read. Each value is unique, so it names its write.
"""

import asyncio
import random
from typing import Literal, TypeAlias

from minibroker.client.admin import AdminClient
from minibroker.client.consumer import Consumer
from minibroker.client.errors import LogTruncated, MinibrokerError
from minibroker.client.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.options import Options

Acks: TypeAlias = Literal["all", 1, 0]


class Workload:
    """Start it as a task; set `stop` to end it."""

    def __init__(self, cluster: SimulatedCluster, options: Options, history: History, rng: random.Random) -> None:
        self.stop = asyncio.Event()
        self._cluster = cluster
        self._options = options
        self._history = history
        self._random = rng
        self._doors = cluster.client_runtime()
        self.partitions = [TopicPartition(t, p) for t, (n, _, _) in sorted(options.topics.items()) for p in range(n)]

    async def create_topics(self) -> None:
        async with self._admin() as admin:
            for name, (partitions, replication_factor, min_isr) in sorted(self._options.topics.items()):
                configs = {"min.insync.replicas": str(min_isr)}
                await admin.create_topic(
                    name, partitions=partitions, replication_factor=replication_factor, configs=configs
                )

    async def run(self) -> None:
        options = self._options
        async with asyncio.TaskGroup() as group:
            group.create_task(self._produce("all-1", "all"))
            group.create_task(self._produce("all-2", "all"))
            if options.acks_one:
                group.create_task(self._produce("one", 1))
            if options.acks_none:
                group.create_task(self._produce("none", 0))
            group.create_task(self._consume())
            group.create_task(self._consume())
            group.create_task(self._poll_ends())
            if options.churn:
                group.create_task(self._churn())
            if options.config_changes:
                group.create_task(self._change_configs())

    def _admin(self) -> AdminClient:
        return AdminClient(bootstrap_servers=self._cluster.bootstrap_servers, runtime=self._doors)

    def consumer(self) -> Consumer:
        return Consumer(
            bootstrap_servers=self._cluster.bootstrap_servers, auto_offset_reset="earliest", runtime=self._doors
        )

    # ---------------------------------------------------------------------------------------------------- producers
    async def _produce(self, name: str, acks: Acks) -> None:
        sends: set[asyncio.Task[None]] = set()
        async with Producer(
            bootstrap_servers=self._cluster.bootstrap_servers,
            acks=acks,
            linger_ms=self._random.choice((0, 1, 20)),
            delivery_timeout_ms=20_000,
            request_timeout_ms=3_000,
            runtime=self._doors,
        ) as producer:
            number = 0
            while not self.stop.is_set():
                number += 1
                value = f"{name}-{number}-".encode().ljust(self._options.value_bytes, b".")
                task = asyncio.create_task(self._send(producer, self._random.choice(self.partitions), value, acks))
                sends.add(task)
                task.add_done_callback(sends.discard)
                await asyncio.sleep(self._random.uniform(0.0, self._options.send_pause_max))
            await asyncio.gather(*sorted(sends, key=hash))

    async def _send(self, producer: Producer, partition: TopicPartition, value: bytes, acks: Acks) -> None:
        history = self._history
        try:
            found = await producer.send_and_wait(partition.topic, value, partition=partition.partition)
        except MinibrokerError as error:
            history.note_error(f"producer acks={acks}", error)
            if error.maybe_written:
                history.unknown += 1
            else:
                history.surely_failed.add(value)
            return
        if acks != "all":
            history.weakly_acked += 1
            return
        if found.offset is None:
            history.acked_somewhere[value] = partition
            return
        key = (partition, found.offset)
        if history.acked.setdefault(key, value) != value:
            facts = (f"{key[1]} was acknowledged for {history.acked[key]!r:.60}", f"and for {value!r:.60}")
            history.find("I21", "two records acknowledged at one offset", partition, *facts)

    # ---------------------------------------------------------------------------------------------------- consumers
    async def _consume(self) -> None:
        positions: dict[TopicPartition, int] = {}
        async with self.consumer() as consumer:
            consumer.assign(self.partitions)
            while not self.stop.is_set():
                try:
                    found = await consumer.getmany(timeout_ms=500)
                except LogTruncated as error:
                    self._history.find("I22", str(error))
                    return
                except MinibrokerError as error:
                    self._history.note_error("consumer", error)
                    await asyncio.sleep(0.1)
                    continue
                for partition in sorted(found):
                    for record in found[partition]:
                        self._note_read(partition, record.offset, record.value or b"", positions)

    def _note_read(
        self, partition: TopicPartition, offset: int, value: bytes, positions: dict[TopicPartition, int]
    ) -> None:
        """I22: what is at an offset never changes; a reader's offsets only rise, and skip only what retention took."""
        history = self._history
        expected = positions.get(partition)
        skips = expected is not None and offset > expected and "log.retention.bytes" not in self._options.settings
        if expected is not None and (offset < expected or skips):
            history.find("I22", f"read offset {offset} where {expected} was next", partition)
        positions[partition] = offset + 1
        if history.read.setdefault((partition, offset), value) != value:
            facts = (f"a reader saw {history.read[partition, offset]!r:.60}", f"a later one {value!r:.60}")
            history.find("I22", f"offset {offset} changed", partition, *facts)

    async def _poll_ends(self) -> None:
        """I23: ListOffsets(latest) never falls."""
        ends: dict[TopicPartition, int] = {}
        async with self.consumer() as consumer:
            while not self.stop.is_set():
                await asyncio.sleep(1)
                try:
                    found = await consumer.end_offsets(self.partitions, timeout_ms=2_000)
                except MinibrokerError as error:
                    self._history.note_error("end offsets", error)
                    continue
                for partition, end in found.items():
                    if end < ends.get(partition, 0):
                        self._history.find("I23", f"the end fell from {ends[partition]} to {end}", partition)
                    ends[partition] = end

    # ------------------------------------------------------------------------------------------------------- topics
    async def _churn(self) -> None:
        """A topic that comes and goes, with records; nothing is promised of them but that nobody falls over."""
        async with (
            self._admin() as admin,
            Producer(
                bootstrap_servers=self._cluster.bootstrap_servers, delivery_timeout_ms=4_000, runtime=self._doors
            ) as producer,
        ):
            exists = False
            while not self.stop.is_set():
                try:
                    if exists:
                        await admin.delete_topic("churn", timeout_ms=5_000)
                    else:
                        await admin.create_topic("churn", partitions=3, replication_factor=3, timeout_ms=5_000)
                    exists = not exists
                    for number in range(5 if exists else 0):
                        await producer.send_and_wait("churn", b"%d" % number, partition=number % 3)
                except MinibrokerError as error:
                    self._history.note_error("churn", error)
                    exists = self._random.random() < 0.5
                await asyncio.sleep(self._random.uniform(0.0, 2.0))

    async def _change_configs(self) -> None:
        async with self._admin() as admin:
            while not self.stop.is_set():
                await asyncio.sleep(self._random.uniform(0.5, 4.0))
                segment_bytes = self._random.choice(("8192", None))
                change = {"segment.bytes": segment_bytes, "retention.ms": "3600000000"}
                try:
                    await admin.alter_configs(change, topic="a", timeout_ms=3_000)
                except MinibrokerError as error:
                    self._history.note_error("configs", error)
