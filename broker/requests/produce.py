"""Produce requests: from the frame to one answer.

Owns: the check of each batch before it reaches the core, one pending answer per request with a slot per batch in the
order of the request, and the request's own deadline. Leaves to others: when a record is safe (the core).
"""

import heapq
import logging
from collections.abc import Callable

from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.events import ProduceExpired, ProduceReceived
from minibroker.broker.replication.leader import ACKS_NONE
from minibroker.broker.replication.producer_state import continues
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import (
    BatchHeader,
    CorruptBatch,
    UndecodableBatch,
    check_batch,
    check_payload,
)
from minibroker.protocol.wire.messages import (
    CurrentLeader,
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
)
from minibroker.runtime.server.incoming_request import IncomingRequest

log = logging.getLogger("minibroker.produce")

ACKS = (-1, 0, 1)
TIMEOUT_MS_MAX = 300_000
"""Limit of a request's timeout_ms."""
ANOTHER_TOPIC = "this broker's topic of that name is an earlier or a later one"
DECODED_RECORDS_MAX = 32
"""Batches of up to so many records are decoded before they are accepted, which takes some microseconds. For a batch of
a thousand short records, decoding took a tenth to a fifth of a produce request (docs/PERFORMANCE.md); larger batches
are accepted by their CRC and count, and a consumer that cannot decode one reports it, or skips it if configured so."""
DECODED_BYTES_MAX = 1_048_588
"""The same for bytes: one record with five million headers took 400 MB and two seconds. It is the default of
`max.message.bytes`."""
ANSWERED_KEPT_MAX = 1_000
"""Answered requests whose deadlines may be kept behind that of one that waits, besides as many as wait."""
_NO_RECORDS = bytearray()
_NO_BATCHES = ProduceRequest()


class ProduceItem:
    """One batch of one request: the token that the core returns with its answer."""

    __slots__ = ("_pending", "answer", "header", "index", "is_answered", "name", "records", "retry", "topic_id")

    def __init__(self, pending: "PendingProduce", topic: ProduceTopic, data: ProducePartition) -> None:
        self._pending = pending
        self.answer: ProducePartitionResponse | None = None
        self.name = topic.name
        self.topic_id = topic.topic_id
        self.index = data.index
        self.records = data.records
        self.retry = data.retry
        self.header: BatchHeader
        self.is_answered = False

    def resolve(
        self, error_code: ErrorCode, base_offset: int | None, message: str | None, partition: Partition
    ) -> None:
        """The core's answer."""
        hint: CurrentLeader | None = None
        if error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            hint = self._pending.handler.leader_hint(partition.topic_partition, self.topic_id)
        epoch = partition.state.leader_epoch
        self._answer(
            ProducePartitionResponse(
                index=self.index,
                error_code=error_code,
                base_offset=-1 if base_offset is None else base_offset,
                log_start_offset=partition.state.log_start_offset,
                error_message=None if message is None else f"{partition.topic_partition}: {message}",
                current_leader=hint,
                leader_epoch=-1 if epoch is None else epoch,
            )
        )

    def refuse(self, error_code: ErrorCode, message: str | None = None, hint: CurrentLeader | None = None) -> None:
        """Refuse it before it reaches the core."""
        self._answer(
            ProducePartitionResponse(
                index=self.index, error_code=error_code, error_message=message, current_leader=hint
            )
        )

    def fail_storage(self, reason: str) -> None:
        """The append itself failed; nothing of it is in the log."""
        if not self.is_answered:
            self.refuse(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name}-{self.index}: {reason}")

    def _answer(self, response: ProducePartitionResponse) -> None:
        assert not self.is_answered, "a batch is answered once"
        self.is_answered = True
        self.answer = response
        self._pending.item_answered(response)


class PendingProduce:
    """One request that waits for all of its batches."""

    __slots__ = ("_remaining", "_request", "acks", "done", "handler", "items")

    def __init__(self, handler: "ProduceHandler", request: IncomingRequest, body: ProduceRequest) -> None:
        self.handler = handler
        self._request = request
        self.acks = body.acks
        self.done = False
        self.items = [ProduceItem(self, topic, data) for topic in body.topic_data for data in topic.partition_data]
        self._remaining = len(self.items)

    def release_records(self) -> None:
        """While it waits, it keeps no records: its share of memory is counted without them."""
        self._request.body = _NO_BATCHES
        for item in self.items:
            item.records = _NO_RECORDS

    def item_answered(self, response: ProducePartitionResponse) -> None:
        """Another batch has its answer."""
        self.handler.counters.failed_produce += response.error_code != ErrorCode.NONE
        self._remaining -= 1
        if self._remaining == 0:
            self.finish()

    def finish(self) -> None:
        """All batches have results: answer, or for acks=0 send nothing unless there was an error."""
        self.done = True
        answers: dict[str, list[ProducePartitionResponse]] = {}
        for item in self.items:  # in order of the request: several batches may belong to one partition
            assert item.answer is not None
            answers.setdefault(item.name, []).append(item.answer)
        self.items = []  # the deadline may keep this object for a while, but must not keep the records
        if self.acks == ACKS_NONE:
            self._finish_quietly(answers)
            return
        topics = [ProduceTopicResponse(name=name, partition_responses=a) for name, a in answers.items()]
        self._request.respond(ProduceResponse(responses=topics))

    def _finish_quietly(self, answers: dict[str, list[ProducePartitionResponse]]) -> None:
        failed = [(name, a) for name, of_topic in answers.items() for a in of_topic if a.error_code]
        if failed:
            name, answer = failed[0]
            self._request.close_connection(f"acks=0 and {name}-{answer.index}: {ErrorCode(answer.error_code).name}")
        self._request.finish_without_reply()


