"""The producer's rules of order and sequences, against a broker of a few lines and every order of events."""

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minibroker.client.errors import BrokerUnreachable, OutcomeUnknown, broker_error
from minibroker.client.producer.accumulator import Accumulator
from minibroker.client.producer.batches import Batch, PartitionQueue
from minibroker.client.retry import ProduceDecision
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from tests.client.sandbox import LEADER, PARTITION, Sandbox, identity_acknowledged

REFUSALS = [
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.CORRUPT_MESSAGE,
]
FINAL_REFUSALS = [ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TOPIC_EXCEPTION, ErrorCode.MESSAGE_TOO_LARGE]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("fill"), st.integers(1, 4)),
        st.tuples(st.just("send"), st.just(0)),
        st.tuples(st.just("send many"), st.just(0)),
        st.tuples(st.just("answer"), st.integers(0, 4)),
        st.tuples(st.just("answer"), st.just(0)),
        st.tuples(st.just("refuse"), st.integers(0, len(REFUSALS) - 1)),
        st.tuples(st.just("refuse for ever"), st.integers(0, len(FINAL_REFUSALS) - 1)),
        st.tuples(st.just("lose"), st.integers(0, 5)),
        st.tuples(st.just("expire"), st.integers(0, 8)),
        st.tuples(st.just("grant"), st.just(0)),
        st.tuples(st.just("wrap"), st.just(0)),
        st.tuples(st.just("forget"), st.just(0)),
    ),
    max_size=60,
)


def play(sandbox: Sandbox, steps: list[tuple[str, int]]) -> None:
    for step, number in steps:
        if step == "fill":
            sandbox.fill(number)
        elif step == "send":
            sandbox.send()
        elif step == "send many":
            sandbox.send_many()
        elif step == "answer" and sandbox.under_way:
            # answers may come in any order; a broker handles the requests of a connection in order
            while number and len(sandbox.under_way) > 1:
                sandbox.answer(0)
                number -= 1
            sandbox.answer(0)
        elif step == "refuse" and sandbox.under_way:
            sandbox.refuse(REFUSALS[number])
        elif step == "refuse for ever" and sandbox.under_way:
            sandbox.refuse(FINAL_REFUSALS[number])
        elif step == "lose":
            sandbox.lose(number)
        elif step == "expire":
            waiting = sandbox.queue.unfinished()
            if waiting:
                sandbox.expire(waiting[min(number, len(waiting) - 1)])
        elif step == "grant" and sandbox.accumulator.identity_wanted:
            sandbox.grant()
        elif step == "forget":
            sandbox.forget()
        elif step == "wrap" and sandbox.queue.next_sequence == 0 and not sandbox.queue.attempted and not sandbox.sent:
            start_near_the_end(sandbox)
        assert len(sandbox.queue.attempted) <= sandbox.accumulator.in_flight_max
        assert sandbox.queue.in_flight == sum(batch.in_flight for batch in sandbox.queue.attempted)
        assert sandbox.accumulator.active_queues() == ([] if sandbox.queue.idle else [sandbox.queue])


def start_near_the_end(sandbox: Sandbox) -> None:
    """As if two billion records had been written before."""
    sandbox.queue.identity = sandbox.accumulator.identity
    sandbox.queue.identity_acknowledged = True
    sandbox.partition.producers[7] = (0, deque([(2**31 - 4, 2**31 - 4, 9)], maxlen=40))
    sandbox.queue.next_sequence = sandbox.queue.proven_sequence = 2**31 - 3
    sandbox.partition.start_offset = sandbox.partition.end_offset = 10


@pytest.mark.invariant("I25", "I21")
@given(steps=STEPS)
@settings(max_examples=1_500)
def test_whatever_happens_nothing_is_written_twice_or_out_of_order(steps: list[tuple[str, int]]) -> None:
    sandbox = Sandbox()
    play(sandbox, steps)
    sandbox.settle()
    sandbox.check()


@given(steps=STEPS)
@settings(max_examples=300)
def test_without_idempotence_records_keep_their_order(steps: list[tuple[str, int]]) -> None:
    sandbox = Sandbox(idempotent=False)
    play(sandbox, [step for step in steps if step[0] != "wrap"])
    sandbox.settle()
    numbers = [int(value) for value in sandbox.partition.values() if value is not None]
    first_seen = list(dict.fromkeys(numbers))
    assert first_seen == sorted(first_seen)
    assert all(batch.done for batch in sandbox.batches)


