"""Reads partitions through the public Consumer until an end, or for ever: for `consume` and similar commands.

Owns: which partitions, from where, until when, and how long leaders may stay silent. Nothing is read from the end on,
even if it comes in the same batch. Leaves to others: printing.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Iterable

import msgspec

from minibroker.client.consumer.connection_state import ConnectionState
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.records import Record, RecordBatch
from minibroker.client.errors import CallTimedOut, InvalidCall
from minibroker.protocol.ids import TopicPartition
from minibroker.records.starting_point import StartingPoint, StartKind, find_offsets

POLL_MS = 500


class RecordReader:
    """Reads some partitions of topics once. `start` it, then use `batches` or `records`."""

    def __init__(
        self,
        consumer: Consumer,
        topics: Iterable[str],
        partitions: Iterable[int],
        begin: StartingPoint,
        timeout_ms: int,
        *,
        end: StartingPoint | None = None,
        until_end: bool = False,
    ) -> None:
        """`until_end`: until the ends as they are when reading begins; with `end` at most to there, too."""
        self._consumer = consumer
        self._topics = list(topics)
        self._wanted = list(partitions)
        self._begin, self._end = begin, end
        self._until_end = until_end or end is not None
        self._timeout_ms = timeout_ms
        self.ends: dict[TopicPartition, int] = {}
        """Where reading ends in each partition that has something to read by then; empty if it goes on for ever."""
        self.beyond: dict[TopicPartition, int] = {}
        """Partitions that end before the offset where reading should begin, with their ends."""
        self.partitions: list[TopicPartition] = []
        self._silent_since: dict[TopicPartition, float] = {}
        """Since when each unhealthy partition has been so."""
        self._look_again_at = 0.0

    async def start(self) -> None:
        """Find the partitions and seek to where reading begins. Raises MinibrokerError."""
        self.partitions = [each for topic in self._topics for each in await self._partitions_of(topic)]
        ends = await self._consumer.end_offsets(self.partitions, self._timeout_ms)
        begins = await self._find(self._begin, ends)
        await self._refuse_outside(begins, ends)
        if self._until_end:
            bounds = ends if self._end is None else await self._find(self._end, ends)
            ends = {each: min(bounds[each], ends[each]) for each in ends}
            self.ends = {each: end for each, end in ends.items() if begins[each] < end}
        read = [*self.ends] if self._until_end else self.partitions
        self._consumer.assign(read)
        for partition in read:
            self._consumer.seek(partition, begins[partition])

    async def _find(self, point: StartingPoint, ends: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        return await find_offsets(self._consumer, point, self.partitions, ends, self._timeout_ms)

    async def _partitions_of(self, topic: str) -> list[TopicPartition]:
        known = await self._find_partitions(topic)
        missing = sorted(set(self._wanted) - set(known))
        if missing:
            raise InvalidCall(f"topic {topic!r} has no partition {missing[0]}: it has {known[0]} to {known[-1]}")
        return [TopicPartition(topic, index) for index in self._wanted or known]

    async def _find_partitions(self, topic: str) -> list[int]:
        try:
            return await self._consumer.partitions_for(topic, self._timeout_ms)
        except CallTimedOut as error:
            seconds = self._timeout_ms / 1000
            cure = f"check the name, or create it with `minibroker topic create -t {topic}`"
            raise CallTimedOut(f"topic {topic!r} was not found within {seconds:g} s: {cure}", error) from None

    async def _refuse_outside(self, begins: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> None:
        """Raise InvalidCall for a given offset that a log does not have. Where reading stops at the ends, it is enough
        if one partition has it."""
        if self._begin.start is not StartKind.OFFSET:
            return
        starts = await self._consumer.beginning_offsets(self.partitions, self._timeout_ms)
        for each in self.partitions:
            if begins[each] < starts[each]:
                raise InvalidCall(
                    f"{each} begins at offset {starts[each]}, because older records were deleted: begin there, or with"
                    " -o beginning"
                )
        self.beyond = {each: ends[each] for each in self.partitions if begins[each] > ends[each]}
        if self.beyond and not (self._until_end and len(self.beyond) < len(self.partitions)):
            partition, end = next(iter(self.beyond.items()))
            raise InvalidCall(
                f"{partition} has no offset {self._begin.number} yet: it ends at {end}; begin there, or with -o end"
            )

    async def batches(self) -> AsyncIterator[list[RecordBatch]]:
        """Record batches as they arrive, and an empty list when none came for POLL_MS, so that the caller can look at
        what else may end it; it stops when every end is reached."""
        left = dict(self.ends)
        while left or not self._until_end:
            batches = await self._consumer.getmany_batches(timeout_ms=POLL_MS)
            yield [some for batch in batches if len(some := self._before_end(batch))]
            await self._drop_ended(left)
            self._check_silence(left if self._until_end else self.partitions)

    async def records(self) -> AsyncIterator[list[Record]]:
        """The same, record by record."""
        left = dict(self.ends)
        while left or not self._until_end:
            found = await self._consumer.getmany(timeout_ms=POLL_MS, max_records=5_000)
            if not found:
                yield []
            for partition, records in found.items():
                end = self.ends.get(partition, math.inf)
                if some := records if records[-1].offset < end else [each for each in records if each.offset < end]:
                    yield some
            await self._drop_ended(left)
            self._check_silence(left if self._until_end else self.partitions)

    def _before_end(self, batch: RecordBatch) -> RecordBatch:
        count = self.ends.get(batch.topic_partition, math.inf) - batch.base_offset
        if count >= len(batch):
            return batch
        kept = slice(max(0, int(count)))
        keys, values, times = batch.keys[kept], batch.values[kept], batch.timestamps_ms[kept]
        return msgspec.structs.replace(batch, keys=keys, values=values, timestamps_ms=times)

    async def _drop_ended(self, left: dict[TopicPartition, int]) -> None:
        """A partition that has reached its end is not fetched any more. Its last records may have been skipped, so its
        position counts, not what it returned."""
        for partition, end in [*left.items()]:
            if await self._consumer.position(partition) >= end:
                del left[partition]
                self._consumer.pause(partition)

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
