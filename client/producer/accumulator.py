"""What waits to be sent, what is in flight, and under which sequences: the rules of the producer. Pure.

Owns: one queue per partition, its order, its sequences, and what an answer means for them. Leaves to others: the clock
(time is passed in as `now_ms`), asyncio, connections and metadata (`sender` sets a queue's leader).

A queue holds three things, in the order in which they will be in the log:

    attempted   batches that were sent at least once and have no outcome: in flight, or waiting for another attempt
    fresh       full batches that were never sent
    open_batch  the batch that still takes records

The rules:
1. A batch gets its sequence when it is first sent, and keeps it while it is retried. So at most `in_flight_max`
   sequences are in doubt, and a broker, which remembers more batches of a producer (`BATCHES_REMEMBERED` there), can
   tell a retry from a new batch.
2. While any attempted batch waits for a retry, the partition sends one batch at a time, oldest first, and only when
   none of its batches is in flight. So retries neither overtake nor are overtaken.
3. A sequence belongs to its batch for ever. If an attempted batch fails or expires, its sequence is not given to
   another one (hardening rule 12): the queue is `broken`. Batches attempted after it are retried under their old
   sequences, because they may have been written. Once no batch is in doubt, the queue takes a new identity (a higher
   producer epoch) and starts at sequence 0. A batch acknowledged after the failed one proves that the failed one was
   written, too: then nothing is missing, and the queue continues as before.
4. 'Out of order' (45) or 'unknown producer' (59) for the oldest attempted batch, with nothing else in flight, means
   that this identity cannot continue. Batches of which each attempt was refused go back to `fresh`, lose their
   sequences, and follow under a new identity. Batches in doubt fail with an unknown outcome: a broker may have
   forgotten what it has written, and what a former leader wrote may come back when a replica that has it is elected.
   In any other position both codes only mean that an earlier batch has to be settled first. 'Too large' (10) is treated
   like 45, and the batch is replaced by its parts. 'Duplicate' without an offset (46) proves nothing: that outcome is
   unknown, too.
5. The first batch under an identity is sent alone: a broker that does not know the producer accepts sequence 0 only, so
   it would refuse the batches after a refused first one. The same holds for a batch that has sequence 0 again, after
   the largest sequence: sent behind another batch, it would be accepted where that one was refused.
6. Without idempotence one batch per partition is in flight, so that a retry cannot be overtaken. With acks=0 there are
   no answers and no retries: any number may be in flight.
7. Where batches wait, a request takes several of a partition, in their order (docs/decisions/0012). Each one is
   answered, so for the rules above they are like separate requests that follow each other.
"""

from collections.abc import Iterable, Iterator

from minibroker.client.errors import BrokerError, MinibrokerError, OutcomeUnknown
from minibroker.client.producer.batches import Batch, PartitionQueue, ProducerIdentity, split
from minibroker.client.retry import MAYBE_WRITTEN_AFTER, ProduceDecision, decide_produce
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, LeaderEpoch, Offset
from minibroker.protocol.record_batch import HEADER_BYTES, SEQUENCE_MAX
from minibroker.protocol.wire.message_types import PRODUCE_BATCHES_MAX

LATE_RECORD_EXTRA_BYTES = 16
"""A record may take this much more at the end of a large batch than at the start of one: its deltas are larger."""
SPLIT_MIN_BYTES = 1_024
"""Batches are not split into smaller ones than this."""


