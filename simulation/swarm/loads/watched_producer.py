"""A producer whose every call and delivery is checked against what docs/CLIENT.md promises, and noted in the history.

Owns: those checks. A delivery has its outcome within its deadline; `flush` leaves none open and no memory in use, and
names failures that were not looked at; the partition is what the partitioner says; a refusal for its size is right.
Leaves to others: to draw records (`record_writer`).
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Protocol, Self

import msgspec

from minibroker.client.errors import (
    BrokerError,
    BufferTimedOut,
    DeliveryAborted,
    FlushTimedOut,
    MinibrokerError,
    ProducerFenced,
    RecordTooLarge,
    UndeliveredRecords,
)
from minibroker.client.limits import CANCELLED_CLOSE_MS
from minibroker.client.producer.deliveries import Deliveries, Delivery, RecordMetadata
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import Header
from minibroker.simulation.swarm.loads.impatience import Impatience
from minibroker.simulation.swarm.loads.load_scene import LoadScene
from minibroker.simulation.swarm.loads.parcels import Parcel
from minibroker.simulation.swarm.loads.written_records import WrittenRecord

PARTITION_UNKNOWN = 99
CALLED_BACK_SHARE = 4
"""One of so many deliveries has a callback."""
LATE_MS_MAX = 100
"""How much later than its deadline an outcome may come: timers are rounded, and a wake-up takes its turn."""
BATCH_EXTRA_BYTES = 256
"""More than a batch of one record has besides key, value and headers."""


class DrawnRecord(msgspec.Struct, kw_only=True):
    """What a user gives to `send`, and the record's unique name."""

    name: str
    topic: str
    value: bytes | None
    key: bytes | None = None
    partition: int | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None

    @property
    def content_bytes(self) -> int:
        """Of key, value and headers."""
        headers = sum(len(name.encode()) + len(content or b"") + 16 for name, content in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class _Taken(msgspec.Struct, kw_only=True, eq=False):
    """A record that the producer took."""

    record: DrawnRecord
    delivery: Delivery
    operation: int
    at_seconds: float


class NameJudge(Protocol):
    """Hears what happens to one process of a producer's name."""

    def acknowledged(self, partition: TopicPartition, offset: int) -> None:
        """A record is acknowledged there, with acks=all."""

    def fenced(self, error: ProducerFenced) -> None:
        """A record, or a call, ended because a later process has the name."""


class WatchedProducer:
    """One producer. Leaving the block closes it and checks what is left."""

    def __init__(
        self,
        scene: LoadScene,
        name: str,
        is_awaited: bool,
        settings: dict[str, Any],
        name_judge: NameJudge | None = None,
    ) -> None:
        """`is_awaited`: each delivery is awaited at once; else none is before a flush or the end. `name_judge`: of a
        producer with a producer_name; no other one may be fenced."""
        self._name_judge = name_judge
        self._scene = scene
        self._settings = settings
        self._is_awaited = is_awaited
        self._acks = settings["acks"]
        self._process = f"{name} acks={self._acks}"
        self.prefix = f"{'all-' if settings['enable_idempotence'] else ''}load-{name}"
        """Of its records' names; a record of an idempotent producer is written at most once."""
        (scene.history.idempotent if settings["enable_idempotence"] else scene.history.not_idempotent).add(
            self._process
        )
        self._producer = scene.producer(**settings)
        self._open: list[_Taken] = []
        """Not awaited yet."""
        self._awaited: dict[_Taken, None] = {}
        """Their tasks wait for them."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._impatience = Impatience(scene, name)
        self._may_give_up = False
        """Whether it was closed with a short timeout."""
        self._taken_count = 0
        self._calls_due: Counter[Delivery] = Counter()
        """Deliveries with a callback, and how often it is still to be called."""

    async def __aenter__(self) -> Self:
        await self._producer.start()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        try:
            await self._checked_close()
        finally:
            await asyncio.gather(*sorted(self._tasks, key=hash))
        await asyncio.sleep(0)  # callbacks are called in the next iteration of the loop
        self._check_callbacks()
        self._check_metrics()

    def _check_callbacks(self) -> None:
        wrong = {str(delivery.topic_partition): due for delivery, due in self._calls_due.items() if due != 0}
        if wrong:
            self._scene.find("add_done_callback", f"calls that are missing after close (negative: too many): {wrong}")

    def _check_metrics(self) -> None:
        found = self._producer.metrics()
        counted, open_now = found.records_acknowledged + found.records_failed, found.requests_in_flight
        if counted != self._taken_count or found.buffered_bytes or open_now:
            self._scene.find("metrics", f"after close, with {self._taken_count} records taken, they are {found}")
        self._scene.did("metrics of a producer")

    def now_ms(self) -> int:
        """By the clock of the client's machine."""
        return self._scene.cluster.client_runtime().clock.now_ms()

    async def check_partitions(self, topic: str) -> None:
        """`partitions_for` says how the topic was made."""
        found, count = await self._producer.partitions_for(topic), self._scene.options.topics[topic][0]
        if found != list(range(count)):
            self._scene.find("partitions_for", f"{topic} has {count} partitions, not {found}")
        self._scene.did("partitions_for")

    # ------------------------------------------------------------------------------------------------------- sending
    def try_send(self, record: DrawnRecord) -> bool:
        """Whether the record was taken."""
        operation = self._scene.history.begins_to_send(self._process)
        delivery = self._producer.try_send(*self._arguments(record))
        if delivery is not None:
            self._took(record, delivery, operation)
        self._scene.did("try_send")
        return delivery is not None

    async def send(self, record: DrawnRecord) -> None:
        started, operation = self._scene.now, self._scene.history.begins_to_send(self._process)
        try:
            delivery = await self._producer.send(*self._arguments(record))
        except RecordTooLarge:
            self._judge_own_refusal(record)
            raise
        except BufferTimedOut:
            self._scene.did("wait for memory given up")
            raise
        finally:
            waited_ms = (self._scene.now - started) * 1000
            if waited_ms > self._settings["max_block_ms"] + LATE_MS_MAX:
                self._scene.find("max_block_ms", f"send waited {waited_ms:.0f} ms", None, str(self._settings))
        if waited_ms > 0:
            self._scene.did("send that waited")
        self._took(record, delivery, operation)
        self._scene.did("send")

    async def send_named(self, number: int, place: TopicPartition) -> None:
        """Send a record there whose value is its name."""
        name = f"{self.prefix}-{number}-"
        await self.send(DrawnRecord(name=name, topic=place.topic, value=name.encode(), partition=place.partition))

    def _arguments(self, record: DrawnRecord) -> tuple[str, Any, Any, int | None, tuple[Header, ...], int | None]:
        value, key = self._packed("value_serializer", record.value), self._packed("key_serializer", record.key)
        return record.topic, value, key, record.partition, record.headers, record.timestamp_ms

    def _packed(self, serializer: str, content: bytes | None) -> Any:
        """As a program with this serializer gives it to the producer."""
        return content if content is None or self._settings.get(serializer) is None else Parcel(content)

    async def send_many(
        self,
        topic: str,
        records: Sequence[DrawnRecord],
        partition: int | None,
        headers: tuple[Header, ...],
        timestamp_ms: int | None,
    ) -> None:
        values = [self._packed("value_serializer", each.value) for each in records]
        keys = [self._packed("key_serializer", each.key) for each in records]
        operations = [self._scene.history.begins_to_send(self._process) for _ in records]
        given: dict[str, Any] = {"partition": partition, "headers": headers, "timestamp_ms": timestamp_ms}
        try:
            taken = await self._producer.send_many(topic, values, keys=keys if any(keys) else None, **given)
        except (MinibrokerError, asyncio.CancelledError) as error:
            self._took_many(records, operations, vars(error).get("taken"), partition, headers)
            if isinstance(error, RecordTooLarge):
                largest = max(records, key=lambda each: each.content_bytes)
                self._judge_own_refusal(largest)
            raise
        if len(taken) != len(records):
            self._scene.find("send_many", f"{len(records)} records were given, {len(taken)} were taken")
        self._took_many(records, operations, taken, partition, headers)
        if self._is_awaited:
            self._start(self._wait_for_all(taken))
        self._scene.did("send_many")

    def _took_many(
        self,
        records: Sequence[DrawnRecord],
        operations: Sequence[int],
        taken: Any,
        partition: int | None,
        headers: tuple[Header, ...],
    ) -> None:
        deliveries: Deliveries | tuple[()] = taken if taken is not None else ()
        for record, operation, delivery in zip(records, operations, deliveries, strict=False):
            record.partition, record.headers = partition, headers
            self._took(record, delivery, operation)

    def _took(self, record: DrawnRecord, delivery: Delivery, operation: int) -> None:
        partition, scene = delivery.topic_partition, self._scene
        self._check_partition(record, delivery)
        written = WrittenRecord(
            partition=partition,
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp_ms=delivery.timestamp_ms if record.timestamp_ms is None else record.timestamp_ms,
        )
        scene.history.written.add(record.name, written)
        scene.history.takes(operation, partition, record.name)
        self._taken_count += 1
        if self._taken_count % CALLED_BACK_SHARE == 0:
            self._calls_due[delivery] += 1
            delivery.add_done_callback(self._called_back)
        taken = _Taken(record=record, delivery=delivery, operation=operation, at_seconds=scene.now)
        if self._is_awaited:
            self._awaited[taken] = None
            self._start(self._wait(taken))
        else:
            self._open.append(taken)

    def _called_back(self, delivery: Delivery) -> None:
        self._calls_due[delivery] -= 1
        if not delivery.done:
            self._scene.find("add_done_callback", "called without an outcome", delivery.topic_partition)
        self._scene.did("add_done_callback")

    def _start(self, waiting: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(waiting)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_partition(self, record: DrawnRecord, delivery: Delivery) -> None:
        partition, scene = delivery.topic_partition, self._scene
        count = scene.options.topics[record.topic][0]
        wanted = record.partition
        if wanted is None and record.key is not None:
            partitioner = self._settings["partitioner"]
            wanted = scene.placed.setdefault(
                (partitioner.__name__, record.topic, record.key), partitioner(record.key, count)
            )
        if partition.topic != record.topic or (wanted is not None and partition.partition != wanted):
            scene.find("partition", f"{record.name} went to {partition}, not to {record.topic}-{wanted}")

    # ------------------------------------------------------------------------------------------------------ outcomes
    async def _wait(self, taken: _Taken) -> None:
        try:
            await taken.delivery
        except MinibrokerError:
            pass
        waited_ms = (self._scene.now - taken.at_seconds) * 1000
        if waited_ms > self._settings["delivery_timeout_ms"] + LATE_MS_MAX:
            text = f"{taken.record.name} had no outcome for {waited_ms:.0f} ms"
            self._scene.find("delivery_timeout_ms", text, taken.delivery.topic_partition)
        del self._awaited[taken]
        self._settle(taken)

    async def _wait_for_all(self, deliveries: Deliveries) -> None:
        """`await` of all together ends with the last outcome, and raises the first record's error that has one."""
        raised: MinibrokerError | None = None
        try:
            await deliveries
        except MinibrokerError as error:
            raised = error
        if not deliveries.done or deliveries.first_error() is not raised:
            text = f"awaited together they raised {raised!r}, first_error() is {deliveries.first_error()!r}"
            self._scene.find("send_many", text, None, f"done: {deliveries.done}")
        self._scene.did("deliveries awaited together")

    def _settle(self, taken: _Taken) -> MinibrokerError | None:
        """Note the outcome of a delivery that has one; returns its error."""
        history, record = self._scene.history, taken.record
        try:
            found = taken.delivery.result()
        except MinibrokerError as error:
            if isinstance(error, DeliveryAborted) and not self._may_give_up:
                self._scene.find("close", f"{record.name} was given up: {error}", taken.delivery.topic_partition)
            if isinstance(error, ProducerFenced) and self._name_judge is not None:
                self._name_judge.fenced(error)
            else:
                history.note_error(f"load acks={self._acks}", error)
            history.failed(taken.operation, error)
            is_refusal = isinstance(error, BrokerError) and error.code == RecordTooLarge.code
            if is_refusal and not error.maybe_written:  # else its batch could not be split
                self._judge_refusal(record, min(self._scene.message_bytes[record.topic]), "max.message.bytes")
            return error
        self._acknowledged(taken, found)
        return None

    def _acknowledged(self, taken: _Taken, found: RecordMetadata) -> None:
        scene, record, partition = self._scene, taken.record, taken.delivery.topic_partition
        is_promised = self._acks == "all"
        scene.history.wrote(taken.operation, found.offset, found.leader_epoch, is_promised)
        if (found.topic, found.partition) != partition:
            scene.find("partition", f"{record.name} went to {partition}, its metadata says {found}")
        if is_promised:
            scene.history.promised(partition, found.offset, record.value)
            if found.offset is not None and self._name_judge is not None:
                self._name_judge.acknowledged(partition, found.offset)
        if self._acks != 0:
            scene.did("acknowledged record")
            largest = max(scene.message_bytes[record.topic])
            if record.content_bytes > largest:
                text = f"{record.name} of {record.content_bytes} bytes was taken above max.message.bytes={largest}"
                scene.find("size", text, partition)

    def _judge_own_refusal(self, record: DrawnRecord) -> None:
        limit = min(self._settings["max_request_size"], self._settings["buffer_memory"])
        self._judge_refusal(record, limit, "max_request_size")

    def _judge_refusal(self, record: DrawnRecord, limit: int, name: str) -> None:
        """A record is refused for its size only if a batch of it alone may be too large."""
        self._scene.did(f"record above {name} refused")
        if record.content_bytes + BATCH_EXTRA_BYTES <= limit:
            text = f"{record.name} of {record.content_bytes} bytes was refused by {name}={limit}"
            self._scene.find("size", text)

    # ----------------------------------------------------------------------------------------------- flush and close
    async def flush(self) -> None:
        await self._checked_flush(self._producer.flush)
        self._scene.did("flush")

    async def _checked_close(self) -> None:
        if self._impatience.cancels_program():
            await self._checked_short_close(CANCELLED_CLOSE_MS, self._close_of_cancelled_program)
            self._scene.did("program cancelled")
            return
        timeout_ms = self._impatience.close_timeout_ms()
        if timeout_ms is None:
            await self._checked_flush(self._producer.stop)
        else:
            await self._checked_short_close(timeout_ms, lambda: self._close_with_timeout(timeout_ms))

    async def _close_with_timeout(self, timeout_ms: int) -> bool:
        """Whether it told of lost records."""
        try:
            await self._producer.close(timeout_ms)
        except (UndeliveredRecords, FlushTimedOut):
            return True
        return False

    async def _close_of_cancelled_program(self) -> bool:
        """As `async with` ends then: lost records are told in a note of the error."""
        error = asyncio.CancelledError()
        await self._producer.__aexit__(type(error), error, None)
        return hasattr(error, "__notes__")

    async def _checked_flush(self, flush: Any) -> None:
        """`flush` or `close`: each record that was taken has an outcome, and a failure that was not awaited is told."""
        before, told = self._open, False
        taken_before = [*before, *self._awaited]
        try:
            await flush()
        except UndeliveredRecords:
            told = True
        except FlushTimedOut as error:
            self._scene.find("flush", f"records had no outcome at their deadline: {error}")
        self._open = self._open[len(before) :]
        failed = self._settle_all(before, taken_before, "flush")
        if failed and not told:
            self._scene.find("flush", f"{failed} of {len(before)} records failed, and flush told of none")
        if told and not failed:
            self._scene.find("flush", "flush told of lost records, and each was awaited or acknowledged")
        if told:
            self._scene.did("flush that told of lost records")

    async def _checked_short_close(self, timeout_ms: int, close: Callable[[], Awaitable[bool]]) -> None:
        """`close` with a timeout: it keeps it, gives every record an outcome, and tells if it gave up any."""
        before, started = self._open, self._scene.now
        taken_before, self._may_give_up = [*before, *self._awaited], True
        told = await close()
        waited_ms = (self._scene.now - started) * 1000
        if waited_ms > timeout_ms + LATE_MS_MAX:
            self._scene.find("close", f"with timeout_ms={timeout_ms} it took {waited_ms:.0f} ms")
        self._open = []
        failed = self._settle_all(before, taken_before, "close")
        done = [each.delivery for each in taken_before if each.delivery.done]
        aborted = [each for each in done if isinstance(outcome_error(each), DeliveryAborted)]
        if (failed or aborted) and not told:
            self._scene.find("close", f"{failed} records failed, {len(aborted)} were given up, and close told of none")
        if aborted:
            self._scene.did("close that gave up records")

    def _settle_all(self, ours: list[_Taken], taken_before: list[_Taken], call: str) -> int:
        """After a call that leaves none of `taken_before` open. Note the outcomes of `ours`, which no task awaits, and
        return how many of them failed."""
        for taken in taken_before:
            if not taken.delivery.done:
                self._scene.find("flush", f"{taken.record.name} has no outcome after a {call}")
        if self._producer.buffered_bytes != 0:
            self._scene.find("memory", f"{self._producer.buffered_bytes} bytes are in use after a {call}")
        return sum(self._settle(taken) is not None for taken in ours if taken.delivery.done)


def outcome_error(delivery: Delivery) -> MinibrokerError | None:
    """Of a delivery that has an outcome."""
    try:
        delivery.result()
    except MinibrokerError as error:
        return error
    return None
