"""A consumer's position: resets, validation after elections, truncation."""

from collections import deque
from collections.abc import Callable

import pytest

from minibroker.client.consumer.cursor import Chunk, Cursor, OffsetReset
from minibroker.client.errors import LogTruncated, OffsetOutOfRange, TopicMadeAgain, Where
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EpochEndOffset

PARTITION = TopicPartition("t", 0)
WHERE = Where(topic_partition=PARTITION, broker_id=2, leader_epoch=4, isr=(2, 3))


def a_chunk() -> Chunk:
    return Chunk(memoryview(b""), deque())


def cursor_at(offset: int, epoch: int | None = None) -> Cursor:
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.learn_leader(1, 3)
    cursor.seek(offset, epoch)
    return cursor


def reader_at_10_of_epoch_3() -> Cursor:
    """Has returned everything below 10, and has prefetched 10 to 14."""
    cursor = cursor_at(10, 3)
    cursor.read_since_move = True
    cursor.fetched(a_chunk(), 15, 3)
    return cursor


def validate(cursor: Cursor, epoch: int, end: int, *, halt: bool = True) -> LogTruncated | None:
    answer = EpochEndOffset(epoch=epoch, end_offset=end)
    return cursor.validated(cursor.ask_epoch_end(), answer, halt=halt, where=WHERE)


@pytest.mark.parametrize(
    ("reset", "timestamp"), [(OffsetReset.EARLIEST, EARLIEST_TIMESTAMP), (OffsetReset.LATEST, LATEST_TIMESTAMP)]
)
def test_without_a_position_the_policy_decides_what_is_asked(reset: OffsetReset, timestamp: int) -> None:
    cursor = Cursor(PARTITION, reset, 1_000)
    assert cursor.needs_reset
    assert cursor.reset_timestamp == timestamp
    assert not cursor.wants_data


def test_without_a_policy_it_halts_until_a_seek() -> None:
    cursor = Cursor(PARTITION, OffsetReset.NONE, 1_000)
    assert isinstance(cursor.halted, OffsetOutOfRange)
    cursor.seek(5)
    assert cursor.halted is None
    assert cursor.wants_data


def test_an_answer_to_a_reset_is_dropped_after_a_seek() -> None:
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    generation = cursor.generation
    cursor.seek(5)
    assert not cursor.settle_reset(generation, 100, 3)
    assert cursor.position == 5


def test_prefetch_has_a_limit() -> None:
    cursor = cursor_at(0, 3)
    cursor.fetched(a_chunk(), 5, 3)
    assert cursor.has_room
    cursor.fetched(a_chunk(), 9, 3)
    assert not cursor.has_room


def test_a_newer_leader_epoch_asks_for_validation_before_the_next_fetch() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    assert cursor.needs_validation
    assert not cursor.wants_data


def test_a_position_of_the_users_own_choice_has_no_epoch_to_validate() -> None:
    cursor = cursor_at(10)
    cursor.learn_leader(2, 4)
    assert not cursor.needs_validation
    assert cursor.wants_data


@pytest.mark.invariant("I22")
def test_an_epoch_that_ends_at_or_after_the_position_is_valid() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    assert validate(cursor, 3, 15) is None
    assert cursor.wants_data
    assert cursor.fetch_offset == 15


@pytest.mark.invariant("I22")
def test_records_that_were_only_prefetched_are_dropped_without_an_error() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    assert validate(cursor, 3, 12) is None
    assert cursor.fetch_offset == 10
    assert not cursor.chunks
    assert cursor.needs_validation, "next the position itself is validated"
    assert validate(cursor, 3, 12) is None
    assert cursor.wants_data


@pytest.mark.invariant("I22")
def test_a_truncation_below_the_position_is_an_error_and_halts() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    problem = validate(cursor, 3, 7)
    assert problem is not None
    assert problem.divergent_offset == 7
    assert "t-0 was truncated by broker 2 (epoch 4, ISR [2, 3]): read up to 10" in str(problem)
    assert cursor.halted is problem
    assert cursor.position == 10
    cursor.seek(7)
    assert cursor.wants_data


