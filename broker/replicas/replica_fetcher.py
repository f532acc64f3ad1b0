"""Copying from one leader: a connection, a fetch session, and the queries that precede fetching.

Owns: the requests to one leader broker and their timing, for all partitions it leads and this broker follows. Leaves to
others: where to truncate and whether an answer counts (the core). Every query carries the leader epoch under which it
was sent, and its answer goes to the core with that epoch.

The next fetch is sent in the callback of the last reply: there is no task switch between copying records and reporting
them. Source: replication rules, section 4; KIP-227 (sessions), hardening rule 9.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import islice

import msgspec

from minibroker.broker.replicas.leader_ends import PARTITIONS_PER_QUESTION_MAX, ends_question, read_ends
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.events import AskEpochEnd, EpochEndAnswered, FetchAnswered
from minibroker.broker.replication.state import Fetching, TruncationRule
from minibroker.protocol.errors import NO_ERROR, ErrorCode, error_code
from minibroker.protocol.events.broker_events import LeaderSilent
from minibroker.protocol.events.replica_events import DamagedBatchReceived
from minibroker.protocol.ids import TopicPartition, from_wire, to_wire
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch, check_batch
from minibroker.protocol.wire.messages import (
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    Response,
)
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import ConnectionRefused, NetworkError
from minibroker.runtime.rpc import RpcConnection, RpcError

log = logging.getLogger("minibroker.fetcher")

FETCHES_IN_FLIGHT_MAX = 2
"""One that waits at the leader, and one that ends it with new positions."""
PARTITIONS_PER_REQUEST_MAX = 1_000
"""A leader takes no request of more than 1 MiB; a partition of a topic with a long name takes 400 bytes of it."""
CONNECT_TIMEOUT_MS = 2_000
REDIAL_TIMEOUT_MS = 200
"""A lost connection is dialled again at once, at the same address: a kernel that refuses does so within one round trip,
and if the address disappears with its process (a container), for some milliseconds only."""
REDIAL_PAUSES_MS = (0, 10, 20, 40)
"""Before each such attempt. A dying process may close its listening socket last: then it accepts another connection and
loses it at once, or resets one that is being opened. Together the attempts take no longer than a container's address
refuses."""
STEADY_SECONDS = 1.0
"""A connection that lasted this long is dialled again without a pause."""
RECONNECT_MS = (50, 100, 200, 400, 800, 1_000)
"""Pauses between attempts to reach the leader; the last one repeats."""

Reply = Response | RpcError
Followers = dict[TopicPartition, Partition]
"""The replicas that ask. An answer is for these, not for one of a later topic of that name: its epochs begin anew."""


class FetcherConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of all fetchers of a broker."""

    broker_id: int
    max_wait_ms: int
    min_bytes: int
    partition_max_bytes: int
    response_max_bytes: int
    socket_timeout_ms: int


