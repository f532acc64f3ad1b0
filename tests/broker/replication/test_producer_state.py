"""Idempotent producers: which batches are new, repeated or wrong."""

from __future__ import annotations

import struct

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.replication import producer_state
from minibroker.broker.replication.producer_state import (
    PRODUCERS_MAX,
    Accept,
    CorruptSnapshot,
    Duplicate,
    ProducerStates,
    Refuse,
    SequenceCheck,
    SnapshotPlace,
    continues,
    is_before,
)
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import SEQUENCE_MAX, BatchHeader

DAY_MS = 86_400_000


def batch(
    sequence: int,
    records: int = 1,
    *,
    producer: int = 7,
    epoch: int = 0,
    offset: int = 0,
    timestamp_ms: int = 1_000,
    crc: int = 0,
) -> BatchHeader:
    return BatchHeader(
        base_offset=offset,
        batch_length=100,
        partition_leader_epoch=0,
        magic=77,
        crc=crc,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=records,
    )


def states_after(*batches: BatchHeader) -> ProducerStates:
    states = ProducerStates()
    for header in batches:
        states.update(header)
    return states


def refused(result: SequenceCheck) -> ErrorCode | None:
    return result.error if isinstance(result, Refuse) else None


def test_a_batch_without_a_producer_is_always_new() -> None:
    states = ProducerStates()
    for _ in range(3):
        assert states.check(batch(-1, producer=-1, epoch=-1)) == Accept()
        states.update(batch(-1, producer=-1, epoch=-1))
    assert len(states) == 0


@pytest.mark.parametrize(
    ("after", "is_next"),
    [
        (batch(5), True),
        (batch(5, epoch=1), False),
        (batch(5, producer=8), False),
        (batch(4), False),
        (batch(-1, producer=-1, epoch=-1), False),
    ],
)
def test_the_next_batch_of_the_same_producer_continues_the_one_before(after: BatchHeader, is_next: bool) -> None:
    assert continues(batch(3, 2), after) is is_next


def test_a_batch_of_the_first_producer_id_continues_only_the_one_before() -> None:
    before = batch(3, 2, producer=0)
    assert [continues(before, batch(sequence, producer=0)) for sequence in (4, 5, 6)] == [False, True, False]


def test_batches_without_a_producer_continue_each_other() -> None:
    assert continues(batch(-1, producer=-1, epoch=-1), batch(-1, producer=-1, epoch=-1))


def test_the_next_sequence_is_accepted() -> None:
    states = states_after(batch(0, 3), batch(3, 2))
    assert states.check(batch(5)) == Accept()


@pytest.mark.invariant("I25")
def test_each_batch_that_may_be_in_flight_is_recognised() -> None:
    """B40, KAFKA-5494: with five requests of eight batches in flight a retry may be the fortieth last."""
    batches = [batch(2 * number, 2, offset=100 + 2 * number, crc=number) for number in range(43)]
    states = states_after(*batches)
    for number, header in enumerate(batches[3:], start=3):
        assert states.check(header) == Duplicate(100 + 2 * number, 101 + 2 * number)


def test_a_batch_older_than_those_remembered_is_a_duplicate_without_offset() -> None:
    states = states_after(*(batch(number) for number in range(43)))
    assert refused(states.check(batch(2))) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER


@pytest.mark.parametrize(("sequence", "records"), [(6, 1), (9, 1), (1_000, 3), (4, 1), (2, 3), (3, 3), (0, 4)])
def test_any_other_sequence_is_out_of_order(sequence: int, records: int) -> None:
    states = states_after(batch(0, 3), batch(3, 2))
    result = states.check(batch(sequence, records))
    assert refused(result) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_refused_batch_changes_nothing() -> None:
    states = states_after(batch(0, 3))
    states.check(batch(9))
    assert states == states_after(batch(0, 3))


