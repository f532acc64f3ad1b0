"""Reads partitions through the public Consumer until an end, or for ever: for `consume` and similar commands.

Owns: which partitions, from where, until when, and how long leaders may stay silent. Leaves to others: printing.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable

from minibroker.client.consumer.connection_state import ConnectionState
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.records import Record, RecordBatch
from minibroker.client.errors import CallTimedOut, InvalidCall
from minibroker.protocol.ids import TopicPartition
from minibroker.records.starting_point import StartingPoint, find_offsets

POLL_MS = 500


class RecordReader:
    """Reads some partitions of a topic once. `start` it, then use `batches` or `records`."""

    def __init__(
        self, consumer: Consumer, topic: str, partitions: Iterable[int], point: StartingPoint, timeout_ms: int
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._wanted = list(partitions)
        self._point = point
        self._timeout_ms = timeout_ms
        self.ends: dict[TopicPartition, int] = {}
        """End offsets when the reading began: where `until_end` ends."""
        self.partitions: list[TopicPartition] = []
        self._silent_since: dict[TopicPartition, float] = {}
        """Since when each unhealthy partition has been so."""
        self._look_again_at = 0.0

    async def start(self) -> None:
        """Find the partitions and seek to where reading begins. Raises MinibrokerError."""
        known = await self._find_partitions()
        missing = sorted(set(self._wanted) - set(known))
        if missing:
            raise InvalidCall(f"topic {self._topic!r} has no partition {missing[0]}: it has {known[0]} to {known[-1]}")
        self.partitions = [TopicPartition(self._topic, index) for index in self._wanted or known]
        self.ends = await self._consumer.end_offsets(self.partitions, self._timeout_ms)
        offsets = await find_offsets(self._consumer, self._point, self.partitions, self.ends, self._timeout_ms)
        self._consumer.assign(self.partitions)
        for partition in self.partitions:
            self._consumer.seek(partition, offsets[partition])
        self._offsets = offsets

    async def _find_partitions(self) -> list[int]:
        try:
            return await self._consumer.partitions_for(self._topic, self._timeout_ms)
        except CallTimedOut as error:
            seconds = self._timeout_ms / 1000
            cure = f"check the name, or create it with `minibroker topic create -t {self._topic}`"
            raise CallTimedOut(f"topic {self._topic!r} was not found within {seconds:g} s: {cure}", error) from None

    async def batches(self, until_end: bool) -> AsyncIterator[list[RecordBatch]]:
        """Record batches as they arrive, and an empty list when none came for POLL_MS, so that the caller can look at
        what else may end it; with `until_end` it stops when every end is reached."""
        left = self._unread() if until_end else {}
        while left or not until_end:
            batches = await self._consumer.getmany_batches(timeout_ms=POLL_MS)
            yield batches
            for batch in batches:
                end = left.get(batch.topic_partition)
                if end is not None and batch.base_offset + len(batch) >= end:
                    del left[batch.topic_partition]
            self._check_silence(left if until_end else self.partitions)

    async def records(self, until_end: bool) -> AsyncIterator[list[Record]]:
        """The same, record by record."""
        left = self._unread() if until_end else {}
        while left or not until_end:
            found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=5_000)
            if not found:
                yield []
            for partition, records in found.items():
                yield records
                if partition in left and records[-1].offset + 1 >= left[partition]:
                    del left[partition]
            self._check_silence(left if until_end else self.partitions)

    def _unread(self) -> dict[TopicPartition, int]:
        return {partition: end for partition, end in self.ends.items() if self._offsets[partition] < end}

    def _check_silence(self, partitions: Iterable[TopicPartition]) -> None:
        """Give up on a partition if its leader does not answer, or answers only with errors, for longer than the time
        limit: records of other partitions would hide that it is missing. A leader without new data is fine."""
        now = asyncio.get_running_loop().time()
        if now < self._look_again_at:
            return
        self._look_again_at = now + POLL_MS / 1000
        for partition in partitions:
            state = self._consumer.connection_state(partition)
            if state.healthy:
                self._silent_since.pop(partition, None)
            elif now - self._silent_since.setdefault(partition, now) > self._timeout_ms / 1000:
                self._give_up(partition, state)

    def _give_up(self, partition: TopicPartition, state: ConnectionState) -> None:
        seconds = f"{self._timeout_ms / 1000:g} s"
        if state.state == "refused":
            raise CallTimedOut(f"{partition} gave only errors for {seconds}", state.error)
        raise CallTimedOut(f"no leader of {partition} has answered for {seconds}", state.error)