def two_in_flight() -> Sandbox:
    sandbox = identity_acknowledged()
    sandbox.fill()
    sandbox.fill()
    sandbox.send()
    sandbox.send()
    return sandbox


def sequences(sandbox: Sandbox) -> list[tuple[int, int]]:
    """(producer epoch, sequence) of each batch in the log."""
    return [(header.producer_epoch, header.base_sequence) for header in sandbox.partition.headers()]


def test_several_batches_are_in_flight_at_once() -> None:
    sandbox = identity_acknowledged()
    for _ in range(42):
        sandbox.fill()
    sent = [sandbox.send() for _ in range(42)]
    assert [batch is not None for batch in sent] == [True] * 40 + [False] * 2


def test_waiting_batches_of_a_partition_share_a_request() -> None:
    """Decision 0012: up to eight, in order, as far as the request has room."""
    sandbox = identity_acknowledged()
    batches = [sandbox.fill() for _ in range(11)]
    assert sandbox.send_many() == batches[:8]
    assert sandbox.send_many(max_bytes=2 * batches[10].size_bytes) == batches[8:10]
    assert sandbox.send_many() == batches[10:]


def test_a_retry_is_sent_alone() -> None:
    sandbox = identity_acknowledged()
    batches = [sandbox.fill() for _ in range(3)]
    sandbox.send_many()
    sandbox.lose()
    assert sandbox.send_many() == batches[:1]


def test_without_idempotence_no_second_batch_follows_in_the_same_request() -> None:
    sandbox = Sandbox(idempotent=False)
    first = sandbox.fill()
    sandbox.fill()
    assert sandbox.send_many() == [first]


def test_the_first_batch_under_an_identity_is_sent_alone() -> None:
    """If it were refused, later batches would overtake it: a broker accepts any sequence of an unknown producer."""
    sandbox = Sandbox()
    sandbox.partition.start_offset = sandbox.partition.end_offset = 5
    sandbox.fill()
    sandbox.fill()
    sandbox.send()
    assert sandbox.send() is None
    sandbox.refuse(ErrorCode.NOT_ENOUGH_REPLICAS)
    sandbox.settle()
    sandbox.check()


@pytest.mark.invariant("I25")
def test_a_retry_keeps_its_sequence_and_is_not_written_twice() -> None:
    sandbox = two_in_flight()
    sandbox.lose(handled_count=2)
    sandbox.settle()
    assert sequences(sandbox) == [(0, 0), (0, 1), (0, 3)]
    assert [batch.base_offset for batch in sandbox.batches] == [1, 3]


def test_retries_go_one_at_a_time_and_oldest_first() -> None:
    sandbox = two_in_flight()
    sandbox.lose()
    first = sandbox.send()
    assert first is sandbox.batches[0]
    assert sandbox.send() is None


@pytest.mark.invariant("I25")
def test_a_batch_that_could_not_be_handed_to_the_network_is_sent_again_at_once_and_is_not_in_doubt() -> None:
    sandbox = two_in_flight()
    first, second = (batch for batch, _ in sandbox.under_way)
    sandbox.under_way.clear()
    for batch in (first, second):
        sandbox.accumulator.unsend(batch)
        assert not batch.in_flight
    assert (sandbox.queue.in_flight, list(sandbox.queue.attempted)) == (0, [first, second])
    assert (sandbox.queue.failures, first.maybe_written, first.fate()) == (0, False, "nothing was written")
    assert sandbox.accumulator.ready_at_ms(sandbox.queue, sandbox.now_ms) == sandbox.now_ms
    assert sandbox.send_many() == [first]
    assert (first.attempts, sandbox.queue.in_flight) == (2, 1)
    sandbox.settle()
    sandbox.check()
    assert sequences(sandbox) == [(0, 0), (0, 1), (0, 3)], "each under its first sequence"


def test_a_retry_waits_for_its_back_off() -> None:
    sandbox = two_in_flight()
    sandbox.under_way.clear()
    for batch in sandbox.batches:
        sandbox.accumulator.lost(batch, BrokerUnreachable("lost"), retry_at_ms=50)
    assert sandbox.send() is None
    assert sandbox.accumulator.ready_at_ms(sandbox.queue, 0) == 50
    sandbox.now_ms = 50
    assert sandbox.send() is sandbox.batches[0]


