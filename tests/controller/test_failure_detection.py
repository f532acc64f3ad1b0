"""When a controller declares a broker failed before its session ends: the rules, without a clock."""

from hypothesis import given
from hypothesis import strategies as st

from minibroker.controller.core.controller_state import ControllerState
from minibroker.controller.core.events import (
    BrokerRefused,
    ConfirmFailure,
    ControllerEffect,
    ControllerEvent,
    FailureConfirmed,
    FailureUnconfirmed,
    LivenessConnectionHeld,
    LivenessConnectionLost,
    RegistrationsChanged,
    Report,
    Unregister,
    WriteLeaderships,
)
from minibroker.controller.core.steps import step
from minibroker.controller.detection.failure_detection import (
    CONFIRMERS_MAX,
    DOUBT_WINDOW_SECONDS,
    choose_confirmers,
    doubts_itself,
)
from minibroker.protocol.events.controller_events import BrokerFailureConfirmed
from tests.controller.facts import broker, cluster_state, leadership


def lost(broker_id: int, at: float = 100.0, epoch: int | None = None) -> LivenessConnectionLost:
    return LivenessConnectionLost(broker_id=broker_id, broker_epoch=epoch or 10 * broker_id, at_seconds=at)


def refused(broker_id: int, attempt: int = 1, epoch: int | None = None) -> BrokerRefused:
    return BrokerRefused(broker_id=broker_id, broker_epoch=epoch or 10 * broker_id, attempt=attempt)


def confirmed(broker_id: int, confirmer: int = 3, epoch: int | None = None) -> FailureConfirmed:
    return FailureConfirmed(
        broker_id=broker_id,
        broker_epoch=epoch or 10 * broker_id,
        confirmer_id=confirmer,
        address="broker2:9092",
        took_ms=12,
    )


def play(state: ControllerState, *events: ControllerEvent) -> list[ControllerEffect]:
    """The effects of the last event."""
    effects: list[ControllerEffect] = []
    for event in events:
        effects = step(state, event)
    return effects


def three_brokers(*shutting_down: int) -> ControllerState:
    """Broker 1 is the controller, broker 2 leads."""
    return cluster_state(1, 2, 3, now=leadership(2, 1, 2, 3), shutting_down=shutting_down)


def test_a_lost_connection_and_a_refusal_lead_to_an_inquiry() -> None:
    effects = play(three_brokers(), lost(2), refused(2))
    assert effects == [ConfirmFailure(broker=broker(2), confirmers=(broker(3),), attempt=1)]


def test_a_confirmed_failure_removes_the_registration_before_any_election() -> None:
    report, effect = play(three_brokers(), lost(2), refused(2), confirmed(2))
    assert isinstance(report, Report)
    assert report.text == (
        "broker 2 is dead: its connection was lost, broker2:9092 refuses, broker 3 confirms (12 ms);"
        " its registration is removed"
    )
    assert effect == Unregister(broker_id=2, broker_epoch=20)


def test_the_failure_of_the_controller_is_told_by_the_same_sentence() -> None:
    event = BrokerFailureConfirmed(broker=1, confirmer=3, address="broker1:9092", took_ms=4, is_controller=True)
    assert event.text() == (
        "the controller, broker 1, is dead: its connection was lost, broker1:9092 refuses, broker 3 confirms (4 ms);"
        " its registration is removed"
    )


def test_election_follows_from_the_registration_being_gone() -> None:
    state = three_brokers()
    effects = play(
        state, lost(2), refused(2), confirmed(2), RegistrationsChanged(brokers={each: broker(each) for each in (1, 3)})
    )
    changes = [change for effect in effects if isinstance(effect, WriteLeaderships) for change in effect.changes]
    assert [change.after.leader for change in changes] == [1]
    assert state.lost_connections == {}


def test_a_refusal_without_an_earlier_connection_raises_no_suspicion() -> None:
    assert play(three_brokers(), refused(2)) == []


def test_a_lost_connection_alone_unregisters_no_broker() -> None:
    assert play(three_brokers(), lost(2)) == []
    assert play(three_brokers(), confirmed(2)) == []


def test_a_connection_that_is_held_again_ends_the_suspicion() -> None:
    held = LivenessConnectionHeld(broker_id=2, broker_epoch=20)
    assert play(three_brokers(), lost(2), refused(2), held, confirmed(2)) == []
    assert play(three_brokers(), lost(2), held, refused(2)) == []


