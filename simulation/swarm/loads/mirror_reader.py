"""A reader that keeps what it reads, and takes back what it is told is truncated: in the end it must hold the log.

Owns: that copy, and the checks of `LogTruncated` and of `on_truncation="reset"`. Used beyond the promise, because only
there a log loses what was read. Leaves to others: the losses themselves (`beyond`).
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.records import Record
from minibroker.client.errors import LogTruncated, MinibrokerError
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History

CALL_MS = 500
PAUSE_SECONDS = 0.1
READ_SECONDS = 40
READER_ACTS = ("reader told of a truncation", "reader set back")
"""What such readers must have met in a swarm of runs beyond the promise."""


class MirrorReader:
    """One consumer of these partitions. `run` as a task, then `finish`."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        history: History,
        partitions: Sequence[TopicPartition],
        on_truncation: Literal["raise", "reset"],
        seen: Counter[str],
    ) -> None:
        """`seen` counts READER_ACTS."""
        self.held: dict[TopicPartition, dict[int, bytes | None]] = {each: {} for each in partitions}
        self._is_reset = on_truncation == "reset"
        self._history = history
        self._seen = seen
        self._stop = asyncio.Event()
        self._ends: Mapping[TopicPartition, int] = {}
        self._consumer = Consumer(
            bootstrap_servers=cluster.bootstrap_servers,
            auto_offset_reset="earliest",
            on_truncation=on_truncation,
            metadata_max_age_ms=CALL_MS,
            runtime=cluster.client_runtime(),
        )

    async def run(self) -> None:
        """Read until everything below the ends that `finish` sets was read."""
        async with self._consumer as consumer:
            consumer.assign(list(self.held))
            while not self._is_done():
                try:
                    self._take(await consumer.getmany(timeout_ms=CALL_MS))
                except LogTruncated as error:
                    await self._told(error)
                except MinibrokerError as error:
                    self._history.note_error("mirror reader", error)
                    await asyncio.sleep(PAUSE_SECONDS)

    async def finish(self, working: "asyncio.Task[None]", ends: Mapping[TopicPartition, int]) -> None:
        """Wait for `run` to read up to these ends."""
        self._ends = ends
        self._stop.set()
        try:
            async with asyncio.timeout(READ_SECONDS):
                await working
        except TimeoutError:
            held = {str(each): len(records) for each, records in self.held.items()}
            self._find("it does not read to the end", None, f"it holds {held} records of {ends}")

    def compare(self, partition: TopicPartition, log: Mapping[int, bytes | None]) -> None:
        """Each record of the log is held, and nothing else."""
        held = self.held[partition]
        for offset in sorted(held.keys() | log.keys()):
            if offset not in held or offset not in log or held[offset] != log[offset]:
                facts = (f"it holds {held.get(offset)!r:.60}", f"the log holds {log.get(offset)!r:.60}")
                self._find(f"it was never told that offset {offset} is another", partition, *facts)
                return

    def _is_done(self) -> bool:
        return self._stop.is_set() and all(self._next(each) >= self._ends.get(each, 0) for each in self.held)

    def _next(self, partition: TopicPartition) -> int:
        return max(self.held[partition], default=-1) + 1

    def _take(self, found: Mapping[TopicPartition, Sequence[Record]]) -> None:
        for partition, records in found.items():
            for record in records:
                self._take_one(partition, record.offset, record.value)

    def _take_one(self, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        wanted = self._next(partition)
        if offset < wanted and self._is_reset:
            self._forget_from(partition, offset)
            self._seen["reader set back"] += 1
        elif offset != wanted:
            self._find(f"it got offset {offset} where {wanted} was next", partition)
            self._forget_from(partition, offset)
        self.held[partition][offset] = value

    def _forget_from(self, partition: TopicPartition, offset: int) -> None:
        self.held[partition] = {each: value for each, value in self.held[partition].items() if each < offset}

    async def _told(self, error: LogTruncated) -> None:
        partition = error.topic_partition
        assert partition is not None
        self._seen["reader told of a truncation"] += 1
        if self._is_reset and error.divergent_offset is not None:
            self._find(f"on_truncation=reset, and it is told of {error.divergent_offset}", partition)
        if error.divergent_offset is None:
            self._forget_from(partition, 0)
            await self._consumer.seek_to_beginning(partition)
            return
        if error.divergent_offset >= self._next(partition):
            self._find(f"offset {error.divergent_offset} is not below {self._next(partition)}", partition)
        await self._look_whether_it_stays(partition)
        self._forget_from(partition, error.divergent_offset)
        self._consumer.seek(partition, error.divergent_offset)

    async def _look_whether_it_stays(self, partition: TopicPartition) -> None:
        """Until it seeks, this partition gives nothing more."""
        try:
            found = await self._consumer.getmany(partition, timeout_ms=CALL_MS)
        except MinibrokerError:
            return
        if found.get(partition):
            self._find("records came after a truncation, before it sought", partition)

    def _find(self, text: str, partition: TopicPartition | None, *facts: str) -> None:
        mode = "reset" if self._is_reset else "raise"
        self._history.find("client: LogTruncated", f"reader with on_truncation={mode}: {text}", partition, *facts)
