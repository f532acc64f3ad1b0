"""What of a consumer's position is left when it moves: by the user, by a reset, by a truncation, to a new leader."""

import pytest

from minibroker.client.consumer.cursor import EPOCHS_MAX, NO_EPOCH, Cursor, OffsetReset
from minibroker.client.consumer.fetch_in_flight import Asked
from minibroker.client.errors import OffsetOutOfRange
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EpochEndOffset
from minibroker.simulation.model.replica import header_for
from tests.client.test_cursor import (
    PARTITION,
    WHERE,
    a_chunk,
    cursor_at,
    reader_at_10_of_epoch_3,
    unread_at_10_of_epoch_3,
    validate,
)

PROBLEM = OffsetOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, WHERE, "a test")


# ---------------------------------------------------------------------------------------------------------- the user
@pytest.mark.parametrize("by_time", [False, True])
def test_a_seek_drops_what_is_buffered_and_ends_every_trouble(by_time: bool) -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.refused(PROBLEM, 7.0)
    cursor.halt(PROBLEM)
    cursor.fetched(a_chunk(), 20, 3)
    generation = cursor.generation
    if by_time:
        cursor.seek_by(EARLIEST_TIMESTAMP)
    else:
        cursor.seek(5)
    assert (cursor.position, list(cursor.chunks)) == (None if by_time else 5, [])
    assert cursor.generation > generation, "replies to earlier requests are dropped"
    assert {cursor.halted, cursor.error, cursor.refused_since_ms} == {None}


@pytest.mark.invariant("I22")
def test_a_validation_is_dropped_after_a_seek_to_a_record_of_the_same_epoch() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    question = cursor.ask_epoch_end()
    cursor.seek(3, 3)
    assert cursor.validated(question, EpochEndOffset(epoch=3, end_offset=1), halt=True, where=WHERE) is None
    assert (cursor.position, cursor.halted) == (3, None)


@pytest.mark.invariant("I22")
def test_a_truncation_below_an_offset_that_the_user_chose_after_a_reset_is_an_error() -> None:
    cursor = unread_at_10_of_epoch_3()
    cursor.seek(10, 3)
    assert validate(cursor, 2, 7) is not None


def test_a_truncation_below_an_end_that_the_user_sought_after_reading_is_followed() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.seek_by(LATEST_TIMESTAMP)
    assert cursor.settle_reset(cursor.generation, 15, 3)
    cursor.learn_leader(2, 4)
    assert validate(cursor, 2, 7) is None
    assert cursor.position == 7


def test_records_of_earlier_epochs_fit_after_a_seek_backwards() -> None:
    cursor = reader_at_10_of_epoch_3()
    assert cursor.misfit(header_for(15, 2), None) == "leader epoch 2 follows epoch 3"
    cursor.seek(5)
    assert cursor.misfit(header_for(5, 2), None) is None


def test_replies_without_the_requested_batches_are_counted_from_the_last_good_one_or_seek() -> None:
    cursor = cursor_at(10, 3)
    cursor.unfit_fetches = 2
    cursor.fetched(a_chunk(), 15, 3)
    assert cursor.unfit_fetches == 0
    cursor.unfit_fetches = 2
    cursor.seek(5)
    assert cursor.unfit_fetches == 0


def test_what_is_buffered_is_fetched_again_only_where_there_is_a_position() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.refetch()
    assert (cursor.fetch_offset, list(cursor.chunks)) == (10, [])
    cursor.seek_by(LATEST_TIMESTAMP)
    generation = cursor.generation
    cursor.refetch()
    assert cursor.settle_reset(generation, 20, 3), "the request of the position goes on"
    cursor = Cursor(PARTITION, OffsetReset.NONE, 1_000)
    cursor.refetch()
    assert (cursor.position, cursor.fetch_offset) == (None, 0)


def test_the_last_error_is_shown_and_the_time_of_the_first_one() -> None:
    cursor = cursor_at(10, 3)
    for problem, now_ms in ((OffsetOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, WHERE, "earlier"), 7.0), (PROBLEM, 9.0)):
        cursor.refused(problem, now_ms)
    assert (cursor.error, cursor.refused_since_ms) == (PROBLEM, 7.0)
    cursor.answered()
    assert (cursor.error, cursor.refused_since_ms) == (None, None)