def test_an_older_producer_epoch_is_fenced() -> None:
    states = states_after(batch(0, epoch=3))
    assert refused(states.check(batch(1, epoch=2))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(states.check(batch(0, epoch=2))) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_newer_producer_epoch_starts_at_zero() -> None:
    states = states_after(batch(0), batch(1))
    assert states.check(batch(0, epoch=1)) == Accept()
    assert refused(states.check(batch(2, epoch=1))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    states.update(batch(0, epoch=1, offset=2))
    assert states.check(batch(0, epoch=1)) == Duplicate(2, 2)


def test_an_unknown_producer_must_start_at_zero() -> None:
    """hardening rule 12: whether the earlier batches were written is unknown here."""
    states = ProducerStates()
    assert states.check(batch(0)) == Accept()
    assert refused(states.check(batch(5))) == ErrorCode.UNKNOWN_PRODUCER_ID


def test_different_bytes_with_the_same_sequence_are_refused() -> None:
    """Producer ids can be guessed or shared; the CRC shows which producer's bytes are in the log."""
    states = states_after(batch(0, 3, crc=0xAB), batch(3, crc=0xCD, offset=3))
    assert states.check(batch(0, 3, crc=0xAB)) == Duplicate(0, 2)
    result = states.check(batch(0, 3, crc=0xAC))
    assert refused(result) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert isinstance(result, Refuse)
    assert "offsets 0 to 2 hold other bytes under these sequences (CRC 000000ab, not 000000ac)" in result.reason
    again = ProducerStates.load(states.snapshot())
    assert refused(again.check(batch(3, crc=0xCE))) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert again.check(batch(3, crc=0xCD)) == Duplicate(3, 3)


@pytest.mark.parametrize(("epoch", "sequence"), [(-1, 0), (0, -1)])
def test_a_producer_without_epoch_or_sequence_is_invalid(epoch: int, sequence: int) -> None:
    assert refused(ProducerStates().check(batch(sequence, epoch=epoch))) == ErrorCode.INVALID_RECORD


def test_sequences_continue_at_zero_after_the_largest() -> None:
    states = states_after(batch(SEQUENCE_MAX - 1, 2, offset=10))
    assert states.check(batch(0)) == Accept()
    states.update(batch(0, 3, offset=12))
    assert states.check(batch(3)) == Accept()
    assert states.check(batch(SEQUENCE_MAX - 1, 2)) == Duplicate(10, 11)


def test_a_batch_across_the_largest_sequence_is_recognised() -> None:
    states = states_after(batch(SEQUENCE_MAX, 3, offset=10))
    assert states.check(batch(SEQUENCE_MAX, 3)) == Duplicate(10, 12)
    assert states.check(batch(2)) == Accept()


def test_an_old_sequence_before_the_wrap_differs_from_one_ahead() -> None:
    states = states_after(*(batch((SEQUENCE_MAX - 2 + number) & SEQUENCE_MAX) for number in range(43)))
    assert refused(states.check(batch(SEQUENCE_MAX - 2))) == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert refused(states.check(batch(100))) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("first", [0, 5, SEQUENCE_MAX - 3, SEQUENCE_MAX])
def test_half_of_all_sequences_come_before_another(first: int) -> None:
    ahead = [1, 2, 2**29, 2**30 - 1]
    assert all(is_before(first, (first + distance) & SEQUENCE_MAX) for distance in ahead)
    assert not any(is_before((first + distance) & SEQUENCE_MAX, first) for distance in ahead)
    assert not is_before(first, first)


def test_idle_producers_are_forgotten() -> None:
    states = ProducerStates()
    states.update(batch(0, producer=1), now_ms=1_000)
    states.update(batch(0, producer=2), now_ms=5_000)
    assert states.expire(1_001 + DAY_MS) == 1
    assert [producer for producer, _ in states] == [2]


def test_old_timestamps_do_not_make_a_producer_idle() -> None:
    """Timestamps come from the producer: it may copy last year's records today."""
    states = ProducerStates()
    states.update(batch(0, timestamp_ms=0), now_ms=2 * DAY_MS)
    again = ProducerStates.load(states.snapshot())
    for known in (states, again):
        assert known.expire(3 * DAY_MS) == 0
        assert known.expire(3 * DAY_MS + 1) == 1


def test_idle_time_counts_from_now_if_the_last_append_is_unknown() -> None:
    """This happens after a start without a snapshot."""
    states = states_after(batch(0))
    assert states.expire(5 * DAY_MS) == 0
    assert states.expire(6 * DAY_MS) == 0
    assert states.expire(6 * DAY_MS + 1) == 1


def test_invented_producers_do_not_fill_the_memory() -> None:
    states = ProducerStates()
    states.update(batch(0, producer=0))
    for producer in range(1, PRODUCERS_MAX + 50):
        states.update(batch(0, producer=producer))
        states.update(batch(producer, producer=0))
    assert len(states) == PRODUCERS_MAX
    assert states.get(0) is not None  # it went on writing


def test_a_copy_is_independent() -> None:
    states = states_after(batch(0))
    copy = states.copy()
    states.update(batch(1))
    assert copy == states_after(batch(0))
    assert copy != states


BATCHES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.integers(0, SEQUENCE_MAX), st.integers(1, 9)))


