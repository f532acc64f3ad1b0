"""Fetch requests: consumers and followers that read, and those that wait for something to read.

Owns: what goes into a Fetch response, when it is sent, and how many bytes may wait unread for slow peers. Refuses to
know which records may be read: the core's verdict says from where to where.

A fetch with nothing to say is parked until records or a newer high watermark come, its partition changes hands, or
max_wait_ms passes. Followers use fetch sessions: after the first request only partitions that changed are listed, and
the leader looks only at those and at the ones that have news, so idle partitions cost nothing (KIP-227). Unlike Kafka a
session belongs to its connection and dies with it, and a new request of a session ends the parked one.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.metrics import BrokerCounters
from minibroker.broker.replication.events import FollowerFetched
from minibroker.broker.replication.leader import (
    FetchGranted,
    FetchRefused,
    grant_follower,
    judge_consumer_fetch,
    refuse_fetch,
)
from minibroker.protocol.codec import FetchedRecords, encode_fetch_response
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition, from_wire, to_wire
from minibroker.protocol.messages import (
    CurrentLeader,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
)
from minibroker.runtime.ports import Buffer, DiskError
from minibroker.runtime.server import IncomingRequest, ServerConnection

if TYPE_CHECKING:
    from minibroker.broker.partition import Partition

log = logging.getLogger("minibroker.fetch")

MAX_WAIT_MS = 30_000
"""A fetch may not be parked for longer than this, whatever it asks."""
UNSENT_REPLIES_MAX_BYTES = 24 * 1024 * 1024
"""Replies that slow consumers have not read yet, all together; above it their fetches wait. Followers are exempt."""
MARK_NEWS_DELAY_MS = 20
"""A follower's parked fetch that has only a newer high watermark to tell is answered after this. Under load the mark
rides on the next records for free; when the load ends, followers learn the last mark soon."""


class SessionPartition:
    """What a session knows of one partition of its follower."""

    __slots__ = ("awaits_position", "fetch", "partition", "told_high_watermark", "told_log_start_offset")

    def __init__(self, partition: "Partition", fetch: FetchPartition) -> None:
        self.partition = partition
        self.fetch = fetch
        self.awaits_position = False
        """Records were sent; nothing more before the follower reports where it stands."""
        self.told_high_watermark = -1
        self.told_log_start_offset = -1


class FetchSession:
    """One follower's standing fetch on one connection."""

    __slots__ = ("connection", "epoch", "id", "news", "parked", "partitions", "replica_epoch", "replica_id")

    def __init__(self, session_id: int, connection: ServerConnection, body: FetchRequest) -> None:
        self.id = session_id
        self.connection = connection
        self.epoch = 0
        self.replica_id = body.replica_id
        self.replica_epoch = body.replica_epoch
        self.partitions: dict[TopicPartition, SessionPartition] = {}
        self.news: dict[TopicPartition, None] = {}
        """Partitions that may have something to send; looked at with the next answer."""
        self.parked: ParkedFetch | None = None

    def drop(self, topic_partition: TopicPartition) -> None:
        entry = self.partitions.pop(topic_partition, None)
        self.news.pop(topic_partition, None)
        if entry is not None and self in entry.partition.sessions:
            entry.partition.sessions.remove(self)


class ParkedFetch:
    """A request that waits. Ends once: by news, by its deadline, or with its connection."""

    __slots__ = ("body", "done", "mark_timer", "min_bytes", "request", "session", "timer", "watched")

    def __init__(self, request: IncomingRequest, body: FetchRequest, session: FetchSession | None) -> None:
        self.request = request
        self.body = body
        self.session = session
        self.min_bytes = body.min_bytes
        self.done = False
        self.timer: asyncio.TimerHandle | None = None
        self.mark_timer: asyncio.TimerHandle | None = None
        self.watched: list[Partition] = []

    def end(self) -> None:
        """Forget all that could wake it."""
        self.done = True
        for timer in (self.timer, self.mark_timer):
            if timer is not None:
                timer.cancel()
        self.timer = self.mark_timer = None
        for partition in self.watched:
            partition.waiting_fetches.pop(self, None)
        if self.session is not None and self.session.parked is self:
            self.session.parked = None


