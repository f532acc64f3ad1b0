"""Sends many records through the public Producer and keeps account of each: what `produce` and the demo write with.

Owns: which records are on their way, which were acknowledged where, and the report of acknowledged records, as
`audit --acked` reads it: a line a record, `topic<TAB>partition<TAB>offset<TAB>CRC-32C of the value in 8 hex digits`
(`-` for a null value). Refuses to know where records come from, and to retry: the Producer does.
"""

from collections import deque
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from minibroker.client.batches import Delivery
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
    """`send` records, `collect` now and then, `finish` at the end; `tally` says how it went."""

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
        self._until_collect = COLLECT_EVERY

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
        for name, waiting in self._waiting.items():
            lines: list[bytes] = []
            while waiting and waiting[0][0].done:
                self._settle(name, *waiting.popleft(), lines)
            if self._report is not None and lines:
                self._report.write(b"".join(lines))

    def _settle(
        self, name: TopicPartition, delivery: Delivery, size: int, checksum: int | None, tag: int, lines: list[bytes]
    ) -> None:
        tally = self.tally
        try:
            metadata = delivery.result()
        except MinibrokerError as error:
            tally.failed += 1
            if tally.first_failure is None:
                tally.first_failure = error
            return
        tally.acknowledged += 1
        tally.acknowledged_bytes += size
        offset = metadata.offset
        if offset is None:
            return  # acks=0: nobody knows
        if self._report is not None:
            text = b"-" if checksum is None else b"%08x" % checksum
            lines.append(b"%s\t%d\t%d\t%s\n" % (name.topic.encode(), name.partition, offset, text))
        if self._on_acknowledged is not None:
            self._on_acknowledged(name, offset, -1 if metadata.leader_epoch is None else metadata.leader_epoch, tag)

    async def finish(self, timeout_ms: float | None = None) -> Tally:
        """Wait for every outcome. Failures are in the tally, not raised."""
        try:
            await self._producer.flush(timeout_ms)
        except MinibrokerError as error:
            if self.tally.first_failure is None:
                self.tally.first_failure = error
        self.collect()
        return self.tally
