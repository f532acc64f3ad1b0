"""Fetches for a consumer's partitions: one fetch per leader in flight, results in chunks. The consumer's shell.

Owns: fetch requests and their answers, and back-off. Leaves to others: what an answer means for a position (`cursor`),
and resolving positions that are not known (`positions`).

A leader gets a fetch only when all of its partitions that this consumer reads have room: so each long poll covers all
of them, and data for any of them ends it. Calls that name partitions may read no others, so theirs do not wait for the
room of others. Prefetching is bounded by `CHUNKS_MAX` chunks of max_partition_fetch_bytes per partition.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from minibroker.client.cluster import Cluster
from minibroker.client.consumer.connection_state import LeaderState, describe_connection
from minibroker.client.consumer.consumer_metrics import ConsumerMetrics
from minibroker.client.consumer.cursor import Chunk, Cursor, OffsetReset
from minibroker.client.consumer.fetch_answer import AnswerCallback, FetchAnswer
from minibroker.client.consumer.fetch_in_flight import Asked, FetchInFlight
from minibroker.client.consumer.partition_watch import PartitionWatch
from minibroker.client.consumer.positions import PositionResolver
from minibroker.client.errors import (
    BrokerError,
    BrokerUnreachable,
    CorruptRecords,
    MinibrokerError,
    MisplacedRecords,
    Where,
    broker_error,
    fetch_refusal,
)
from minibroker.client.metadata_cache import Address
from minibroker.client.retry import backoff_ms
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, Offset, TopicPartition, to_wire
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch, iterate_headers
from minibroker.protocol.wire.messages import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    Response,
)
from minibroker.runtime.deadline import DeadlineTimer
from minibroker.runtime.rpc import ConnectionClosed, RpcError

SLOW_ANSWER_MS = 1_000.0
"""If a fetch takes this much longer than its max_wait_ms, metadata is refreshed: another broker may lead now."""
LATE_AFTER_MS = 2_000.0
"""A leader that is silent for this much longer than max_wait_ms counts as not answering."""
PARTITION_BYTES_MAX = 64 * 1024 * 1024
"""No fetch requests more than this, however large a single batch is (the limit of a frame is far below)."""


class FetchSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    isolation_level: int
    reset: OffsetReset
    halt_on_truncation: bool


class Fetcher:
    """Started and closed by the consumer that owns it."""

    def __init__(
        self,
        cluster: Cluster,
        settings: FetchSettings,
        on_update: Callable[[], None],
        on_moved: Callable[[Cursor], None],
    ) -> None:
        """`on_moved`: a position moved because the log changed; records decoded for it are not valid any more."""
        self._cluster = cluster
        self._settings = settings
        self._on_update = on_update
        self._on_moved = on_moved
        self.metrics = ConsumerMetrics()
        self.answer_callbacks: list[AnswerCallback] = []
        self._loop = asyncio.get_running_loop()
        self._cursors: dict[TopicPartition, Cursor] = {}
        self.ready: deque[Cursor] = deque()
        """Cursors that hold chunks, in the order in which the chunks arrived."""
        self.leaders: dict[BrokerId, LeaderState] = {}
        self._asked: dict[BrokerId, FetchInFlight] = {}
        self._awaited: set[TopicPartition] = set()
        """Partitions that a call has named and found without records."""
        self.positions = PositionResolver(
            cluster,
            lambda: self._cursors,
            request_timeout_ms=settings.request_timeout_ms,
            halt_on_truncation=settings.halt_on_truncation,
            pause_seconds=lambda failures: (self._retry_at_ms(failures) - self.now_ms()) / 1000,
            on_settled=self._positions_settled,
            on_moved=on_moved,
        )
        self._watch = PartitionWatch(
            lambda: self._cursors, lambda cursor: describe_connection(cursor, self._cluster, self), cluster.log
        )
        self._timer = DeadlineTimer(self._pump)
        self._soon = False
        self._closed = False
        self._rotations = Counter[BrokerId]()
        cluster.add_listener(self._on_metadata)
        cluster.connections.on_change = self._on_connection

    # ---------------------------------------------------------------------------------------------- for the consumer
    def start(self) -> None:
        self.positions.start()
        self._watch.start()

    async def close(self) -> None:
        self._closed = True
        self._watch.close()
        self._timer.cancel()
        await self.positions.close()

    def assign(self, cursors: Iterable[Cursor]) -> None:
        """Fetch these partitions and no others from now on."""
        for cursor in self._cursors.values():
            cursor.generation += 1
            cursor.chunks.clear()
        self._cursors = {cursor.topic_partition: cursor for cursor in cursors}
        self.ready.clear()
        self._awaited.clear()
        self._learn_leaders()
        self.moved()

    def moved(self) -> None:
        """Positions or leaders have changed or were found, or a partition was resumed. A long poll that does not cover
        this is abandoned: its answer will be dropped, and a new one is sent at once."""
        now_ms = self.now_ms()
        for leader, flight in tuple(self._asked.items()):
            due = (each for each in self._cursors.values() if each.leader == leader and each.is_due(now_ms))
            if not all(self._is_asked(flight, cursor) for cursor in due if cursor.has_room):
                flight.connection.forget(flight.correlation_id)
                del self._asked[leader]
        self.wake()

    def ask_for(self, partitions: Sequence[TopicPartition]) -> None:
        """A call waits for these assigned ones and no others: they are fetched though it leaves others of their leaders
        full."""
        if partitions:
            self._awaited.update(partitions)
            self.wake()

    def fetch_again(self, cursor: Cursor) -> None:
        """Drop what is buffered of it, from its position on."""
        cursor.refetch()
        self.moved()

    def _is_asked(self, flight: FetchInFlight, cursor: Cursor) -> bool:
        """Whether the answer is useful for this cursor."""
        asked = flight.cursors.get(cursor.topic_partition)
        return asked is not None and asked[:3] == (cursor, cursor.generation, cursor.fetch_offset)

    def has_read(self, cursor: Cursor) -> None:
        """The next batch of the first cursor in `ready` was read."""
        chunk = cursor.chunks[0]
        chunk.unread.popleft()
        if not chunk.unread:
            cursor.chunks.popleft()
            self.ready.popleft()
            if cursor.chunks:
                self.ready.append(cursor)
            self._has_room_again(cursor)

    def _has_room_again(self, cursor: Cursor) -> None:
        """One of its chunks was read. Its leader gets a fetch if no other partition of the leader lacks room."""
        leader = cursor.leader
        if leader in self._asked:
            if not cursor.chunks and cursor.topic_partition not in self._asked[leader].cursors:
                self.moved()
            return
        for other in self.ready:
            if other.leader == leader and not other.has_room and other.wants_data:
                return
        self.wake()

    def wake(self) -> None:
        """Look at everything, soon."""
        if not self._soon and not self._closed:
            self._soon = True
            self._loop.call_soon(self._pump)

    def now_ms(self) -> float:
        return self._loop.time() * 1000

    def any_leader_answers(self) -> bool:
        """Whether any leader has answered recently."""
        return any(not self.is_late(leader) for leader in self.leaders)

    def is_late(self, leader: BrokerId | None) -> bool:
        """Whether this leader has been silent for longer than a long poll takes."""
        state = self.leaders.get(leader) if leader is not None else None
        if state is None or state.answered_at_ms is None:
            return True
        return self.now_ms() - state.answered_at_ms > self._settings.max_wait_ms + LATE_AFTER_MS

    # ------------------------------------------------------------------------------------------------------- fetching
    def _pump(self) -> None:
        """Send a fetch to every leader that may get one; then set the timer for the others."""
        self._soon = False
        if self._closed:
            return
        now_ms = self.now_ms()
        by_leader: dict[BrokerId, list[Cursor]] = {}
        blocked: set[BrokerId] = set()
        next_ms: list[float] = []
        for cursor in self._cursors.values():
            if cursor.needs_reset or (cursor.needs_validation and cursor.leader is not None):
                self.positions.want()  # without a leader, metadata wakes the fetcher later
            elif cursor.needs_validation:
                self._cluster.request_refresh()
            if not cursor.wants_data:
                continue
            if cursor.leader is None:
                self._cluster.request_refresh()
            elif not cursor.has_room:
                blocked.add(cursor.leader)
            elif not cursor.is_due(now_ms):
                next_ms.append(cursor.retry_at_ms)
            else:
                by_leader.setdefault(cursor.leader, []).append(cursor)
        for leader, cursors in by_leader.items():
            is_blocked = leader in blocked and self._awaited.isdisjoint(each.topic_partition for each in cursors)
            if not is_blocked and leader not in self._asked:
                self._ask(leader, cursors)
        self._check_slow(now_ms)
        next_ms.extend(
            min(asked.sent_at_ms + self._settings.max_wait_ms + SLOW_ANSWER_MS, now_ms + SLOW_ANSWER_MS)
            for asked in self._asked.values()
        )
        self._timer.cancel()
        if next_ms:
            self._timer.set(max(min(next_ms), now_ms + 1) / 1000)

    def _ask(self, leader: BrokerId, cursors: list[Cursor]) -> None:
        connection = self._cluster.open_connection(leader)
        if connection is None:
            return  # _on_connection continues
        settings = self._settings
        self._rotations[leader] += 1
        start = self._rotations[leader] % len(cursors)  # max_bytes may leave out the last ones: rotate them
        topics: dict[tuple[str, str], list[FetchPartition]] = {}
        asked: dict[TopicPartition, Asked] = {}
        for cursor in cursors[start:] + cursors[:start]:
            topic, index = cursor.topic_partition
            query = FetchPartition(
                partition=index,
                current_leader_epoch=to_wire(cursor.leader_epoch),
                fetch_offset=cursor.fetch_offset,
                partition_max_bytes=cursor.max_bytes,
            )
            topics.setdefault((topic, cursor.topic_id or ""), []).append(query)
            asked[cursor.topic_partition] = Asked(cursor, cursor.generation, cursor.fetch_offset, cursor.leader_epoch)
        request = FetchRequest(
            max_wait_ms=settings.max_wait_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.max_bytes,
            isolation_level=settings.isolation_level,
            topics=[
                FetchTopic(topic=name, topic_id=topic_id, partitions=partitions)
                for (name, topic_id), partitions in topics.items()
            ],
        )
        flight = FetchInFlight(connection, -1, self.now_ms(), asked)
        try:
            flight.correlation_id = connection.send(request, partial(self._on_reply, leader, flight))
        except ConnectionClosed:
            return  # _on_connection continues: the loss is reported within this step of the loop
        except RpcError as error:  # too many calls wait for this broker
            self._failed(leader, flight, error)
            self.wake()
            return
        self._asked[leader] = flight

    def _on_reply(self, leader: BrokerId, flight: FetchInFlight, reply: Response | RpcError) -> None:
        if self._asked.get(leader) is flight:
            del self._asked[leader]
        if self._closed:
            return
        if isinstance(reply, FetchResponse) and not reply.error_code:
            self.leaders[leader] = LeaderState(answered_at_ms=self.now_ms())
            self.metrics.fetches_answered += 1
            left_out = dict(flight.cursors)
            for topic in reply.responses:
                for answer in topic.partitions:
                    partition = TopicPartition(topic.topic, answer.partition_index)
                    left_out.pop(partition, None)
                    asked = flight.cursors.get(partition)
                    if asked is not None:
                        self._on_partition(leader, asked, answer)
            for asked in left_out.values():
                self._on_left_out(leader, asked.cursor)
        else:
            self._failed(leader, flight, reply)
        self._on_update()
        self._pump()

    def _failed(self, leader: BrokerId, flight: FetchInFlight, reply: Response | RpcError) -> None:
        if isinstance(reply, Response):
            error: MinibrokerError = broker_error(reply.error_code, message=reply.error_message)
        else:
            error = BrokerUnreachable(f"broker {leader}: {reply}", leader)
        state = self.leaders.setdefault(leader, LeaderState())
        state.failures += 1
        state.error = error
        self.metrics.fetches_failed += len(flight.cursors)
        self._cluster.log.debug("fetches again from broker %d, after failure %d: %s", leader, state.failures, error)
        retry_at_ms = self._retry_at_ms(state.failures)
        for asked in flight.cursors.values():
            asked.cursor.error = error
            asked.cursor.retry_at_ms = retry_at_ms
        self._cluster.request_refresh()

    def _on_partition(self, leader: BrokerId, asked: Asked, answer: FetchPartitionResponse) -> None:
        cursor = asked.cursor
        if self._cursors.get(cursor.topic_partition) is not cursor or asked.is_outdated:
            return
        if answer.error_code:
            self._on_refusal(leader, cursor, answer)
            return
        if not answer.records:
            cursor.answered()
        if answer.high_watermark >= 0:
            cursor.high_watermark = answer.high_watermark
        if answer.records:
            self._on_records(leader, cursor, answer.records)
        if self.answer_callbacks and answer.high_watermark >= 0:
            self._tell(leader, asked, answer.high_watermark)

    def _on_left_out(self, leader: BrokerId, cursor: Cursor) -> None:
        """Brokers answer for each partition that was asked for. What does not is broken, and no quiet topic."""
        where = self._where(cursor, leader)
        error = broker_error(ErrorCode.UNKNOWN_SERVER_ERROR, where, "the answer to a fetch leaves it out")
        self._refused(cursor, error)
        self._cluster.request_refresh()

    def _tell(self, leader: BrokerId, asked: Asked, high_watermark: Offset) -> None:
        """The user's callbacks get what was just accepted."""
        cursor = asked.cursor
        told = FetchAnswer(
            topic_partition=cursor.topic_partition,
            broker=leader,
            leader_epoch=asked.leader_epoch,
            high_watermark=high_watermark,
            base_offset=asked.offset,
            end_offset=cursor.fetch_offset,
        )
        for callback in self.answer_callbacks:
            callback(told)

    def _on_records(self, leader: BrokerId, cursor: Cursor, records: memoryview) -> None:
        """Take whole batches as long as they are the requested ones; the rest is fetched again."""
        unread: deque[tuple[int, BatchHeader]] = deque()
        last: BatchHeader | None = None
        misfit: str | None = None
        damage: CorruptBatch | None = None
        next_offset, epoch = cursor.fetch_offset, cursor.leader_epoch
        try:
            for position, header in iterate_headers(records):
                if header.base_offset != next_offset or header.partition_leader_epoch != epoch:
                    misfit = cursor.misfit(header, last)  # rarely called: usually offset and epoch are as expected
                    if misfit is not None:
                        break
                    epoch = header.partition_leader_epoch
                unread.append((position, header))
                last = header
                next_offset = header.base_offset + header.record_count
        except CorruptBatch as error:
            damage = error
        if last is not None:
            was_empty = not cursor.chunks
            cursor.fetched(Chunk(records, unread), last.end_offset, last.partition_leader_epoch)
            cursor.answered()
            if was_empty:
                self._has_chunks(cursor)
        elif misfit is not None:
            self._unfit(cursor, MisplacedRecords(self._where(cursor, leader), cursor.fetch_offset, misfit))
        elif damage is None and cursor.max_bytes < PARTITION_BYTES_MAX:
            cursor.max_bytes *= 2  # a single batch is larger than max_bytes
        else:
            self._unfit(cursor, CorruptRecords(self._where(cursor, leader), cursor.fetch_offset, damage or "no batch"))

    def _has_chunks(self, cursor: Cursor) -> None:
        """One that held chunks before the user sought is still in `ready`: reading would remove it, a seek does not."""
        self.ready.append(cursor)
        if len(self.ready) > 2 * len(self._cursors):
            present = dict.fromkeys(each for each in self.ready if each.chunks)
            self.ready.clear()
            self.ready.extend(present)

    def _where(self, cursor: Cursor, leader: BrokerId) -> Where:
        return self._cluster.where(cursor.topic_partition, leader)

    def _unfit(self, cursor: Cursor, problem: CorruptRecords) -> None:
        """Fetch again from the leader that new metadata names: another broker may lead by now, with an intact copy."""
        cursor.unfit_fetches += 1
        self.metrics.fetches_failed += 1
        cursor.refused(problem, self.now_ms())
        cursor.retry_at_ms = self._retry_at_ms(cursor.refusals)
        self._cluster.request_refresh()
        self._cluster.log.warning("%s", problem)

    def _on_refusal(self, leader: BrokerId, cursor: Cursor, answer: FetchPartitionResponse) -> None:
        where = self._where(cursor, leader)
        error = fetch_refusal(answer.error_code, where, cursor.fetch_offset)
        self._refused(cursor, error)
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            if cursor.out_of_range(self._settings.reset, where, answer.log_start_offset):
                goes_on = "start" if self._settings.reset is OffsetReset.EARLIEST else "end"
                text = "offset %d of %s is not in its leader's log: by auto_offset_reset, reading goes on at its %s"
                self._cluster.log.warning(text, cursor.fetch_offset, cursor.topic_partition, goes_on)
            return
        if self._cluster.metadata.apply_hint(cursor.topic_partition, answer.current_leader, cursor.topic_id or ""):
            self._learn_leaders()
            self.moved()
        if error.refreshes_metadata or error.code is ErrorCode.UNKNOWN_LEADER_EPOCH:
            self._cluster.request_refresh()
        elif not error.retriable:
            cursor.halted = error

    def _refused(self, cursor: Cursor, error: BrokerError) -> None:
        """Ask for this partition again after a pause."""
        cursor.refused(self._cluster.explained(error), self.now_ms())
        self.metrics.fetches_failed += 1
        self._cluster.log.debug("a fetch was refused: %s", error)
        cursor.retry_at_ms = self._retry_at_ms(cursor.refusals)

    def _retry_at_ms(self, failures: int) -> float:
        settings, unit_random = self._settings, self._cluster.runtime.random.random()
        return self.now_ms() + backoff_ms(
            max(1, failures), settings.retry_backoff_ms, settings.retry_backoff_max_ms, unit_random
        )

    def _check_slow(self, now_ms: float) -> None:
        """Close connections with fetches that take too long. A leader that was replaced meanwhile is not waited for."""
        for leader, flight in list(self._asked.items()):
            age_ms = now_ms - flight.sent_at_ms
            limit_ms = self._settings.max_wait_ms + SLOW_ANSWER_MS
            if age_ms + 0.5 < limit_ms:
                continue
            deposed = any(asked.cursor.leader not in (leader, None) for asked in flight.cursors.values())
            if deposed or age_ms >= self._settings.max_wait_ms + self._settings.request_timeout_ms:
                flight.connection.abort()  # _on_reply gets it as lost
            else:
                self._cluster.request_refresh()

    # ------------------------------------------------------------------------------------------------------- updates
    def _learn_leaders(self) -> None:
        metadata, changed = self._cluster.metadata, []
        for partition, cursor in self._cursors.items():
            topic_id = metadata.topic_id(partition.topic)
            if topic_id is not None and topic_id != cursor.topic_id:
                self._learn_topic(cursor, topic_id)
            info = metadata.partition(partition)
            before = cursor.leader_epoch
            if cursor.learn_leader(info.leader, info.leader_epoch):
                if before is not None:
                    changed.append((partition, info.leader, info.leader_epoch))
                if not cursor.wants_data:
                    self.positions.leader_moved()
        self._cluster.log.new_leaders(changed)

    def _learn_topic(self, cursor: Cursor, topic_id: str) -> None:
        position = cursor.position
        if cursor.learn_topic(topic_id, self._settings.reset, self._cluster.where(cursor.topic_partition)):
            if cursor.halted is None:  # else the error says it
                self._cluster.log.warning(
                    "the topic of %s was deleted and created again: position %s belonged to the deleted topic",
                    *(cursor.topic_partition, position),
                )
            self._on_moved(cursor)
            self._on_update()

    def _positions_settled(self) -> None:
        self._on_update()
        self.moved()

    def _on_metadata(self) -> None:
        self._learn_leaders()
        self.moved()

    def _on_connection(self, address: Address) -> None:
        if self._cluster.connections.last_error(address) is not None and any(
            cursor.leader is not None and self._cluster.metadata.brokers.get(cursor.leader) == address
            for cursor in self._cursors.values()
        ):
            self._cluster.request_refresh()
        self.wake()
