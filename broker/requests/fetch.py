"""Fetch requests of consumers and followers, answered at once or delayed.

Owns: how each kind is answered (a consumer lists all its partitions each time, a follower has a session), and the
updates that wake waiting fetches. Leaves to others: which records may be read; the core decides from where to where.

A fetch with nothing to read is delayed until records or a newer high watermark come, its partition's leadership
changes, or max_wait_ms passes. If too much waits already it is answered at once, and its connection is not read for
that time.
"""

import asyncio
from collections.abc import Callable, Mapping

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.observations import ConsumerReadGranted
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.leader import (
    FetchGranted,
    FetchRefused,
    check_consumer_fetch,
    grant_follower,
    refuse_fetch,
)
from minibroker.broker.requests.delayed_fetches import DelayedFetch, DelayedFetches
from minibroker.broker.requests.fetch_answers import FetchAnswers
from minibroker.broker.requests.fetch_sessions import FetchSessions
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition, from_wire
from minibroker.protocol.wire.codec import FetchedRecords, encode_fetch_response
from minibroker.protocol.wire.messages import CurrentLeader, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import DiskError
from minibroker.runtime.server.incoming_request import IncomingRequest, RequestConnection

READ_PER_ITERATION_BYTES = 8 * 1024 * 1024
"""Records read for consumers in one loop iteration: some milliseconds."""
READ_MIN_BYTES = 64 * 1024
"""Always granted to an answer: a few batches."""