@pytest.mark.parametrize(
    "code", [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID]
)
def test_a_refused_batch_waits_for_its_back_off_under_whatever_sequence_it_follows(code: ErrorCode) -> None:
    """A broker that answers each new identity so would get requests without a pause."""
    sandbox = Sandbox()
    sandbox.fill()
    sandbox.send()
    batch, _ = sandbox.under_way.pop()
    sandbox.accumulator.refused(batch, broker_error(code), retry_at_ms=50)
    sandbox.grant()
    assert sandbox.send() is None
    assert sandbox.accumulator.ready_at_ms(sandbox.queue, 0) == 50
    sandbox.now_ms = 50
    assert sandbox.send() is batch


def test_a_new_leader_ends_the_back_off() -> None:
    sandbox = two_in_flight()
    sandbox.under_way.clear()
    for batch in sandbox.batches:
        sandbox.accumulator.lost(batch, BrokerUnreachable("lost"), retry_at_ms=50)
    sandbox.accumulator.set_leader(sandbox.queue, LEADER, 1)
    assert sandbox.send() is sandbox.batches[0]


def test_a_leader_that_is_known_again_is_no_new_one() -> None:
    """Brokers without ZooKeeper name each other's leaderships and not their own, so each answer changed the leader."""
    sandbox = two_in_flight()
    sandbox.under_way.clear()
    for batch in sandbox.batches:
        sandbox.accumulator.lost(batch, BrokerUnreachable("lost"), retry_at_ms=50)
    for leader in (None, LEADER):
        sandbox.accumulator.set_leader(sandbox.queue, leader, 0)
        assert (sandbox.queue.leader, sandbox.queue.failures, sandbox.queue.retry_at_ms) == (leader, 1, 50)
        assert sandbox.accumulator.leaders() == [leader]
    assert sandbox.send() is None
    sandbox.accumulator.set_leader(sandbox.queue, None, 0)
    sandbox.accumulator.set_leader(sandbox.queue, LEADER + 1, 0)
    assert sandbox.queue.retry_at_ms == 0, "another one"


@pytest.mark.invariant("I25")
def test_the_sequence_of_an_expired_batch_is_never_used_again() -> None:
    sandbox = two_in_flight()
    sandbox.lose()
    sandbox.expire(sandbox.batches[0])
    third = sandbox.fill()
    sandbox.settle()
    assert sequences(sandbox) == [(0, 0), (1, 0)]
    assert isinstance(sandbox.batches[1].error, OutcomeUnknown)
    assert list(sandbox.sent) == [(7, 0, 0), (7, 0, 1), (7, 0, 3), (7, 1, 0)], "nothing new under the broken epoch"
    assert third.error is None
    sandbox.check()


def test_batches_after_an_expired_one_are_first_retried_unchanged() -> None:
    """They may have been written."""
    sandbox = two_in_flight()
    sandbox.lose(handled_count=2)
    sandbox.expire(sandbox.batches[0])
    sandbox.settle()
    assert sequences(sandbox) == [(0, 0), (0, 1), (0, 3)]


def test_an_acknowledgement_after_an_expired_batch_makes_a_new_epoch_unnecessary() -> None:
    sandbox = two_in_flight()
    sandbox.lose(handled_count=2)
    sandbox.expire(sandbox.batches[0])
    sandbox.fill()
    sandbox.settle()
    assert sequences(sandbox) == [(0, 0), (0, 1), (0, 3), (0, 5)]
    assert not sandbox.accumulator.identity_wanted


def test_a_batch_that_expires_unsent_leaves_no_gap() -> None:
    sandbox = Sandbox()
    first, second = sandbox.fill(), sandbox.fill()
    sandbox.expire(first)
    sandbox.settle()
    assert sequences(sandbox) == [(0, 0)]
    assert second.error is None


def test_an_expired_batch_in_flight_holds_its_place_until_its_answer() -> None:
    sandbox = two_in_flight()
    sandbox.expire(sandbox.batches[0])
    assert sandbox.queue.in_flight == 2
    sandbox.answer()
    sandbox.settle()
    assert sequences(sandbox) == [(0, 0), (0, 1), (0, 3)]


