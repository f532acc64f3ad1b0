"""Batches, records that are sent to one partition together, and the queue of a partition's batches. Pure.

A batch collects records while it is open, is packed once when it is first sent, and has one outcome for all of them.
"""

from collections import deque
from collections.abc import Callable

import msgspec

from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset, TopicPartition
from minibroker.protocol.record_batch import BatchBuilder, decode_records

_NO_RECORDS = BatchBuilder(0)
"""The builder of a finished batch. Nothing is ever appended to it: no queue refers to a finished batch."""


class ProducerIdentity(msgspec.Struct, frozen=True):
    """How brokers distinguish producers (KIP-98). The generation rises with each identity that was granted."""

    producer_id: int
    producer_epoch: int
    generation: int


class Batch:
    """Records of one partition that are sent together. States: open, sealed, packed and in flight, perhaps waiting for
    another attempt, done. Done with `error` None means written."""

    __slots__ = (
        "_waiters",
        "append",
        "attempt_round",
        "attempts",
        "base_offset",
        "base_sequence",
        "broker",
        "builder",
        "created_ms",
        "deadline_ms",
        "done",
        "doubt",
        "error",
        "identity",
        "in_flight",
        "last_error",
        "leader_epoch",
        "observed",
        "packed",
        "parent",
        "parts",
        "queue",
        "record_count",
        "reserved_bytes",
    )

    def __init__(self, queue: "PartitionQueue", max_bytes: int, created_ms: float, deadline_ms: float) -> None:
        self.queue = queue
        self.builder = BatchBuilder(max_bytes)
        self.append = self.builder.append
        self.created_ms = created_ms
        self.deadline_ms = deadline_ms
        self.reserved_bytes = 0
        self.record_count = 0
        """Set when the batch is sealed."""
        self.packed: bytearray | None = None
        self.identity: ProducerIdentity | None = None
        self.base_sequence: int | None = None
        self.attempts = 0
        self.attempt_round = 0
        """The queue's value when this batch was last sent."""
        self.in_flight = False
        self.doubt: str | None = None
        """Which attempt may have written it although it was not acknowledged, and why; None if each was refused."""
        self.last_error: MinibrokerError | None = None
        self.done = False
        self.error: MinibrokerError | None = None
        self.base_offset: Offset | None = None
        self.leader_epoch: LeaderEpoch | None = None
        self.broker: BrokerId | None = None
        self.observed = False
        """The program has looked at the outcome: flush() need not report a failure again."""
        self.parent: Batch | None = None
        self.parts: list[tuple[int, Batch]] = []
        """After a split: (first delta, batch), which hold the records now."""
        self._waiters: list[tuple[int | None, Callable[[], None]]] | None = None
        """With the position of the record that each waits for; None waits for all records."""

    @property
    def topic_partition(self) -> TopicPartition:
        return self.queue.topic_partition

    @property
    def maybe_written(self) -> bool:
        """An earlier attempt may have written it."""
        return self.doubt is not None

    def note_doubt(self, what: str) -> None:
        """The present attempt may have written it. The first one that may counts."""
        self.doubt = self.doubt or f"attempt {self.attempts} {what}"

    def fate(self) -> str:
        """Whether it was written, in words, for the error of a batch that is given up."""
        doubt = self.doubt or (f"attempt {self.attempts} is not answered yet" if self.in_flight else None)
        which = "it" if self.record_count == 1 else "they"
        return "nothing was written" if doubt is None else f"{which} may still have been written: {doubt}"

    @property
    def size_bytes(self) -> int:
        """Bytes on the wire, or an upper bound of them while it is not packed."""
        return len(self.packed) if self.packed is not None else self.builder.size_bytes

    def allow(self, byte_count: int) -> None:
        """Reserve this much memory for it: records are taken up to that size."""
        self.reserved_bytes = self.builder.max_bytes = byte_count

    def pack(self) -> None:
        """Encode the records for the wire, under the batch's identity and sequence."""
        if self.identity is None or self.base_sequence is None:
            self.packed = self.builder.close()
        else:
            identity = self.identity
            self.packed = self.builder.close(identity.producer_id, identity.producer_epoch, self.base_sequence)

    def finish(self, error: MinibrokerError | None) -> None:
        """Give the batch its outcome; `notify` calls the waiters."""
        assert not self.done
        self.done = True
        self.error = error
        self.packed = None
        self.builder = _NO_RECORDS  # a kept delivery must not keep its whole batch in memory
        self.append = _NO_RECORDS.append

    def when_done(self, waiter: Callable[[], None], delta: int | None = None) -> None:
        """Call `waiter` once the record at `delta` has its outcome, or every record without one. The batch must not be
        done yet."""
        assert not self.done
        if self._waiters is None:
            self._waiters = []
        self._waiters.append((delta, waiter))

    def notify(self) -> None:
        """Call the waiters."""
        waiters, self._waiters = self._waiters, None
        if waiters is not None:
            for _, waiter in waiters:
                waiter()

    def hand_over_waiters(self) -> None:
        """After a split: a waiter for one record waits for the part that holds it, in the same order."""
        waiters, self._waiters = self._waiters, None
        for delta, waiter in waiters or ():
            if delta is None:
                self.when_done(waiter)
            else:
                part, place = self.holder_of(delta)
                part.when_done(waiter, place)

    def observe(self) -> None:
        """The program looks at the outcome, or waits for it."""
        self.observed = True
        for _, part in self.parts:
            part.observe()

    def holder_of(self, delta: int) -> "tuple[Batch, int]":
        """The batch that holds the record now (after splits), and its position there."""
        batch = self
        while batch.parts:
            first, part = next(entry for entry in reversed(batch.parts) if entry[0] <= delta)
            batch, delta = part, delta - first
        return batch, delta


