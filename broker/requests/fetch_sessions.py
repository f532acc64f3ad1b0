"""Incremental fetch sessions of followers: a request lists only changed partitions, an answer reads only updated ones
(KIP-227).

Owns: what each session knows of its follower, and the answer to it. Leaves to others: consumers. Unlike in Kafka, a
session belongs to its connection and ends with it, and a new request of a session ends the delayed one.
"""

from collections.abc import Mapping

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.leader import FetchGranted, FetchRefused, grant_follower, refuse_fetch
from minibroker.broker.replication.state import LEADER
from minibroker.broker.requests.delayed_fetches import DelayedFetch, DelayedFetches
from minibroker.broker.requests.fetch_answers import FetchAnswers, watermarks_only
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition, from_wire
from minibroker.protocol.wire.codec import FetchedRecords, encode_fetch_response
from minibroker.protocol.wire.messages import FetchPartition, FetchRequest, FetchResponse
from minibroker.runtime.server.incoming_request import IncomingRequest, RequestConnection

SESSIONS_PER_BROKER_MAX = 2
"""A broker that reconnects has one more while its old connection is not yet known to be lost. The oldest is dropped."""

Refusals = dict[str, list[FetchedRecords]]


class SessionPartition:
    """What a session knows of one partition of its follower."""

    __slots__ = (
        "awaits_position",
        "fetch",
        "partition",
        "sent",
    )

    def __init__(self, partition: Partition, fetch: FetchPartition) -> None:
        self.partition = partition
        self.fetch = fetch
        self.awaits_position = False
        """Records were sent; nothing more is sent before the follower reports its position."""
        self.sent: FetchGranted | None = None
        """What the last answer for it told."""

    def is_at_the_end(self) -> bool:
        """Nothing to send and no error: the usual case right after the follower reported its position."""
        state, fetch = self.partition.state, self.fetch
        return (
            fetch.fetch_offset == state.log_end_offset
            and fetch.current_leader_epoch == state.leader_epoch
            and state.role is LEADER
            and not state.fenced
        )

    def has_newer_watermarks(self) -> bool:
        state, sent = self.partition.state, self.sent
        return (
            sent is None
            or state.high_watermark != sent.high_watermark
            or state.log_start_offset != sent.log_start_offset
            or state.low_watermark != sent.low_watermark
        )

    def has_records(self) -> bool:
        """The follower lacks records; those that an answer has no room for keep the partition in `updated`."""
        return self.partition.log.has_data(self.fetch.fetch_offset, self.partition.state.log_end_offset)


class FetchSession:
    """One follower's session on one connection, which belongs to one registration of it (`authorization`)."""

    __slots__ = (
        "alarm",
        "alarm_at",
        "connection",
        "delayed",
        "epoch",
        "id",
        "partitions",
        "replica_epoch",
        "replica_id",
        "updated",
    )

    def __init__(self, connection: RequestConnection, body: FetchRequest) -> None:
        self.id = connection.id & 0x7FFFFFFF or 1
        self.connection = connection
        self.epoch = 0
        self.replica_id = body.replica_id
        self.replica_epoch = from_wire(body.replica_epoch)
        self.partitions: dict[TopicPartition, SessionPartition] = {}
        self.updated: dict[TopicPartition, None] = {}
        """Partitions that may have something to send; the next answer reads them in this order.

        A served partition is removed, and its position report puts it behind those that had no room: none starves.
        """
        self.delayed: DelayedFetch | None = None
        self.alarm: int | None = None
        self.alarm_at = 0.0

    def drop(self, topic_partition: TopicPartition) -> None:
        entry = self.partitions.pop(topic_partition, None)
        self.updated.pop(topic_partition, None)
        if entry is not None and self in entry.partition.sessions:
            entry.partition.sessions.remove(self)


