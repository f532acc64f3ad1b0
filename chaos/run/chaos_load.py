"""The load of a run: producers and consumers that write down all they do and see.

Owns: what is sent, how fast, and what a client does after an error. Leaves to others: the history (`recorder`). A
client whose outcome is unknown is abandoned, and its successor has a new name, as in Jepsen. Runs in real and in
virtual time.
"""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Mapping
from functools import partial
from typing import Any, Literal

from minibroker.chaos.run.recorder import PADDING, Recorder, name_of
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.records import Record
from minibroker.client.errors import LogTruncated, MinibrokerError
from minibroker.client.producer.deliveries import Delivery
from minibroker.harness.cluster import ClusterHarness
from minibroker.protocol.ids import TopicPartition

Acks = Literal["all", "1", "0"]
TOPIC = "chaos"
PRODUCERS = 3
CONSUMERS = 2
DELIVERY_MS = 10_000
REQUEST_MS = 3_000
SETTINGS: Mapping[str, Any] = {"request_timeout_ms": REQUEST_MS, "metadata_max_age_ms": 5_000}
"""Of each client: it finds out soon that a broker is gone."""
PRODUCER_SETTINGS: Mapping[str, Any] = {
    "delivery_timeout_ms": DELIVERY_MS,
    "max_block_ms": DELIVERY_MS,
    "bootstrap_timeout_ms": DELIVERY_MS,
}
POLL_MS = 300
REOPEN_S = 0.5
"""Before a client that failed is replaced."""
MOVE_PROBABILITY = 1 / 64
"""Of a poll: the consumer first seeks back, in one partition."""
MOVED_MAX = 200
"""Records that it then reads again, at most."""
VALUE_BYTES = 100
WRONG_MAX = 5
ACKS: Mapping[Acks, Any] = {"all": "all", "1": 1, "0": 0}


