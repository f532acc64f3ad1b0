"""The batches that take records now: appending, opening and sealing.

Owns: whether a record fits, the memory for it, and how much is taken before the loop has to run. Never waits: if it
would have to, it takes no more records, and the producer waits. Leaves to others: order and sequences (`accumulator`).
"""

import random
from collections.abc import Callable, Sequence

from minibroker.client.errors import RecordTooLarge
from minibroker.client.limits import BATCH_MEMORY_STEP_BYTES, YIELD_BYTES
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch, PartitionQueue
from minibroker.client.producer.buffer_memory import BufferMemory
from minibroker.client.producer.deliveries import Deliveries, Delivery
from minibroker.client.producer.producer_settings import ProducerSettings
from minibroker.client.producer.producer_topic import ProducerTopic
from minibroker.client.producer.record_input import RecordColumns, record_size
from minibroker.client.producer.sender import Sender
from minibroker.protocol.record_batch import Header


class OpenBatches:
    """The open batches of one producer, from its start on."""

    def __init__(
        self,
        accumulator: Accumulator,
        memory: BufferMemory,
        settings: ProducerSettings,
        sender: Sender,
        rng: random.Random,
        check_open: Callable[[], None],
    ) -> None:
        self._accumulator = accumulator
        self._memory = memory
        self._settings = settings
        self._sender = sender
        self._random = rng
        self._check_open = check_open
        self._bytes_since_yield = 0
        self._begun: Batch | None = None
        """A batch that gets more records before the sender knows of it: without linger it would be sent with one."""
        self.yield_due = False
        """No batch is begun before the loop has run, because enough was taken at once. The producer resets this when it
        has let the loop run."""

    def put(
        self,
        topic: ProducerTopic,
        queue: PartitionQueue,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header],
        timestamp_ms: int,
        keyless: bool,
        more: int = 0,
    ) -> Delivery | None:
        """Take a record, in a new batch if necessary. None: there is no memory, or the loop has to run.

        `more` records of about the same size follow, then `_announce_begun` is called. Raises RecordTooLarge.
        """
        self._check_open()
        size = record_size(key, value, headers)
        self.check_size(topic.name, size)
        if not self._accumulator.has_place(queue, size):
            if self.yield_due:
                return None
            self._seal(queue)
            if keyless:
                queue = topic.choose_sticky(self._random)
                if not self._accumulator.has_place(queue, size):
                    self._seal(queue)
        if queue.open_batch is not None:
            return self._append_with_more_memory(queue.open_batch, size, key, value, timestamp_ms, headers, more)
        wanted = max(BATCH_MEMORY_STEP_BYTES, min(size * more, self._memory.free_bytes))
        reserve = max(size, min(wanted, self._accumulator.batch_size))
        if not self._memory.reserve(reserve):
            return None
        now_ms = self._sender.now_ms()
        batch = self._accumulator.open(queue, now_ms, now_ms + self._settings.delivery_timeout_ms)
        batch.allow(reserve)
        delta = batch.append(key, value, timestamp_ms, headers)
        assert delta is not None, "the first record always fits"
        if more:
            self._begun = batch
        else:
            self._sender.batch_opened(batch)
        return Delivery(batch, delta, timestamp_ms)

    def put_many(self, topic: ProducerTopic, columns: RecordColumns, deliveries: Deliveries) -> None:
        """Take the records that `deliveries` does not hold yet, as far as possible without waiting."""
        if columns.plain is None:
            self._put_each(topic, columns, deliveries)
        else:
            self._put_plain(topic, columns, columns.plain, deliveries)

    def _put_plain(
        self, topic: ProducerTopic, columns: RecordColumns, values: list[bytes], deliveries: Deliveries
    ) -> None:
        """`put_many` for records with values only, as many at once as a batch has room for."""
        timestamp_ms, partition = deliveries.timestamp_ms, columns.partition
        while (position := len(deliveries)) < len(values):
            queue = topic.sticky if partition is None else topic.queues[partition]
            batch = queue.open_batch
            if batch is not None:
                first_delta = batch.builder.record_count
                taken = batch.builder.extend(values, position, timestamp_ms)
                self._announce_begun()
                if taken:
                    deliveries.add(batch, first_delta, taken)
                    continue
            more = len(values) - position - 1
            delivery = self.put(topic, queue, None, values[position], (), timestamp_ms, partition is None, more)
            if delivery is None:
                return
            deliveries.add_one(delivery)

    def _announce_begun(self) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            self._sender.batch_opened(begun)

    def _put_each(self, topic: ProducerTopic, columns: RecordColumns, deliveries: Deliveries) -> None:
        """`put_many` for records of any kind, one by one."""
        headers, timestamp_ms = columns.headers, deliveries.timestamp_ms
        while len(deliveries) < len(columns):
            for queue, key, value in columns.rows(topic, len(deliveries)):
                target = topic.sticky if queue is None else queue
                batch = target.open_batch
                if batch is not None:
                    delta = batch.append(key, value, timestamp_ms, headers)
                    if delta is not None:
                        deliveries.add(batch, delta, 1)
                        continue
                delivery = self.put(topic, target, key, value, headers, timestamp_ms, queue is None)
                if delivery is None:
                    return
                deliveries.add_one(delivery)

    def check_size(self, topic_name: str, size: int) -> None:
        """Raise RecordTooLarge for a record that could never be sent."""
        if size > self._settings.max_request_size or size > self._settings.buffer_memory:
            raise RecordTooLarge(
                f"a record for topic {topic_name!r} takes {size} bytes; max_request_size is "
                f"{self._settings.max_request_size}, buffer_memory {self._settings.buffer_memory}"
            )

    def _append_with_more_memory(
        self,
        batch: Batch,
        size: int,
        key: bytes | None,
        value: bytes | None,
        timestamp_ms: int,
        headers: Sequence[Header],
        more: int,
    ) -> Delivery | None:
        """Let the batch grow up to batch_size, if there is memory for it."""
        delta = batch.append(key, value, timestamp_ms, headers)
        if delta is None:
            growth = max(batch.reserved_bytes, size, min(size * more, self._memory.free_bytes))
            allowed = min(batch.reserved_bytes + growth, self._accumulator.batch_size)
            if not self._memory.reserve(allowed - batch.reserved_bytes):
                return None
            batch.allow(allowed)
            delta = batch.append(key, value, timestamp_ms, headers)
            assert delta is not None, "has_place said that it fits"
        return Delivery(batch, delta, timestamp_ms)

    def _seal(self, queue: PartitionQueue) -> None:
        if queue.open_batch is None:
            return
        self._bytes_since_yield += queue.open_batch.size_bytes
        if self._bytes_since_yield >= YIELD_BYTES:
            self._bytes_since_yield, self.yield_due = 0, True
        self._accumulator.seal(queue)
        self._sender.batch_sealed(queue)