class FetchSessions:
    """All sessions of a broker."""

    def __init__(
        self,
        *,
        partitions: Mapping[TopicPartition, Partition],
        answers: FetchAnswers,
        waiting: DelayedFetches,
        response_max_bytes: int,
        counters: BrokerCounters,
    ) -> None:
        self._partitions = partitions
        self._answers = answers
        self._waiting = waiting
        self._response_max_bytes = response_max_bytes
        self._counters = counters
        self._sessions: dict[RequestConnection, FetchSession] = {}

    @property
    def waiting_count(self) -> int:
        """Fetches that wait now."""
        return sum(session.delayed is not None for session in self._sessions.values())

    # --------------------------------------------------------------------------------------------------- requests
    def handle(self, request: IncomingRequest, body: FetchRequest) -> None:
        """Open a session or continue it; answer now, or delay."""
        session = self._sessions.get(request.connection)
        if body.session_epoch == 0:
            session = self._open(request.connection, body)
        elif session is None or body.session_id not in (0, session.id):  # 0: it does not know the id yet
            request.respond(FetchResponse(error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
            return
        elif body.session_epoch != session.epoch:
            request.respond(FetchResponse(error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH))
            return
        session.epoch += 1
        if session.delayed is not None:
            self.answer(session.delayed, force=True)
        refused = self._update(session, body)
        request.send_answers()  # answer the producers that waited for this report before the rest is done
        delayed = DelayedFetch(request, body, session)
        session.delayed = delayed
        if self.answer(delayed, body.max_wait_ms <= 0 or bool(refused), refused):
            return
        self._waiting.delay_of_follower(delayed, session)
        if session.updated:
            self._waiting.wake_for_watermark(delayed)  # this report itself may have raised the high watermark

    def connection_closed(self, connection: RequestConnection) -> None:
        session = self._sessions.get(connection)
        if session is not None:
            self._end(session)

    def _open(self, connection: RequestConnection, body: FetchRequest) -> FetchSession:
        previous = self._sessions.get(connection)
        if previous is not None:
            self._end(previous)
        alike = [s for s in self._sessions.values() if s.replica_id == body.replica_id]
        if len(alike) >= SESSIONS_PER_BROKER_MAX:
            self._end(alike[0])
        session = self._sessions[connection] = FetchSession(connection, body)
        return session

    def _end(self, session: FetchSession) -> None:
        """Stop watching its partitions; a request that waits gets an empty answer, if its peer is still connected."""
        delayed = session.delayed
        if delayed is not None:
            self._waiting.answered(delayed)
            delayed.request.respond(FetchResponse(session_id=session.id))
        for topic_partition in list(session.partitions):
            session.drop(topic_partition)
        self._waiting.session_ended(session)
        del self._sessions[session.connection]

    def _update(self, session: FetchSession, body: FetchRequest) -> Refusals:
        """Apply the positions that the follower reports; a refused partition is answered and leaves the session."""
        for forgotten in body.forgotten_topics_data:
            for index in forgotten.partitions:
                session.drop(TopicPartition(forgotten.topic, index))
        refused: Refusals = {}
        for topic in body.topics:
            for fetch in topic.partitions:
                name = TopicPartition(topic.topic, fetch.partition)
                refusal = self._take_position(session, name, topic.topic_id, fetch)
                if refusal is not None:
                    refused.setdefault(topic.topic, []).append(refusal)
        return refused

    def _take_position(
        self, session: FetchSession, topic_partition: TopicPartition, topic_id: str, fetch: FetchPartition
    ) -> FetchedRecords | None:
        """A position in a topic that was deleted says nothing about the one of its name, which has the same epochs."""
        partition = self._partitions.get(topic_partition)
        if partition is None:
            return self._answers.unknown(topic_partition, topic_id)
        if not partition.is_of_topic(topic_id):
            session.drop(topic_partition)
            return self._answers.refused(partition, FetchRefused(ErrorCode.INCONSISTENT_TOPIC_ID))
        decision = self._answers.report_position(partition, session.replica_id, session.replica_epoch, fetch)
        if isinstance(decision, FetchRefused):
            session.drop(topic_partition)
            return self._answers.refused(partition, decision)
        entry = session.partitions.get(topic_partition)
        if entry is not None and entry.partition is not partition:  # the topic was deleted and created again
            session.drop(topic_partition)
            entry = None
        if entry is None:
            entry = session.partitions[topic_partition] = SessionPartition(partition, fetch)
            partition.sessions.append(session)
        is_same_epoch = fetch.current_leader_epoch == entry.fetch.current_leader_epoch
        if not (entry.awaits_position and is_same_epoch):  # the follower drops what it was told since it listed before
            entry.sent = None
        entry.fetch = fetch
        entry.awaits_position = False
        session.updated[topic_partition] = None
        return None

    # ----------------------------------------------------------------------------------------------------- answer
    def answer(self, delayed: DelayedFetch, force: bool, refused: Refusals | None = None) -> bool:
        """Answer if there is something to send, or if it must end now. Reads only updated partitions."""
        session = delayed.session
        assert isinstance(session, FetchSession)
        topics: dict[str, list[FetchedRecords]] = refused or {}
        budget = min(delayed.body.max_bytes, self._response_max_bytes)
        size, urgent = 0, bool(topics)
        with_watermarks: list[TopicPartition] = []
        for topic_partition in list(session.updated):
            entry = session.partitions.get(topic_partition)
            if entry is None:
                del session.updated[topic_partition]
                continue
            if entry.awaits_position:
                continue
            if entry.is_at_the_end():
                if entry.has_newer_watermarks():
                    with_watermarks.append(topic_partition)
                else:
                    del session.updated[topic_partition]
                continue
            answer, is_error = self._answer_entry(session, entry, budget - size, first=not size)
            if answer is None:
                if entry.has_newer_watermarks():
                    with_watermarks.append(topic_partition)
                elif not entry.has_records():
                    del session.updated[topic_partition]
                continue
            session.updated.pop(topic_partition, None)
            topics.setdefault(topic_partition.topic, []).append(answer)
            size += answer.size_bytes
            urgent = urgent or is_error or answer.size_bytes > 0
        if not urgent and not force:
            return False
        for topic_partition in with_watermarks:
            self._add_watermarks(session, topic_partition, topics)
        self._waiting.answered(delayed)
        self._counters.replication_bytes_out += size
        head = FetchResponse(session_id=session.id)
        delayed.request.respond_frame(encode_fetch_response(delayed.request.correlation_id, head, list(topics.items())))
        return True

    def _answer_entry(
        self, session: FetchSession, entry: SessionPartition, budget: int, first: bool
    ) -> tuple[FetchedRecords | None, bool]:
        """(records or refusal for one partition, whether it is a refusal). Does not change the follower's state."""
        partition, fetch = entry.partition, entry.fetch
        refusal = refuse_fetch(
            partition.state,
            from_wire(fetch.current_leader_epoch),
            fetch.fetch_offset,
            from_wire(fetch.last_fetched_epoch),
        )
        if refusal is not None:
            session.drop(partition.topic_partition)
            return self._answers.refused(partition, refusal), True
        granted = grant_follower(partition.state, fetch.fetch_offset)
        records = self._answers.read(partition, fetch, granted, budget, first)
        if records.response.error_code:
            session.drop(partition.topic_partition)
            return records, True
        if not records.size_bytes:
            return None, False
        entry.awaits_position = True
        entry.sent = granted
        return records, False

    def _add_watermarks(
        self, session: FetchSession, topic_partition: TopicPartition, topics: dict[str, list[FetchedRecords]]
    ) -> None:
        entry = session.partitions[topic_partition]
        granted = grant_follower(entry.partition.state, entry.fetch.fetch_offset)
        entry.sent = granted
        if not entry.has_records():
            session.updated.pop(topic_partition, None)
        topics.setdefault(topic_partition.topic, []).append(watermarks_only(topic_partition.partition, granted))
