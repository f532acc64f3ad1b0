"""Who answers the controller and who does not: elections wait for answers, silent leaders are fenced, or it resigns."""

from __future__ import annotations

import msgspec
import pytest

from minibroker.controller.accepted_loss import Logs, choice_of, elect_as_chosen, outlook
from minibroker.controller.cluster_state import ClusterState, LossChoice
from minibroker.controller.election import elect, elect_preferred
from minibroker.controller.events import (
    AnswersDue,
    BrokerAnswered,
    BrokerSilent,
    BrokersSeen,
    Effect,
    Resign,
    TookOver,
    Unregister,
    WriteLeaderships,
)
from minibroker.controller.steps import step
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.messages import confirmation_of
from tests.controller.facts import T0, broker, cluster_state, leadership, log

LONG = 6.0


def answered(broker_id: int) -> BrokerAnswered:
    return BrokerAnswered(broker_id=broker_id, broker_epoch=10 * broker_id)


def silent(broker_id: int, seconds: float) -> BrokerSilent:
    return BrokerSilent(broker_id=broker_id, broker_epoch=10 * broker_id, seconds=seconds)


def leaders(effects: list[Effect]) -> list[int | None]:
    return [c.after.leader for each in effects if isinstance(each, WriteLeaderships) for c in each.changes]


def of(kind: type[Effect], effects: list[Effect]) -> list[Effect]:
    return [each for each in effects if isinstance(each, kind)]


@pytest.mark.invariant("I28")
def test_new_controller_elects_when_all_have_answered() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2, 3))
    assert leaders(step(state, TookOver())) == []
    assert leaders(step(state, answered(3))) == []
    assert leaders(step(state, answered(2))) == [2]


@pytest.mark.invariant("I28")
def test_new_controller_elects_among_those_that_answered_when_the_moment_is_over() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2, 3))
    step(state, TookOver())
    step(state, answered(3))
    assert leaders(step(state, AnswersDue())) == [3]


@pytest.mark.invariant("I34")
def test_nobodys_place_is_given_up_for_a_leader_that_is_not_heard_of() -> None:
    """Its registration may be that of a dead process, and the others may be the only ones that have the records."""
    again = [broker(each, incarnation="new") for each in (1, 2)]
    state = cluster_state(*again, 3, now=leadership(3, 1, 2, 3))
    state.unheard = frozenset([3])
    assert elect(state, T0, "test") is None


def test_restarted_leader_is_not_told_to_lead_while_the_only_whole_member_is_not_heard_of() -> None:
    state = cluster_state(broker(1, incarnation="new"), 2, now=leadership(1, 1, 2))
    state.unheard = frozenset([2])
    change = elect(state, T0, "test")
    assert change is not None
    assert (change.after.leader, change.after.in_sync_replicas) == (None, (1, 2))


def test_new_registration_is_elected_when_it_answers() -> None:
    state = cluster_state(now=leadership(None, 2))
    assert leaders(step(state, BrokersSeen(brokers={2: broker(2)}))) == []
    assert leaders(step(state, answered(2))) == [2]


def test_preferred_leader_that_does_not_answer_does_not_take_over() -> None:
    state = cluster_state(1, 2, now=leadership(2, 1, 2))
    state.unheard = frozenset([1])
    assert elect_preferred(state, T0, "test") is None


# ------------------------------------------------------------------------------------------------------------ silence
def test_leader_that_is_silent_for_too_long_is_unregistered() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3))
    assert step(state, silent(2, LONG - 0.5)) == []
    assert of(Unregister, step(state, silent(2, LONG))) == [Unregister(broker_id=2, broker_epoch=20)]


def test_registration_that_was_never_heard_of_is_silent_sooner() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3))
    state.returned = state.unheard = frozenset([2])
    assert of(Unregister, step(state, silent(2, 1.0))) == [Unregister(broker_id=2, broker_epoch=20)]


@pytest.mark.parametrize(
    "state",
    [
        cluster_state(1, 2, 3, 4, now=leadership(2, 2)),
        cluster_state(1, 2, 3, 4, now=leadership(3, 2, 3)),
        cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3), shutting_down=(2,)),
    ],
    ids=["nobody-can-take-over", "it-leads-nothing", "it-is-shutting-down"],
)
def test_silence_alone_unregisters_nobody(state: ClusterState) -> None:
    assert step(state, silent(2, LONG)) == []


