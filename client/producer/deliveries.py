"""The promises that a producer returns for records. Pure except for `__await__`.

Owns: what `send` and `send_many` return. A Delivery is a batch and a position in it, Deliveries are ranges in batches:
neither has a future of its own unless a task awaits it, so a promise costs next to nothing.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Generator, Sequence
from typing import Any, overload

import msgspec

from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.batches import Batch
from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition


class RecordMetadata(msgspec.Struct, frozen=True):
    """Where a record was written."""

    topic: str
    partition: int
    offset: Offset | None
    """None with acks=0, and for a duplicate that the broker confirmed without knowing its offset."""
    leader_epoch: LeaderEpoch | None
    timestamp_ms: int
    broker: BrokerId | None = None
    """The leader that acknowledged it; None with acks=0."""


class Delivery(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The promise for one record: `await` it for its RecordMetadata, or for the error that ended it.

    Any number of tasks may await it, any number of times. `done` and `result()` do not wait.
    """

    _batch: Batch
    _delta: int
    timestamp_ms: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Where the record goes."""
        return self._batch.topic_partition

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        batch = self._batch
        return batch.done or (bool(batch.parts) and batch.holder_of(self._delta)[0].done)

    def result(self) -> RecordMetadata:
        """The record's RecordMetadata, or raises its error. Only once `done`."""
        batch, delta = self._batch.holder_of(self._delta)
        if not batch.done:
            raise asyncio.InvalidStateError("the record's outcome is not known yet; await the delivery")
        batch.observed = True
        if batch.error is not None:
            raise batch.error
        partition = batch.queue.topic_partition
        return RecordMetadata(
            partition.topic,
            partition.partition,
            None if batch.base_offset is None else batch.base_offset + delta,
            batch.leader_epoch,
            self.timestamp_ms,
            batch.broker,
        )

    def add_done_callback(self, callback: "Callable[[Delivery], object]") -> None:
        """Have the event loop call `callback(delivery)` once the outcome is known; `result()` is the outcome then. For
        programs that await only `flush()`."""
        batch, delta = self._batch.holder_of(self._delta)
        batch.queue.check_caller()
        loop = asyncio.get_running_loop()

        def call() -> None:
            loop.call_soon(callback, self)

        if batch.done:
            call()
        else:
            batch.when_done(call, delta)

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        while not self.done:
            batch, delta = self._batch.holder_of(self._delta)
            batch.observed = True
            yield from _outcome_of(batch, delta)
        return self.result()


class Deliveries(Sequence[Delivery]):
    """The promises for the records of one `send_many`, in the order of the call.

    `await` it until every record has its outcome: it raises the error of the first record that failed, if one did.
    `deliveries[n]` is the n-th record's Delivery, created on access.
    """

    __slots__ = ("_batches", "_count", "_first_deltas", "_last_batch", "_next_delta", "_starts", "timestamp_ms")

    def __init__(self, timestamp_ms: int) -> None:
        self.timestamp_ms = timestamp_ms
        """The same for all these records."""
        self._count = 0
        self._starts: list[int] = []
        """Where ranges begin, as record numbers of the call; each range lies in one batch, in order."""
        self._batches: list[Batch] = []
        self._first_deltas: list[int] = []
        self._last_batch: Batch | None = None
        self._next_delta = 0
        """The delta that would extend the last range."""

    def add(self, batch: Batch, first_delta: int, count: int) -> None:
        """The next `count` records of the call are in this batch, from this position on."""
        if batch is not self._last_batch or first_delta != self._next_delta:
            self._starts.append(self._count)
            self._batches.append(batch)
            self._first_deltas.append(first_delta)
            self._last_batch = batch
        self._next_delta = first_delta + count
        self._count += count

    def add_one(self, delivery: Delivery) -> None:
        """The next record of the call has this promise."""
        self.add(delivery._batch, delivery._delta, 1)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Delivery: ...

    @overload
    def __getitem__(self, index: slice) -> list[Delivery]: ...

    def __getitem__(self, index: int | slice) -> Delivery | list[Delivery]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(self._count))]
        place = index + self._count if index < 0 else index
        if not 0 <= place < self._count:
            raise IndexError(f"delivery {index} of {self._count}")
        number = bisect_right(self._starts, place) - 1
        delta = self._first_deltas[number] + place - self._starts[number]
        return Delivery(self._batches[number], delta, self.timestamp_ms)

    @property
    def done(self) -> bool:
        """Whether all outcomes are known."""
        return all(batch.done for batch in reversed(self._batches))

    def first_error(self) -> MinibrokerError | None:
        """The error of the first record that failed; None if none has failed."""
        for number, batch in enumerate(self._batches):
            if batch.error is None:
                continue
            first, start = self._first_deltas[number], self._starts[number]
            end = self._starts[number + 1] if number + 1 < len(self._starts) else self._count
            for delta in range(first, first + end - start):
                holder, _ = batch.holder_of(delta)
                if holder.error is not None:
                    return holder.error
        return None

    def __await__(self) -> Generator[Any, None, None]:
        for batch in self._batches:
            batch.observe()
        for batch in self._batches:
            while not batch.done:
                yield from _outcome_of(batch)
        error = self.first_error()
        if error is not None:
            raise error


def _outcome_of(batch: Batch, delta: int | None = None) -> Generator[Any, None, None]:
    """Wait until the record at `delta` has its outcome, or every record of the batch without one."""
    batch.queue.check_caller()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not future.done():
            future.set_result(None)

    batch.when_done(end, delta)
    yield from future