def test_a_truncation_may_be_followed_instead() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    assert validate(cursor, 2, 7, halt=False) is not None
    assert cursor.halted is None
    assert (cursor.position, cursor.position_epoch) == (7, 2)


def test_a_leader_without_an_answer_means_truncation_to_an_unknown_offset() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    problem = validate(cursor, -1, -1, halt=False)
    assert problem is not None
    assert problem.divergent_offset is None
    assert cursor.halted is problem


def unread_at_10_of_epoch_3() -> Cursor:
    """At the end, by the reset policy, before any record came."""
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.learn_leader(1, 3)
    assert cursor.settle_reset(cursor.generation, 10, 3)
    cursor.learn_leader(2, 4)
    return cursor


@pytest.mark.invariant("I22")
@pytest.mark.parametrize("halt", [True, False])
def test_a_truncation_below_what_was_read_after_a_reset_is_an_error(halt: bool) -> None:
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.learn_leader(1, 3)
    assert cursor.settle_reset(cursor.generation, 10, 3)
    cursor.read_since_move = True
    cursor.learn_leader(2, 4)
    problem = validate(cursor, 2, 7, halt=halt)
    assert problem is not None
    assert problem.divergent_offset == 7
    assert (cursor.halted is problem) is halt


def test_a_truncation_below_an_unread_position_of_the_users_choice_is_an_error() -> None:
    cursor = cursor_at(10, 3)
    cursor.learn_leader(2, 4)
    assert validate(cursor, 2, 7) is not None


def test_a_position_found_under_an_older_epoch_is_validated_before_the_first_fetch() -> None:
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.learn_leader(1, 3)
    cursor.settle_reset(cursor.generation, 10, 2)
    assert cursor.needs_validation


def test_a_truncation_below_an_unread_end_is_followed_without_an_error() -> None:
    cursor = unread_at_10_of_epoch_3()
    assert validate(cursor, 2, 7) is None
    assert cursor.position == 7
    assert cursor.wants_data


def test_an_unread_position_that_the_leader_does_not_know_is_requested_again() -> None:
    cursor = unread_at_10_of_epoch_3()
    assert validate(cursor, -1, -1) is None
    assert cursor.reset_timestamp == LATEST_TIMESTAMP


def test_a_validation_that_a_seek_overtook_is_dropped() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    question = cursor.ask_epoch_end()
    cursor.seek(3)
    answer = EpochEndOffset(epoch=3, end_offset=1)
    assert cursor.validated(question, answer, halt=True, where=WHERE) is None
    assert cursor.position == 3


@pytest.mark.invariant("I22")
def test_an_answer_about_an_epoch_before_the_last_fetched_one_is_no_truncation() -> None:
    """Seeds 912015 and 914490: epoch 3 ended at 15; a record of epoch 4 came between the question and its answer."""
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 5)
    question = cursor.ask_epoch_end()
    cursor.fetched(a_chunk(), 20, 4)
    answer = EpochEndOffset(epoch=3, end_offset=15)
    assert cursor.validated(question, answer, halt=True, where=WHERE) is None
    assert cursor.needs_validation, "the question is asked again, about epoch 4"
    assert cursor.ask_epoch_end().epoch == 4
    assert len(cursor.chunks) == 2


def test_out_of_range_follows_the_policy_only_when_nothing_is_buffered() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.out_of_range(OffsetReset.EARLIEST, WHERE)
    assert cursor.position == 10
    cursor.chunks.clear()
    cursor.out_of_range(OffsetReset.EARLIEST, WHERE)
    assert cursor.reset_timestamp == EARLIEST_TIMESTAMP


