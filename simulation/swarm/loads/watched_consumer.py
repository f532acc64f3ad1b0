"""A consumer whose every call is checked against what docs/CLIENT.md promises, and noted in the history.

Owns: those checks. Records come in order from the position on, without a gap that retention does not explain;
`position` is where the next record will be read; a paused partition returns nothing; an end is not below what was read
before; answers to fetches tell of each record that is read. Leaves to others: which call comes next (`record_reader`),
and judging look-ups by time (`time_lookups`).
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Self

from msgspec.structs import replace

from minibroker.client.consumer.fetch_answer import FetchAnswer
from minibroker.client.consumer.records import Record, RecordBatch
from minibroker.client.errors import CallTimedOut, LogTruncated, UndeserializableRecord
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.parcels import ContentRefused, Parcel

CALL_MS = 2_000


class WatchedConsumer:
    """One consumer of these partitions."""

    def __init__(self, scene: LoadScene, name: str, partitions: Sequence[TopicPartition], settings: dict[str, Any]):
        self._scene = scene
        self._process = name
        self._settings = settings
        self.partitions = list(partitions)
        self._consumer = scene.consumer(**settings)
        self._next: dict[TopicPartition, int] = {}
        """Where each partition goes on; not known after an open or a failed seek."""
        self._paused: set[TopicPartition] = set()
        self._held: list[Mapping[TopicPartition, Sequence[Record]]] | None = None
        """What tasks that read at the same time have got: each got what came next, and any may tell of it first."""
        self._returned = 0
        """Records that this consumer got."""
        self._told_ends: dict[TopicPartition, int] = {}
        """The highest end of an answer to a fetch."""
        self._ends: dict[TopicPartition, int] = {}
        """The highest end that this consumer was told."""
        self.last_read_ms: dict[TopicPartition, int] = {}
        """Timestamp of the last record read of each partition."""

    async def __aenter__(self) -> Self:
        await self._consumer.start()
        self._consumer.assign(self.partitions)
        self._consumer.add_answer_callback(self._told)
        return self

    def _told(self, answer: FetchAnswer) -> None:
        """What an answer brings is below its own high watermark; nothing is returned before it was told."""
        partition, end = answer.topic_partition, answer.end_offset
        if partition not in self.partitions:
            self._scene.find("FetchAnswer", f"it is of {partition}, which is not assigned", partition)
        if end < answer.base_offset or (end > answer.base_offset and end > answer.high_watermark):
            self._scene.find("FetchAnswer", f"{self._process} was told of impossible offsets: {answer}", partition)
        self._told_ends[partition] = max(end, self._told_ends.get(partition, 0))
        self._scene.did("FetchAnswer")

    async def __aexit__(self, *error: object) -> None:
        await self._consumer.close()

    # ------------------------------------------------------------------------------------------------------- reading
    async def getmany(self, partitions: Sequence[TopicPartition], max_records: int | None) -> None:
        found = await self._consumer.getmany(*partitions, timeout_ms=CALL_MS / 4, max_records=max_records)
        limit = self._settings["max_poll_records"] if max_records is None else max_records
        count = sum(map(len, found.values()))
        if count > limit:
            self._scene.find("getmany", f"{count} records came where at most {limit} were asked for")
        for other in sorted(found.keys() - set(partitions or found)):
            self._scene.find("getmany", f"records of {other} came, which was not asked for", other)
        self._read(found)
        self._scene.did("getmany")

    async def getone(self) -> None:
        try:
            record = await self._consumer.getone(timeout_ms=CALL_MS / 4)
        except CallTimedOut:
            return
        self._read({TopicPartition(record.topic, record.partition): [record]})
        self._scene.did("getone")

    async def iterate(self, records: int) -> None:
        """`async for`, until so many records have come. Cancel it to end it earlier."""
        async for record in self._consumer:
            self._read({TopicPartition(record.topic, record.partition): [record]})
            self._scene.did("async for")
            records -= 1
            if records <= 0:
                return

    async def getmany_batches(self) -> None:
        found = await self._consumer.getmany_batches(timeout_ms=CALL_MS / 4, max_bytes=8_192)
        for batch in found:
            self._read({batch.topic_partition: records_of(batch)}, is_whole=False)
            if len(batch) == 0:
                self._scene.find("getmany_batches", "a batch without records came", batch.topic_partition)
            self._scene.did("getmany_batches")
        self._scene.history.moves(self._process)  # records without headers are not noted

    async def read_together(self, *calls: Coroutine[Any, Any, None]) -> None:
        """Each record goes to one of these calls, and none is left out. Raises the first of their errors."""
        self._held = []
        ended = await asyncio.gather(*calls, return_exceptions=True)
        held, self._held = self._held, None
        together: dict[TopicPartition, list[Record]] = {}
        for found in held:
            for partition, records in found.items():
                together.setdefault(partition, []).extend(records)
        self._read({each: sorted(records, key=lambda one: one.offset) for each, records in together.items()})
        self._scene.did("two tasks that read")
        for error in ended:
            if isinstance(error, BaseException):
                raise error

    def _read(self, found: Mapping[TopicPartition, Sequence[Record]], is_whole: bool = True) -> None:
        """`is_whole`: whether the call returns headers, too, so that records can be compared with what was written, and
        objects of the drawn deserializers."""
        if self._held is not None:
            self._held.append(found)
            return
        history = self._scene.history
        self._returned += sum(map(len, found.values()))
        if is_whole:
            found = {partition: [self._unpacked(each) for each in records] for partition, records in found.items()}
        if is_whole:
            history.polls(self._process, found)
        for partition, records in found.items():
            if partition in self._paused:
                self._scene.find("pause", f"records of {partition} came while it was paused", partition)
            for record in records:
                self._check_place(partition, record.offset)
                if record.offset >= self._told_ends.get(partition, 0):
                    self._scene.find("FetchAnswer", f"none told of offset {record.offset}, which was read", partition)
                self._next[partition] = record.offset + 1
                self.last_read_ms[partition] = record.timestamp_ms
                history.reads(partition, record.offset, record.value)
            if records:
                self._check_high_watermark(partition, records[-1].offset)

    def _unpacked(self, record: Record) -> Record:
        for name, content in (("key", record.key), ("value", record.value)):
            is_packed, is_wanted = isinstance(content, Parcel), self._settings.get(f"{name}_deserializer") is not None
            if is_packed != (is_wanted and content is not None):
                self._scene.find(f"{name}_deserializer", f"{self._process} got {content!r:.60} as {name}")
            elif is_packed:
                record = replace(record, **{name: content.content})
        return record

    def refused(self, error: UndeserializableRecord) -> None:
        """The drawn deserializer refused this record; every one before it was returned. Read on behind it."""
        record = error.record
        partition = TopicPartition(record.topic, record.partition)
        self._check_place(partition, record.offset)
        if not isinstance(error.__cause__, ContentRefused):
            self._scene.find("value_deserializer", f"{record.offset} was not refused: {error}", partition)
        self.seek(partition, record.offset + 1)
        self._scene.did("UndeserializableRecord")

    def _check_high_watermark(self, partition: TopicPartition, offset: int) -> None:
        """What was read is below the high watermark of its fetch. A later fetch from a new leader, which may not know
        yet how far its predecessor had committed, says less."""
        told = self._consumer.highwater(partition)
        if told is None or (told <= offset and self._scene.had_one_leadership(partition)):
            self._scene.find("highwater", f"offset {offset} was read, and the high watermark is {told}", partition)

    def _check_place(self, partition: TopicPartition, offset: int) -> None:
        wanted = self._next.get(partition)
        if wanted is None or offset == wanted or (offset > wanted and self._may_skip_to(partition, offset)):
            return
        self._scene.find("order", f"{self._process} got offset {offset} where {wanted} was next", partition)

    def _may_skip_to(self, partition: TopicPartition, offset: int) -> bool:
        """Retention took what it waited for. Then some go on at the log's end, and miss more than that."""
        if self._settings["auto_offset_reset"] == "latest":
            return self._scene.deletes(partition.topic)
        return offset <= self._scene.deleted_below(partition)

    def truncated(self, error: LogTruncated) -> None:
        """Nothing that was below a high watermark is ever truncated."""
        self._scene.find("LogTruncated", f"{self._process} {self._settings['on_truncation']}: {error}")

    # ------------------------------------------------------------------------------------------------------- position
    async def check_position(self, partition: TopicPartition) -> None:
        found, wanted = await self._consumer.position(partition, CALL_MS), self._next.get(partition)
        if wanted is not None and found != wanted and not (found > wanted and self._may_skip_to(partition, found)):
            self._scene.find("position", f"position() is {found} where {wanted} is next", partition)
        self._next[partition] = found
        self._scene.did("position")

    def seek(self, partition: TopicPartition, offset: int) -> None:
        self._consumer.seek(partition, offset)
        self._moved(partition, offset)
        self._scene.did("seek")

    def _moved(self, partition: TopicPartition, offset: int | None) -> None:
        self._scene.history.moves(self._process)
        if offset is None:
            self._next.pop(partition, None)
        else:
            self._next[partition] = offset

    async def seek_to_beginning(self, partition: TopicPartition) -> None:
        self._moved(partition, None)
        await self._consumer.seek_to_beginning(partition, timeout_ms=CALL_MS)
        found = await self._consumer.position(partition, CALL_MS)
        if found > self._scene.deleted_below(partition):
            self._scene.find("seek_to_beginning", f"{found} is behind the log's beginning", partition)
        self._next[partition] = found
        self._scene.did("seek_to_beginning")

    async def seek_to_end(self, partition: TopicPartition) -> None:
        self._moved(partition, None)
        least = self._least_end(partition)
        await self._consumer.seek_to_end(partition, timeout_ms=CALL_MS)
        found = await self._consumer.position(partition, CALL_MS)
        self._check_end(partition, found, least, "seek_to_end")
        self._next[partition] = found
        self._scene.did("seek_to_end")

    async def end(self, partition: TopicPartition) -> int:
        """Its end, by `end_offsets`."""
        least = self._least_end(partition)
        found = (await self._consumer.end_offsets([partition], CALL_MS))[partition]
        self._check_end(partition, found, least, "end_offsets")
        self._scene.did("end_offsets")
        return found

    def _least_end(self, partition: TopicPartition) -> int:
        """What this consumer has read, or was told, is below the end. What other clients know need not be: a leader
        that does not know yet that it was replaced answers consumers whose metadata is as old."""
        return max(self._ends.get(partition, 0), self._next.get(partition, 0))

    def _check_end(self, partition: TopicPartition, found: int, least: int, call: str) -> None:
        if found < least:
            self._scene.find(call, f"the end is {found}, and offset {least - 1} was committed before", partition)
        self._ends[partition] = max(found, self._ends.get(partition, 0))

    async def check_state(self, partition: TopicPartition) -> None:
        """What the consumer says of itself: its assignment, the partition's topic, and why no records come."""
        if self._consumer.assignment() != sorted(self.partitions):
            text = f"{self._consumer.assignment()} where {sorted(self.partitions)} were assigned"
            self._scene.find("assignment", text, partition)
        count = self._scene.shapes[partition.topic][0]
        found = await self._consumer.partitions_for(partition.topic, CALL_MS)
        if found != list(range(count)):
            self._scene.find("partitions_for", f"{partition.topic} has {count} partitions, not {found}")
        if self._consumer.paused() != sorted(self._paused):
            self._scene.find("paused", f"{self._consumer.paused()} where {sorted(self._paused)} are paused", partition)
        metrics = self._consumer.metrics()
        if metrics.records_read < self._returned or any((lag or 0) < 0 for lag in metrics.lag.values()):
            self._scene.find("metrics", f"{self._returned} records were returned, and they say {metrics}", partition)
        state = self._consumer.connection_state(partition)
        if state.state != "halted" and (state.state == "paused") != (partition in self._paused):
            self._scene.find("connection_state", f"it says {state}", partition, f"paused: {sorted(self._paused)}")
        known = state.leader is None or state.leader_epoch is None
        if not known and not self._scene.reference.has_led(partition, state.leader, state.leader_epoch or 0):
            self._scene.find("connection_state", f"such a leader never was: {state}", partition)
        self._scene.did("connection_state")

    async def beginning(self, partition: TopicPartition) -> int:
        """Its beginning, by `beginning_offsets`."""
        found = (await self._consumer.beginning_offsets([partition], CALL_MS))[partition]
        if found > self._scene.deleted_below(partition):
            self._scene.find("beginning_offsets", f"{found} is behind the log's beginning", partition)
        return found

    async def look_up(self, partition: TopicPartition, timestamp_ms: int) -> int | None:
        """The offset of the first record that is not older, by `offsets_for_times`."""
        beginning = await self.beginning(partition)
        end = await self.end(partition)
        found = (await self._consumer.offsets_for_times({partition: timestamp_ms}, CALL_MS))[partition]
        offset = None if found is None else found.offset
        told_ms = None if found is None else found.timestamp_ms
        self._scene.history.lookups.add(partition, timestamp_ms, beginning, end, offset, told_ms)
        self._scene.did("offsets_for_times")
        return offset

    # ---------------------------------------------------------------------------------------------------------- pause
    def pause(self, partition: TopicPartition) -> None:
        self._consumer.pause(partition)
        self._paused.add(partition)
        self._scene.did("pause")

    def resume(self, partition: TopicPartition) -> None:
        self._consumer.resume(partition)
        self._paused.discard(partition)


def records_of(batch: RecordBatch) -> list[Record]:
    """The columns of a batch as records, without headers."""
    topic, partition = batch.topic_partition
    columns = enumerate(zip(batch.keys, batch.values, batch.timestamps_ms, strict=True))
    return [
        Record(topic, partition, batch.base_offset + place, batch.leader_epoch, timestamp_ms, key, value)
        for place, (key, value, timestamp_ms) in columns
    ]