@given(BATCHES)
def test_a_snapshot_restores_the_states(steps: list[tuple[int, int, int, int]]) -> None:
    headers, offset = [], 0
    for producer, epoch, sequence, count in steps:
        headers.append(batch(sequence, count, producer=producer, epoch=epoch, offset=offset))
        offset += count
    states = states_after(*headers)
    assert ProducerStates.load(states.snapshot()) == states


@pytest.mark.invariant("I25")
@given(BATCHES, st.integers(0, 60))
def test_a_snapshot_and_the_later_batches_give_the_leaders_states(
    steps: list[tuple[int, int, int, int]], start: int
) -> None:
    """Seed 914212: batches below the leader's log start cannot be read any more."""
    headers, offset = [], 0
    for producer, epoch, sequence, count in steps:
        headers.append(batch(sequence, count, producer=producer, epoch=epoch, offset=offset))
        offset += count
    start = min((header.base_offset for header in headers if header.base_offset >= start), default=offset)
    leader = states_after(*headers)
    snapshot = leader.snapshot_below(start, 1_000_000)
    restored = ProducerStates.load(snapshot) if snapshot else ProducerStates()
    for header in headers:
        if header.base_offset >= start:
            restored.update(header)
    assert restored == leader


@given(st.binary(max_size=300))
def test_any_invalid_bytes_raise_the_declared_error(content: bytes) -> None:
    with pytest.raises(CorruptSnapshot):
        ProducerStates.load(content)


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x93\x02", b"\x93\x02\x93\xa1\xff\x00\x14\x90", b"\x91" * 5_000], ids=len
)
def test_bytes_with_a_valid_checksum_that_do_not_decode_raise_the_declared_error(body: bytes) -> None:
    with pytest.raises(CorruptSnapshot, match="does not decode"):
        ProducerStates.load(struct.pack(">I", crc32c(body)) + body)


@pytest.mark.parametrize("position", range(0, 36, 3))
def test_a_flipped_bit_is_noticed(position: int) -> None:
    content = bytearray(states_after(batch(0), batch(1, offset=1), batch(0, producer=9, offset=2)).snapshot())
    content[position] ^= 4
    with pytest.raises(CorruptSnapshot):
        ProducerStates.load(bytes(content))


@pytest.mark.invariant("I25")
@given(st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=30))
def test_any_mixture_of_retries_writes_each_record_once(sends: list[tuple[int, bool]]) -> None:
    """A producer repeats batches that were not answered: the accepted ones are contiguous, without duplicates."""
    states = ProducerStates()
    written: list[int] = []
    sequence = 0
    for records, is_repeated in sends:
        header = batch(sequence, records, offset=sequence)
        for _ in range(1 + is_repeated):
            result = states.check(header)
            if isinstance(result, Accept):
                states.update(header)
                written += range(sequence, sequence + records)
            else:
                assert result == Duplicate(sequence, sequence + records - 1)
        sequence += records
    assert written == list(range(sequence))