class Accumulator:
    """The queues of one producer."""

    def __init__(self, *, batch_size: int, linger_ms: float, idempotent: bool, in_flight_max: int, acks: int) -> None:
        self.batch_size = batch_size
        self.linger_ms = linger_ms
        self.idempotent = idempotent
        if acks == 0:
            self.in_flight_max = 1_000_000
        else:
            self.in_flight_max = in_flight_max * PRODUCE_BATCHES_MAX if idempotent else 1
        self.identity: ProducerIdentity | None = None
        """The newest identity; queues take it when they need one."""
        self.identity_wanted = False
        """A queue cannot continue without a newer identity."""
        self.skips_linger = False
        """Send open batches without waiting for linger_ms (flush, close, or a call waits for memory)."""
        self.finished: list[Batch] = []
        """Batches that got their outcome; the shell removes them and notifies their waiters."""
        self._active: dict[BrokerId | None, dict[PartitionQueue, None]] = {}

    # ------------------------------------------------------------------------------------------------------- filling
    def open(self, queue: PartitionQueue, now_ms: float, deadline_ms: float) -> Batch:
        """Begin a batch."""
        assert queue.open_batch is None
        batch = Batch(queue, self.batch_size, now_ms, deadline_ms)
        queue.open_batch = batch
        self._active.setdefault(queue.leader, {})[queue] = None
        return batch

    def has_place(self, queue: PartitionQueue, size_bytes: int) -> bool:
        """Whether an open batch has room for a record that would take this much in a batch of its own."""
        batch = queue.open_batch
        return batch is not None and batch.size_bytes + size_bytes + LATE_RECORD_EXTRA_BYTES <= self.batch_size

    def seal(self, queue: PartitionQueue) -> None:
        """The open batch takes no more records."""
        batch = queue.open_batch
        assert batch is not None
        batch.record_count = batch.builder.record_count
        assert batch.record_count > 0
        queue.open_batch = None
        queue.fresh.append(batch)

    def set_leader(self, queue: PartitionQueue, leader: BrokerId | None, epoch: LeaderEpoch | None) -> None:
        """Set the leader that metadata names. A new leader, or a new epoch of the same one, is tried at once; one that
        was not known for a while is no new one."""
        if leader == queue.leader and epoch == queue.leader_epoch:
            return
        if epoch != queue.leader_epoch or leader not in (None, queue.known_leader):
            queue.retry_at_ms = 0.0
            queue.failures = 0
            queue.attempt_round += 1
        queue.leader_epoch = epoch
        if leader is not None:
            queue.known_leader = leader
        if leader == queue.leader:
            return
        active = self._active.get(queue.leader, {})
        was_active = queue in active
        active.pop(queue, None)
        queue.leader = leader
        if was_active:
            self._active.setdefault(leader, {})[queue] = None

    # ------------------------------------------------------------------------------------------------------- looking
    def has_work(self, leader: BrokerId) -> bool:
        """Whether any queue of this leader holds anything."""
        return bool(self._active.get(leader))

    def leaders(self) -> list[BrokerId | None]:
        """Leaders (None: not known) of the queues that hold anything."""
        return [leader for leader, queues in self._active.items() if queues]

    def active_queues(self) -> list[PartitionQueue]:
        """Queues that hold anything."""
        return [queue for queues in self._active.values() for queue in queues]

    def oldest(self) -> Batch | None:
        """The batch that has waited longest for its outcome."""
        batches = [batch for queue in self.active_queues() if (batch := queue.oldest()) is not None]
        return min(batches, key=lambda batch: batch.created_ms, default=None)

    def ready_at_ms(self, queue: PartitionQueue, now_ms: float) -> float | None:
        """When the queue could next send something without a further event; None if it needs an answer first."""
        if queue.attempted and queue.in_flight < len(queue.attempted):
            return None if queue.in_flight else max(queue.retry_at_ms, now_ms)
        if len(queue.attempted) >= self.in_flight_max or (queue.attempted and self._must_wait(queue)):
            return None
        if queue.fresh or (self.skips_linger and queue.open_batch is not None):
            return max(queue.retry_at_ms, now_ms)
        if queue.open_batch is not None:
            return max(queue.retry_at_ms, queue.open_batch.created_ms + self.linger_ms)
        return None

    # ------------------------------------------------------------------------------------------------------- sending
    def drain(self, leader: BrokerId, now_ms: float, max_bytes: int) -> list[Batch]:
        """Batches for one request to this leader: at most PRODUCE_BATCHES_MAX of each partition, in order, together at
        most max_bytes (but at least one). They are in flight from now on."""
        active = self._active.get(leader)
        if not active:
            return []
        chosen: list[Batch] = []
        total_bytes = 0
        for batch in self._ready(active, now_ms):
            if chosen and total_bytes + batch.size_bytes > max_bytes:
                break
            self._begin_flight(batch.queue, batch)
            total_bytes += batch.size_bytes
            chosen.append(batch)
        if len(active) > 1:
            for queue in dict.fromkeys(batch.queue for batch in chosen):
                del active[queue]  # to the end: the partitions are served round robin
                active[queue] = None
        return chosen

    def _ready(self, queues: Iterable[PartitionQueue], now_ms: float) -> Iterator[Batch]:
        """The batches that one request may take, in order. `_begin_flight` must be called for each before the next."""
        for queue in queues:
            for _ in range(PRODUCE_BATCHES_MAX):
                batch = self._next_batch(queue, now_ms)
                if batch is None:
                    break
                yield batch

    def _next_batch(self, queue: PartitionQueue, now_ms: float) -> Batch | None:
        """The batch that this queue would send now. Removes nothing from the queue, but may seal its open batch."""
        if queue.retry_at_ms > now_ms:
            return None
        attempted = queue.attempted
        if attempted:
            if queue.in_flight < len(attempted):  # rule 2
                return None if queue.in_flight else attempted[0]
            if len(attempted) >= self.in_flight_max or self._must_wait(queue):
                return None
        if not queue.fresh:
            batch = queue.open_batch
            if batch is None or not (self.skips_linger or now_ms >= batch.created_ms + self.linger_ms):
                return None
        if self.idempotent and (queue.identity is None or queue.broken) and not self._renew(queue):
            return None
        if not queue.fresh:
            self.seal(queue)
        return queue.fresh[0]

    def _must_wait(self, queue: PartitionQueue) -> bool:
        """No new batch may be sent behind the attempted ones (rules 3 and 5)."""
        return queue.broken or (self.idempotent and (not queue.identity_acknowledged or queue.next_sequence == 0))

    def _renew(self, queue: PartitionQueue) -> bool:
        """No batch of this queue is in doubt: continue as before if none is missing, else under a newer identity."""
        assert not queue.attempted
        if queue.broken and queue.proven_sequence == queue.next_sequence:
            queue.broken = False
            return True
        newest = self.identity
        if newest is None or (queue.identity is not None and newest.generation <= queue.identity.generation):
            self.identity_wanted = True
            return False
        queue.identity = newest
        queue.next_sequence = queue.proven_sequence = 0
        queue.broken = False
        queue.identity_acknowledged = False
        return True

    def _begin_flight(self, queue: PartitionQueue, batch: Batch) -> None:
        if batch.packed is None:
            assert queue.fresh[0] is batch
            queue.fresh.popleft()
            queue.attempted.append(batch)
            if self.idempotent:
                batch.identity = queue.identity
                batch.base_sequence = queue.next_sequence
                queue.next_sequence = _after(queue.next_sequence, batch.record_count)
            batch.pack()
        assert not batch.in_flight
        batch.in_flight = True
        batch.attempt_round = queue.attempt_round
        batch.attempts += 1
        queue.in_flight += 1

    def unsend(self, batch: Batch) -> None:
        """The request could not be written at all: the batch waits for another attempt."""
        self._end_flight(batch)

    # ------------------------------------------------------------------------------------------------------- answers
    def written(
        self,
        batch: Batch,
        base_offset: Offset | None,
        leader_epoch: LeaderEpoch | None,
        broker: BrokerId | None = None,
    ) -> None:
        """The broker acknowledged the batch; with acks=0 nothing of this is known."""
        queue = self._end_flight(batch)
        queue.attempted.remove(batch)
        queue.failures = 0
        queue.retry_at_ms = 0.0
        if batch.base_sequence is not None:
            end = _after(batch.base_sequence, batch.record_count)
            if _is_ahead(end, queue.proven_sequence):
                queue.proven_sequence = end
            queue.identity_acknowledged = True
        if not batch.done:
            batch.base_offset = base_offset
            batch.leader_epoch = leader_epoch
            batch.broker = broker
            self._finish(batch, None)
        self._deactivate_if_idle(queue)

    def refused(self, batch: Batch, error: BrokerError, retry_at_ms: float) -> ProduceDecision:
        """The broker refused the batch; returns what follows from it."""
        queue = self._end_flight(batch)
        code = error.code if error.code is not None else ErrorCode.UNKNOWN_SERVER_ERROR
        decision = decide_produce(code, batch.record_count)
        assert decision is not ProduceDecision.WRITTEN
        batch.last_error = error
        if code in MAYBE_WRITTEN_AFTER:
            batch.note_doubt(f"was answered with {code.name}")
        if batch.done:
            self._drop(queue, batch)
            decision = ProduceDecision.FAIL
        elif decision is ProduceDecision.NEW_PRODUCER_EPOCH and not self.idempotent:
            decision = ProduceDecision.FAIL
        elif decision is ProduceDecision.SPLIT and batch.maybe_written:
            decision = ProduceDecision.FAIL  # written by an earlier attempt, its parts would be written twice
        elif decision in (ProduceDecision.NEW_PRODUCER_EPOCH, ProduceDecision.SPLIT) and (
            queue.attempted[0] is not batch or queue.in_flight
        ):
            decision = ProduceDecision.RETRY
        if decision is ProduceDecision.NEW_PRODUCER_EPOCH:
            self._fail_maybe_written(queue, code, error)
            self._restart(queue)
            if not batch.done:
                self._back_off(batch, retry_at_ms)
        elif decision is ProduceDecision.SPLIT:
            self._fail_maybe_written(queue, code, error)
            self._split(queue, batch)
        elif decision is ProduceDecision.RETRY:
            self._back_off(batch, retry_at_ms)
        elif not batch.done:
            self._drop(queue, batch)
            error.maybe_written = error.maybe_written or batch.maybe_written
            self._finish(batch, error)
        self._deactivate_if_idle(queue)
        return decision

    def lost(self, batch: Batch, error: MinibrokerError, retry_at_ms: float) -> None:
        """No answer came: the batch may or may not have been written."""
        queue = self._end_flight(batch)
        batch.note_doubt("got no answer")
        batch.last_error = error
        if batch.done:
            self._drop(queue, batch)
        else:
            self._back_off(batch, retry_at_ms)
        self._deactivate_if_idle(queue)

    def expire(self, batch: Batch, error: MinibrokerError) -> None:
        """Give up a batch without outcome. In flight it keeps its place until its answer arrives (rule 3)."""
        queue = batch.queue
        assert not batch.done
        if batch is queue.open_batch:
            batch.record_count = batch.builder.record_count
            queue.open_batch = None
        elif not batch.in_flight:
            if batch in queue.attempted:
                self._drop(queue, batch)
            else:
                queue.fresh.remove(batch)
        self._finish(batch, error)
        self._deactivate_if_idle(queue)

    # -------------------------------------------------------------------------------------------------------- pieces
    def _end_flight(self, batch: Batch) -> PartitionQueue:
        queue = batch.queue
        assert batch.in_flight
        batch.in_flight = False
        queue.in_flight -= 1
        return queue

    def _back_off(self, batch: Batch, retry_at_ms: float) -> None:
        """Once for batches in flight together that failed together, and not for failures at a former leader."""
        queue = batch.queue
        if batch.attempt_round != queue.attempt_round:
            return
        queue.attempt_round += 1
        queue.failures += 1
        queue.retry_at_ms = max(queue.retry_at_ms, retry_at_ms)

    def _drop(self, queue: PartitionQueue, batch: Batch) -> None:
        """Remove an attempted batch that was not acknowledged: its sequence is not used again."""
        queue.attempted.remove(batch)
        if batch.identity is not None:
            queue.broken = True

    def _restart(self, queue: PartitionQueue) -> None:
        """Rule 4: none of the attempted batches left was written. They are sent again in order, as if for the first."""
        assert not queue.in_flight
        queue.broken = self.idempotent
        queue.proven_sequence = _before(queue.next_sequence)  # a sequence is missing: this identity cannot continue
        for batch in reversed(queue.attempted):
            batch.identity = None
            batch.base_sequence = None
            batch.packed = None
            queue.fresh.appendleft(batch)
        queue.attempted.clear()

    def _fail_maybe_written(self, queue: PartitionQueue, code: ErrorCode, error: BrokerError) -> None:
        """Rule 4: a batch that may have been written is not sent again under another sequence. That this leader lacks
        it, or the one before it, proves nothing: what another replica wrote before may come back with its election."""
        unknown = OutcomeUnknown(code, error.where, _in_doubt(error.broker_message))
        for batch in [batch for batch in queue.attempted if batch.maybe_written]:
            self._drop(queue, batch)
            self._finish(batch, unknown)

    def _split(self, queue: PartitionQueue, batch: Batch) -> None:
        parts = split(batch, max(SPLIT_MIN_BYTES, HEADER_BYTES + batch.size_bytes // 2))
        self._restart(queue)
        replaced = queue.fresh.popleft()
        assert replaced is batch
        queue.fresh.extendleft(reversed(parts))

    def _finish(self, batch: Batch, error: MinibrokerError | None) -> None:
        batch.finish(error)
        self.finished.append(batch)
        parent = batch.parent
        while parent is not None and all(part.done for _, part in parent.parts):
            first = next((part.error for _, part in parent.parts if part.error is not None), None)
            parent.finish(first)
            self.finished.append(parent)
            parent = parent.parent

    def _deactivate_if_idle(self, queue: PartitionQueue) -> None:
        if queue.idle:
            self._active.get(queue.leader, {}).pop(queue, None)


def _in_doubt(message: str | None) -> str:
    doubt = "an attempt went unanswered, and this leader does not know it: it may still have been written"
    return f"{message}; {doubt}" if message else doubt


def _after(sequence: int, count: int) -> int:
    """The sequence `count` further; sequences wrap to 0 after 2^31 - 1."""
    return (sequence + count) & SEQUENCE_MAX


def _before(sequence: int) -> int:
    return (sequence - 1) & SEQUENCE_MAX


def _is_ahead(sequence: int, reference: int) -> bool:
    """Is `sequence` ahead of `reference` modulo 2^31? Distances in use are far below half of that."""
    return 0 < ((sequence - reference) & SEQUENCE_MAX) < 2**30