class FetchHandler:
    """All fetch requests of a broker."""

    def __init__(
        self,
        *,
        partitions: Mapping[TopicPartition, "Partition"],
        leader_hint: Callable[[TopicPartition], CurrentLeader | None],
        is_known: Callable[[TopicPartition], bool],
        is_eligible: Callable[[int, int | None], bool],
        unsent_reply_bytes: Callable[[], int],
        log_failed: Callable[["Partition", DiskError], None],
        now_ms: Callable[[], int],
        response_max_bytes: int,
        counters: BrokerCounters,
    ) -> None:
        self._partitions = partitions
        self._leader_hint = leader_hint
        self._is_known = is_known
        self._is_eligible = is_eligible
        self._unsent_reply_bytes = unsent_reply_bytes
        self._log_failed = log_failed
        self._now_ms = now_ms
        self._response_max_bytes = response_max_bytes
        self._sessions: dict[ServerConnection, FetchSession] = {}
        self._woken: dict[ParkedFetch, None] = {}
        self._flush_scheduled = False
        self._counters = counters

    # --------------------------------------------------------------------------------------------------- requests
    def handle(self, request: IncomingRequest, body: FetchRequest) -> None:
        """Answer now, or park."""
        if body.replica_id >= 0 and body.session_epoch >= 0:
            self._handle_session(request, body)
        else:
            self._handle_whole(request, body)

    def _handle_session(self, request: IncomingRequest, body: FetchRequest) -> None:
        session = self._sessions.get(request.connection)
        if body.session_epoch == 0:
            if session is not None:
                self._end_session(session)
            session = FetchSession(request.connection.id & 0x7FFFFFFF or 1, request.connection, body)
            self._sessions[request.connection] = session
            request.connection.mark_as_broker()
        elif session is None or session.id != body.session_id or session.replica_epoch != body.replica_epoch:
            # After it has registered anew, what a follower told before is no report of its new registration.
            request.respond(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return
        elif body.session_epoch != session.epoch:
            request.respond(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
            return
        session.epoch += 1
        if session.parked is not None:
            self._answer_session(session.parked, force=True)
        refused = self._update_session(session, body)
        parked = ParkedFetch(request, body, session)
        session.parked = parked
        if not self._answer_session(parked, force=body.max_wait_ms <= 0 or bool(refused), refused=refused):
            self._park(parked)

    def _update_session(self, session: FetchSession, body: FetchRequest) -> dict[str, list[FetchedRecords]]:
        """Take in the positions the follower reports; what is refused is answered and leaves the session."""
        for forgotten in body.forgotten_topics_data:
            for index in forgotten.partitions:
                session.drop(TopicPartition(forgotten.topic, index))
        refused: dict[str, list[FetchedRecords]] = {}
        for topic in body.topics:
            for fetch in topic.partitions:
                refusal = self._take_position(session, TopicPartition(topic.topic, fetch.partition), fetch, body)
                if refusal is not None:
                    refused.setdefault(topic.topic, []).append(refusal)
        return refused

    def _take_position(
        self, session: FetchSession, topic_partition: TopicPartition, fetch: FetchPartition, body: FetchRequest
    ) -> FetchedRecords | None:
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return self._unknown(topic_partition, fetch.partition)
        verdict = partition.handle_fetch(
            FollowerFetched(
                now_ms=self._now_ms(),
                replica_id=session.replica_id,
                broker_epoch=from_wire(session.replica_epoch),
                current_leader_epoch=from_wire(fetch.current_leader_epoch),
                fetch_offset=fetch.fetch_offset,
                last_fetched_epoch=from_wire(fetch.last_fetched_epoch),
                eligible=self._is_eligible(session.replica_id, from_wire(session.replica_epoch)),
            )
        )
        if isinstance(verdict, FetchRefused):
            session.drop(topic_partition)
            return self._refused(partition, verdict)
        entry = session.partitions.get(topic_partition)
        if entry is None:
            entry = session.partitions[topic_partition] = SessionPartition(partition, fetch)
            partition.sessions.append(session)
        elif entry.partition is not partition:  # the topic was deleted and created again
            session.drop(topic_partition)
            return self._take_position(session, topic_partition, fetch, body)
        entry.fetch = fetch
        entry.awaits_position = False
        session.news[topic_partition] = None
        return None

    def _handle_whole(self, request: IncomingRequest, body: FetchRequest) -> None:
        """A consumer's fetch (or a bare follower's): all partitions are listed each time."""
        parked = ParkedFetch(request, body, None)
        if not self._answer_whole(parked, force=body.max_wait_ms <= 0, first=True):
            for topic in body.topics:
                for fetch in topic.partitions:
                    partition = self._partitions.get(TopicPartition(topic.topic, fetch.partition))
                    if partition is not None:
                        partition.waiting_fetches[parked] = None
                        parked.watched.append(partition)
            self._park(parked)

    def _park(self, parked: ParkedFetch) -> None:
        wait_ms = min(parked.body.max_wait_ms, MAX_WAIT_MS)
        parked.timer = asyncio.get_running_loop().call_later(wait_ms / 1000, self._expire, parked)

    def _expire(self, parked: ParkedFetch) -> None:
        self._try_answer(parked, force=True)

    def _try_answer(self, parked: ParkedFetch, force: bool) -> None:
        if parked.done:
            return
        if parked.session is not None:
            self._answer_session(parked, force)
        else:
            self._answer_whole(parked, force, first=False)

    # ------------------------------------------------------------------------------------------------------- wake
    def appended(self, partition: "Partition") -> None:
        """New records for followers."""
        for session in partition.sessions:
            session.news[partition.topic_partition] = None
            if session.parked is not None:
                self._wake(session.parked)

    def high_watermark_rose(self, partition: "Partition") -> None:
        """New records for consumers; a newer mark for followers, which can wait a little."""
        for parked in partition.waiting_fetches:
            self._wake(parked)
        for session in partition.sessions:
            session.news[partition.topic_partition] = None
            parked = session.parked
            if parked is not None and parked.mark_timer is None:
                loop = asyncio.get_running_loop()
                parked.mark_timer = loop.call_later(MARK_NEWS_DELAY_MS / 1000, self._expire, parked)

    def partition_changed(self, partition: "Partition") -> None:
        """Its role or epoch changed, or it is gone: whoever waits for it must hear."""
        for parked in partition.waiting_fetches:
            self._wake(parked)
        for session in partition.sessions:
            session.news[partition.topic_partition] = None
            if session.parked is not None:
                self._wake(session.parked)

    def _wake(self, parked: ParkedFetch) -> None:
        self._woken[parked] = None
        if not self._flush_scheduled:
            self._flush_scheduled = True
            asyncio.get_running_loop().call_soon(self.flush)

    def flush(self) -> None:
        """Answer what was woken. Called once the requests of one read are handled, so that one answer carries all."""
        self._flush_scheduled = False
        while self._woken:
            woken, self._woken = self._woken, {}
            for parked in woken:
                self._try_answer(parked, force=False)

    def connection_closed(self, connection: ServerConnection) -> None:
        """Its parked fetches and its session go."""
        session = self._sessions.get(connection)
        if session is not None:
            self._end_session(session)

    def parked_count(self) -> int:
        """Fetches that wait now."""
        waiting = {parked for p in self._partitions.values() for parked in p.waiting_fetches}
        return len(waiting) + sum(session.parked is not None for session in self._sessions.values())

    def _end_session(self, session: FetchSession) -> None:
        if session.parked is not None:
            session.parked.end()
        for topic_partition in list(session.partitions):
            session.drop(topic_partition)
        if self._sessions.get(session.connection) is session:
            del self._sessions[session.connection]

    # ------------------------------------------------------------------------------------------- answer a follower
    def _answer_session(
        self, parked: ParkedFetch, force: bool, refused: dict[str, list[FetchedRecords]] | None = None
    ) -> bool:
        """Answer if there is something to say, or if it must end now. Looks only at partitions with news."""
        session = parked.session
        assert session is not None
        topics: dict[str, list[FetchedRecords]] = refused or {}
        budget = min(parked.body.max_bytes, self._response_max_bytes)
        size, urgent = 0, bool(topics)
        marks: list[TopicPartition] = []
        for topic_partition in list(session.news):
            entry = session.partitions.get(topic_partition)
            if entry is None:
                del session.news[topic_partition]
                continue
            if entry.awaits_position:
                continue
            answer, is_error = self._answer_entry(session, entry, budget - size, first=not size)
            if answer is None:
                if self._has_newer_marks(entry):
                    marks.append(topic_partition)
                elif not entry.partition.log.has_data(entry.fetch.fetch_offset, entry.partition.state.log_end_offset):
                    del session.news[topic_partition]
                continue
            topics.setdefault(topic_partition.topic, []).append(answer)
            size += answer.size_bytes
            urgent = urgent or is_error or answer.size_bytes > 0
        if not urgent and not force:
            return False
        for topic_partition in marks:
            self._add_marks(session, topic_partition, topics)
        parked.end()
        self._counters.replication_bytes_out += size
        head = FetchResponse(session_id=session.id)
        parked.request.respond_frame(encode_fetch_response(parked.request.correlation_id, head, list(topics.items())))
        return True

    def _answer_entry(
        self, session: FetchSession, entry: SessionPartition, budget: int, first: bool
    ) -> tuple[FetchedRecords | None, bool]:
        """(records or refusal for one partition, whether it is a refusal). The follower's state is not touched here."""
        partition, fetch = entry.partition, entry.fetch
        refusal = refuse_fetch(
            partition.state,
            from_wire(fetch.current_leader_epoch),
            fetch.fetch_offset,
            from_wire(fetch.last_fetched_epoch),
        )
        if refusal is not None:
            session.drop(partition.topic_partition)
            return self._refused(partition, refusal), True
        granted = grant_follower(partition.state, fetch.fetch_offset)
        if budget <= 0 or not partition.log.has_data(fetch.fetch_offset, granted.end_offset):
            return None, False
        records = self._read(partition, fetch, granted, budget, first)
        if records.response.error_code:
            session.drop(partition.topic_partition)
            return records, True
        if not records.size_bytes:
            return None, False
        entry.awaits_position = True
        entry.told_high_watermark = granted.high_watermark
        entry.told_log_start_offset = granted.log_start_offset
        return records, False

    @staticmethod
    def _has_newer_marks(entry: SessionPartition) -> bool:
        state = entry.partition.state
        return (
            state.high_watermark != entry.told_high_watermark or state.log_start_offset != entry.told_log_start_offset
        )

    def _add_marks(
        self, session: FetchSession, topic_partition: TopicPartition, topics: dict[str, list[FetchedRecords]]
    ) -> None:
        entry = session.partitions[topic_partition]
        granted = grant_follower(entry.partition.state, entry.fetch.fetch_offset)
        entry.told_high_watermark = granted.high_watermark
        entry.told_log_start_offset = granted.log_start_offset
        session.news.pop(topic_partition, None)
        answer = _fetched(topic_partition.partition, granted, (), 0)
        topics.setdefault(topic_partition.topic, []).append(answer)

    # ------------------------------------------------------------------------------------------- answer a consumer
    def _answer_whole(self, parked: ParkedFetch, force: bool, first: bool) -> bool:
        """Answer if min_bytes are there, anything went wrong, or it must end now."""
        body = parked.body
        budget = min(body.max_bytes, self._response_max_bytes)
        if self._unsent_reply_bytes() > UNSENT_REPLIES_MAX_BYTES:
            budget = 0  # others have not read what they asked for
        size, urgent = 0, False
        topics: list[tuple[str, list[FetchedRecords]]] = []
        for topic in body.topics:
            answers: list[FetchedRecords] = []
            for fetch in topic.partitions:
                answer = self._answer_listed(body, topic.topic, fetch, budget - size, not size, report=first)
                size += answer.size_bytes
                urgent = urgent or bool(answer.response.error_code) or answer.response.diverging_epoch is not None
                answers.append(answer)
            topics.append((topic.topic, answers))
        if not urgent and not force and size < max(1, parked.min_bytes):
            return False
        parked.end()
        self._counters.bytes_out += size
        parked.request.respond_frame(encode_fetch_response(parked.request.correlation_id, FetchResponse(), topics))
        return True

    def _answer_listed(
        self, body: FetchRequest, topic: str, fetch: FetchPartition, budget: int, first: bool, report: bool
    ) -> FetchedRecords:
        topic_partition = TopicPartition(topic, fetch.partition)
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return self._unknown(topic_partition, fetch.partition)
        epoch, offset = from_wire(fetch.current_leader_epoch), fetch.fetch_offset
        last_epoch = from_wire(fetch.last_fetched_epoch)
        verdict: FetchGranted | FetchRefused
        if body.replica_id < 0:
            partition.services.check_fence()
            verdict = judge_consumer_fetch(partition.state, epoch, offset, last_epoch)
        elif report:
            replica_epoch = from_wire(body.replica_epoch)
            verdict = partition.handle_fetch(
                FollowerFetched(
                    now_ms=self._now_ms(),
                    replica_id=body.replica_id,
                    broker_epoch=replica_epoch,
                    current_leader_epoch=epoch,
                    fetch_offset=offset,
                    last_fetched_epoch=last_epoch,
                    eligible=self._is_eligible(body.replica_id, replica_epoch),
                )
            )
        else:
            refusal = refuse_fetch(partition.state, epoch, offset, last_epoch)
            verdict = grant_follower(partition.state, offset) if refusal is None else refusal
        if isinstance(verdict, FetchRefused):
            return self._refused(partition, verdict)
        return self._read(partition, fetch, verdict, budget, first)

    # ------------------------------------------------------------------------------------------------------- both
    def _read(
        self, partition: "Partition", fetch: FetchPartition, granted: FetchGranted, budget: int, first: bool
    ) -> FetchedRecords:
        """Whole batches; the first of a response may exceed its limits, so that nobody is stuck (KIP-74)."""
        if budget <= 0 or not partition.log.has_data(granted.fetch_offset, granted.end_offset):
            return _fetched(fetch.partition, granted, (), 0)
        limit = max(0, min(budget, fetch.partition_max_bytes))
        try:
            found = partition.log.read(granted.fetch_offset, limit, granted.end_offset)
        except CorruptLog as error:
            log.error("%s: %s", partition.topic_partition, error)
            return self._refused(partition, FetchRefused(ErrorCode.CORRUPT_MESSAGE))
        except DiskError as error:
            self._log_failed(partition, error)
            return self._refused(partition, FetchRefused(ErrorCode.KAFKA_STORAGE_ERROR))
        if found.size_bytes > limit and not first:
            return _fetched(fetch.partition, granted, (), 0)
        return _fetched(fetch.partition, granted, found.parts, found.size_bytes)

    def _refused(self, partition: "Partition", verdict: FetchRefused) -> FetchedRecords:
        self._counters.failed_fetch += verdict.error_code is not ErrorCode.NONE
        state = partition.state
        diverging = verdict.diverging
        hint = None
        if verdict.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            hint = self._leader_hint(partition.topic_partition)
        response = FetchPartitionResponse(
            partition_index=partition.topic_partition.partition,
            error_code=verdict.error_code,
            high_watermark=state.high_watermark if diverging else -1,
            log_start_offset=state.log_start_offset,
            diverging_epoch=EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]) if diverging else None,
            current_leader=hint,
        )
        return FetchedRecords(response, (), 0)

    def _unknown(self, topic_partition: TopicPartition, index: int) -> FetchedRecords:
        known = self._is_known(topic_partition)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        hint = self._leader_hint(topic_partition) if known else None
        return FetchedRecords(
            FetchPartitionResponse(partition_index=index, error_code=code, current_leader=hint), (), 0
        )


def _fetched(index: int, granted: FetchGranted, parts: Sequence[Buffer], size_bytes: int) -> FetchedRecords:
    response = FetchPartitionResponse(
        partition_index=index,
        high_watermark=to_wire(granted.high_watermark),
        last_stable_offset=to_wire(granted.high_watermark),
        log_start_offset=granted.log_start_offset,
    )
    return FetchedRecords(response, parts, size_bytes)
