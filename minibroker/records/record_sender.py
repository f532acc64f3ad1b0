"""Sends many records through the public Producer and accounts for each of them: for `produce` and the demo.

Owns: which records are in flight, which were acknowledged at which offset, and the list of acknowledged records
(`protocol/files/acked_list`) that `audit --acked` reads. Leaves to others: where records come from, and retries, which
the Producer does.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from minibroker.client.errors import MinibrokerError, UndeliveredRecords
from minibroker.client.producer.deliveries import Deliveries, Delivery, RecordMetadata
from minibroker.client.producer.producer import Producer
from minibroker.protocol.files.acked_list import AckedListWriter, record_checksum
from minibroker.protocol.ids import TopicPartition

COLLECT_EVERY = 4_096
"""Records between two checks for acknowledgements; bounds the cost of the checks, not the records in flight."""

OnAcknowledged = Callable[[TopicPartition, int, int, int], None]
"""(partition, offset, leader epoch, the record's tag): called once per record, in order of offsets per partition."""


class ReportOutput(Protocol):
    """Where the list of acknowledged records goes."""

    def write(self, content: bytes, /) -> object: ...


class Tally(msgspec.Struct):
    """Counts of one run."""

    sent: int = 0
    sent_bytes: int = 0
    acknowledged: int = 0
    acknowledged_bytes: int = 0
    failed: int = 0
    first_failure: Exception | None = None
    first_failed: int | None = None
    """Which record that was, in the order of sending; the first is 1."""
    has_stopped: bool = False
    """Something failed before the end of the input: what follows the sent records was not sent."""

    @property
    def in_doubt(self) -> int:
        """Sent but not acknowledged."""
        return self.sent - self.acknowledged


class RecordSender:
    """`send` or `send_many` records, `collect` now and then, `finish` at the end; `tally` counts the outcomes."""

    def __init__(
        self,
        producer: Producer,
        topic: str | None,
        *,
        report: ReportOutput | None = None,
        acks: str = "all",
        on_acknowledged: OnAcknowledged | None = None,
    ) -> None:
        """Without `topic` each record names its own; then there is no report."""
        assert topic is not None or report is None
        self.tally = Tally()
        self._producer = producer
        self._topic = topic
        self._report = report
        self._acks = acks
        self._list: AckedListWriter | None = None
        self._topic_id: str | None = None
        self._on_acknowledged = on_acknowledged
        self._waiting: dict[TopicPartition, deque[tuple[Delivery, int, int, int, int]]] = {}
        """Per partition, in order: (delivery, bytes, checksum of the record, tag, number of the record)."""
        self._calls: deque[tuple[Deliveries, Sequence[bytes | None], int]] = deque()
        """The calls of `send_many`, in order, with their values and the number of the first record."""
        self._until_collect = COLLECT_EVERY

    async def send_many(
        self,
        values: Sequence[bytes | None],
        keys: list[bytes | None] | None = None,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        """Send many records for a fraction of what `send` costs each, without a callback for each.
        Raises what Producer.send_many raises: records accepted by then count as sent, even if the call is
        cancelled."""
        assert self._on_acknowledged is None and self._topic is not None
        try:
            deliveries = await self._producer.send_many(
                self._topic, values, keys=keys, partition=partition, headers=headers
            )
        except (MinibrokerError, asyncio.CancelledError) as error:
            taken: Deliveries | None = getattr(error, "taken", None)
            if taken is not None:
                self._keep_many(taken, values[: len(taken)], keys, headers)
            raise
        self._keep_many(deliveries, values, keys, headers)

    def _keep_many(
        self,
        deliveries: Deliveries,
        values: Sequence[bytes | None],
        keys: list[bytes | None] | None,
        headers: tuple[tuple[str, bytes | None], ...],
    ) -> None:
        if self._report is not None:  # it lists single records
            for number, (delivery, value) in enumerate(zip(deliveries, values, strict=True)):
                self._keep(delivery, value, keys[number] if keys is not None else None, headers, 0)
            return
        self._calls.append((deliveries, values, self.tally.sent + 1))
        self.tally.sent += len(values)
        self.tally.sent_bytes += _size(values)
        self._until_collect -= len(values)
        if self._until_collect <= 0:
            self.collect()

    def _collect_calls(self) -> None:
        """Count the calls of which all records have an outcome."""
        while self._calls and self._calls[0][0].done:
            deliveries, values, first = self._calls.popleft()
            written = values
            if deliveries.first_error() is not None:
                acknowledged = []
                for number, (delivery, value) in enumerate(zip(deliveries, values, strict=True), first):
                    try:
                        delivery.result()
                    except MinibrokerError as error:
                        self._failed(error, number)
                    else:
                        acknowledged.append(value)
                written = acknowledged
            self.tally.acknowledged += len(written)
            self.tally.acknowledged_bytes += _size(written)

    async def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        tag: int = 0,
        timestamp_ms: int | None = None,
        topic: str | None = None,
    ) -> None:
        """Send one record. Raises what Producer.send raises; then the record was not accepted."""
        topic = topic or self._topic
        assert topic is not None
        delivery = self._producer.try_send(topic, value, key, partition, headers, timestamp_ms)
        if delivery is None:
            self.collect()
            delivery = await self._producer.send(topic, value, key, partition, headers, timestamp_ms)
        self._keep(delivery, value, key, headers, tag)

    def _keep(
        self,
        delivery: Delivery,
        value: bytes | None,
        key: bytes | None,
        headers: tuple[tuple[str, bytes | None], ...],
        tag: int,
    ) -> None:
        size = len(value) if value is not None else 0
        checksum = 0 if self._report is None else record_checksum(delivery.timestamp_ms, key, value, headers)
        name = delivery.topic_partition
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = deque()
        tally = self.tally
        tally.sent += 1
        waiting.append((delivery, size, checksum, tag, tally.sent))
        tally.sent_bytes += size
        self._until_collect -= 1
        if self._until_collect <= 0:
            self.collect()

    def collect(self) -> None:
        """Count and report the records that have an outcome by now."""
        self._until_collect = COLLECT_EVERY
        self._collect_calls()
        for name, waiting in self._waiting.items():
            settled: list[tuple[int, RecordMetadata, int, int]] = []
            count = size_bytes = 0
            while waiting and waiting[0][0].done:
                delivery, size, checksum, tag, number = waiting.popleft()
                try:
                    metadata = delivery.result()
                except MinibrokerError as error:
                    self._failed(error, number)
                    continue
                count += 1
                size_bytes += size
                if metadata.offset is not None:  # None for acks=0
                    settled.append((metadata.offset, metadata, checksum, tag))
            self.tally.acknowledged += count
            self.tally.acknowledged_bytes += size_bytes
            self._report_settled(name, settled)

    def _failed(self, error: MinibrokerError, number: int) -> None:
        self.tally.failed += 1
        if self.tally.first_failed is None or number < self.tally.first_failed:
            self.tally.first_failed = number
            self.tally.first_failure = error

    def _report_settled(self, name: TopicPartition, settled: list[tuple[int, RecordMetadata, int, int]]) -> None:
        """Report what was acknowledged in one partition."""
        if self._report is not None and settled:
            records = [(offset, checksum) for offset, _, checksum, _ in settled]
            self._acked_list(self._report).add(name.topic, name.partition, records)
        if self._on_acknowledged is not None:
            for offset, metadata, _, tag in settled:
                epoch = -1 if metadata.leader_epoch is None else metadata.leader_epoch
                self._on_acknowledged(name, offset, epoch, tag)

    def _known_topic_id(self) -> str | None:
        return None if self._topic is None else self._producer._cluster.metadata.topic_id(self._topic)

    def _acked_list(self, report: ReportOutput) -> AckedListWriter:
        if self._list is None:
            self._topic_id = self._known_topic_id()
            ids = {} if self._topic is None or self._topic_id is None else {self._topic: self._topic_id}
            self._list = AckedListWriter(report.write, ids, self._acks)
        return self._list

    def end_report(self) -> None:
        """Write the end of the list, after everything was collected. The list gets no end if the topic was recreated
        meanwhile, because it is unknown from which record on."""
        if self._report is not None:
            known = self._acked_list(self._report)
            if self._known_topic_id() == self._topic_id:
                known.finish()

    async def finish(self, timeout_ms: float | None = None) -> Tally:
        """Wait for all outcomes. Failures are counted in the tally, not raised."""
        problem: Exception | None = None
        try:
            await self._producer.flush(timeout_ms)
        except UndeliveredRecords as error:
            problem = error.first
        except MinibrokerError as error:
            problem = error
        self.collect()
        if self.tally.first_failure is None:
            self.tally.first_failure = problem
        return self.tally


def _size(values: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, values)))
