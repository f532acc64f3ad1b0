"""The public consumer: reads records of assigned partitions, in order, below the high watermark.

Owns: the assignment, returning records, and the calls about offsets. Leaves to others: positions (`cursor`) and the
network (`fetcher`). There are no consumer groups: a consumer reads all partitions of its topics, or the assigned ones.
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Literal, Never, Self

from msgspec.structs import replace

from minibroker.client.caller_check import CallerCheck
from minibroker.client.client_log import ClientLog
from minibroker.client.cluster import Cluster
from minibroker.client.consumer.chunk_reader import ChunkReader
from minibroker.client.consumer.connection_state import ConnectionState, describe_connection
from minibroker.client.consumer.consumer_errors import UNREACHABLE_AFTER_MS, first_problem, raise_halted, raise_refused
from minibroker.client.consumer.consumer_metrics import ConsumerMetrics
from minibroker.client.consumer.consumer_settings import ConsumerSettings
from minibroker.client.consumer.cursor import Cursor
from minibroker.client.consumer.deserializing import Deserializer, Deserializers
from minibroker.client.consumer.fetcher import Fetcher
from minibroker.client.consumer.offset_queries import OffsetQueries
from minibroker.client.consumer.records import Record, RecordBatch, RecordTuple, to_columns, to_records
from minibroker.client.default_runtime import runtime_or_default
from minibroker.client.errors import (
    CallTimedOut,
    ClientClosed,
    CorruptRecords,
    InvalidCall,
    UndecodableRecords,
    UndeserializableRecord,
)
from minibroker.client.limits import (
    BOOTSTRAP_TIMEOUT_MS,
    CALL_TIMEOUT_MS,
    Deadline,
    as_partition,
    check_partition,
    check_topic,
    check_whole,
)
from minibroker.protocol.ids import Offset, TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from minibroker.runtime.ports import Runtime


class Consumer(OffsetQueries):
    """Reads records. Use it as `async with Consumer("topic", ...) as consumer: async for record in consumer: ...`.

    An instance belongs to one event loop, and one task at a time reads from it.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "minibroker-consumer",
        auto_offset_reset: Literal["earliest", "latest", "none"] = "latest",
        on_truncation: Literal["raise", "reset"] = "raise",
        on_undecodable: Literal["raise", "skip"] = "raise",
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        fetch_max_bytes: int = 52_428_800,
        max_partition_fetch_bytes: int = 1_048_576,
        max_poll_records: int = 500,
        check_crcs: bool = True,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        metadata_max_age_ms: int = 300_000,
        bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        runtime: Runtime | None = None,
        **unknown: Never,
    ) -> None:
        """Opens nothing; `start()` (or `async with`) does that. Raises InvalidCall for invalid values.

        on_truncation: 'raise' raises LogTruncated if records that were returned are gone, and keeps the position until
        `seek`; 'reset' logs a warning and continues at the divergent offset, and raises only where that is unknown.
        on_undecodable: 'raise' raises UndecodableRecords for a batch that no reader can decode, and stays in front of
        it until `seek`; 'skip' logs a warning and continues behind it.
        """
        self._check_arguments((), unknown)
        self._settings = ConsumerSettings(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            auto_offset_reset=auto_offset_reset,
            on_truncation=on_truncation,
            on_undecodable=on_undecodable,
            fetch_max_wait_ms=fetch_max_wait_ms,
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_bytes=fetch_max_bytes,
            max_partition_fetch_bytes=max_partition_fetch_bytes,
            max_poll_records=max_poll_records,
            check_crcs=check_crcs,
            isolation_level=isolation_level,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            metadata_max_age_ms=metadata_max_age_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
        )
        self._settings.check()
        for topic in topics:
            check_topic(topic)
        self._topics = tuple(dict.fromkeys(topics))
        self._cluster_settings = self._settings.for_cluster()
        self._reader = ChunkReader(
            check_crcs, on_undecodable == "skip", lambda each: self._cluster.where(each), ClientLog(client_id)
        )
        self._deserialize = Deserializers(key_deserializer, value_deserializer)
        self._runtime = runtime
        self._cursors: dict[TopicPartition, Cursor] = {}
        self._current: Iterator[Record] = iter(())
        self._current_cursor: Cursor | None = None
        self._update: asyncio.Future[None] | None = None
        self._started = False
        self._closed = False

    # --------------------------------------------------------------------------------------------------------- life
    async def start(self) -> None:
        """Find the cluster; assign the topics' partitions. Raises ClusterUnreachable or UnknownTopicOrPartition."""
        if self._started or self._closed:
            raise ClientClosed("a consumer is started once")
        self._owner = CallerCheck("consumer")
        self._cluster = Cluster(runtime_or_default(self._runtime), self._cluster_settings)
        self._fetcher = Fetcher(self._cluster, self._settings.for_fetcher(), self._notify, self._drop_current)
        self._cluster.want_topics(self._topics)
        try:
            await self._cluster.start(refusals_end_it=self._refusals_end_start)
            if self._closed:
                raise ClientClosed("the consumer was closed before it was open")
            self._started = True
            self._fetcher.start()
            if self._topics:
                deadline = Deadline(CALL_TIMEOUT_MS)
                partitions = [
                    TopicPartition(topic, index)
                    for topic in self._topics
                    for index in await self.partitions_for(topic, deadline.remaining_ms())
                ]
                self.assign(partitions)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect. Closing twice is fine."""
        if self._closed:
            return
        if self._started:
            self._owner.check()
        self._closed = True
        self._notify()
        if hasattr(self, "_fetcher"):
            try:
                await self._fetcher.close()
            finally:
                await self._cluster.close()

    # ----------------------------------------------------------------------------------------------------- assignment
    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Read exactly these from now on; those assigned before keep their position. InvalidCall changes nothing."""
        self._check_open()
        wanted = [check_partition(as_partition(partition)) for partition in partitions]
        self._cluster.want_topics(partition.topic for partition in wanted)
        self._forget_current()
        cursors = {
            partition: self._cursors.get(partition)
            or Cursor(partition, self._settings.reset, self._settings.max_partition_fetch_bytes)
            for partition in wanted
        }
        for cursor in cursors.values():
            cursor.refetch()
        self._cursors = cursors
        self._fetcher.assign(cursors.values())

    def assignment(self) -> list[TopicPartition]:
        """The partitions being read."""
        return sorted(self._cursors)

    def seek(self, partition: TopicPartition, offset: Offset) -> None:
        """Continue at this offset. This also ends a halt after LogTruncated or OffsetOutOfRange."""
        check_whole(0, offset=offset)
        self._cursor(partition)
        self._forget_current()
        self._cursor(partition).seek(offset)
        self._fetcher.moved()

    async def seek_to_beginning(self, *partitions: TopicPartition, timeout_ms: float = CALL_TIMEOUT_MS) -> None:
        """Go to the log start of these partitions, or of all."""
        await self._seek_by(EARLIEST_TIMESTAMP, partitions, timeout_ms)

    async def seek_to_end(self, *partitions: TopicPartition, timeout_ms: float = CALL_TIMEOUT_MS) -> None:
        """Go to the end (the leader's present high watermark) of these partitions, or of all."""
        await self._seek_by(LATEST_TIMESTAMP, partitions, timeout_ms)

    async def _seek_by(self, timestamp: int, partitions: Sequence[TopicPartition], timeout_ms: float) -> None:
        self._check_open()
        cursors = [self._cursor(partition) for partition in partitions or self.assignment()]
        self._forget_current()
        for cursor in cursors:
            cursor.seek_by(timestamp)
        self._fetcher.moved()
        deadline = Deadline(timeout_ms)
        for cursor in cursors:
            await self._known_position(cursor, deadline)

    async def position(self, partition: TopicPartition, timeout_ms: float = CALL_TIMEOUT_MS) -> Offset:
        """The next offset that will be returned; waits until it is known."""
        return await self._known_position(self._cursor(partition), Deadline(timeout_ms))

    async def _known_position(self, cursor: Cursor, deadline: Deadline) -> Offset:
        while cursor.position is None:
            self._check_open()
            if self._cursor(cursor.topic_partition) is not cursor:
                raise InvalidCall(f"{cursor.topic_partition} was assigned anew while its position was waited for")
            if cursor.halted is not None:
                raise cursor.halted
            if not await self._wait_for_update(deadline):
                raise CallTimedOut(
                    f"the position in {cursor.topic_partition} is not known after {round(deadline.timeout_ms)} ms",
                    cursor.error,
                )
        return cursor.position

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these until `resume`; they keep their position. InvalidCall for one changes nothing."""
        cursors = [self._cursor(partition) for partition in partitions]  # all of them, or none
        for cursor in cursors:
            cursor.paused = True
        if not all(cursor.has_room for cursor in cursors):
            self._fetcher.wake()  # they held back the others of their leaders
        if self._current_cursor is not None and self._current_cursor.paused:
            self._forget_current()

    def resume(self, *partitions: TopicPartition) -> None:
        """End a pause. InvalidCall for one of them changes nothing."""
        for cursor in [self._cursor(partition) for partition in partitions]:
            if cursor.paused:
                cursor.paused = False
                if cursor.chunks and cursor not in self._fetcher.ready:
                    self._fetcher.ready.append(cursor)
        self._fetcher.moved()
        self._notify()

    def paused(self) -> list[TopicPartition]:
        """The partitions that `pause` holds."""
        return sorted(partition for partition, cursor in self._cursors.items() if cursor.paused)

    # -------------------------------------------------------------------------------------------------------- reading
    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        for record in self._current:
            cursor = self._current_cursor
            assert cursor is not None
            cursor.position = record.offset + 1
            return record
        try:
            return await self.getone()
        except ClientClosed:
            if self._closed:
                raise StopAsyncIteration from None
            raise

    async def getone(self, timeout_ms: float | None = None) -> Record:
        """The next record. Raises CallTimedOut after a given timeout. Without one it waits for data as long as brokers
        answer, and raises CallTimedOut if for a minute no leader has answered, or one has answered with errors only."""
        self._check_open()
        if (record := self._next_record()) is not None:
            return record
        deadline = None if timeout_ms is None else Deadline(timeout_ms)
        silent_since = Deadline(UNREACHABLE_AFTER_MS)
        while True:
            if self._ready_cursor(()) is not None:
                await asyncio.sleep(0)  # as in getmany; once per batch, so that a busy reader does not starve the loop
            self._check_open()
            record = self._next_record()  # of a batch that another task's call began meanwhile
            while record is None and self._next_batch():
                record = self._next_record()
            if record is not None:
                return record
            self._raise_halted()
            if deadline is None:
                raise_refused(self._cursors.values(), self._fetcher.now_ms())
            if self._fetcher.any_leader_answers():
                silent_since = Deadline(UNREACHABLE_AFTER_MS)
            if not await self._wait_for_update(deadline or silent_since, at_most_ms=1_000):
                what = "no record came" if deadline is not None else "no leader of any assigned partition answered"
                problem = first_problem(self._cursors.values(), self._cluster, self._fetcher)
                raise CallTimedOut(f"{what} for {round((deadline or silent_since).timeout_ms)} ms", problem)

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """Buffered records, at most max_records (default max_poll_records), of these partitions or of all.

        Waits up to timeout_ms for the first record; {} if none came: `connection_state` has the reason.
        """
        limit = self._settings.max_poll_records if max_records is None else max_records
        check_whole(1, max_records=limit)
        self._check_open()
        deadline = Deadline(timeout_ms)
        await asyncio.sleep(0)  # lets the loop run; before anything is taken, so that a cancelled call loses nothing
        result: dict[TopicPartition, list[Record]] = {}
        taken = 0
        while taken < limit:
            self._check_open()
            current = self._current_cursor
            fits = current is not None and (not partitions or current.topic_partition in partitions)
            if not fits and not self._next_batch(partitions, has_taken=bool(result)):
                if result:
                    break
                self._raise_halted(partitions)
                self._fetcher.ask_for(partitions)
                if not await self._wait_for_update(deadline):
                    break
                continue
            cursor = self._current_cursor
            assert cursor is not None
            records = list(islice(self._current, limit - taken))
            if records:
                result.setdefault(cursor.topic_partition, []).extend(records)
                cursor.position = records[-1].offset + 1
                taken += len(records)
            if taken < limit:
                self._current_cursor = None
        return result

    async def getmany_batches(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_bytes: int = 4_194_304
    ) -> list[RecordBatch]:
        """As `getmany`, but in columns (`keys`, `values`), one batch at a time and in order: several times faster.
        Keys and values are bytes: deserializers are not called. Stops after max_bytes of encoded batches, but returns
        at least one.
        """
        deadline = Deadline(timeout_ms)
        self._check_open()
        await asyncio.sleep(0)  # as in getmany
        result: list[RecordBatch] = []
        taken_bytes = 0
        while taken_bytes < max_bytes:
            self._check_open()
            self._forget_current()  # in each round: another task's call may have begun a batch while this one waited
            cursor = self._ready_cursor(partitions)
            if cursor is None:
                if result:
                    break
                self._raise_halted(partitions)
                self._fetcher.ask_for(partitions)
                if not await self._wait_for_update(deadline):
                    break
                continue
            batch = self._read(cursor, has_taken=bool(result))
            if batch is None:
                break
            header, tuples, start = batch
            taken_bytes += header.size_bytes
            if header.end_offset > start:
                result.append(to_columns(cursor.topic_partition, header, tuples, start))
                cursor.position = header.end_offset
        return result

    def _next_record(self) -> Record | None:
        """The next record of the batch that is being returned; None after its last one."""
        for record in self._current:
            assert self._current_cursor is not None
            self._current_cursor.position = record.offset + 1
            return record
        return None

    def _next_batch(self, partitions: Sequence[TopicPartition] = (), *, has_taken: bool = False) -> bool:
        """Make the next batch the current one. False if none is buffered, or it is left for the next call (`_read`)."""
        if self._current_cursor is not None and partitions:
            self._forget_current()
        while (cursor := self._ready_cursor(partitions)) is not None:
            batch = self._read(cursor, has_taken=has_taken)
            if batch is None:
                break
            header, tuples, start = batch
            if header.end_offset > start:
                records = to_records(cursor.topic_partition, header, tuples, start)
                if self._deserialize.is_set:
                    records, problem = self._deserialize(records)
                    if problem is not None:
                        cursor.halt(problem)  # raised once the records in front of it are returned
                        self._fetcher.wake()  # it has room, and may have held back others of its leader
                self._current = iter(records)
                self._current_cursor = cursor
                return True
        self._current_cursor = None
        return False

    def _ready_cursor(self, partitions: Sequence[TopicPartition]) -> Cursor | None:
        ready = self._fetcher.ready
        for _ in range(len(ready)):
            cursor = ready[0]
            if not cursor.chunks or cursor.paused:
                ready.popleft()  # resume() adds a paused one again
            elif partitions and cursor.topic_partition not in partitions:
                ready.rotate(-1)
            else:
                return cursor
        return None

    # ---------------------------------------------------------------------------------------------------------- offsets
    def highwater(self, partition: TopicPartition) -> Offset | None:
        """The high watermark from the last fetch; None before the first."""
        return self._cursor(partition).high_watermark

    def metrics(self) -> ConsumerMetrics:
        """What this consumer has read so far, and how far behind it is."""
        if not self._started:
            return ConsumerMetrics()
        lag = {partition: cursor.lag for partition, cursor in self._cursors.items()}
        return replace(self._fetcher.metrics, lag=lag)

    def connection_state(self, partition: TopicPartition) -> ConnectionState:
        """The state of one partition: distinguishes 'no data' from 'no broker'."""
        return describe_connection(self._cursor(partition), self._cluster, self._fetcher)

    # --------------------------------------------------------------------------------------------------------- pieces
    def _read(self, cursor: Cursor, *, has_taken: bool) -> tuple[BatchHeader, list[RecordTuple], Offset] | None:
        """Decode the next batch of a cursor; also returns the offset of its first record that was not returned yet.
        Raises an error for damage, after which the buffered batches are fetched again. If this call has records to
        return (`has_taken`), returns None instead, and the next call raises."""
        try:
            header, tuples = self._reader.read(cursor)
        except (CorruptRecords, UndecodableRecords) as error:
            if has_taken:
                return None
            if isinstance(error, CorruptRecords):
                self._fetcher.fetch_again(cursor)
            raise
        start = cursor.position if cursor.position is not None else 0
        self._fetcher.has_read(cursor)
        self._fetcher.metrics.records_read += header.end_offset - start
        self._fetcher.metrics.bytes_read += header.size_bytes
        cursor.position_epoch = header.partition_leader_epoch
        cursor.read_since_move = True
        return header, tuples, start

    def _forget_current(self) -> None:
        """Drop decoded records that were not returned; they are fetched again."""
        cursor = self._current_cursor
        if cursor is not None:
            self._drop_current(cursor)
            if isinstance(cursor.halted, UndeserializableRecord):
                cursor.halted = None  # it would be raised in front of the dropped records
            self._fetcher.fetch_again(cursor)

    def _drop_current(self, cursor: Cursor) -> None:
        """Drop the decoded records of this cursor."""
        if cursor is self._current_cursor:
            self._current = iter(())
            self._current_cursor = None

    def _cursor(self, partition: TopicPartition) -> Cursor:
        cursor = self._cursors.get(partition)
        if cursor is None:
            self._check_open()
            raise InvalidCall(f"{as_partition(partition)} is not assigned to this consumer")
        self._owner.check()
        return cursor

    def _raise_halted(self, partitions: Sequence[TopicPartition] = ()) -> None:
        named = [self._cursor(each) for each in partitions]
        raise_halted(cursor for cursor in named or self._cursors.values() if not cursor.paused)
        resolving = self._fetcher.positions.task
        if resolving is not None and resolving.done():
            resolving.result()  # ended by a bug: raise it instead of waiting for ever
        if not self._cursors:
            raise InvalidCall("nothing is assigned: give topics to Consumer() or call assign()")

    def _notify(self) -> None:
        if self._update is not None and not self._update.done():
            self._update.set_result(None)

    async def _wait_for_update(self, deadline: Deadline, at_most_ms: float | None = None) -> bool:
        """Wait until something happens; False if the deadline passed before the call."""
        if deadline.passed:
            return False
        if self._update is None or self._update.done():
            self._update = asyncio.get_running_loop().create_future()
        timeout_ms = deadline.remaining_ms() if at_most_ms is None else min(at_most_ms, deadline.remaining_ms())
        await asyncio.wait([self._update], timeout=timeout_ms / 1000)
        return True

    def _check_open(self) -> None:
        if not self._started or self._closed:
            raise ClientClosed("the consumer is not open: use `async with Consumer(...)` or `await consumer.start()`")
        self._owner.check()
