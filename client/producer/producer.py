"""The public producer: takes records, returns deliveries.

Owns: parameters and their checks, back-pressure, flush and close. Leaves to others: order, retries and sequences
(`accumulator`), the network (`sender`), filling batches (`open_batches`), which topics there are (`producer_metadata`).
`send` is the hot path: a lookup, an append to a list, and one small object per record. `send_many` is for throughput:
one slice of a list per batch.
"""

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Literal, Never

from msgspec.structs import replace

from minibroker.client.argument_hints import with_hints
from minibroker.client.caller_check import CallerCheck
from minibroker.client.cluster import Cluster
from minibroker.client.default_runtime import runtime_or_default
from minibroker.client.errors import BufferTimedOut, ClientClosed, FlushTimedOut, MinibrokerError
from minibroker.client.limits import BOOTSTRAP_TIMEOUT_MS, FLUSH_SLACK_MS, Deadline, check_timestamp
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch
from minibroker.client.producer.buffer_memory import BufferMemory
from minibroker.client.producer.deliveries import Deliveries, Delivery, RecordMetadata
from minibroker.client.producer.loop_clock import LoopClock
from minibroker.client.producer.open_batches import OpenBatches
from minibroker.client.producer.outcomes import (
    Failures,
    aborted_by_close,
    cancelled_close_ms,
    not_acknowledged,
    warn_of_unclosed,
    without_outcome,
)
from minibroker.client.producer.partitioner import Partitioner, murmur2_partitioner
from minibroker.client.producer.producer_metadata import ProducerMetadata
from minibroker.client.producer.producer_metrics import ProducerMetrics
from minibroker.client.producer.producer_settings import ProducerSettings
from minibroker.client.producer.producer_topic import ProducerTopic
from minibroker.client.producer.record_input import (
    Headers,
    RecordBytes,
    RecordColumns,
    Serializer,
    Serializers,
    as_bytes,
    checked_headers,
)
from minibroker.client.producer.sender import Sender
from minibroker.client.producer.urgency import Urgency
from minibroker.client.producer.waiting_sends import WaitingSends
from minibroker.client.public_client import PublicClient
from minibroker.runtime.ports import Runtime