class ChaosLoad:
    """All clients of a run. `stop` ends the sending; consumers end when they are cancelled."""

    def __init__(
        self,
        cluster: ClusterHarness,
        recorder: Recorder,
        partitions: int,
        *,
        rate: float,
        acks: Acks,
        seed: int,
    ) -> None:
        self.partitions = [TopicPartition(TOPIC, number) for number in range(partitions)]
        self.in_order: set[str] = set()
        """Idempotent producers, by their names in the history."""
        self.wrong: list[str] = []
        """What readers were given that no history can tell, the first few."""
        self._sent: set[str] = set()
        """The values, as the history names them."""
        self._cluster = cluster
        self._recorder = recorder
        self._pause_s = PRODUCERS / rate
        self._acks: Acks = acks
        self._seed = seed
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Producers send nothing more, and end when what they sent has its outcome."""
        self._stopping.set()

    # ------------------------------------------------------------------------------------------------------ sending
    async def produce(self, number: int) -> None:
        """One producer, and its successors."""
        life = 0
        while not self._stopping.is_set():
            name = f"producer-{number}.{life}"
            life += 1
            if self._acks == "all":
                self.in_order.add(name)
            try:
                await self._produce_as(name, number)
            except MinibrokerError as error:
                self._recorder.note(error)
                await asyncio.sleep(REOPEN_S)

    async def _produce_as(self, name: str, number: int) -> None:
        """Until an outcome is unknown, or the end."""
        abandoned = asyncio.Event()
        outcomes: set[asyncio.Task[None]] = set()
        settings = {**SETTINGS, **PRODUCER_SETTINGS, "acks": ACKS[self._acks], "client_id": name}
        loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            producer = self._cluster.producer(**settings)
            await producer.start()
            stack.push_async_callback(_closed, producer)
            sent = 0
            next_at = loop.time()
            while not (self._stopping.is_set() or abandoned.is_set()):
                partition = self.partitions[(number + sent) % len(self.partitions)]
                text = f"{name}/{sent}"
                value = _value_of(text)
                self._sent.add(text)
                sent += 1
                operation = self._recorder.begins(name, partition, text)
                try:
                    delivery = await producer.send(partition.topic, value, text.encode(), partition=partition.partition)
                except MinibrokerError as error:
                    self._recorder.failed(operation, error)
                    break
                task = asyncio.create_task(self._note_outcome(operation, delivery, value, text, abandoned))
                outcomes.add(task)
                task.add_done_callback(outcomes.discard)
                next_at = max(next_at + self._pause_s, loop.time())
                await asyncio.sleep(next_at - loop.time())
            if outcomes:
                await asyncio.wait(outcomes, timeout=2 * DELIVERY_MS / 1000)

    async def _note_outcome(
        self, operation: int, delivery: Delivery, value: bytes, key: str, abandoned: asyncio.Event
    ) -> None:
        try:
            metadata = await delivery
        except MinibrokerError as error:
            self._recorder.failed(operation, error)
            abandoned.set()
            return
        self._recorder.wrote(operation, metadata, value, key.encode(), is_promised=self._acks != "0")

    # ------------------------------------------------------------------------------------------------------ reading
    async def consume(self, number: int) -> None:
        """One consumer of all partitions, and its successors, until it is cancelled."""
        life = 0
        rng = random.Random(f"consumer {self._seed} {number}")
        while True:
            name = f"consumer-{number}.{life}"
            life += 1
            try:
                async with self._cluster.consumer(client_id=name, **SETTINGS) as consumer:
                    self._assign(consumer, name)
                    while True:
                        if rng.random() < MOVE_PROBABILITY:
                            await self._move_back(consumer, name, rng)
                        await self._poll(consumer, name)
            except MinibrokerError as error:
                self._recorder.note(error)
                await asyncio.sleep(REOPEN_S)

    def _assign(self, consumer: Consumer, name: str) -> None:
        consumer.add_answer_callback(partial(self._recorder.answered, name))
        consumer.assign(self.partitions)

    async def _move_back(self, consumer: Consumer, name: str, rng: random.Random) -> None:
        partition = rng.choice(self.partitions)
        position = await consumer.position(partition, REQUEST_MS)
        consumer.seek(partition, max(0, position - rng.randrange(1, MOVED_MAX)))
        self._recorder.moves(name, partition)

    async def _poll(self, consumer: Consumer, name: str) -> None:
        operation = self._recorder.begins_poll(name)
        try:
            found = await consumer.getmany(timeout_ms=POLL_MS)
            self._recorder.polled(operation, found)
            for record in itertools.chain.from_iterable(found.values()):
                self._check(name, record)
        except LogTruncated as error:  # nothing below a high watermark is ever truncated
            self._recorder.poll_failed(operation, error)
            self._find(f"{name}: {error}")
            if error.topic_partition is None:
                raise
            consumer.seek(error.topic_partition, error.divergent_offset or 0)
            self._recorder.moves(name, error.topic_partition)
        except MinibrokerError as error:
            self._recorder.poll_failed(operation, error)
            raise

    def _check(self, reader: str, record: Record) -> None:
        """It is as one of these producers wrote it. The history tells records apart by the beginning of their values,
        and the audit sees the disks only. A value that no producer wrote is the history's matter."""
        text = name_of(record.value)
        if text in self._sent and (record.key, record.value, tuple(record.headers)) != (
            text.encode(),
            _value_of(text),
            (),
        ):
            place = f"{record.topic}-{record.partition} at {record.offset}"
            given = f"key {record.key!r:.60}, {len(record.value or b'')} bytes, headers {record.headers!r:.60}"
            self._find(f"{reader} read {text!r:.60} in {place} otherwise than it was written: {given}")

    def _find(self, what: str) -> None:
        if len(self.wrong) < WRONG_MAX:
            self.wrong.append(what)

    async def read_all(self, name: str) -> Mapping[str, int]:
        """The final phase: read every partition from its start to its end. Returns what is left to read, by partition,
        when no progress was made for a while; empty if all was read."""
        async with self._cluster.consumer(client_id=name, **SETTINGS) as consumer:
            self._assign(consumer, name)
            ends = await consumer.end_offsets(self.partitions)
            while left := await _left(consumer, ends):
                before = sum(left.values())
                for _ in range(10):
                    await self._poll(consumer, name)
                if sum((await _left(consumer, ends)).values()) == before:
                    return left
        return {}


def _value_of(text: str) -> bytes:
    return text.ljust(VALUE_BYTES, PADDING).encode()


async def _left(consumer: Consumer, ends: Mapping[TopicPartition, int]) -> dict[str, int]:
    positions = [(partition, await consumer.position(partition)) for partition in sorted(ends)]
    return {str(partition): ends[partition] - at for partition, at in positions if at < ends[partition]}


async def _closed(producer: Any) -> None:
    """What it could not deliver is in the history."""
    with contextlib.suppress(MinibrokerError):
        await producer.close(timeout_ms=1_000)