def test_refusals_are_counted_up_to_a_valid_answer_or_a_new_leader() -> None:
    """The pause before the next fetch grows with them."""
    cursor = cursor_at(10, 3)
    cursor.learn_leader(1, 3)
    for refusals in (1, 2, 3):
        cursor.refused(PROBLEM, 7.0)
        cursor.retry_at_ms = 500.0
        for leader in (None, 1):
            cursor.learn_leader(leader, 3)
        assert (cursor.refusals, cursor.retry_at_ms) == (refusals, 500.0), "it leads as before"
    cursor.answered()
    assert cursor.refusals == 0
    for leader, epoch in ((2, 3), (2, 4)):
        cursor.refused(PROBLEM, 7.0)
        cursor.retry_at_ms = 500.0
        cursor.learn_leader(leader, epoch)
        assert (cursor.refusals, cursor.retry_at_ms) == (0, 0.0), "another leader, or another epoch"


@pytest.mark.invariant("I12", "I41")
@pytest.mark.parametrize(
    ("before", "header", "problem"),
    [
        (None, (15, 3), None),
        (None, (14, 3), "the first batch holds offsets 14 to 14"),
        (None, (16, 3), "the first batch holds offsets 16 to 16"),
        (None, (15, 2), "leader epoch 2 follows epoch 3"),
        (None, (15, 4), "leader epoch 4 is above the leader's 3"),
        ((15, 2), (16, 2), None),
        ((15, 2), (16, 3), None),
        ((15, 2), (17, 2), "offset 17 follows 15"),
        ((15, 3), (16, 2), "leader epoch 2 follows epoch 3"),
    ],
)
def test_a_batch_that_was_not_asked_for_is_told_by_its_header(
    before: tuple[int, int] | None, header: tuple[int, int], problem: str | None
) -> None:
    cursor = reader_at_10_of_epoch_3()
    assert cursor.misfit(header_for(*header), None if before is None else header_for(*before)) == problem
    cursor.learn_leader(1, None)
    assert cursor.misfit(header_for(15, 4), None) is None, "the leader's epoch is not known"


@pytest.mark.invariant("I22")
def test_a_halt_drops_what_is_buffered_and_what_is_on_its_way() -> None:
    cursor = reader_at_10_of_epoch_3()
    generation = cursor.generation
    cursor.halt(PROBLEM)
    assert cursor.halted is PROBLEM
    assert not cursor.chunks
    assert cursor.generation > generation


# -------------------------------------------------------------------------------------------------------- retention
def outrun_at_10() -> Cursor:
    """Retention took what it read last; its new position is being requested."""
    cursor = reader_at_10_of_epoch_3()
    cursor.seek(10, 3)
    cursor.read_since_move = True
    cursor.out_of_range(OffsetReset.EARLIEST, WHERE, log_start_offset=20)
    return cursor


@pytest.mark.invariant("I22")
def test_a_truncation_below_what_was_read_before_retention_forced_a_reset_is_an_error() -> None:
    cursor = outrun_at_10()
    assert cursor.settle_reset(cursor.generation, 4, 5)
    cursor.learn_leader(2, 5)
    problem = validate(cursor, 3, 7)
    assert problem is not None
    assert problem.divergent_offset == 7


def test_the_beginning_that_the_user_asks_for_may_lie_before_what_retention_took() -> None:
    cursor = outrun_at_10()
    cursor.seek_by(EARLIEST_TIMESTAMP)
    assert cursor.settle_reset(cursor.generation, 4, 5)
    assert cursor.position == 4
    cursor = outrun_at_10()
    cursor.seek(15)
    cursor.seek_by(EARLIEST_TIMESTAMP)
    assert cursor.settle_reset(cursor.generation, 4, 5)
    assert cursor.position == 4


@pytest.mark.invariant("I22")
def test_what_retention_took_of_a_deleted_topic_is_no_position_in_the_next_one() -> None:
    """The topic was made again before its leader told where its log begins: up to that position, the records of the
    next topic were skipped."""
    cursor = Cursor(PARTITION, OffsetReset.EARLIEST, 1_000)
    cursor.learn_topic("first", OffsetReset.EARLIEST, WHERE)
    cursor.learn_leader(1, 3)
    cursor.seek(10)
    cursor.out_of_range(OffsetReset.EARLIEST, WHERE, log_start_offset=20)
    assert cursor.learn_topic("second", OffsetReset.EARLIEST, WHERE)
    cursor.learn_leader(1, 0)
    assert cursor.settle_reset(cursor.generation, 0, 0)
    assert (cursor.position, cursor.fetch_epoch) == (0, 0)


