"""One partition's queue of a producer, a broker of a few lines, and the connection between them.

Owns: the moves that tests of the producer's rules are made of, and the judgement of what came of them.
"""

from minibroker.client.errors import BrokerUnreachable, DeliveryTimedOut, broker_error
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch, PartitionQueue, ProducerIdentity
from minibroker.client.retry import ProduceDecision
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import decode_records, read_header
from minibroker.protocol.wire.message_types import PRODUCE_BATCHES_MAX
from tests.client.fake_cluster import FakePartition

LEADER = 1
PARTITION = TopicPartition("t", 0)


class Sandbox:
    """One partition's queue, its broker, and the connection between them."""

    def __init__(self, *, idempotent: bool = True, acks: int = -1) -> None:
        self.accumulator = Accumulator(batch_size=4_096, linger_ms=0, idempotent=idempotent, in_flight_max=5, acks=acks)
        self.queue = PartitionQueue(PARTITION)
        self.accumulator.set_leader(self.queue, LEADER, 0)
        self.partition = FakePartition(LEADER, [LEADER])
        self.under_way: list[tuple[Batch, bytes]] = []
        """Batches in flight with their bytes, in order of sending."""
        self.batches: list[Batch] = []
        self.values: dict[Batch, list[bytes]] = {}
        self.now_ms = 0.0
        self.record_number = 0
        self.sent: dict[tuple[int, int, int], list[bytes | None]] = {}
        """(producer id, epoch, sequence) -> values of the batch that was sent under it."""
        if idempotent:
            self.grant()

    def grant(self) -> None:
        had = self.accumulator.identity
        generation = 0 if had is None else had.generation + 1
        self.accumulator.identity = ProducerIdentity(7, generation, generation)
        self.accumulator.identity_wanted = False

    def fill(self, record_count: int = 2) -> Batch:
        batch = self.accumulator.open(self.queue, self.now_ms, self.now_ms + 1_000)
        self.values[batch] = [
            b"%06d" % number for number in range(self.record_number, self.record_number + record_count)
        ]
        self.record_number += record_count
        for value in self.values[batch]:
            assert batch.append(None, value, 0) is not None
        self.accumulator.seal(self.queue)
        self.batches.append(batch)
        return batch

    def send(self) -> Batch | None:
        """A request of one batch, if the rules allow one."""
        batches = self.send_many(max_bytes=1)
        assert len(batches) <= 1
        return batches[0] if batches else None

    def send_many(self, max_bytes: int = 1_000_000) -> list[Batch]:
        """One request, of as many batches as the rules allow."""
        drained = self.accumulator.drain(LEADER, self.now_ms, max_bytes)
        assert len(drained) <= PRODUCE_BATCHES_MAX
        for batch in drained:
            self._send(batch)
        return drained

    def _send(self, batch: Batch) -> None:
        assert batch.packed is not None
        assert not any(other is batch for other, _ in self.under_way)
        header = read_header(batch.packed)
        values = [record.value for record in decode_records(batch.packed)]
        if header.producer_id >= 0:
            key = (header.producer_id, header.producer_epoch, header.base_sequence)
            assert self.sent.setdefault(key, values) == values, f"sequence {key} was given to two different batches"
        self.under_way.append((batch, bytes(batch.packed)))

    # ---------------------------------------------------------------------------------------------------- the broker
    def answer(self, position: int = 0) -> None:
        """The broker handles the request and answers."""
        batch, records = self.under_way.pop(position)
        code, offset = self.partition.append(records)
        if code is ErrorCode.NONE:
            self.accumulator.written(batch, offset, 0)
        else:
            self.accumulator.refused(batch, broker_error(code), self.now_ms)

    def refuse(self, code: ErrorCode, position: int = 0) -> ProduceDecision:
        batch, _ = self.under_way.pop(position)
        return self.accumulator.refused(batch, broker_error(code), self.now_ms)

    def lose(self, handled_count: int = 0) -> None:
        """The connection breaks: the first `handled` requests were handled, and none is answered."""
        for _, records in self.under_way[:handled_count]:
            self.partition.append(records)
        while self.under_way:
            batch, _ = self.under_way.pop(0)
            self.accumulator.lost(batch, BrokerUnreachable("lost"), self.now_ms)

    def forget(self) -> None:
        """The broker forgets the producer, if it has written: a batch of sequence 0 in doubt, the first one or one
        behind two billion records, would be accepted again (docs/CLIENT.md)."""
        if self.queue.identity_acknowledged and all(batch.base_sequence for batch in self.queue.attempted):
            self.partition.producers.clear()

    def expire(self, batch: Batch) -> None:
        doubt = batch.maybe_written or batch.in_flight
        self.accumulator.expire(batch, DeliveryTimedOut("too late", maybe_written=doubt))

    def settle(self) -> None:
        """No more faults: every batch must get its outcome."""
        for _ in range(200):
            self.now_ms += 1
            if self.accumulator.identity_wanted:
                self.grant()
            while self.send() is not None:
                pass
            while self.under_way:
                self.answer()
            if self.queue.idle:
                return
        raise AssertionError("the queue never came to rest")

    def check(self) -> None:
        values = self.partition.values()
        numbers = [int(value) for value in values if value is not None]
        assert numbers == sorted(numbers), f"out of order: {numbers}"
        assert len(set(numbers)) == len(numbers), f"written twice: {numbers}"
        at = {record.value: record.offset for raw in self.partition.batches for record in decode_records(raw)}
        for whole, written in self.values.items():
            for position, value in enumerate(written):
                batch, delta = whole.holder_of(position)
                assert batch.done
                if batch.error is None:
                    assert value in at
                    assert batch.base_offset is None or at[value] == batch.base_offset + delta
                elif not batch.error.maybe_written:
                    assert value not in at, "reported as not written, but it is"


def identity_acknowledged() -> Sandbox:
    """The broker has acknowledged a first record: offset 0, sequence 0."""
    sandbox = Sandbox()
    sandbox.fill(1)
    sandbox.send()
    sandbox.answer()
    sandbox.batches.clear()
    return sandbox