def test_a_reset_that_retention_forced_leads_no_further_back() -> None:
    """Found by the swarm (seed 17141713): the leader fell before it had told its log start, and its successor started
    earlier: 51 records were returned twice."""
    cursor = cursor_at(10, 3)
    cursor.out_of_range(OffsetReset.EARLIEST, WHERE, log_start_offset=20)
    assert cursor.settle_reset(cursor.generation, 4, 5)
    assert (cursor.position, cursor.position_epoch) == (10, 3)
    cursor.out_of_range(OffsetReset.EARLIEST, WHERE, log_start_offset=20)
    assert cursor.settle_reset(cursor.generation, 20, 5)
    assert cursor.position == 20


def test_a_reset_in_a_shorter_log_begins_at_its_start() -> None:
    cursor = cursor_at(10, 3)
    cursor.out_of_range(OffsetReset.EARLIEST, WHERE, log_start_offset=2)
    assert cursor.settle_reset(cursor.generation, 2, 5)
    assert cursor.position == 2


def test_out_of_range_without_policy_halts() -> None:
    cursor = cursor_at(10, 3)
    cursor.out_of_range(OffsetReset.NONE, WHERE)
    assert isinstance(cursor.halted, OffsetOutOfRange)


# -------------------------------------------------------------------------------------------------- topics made again
def made_again(cursor: Cursor, reset: OffsetReset) -> None:
    assert not cursor.learn_topic("first", reset, WHERE)
    assert not cursor.learn_topic("first", reset, WHERE)
    assert cursor.learn_topic("second", reset, WHERE)


@pytest.mark.parametrize("reset", [OffsetReset.EARLIEST, OffsetReset.NONE])
def test_an_unread_position_at_the_end_is_at_the_end_of_a_topic_made_again(reset: OffsetReset) -> None:
    """The user sought to the end, whatever the policy says, and has read nothing since."""
    cursor = Cursor(PARTITION, reset, 1_000)
    cursor.learn_leader(1, 3)
    cursor.seek_by(LATEST_TIMESTAMP)
    assert cursor.settle_reset(cursor.generation, 10, 3)
    made_again(cursor, reset)
    assert cursor.needs_reset
    assert cursor.reset_timestamp == LATEST_TIMESTAMP


def read_from_the_end() -> Cursor:
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.learn_leader(1, 3)
    assert cursor.settle_reset(cursor.generation, 10, 3)
    cursor.read_since_move = True
    return cursor


@pytest.mark.parametrize("make", [cursor_at, lambda offset: read_from_the_end()], ids=["chosen", "read"])
def test_the_policy_replaces_an_offset_in_a_topic_made_again(make: Callable[[int], Cursor]) -> None:
    cursor = make(10)
    made_again(cursor, OffsetReset.EARLIEST)
    assert cursor.needs_reset
    assert cursor.reset_timestamp == EARLIEST_TIMESTAMP
    cursor = make(10)
    made_again(cursor, OffsetReset.NONE)
    assert isinstance(cursor.halted, TopicMadeAgain)
    assert cursor.halted.position == 10


@pytest.mark.invariant("I22")
def test_an_answer_to_a_reset_in_the_deleted_topic_is_no_position_in_the_next_one() -> None:
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.learn_topic("first", OffsetReset.LATEST, WHERE)
    generation = cursor.generation
    made_again(cursor, OffsetReset.LATEST)
    assert not cursor.settle_reset(generation, 100, 3)
    assert cursor.position is None
    assert cursor.reset_timestamp == LATEST_TIMESTAMP


@pytest.mark.invariant("I22")
def test_nothing_of_the_deleted_topic_is_returned_or_validated_in_the_next_one() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.high_watermark = 15
    generation = cursor.generation
    made_again(cursor, OffsetReset.NONE)
    assert not cursor.chunks
    assert cursor.generation > generation, "replies about the deleted topic are dropped"
    assert {cursor.fetch_epoch, cursor.record_epoch, cursor.position_epoch} == {None}
    assert {cursor.high_watermark, cursor.leader_epoch, cursor.validated_epoch} == {None}
    cursor.seek(3)
    cursor.learn_leader(2, 4)
    assert cursor.wants_data