def test_a_reset_to_the_end_goes_to_the_end_of_a_shorter_log() -> None:
    """The log that it was in began behind its position, that of the next leader ends before it."""
    cursor = cursor_at(10, 3)
    cursor.out_of_range(OffsetReset.LATEST, WHERE, log_start_offset=20)
    assert cursor.settle_reset(cursor.generation, 4, 5)
    assert cursor.position == 4


# ------------------------------------------------------------------------------------------------- leaders, truncation
def test_a_new_leader_is_asked_at_once_and_the_same_one_after_the_pause() -> None:
    cursor = cursor_at(10, 3)
    cursor.retry_at_ms = 50.0
    assert not cursor.learn_leader(1, 3)
    assert cursor.retry_at_ms == 50.0
    assert cursor.learn_leader(2, 4)
    assert cursor.retry_at_ms == 0.0


def test_a_position_from_before_any_leader_was_known_is_valid_under_the_first_one() -> None:
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.seek(10)
    cursor.learn_leader(1, 3)
    assert (cursor.validated_epoch, cursor.wants_data) == (3, True)
    cursor.fetched(a_chunk(), 15, 3)
    cursor.learn_leader(2, 4)
    assert (cursor.validated_epoch, cursor.needs_validation) == (3, True)
    cursor = Cursor(PARTITION, OffsetReset.LATEST, 1_000)
    cursor.seek(10)
    cursor.fetched(a_chunk(), 15, 3)
    cursor.learn_leader(1, 3)
    assert cursor.validated_epoch == 3


@pytest.mark.invariant("I22")
def test_a_position_without_an_epoch_counts_under_each_leader_until_a_record_comes() -> None:
    """Nothing was read under the earlier leader that could differ in the log of the next one."""
    cursor = cursor_at(10)
    cursor.learn_leader(2, 4)
    cursor.fetched(a_chunk(), 15, 4)
    assert not cursor.needs_validation


@pytest.mark.invariant("I22")
@pytest.mark.parametrize(("epoch", "end"), [(-1, 100), (3, -1), (-1, 12)])
def test_an_answer_without_an_epoch_or_an_end_validates_nothing(epoch: int, end: int) -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    problem = validate(cursor, epoch, end)
    assert problem is not None
    assert problem.divergent_offset is None


def test_a_truncation_that_was_followed_needs_no_further_validation() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.learn_leader(2, 4)
    assert validate(cursor, 2, 7, halt=False) is not None
    assert cursor.wants_data


def test_an_unread_end_is_followed_through_one_truncation_after_another() -> None:
    cursor = unread_at_10_of_epoch_3()
    for epoch, end in ((2, 7), (1, 5)):
        assert validate(cursor, epoch, end) is None
        assert cursor.position == end
        cursor.learn_leader(1, (cursor.leader_epoch or 0) + 1)
    assert cursor.reset_from == LATEST_TIMESTAMP


def reader_of_epochs(*starts: tuple[int, int], end: int) -> Cursor:
    """Has returned everything below `end`: records of these epochs, each from that offset on."""
    cursor = Cursor(PARTITION, OffsetReset.EARLIEST, 1_000)
    cursor.learn_leader(1, starts[-1][0])
    assert cursor.settle_reset(cursor.generation, starts[0][1], starts[-1][0])
    for (epoch, _), (_, until) in zip(starts, [*starts[1:], (0, end)], strict=True):
        cursor.fetched(a_chunk(), until, epoch)
    cursor.chunks.clear()
    cursor.position, cursor.position_epoch, cursor.read_since_move = end, starts[-1][0], True
    cursor.learn_leader(2, 9)
    return cursor