@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID])
def test_after_a_broker_forgot_the_producer_a_new_epoch_is_used(code: ErrorCode) -> None:
    sandbox = Sandbox()
    sandbox.fill()
    sandbox.send()
    assert sandbox.refuse(code) is ProduceDecision.NEW_PRODUCER_EPOCH
    assert sandbox.send() is None
    assert sandbox.accumulator.identity_wanted
    sandbox.settle()
    assert sequences(sandbox) == [(1, 0)]


@pytest.mark.invariant("I21", "I25")
def test_if_the_broker_forgot_the_producer_batches_in_doubt_end_with_unknown_outcome() -> None:
    """Two are in flight, the answers are lost, only the first was written, and then the broker forgets the producer.
    The second must not be written under the old identity: then the first one's retry would count as written."""
    sandbox = two_in_flight()
    sandbox.lose(handled_count=1)
    behind = sandbox.fill()
    sandbox.forget()
    sandbox.settle()
    first, second = sandbox.batches[:2]
    for batch in (first, second):
        assert isinstance(batch.error, OutcomeUnknown)
        assert batch.error.maybe_written
    assert behind.error is None
    assert sequences(sandbox) == [(0, 0), (0, 1), (1, 0)]
    sandbox.check()


@pytest.mark.invariant("I21")
@pytest.mark.parametrize("code", [ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.MESSAGE_TOO_LARGE])
def test_a_leader_that_lacks_a_batch_in_doubt_does_not_prove_that_it_is_lost(code: ErrorCode) -> None:
    """It was in the uncommitted tail of another replica, which led next, and it was written again (seed 17180325)."""
    sandbox = two_in_flight()
    sandbox.lose()
    first, second = sandbox.batches[:2]
    behind = sandbox.fill()
    sandbox.send()
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        first.doubt = None  # in doubt it would not be split at all
    sandbox.refuse(code)
    sandbox.settle()
    for batch in (first, second)[code is ErrorCode.MESSAGE_TOO_LARGE :]:
        assert isinstance(batch.error, OutcomeUnknown)
        assert batch.error.code is code
    assert behind.error is None


def test_out_of_order_behind_an_unsettled_batch_only_means_wait() -> None:
    sandbox = two_in_flight()
    assert sandbox.refuse(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, position=1) is ProduceDecision.RETRY
    sandbox.answer()
    sandbox.settle()
    assert sequences(sandbox) == [(0, 0), (0, 1), (0, 3)]


def test_a_batch_too_large_is_sent_in_parts() -> None:
    sandbox = Sandbox()
    whole = sandbox.fill(8)
    sandbox.send()
    sandbox.refuse(ErrorCode.MESSAGE_TOO_LARGE)
    behind = sandbox.fill()
    sandbox.settle()
    assert len(sandbox.partition.batches) >= 3
    assert whole.done
    assert whole.error is None
    assert [whole.holder_of(delta)[0].error for delta in range(8)] == [None] * 8
    offsets = [(part.base_offset or 0) + delta for part, delta in map(whole.holder_of, range(8))]
    assert offsets == list(range(8))
    assert behind.base_offset == 8
    sandbox.check()


def test_a_batch_too_large_is_halved_so_that_few_requests_find_a_size_that_fits() -> None:
    sandbox = Sandbox()
    sandbox.fill(180)
    sandbox.send()
    assert sandbox.refuse(ErrorCode.MESSAGE_TOO_LARGE) is ProduceDecision.SPLIT
    counts = [batch.record_count for batch in sandbox.queue.fresh]
    assert sum(counts) == 180
    assert max(counts) <= 100


def test_a_single_record_too_large_fails() -> None:
    sandbox = Sandbox()
    batch = sandbox.fill(1)
    sandbox.send()
    assert sandbox.refuse(ErrorCode.MESSAGE_TOO_LARGE) is ProduceDecision.FAIL
    assert batch.error is not None
    assert batch.error.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.invariant("I26")