class ProduceHandler:
    """All produce requests of a broker."""

    def __init__(
        self,
        find_partition: Callable[[TopicPartition], Partition | None],
        leader_hint: Callable[[TopicPartition, str], CurrentLeader | None],
        is_known: Callable[[TopicPartition], bool],
        now_ms: Callable[[], int],
        counters: BrokerCounters,
    ) -> None:
        self._find_partition = find_partition
        self.leader_hint = leader_hint
        self._is_known = is_known
        self._now_ms = now_ms
        self._deadlines: list[tuple[int, int, PendingProduce]] = []
        self._deadlines_max = ANSWERED_KEPT_MAX
        """At so many, those of answered requests are dropped."""
        self._sequence = 0
        self.counters = counters

    def handle(self, request: IncomingRequest, body: ProduceRequest) -> None:
        """From frame to append in one synchronous call; answered when safe enough (replication rules, section 3)."""
        pending = PendingProduce(self, request, body)
        if not pending.items:
            pending.finish()
            return
        if body.acks not in ACKS:
            message = f"acks={body.acks}: it is -1 (all), 1 or 0"
            for item in pending.items:
                item.refuse(ErrorCode.INVALID_REQUIRED_ACKS, message)
            return
        self._handle_items(pending.items, body.acks)
        if not pending.done:
            pending.release_records()
            timeout_ms = max(0, min(body.timeout_ms, TIMEOUT_MS_MAX))
            self._sequence += 1
            heapq.heappush(self._deadlines, (self._now_ms() + timeout_ms, self._sequence, pending))
            if len(self._deadlines) > self._deadlines_max:
                self._drop_answered()

    def _drop_answered(self) -> None:
        """Those in front are dropped in any case (`expire`), unless one waits before them."""
        self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
        heapq.heapify(self._deadlines)
        self._deadlines_max = 2 * len(self._deadlines) + ANSWERED_KEPT_MAX

    def _handle_items(self, items: list[ProduceItem], acks: int) -> None:
        """In order; consecutive batches of a partition that continue one another are checked and written together."""
        run: list[ProduceItem] = []
        partition: Partition | None = None
        name, index = "", -1
        for item in items:
            if item.index != index or item.name != name:
                if run and partition is not None:
                    self._hand_over(partition, run, acks)
                    run = []
                name, index = item.name, item.index
                partition = self._find_partition(TopicPartition(name, index))
            if partition is None:
                self._refuse_unknown(item)
            elif not partition.is_of_topic(item.topic_id):
                item.refuse(ErrorCode.INCONSISTENT_TOPIC_ID, f"{partition.topic_partition}: {ANOTHER_TOPIC}")
            elif self._check(item, partition):
                if run and not continues(run[-1].header, item.header):
                    self._hand_over(partition, run, acks)
                    run = []
                run.append(item)
        if run and partition is not None:
            self._hand_over(partition, run, acks)

    def _refuse_unknown(self, item: ProduceItem) -> None:
        topic_partition = TopicPartition(item.name, item.index)
        known = self._is_known(topic_partition)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        item.refuse(code, hint=self.leader_hint(topic_partition, item.topic_id) if known else None)

    def _hand_over(self, partition: Partition, run: list[ProduceItem], acks: int) -> None:
        headers = tuple([item.header for item in run])
        partition.handle(
            ProduceReceived(
                tokens=tuple(run),
                acks=acks,
                headers=headers,
                producers=partition.log.producers,
                is_retry=run[0].retry,
            )
        )

    def _check(self, item: ProduceItem, partition: Partition) -> bool:
        """Whether the item is exactly one complete, sound batch of a size the topic allows; refuses it if not."""
        size, limit = len(item.records), partition.log.config.max_message_bytes
        where = partition.topic_partition
        if size > limit:
            item.refuse(ErrorCode.MESSAGE_TOO_LARGE, f"{where}: batch of {size} bytes, max.message.bytes={limit}")
            return False
        try:
            item.header = header = check_batch(item.records)
        except CorruptBatch as error:
            item.refuse(ErrorCode.CORRUPT_MESSAGE, f"{where}: {error}")
            return False
        if header.size_bytes != size:
            item.refuse(ErrorCode.INVALID_RECORD, f"{where}: each entry of a request holds one batch")
            return False
        if header.record_count <= DECODED_RECORDS_MAX and size <= DECODED_BYTES_MAX:
            try:
                check_payload(item.records, 0, header)
            except UndecodableBatch as error:
                item.refuse(ErrorCode.INVALID_RECORD, f"{where}: {error}")
                return False
        return True

    def expire(self) -> None:
        """Answer requests that have timed out. Called by the owner's tick."""
        now_ms = self._now_ms()
        while self._deadlines and (self._deadlines[0][2].done or self._deadlines[0][0] <= now_ms):
            _, _, pending = heapq.heappop(self._deadlines)
            for item in pending.items:
                if item.is_answered:
                    continue
                partition = self._find_partition(TopicPartition(item.name, item.index))
                if partition is not None:
                    partition.handle(ProduceExpired(token=item))
                if not item.is_answered:
                    item.refuse(ErrorCode.REQUEST_TIMED_OUT)
