"""Producers that a replica has forgotten, or was never told of: what that says of their unanswered batches."""

from __future__ import annotations

import pytest

from minibroker.broker.replication import producer_state
from minibroker.broker.replication.producer_state import (
    Accept,
    Duplicate,
    ProducerStates,
    Refuse,
)
from minibroker.protocol.errors import ErrorCode
from tests.broker.replication.test_producer_state import DAY_MS, batch, refused, states_after


@pytest.mark.invariant("I25")
def test_a_forgotten_producer_cannot_overtake_its_own_retry() -> None:
    """If batch 6 were accepted from a forgotten producer, batch 5, never written, would count as written."""
    states = ProducerStates()
    assert refused(states.check(batch(6))) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert refused(states.check(batch(5))) == ErrorCode.UNKNOWN_PRODUCER_ID


@pytest.mark.invariant("I25")
def test_an_unanswered_first_batch_is_refused_if_producers_had_to_be_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be one of the forgotten batches. A first attempt is certainly new, and so is any if there was room."""
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    states = states_after(batch(0, producer=1))
    assert states.check(batch(0, producer=9), is_retry=True) == Accept()
    states.update(batch(0, producer=2))
    assert refused(states.check(batch(0, producer=9), is_retry=True)) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert states.check(batch(0, producer=9)) == Accept()
    assert isinstance(states.check(batch(0, producer=2), is_retry=True), Duplicate)


@pytest.mark.invariant("I25")
def test_an_unanswered_first_batch_is_refused_wherever_incomplete_states_go() -> None:
    """They are copied, kept in a snapshot, and sent to another replica, also if no producer is left in them."""
    states = ProducerStates(is_incomplete=True)
    for each in (
        states,
        states.copy(),
        ProducerStates.load(states.snapshot()),
        ProducerStates.load(states.snapshot_below(5, 1_000)),
    ):
        assert refused(each.check(batch(0, producer=9), is_retry=True)) == ErrorCode.UNKNOWN_PRODUCER_ID
        assert each.check(batch(0, producer=9)) == Accept()


@pytest.mark.invariant("I25")
def test_an_unanswered_first_batch_of_a_producer_that_was_idle_too_long_is_refused() -> None:
    """Its clock ran ahead, or the client was cut off for longer: the batch was taken as new, and written twice."""
    states = ProducerStates()
    states.update(batch(0, producer=1, epoch=3), now_ms=1_000)
    states.expire(1_001 + DAY_MS)
    for known in (states, states.copy()):
        assert refused(known.check(batch(0, producer=1, epoch=3), is_retry=True)) == ErrorCode.UNKNOWN_PRODUCER_ID
        assert known.check(batch(0, producer=1, epoch=4), is_retry=True) == Accept(), "of an epoch that never wrote"
        assert known.check(batch(0, producer=1, epoch=3)) == Accept(), "its first attempt"
        assert known.check(batch(0, producer=2), is_retry=True) == Accept(), "it was never here"
    states.update(batch(0, producer=1, epoch=4), now_ms=2 * DAY_MS)
    assert not states._idle, "it is not forgotten any more"


def test_the_ids_of_idle_producers_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_state, "PRODUCERS_MAX", 2)
    states = ProducerStates()
    for producer in range(5):
        states.update(batch(0, producer=producer), now_ms=1_000)
        states.expire(1_001 + DAY_MS)
    refusals = [isinstance(states.check(batch(0, producer=each), is_retry=True), Refuse) for each in range(5)]
    assert refusals == [False, False, False, True, True]


def test_a_snapshot_for_others_is_bounded_and_omits_the_longest_idle() -> None:
    states = states_after(*(batch(0, producer=producer, offset=producer) for producer in range(1_000)))
    snapshot = states.snapshot_below(500, 2_000)
    assert len(snapshot) <= 2_000
    known = [producer for producer, _ in ProducerStates.load(snapshot)]
    assert known == list(range(500 - len(known), 500))
    assert len(known) > 20
    assert states.snapshot_below(0, 2_000) == b""


@pytest.mark.invariant("I25")
def test_a_snapshot_for_others_that_omits_producers_says_so() -> None:
    """The other replica took it for complete: once it led, a retry of an omitted producer was written again."""
    states = states_after(*(batch(0, producer=producer, offset=producer) for producer in range(100)))
    copy = ProducerStates.load(states.snapshot_below(100, 2_000))
    assert copy.get(0) is None
    assert states.check(batch(0, producer=0), is_retry=True) == Duplicate(0, 0)
    assert refused(copy.check(batch(0, producer=0), is_retry=True)) == ErrorCode.UNKNOWN_PRODUCER_ID
    assert not ProducerStates.load(states.snapshot_below(100, 1_000_000)).is_incomplete


@pytest.mark.invariant("I25")
def test_states_are_complete_again_once_all_that_may_be_missing_would_be_forgotten() -> None:
    """Until then each unanswered first batch is refused, at this replica and where its states are sent."""
    states, start_ms, day_ms = ProducerStates(is_incomplete=True), 1_800_000_000_000, 86_400_000
    states.expire(start_ms, day_ms)
    for copy in (
        states,
        states.copy(),
        ProducerStates.load(states.snapshot()),
        ProducerStates.load(states.snapshot_below(100, 1_000)),
    ):
        copy.expire(start_ms + day_ms, day_ms)
        assert refused(copy.check(batch(0), is_retry=True)) == ErrorCode.UNKNOWN_PRODUCER_ID
        copy.expire(start_ms + day_ms + 1, day_ms)
        assert copy.check(batch(0), is_retry=True) == Accept()
    states.mark_incomplete()
    states.expire(start_ms + 2 * day_ms, day_ms)
    assert states.is_incomplete, "it counts anew"
