"""The part of a Fetch response about one partition: records, a refusal, or only the watermarks.

Owns: reading the log for a fetch, and the content of a refusal. Leaves to others: when an answer is sent, and which
records may be read; the core decides from where to where.
"""

import logging
from collections.abc import Callable, Sequence

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.observations import RecordsRead
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication.events import FollowerFetched
from minibroker.broker.replication.leader import FetchGranted, FetchRefused
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition, from_wire, to_wire
from minibroker.protocol.wire.codec import FetchedRecords
from minibroker.protocol.wire.messages import CurrentLeader, EpochEndOffset, FetchPartition, FetchPartitionResponse
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import Buffer, DiskError
from minibroker.runtime.server.incoming_request import AnswerSent

log = logging.getLogger("minibroker.fetch")


class FetchAnswers:
    """The answers of one broker."""

    def __init__(
        self,
        *,
        leader_hint: Callable[[TopicPartition, str], CurrentLeader | None],
        is_known: Callable[[TopicPartition], bool],
        is_eligible: Callable[[int, int | None], bool],
        log_failed: Callable[[Partition, DiskError], None],
        log_damaged: Callable[[Partition, str], None],
        now_ms: Callable[[], int],
        counters: BrokerCounters,
        observer: Observer,
    ) -> None:
        self._observer = observer
        self._leader_hint = leader_hint
        self._is_known = is_known
        self._is_eligible = is_eligible
        self._log_failed = log_failed
        self._log_damaged = log_damaged
        self._now_ms = now_ms
        self._counters = counters

    def report_position(
        self, partition: Partition, replica_id: int, replica_epoch: int | None, fetch: FetchPartition
    ) -> FetchGranted | FetchRefused:
        """A follower's fetch is its progress report: pass it to the core, which decides what it may read."""
        return partition.handle_fetch(
            FollowerFetched(
                now_ms=self._now_ms(),
                replica_id=replica_id,
                broker_epoch=replica_epoch,
                current_leader_epoch=from_wire(fetch.current_leader_epoch),
                fetch_offset=fetch.fetch_offset,
                last_fetched_epoch=from_wire(fetch.last_fetched_epoch),
                eligible=self._is_eligible(replica_id, replica_epoch),
                log_start_offset=from_wire(fetch.log_start_offset),
            )
        )

    def read(
        self, partition: Partition, fetch: FetchPartition, granted: FetchGranted, budget: int, first: bool
    ) -> FetchedRecords:
        """Whole batches; the first of a response may exceed its limits, so that no reader is stuck (KIP-74)."""
        if budget <= 0 or not partition.log.has_data(granted.fetch_offset, granted.end_offset):
            return watermarks_only(fetch.partition, granted)
        limit = max(0, min(budget, fetch.partition_max_bytes))
        try:
            found = partition.log.read(granted.fetch_offset, limit, granted.end_offset)
        except CorruptLog as error:
            self._log_damaged(partition, str(error))
            offline = partition.state.is_offline
            return self.refused(
                partition, FetchRefused(ErrorCode.KAFKA_STORAGE_ERROR if offline else ErrorCode.CORRUPT_MESSAGE)
            )
        except DiskError as error:
            self._log_failed(partition, error)
            return self.refused(partition, FetchRefused(ErrorCode.KAFKA_STORAGE_ERROR))
        if found.size_bytes > limit and not first:
            return watermarks_only(fetch.partition, granted)
        fetched = _fetched(fetch.partition, granted, found.parts, found.size_bytes)
        if found.size_bytes and self._observer.wants_details:
            self._observer.notify(RecordsRead(partition, granted.fetch_offset, fetched))
        return fetched

    def refused(self, partition: Partition, decision: FetchRefused) -> FetchedRecords:
        self._counters.failed_fetch += decision.error_code is not ErrorCode.NONE
        state = partition.state
        diverging = decision.diverging
        hint = None
        if decision.error_code in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            hint = self._leader_hint(partition.topic_partition, partition.log.topic_id or "")
        response = FetchPartitionResponse(
            partition_index=partition.topic_partition.partition,
            error_code=decision.error_code,
            high_watermark=state.high_watermark if diverging else -1,
            log_start_offset=state.log_start_offset,
            diverging_epoch=EpochEndOffset(epoch=diverging[0], end_offset=diverging[1]) if diverging else None,
            current_leader=hint,
        )
        return self._without_records(response)

    def unknown(self, topic_partition: TopicPartition, topic_id: str = "") -> FetchedRecords:
        """This broker has no replica of it. `topic_id`: as a client's request names it."""
        known = self._is_known(topic_partition)
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        hint = self._leader_hint(topic_partition, topic_id) if known else None
        response = FetchPartitionResponse(
            partition_index=topic_partition.partition, error_code=code, current_leader=hint
        )
        return self._without_records(response)

    def _without_records(self, response: FetchPartitionResponse) -> FetchedRecords:
        if self._observer.wants_details:
            self._observer.notify(AnswerSent(response))
        return FetchedRecords(response, (), 0)


def watermarks_only(index: int, granted: FetchGranted) -> FetchedRecords:
    """No records, only the partition's watermarks and log start."""
    return _fetched(index, granted, (), 0)


def _fetched(index: int, granted: FetchGranted, parts: Sequence[Buffer], size_bytes: int) -> FetchedRecords:
    response = FetchPartitionResponse(
        partition_index=index,
        high_watermark=granted.high_watermark,
        last_stable_offset=granted.high_watermark,
        log_start_offset=granted.log_start_offset,
        low_watermark=to_wire(granted.low_watermark),
    )
    return FetchedRecords(response, parts, size_bytes)
