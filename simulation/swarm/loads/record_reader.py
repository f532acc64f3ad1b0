"""A user that reads in every way: `async for`, getone, getmany, batches; seeks, pauses, asks for positions and times.

Owns: the draw of consumers and calls, one consumer after the other. Leaves to others: the checks (`watched_consumer`).
"""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

from minibroker.client.errors import LogTruncated, OffsetOutOfRange, UndeserializableRecord
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.loads.impatience import Impatience
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.parcels import pack, pack_most
from minibroker.simulation.swarm.loads.watched_consumer import WatchedConsumer

PAUSE_SECONDS_MAX = 1.0
CALLS_MAX = 30
ITERATION_SECONDS = 0.5
ITERATED_MAX = 100
HOUR_MS = 3_600_000


class SeekingReader:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, scene: LoadScene, rng: random.Random) -> None:
        self._scene = scene
        self._random = rng
        self._consumers = 0
        self._impatience = Impatience(scene, "record reader")
        self._consumer: WatchedConsumer

    async def run(self) -> None:
        await self._scene.repeat("record reader", self._round, self._random, PAUSE_SECONDS_MAX)

    async def _round(self) -> None:
        rng, scene = self._random, self._scene
        self._consumers += 1
        partitions = rng.sample(scene.all_partitions, rng.randint(1, len(scene.all_partitions)))
        settings = self._draw_settings()
        async with WatchedConsumer(scene, f"load-reader-{self._consumers}", partitions, settings) as self._consumer:
            if settings["auto_offset_reset"] == "none":
                for partition in tuple(self._consumer.partitions):
                    self._consumer.seek(partition, await self._consumer.beginning(partition))
            for _ in range(rng.randint(1, CALLS_MAX)):
                if scene.is_over:
                    return
                await self._call()

    async def _call(self) -> None:
        """One call; an error ends the round, unless it is one that a seek ends."""
        try:
            call = self._random.choice(self._calls())
            await (call() if call in self._calls_by_tasks() else self._impatience.call(call))
        except LogTruncated as error:
            self._consumer.truncated(error)
            raise
        except UndeserializableRecord as error:
            self._consumer.refused(error)
        except OffsetOutOfRange as error:
            partition = error.topic_partition
            if partition is None or not self._scene.deletes(partition.topic):
                self._scene.find("OffsetOutOfRange", f"nothing is deleted: {error}", partition)
                raise
            self._consumer.seek(partition, await self._consumer.beginning(partition))

    def _draw_settings(self) -> dict[str, Any]:
        rng = self._random
        return {
            "auto_offset_reset": rng.choice(("earliest", "earliest", "latest", "none")),
            "on_truncation": rng.choice(("raise", "reset")),
            "on_undecodable": rng.choice(("raise", "skip")),
            "fetch_max_wait_ms": rng.choice((0, 50, 500, 1_500)),
            "fetch_min_bytes": rng.choice((1, 1, 2_000, 100_000)),
            "fetch_max_bytes": rng.choice((1, 4_096, 52_428_800)),
            "max_partition_fetch_bytes": rng.choice((1, 1_024, 1_048_576)),
            "max_poll_records": rng.choice((1, 7, 500)),
            "key_deserializer": rng.choice((None, None, pack)),
            "value_deserializer": rng.choice((None, None, pack, pack_most)),
            "check_crcs": rng.random() < 0.8,
            "isolation_level": rng.choice(("read_uncommitted", "read_committed")),
            "request_timeout_ms": rng.choice((2_000, 5_000)),
            "metadata_max_age_ms": rng.choice((500, 300_000)),
        }

    # ---------------------------------------------------------------------------------------------------------- calls
    def _calls(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        reading = (self._getmany, self._getmany, self._getmany_batches, self._getone, self._iterate)
        moving = (self._seek, self._seek_to_beginning, self._seek_to_end, self._look_up)
        return (*reading, *reading, *moving, self._position, self._check_state, self._pause, *self._calls_by_tasks())

    def _calls_by_tasks(self) -> tuple[Callable[[], Awaitable[None]], ...]:
        """A call that is cancelled would leave their tasks."""
        return self._seek_during_a_call, self._read_in_two_tasks

    def _partition(self) -> TopicPartition:
        return self._random.choice(self._consumer.partitions)

    async def _getmany(self) -> None:
        rng = self._random
        partitions = rng.sample(self._consumer.partitions, 1) if rng.random() < 0.3 else []
        await self._consumer.getmany(partitions, rng.choice((None, 1, 10, 1_000)))

    async def _getmany_batches(self) -> None:
        await self._consumer.getmany_batches()

    async def _getone(self) -> None:
        for _ in range(self._random.randint(1, 5)):
            await self._consumer.getone()

    async def _iterate(self) -> None:
        try:
            async with asyncio.timeout(ITERATION_SECONDS):
                await self._consumer.iterate(self._random.randint(1, ITERATED_MAX))
        except TimeoutError:  # too few records came
            pass

    async def _position(self) -> None:
        await self._consumer.check_position(self._partition())

    async def _check_state(self) -> None:
        await self._consumer.check_state(self._partition())

    async def _seek(self) -> None:
        partition = self._partition()
        beginning, end = await self._consumer.beginning(partition), await self._consumer.end(partition)
        self._consumer.seek(partition, self._random.randint(min(beginning, end), end))

    async def _seek_during_a_call(self) -> None:
        """As a program with several tasks does."""
        rng, partition = self._random, self._partition()
        beginning, end = await self._consumer.beginning(partition), await self._consumer.end(partition)
        calls = (self._getmany, self._getone, self._position)
        call = asyncio.ensure_future(rng.choice(calls)())
        await asyncio.sleep(rng.choice((0.0, 0.001, 0.05)))
        self._consumer.seek(partition, rng.randint(min(beginning, end), end))
        with contextlib.suppress(UndeserializableRecord):  # perhaps of before the seek; else it comes again
            await call
        self._scene.did("seek during a call")

    async def _read_in_two_tasks(self) -> None:
        rng = self._random
        calls = [rng.choice((self._getmany, self._getone)) for _ in range(2)]
        await self._consumer.read_together(*(self._impatience.call(call) for call in calls))

    async def _seek_to_beginning(self) -> None:
        await self._consumer.seek_to_beginning(self._partition())

    async def _seek_to_end(self) -> None:
        await self._consumer.seek_to_end(self._partition())

    async def _look_up(self) -> None:
        """Ask for the first record since some time, and go on there."""
        rng, partition = self._random, self._partition()
        now_ms = self._scene.cluster.client_runtime().clock.now_ms()
        known_ms = self._consumer.last_read_ms.get(partition, now_ms)
        guessed_ms = (now_ms, now_ms - rng.randint(0, HOUR_MS), now_ms - rng.randint(0, 8_000))
        asked_ms = rng.choice((0, *guessed_ms, known_ms, known_ms, 2**61))
        offset = await self._consumer.look_up(partition, asked_ms)
        if offset is not None:
            self._consumer.seek(partition, offset)

    async def _pause(self) -> None:
        partition = self._partition()
        self._consumer.pause(partition)
        await self._consumer.check_state(partition)
        for _ in range(self._random.randint(1, 3)):
            await self._getmany()
        self._consumer.resume(partition)
