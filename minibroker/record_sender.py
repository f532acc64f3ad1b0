"""Sends many records through the public Producer and keeps account of each: what `produce` and the demo write with.

Owns: which records are on their way, which were acknowledged where, and the report of acknowledged records, as
`audit --acked` reads it: a line a record, `topic<TAB>partition<TAB>offset<TAB>CRC-32C of the value in 8 hex digits`
(`-` for a null value). Refuses to know where records come from, and to retry: the Producer does.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from minibroker.client.deliveries import Deliveries, Delivery, RecordMetadata
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer import Producer
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.ids import TopicPartition

COLLECT_EVERY = 4_096
"""Records between two looks at what was acknowledged; bounds the cost of looking, not the records on their way."""

OnAcknowledged = Callable[[TopicPartition, int, int, int], None]
"""(partition, offset, leader epoch, the record's tag): called once a record, in order of offsets per partition."""


class Tally(msgspec.Struct):
    """Counts of one run."""

    sent: int = 0
    sent_bytes: int = 0
    acknowledged: int = 0
    acknowledged_bytes: int = 0
    failed: int = 0
    first_failure: MinibrokerError | None = None

    @property
    def in_doubt(self) -> int:
        """Sent, and not acknowledged."""
        return self.sent - self.acknowledged


class RecordSender:
    """`send` or `send_many` records, `collect` now and then, `finish` at the end; `tally` says how it went."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        *,
        report: BinaryIO | None = None,
        on_acknowledged: OnAcknowledged | None = None,
    ) -> None:
        self.tally = Tally()
        self._producer = producer
        self._topic = topic
        self._report = report
        self._on_acknowledged = on_acknowledged
        self._waiting: dict[TopicPartition, deque[tuple[Delivery, int, int | None, int]]] = {}
        """Per partition, in order: (delivery, bytes, CRC of the value, tag)."""
        self._calls: deque[tuple[Deliveries, list[bytes]]] = deque()
        """Of `send_many`, in order, with their values."""
        self._until_collect = COLLECT_EVERY

    async def send_many(
        self,
        values: list[bytes],
        keys: list[bytes | None] | None = None,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
    ) -> None:
        """Hand many records over, for a fraction of what `send` costs each; nobody is called back for them. Raises what
        Producer.send_many raises: what was taken by then counts as sent, also where the call is cancelled."""
        assert self._on_acknowledged is None
        try:
            deliveries = await self._producer.send_many(
                self._topic, values, keys=keys, partition=partition, headers=headers
            )
        except (MinibrokerError, asyncio.CancelledError) as error:
            taken: Deliveries | None = getattr(error, "taken", None)
            if taken is not None:
                self._keep_many(taken, values[: len(taken)])
            raise
        self._keep_many(deliveries, values)

    def _keep_many(self, deliveries: Deliveries, values: list[bytes]) -> None:
        if self._report is not None:  # which is about single records
            for delivery, value in zip(deliveries, values, strict=True):
                self._keep(delivery, value, 0)
            return
        self._calls.append((deliveries, values))
        self.tally.sent += len(values)
        self.tally.sent_bytes += sum(map(len, values))
        self._until_collect -= len(values)
        if self._until_collect <= 0:
            self.collect()

    def _collect_calls(self) -> None:
        """Those of which every record has its outcome."""
        while self._calls and self._calls[0][0].done:
            deliveries, values = self._calls.popleft()
            written = values
            if deliveries.first_error() is not None:
                written = []
                for delivery, value in zip(deliveries, values, strict=True):
                    try:
                        delivery.result()
                    except MinibrokerError as error:
                        self._failed(error)
                    else:
                        written.append(value)
            self.tally.acknowledged += len(written)
            self.tally.acknowledged_bytes += sum(map(len, written))

    async def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: tuple[tuple[str, bytes | None], ...] = (),
        tag: int = 0,
    ) -> None:
        """Hand one record over. Raises what Producer.send raises; then the record was not taken."""
        delivery = self._producer.try_send(self._topic, value, key, partition, headers)
        if delivery is None:
            self.collect()
            delivery = await self._producer.send(self._topic, value, key, partition, headers)
        self._keep(delivery, value, tag)

    def _keep(self, delivery: Delivery, value: bytes | None, tag: int) -> None:
        size = len(value) if value is not None else 0
        checksum = crc32c(value) if self._report is not None and value is not None else None
        name = delivery.topic_partition
        waiting = self._waiting.get(name)
        if waiting is None:
            waiting = self._waiting[name] = deque()
        waiting.append((delivery, size, checksum, tag))
        tally = self.tally
        tally.sent += 1
        tally.sent_bytes += size
        self._until_collect -= 1
        if self._until_collect <= 0:
            self.collect()

    def collect(self) -> None:
        """Look which records have their outcome by now."""
        self._until_collect = COLLECT_EVERY
        self._collect_calls()
        for name, waiting in self._waiting.items():
            settled: list[tuple[int, RecordMetadata, int | None, int]] = []
            count = size_bytes = 0
            while waiting and waiting[0][0].done:
                delivery, size, checksum, tag = waiting.popleft()
                try:
                    metadata = delivery.result()
                except MinibrokerError as error:
                    self._failed(error)
                    continue
                count += 1
                size_bytes += size
                if metadata.offset is not None:  # acks=0: nobody knows
                    settled.append((metadata.offset, metadata, checksum, tag))
            self.tally.acknowledged += count
            self.tally.acknowledged_bytes += size_bytes
            self._tell(name, settled)

    def _failed(self, error: MinibrokerError) -> None:
        self.tally.failed += 1
        if self.tally.first_failure is None:
            self.tally.first_failure = error

    def _tell(self, name: TopicPartition, settled: list[tuple[int, RecordMetadata, int | None, int]]) -> None:
        """Report what was acknowledged in one partition."""
        if self._report is not None and settled:
            topic, index = name.topic.encode(), name.partition
            lines = [
                b"%s\t%d\t%d\t%s\n" % (topic, index, offset, b"-" if crc is None else b"%08x" % crc)
                for offset, _, crc, _ in settled
            ]
            self._report.write(b"".join(lines))
        if self._on_acknowledged is not None:
            for offset, metadata, _, tag in settled:
                epoch = -1 if metadata.leader_epoch is None else metadata.leader_epoch
                self._on_acknowledged(name, offset, epoch, tag)

    async def finish(self, timeout_ms: float | None = None) -> Tally:
        """Wait for every outcome. Failures are in the tally, not raised."""
        try:
            await self._producer.flush(timeout_ms)
        except MinibrokerError as error:
            if self.tally.first_failure is None:
                self.tally.first_failure = error
        self.collect()
        return self.tally