@pytest.mark.parametrize(
    "batch", [(2**31, 0, 0, 0, 0), (0, 0, 2**63, 0, 0), (0, 0, 0, 0, 2**32), (0, 0, 0, 0, 2**32 + 1), (0, 0, 0, 0, -1)]
)
def test_a_snapshot_with_a_number_that_no_batch_can_hold_is_refused(batch: tuple[int, ...]) -> None:
    body = msgspec.msgpack.encode((2, None, [(7, 0, 0, [(0, 0, 0, 0, 0), batch])]))
    with pytest.raises(CorruptSnapshot):
        ProducerStates.load(struct.pack(">I", crc32c(body)) + body)


@given(
    st.lists(st.lists(st.tuples(st.integers(-1, 5), st.integers(0, 2)), max_size=60), max_size=4),
    st.sampled_from([3, 5_000]),
)
def test_many_headers_at_once_are_remembered_like_one_by_one(
    pieces: list[list[tuple[int, int]]], producers_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer_state, "PRODUCERS_MAX", producers_max)
        patch.setattr(producer_state, "BATCHES_REMEMBERED", 4)
        one_by_one, at_once = ProducerStates(), ProducerStates()
        offset = 0
        for piece in pieces:
            headers = []
            for producer, epoch in piece:
                headers.append(batch(offset, producer=producer, epoch=epoch, offset=offset))
                offset += 1
            for header in headers:
                one_by_one.update(header)
            at_once.update_all(headers)
            assert at_once == one_by_one


SOUND = (0, 4, 10, 14, 5)
"""Five records at offset 10."""


@pytest.mark.invariant("I25")
@pytest.mark.parametrize(
    "producers",
    [
        [(7, 2**15, 1, [SOUND])],
        [(7, -1, 1, [SOUND])],
        [(-5, 0, 1, [SOUND])],
        [(2**63, 0, 1, [SOUND])],
        [(7, 0, -1, [SOUND])],
        [(7, 0, 1, [])],
        [(7, 0, 1, [SOUND]), (7, 0, 1, [SOUND])],
        [(7, 0, 1, [(-5, -1, 10, 14, 5)])],
        [(7, 0, 1, [(0, 4, 10, 15, 5)])],
        [(7, 0, 1, [(0, 4, -5, -1, 5)])],
        [(7, 0, 1, [(0, 4, 16, 20, 5)])],
        [(7, 0, 1, [SOUND, (5, 9, 14, 18, 5)])],
        [(7, 0, 1, [(0, 4, 10, 14, -5)])],
        [(number, 0, 1, [SOUND]) for number in range(PRODUCERS_MAX + 1)],
    ],
)
def test_a_snapshot_with_a_valid_checksum_but_impossible_states_is_refused(producers: list[tuple[object, ...]]) -> None:
    place = SnapshotPlace("topic", 0, 20)

    def load(stated: list[tuple[object, ...]]) -> ProducerStates:
        body = msgspec.msgpack.encode((3, place, stated))
        return ProducerStates.load(struct.pack(">I", crc32c(body)) + body, place)

    assert len(load([(7, 0, 1, [SOUND])])) == 1
    assert len(load([(number, 0, 1, [SOUND]) for number in range(PRODUCERS_MAX)])) == PRODUCERS_MAX
    with pytest.raises(CorruptSnapshot):
        load(producers)


def test_a_snapshot_that_is_sent_has_the_version_that_each_replica_reads() -> None:
    """Brokers are upgraded one by one. Without a place the versions do not differ."""
    states = ProducerStates()
    states.update(batch(0))
    assert msgspec.msgpack.decode(states.snapshot()[4:])[0] == 2
    assert msgspec.msgpack.decode(states.snapshot(SnapshotPlace("topic", 0, 20, 1))[4:])[0] == 3
    assert ProducerStates.load(states.snapshot()) == states


def test_batches_of_one_epoch_are_remembered_together_whatever_its_number() -> None:
    """Small numbers are one object in Python, so an identity test of epochs works up to 256."""
    states = ProducerStates()
    for number in range(3):
        states.update(batch(number, epoch=int("1000"), offset=number))
    assert isinstance(states.check(batch(0, epoch=1_000)), Duplicate)
    states.update(batch(0, epoch=1_001, offset=3))
    assert isinstance(states.check(batch(0, epoch=1_001)), Duplicate)
    assert isinstance(states.check(batch(1, epoch=1_001)), Accept)