def test_events_of_an_earlier_registration_raise_no_suspicion() -> None:
    assert play(three_brokers(), lost(2, epoch=19), refused(2, epoch=19), confirmed(2, epoch=19)) == []
    again = {1: broker(1), 2: broker(2, epoch=55), 3: broker(3)}
    assert play(three_brokers(), lost(2), refused(2), RegistrationsChanged(brokers=again), confirmed(2)) == []
    assert play(three_brokers(), lost(2), RegistrationsChanged(brokers=again), refused(2, epoch=55)) == []


def test_a_broker_that_is_stopping_is_not_suspected() -> None:
    assert play(three_brokers(2), lost(2), refused(2)) == []
    assert play(three_brokers(2), lost(2), confirmed(2)) == []


def test_without_a_confirmer_the_session_is_waited_for_and_reported_once() -> None:
    state = three_brokers()
    (report,) = play(state, lost(3, at=10.0), lost(2, at=500.0), refused(2))
    assert isinstance(report, Report)
    assert "waiting for its session" in report.text
    assert play(state, refused(2, attempt=2)) == []


def test_an_unconfirmed_failure_is_reported_once() -> None:
    state = three_brokers()
    play(state, lost(2), refused(2))
    (report,) = step(state, FailureUnconfirmed(broker_id=2, broker_epoch=20, attempt=1))
    assert isinstance(report, Report)
    assert step(state, FailureUnconfirmed(broker_id=2, broker_epoch=20, attempt=2)) == []


# ------------------------------------------------------------------------------------------------------- self-doubt
def test_a_controller_that_loses_most_connections_at_once_suspects_no_broker() -> None:
    state = cluster_state(1, 2, 3, 4, 5, now=leadership(2, 1, 2, 3))
    play(state, lost(2), lost(3, at=100.5))
    (report,) = play(state, lost(4, at=101.0))
    assert isinstance(report, Report)
    assert "[2, 3, 4]" in report.text
    assert play(state, refused(2)) == []
    assert play(state, confirmed(2)) == []
    assert play(state, lost(5, at=101.5)) == [], "the doubt is reported once"


def test_losing_half_of_the_connections_raises_no_doubt() -> None:
    state = cluster_state(1, 2, 3, 4, 5, now=leadership(2, 1, 2, 3))
    assert [type(each) for each in play(state, lost(2), lost(3), refused(2))] == [ConfirmFailure]


def test_losses_far_apart_raise_no_doubt() -> None:
    state = cluster_state(1, 2, 3, 4, 5, now=leadership(2, 1, 2, 3))
    later = 100.0 + 2 * DOUBT_WINDOW_SECONDS
    effects = play(state, lost(2), lost(3), lost(4, at=later), refused(4))
    assert effects == [ConfirmFailure(broker=broker(4), confirmers=(broker(5),), attempt=1)]


def test_doubt_ends_when_connections_are_held_again() -> None:
    state = cluster_state(1, 2, 3, 4, 5, now=leadership(2, 1, 2, 3))
    play(state, lost(2), lost(3), lost(4))
    assert doubts_itself(state)
    play(
        state,
        LivenessConnectionHeld(broker_id=3, broker_epoch=30),
        LivenessConnectionHeld(broker_id=4, broker_epoch=40),
    )
    assert not doubts_itself(state)
    assert [type(each) for each in play(state, refused(2))] == [ConfirmFailure]


@given(st.dictionaries(st.integers(2, 9), st.floats(0, 1_000)), st.integers(0, 8))
def test_doubt_is_more_than_half_within_one_window(lost_at: dict[int, float], more: int) -> None:
    brokers = [1, *sorted(lost_at), *range(20, 20 + more)]
    state = cluster_state(*brokers)
    state.lost_connections = dict(lost_at)
    together = max(
        (
            sum(1 for at in lost_at.values() if begin <= at <= begin + DOUBT_WINDOW_SECONDS)
            for begin in lost_at.values()
        ),
        default=0,
    )
    assert doubts_itself(state) == (together > (len(brokers) - 1) / 2)


# --------------------------------------------------------------------------------------------------------- confirmers
@given(st.sets(st.integers(1, 40)))
def test_all_candidates_are_asked_after_enough_attempts(candidates: set[int]) -> None:
    ordered = sorted(candidates)
    asked = [choose_confirmers(ordered, attempt) for attempt in range(1, len(ordered) + 2)]
    assert all(len(each) == len(set(each)) <= CONFIRMERS_MAX for each in asked)
    assert {each for some in asked for each in some} == candidates