class Redial(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a connection that was just lost, to be dialled again."""

    address: tuple[str, int]
    registration: int | None
    """The leader's registration when the connection was dialled."""
    lost_at: float
    attempt: int = 0
    """Number of attempts since."""


class ReplicaFetcher:
    """Follows one leader broker. `run` is a task of the owner. Each request for a partition adds it, `leave` removes
    it."""

    def __init__(
        self,
        *,
        dialer: BrokerDialer,
        leader_id: int,
        address: Callable[[int], tuple[str, int] | None],
        leader_registration: Callable[[int], int | None],
        on_refused: Callable[[int, int | None], None],
        broker_epoch: Callable[[], int | None],
        config: FetcherConfig,
        observer: Observer,
    ) -> None:
        self._observer = observer
        self.leader_id = leader_id
        self.partitions: dict[TopicPartition, Partition] = {}
        self.bytes_copied = 0
        self._dialer = dialer
        self._address = address
        self._leader_registration = leader_registration
        self._on_refused = on_refused
        self._broker_epoch = broker_epoch
        self._config = config
        self._connection: RpcConnection | None = None
        self._registered: tuple[int | None, tuple[str, int] | None] = (None, None)  # the leader, when dialled last
        self._work = asyncio.Event()
        self._lost = asyncio.Event()
        self._scheduled = False
        self._questions: dict[TopicPartition, AskEpochEnd] = {}
        self._ends_wanted: dict[TopicPartition, int] = {}
        self._to_list: dict[TopicPartition, None] = {}
        self._forgotten: dict[TopicPartition, None] = {}
        self._positions: dict[TopicPartition, tuple[int, int, int]] = {}
        """(leader epoch, fetch offset, number of the request) as last listed in the session. A reply answers what was
        listed in its own request or before: if a later one listed the partition again, the reply is about an old
        position."""
        self._requests = 0
        self._session_id = 0
        self._session_epoch = 0
        self._in_flight = 0
        self._waits_since = 0.0
        """When the last reply came, or when a request was sent while none was waiting."""
        self._loop = asyncio.get_running_loop()

    # ------------------------------------------------------------------------------------------------- partitions
    def leave(self, topic_partition: TopicPartition) -> None:
        """Stop copying it; answers still on their way are dropped."""
        self.partitions.pop(topic_partition, None)
        self._questions.pop(topic_partition, None)
        self._ends_wanted.pop(topic_partition, None)
        self._to_list.pop(topic_partition, None)
        if self._positions.pop(topic_partition, None) is not None:
            self._forgotten[topic_partition] = None

    def ask_epoch_end(self, partition: Partition, question: AskEpochEnd) -> None:
        self.partitions[partition.topic_partition] = partition
        self._questions[partition.topic_partition] = question
        self._schedule()

    def ask_leader_ends(self, partition: Partition, leader_epoch: int) -> None:
        self.partitions[partition.topic_partition] = partition
        self._ends_wanted[partition.topic_partition] = leader_epoch
        self._schedule()

    def fetch_next(self, partition: Partition) -> None:
        """Its position changed: list it in the next fetch."""
        self.partitions[partition.topic_partition] = partition
        self._to_list[partition.topic_partition] = None
        self._schedule()

    def _schedule(self) -> None:
        """Send once the current step is over: many partitions share one request."""
        self._work.set()
        if not self._scheduled and self._connection is not None:
            self._scheduled = True
            self._loop.call_soon(self._send_all)

    # ------------------------------------------------------------------------------------------------- connection
    async def run(self) -> None:
        """Keep a connection while there are partitions to follow, forever."""
        failures = 0
        redial: Redial | None = None
        while True:
            await self._work.wait()
            if not self.partitions:
                self._work.clear()
                redial = None
                continue
            pause_ms = RECONNECT_MS[min(failures, len(RECONNECT_MS) - 1)]
            try:
                await self._open(redial)
            except NetworkError as error:
                if failures == 0:
                    log.info("broker %d cannot be reached: %s", self.leader_id, error)
                redial = None if isinstance(error, ConnectionRefused) else self._once_more(redial)
                failures += redial is None
            else:
                failures, pause_ms = 0, RECONNECT_MS[0]
                redial = await self._use(redial)
            await asyncio.sleep((pause_ms if redial is None else REDIAL_PAUSES_MS[redial.attempt]) / 1000)
            if redial is not None and redial.registration != self._leader_registration(self.leader_id):
                redial = None

    async def _use(self, redial: Redial | None) -> Redial | None:
        """Use the open connection until it ends; returns what to dial next, None for the leader's registered
        address."""
        opened_at = self._loop.time()
        try:
            was_lost = await self._watch()
        finally:
            address = self._close()
        now = self._loop.time()
        if not was_lost or address is None:
            return None
        if now - opened_at >= STEADY_SECONDS:
            return Redial(address=address, registration=self._registered[0], lost_at=now)
        return self._once_more(redial)

    def _once_more(self, redial: Redial | None) -> Redial | None:
        """The next attempt; None after the last one, or if it took so long that no host answers there."""
        if redial is None or self._loop.time() - redial.lost_at >= REDIAL_TIMEOUT_MS / 1000:
            return None
        attempt = redial.attempt + 1
        return msgspec.structs.replace(redial, attempt=attempt) if attempt < len(REDIAL_PAUSES_MS) else None

    async def _open(self, redial: Redial | None) -> None:
        registered = self._registered = self._leader_registration(self.leader_id), self._address(self.leader_id)
        address = redial.address if redial else registered[1]
        if address is None:
            raise NetworkError(f"broker {self.leader_id} is not registered")
        client_id = f"broker-{self._config.broker_id}-fetcher"
        timeout_ms = REDIAL_TIMEOUT_MS if redial else CONNECT_TIMEOUT_MS
        try:
            connection = await self._dialer.connect(self.leader_id, address, client_id=client_id, timeout_ms=timeout_ms)
        except ConnectionRefused:
            self._on_refused(self.leader_id, registered[0])
            raise
        self._connection = connection
        self._lost = asyncio.Event()
        connection.on_closed = self._lost.set
        self._restart_session()
        self._list_all_again()
        self._schedule()

    async def _watch(self) -> bool:
        """Wait until the connection is lost (True), silent for too long, not needed, or of a former address (False).

        Every request has this deadline, questions as well as fetches: a leader may lose the connection unnoticed, and
        a follower that sends nothing more never learns it (seed 17151914). A former process may run on elsewhere."""
        connection = self._connection
        assert connection is not None
        limit = (self._config.socket_timeout_ms + self._config.max_wait_ms) / 1000
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(limit / 4):
                    await self._lost.wait()
            except TimeoutError:
                if connection.is_waited_on and self._loop.time() - self._waits_since > limit:
                    self._observer.notify(LeaderSilent(leader=self.leader_id))
                    return False
                if not self.partitions or self._address(self.leader_id) not in (None, self._registered[1]):
                    return False
        return True

    def _close(self) -> tuple[str, int] | None:
        """Close the connection; returns its remote address."""
        connection, self._connection = self._connection, None
        self._in_flight = 0
        if connection is None:
            return None
        connection.on_closed = None
        connection.abort()
        return connection.remote_address

    def _list_all_again(self) -> None:
        """On a new connection or session, list every fetching partition again."""
        for topic_partition, partition in self.partitions.items():
            if isinstance(partition.state.phase, Fetching):
                self._to_list[topic_partition] = None

    def _restart_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._positions.clear()
        self._forgotten.clear()

    # ----------------------------------------------------------------------------------------------------- asking
    def _send_all(self) -> None:
        self._scheduled = False
        connection = self._connection
        if connection is None or connection.closed:
            return
        if not connection.is_waited_on:
            self._waits_since = self._loop.time()
        try:
            while self._questions:
                self._send_questions(connection)
            if self._ends_wanted:
                self._send_ends(connection)
            self._send_fetch(connection)
        except RpcError:
            self._lost.set()

    def _send_questions(self, connection: RpcConnection) -> None:
        asked = dict(islice(self._questions.items(), PARTITIONS_PER_REQUEST_MAX))
        topics: dict[tuple[str, str], list[OffsetForLeaderPartition]] = {}
        for topic_partition, question in asked.items():
            item = OffsetForLeaderPartition(
                partition=topic_partition.partition,
                current_leader_epoch=question.leader_epoch,
                leader_epoch=question.epoch,
            )
            topics.setdefault(self._topic_of(topic_partition), []).append(item)
        body = OffsetForLeaderEpochRequest(
            replica_id=self._config.broker_id,
            topics=[
                OffsetForLeaderTopic(topic=name, topic_id=topic_id, partitions=items)
                for (name, topic_id), items in topics.items()
            ],
        )
        followers = {topic_partition: self.partitions[topic_partition] for topic_partition in asked}
        connection.send(body, lambda reply: self._on_epoch_ends(asked, followers, reply))
        for topic_partition in asked:  # not before: if the connection is closing, the next one asks them
            del self._questions[topic_partition]

    def _topic_of(self, topic_partition: TopicPartition) -> tuple[str, str]:
        """Name and id of its topic. A request that arrives late must not be taken for one about a later topic of that
        name, whose leader epochs begin anew."""
        return topic_partition.topic, self.partitions[topic_partition].log.topic_id or ""

    def _on_epoch_ends(self, asked: dict[TopicPartition, AskEpochEnd], followers: Followers, reply: Reply) -> None:
        self._waits_since = self._loop.time()
        found = {}
        code = ErrorCode.NETWORK_EXCEPTION
        if isinstance(reply, OffsetForLeaderEpochResponse):
            code = error_code(reply.error_code) if reply.error_code else ErrorCode.UNKNOWN_SERVER_ERROR
            found = {TopicPartition(t.topic, p.partition): p for t in reply.topics for p in t.partitions}
        for topic_partition, question in asked.items():
            if self.partitions.get(topic_partition) is not followers[topic_partition]:
                continue
            answer = found.get(topic_partition)
            followers[topic_partition].handle(
                EpochEndAnswered(
                    leader_epoch=question.leader_epoch,
                    asked_epoch=question.epoch,
                    error_code=code if answer is None else error_code(answer.error_code),
                    epoch=None if answer is None else from_wire(answer.leader_epoch),
                    end_offset=None if answer is None else from_wire(answer.end_offset),
                )
            )

    def _send_ends(self, connection: RpcConnection) -> None:
        wanted = list(self._ends_wanted.items())
        for first in range(0, len(wanted), PARTITIONS_PER_QUESTION_MAX):
            asked = dict(wanted[first : first + PARTITIONS_PER_QUESTION_MAX])
            topic_ids = {topic_partition: self._topic_of(topic_partition)[1] for topic_partition in asked}
            question = ends_question(self._config.broker_id, asked, topic_ids)
            followers = {topic_partition: self.partitions[topic_partition] for topic_partition in asked}
            connection.send(question, partial(self._on_leader_ends, asked, followers))
            self._ends_wanted = dict(wanted[first + PARTITIONS_PER_QUESTION_MAX :])

    def _on_leader_ends(self, asked: dict[TopicPartition, int], followers: Followers, reply: Reply) -> None:
        self._waits_since = self._loop.time()
        for topic_partition, answer in read_ends(asked, reply).items():
            if self.partitions.get(topic_partition) is followers[topic_partition]:
                followers[topic_partition].handle(answer)

    # --------------------------------------------------------------------------------------------------- fetching
    def _send_fetch(self, connection: RpcConnection) -> None:
        """List what changed. If nothing changed, one fetch stays delayed at the leader, so that updates come at
        once."""
        if self._in_flight >= FETCHES_IN_FLIGHT_MAX:
            return
        changed = self._take_positions()
        if not changed and (not self._positions or (self._in_flight and not self._forgotten)):
            return
        listed: dict[tuple[str, str], list[FetchPartition]] = {}
        self._requests += 1
        number = self._requests
        for topic_partition, item in changed.items():
            self._positions[topic_partition] = (item.current_leader_epoch, item.fetch_offset, number)
            listed.setdefault(self._topic_of(topic_partition), []).append(item)
        body = FetchRequest(
            replica_id=self._config.broker_id,
            replica_epoch=to_wire(self._broker_epoch()),
            max_wait_ms=self._config.max_wait_ms,
            min_bytes=self._config.min_bytes,
            max_bytes=self._config.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            forgotten_topics_data=self._take_forgotten(changed) if self._forgotten else [],
            topics=[
                FetchTopic(topic=name, topic_id=topic_id, partitions=items)
                for (name, topic_id), items in listed.items()
            ],
        )
        self._in_flight += 1
        self._session_epoch += 1
        connection.send(body, lambda reply: self._on_fetched(connection, number, reply))
        if self._to_list:
            self._send_fetch(connection)

    def _take_forgotten(self, listed: dict[TopicPartition, FetchPartition]) -> list[ForgottenTopic]:
        forgotten: dict[str, list[int]] = {}
        for topic_partition in self._forgotten:
            if topic_partition not in listed:
                forgotten.setdefault(topic_partition.topic, []).append(topic_partition.partition)
        self._forgotten.clear()
        return [ForgottenTopic(topic=topic, partitions=partitions) for topic, partitions in forgotten.items()]

    def _take_positions(self) -> dict[TopicPartition, FetchPartition]:
        wanted, self._to_list = self._to_list, {}
        changed: dict[TopicPartition, FetchPartition] = {}
        for topic_partition in wanted:
            if len(changed) == PARTITIONS_PER_REQUEST_MAX:
                self._to_list[topic_partition] = None
                continue
            partition = self.partitions.get(topic_partition)
            if partition is None or not isinstance(partition.state.phase, Fetching):
                continue
            state = partition.state
            if state.config.counts_only_synced and state.synced_end_offset < state.log_end_offset:
                continue  # its end must not count yet: it is listed after the running sync (hardening rule 2)
            unchecked = state.config.truncation_rule is TruncationRule.HIGH_WATERMARK
            changed[topic_partition] = FetchPartition(
                partition=topic_partition.partition,
                current_leader_epoch=to_wire(state.leader_epoch),
                fetch_offset=state.log_end_offset,
                last_fetched_epoch=to_wire(None if unchecked else state.last_fetched_epoch),
                log_start_offset=partition.log.recorded_start_offset,
                partition_max_bytes=self._config.partition_max_bytes,
            )
        return changed

    def _on_fetched(self, connection: RpcConnection, number: int, reply: Response | RpcError) -> None:
        if connection is not self._connection:
            return
        self._in_flight -= 1
        self._waits_since = self._loop.time()
        if not isinstance(reply, FetchResponse):
            self._lost.set()
            return
        self._scheduled = True  # requests that this reply causes are sent below, in the same loop iteration
        if reply.error_code:
            self._on_session_error(error_code(reply.error_code))
        else:
            self._session_id = reply.session_id
            for topic in reply.responses:
                for answer in topic.partitions:
                    self._on_partition(number, TopicPartition(topic.topic, answer.partition_index), answer)
        self._send_all()

    def _on_session_error(self, code: ErrorCode) -> None:
        """The leader does not know the session (any more): list everything in a new one."""
        log.info("fetch session at broker %d ended: %s", self.leader_id, code.name)
        self._restart_session()
        if code not in (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH):
            self._lost.set()
            return
        self._list_all_again()

    def _on_partition(self, number: int, topic_partition: TopicPartition, answer: FetchPartitionResponse) -> None:
        partition, position = self.partitions.get(topic_partition), self._positions.get(topic_partition)
        if partition is None or position is None or position[2] > number:
            return
        code, records, diverging = NO_ERROR, answer.records, answer.diverging_epoch is not None
        if answer.error_code or diverging:
            self._positions.pop(topic_partition)  # the leader dropped it from the session
            code = error_code(answer.error_code)
            if code is ErrorCode.CORRUPT_MESSAGE:
                salvaged = partition.services.repairs.salvage(partition, self._config.partition_max_bytes)
                if salvaged is not None:
                    code, records = NO_ERROR, salvaged
        headers: list[BatchHeader] = []
        buffers: list[memoryview] = []
        if records and code is NO_ERROR:
            try:
                self._split(records, headers, buffers)
            except CorruptBatch as error:
                partition.report(DamagedBatchReceived, leader=self.leader_id, reason=str(error))
                code, headers, buffers = ErrorCode.CORRUPT_MESSAGE, [], []
                self._positions.pop(topic_partition, None)
        self.bytes_copied += len(answer.records)
        partition.handle_fetched(
            FetchAnswered(
                leader_epoch=position[0],
                fetch_offset=position[1],
                error_code=code,
                high_watermark=from_wire(answer.high_watermark),
                log_start_offset=from_wire(answer.log_start_offset),
                low_watermark=from_wire(answer.low_watermark),
                diverging=diverging,
                batches=tuple(headers),
            ),
            buffers,
        )

    @staticmethod
    def _split(records: memoryview, headers: list[BatchHeader], buffers: list[memoryview]) -> None:
        """Whole batches, each with its CRC checked: damage never enters a second log."""
        position = 0
        while position < len(records):
            header = check_batch(records, position)
            end = position + header.size_bytes
            headers.append(header)
            buffers.append(records[position:end])
            position = end
