"""Brokers that do not answer: elections wait for answers, silent leaders are fenced, or the controller resigns."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minibroker.controller.core.control_requests import LeaderAndIsr, StopReplica, UpdateMetadata
from minibroker.controller.core.controller_state import ControllerState, Deletion, Leadership, RegisteredBroker, Topic
from minibroker.controller.core.election import PartitionChange, elect, elect_preferred
from minibroker.controller.core.events import (
    AnswersDue,
    BrokerAnswered,
    BrokerSilent,
    ControllerEffect,
    LeaderCutOff,
    RegistrationsChanged,
    ReplicasFailed,
    Resign,
    Send,
    TookOver,
    Unregister,
    WriteLeaderships,
)
from minibroker.controller.core.steps import step
from minibroker.controller.core.unresponsive_brokers import NEVER_ANSWERED_SECONDS, _may_wait
from tests.controller.facts import T0, broker, cluster_state, leadership

LONG = 6.0


def answered(broker_id: int) -> BrokerAnswered:
    return BrokerAnswered(broker_id=broker_id, broker_epoch=10 * broker_id)


def silent(broker_id: int, seconds: float) -> BrokerSilent:
    return BrokerSilent(broker_id=broker_id, broker_epoch=10 * broker_id, seconds=seconds)


def cut_off(broker_id: int, seconds: float, broker_epoch: int | None = None) -> LeaderCutOff:
    epoch = 10 * broker_id if broker_epoch is None else broker_epoch
    return LeaderCutOff(broker_id=broker_id, broker_epoch=epoch, seconds=seconds)


def leaders(effects: list[ControllerEffect]) -> list[int | None]:
    return [c.after.leader for each in effects if isinstance(each, WriteLeaderships) for c in each.changes]


def changes(effects: list[ControllerEffect]) -> list[PartitionChange]:
    return [change for each in effects if isinstance(each, WriteLeaderships) for change in each.changes]


def of(kind: type[ControllerEffect], effects: list[ControllerEffect]) -> list[ControllerEffect]:
    return [each for each in effects if isinstance(each, kind)]


@pytest.mark.invariant("I28")
def test_new_controller_elects_when_all_have_answered() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2, 3))
    assert leaders(step(state, TookOver())) == []
    assert leaders(step(state, answered(3))) == []
    assert leaders(step(state, answered(2))) == [2]


@pytest.mark.invariant("I28")
def test_new_controller_elects_among_those_that_answered_in_time() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2, 3))
    step(state, TookOver())
    step(state, answered(3))
    assert leaders(step(state, AnswersDue())) == [3]


@pytest.mark.invariant("I28")
def test_replica_that_an_answer_names_as_offline_is_not_elected_for_that_answer() -> None:
    """Broker 1, which is down, has all records. It would no longer be in the ISR when it is back."""
    state = cluster_state(2, 3, now=leadership(1, 1, 2))
    assert leaders(step(state, TookOver())) == []
    assert leaders(step(state, answered(3))) == []
    step(state, ReplicasFailed(broker_id=2, broker_epoch=20, partitions=(T0,)))
    assert state.leaderships[T0].in_sync_replicas == (1, 2)
    assert [change.after.in_sync_replicas for change in changes(step(state, answered(2)))] == [(1, 2)]


@pytest.mark.invariant("I28")
def test_the_first_order_of_a_new_controller_is_metadata_though_a_deletion_waits() -> None:
    """Elections wait for the first answer, and only an answer to UpdateMetadata names the replicas that are offline."""
    state = cluster_state(2, 3, now=leadership(1, 1, 2))
    state.topics["old"] = Topic(topic_id="t2", assignment={0: (1, 2, 3)})
    state.deletions["old"] = Deletion(is_started=True, is_recorded=True)
    orders = [each.orders[0] for each in step(state, TookOver()) if isinstance(each, Send) and each.broker_id == 2]
    assert [type(each) for each in orders] == [UpdateMetadata, StopReplica]


@pytest.mark.invariant("I36")
def test_a_refused_order_that_a_report_has_overtaken_is_sent_again() -> None:
    """The answer was held up, and the replica healed meanwhile. That is reported twice and not again: the only member
    of an ISR stayed offline for this controller until its broker restarted. The next answer is newer than the report:
    it may be of a replica that the broker does not have, and so never reports."""
    state = cluster_state(2, 3, now=leadership(2, 2))
    refused = ReplicasFailed(broker_id=2, broker_epoch=20, partitions=(T0,), is_overtaken=True)
    (again,) = step(state, refused)
    assert isinstance(again, Send)
    assert [(type(each), each.partition) for each in again.orders] == [(LeaderAndIsr, T0)]
    assert state.is_online(T0, 2)
    step(state, replace(refused, is_overtaken=False))
    assert not state.is_online(T0, 2)


def test_no_epoch_begins_with_a_leader_that_is_gone_because_a_replica_is_offline() -> None:
    """The leader's broker was the controller, too, and failed. A new controller hears of replicas outside of the ISR
    that are offline before it elects: the election begins the epoch in which their former positions are void."""
    state = cluster_state(2, 3, now=leadership(1, 1, 2))
    step(state, TookOver())
    assert changes(step(state, ReplicasFailed(broker_id=3, broker_epoch=30, partitions=(T0,)))) == []
    assert changes(step(state, answered(3))) == []
    (elected,) = changes(step(state, answered(2)))
    assert (elected.after.leader, elected.after.leader_epoch) == (2, 6)


@pytest.mark.invariant("I34")
def test_no_member_leaves_the_isr_for_an_unresponsive_leader() -> None:
    """Its process may have failed, and the other members may be the only ones that have the records."""
    again = [broker(each, incarnation="new") for each in (1, 2)]
    state = cluster_state(*again, 3, now=leadership(3, 1, 2, 3))
    state.unresponsive = frozenset([3])
    assert elect(state, T0, "test") is None


def test_a_restarted_leader_does_not_lead_while_the_only_whole_member_is_unresponsive() -> None:
    state = cluster_state(broker(1, incarnation="new"), 2, now=leadership(1, 1, 2))
    state.unresponsive = frozenset([2])
    change = elect(state, T0, "test")
    assert change is not None
    assert (change.after.leader, change.after.in_sync_replicas) == (None, (1, 2))


def test_new_registration_is_elected_when_it_answers() -> None:
    state = cluster_state(now=leadership(None, 2))
    assert leaders(step(state, RegistrationsChanged(brokers={2: broker(2)}))) == []
    assert leaders(step(state, answered(2))) == [2]


@pytest.mark.invariant("I36")
def test_a_member_takes_over_from_a_leader_that_is_gone_as_soon_as_it_answers() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2))
    state.unresponsive = frozenset({2})
    assert elect(state, T0, "broker 1 is gone") is None
    assert leaders(step(state, answered(2))) == [2]


@pytest.mark.invariant("I36")
def test_a_member_takes_over_from_a_leader_that_shuts_down_as_soon_as_it_answers() -> None:
    """The stop may take long, with a disk that hangs, and a broker that shuts down is not replaced for its silence."""
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2), shutting_down=(1,))
    state.unresponsive = frozenset({2})
    assert elect(state, T0, "broker 1 is shutting down") is None
    assert leaders(step(state, answered(2))) == [2]


def test_new_controller_elects_no_outsider_before_all_had_time_to_answer() -> None:
    """It alone would be the ISR, and nothing replaces it if it does not answer."""
    state = cluster_state(1, 2, 3, now=leadership(2, 2), unclean=True)
    step(state, TookOver())
    failed = ReplicasFailed(broker_id=2, broker_epoch=20, partitions=(T0,))
    assert leaders(step(state, failed)) == [None]
    step(state, answered(3))
    assert leaders(step(state, AnswersDue())) == [3]


@pytest.mark.parametrize(
    ("leader", "unresponsive", "may_wait"),
    [(None, (), True), (2, (), True), (3, (), False), (3, (3,), True), (3, (1,), False), (9, (), True)],
    ids=["none", "itself", "another that answers", "one that does not", "not the leader's silence", "one that is gone"],
)
def test_an_answer_is_compared_with_the_partitions_that_may_have_waited_for_it(
    leader: int | None, unresponsive: tuple[int, ...], may_wait: bool
) -> None:
    state = cluster_state(1, 2, 3, now=leadership(leader, *{2, leader or 2}))
    state.unresponsive = frozenset(unresponsive)
    assert _may_wait(state, T0, 2) is may_wait


def test_preferred_leader_that_does_not_answer_does_not_take_over() -> None:
    state = cluster_state(1, 2, now=leadership(2, 1, 2))
    state.unresponsive = frozenset([1])
    assert elect_preferred(state, T0, "test") is None


def test_a_leader_that_does_not_answer_does_not_give_way_to_the_preferred_one() -> None:
    """It would not learn of it, and lead nothing for which it could be unregistered: it went on serving reads and
    writes with acks=1 as long as the link from the controller was cut."""
    state = cluster_state(1, 2, now=leadership(2, 1, 2))
    assert elect_preferred(state, T0, "test") is not None
    state.unresponsive = frozenset([2])
    assert elect_preferred(state, T0, "test") is None


# ------------------------------------------------------------------------------------------------------------ silence
def test_leader_that_is_silent_for_too_long_is_unregistered() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3))
    assert step(state, silent(2, LONG - 0.5)) == []
    assert of(Unregister, step(state, silent(2, LONG))) == [Unregister(broker_id=2, broker_epoch=20)]


def test_a_registration_that_never_answered_is_unregistered_sooner() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3))
    state.newly_registered = state.unresponsive = frozenset([2])
    assert of(Unregister, step(state, silent(2, 1.0))) == [Unregister(broker_id=2, broker_epoch=20)]


def test_a_registration_that_has_answered_may_be_silent_for_long() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3))
    step(state, RegistrationsChanged(brokers={**state.brokers, 2: broker(2, epoch=99)}))
    step(state, BrokerAnswered(broker_id=2, broker_epoch=99))
    assert of(Unregister, step(state, BrokerSilent(broker_id=2, broker_epoch=99, seconds=LONG - 0.5))) == []


def test_a_silent_broker_is_not_elected() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(1, 1, 2, 3))
    step(state, silent(2, 1.0))
    assert leaders(step(state, RegistrationsChanged(brokers={each: broker(each) for each in (2, 3, 4)}))) == [3]


@pytest.mark.parametrize(
    ("now", "is_unregistered"),
    [
        (leadership(3, 2, 3), True),
        (leadership(1, 1, 2, 3), True),
        (leadership(1, 1), True),
        (leadership(2, 2), False),
        (leadership(None, 3), False),
        (None, False),
    ],
    ids=["another leads", "a third leads", "it left the ISR", "it leads again, alone", "none leads", "topic is gone"],
)
def test_a_broker_that_was_not_told_that_another_one_leads_is_unregistered_for_its_silence(
    now: Leadership | None, is_unregistered: bool
) -> None:
    """The link from the controller was cut just when a rebalance moved its only leadership away: it went on serving
    reads and writes with acks=1 beside the new leader. It is not unregistered where no other broker leads: it may be
    the only one that can lead its other partitions."""
    state = cluster_state(1, 2, 3, 4, now=now)
    untold = replace(silent(2, LONG), may_lead=frozenset([T0]))
    assert bool(of(Unregister, step(state, untold))) is is_unregistered
    assert of(Unregister, step(state, silent(2, LONG))) == [], "it has answered that order, however long ago it led"


def test_a_replica_that_serves_nothing_is_no_reason_to_unregister_its_broker() -> None:
    untold = replace(silent(2, LONG), may_lead=frozenset([T0]))
    state = cluster_state(1, 2, 3, 4, now=leadership(3, 2, 3))
    state.offline_replicas = {2: frozenset([T0])}
    assert step(state, untold) == []
    state = cluster_state(1, 2, 3, 4, now=leadership(3, 2, 3))
    state.deletions = {"lines": Deletion(is_started=True)}
    assert step(state, untold) == []


@pytest.mark.parametrize(
    "state",
    [
        cluster_state(1, 2, 3, 4, now=leadership(2, 2)),
        cluster_state(1, 2, 3, 4, now=leadership(3, 2, 3)),
        cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3), shutting_down=(2,)),
    ],
    ids=["no-member-can-take-over", "it-leads-nothing", "it-is-shutting-down"],
)
def test_silence_alone_unregisters_no_broker(state: ControllerState) -> None:
    assert step(state, silent(2, LONG)) == []


def test_answer_ends_the_silence() -> None:
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 3))
    step(state, silent(2, LONG - 1))
    step(state, answered(2))
    assert (state.unresponsive, state.silent_seconds) == (frozenset(), {})


@pytest.mark.parametrize(
    ("others", "unresponsive", "is_replaced"),
    [
        ((broker(1), broker(3)), (), True),
        ((broker(1, incarnation="new"), broker(3)), (), False),
        ((broker(1), broker(3)), (1,), False),
        ((broker(3), broker(4)), (), False),
    ],
    ids=["a whole member", "started again", "silent, too", "gone"],
)
def test_a_silent_leader_is_replaced_only_if_a_whole_member_that_answers_could_lead(
    others: tuple[RegisteredBroker, ...], unresponsive: tuple[int, ...], is_replaced: bool
) -> None:
    state = cluster_state(2, 5, 6, *others, now=leadership(2, 2, 1))
    state.unresponsive = frozenset(unresponsive)
    assert bool(of(Unregister, step(state, silent(2, LONG)))) is is_replaced


def test_a_controller_that_most_brokers_do_not_answer_resigns() -> None:
    state = cluster_state(1, 2, 3, now=leadership(2, 2, 1))
    step(state, silent(3, LONG / 2))
    (resigns,) = step(state, silent(2, LONG))
    assert isinstance(resigns, Resign)


@pytest.mark.parametrize("newcomers", [(), (3,), (4,), (3, 4)])
def test_brokers_that_have_just_registered_are_not_counted_as_silent(newcomers: tuple[int, ...]) -> None:
    """They have answered nothing yet, as after any start of a controller or of several brokers."""
    state = cluster_state(1, 2, 3, 4, now=leadership(2, 2, 1))
    state.newly_registered = state.unresponsive = frozenset(newcomers)
    assert of(Unregister, step(state, silent(2, LONG))) == [Unregister(broker_id=2, broker_epoch=20)]


@pytest.mark.parametrize("newcomers", [(), (2,), (3,), (2, 3)])
@pytest.mark.parametrize(
    ("broker_ids", "share", "resigns"),
    [((1, 2, 3, 4), 0.5, True), ((1, 2, 3, 4), 1.0, True), ((1, 2, 3, 4), 0.4, False), ((1, 2, 3, 4, 5), 1.0, False)],
)
def test_most_others_are_silent_if_each_was_for_half_of_what_it_is_allowed(
    newcomers: tuple[int, ...], broker_ids: tuple[int, ...], share: float, resigns: bool
) -> None:
    """Brokers 2 and 3, that is; a registration that never answered is allowed a second. Two of four are not most."""
    state = cluster_state(*broker_ids, now=leadership(2, 2, 1))
    state.newly_registered = state.unresponsive = frozenset(newcomers)
    allowed = {each: NEVER_ANSWERED_SECONDS if each in newcomers else LONG for each in (2, 3)}
    step(state, silent(3, share * allowed[3]))
    effects = step(state, silent(2, allowed[2]))
    assert (len(of(Resign, effects)), len(of(Unregister, effects))) == ((1, 0) if resigns else (0, 1))


# --------------------------------------------------------------------------------------- leaders that are cut off
def test_leader_that_has_got_no_answer_for_too_long_is_unregistered() -> None:
    state = cluster_state(1, 2, 3, now=leadership(2, 2, 3))
    assert step(state, cut_off(2, LONG - 0.001)) == []
    assert of(Unregister, step(state, cut_off(2, LONG))) == [Unregister(broker_id=2, broker_epoch=20)]


def test_report_of_a_former_registration_unregisters_no_broker() -> None:
    state = cluster_state(1, 2, 3, now=leadership(2, 2, 3))
    assert step(state, cut_off(2, LONG, broker_epoch=19)) == []


def test_leader_that_is_shutting_down_is_not_unregistered_for_its_report() -> None:
    state = cluster_state(1, 2, 3, now=leadership(2, 2, 3), shutting_down=(2,))
    assert step(state, cut_off(2, LONG)) == []
