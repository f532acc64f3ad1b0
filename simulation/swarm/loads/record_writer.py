"""A user that writes records of every form: `send`, `try_send`, `send_many`, `flush`, one producer after the other.

Owns: the draw of producers, records and calls. Leaves to others: the checks of what the calls returned
(`watched_producer`).
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

from minibroker.client.errors import BufferTimedOut, MinibrokerError, RecordTooLarge, UnknownTopicOrPartition
from minibroker.client.producer.partitioner import murmur2_partitioner
from minibroker.simulation.swarm.loads.impatience import Impatience
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.parcels import unpack
from minibroker.simulation.swarm.loads.watched_producer import PARTITION_UNKNOWN, DrawnRecord, WatchedProducer
from minibroker.simulation.swarm.loads.written_records import NAME_HEADER

PAUSE_SECONDS_MAX = 1.0
CALLS_MAX = 12
SENDS_MAX = 10
MANY_MAX = 100
MANY_BYTES_MAX = 32 * 1024
VALUE_BYTES = (0, 1, 10, 60, 200, 400, 900, 1_100, 2_000, 9_000)
NO_VALUE_SHARE = 0.1
TIMESTAMPS_MS = (0, 1, 2**62)
"""Rare, far from the present."""
HOUR_MS = 3_600_000


def by_key_length(key: bytes, partition_count: int) -> int:
    """A partitioner of a user."""
    return len(key) % partition_count


def by_last_byte(key: bytes, partition_count: int) -> int:
    """Another one; it gives equal keys of different topics different partitions."""
    return (key[-1] if key else 0) % partition_count


PARTITIONERS = (murmur2_partitioner, by_key_length, by_last_byte)


class RecordWriter:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng
        self._producers = 0
        self._records = 0
        self._impatience = Impatience(scene, "record writer")
        self._producer: WatchedProducer

    async def run(self) -> None:
        await self._scene.repeat("record writer", self._round, self._random, PAUSE_SECONDS_MAX, writes=True)

    async def _round(self) -> None:
        rng, scene = self._random, self._scene
        self._producers += 1
        settings = self._draw_settings()
        async with WatchedProducer(scene, f"writer-{self._producers}", rng.random() < 0.7, settings) as self._producer:
            for _ in range(rng.randint(1, CALLS_MAX)):
                await self._until_writable()
                if scene.is_over:
                    return
                call = rng.choice(self._calls())
                try:
                    await self._impatience.call(call)
                except (BufferTimedOut, RecordTooLarge) as error:  # judged by the watched producer
                    scene.history.note_error("record writer", error)
                await asyncio.sleep(rng.choice((0.0, 0.0, 0.01, 0.1)))

    async def _until_writable(self) -> None:
        """A user who pauses flushes first: the history learns which sends have an outcome (seed 17510123)."""
        if self._scene.is_paused:
            await self._producer.flush()
        await self._scene.until_writable()

    def _draw_settings(self) -> dict[str, Any]:
        rng = self._random
        acks, is_idempotent = rng.choice((("all", True), ("all", True), ("all", False), (1, False), (0, False)))
        delivery_ms = rng.choice((1_500, 4_000, 8_000))
        request_bytes = int(self._scene.settings.get("socket.request.max.bytes", 1_048_576)) // 2
        return {
            "acks": acks,
            "enable_idempotence": is_idempotent,
            "linger_ms": rng.choice((0, 1, 20, 200)),
            "batch_size": rng.choice((1_024, 4_096, 16_384, 131_072)),
            "max_in_flight_requests_per_connection": rng.choice((1, 2, 5)),
            "delivery_timeout_ms": delivery_ms,
            "request_timeout_ms": min(delivery_ms, 1_000),
            "max_block_ms": rng.choice((300, 2_000)),
            "buffer_memory": rng.choice((4_096, 16_384, 262_144)),
            "max_request_size": min(request_bytes, rng.choice((1_024, 8_192, 1_048_576))),
            "metadata_max_age_ms": rng.choice((500, 300_000)),
            "partitioner": rng.choice(PARTITIONERS),
            "key_serializer": rng.choice((None, None, unpack)),
            "value_serializer": rng.choice((None, None, unpack)),
        }

    # ------------------------------------------------------------------------------------------------------- calls
    def _calls(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        sending = (self._send, self._send, self._try_send, self._send_many, self._send_many)
        return (*sending, self._flush, self._nowhere, self._ask_for_partitions)

    async def _send(self) -> None:
        for _ in range(self._random.randint(1, SENDS_MAX)):
            await self._until_writable()
            await self._producer.send(self._draw_record())

    async def _try_send(self) -> None:
        for _ in range(self._random.randint(1, SENDS_MAX)):
            await self._until_writable()
            record = self._draw_record()
            if not self._producer.try_send(record):
                await self._producer.send(record)

    async def _send_many(self) -> None:
        rng, topic = self._random, self._draw_topic()
        size = rng.choice(VALUE_BYTES)
        count = min(rng.randint(1, MANY_MAX), MANY_BYTES_MAX // max(size, 32))
        is_keyed = rng.random() < 0.5
        records = [self._draw_one_of_many(topic, size, is_keyed) for _ in range(count)]
        partition = self._draw_partition(topic) if rng.random() < 0.3 else None
        headers = (("source", b"many"),) if rng.random() < 0.3 else ()
        await self._producer.send_many(topic, records, partition, headers, self._draw_timestamp())

    async def _flush(self) -> None:
        await self._producer.flush()

    async def _ask_for_partitions(self) -> None:
        await self._producer.check_partitions(self._draw_topic())

    async def _nowhere(self) -> None:
        """A partition that does not exist must be refused, and nothing be taken."""
        record = self._draw_record()
        record.partition = PARTITION_UNKNOWN
        try:
            await self._producer.send(record)
        except UnknownTopicOrPartition:
            self._scene.did("record to no partition refused")
        except MinibrokerError as error:
            self._scene.history.note_error("record writer", error)

    # ----------------------------------------------------------------------------------------------------- records
    def _draw_topic(self) -> str:
        return self._random.choice(self._scene.partitions).topic

    def _draw_partition(self, topic: str) -> int:
        return self._random.choice([each.partition for each in self._scene.partitions if each.topic == topic])

    def _draw_timestamp(self) -> int | None:
        rng = self._random
        if rng.random() < 0.6:
            return None
        if rng.random() < 0.1:
            return rng.choice(TIMESTAMPS_MS)
        return self._producer.now_ms() + rng.randint(-HOUR_MS, HOUR_MS)

    def _name(self) -> str:
        self._records += 1
        return f"{self._producer.prefix}-{self._records}-"

    def _draw_record(self) -> DrawnRecord:
        rng, name, topic = self._random, self._name(), self._draw_topic()
        value: bytes | None = name.encode().ljust(rng.choice(VALUE_BYTES), b".")
        headers: list[tuple[str, bytes | None]] = []
        if rng.random() < 0.2:  # a value that does not name the record
            value = None if rng.random() < NO_VALUE_SHARE else b"." * rng.choice(VALUE_BYTES[:3])
            headers.append((NAME_HEADER, name.encode()))
        if rng.random() < 0.2:
            headers += [("nothing", None), ("grün", bytes(range(256))[: rng.choice((0, 1, 256))])]
        return DrawnRecord(
            name=name,
            topic=topic,
            value=value,
            key=rng.choice((None, None, b"", b"key-%d" % rng.randrange(8))),
            partition=self._draw_partition(topic) if rng.random() < 0.4 else None,
            headers=tuple(headers),
            timestamp_ms=self._draw_timestamp(),
        )

    def _draw_one_of_many(self, topic: str, size: int, is_keyed: bool) -> DrawnRecord:
        """Records of one call have the same headers, so a short value needs a key that names the record."""
        name = self._name()
        value, key = name.encode().ljust(size, b"."), b"key-%d" % self._random.randrange(8) if is_keyed else None
        if is_keyed and size < len(name):
            value, key = b"", name.encode()
        return DrawnRecord(name=name, topic=topic, value=value, key=key)