class Producer(PublicClient):
    """Writes records. Use it as `async with Producer(...) as producer`; leaving the block delivers what is buffered.

    Records of one partition keep the order of their `send` calls, also under retries. With `enable_idempotence` (the
    default) a retry never writes a record twice. An instance belongs to one event loop.
    """

    _started = False  # also of one whose arguments were refused

    def __init__(
        self,
        *positional: Never,
        bootstrap_servers: str | Sequence[str] = "localhost:9092",
        client_id: str = "minibroker-producer",
        producer_name: str | None = None,
        acks: Literal["all", -1, 0, 1] = "all",
        linger_ms: float = 5,
        batch_size: int = 131_072,
        enable_idempotence: bool | None = None,
        max_in_flight_requests_per_connection: int = 5,
        delivery_timeout_ms: int = 120_000,
        request_timeout_ms: int = 30_000,
        retry_backoff_ms: int = 100,
        retry_backoff_max_ms: int = 1_000,
        max_block_ms: int = 60_000,
        buffer_memory: int = 33_554_432,
        max_request_size: int = 1_048_576,
        metadata_max_age_ms: int = 300_000,
        bootstrap_timeout_ms: int = BOOTSTRAP_TIMEOUT_MS,
        partitioner: Partitioner = murmur2_partitioner,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        runtime: Runtime | None = None,
        **unknown: Never,
    ) -> None:
        """Opens nothing; `start()` (or `async with`) does that. Raises InvalidCall for invalid values."""
        self._check_arguments(positional, unknown)
        self._settings = ProducerSettings(
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            producer_name=producer_name,
            acks=acks,
            linger_ms=linger_ms,
            batch_size=batch_size,
            enable_idempotence=enable_idempotence,
            max_in_flight_requests_per_connection=max_in_flight_requests_per_connection,
            delivery_timeout_ms=delivery_timeout_ms,
            request_timeout_ms=request_timeout_ms,
            retry_backoff_ms=retry_backoff_ms,
            retry_backoff_max_ms=retry_backoff_max_ms,
            max_block_ms=max_block_ms,
            buffer_memory=buffer_memory,
            max_request_size=max_request_size,
            metadata_max_age_ms=metadata_max_age_ms,
            bootstrap_timeout_ms=bootstrap_timeout_ms,
        )
        self._settings.check()
        self._cluster_settings = self._settings.for_cluster()
        self._partitioner = partitioner
        self._runtime = runtime
        self._accumulator = Accumulator(
            batch_size=min(batch_size, max_request_size),
            linger_ms=linger_ms,
            idempotent=self._settings.idempotent,
            in_flight_max=max_in_flight_requests_per_connection,
            acks=self._settings.acks_number,
        )
        self._memory = BufferMemory(buffer_memory)
        self._failures = Failures()
        self._serialize = Serializers(key_serializer, value_serializer)
        self._topics: dict[str, ProducerTopic] = {}
        self._topics_without_serializer = {} if self._serialize.is_set else self._topics
        """What `send` may take as it is."""
        self._waiting_sends = WaitingSends()
        self._closing = False

    # --------------------------------------------------------------------------------------------------------- life
    async def start(self) -> None:
        """Find the cluster. Raises ClusterUnreachable, with each server's error, after bootstrap_timeout_ms, or
        ClientClosed if it is closed meanwhile. With a producer_name an earlier process of that name is fenced then."""
        if self._started or self._closing:
            raise ClientClosed("a producer is started once")
        runtime, settings = runtime_or_default(self._runtime), self._settings
        self._owner = CallerCheck("producer")
        self._clock = LoopClock(runtime.clock, self._owner.check)
        self._cluster = Cluster(runtime, self._cluster_settings)
        self._sender = Sender(self._cluster, self._accumulator, self._settings, self._on_finished, self._on_packed)
        self._urgency = Urgency(self._accumulator, self._sender)
        self._batches = OpenBatches(
            self._accumulator, self._memory, self._settings, self._sender, runtime.random, self._check_open
        )
        self._metadata = ProducerMetadata(
            self._topics, self._cluster, self._sender, self._partitioner, settings, self._check_open, self._owner.check
        )
        try:
            await self._cluster.start(refusals_end_it=self._refusals_end_start)
            if settings.producer_name is not None and not self._closing:
                await self._sender.first_identity(Deadline(settings.request_timeout_ms))
            if self._closing:
                raise ClientClosed("the producer was closed before it was open")
        except BaseException:
            await self._disconnect()
            raise
        self._started = True
        if self._settings.idempotent and self._accumulator.identity is None:
            self._sender.want_identity()

    def __del__(self) -> None:
        if self._started and not self._closing and self._runtime is None and self._owner.is_in_own_process:
            warn_of_unclosed(self._settings.client_id, self._unfinished())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        cancelled = not isinstance(error, Exception)
        try:
            oldest, obstacle = self._accumulator.oldest(), self._sender.obstacle
            await self.close(timeout_ms=cancelled_close_ms(oldest, obstacle) if cancelled else None)
        except MinibrokerError as problem:
            error.add_note(f"besides, the producer could not deliver everything: {problem}")

    async def close(self, timeout_ms: float | None = None) -> None:
        """Deliver buffered records within the deadline (default delivery_timeout_ms), then disconnect.

        Raises FlushTimedOut or UndeliveredRecords if some could not be delivered. Closing twice is fine.
        """
        if self._closing or not self._started:
            if not self._closing and hasattr(self, "_metadata") and not self._cluster.closed:  # while a task starts it
                self._owner.check()
                self._closing = True
                await self._disconnect()
            self._closing = True
            return
        self._owner.check()
        deadline = self._flush_deadline(timeout_ms)
        self._closing = True
        try:
            await self._flush(deadline)
            if self._settings.acks_number == 0:
                await self._sender.barrier(deadline)
        finally:
            self._abort_rest()
            await self._disconnect()

    async def _disconnect(self) -> None:
        try:
            await self._sender.close()
        finally:
            await self._cluster.close()

    # ------------------------------------------------------------------------------------------------------- sending
    async def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Take a record; `await` the returned delivery to learn where it was written.

        Waits only while buffer_memory is used up or topic or partition is not known, at most max_block_ms. Without a
        partition the key decides (murmur2), without a key the current batch. Without a timestamp the record gets the
        time of this loop iteration. Raises RecordTooLarge, BufferTimedOut, UnknownTopicOrPartition; then, and if the
        call is cancelled, the record was not taken.
        """
        # The usual case, an open batch with room, is handled here; try_send handles all others.
        state = self._topics_without_serializer.get(topic)
        if (
            (state is not None and not self._waiting_sends.queues and partition is timestamp_ms is None and not headers)
            and (value.__class__ is bytes and (key is None or key.__class__ is bytes))
            and (now_ms := self._clock.present_ms) is not None
            and (queue := state.sticky if key is None else state.queue_of_key.get(key)) is not None
            and (batch := queue.open_batch) is not None
            and (delta := batch.append(key, value, now_ms)) is not None
        ):
            return Delivery(batch, delta, now_ms)
        value, key = self._serialize(value, key)
        delivery = self._try_send(topic, value, key, partition, headers, timestamp_ms)
        if delivery is None:  # nothing is awaited once the record is taken: a cancelled call has not taken it
            return await self._send_when_possible(topic, value, key, partition, headers, timestamp_ms)
        return delivery

    def try_send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Delivery | None:
        """As `send`, but never waits: returns None if `send` would have to (then await `send`). It also does so after
        some batches have become full: the loop has to run before the next one is begun."""
        value, key = self._serialize(value, key)
        return self._try_send(topic, value, key, partition, headers, timestamp_ms)

    def _try_send(
        self,
        topic: str,
        value: RecordBytes,
        key: RecordBytes,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
    ) -> Delivery | None:
        if value.__class__ is not bytes and value is not None:
            value = as_bytes("value", value)
        state = self._topics.get(topic)
        if state is None or self._waiting_sends.must_wait(topic):
            self._check_open()
            return None
        if timestamp_ms is None:
            timestamp_ms = self._clock.now_ms()
        else:
            check_timestamp(timestamp_ms)
        if partition is not None:
            queue = state.queues.get(partition)
            if queue is None:
                return None
            if key is not None and key.__class__ is not bytes:
                key = as_bytes("key", key)
        elif key is None:
            queue = state.sticky
        else:
            if key.__class__ is not bytes:
                key = as_bytes("key", key)
            queue = state.queue_of_key.get(key) or state.choose_queue(key)
        pairs = checked_headers(headers) if headers else ()
        batch = queue.open_batch
        if batch is not None:
            delta = batch.append(key, value, timestamp_ms, pairs)
            if delta is not None:
                return Delivery(batch, delta, timestamp_ms)
        keyless = partition is None and key is None
        return self._batches.put(state, queue, key, value, pairs, timestamp_ms, keyless)

    async def send_many(
        self,
        topic: str,
        values: Iterable[Any],
        *,
        keys: Iterable[Any] | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Deliveries:
        """Take many records, as many calls of `send` would, at a fraction of their cost; `await` the returned
        deliveries to wait until all are written, or index them for a single record's Delivery.

        `keys`, if given, must be as many as the values; partition, headers and timestamp apply to every record (default
        timestamp: the time of the call). The records of a partition are in its log in this order; other tasks' records
        may be between them. Waits where `send` would, at most max_block_ms for the next record.

        Takes no record if an argument is wrong: InvalidCall, RecordTooLarge, UnknownTopicOrPartition. A later error
        (BufferTimedOut, ClientClosed) leaves the records before it taken: the error's `taken` has their Deliveries, and
        its length is the number of the next record. The same holds for a cancelled call (CancelledError has `taken`).
        """
        self._check_open()
        columns = RecordColumns(
            self._serialize.values(values),
            None if keys is None else self._serialize.keys(keys),
            partition,
            headers,
        )
        self._batches.check_size(topic, columns.largest_bytes)
        check_timestamp(timestamp_ms)
        deliveries = Deliveries(self._clock.now_ms() if timestamp_ms is None else timestamp_ms)
        try:
            while len(deliveries) < len(columns):
                if self._batches.yield_due:
                    await self._yield_to_loop()
                state = self._topics.get(topic)
                if state is not None and state.has(partition) and not self._waiting_sends.must_wait(topic):
                    columns.choose_partitions(state)
                    self._batches.put_many(state, columns, deliveries)
                    if self._batches.yield_due:
                        continue
                if len(deliveries) < len(columns):
                    await self._send_some_when_possible(topic, columns, deliveries)
        except (MinibrokerError, asyncio.CancelledError) as error:
            vars(error)["taken"] = deliveries
            raise
        return deliveries

    @with_hints
    async def send_and_wait(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Send one record and wait until it is acknowledged. Raises what `send` raises, and the delivery's error."""
        value, key = self._serialize(value, key)
        delivery = self._try_send(topic, value, key, partition, headers, timestamp_ms)
        if delivery is None:
            delivery = await self._send_when_possible(topic, value, key, partition, headers, timestamp_ms)
        return await delivery

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until every record sent before has its outcome (default timeout delivery_timeout_ms).

        Raises FlushTimedOut if that takes longer, and UndeliveredRecords if records failed and their deliveries were
        not awaited: no loss is silent.
        """
        self._check_open()
        await self._flush(self._flush_deadline(timeout_ms))

    async def partitions_for(self, topic: str) -> list[int]:
        """The numbers of the topic's partitions. Raises UnknownTopicOrPartition or CallTimedOut."""
        self._check_open()
        return list((await self._metadata.topic(topic, Deadline(self._settings.max_block_ms))).queues)

    def metrics(self) -> ProducerMetrics:
        """What this producer has done so far, and what it holds now."""
        if not self._started:
            return ProducerMetrics()
        in_flight, buffered_bytes = self._sender.requests_in_flight, self._memory.used_bytes
        return replace(self._sender.metrics, requests_in_flight=in_flight, buffered_bytes=buffered_bytes)

    @property
    def buffered_bytes(self) -> int:
        """How much of buffer_memory is in use: by waiting batches, batches in flight, and reserved for open batches."""
        return self._memory.used_bytes

    # ------------------------------------------------------------------------------------------------- the slow paths
    async def _send_when_possible(
        self,
        topic: str,
        value: RecordBytes,
        key: RecordBytes,
        partition: int | None,
        headers: Headers,
        timestamp_ms: int | None,
    ) -> Delivery:
        deadline = Deadline(self._settings.max_block_ms)
        async with self._waiting_sends.first_in_queue(topic, deadline):
            while True:
                if self._batches.yield_due:
                    await self._yield_to_loop()
                await self._metadata.topic_with(topic, partition, deadline)  # each time: it may be made again
                with self._waiting_sends.serving():
                    delivery = self._try_send(topic, value, key, partition, headers, timestamp_ms)
                if delivery is not None:
                    return delivery
                if not self._batches.yield_due:
                    await self._wait_for_memory(deadline)

    async def _send_some_when_possible(self, topic: str, columns: RecordColumns, deliveries: Deliveries) -> None:
        """Take at least the next record, or raise."""
        deadline = Deadline(self._settings.max_block_ms)
        async with self._waiting_sends.first_in_queue(topic, deadline):
            before = len(deliveries)
            while True:
                if self._batches.yield_due:
                    await self._yield_to_loop()
                state = await self._metadata.topic_with(topic, columns.partition, deadline)
                columns.choose_partitions(state)
                self._batches.put_many(state, columns, deliveries)
                if len(deliveries) > before:
                    return
                if not self._batches.yield_due:
                    await self._wait_for_memory(deadline)

    async def _yield_to_loop(self) -> None:
        """Let the loop run: a caller that never waits would starve it."""
        self._batches.yield_due = False
        await asyncio.sleep(0)

    async def _wait_for_memory(self, deadline: Deadline) -> None:
        with self._urgency.raised():
            if not await self._memory.wait(deadline):
                text = (
                    f"buffer_memory ({self._memory.limit_bytes} bytes) stayed full for {self._settings.max_block_ms} ms"
                )
                raise BufferTimedOut(text, self._oldest_error())

    # ------------------------------------------------------------------------------------------- memory and outcomes
    def _on_packed(self, batch: Batch) -> None:
        """Release the memory that was reserved for the batch beyond its size."""
        surplus = batch.reserved_bytes - batch.size_bytes
        if surplus > 0:
            batch.reserved_bytes -= surplus
            self._memory.release(surplus)

    def _on_finished(self, batches: list[Batch]) -> None:
        for batch in batches:
            if batch.reserved_bytes:
                self._memory.release(batch.reserved_bytes)
                batch.reserved_bytes = 0
            if not batch.parts:
                self._sender.metrics.count(batch)
                if batch.error is not None:
                    self._failures.add(batch)
            batch.notify()
        if self._sender.fence.has_ended:
            self._memory.wake_all()

    # ----------------------------------------------------------------------------------------------- flush and close
    def _flush_deadline(self, timeout_ms: float | None) -> Deadline:
        """By default long enough for every record to reach its own deadline first."""
        return Deadline(self._settings.delivery_timeout_ms + FLUSH_SLACK_MS if timeout_ms is None else timeout_ms)

    async def _flush(self, deadline: Deadline) -> None:
        if pending := self._unfinished():
            await self._wait_for(pending, deadline)
        await asyncio.sleep(0)  # tasks that await a delivery get its failure first
        self._failures.report()

    def _unfinished(self) -> list[Batch]:
        return [batch for queue in self._accumulator.active_queues() for batch in queue.unfinished()]

    async def _wait_for(self, pending: list[Batch], deadline: Deadline) -> None:
        with self._urgency.raised():
            waiting = await without_outcome(pending, deadline)
        if waiting:
            raise FlushTimedOut(not_acknowledged(waiting, deadline), self._oldest_error())

    def _abort_rest(self) -> None:
        """Give every remaining batch an outcome."""
        for batch in self._unfinished():
            self._accumulator.expire(batch, aborted_by_close(batch, self._sender.obstacle(batch)))
        finished, self._accumulator.finished = self._accumulator.finished, []
        self._on_finished(finished)
        self._memory.end(ClientClosed("the producer was closed"))

    def _oldest_error(self) -> MinibrokerError | None:
        oldest = self._accumulator.oldest()
        if oldest is None:
            return None
        return self._sender.obstacle(oldest) or self._cluster.leader_problem(oldest.topic_partition)

    def _check_open(self) -> None:
        if not self._started or self._closing:
            raise ClientClosed("the producer is not open: use `async with Producer(...)` or `await producer.start()`")
        self._owner.check()
        self._sender.fence.check()