@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", [*FINAL_REFUSALS, ErrorCode.INVALID_PRODUCER_EPOCH])
def test_refusal_after_an_unanswered_attempt_does_not_say_that_nothing_was_written(
    code: ErrorCode, idempotent: bool
) -> None:
    """The first attempt was written and its answer lost; meanwhile max.message.bytes was lowered (seed 18000040)."""
    sandbox = Sandbox(idempotent=idempotent)
    batch = sandbox.fill(3)
    sandbox.send()
    sandbox.lose(handled_count=1)
    sandbox.send()
    sandbox.refuse(code)
    assert batch.error is not None
    assert batch.error.code is code
    assert batch.error.maybe_written
    sandbox.check()


def test_without_idempotence_one_batch_is_in_flight() -> None:
    sandbox = Sandbox(idempotent=False)
    sandbox.fill()
    sandbox.fill()
    assert sandbox.send() is not None
    assert sandbox.send() is None


def test_an_open_batch_waits_for_linger() -> None:
    accumulator = Accumulator(batch_size=4_096, linger_ms=5, idempotent=False, in_flight_max=5, acks=1)
    queue = PartitionQueue(PARTITION)
    accumulator.set_leader(queue, LEADER, 0)
    accumulator.open(queue, 100, 1_000).append(None, b"x", 0)
    assert accumulator.ready_at_ms(queue, 100) == 105
    assert accumulator.drain(LEADER, 104, 10_000) == []
    assert len(accumulator.drain(LEADER, 105, 10_000)) == 1


def test_without_waiting_for_linger_open_batches_are_sent_at_once() -> None:
    accumulator = Accumulator(batch_size=4_096, linger_ms=5_000, idempotent=False, in_flight_max=5, acks=1)
    queue = PartitionQueue(PARTITION)
    accumulator.set_leader(queue, LEADER, 0)
    accumulator.open(queue, 100, 1_000).append(None, b"x", 0)
    accumulator.skips_linger = True
    assert len(accumulator.drain(LEADER, 100, 10_000)) == 1


def test_requests_carry_batches_of_several_partitions_round_robin() -> None:
    accumulator = Accumulator(batch_size=4_096, linger_ms=0, idempotent=False, in_flight_max=5, acks=1)
    queues: list[PartitionQueue] = [PartitionQueue(TopicPartition("t", index)) for index in range(4)]
    for queue in queues:
        accumulator.set_leader(queue, LEADER, 0)
        for _ in range(2):
            accumulator.open(queue, 0, 1_000).append(None, b"x" * 1_000, 0)
            accumulator.seal(queue)

    def partitions(batches: list[Batch]) -> list[Any]:
        for batch in batches:
            accumulator.written(batch, 0, 0)
        return [batch.topic_partition.partition for batch in batches]

    rounds = [partitions(accumulator.drain(LEADER, 0, 2_500)) for _ in range(4)]
    assert rounds == [[0, 1], [2, 3], [0, 1], [2, 3]]


def window_in_flight(sandbox: Sandbox) -> list[Batch]:
    """Five batches sent, none answered; the broker knows the producer."""
    identity_acknowledged = sandbox.fill()
    sandbox.send()
    sandbox.accumulator.written(identity_acknowledged, 0, 0)
    batches = [sandbox.fill() for _ in range(5)]
    while sandbox.accumulator.drain(LEADER, sandbox.now_ms, 1_000_000):
        pass
    return batches


def test_batches_in_flight_that_are_lost_together_are_one_failure() -> None:
    sandbox = Sandbox()
    for batch in window_in_flight(sandbox):
        sandbox.accumulator.lost(batch, BrokerUnreachable("lost"), retry_at_ms=50)
    assert sandbox.queue.failures == 1
    assert sandbox.queue.retry_at_ms == 50


@pytest.mark.parametrize("refused_before", [0, 1])
def test_refusals_of_the_former_leader_do_not_delay_the_new_one(refused_before: int) -> None:
    sandbox = Sandbox()
    batches = window_in_flight(sandbox)
    refusal = broker_error(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    for batch in batches[:refused_before]:
        sandbox.accumulator.refused(batch, refusal, retry_at_ms=50)
    sandbox.accumulator.set_leader(sandbox.queue, 2, 1)
    for batch in batches[refused_before:]:
        sandbox.accumulator.refused(batch, refusal, retry_at_ms=500)
    assert sandbox.queue.retry_at_ms == 0
    assert sandbox.queue.failures == 0