class ReadBudget:
    """Limits what consumers read within one loop iteration: many consumers that catch up must not delay all others."""

    def __init__(self) -> None:
        self._left = READ_PER_ITERATION_BYTES

    @property
    def room(self) -> int:
        """Limit for one answer: half of what is left, so that some remains for the next one."""
        return max(READ_MIN_BYTES, self._left // 2)

    def took(self, size_bytes: int) -> None:
        if size_bytes:
            if self._left == READ_PER_ITERATION_BYTES:
                asyncio.get_running_loop().call_soon(self._begin)
            self._left = max(0, self._left - size_bytes)

    def _begin(self) -> None:
        self._left = READ_PER_ITERATION_BYTES


class ConsumerFetchResult:
    """What can be sent to a consumer now."""

    __slots__ = ("budget", "is_urgent", "size_bytes", "topics")

    def __init__(self, budget: int) -> None:
        """`budget`: the most bytes of records that it may hold."""
        self.budget = budget
        self.topics: list[tuple[str, list[FetchedRecords]]] = []
        self.size_bytes = 0
        self.is_urgent = False
        """An error that must be sent at once."""

    def count(self, answer: FetchedRecords) -> None:
        self.size_bytes += answer.size_bytes
        response = answer.response
        self.is_urgent = self.is_urgent or bool(response.error_code) or response.diverging_epoch is not None

    def is_enough_for(self, delayed: DelayedFetch) -> bool:
        """Half of its limit is, too: the next batch may not fit into the rest, and by waiting it grows no more."""
        return self.is_urgent or self.size_bytes >= max(1, min(delayed.min_bytes, self.budget // 2))


class FetchHandler:
    """All fetch requests of a broker."""

    def __init__(
        self,
        *,
        partitions: Mapping[TopicPartition, Partition],
        leader_hint: Callable[[TopicPartition, str], CurrentLeader | None],
        is_known: Callable[[TopicPartition], bool],
        is_eligible: Callable[[int, int | None], bool],
        reply_room: Callable[[], int],
        log_failed: Callable[[Partition, DiskError], None],
        log_damaged: Callable[[Partition, str], None],
        now_ms: Callable[[], int],
        response_max_bytes: int,
        counters: BrokerCounters,
        observer: Observer,
    ) -> None:
        self._observer = observer
        self._partitions = partitions
        self._reply_room = reply_room
        self._response_max_bytes = response_max_bytes
        self._counters = counters
        self._read_budget = ReadBudget()
        self._answers = FetchAnswers(
            leader_hint=leader_hint,
            is_known=is_known,
            is_eligible=is_eligible,
            log_failed=log_failed,
            log_damaged=log_damaged,
            now_ms=now_ms,
            counters=counters,
            observer=observer,
        )
        self._waiting = DelayedFetches(self._answer)
        self._sessions = FetchSessions(
            partitions=partitions,
            answers=self._answers,
            waiting=self._waiting,
            response_max_bytes=response_max_bytes,
            counters=counters,
        )
        self.flush = self._waiting.flush

    def handle(self, request: IncomingRequest, body: FetchRequest) -> None:
        """Answer now, or delay."""
        if body.replica_id >= 0 and body.session_epoch >= 0:
            self._sessions.handle(request, body)
        else:
            self._handle_whole(request, body)

    def connection_closed(self, connection: RequestConnection) -> None:
        """Drop its session and its delayed fetches."""
        self._sessions.connection_closed(connection)
        self._waiting.connection_closed(connection)

    def delayed_count(self) -> int:
        """Fetches that wait now."""
        return self._waiting.count + self._sessions.waiting_count

    def _answer(self, delayed: DelayedFetch, force: bool) -> bool:
        if delayed.session is not None:
            return self._sessions.answer(delayed, force)
        return self._answer_whole(delayed, force)

    # ---------------------------------------------------------------------------------------------------- updates
    def appended(self, partition: Partition) -> None:
        """New records for followers."""
        for session in partition.sessions:
            session.updated[partition.topic_partition] = None
            if session.delayed is not None:
                self._waiting.wake(session.delayed)

    def offsets_changed(self, partition: Partition) -> None:
        """New records for consumers; for followers only a newer high watermark or log start, which can wait a
        little."""
        for delayed in partition.waiting_fetches:
            self._waiting.wake(delayed)
        for session in partition.sessions:
            session.updated[partition.topic_partition] = None
            if session.delayed is not None:
                self._waiting.wake_for_watermark(session.delayed)

    def partition_changed(self, partition: Partition) -> None:
        """Its role or epoch changed, or it is gone: all fetches that wait for it must be answered."""
        for delayed in partition.waiting_fetches:
            self._waiting.wake(delayed)
        self.appended(partition)

    # -------------------------------------------------------------------------------------------------- consumers
    def _handle_whole(self, request: IncomingRequest, body: FetchRequest) -> None:
        """A consumer's fetch (or a bare follower's): all partitions are listed each time."""
        delayed = DelayedFetch(request, body, None)
        found = self._read_listed(delayed, first=True)
        if found.is_enough_for(delayed) or body.max_wait_ms <= 0:
            self._send(delayed, found)
        elif self._waiting.delay(delayed):
            for topic in body.topics:
                for fetch in topic.partitions:
                    partition = self._partitions.get(TopicPartition(topic.topic, fetch.partition))
                    if partition is not None:
                        delayed.watch(partition)
        else:
            self._send(delayed, found)
            request.connection.mute(delayed.wait_seconds)

    def _answer_whole(self, delayed: DelayedFetch, force: bool) -> bool:
        """Answer if min_bytes are there, there is an error, or it must end now."""
        found = self._read_listed(delayed, first=False)
        if not force and not found.is_enough_for(delayed):
            return False
        self._send(delayed, found)
        return True

    def _read_listed(self, delayed: DelayedFetch, first: bool) -> "ConsumerFetchResult":
        """Read every listed partition."""
        body = delayed.body
        budget = min(body.max_bytes, self._response_max_bytes, self._reply_room(), self._read_budget.room)
        found = ConsumerFetchResult(budget)
        for topic in body.topics:
            answers: list[FetchedRecords] = []
            for fetch in topic.partitions:
                size = found.size_bytes
                answer = self._answer_listed(body, topic, fetch, budget - size, not size, report=first)
                found.count(answer)
                answers.append(answer)
            found.topics.append((topic.topic, answers))
        self._read_budget.took(found.size_bytes)
        return found

    def _send(self, delayed: DelayedFetch, found: "ConsumerFetchResult") -> None:
        self._waiting.answered(delayed)
        self._counters.bytes_out += found.size_bytes
        frame = encode_fetch_response(delayed.request.correlation_id, FetchResponse(), found.topics)
        delayed.request.respond_frame(frame)

    def _answer_listed(
        self, body: FetchRequest, topic: FetchTopic, fetch: FetchPartition, budget: int, first: bool, report: bool
    ) -> FetchedRecords:
        topic_partition = TopicPartition(topic.topic, fetch.partition)
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return self._answers.unknown(topic_partition, topic.topic_id)
        if not partition.is_of_topic(topic.topic_id):
            return self._answers.refused(partition, FetchRefused(ErrorCode.INCONSISTENT_TOPIC_ID))
        epoch, offset = from_wire(fetch.current_leader_epoch), fetch.fetch_offset
        last_epoch = from_wire(fetch.last_fetched_epoch)
        decision: FetchGranted | FetchRefused
        if body.replica_id < 0:
            partition.services.check_fence()
            decision = check_consumer_fetch(partition.state, epoch, offset, last_epoch)
        elif report:
            replica_epoch = from_wire(body.replica_epoch)
            decision = self._answers.report_position(partition, body.replica_id, replica_epoch, fetch)
        else:
            refusal = refuse_fetch(partition.state, epoch, offset, last_epoch)
            decision = grant_follower(partition.state, offset) if refusal is None else refusal
        if isinstance(decision, FetchRefused):
            return self._answers.refused(partition, decision)
        if body.replica_id < 0 and self._observer.wants_details:
            self._observer.notify(ConsumerReadGranted(partition))
        return self._answers.read(partition, fetch, decision, budget, first)