class PartitionQueue:
    """Everything of one partition that has no outcome yet."""

    __slots__ = (
        "attempt_round",
        "attempted",
        "broken",
        "check_caller",
        "failures",
        "fresh",
        "identity",
        "identity_acknowledged",
        "in_flight",
        "known_leader",
        "leader",
        "leader_epoch",
        "next_sequence",
        "open_batch",
        "proven_sequence",
        "retry_at_ms",
        "topic_partition",
    )

    def __init__(self, topic_partition: TopicPartition, check_caller: Callable[[], None] = lambda: None) -> None:
        self.topic_partition = topic_partition
        self.check_caller = check_caller
        """Raises for a caller that must not wait for a batch of this queue."""
        self.open_batch: Batch | None = None
        self.fresh: deque[Batch] = deque()
        self.attempted: deque[Batch] = deque()
        self.in_flight = 0
        """How many of `attempted` are in flight."""
        self.leader: BrokerId | None = None
        self.leader_epoch: LeaderEpoch | None = None
        self.known_leader: BrokerId | None = None
        """The last one that was not None."""
        self.retry_at_ms = 0.0
        self.failures = 0
        """Consecutive refused or lost attempts; batches in flight together count once."""
        self.attempt_round = 0
        """Rises with each new leader epoch and each counted failure: failures of earlier rounds do not count again."""
        self.identity: ProducerIdentity | None = None
        self.next_sequence = 0
        self.proven_sequence = 0
        """Every sequence of this identity below it (modulo 2^31) is in the log."""
        self.broken = False
        """A sequence has no batch any more (rule 3)."""
        self.identity_acknowledged = False
        """The broker has acknowledged something under this identity (rule 5)."""

    @property
    def idle(self) -> bool:
        return self.open_batch is None and not self.fresh and not self.attempted

    def unfinished(self) -> list[Batch]:
        """Every batch without outcome, in log order."""
        tail = [self.open_batch] if self.open_batch is not None else []
        return [batch for batch in (*self.attempted, *self.fresh, *tail) if not batch.done]

    def oldest(self) -> Batch | None:
        """The first batch in log order that has no outcome."""
        for batches in (self.attempted, self.fresh):
            for batch in batches:
                if not batch.done:
                    return batch
        return self.open_batch


def split(batch: Batch, max_bytes: int) -> list[Batch]:
    """The same records in at least two smaller batches, in the same order."""
    assert batch.packed is not None
    assert batch.record_count > 1
    records = decode_records(batch.packed)
    parts: list[Batch] = []
    part: Batch | None = None
    for delta, record in enumerate(records):
        # the first half never takes everything, whatever the bound
        full = part is None or (len(parts) == 1 and delta == len(records) - 1)
        if not full:
            assert part is not None
            full = part.append(record.key, record.value, record.timestamp_ms, record.headers) is None
        if full:
            part = Batch(batch.queue, max_bytes, batch.created_ms, batch.deadline_ms)
            part.parent = batch
            part.observed = batch.observed
            part.append(record.key, record.value, record.timestamp_ms, record.headers)
            parts.append(part)
            batch.parts.append((delta, part))
    for part in parts:
        part.record_count = part.builder.record_count
    batch.hand_over_waiters()
    return parts