def test_answer_ends_the_silence() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3))
    step(state, silent(2, LONG - 1))
    step(state, answered(2))
    assert (state.unheard, state.silent_seconds) == (frozenset(), {})


def test_controller_that_most_do_not_answer_leaves_its_office() -> None:
    state = cluster_state(1, 2, 3, now=leadership(2, 2, 1))
    step(state, silent(3, LONG / 2))
    (resigns,) = step(state, silent(2, LONG))
    assert isinstance(resigns, Resign)


# ------------------------------------------------------------------------------------------------------ accepted loss
def test_outlook_offers_the_largest_log_in_the_isr_or_not() -> None:
    replaced = broker(3, incarnation="new", directory="blank")
    state = cluster_state(1, 2, replaced, now=leadership(None, 3))
    logs = {1: {T0: log(90)}, 2: {T0: log(100)}, 3: {T0: log(0, exists=False)}}
    told = outlook(state, T0, logs, None)
    assert (told.error_code, told.chosen, told.isr) == (0, 2, [3])
    assert [each.is_on_its_directory for each in told.candidates] == [True, True, False]
    assert outlook(state, T0, logs, 1).chosen == 1


def test_outlook_offers_nobody_that_cannot_lead() -> None:
    state = cluster_state(2, 3, now=leadership(None, 3))
    told = outlook(state, T0, {2: {T0: log(9, damage="a hole")}}, None)
    assert told.error_code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    problems = [each.problem for each in told.candidates]
    assert problems == ["is not registered", "has a damaged log: a hole", "does not answer"]


def test_outlook_says_nothing_of_a_directory_that_nobody_sees() -> None:
    state = cluster_state(2, now=leadership(None, 3))
    told = outlook(state, T0, {2: {T0: log(9)}}, None)
    (absent,) = [each for each in told.candidates if each.broker_id == 3]
    assert (absent.problem, absent.is_on_its_directory) == ("is not registered", True)


def test_partition_that_is_led_needs_no_such_election() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    assert outlook(state, T0, {}, None).error_code == ErrorCode.ELECTION_NOT_NEEDED


def test_loss_is_accepted_only_as_it_was_told() -> None:
    state = cluster_state(1, 2, now=leadership(None, 3, epoch=6))
    choice = LossChoice(partition=T0, leader=2, leader_epoch=6, broker_epoch=state.brokers[2].broker_epoch)
    (change,) = elect_as_chosen(state, (choice,))
    assert (change.after.leader, change.after.in_sync_replicas, change.after.leader_epoch) == (2, (2,), 7)
    assert change.after.is_recovering
    assert elect_as_chosen(state, (msgspec.structs.replace(choice, leader_epoch=5),)) == []
    assert elect_as_chosen(state, (msgspec.structs.replace(choice, leader=3),)) == []
    assert elect_as_chosen(state, (msgspec.structs.replace(choice, broker_epoch=1),)) == []


def test_order_holds_only_as_long_as_all_is_as_it_was_told() -> None:
    """Else another replica leads, or another log of this one, with a loss that nobody accepted."""
    state = cluster_state(1, 2, now=leadership(None, 3, epoch=6))
    logs = {1: {T0: log(5)}, 2: {T0: log(20)}}
    told = outlook(state, T0, logs, None)
    order = confirmation_of(told)
    chosen = choice_of(state, order, told)
    assert isinstance(chosen, LossChoice)
    assert (chosen.leader, order.log_end_offset) == (2, 20)

    def refusal(state: ClusterState, logs: Logs) -> object:
        return choice_of(state, order, outlook(state, T0, logs, None))

    gone = cluster_state(1, now=leadership(None, 3, epoch=6))
    assert refusal(gone, {1: {T0: log(5)}}) == "broker 2 is not registered"
    assert refusal(state, {1: {T0: log(30)}, 2: {T0: log(20)}}) == "broker 1 has more than broker 2 now"
    shorter = {1: {T0: log(5)}, 2: {T0: log(19)}}
    assert "ends at 19 now" in str(refusal(state, shorter))
    later = cluster_state(1, 2, now=leadership(None, 3, epoch=7))
    assert refusal(later, logs) == f"{T0} is in leader epoch 7, not 6"
    assert "is led by broker 1" in str(refusal(cluster_state(1, 2, now=leadership(1, 1, epoch=7)), logs))
