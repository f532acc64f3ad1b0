"""Clients under faults, and what they saw: producers of every kind, consumers, a poller of end offsets, topic changes.

Owns: the clients, which record what was sent, acknowledged and read. Each value is unique and so identifies its write.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from math import inf
from typing import Any, Literal, NamedTuple, TypeAlias

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import LogTruncated, MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.options import RunOptions

Acks: TypeAlias = Literal["all", 1, 0]

ACKNOWLEDGED_MIN = 200
PRODUCERS_MIN = 3
"""A run with less than this shows nothing."""
RARE_WEIGHT = 0.25
"""The share of the first partition's load that other partitions get: partitions with few writes are a case of their
own."""
RELAXED_PAUSE_MAX = 0.4
"""Seconds between two records of a producer once enough are acknowledged: the rest of the run is for the faults."""
HURRIED_PAUSE_MAX = 0.03


class ProducerKind(NamedTuple):
    """How one producer of the workload writes."""

    name: str
    acks: Acks
    idempotent: bool

    @property
    def process(self) -> str:
        """Its name in the history."""
        return f"{self.name} acks={self.acks}"


class Workload:
    """Start it as a task; set `stop` to end it."""

    def __init__(self, cluster: SimulatedCluster, options: RunOptions, history: History, rng: random.Random) -> None:
        self.stop = asyncio.Event()
        self.acknowledged: Counter[str] = Counter()
        """Acknowledged records, by producer."""
        self.readers: set[int] = set()
        """Consumers that have read a record, by number."""
        self.in_a_hurry = False
        """The run is at its end and has too few acknowledged records."""
        self.may_write = asyncio.Event()
        """Clear it to stop all clients from writing and from changing topics (`endings`)."""
        self.may_write.set()
        self.quiet_until: dict[TopicPartition, float] = {}
        """Partitions to which the producers send nothing before this time: a fault sequence needs it."""
        self.recreated: dict[int, bytes] = {}
        """Acknowledged records in the latest incarnation of the recreated topic, by offset (`recreated_topic`)."""
        self.other_clients: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Other clients that run until `stop` is set."""
        self._leaders_starts: Mapping[TopicPartition, int] | None = None
        self._cluster = cluster
        self._options = options
        self._history = history
        self._random = rng
        self._runtime = cluster.client_runtime()
        self.partitions = [TopicPartition(t, p) for t, (n, _, _) in sorted(options.topics.items()) for p in range(n)]
        self._weights = [1.0 if partition.partition == 0 else RARE_WEIGHT for partition in self.partitions]
        self._replicas = min(3, len(cluster.broker_ids))
        self._burst_number = 0
        self._bursts: set[asyncio.Task[None]] = set()
        self._burst_producers: dict[Acks, Producer] = {}

    async def create_topics(self) -> None:
        async with self._admin() as admin:
            for name, (partitions, replication_factor, min_isr) in sorted(self._options.topics.items()):
                configs = {"min.insync.replicas": str(min_isr), **self._options.topic_settings(name)}
                await admin.create_topic(
                    name, partitions=partitions, replication_factor=replication_factor, configs=configs
                )

    def note_error(self, client: str, error: MinibrokerError) -> None:
        """A request of one of the run's clients failed."""
        self._history.note_error(client, error)

    @property
    def is_enough(self) -> bool:
        """Enough was acknowledged for the run to count, by enough producers."""
        return self.acknowledged.total() >= ACKNOWLEDGED_MIN and len(self.acknowledged) >= PRODUCERS_MIN

    def deletes(self, topic: str) -> bool:
        """Whether retention may delete records of this topic before they are read."""
        return self._options.deletes(topic)

    def watch_deletions(self, leaders_starts: Mapping[TopicPartition, int]) -> None:
        """The highest log start that any leader has had, now and later: a reader may have missed what is below."""
        self._leaders_starts = leaders_starts

    def deleted_below(self, partition: TopicPartition) -> float:
        """In front of which offset retention may have taken records before they were read."""
        if self._leaders_starts is not None:
            return self._leaders_starts.get(partition, 0)
        return inf if self.deletes(partition.topic) else 0

    def producers(self) -> list[ProducerKind]:
        kinds = {
            "all": ProducerKind("all-3", "all", True),
            "any": ProducerKind("any", "all", False),
            "one": ProducerKind("one", 1, False),
        }
        found = [ProducerKind("all-1", "all", True), ProducerKind("all-2", "all", True)]
        found.append(kinds[self._options.third_producer])
        if self._options.acks_none:
            found.append(ProducerKind("none", 0, False))
        return found

    async def run(self) -> None:
        options = self._options
        async with asyncio.TaskGroup() as group:
            for kind in self.producers():
                group.create_task(self._produce(kind))
            group.create_task(self._burst_until_stopped())
            group.create_task(self._consume(1))
            group.create_task(self._consume(2))
            group.create_task(self._poll_ends())
            for run_client in self.other_clients:
                group.create_task(run_client())
            if options.churn:
                group.create_task(self._churn())
            if options.config_changes:
                group.create_task(self._change_configs())

    def _admin(self) -> AdminClient:
        return AdminClient(bootstrap_servers=self._cluster.bootstrap_servers, runtime=self._runtime)

    def consumer(self) -> Consumer:
        return Consumer(
            bootstrap_servers=self._cluster.bootstrap_servers, auto_offset_reset="earliest", runtime=self._runtime
        )

    # ---------------------------------------------------------------------------------------------------- producers
    def _producer(self, acks: Acks, idempotent: bool) -> Producer:
        delivery_ms = self._options.delivery_timeout_ms
        return Producer(
            bootstrap_servers=self._cluster.bootstrap_servers,
            acks=acks,
            enable_idempotence=idempotent,
            linger_ms=self._random.choice((0, 1, 20)),
            delivery_timeout_ms=delivery_ms,
            request_timeout_ms=min(delivery_ms, 1_000),
            runtime=self._runtime,
        )

    async def _produce(self, kind: ProducerKind) -> None:
        sends: set[asyncio.Task[None]] = set()
        async with self._producer(kind.acks, kind.idempotent) as producer:
            number = 0
            while not self.stop.is_set():
                partition = self._random.choices(self.partitions, self._weights)[0]
                if self.may_write.is_set() and self.quiet_until.get(partition, 0.0) <= self._cluster.world.loop.elapsed:
                    number += 1
                    task = asyncio.create_task(self._send(producer, partition, f"{kind.name}-{number}-", kind))
                    sends.add(task)
                    task.add_done_callback(sends.discard)
                await asyncio.sleep(self._random.uniform(0.0, self._send_pause()))
            await asyncio.gather(*sorted(sends, key=hash))

    def _send_pause(self) -> float:
        if self.in_a_hurry:
            return HURRIED_PAUSE_MAX
        return RELAXED_PAUSE_MAX if self.is_enough else self._options.send_pause_max

    def burst(self, partition: TopicPartition, count: int, acks: Acks = 1) -> None:
        """Send these now, in addition to the steady load, without waiting for them."""
        producer = self._burst_producers.get(acks)
        kind = ProducerKind("burst", acks, acks == "all")
        for _ in range(count if producer is not None else 0):
            assert producer is not None
            self._burst_number += 1
            prefix = f"{'all-' if kind.idempotent else ''}burst-{self._burst_number}-"
            task = asyncio.create_task(self._send(producer, partition, prefix, kind))
            self._bursts.add(task)
            task.add_done_callback(self._bursts.discard)

    async def _burst_until_stopped(self) -> None:
        async with self._producer(1, False) as weak, self._producer("all", True) as strong:
            self._burst_producers = {1: weak, "all": strong}
            await self.stop.wait()
            self._burst_producers = {}
            await asyncio.gather(*sorted(self._bursts, key=hash))

    async def _send(self, producer: Producer, partition: TopicPartition, prefix: str, kind: ProducerKind) -> None:
        history, acks = self._history, kind.acks
        value = prefix.encode().ljust(self._options.value_bytes, b".")
        operation = history.sends(kind.process, partition, value)
        try:
            found = await producer.send_and_wait(partition.topic, value, partition=partition.partition)
        except MinibrokerError as error:
            history.note_error(f"producer acks={acks}", error)
            history.failed(operation, error)
            if error.maybe_written:
                history.unknown += 1
            else:
                history.surely_failed.add(value)
            return
        history.wrote(operation, found.offset, found.leader_epoch, is_promised=acks == "all")
        if acks != 0:
            self.acknowledged[kind.name] += 1
        if acks != "all":
            history.weakly_acked += 1
            return
        history.promised(partition, found.offset, value)

    # ---------------------------------------------------------------------------------------------------- consumers
    async def _consume(self, number: int) -> None:
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
                self._history.polls(f"reader-{number}", found)
                for partition in sorted(found):
                    self.readers.add(number)
                    for record in found[partition]:
                        self._note_read(partition, record.offset, record.value, positions)

    def _note_read(
        self, partition: TopicPartition, offset: int, value: bytes | None, positions: dict[TopicPartition, int]
    ) -> None:
        """I22: the record at an offset never changes; a reader's offsets only rise, and skip only what retention
        took."""
        history = self._history
        expected = positions.get(partition)
        skips = expected is not None and offset > max(expected, self.deleted_below(partition))
        if expected is not None and (offset < expected or skips):
            history.find("I22", f"read offset {offset} where {expected} was next", partition)
        positions[partition] = offset + 1
        history.reads(partition, offset, value)

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
        """Create and delete a topic with records that are under no promise; only no broker may crash."""
        async with (
            self._admin() as admin,
            Producer(
                bootstrap_servers=self._cluster.bootstrap_servers, delivery_timeout_ms=4_000, runtime=self._runtime
            ) as producer,
        ):
            exists = False
            while not self.stop.is_set():
                await self.may_write.wait()
                try:
                    if exists:
                        await admin.delete_topic("churn", timeout_ms=3_000)
                    else:
                        await admin.create_topic(
                            "churn", partitions=2, replication_factor=self._replicas, timeout_ms=3_000
                        )
                    exists = not exists
                    for number in range(5 if exists else 0):
                        await producer.send_and_wait("churn", b"%d" % number, partition=number % 2)
                except MinibrokerError as error:
                    self._history.note_error("churn", error)
                    exists = self._random.random() < 0.5
                await asyncio.sleep(self._random.uniform(0.0, 2.0))

    async def recreate_topic(self, topic: str) -> None:
        """Create and delete the topic twice, with one record each time, under no promise."""
        for _ in range(2):
            try:  # includes the start of the clients: all brokers may be down
                async with self._admin() as admin, self._producer(1, False) as producer:
                    await admin.create_topic(topic, partitions=1, replication_factor=self._replicas, timeout_ms=2_000)
                    await producer.send_and_wait(topic, b"here")
                    await admin.delete_topic(topic, timeout_ms=2_000)
            except MinibrokerError as error:
                self._history.note_error("again", error)

    async def _change_configs(self) -> None:
        async with self._admin() as admin:
            while not self.stop.is_set():
                await asyncio.sleep(self._random.uniform(0.5, 4.0))
                await self.may_write.wait()
                segment_bytes = self._random.choice(("8192", None))
                change = {"segment.bytes": segment_bytes, "retention.ms": "3600000000"}
                try:
                    await admin.alter_configs(change, topic="a", timeout_ms=3_000)
                except MinibrokerError as error:
                    self._history.note_error("configs", error)