@pytest.mark.invariant("I22")
@pytest.mark.parametrize(
    ("starts", "answer", "parting"),
    [
        ([(3, 0), (5, 80)], (5, 100), 100),
        ([(3, 0), (5, 80)], (5, 90), 90),
        ([(3, 0), (5, 80)], (3, 70), 70),
        ([(3, 0), (5, 80)], (3, 100), 80),
        ([(3, 0), (5, 80)], (3, 90), 80),
        ([(5, 80)], (3, 150), 80),
        ([(3, 0), (4, 70), (5, 80)], (3, 100), 70),
        ([(2, 0), (5, 80)], (3, 100), None),
    ],
)
@pytest.mark.parametrize("halt", [True, False])
def test_a_leader_without_the_last_epoch_that_was_read_has_another_log_from_there_on(
    starts: list[tuple[int, int]], answer: tuple[int, int], parting: int | None, halt: bool
) -> None:
    """After an unclean election its own records of an earlier epoch may reach as far, or farther: they were taken for
    those that were read."""
    cursor = reader_of_epochs(*starts, end=100)
    problem = validate(cursor, *answer, halt=halt)
    if parting == 100:
        assert (problem, cursor.wants_data, cursor.fetch_offset) == (None, True, 100)
        return
    assert problem is not None
    assert problem.divergent_offset == parting
    is_halted = halt or parting is None
    assert (cursor.halted is problem, cursor.position) == (is_halted, 100 if is_halted else parting)


def test_the_epochs_that_are_remembered_are_limited_however_many_come_at_once() -> None:
    """One was forgotten for each fetch, which may bring many."""
    cursor = cursor_at(0)
    chunk = a_chunk()
    chunk.unread.extend((0, header_for(offset, offset)) for offset in range(2 * EPOCHS_MAX))
    cursor.fetched(chunk, 2 * EPOCHS_MAX, 2 * EPOCHS_MAX - 1)
    assert len(cursor.epoch_starts) == EPOCHS_MAX
    assert cursor.epoch_starts[:2] == [(NO_EPOCH, 0), (EPOCHS_MAX + 1, EPOCHS_MAX + 1)]


@pytest.mark.invariant("I22")
def test_what_was_only_buffered_of_an_epoch_that_the_leader_lacks_is_dropped_without_an_error() -> None:
    cursor = reader_at_10_of_epoch_3()
    cursor.fetched(a_chunk(), 20, 4)
    cursor.learn_leader(2, 9)
    assert validate(cursor, 3, 20) is None
    assert (cursor.fetch_offset, cursor.fetch_epoch, list(cursor.chunks)) == (10, 3, [])
    assert validate(cursor, 3, 20) is None
    assert cursor.wants_data


@pytest.mark.invariant("I22")
@pytest.mark.parametrize("halt", [True, False])
@pytest.mark.parametrize("answer", [(3, 12), (3, 10), (2, 13)])
def test_what_was_decoded_and_not_returned_of_a_lost_tail_is_dropped_without_an_error(
    halt: bool, answer: tuple[int, int]
) -> None:
    """The last batch is being returned, so no chunk waits. The consumer went on at the parting, and the records in
    front of it were skipped."""
    cursor = reader_at_10_of_epoch_3()
    cursor.epoch_starts = [(2, 0), (3, 5)] if answer[0] == 3 else [(2, 0), (3, 13)]
    cursor.chunks.clear()
    cursor.learn_leader(2, 4)
    generation = cursor.generation
    assert validate(cursor, *answer, halt=halt) is None
    assert (cursor.position, cursor.fetch_offset, cursor.halted) == (10, 10, None)
    assert cursor.generation > generation, "the consumer drops what it has decoded"
    assert cursor.needs_validation, "next the position itself is validated"


@pytest.mark.invariant("I22")
def test_an_answer_of_the_former_leader_is_outdated_once_the_position_counts_at_the_next_one() -> None:
    """It was taken, and then counted as compared with the next one's log."""
    cursor = cursor_at(10, None)
    cursor.learn_leader(1, 5)
    asked = Asked(cursor, cursor.generation, cursor.fetch_offset, 5)
    assert not asked.is_outdated
    cursor.learn_leader(2, 6)
    assert (cursor.validated_epoch, cursor.needs_validation) == (6, False)
    assert asked.is_outdated
    assert not asked._replace(leader_epoch=None).is_outdated
    assert not asked._replace(leader_epoch=6).is_outdated
