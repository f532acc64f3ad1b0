"""What follows from one event: which orders to which brokers, in which sequence."""

from __future__ import annotations

import msgspec
import pytest

from minibroker.controller.core.control_requests import LeaderAndIsr, UpdateMetadata
from minibroker.controller.core.controller_state import ControllerState, Deletion, Leadership, Topic
from minibroker.controller.core.election import PartitionChange, elect
from minibroker.controller.core.events import (
    AnswersDue,
    AskLogs,
    CloseChannel,
    ControllerEffect,
    ControllerEvent,
    LeadershipsWritten,
    LogsReceived,
    OpenChannel,
    RegistrationsChanged,
    ReplicasFailed,
    Report,
    Send,
    TookOver,
    TopicErased,
    TopicsChanged,
    WriteLeaderships,
)
from minibroker.controller.core.steps import step
from minibroker.protocol.events.controller_events import TopicDeleted
from minibroker.protocol.ids import TopicPartition
from tests.controller.facts import T0, broker, cluster_state, leadership, log


def sends(effects: list[ControllerEffect]) -> list[tuple[int, str]]:
    """(broker, kind) in order; 'brokers' is UpdateMetadata that only names the live brokers."""
    return [
        (each.broker_id, type(each.orders[0]).__name__ if each.orders else "brokers")
        for each in effects
        if isinstance(each, Send)
    ]


def kinds(effects: list[ControllerEffect]) -> list[str]:
    return [type(each).__name__ for each in effects]


def write_of(effects: list[ControllerEffect]) -> WriteLeaderships:
    [write] = [each for each in effects if isinstance(each, WriteLeaderships)]
    return write


def written(state: ControllerState) -> LeadershipsWritten:
    """The event after a successful write of the election of T0."""
    change = elect(state, T0, "test")
    assert change is not None
    after = msgspec.structs.replace(change.after, partition_epoch=change.after.partition_epoch + 1)
    return LeadershipsWritten(written=(msgspec.structs.replace(change, after=after),))


def test_no_broker_gets_an_election_before_it_is_written() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    effects = step(state, RegistrationsChanged(brokers={2: broker(2), 3: broker(3)}))
    assert sends(effects) == [(2, "brokers"), (3, "brokers")]
    assert state.leaderships[T0].leader == 1
    assert kinds(effects)[0] == CloseChannel.__name__
    assert write_of(effects).changes[0].after.leader == 2


def test_after_the_write_replicas_get_leader_and_isr_then_all_get_metadata() -> None:
    state = cluster_state(2, 3, 4, now=leadership(1, 1, 2, 3))
    effects = step(state, written(state))
    assert sends(effects) == [
        (2, "LeaderAndIsr"),
        (3, "LeaderAndIsr"),
        (2, "UpdateMetadata"),
        (3, "UpdateMetadata"),
        (4, "UpdateMetadata"),
    ]
    assert state.leaderships[T0].leader == 2


@pytest.mark.invariant("I38")
def test_a_state_found_instead_is_adopted_and_sent_without_another_write() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3, epoch=5, version=7))
    found = leadership(2, 2, 3, epoch=6, version=8)
    effects = step(state, LeadershipsWritten(lost={T0: found}))
    assert state.leaderships[T0] == found
    sent_epochs = [
        each.content.leader_epoch
        for effect in effects
        if isinstance(effect, Send)
        for each in effect.orders
        if isinstance(each, LeaderAndIsr)
    ]
    assert sent_epochs == [6, 6, 6]
    assert not [each for each in effects if isinstance(each, WriteLeaderships)]


def test_a_state_that_vanished_is_created_again() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    effects = step(state, LeadershipsWritten(lost={T0: None}))
    assert write_of(effects).changes[0].before is None


@pytest.mark.invariant("I27")
@pytest.mark.parametrize(
    ("after", "message"),
    [
        (leadership(2, 2, 3, epoch=6, version=7), "partition epoch fell"),
        (leadership(2, 2, 3, epoch=6, version=6), "partition epoch fell"),
        (leadership(1, 1, 2, 3, epoch=4, version=8), "leader epoch fell"),
        (leadership(2, 2, 3, epoch=5, version=8), "a new leader needs a new epoch"),
    ],
    ids=["same-version", "lower-version", "lower-epoch", "another-leader"],
)
def test_a_version_or_an_epoch_that_falls_fails_an_assertion(after: Leadership, message: str) -> None:
    now = leadership(1, 1, 2, 3, epoch=5, version=7)
    change = PartitionChange(partition=T0, before=now, after=after, reason="test")
    with pytest.raises(AssertionError, match=message):
        step(cluster_state(2, 3, now=now), LeadershipsWritten(written=(change,)))


def test_taking_over_opens_channels_then_sends_metadata_then_leaders() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    effects = step(state, TookOver())
    assert kinds(effects)[:2] == [OpenChannel.__name__] * 2
    assert sends(effects) == [(1, "UpdateMetadata"), (2, "UpdateMetadata")]
    assert sends(step(state, AnswersDue())) == [(1, "LeaderAndIsr"), (2, "LeaderAndIsr")]


def test_taking_over_without_topics_still_names_the_live_brokers() -> None:
    state = cluster_state(1, 2)
    state.topics = {}
    assert sends(step(state, TookOver())) == [(1, "brokers"), (2, "brokers")]


def test_an_unchanged_list_of_brokers_has_no_effects() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    assert step(state, RegistrationsChanged(brokers=dict(state.brokers))) == []


@pytest.mark.invariant("I29")
def test_a_bounced_broker_gets_a_new_channel_before_anything_is_sent_to_it() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    effects = step(state, RegistrationsChanged(brokers={1: broker(1), 2: broker(2, epoch=99)}))
    assert kinds(effects)[:2] == [CloseChannel.__name__, OpenChannel.__name__]
    assert sends(effects) == [
        (1, "brokers"),
        (2, "UpdateMetadata"),
        (2, "LeaderAndIsr"),
        (1, "UpdateMetadata"),
        (2, "UpdateMetadata"),
    ]


def test_a_new_broker_gets_every_partition_and_the_old_ones_get_the_broker() -> None:
    state = cluster_state(1, 2, now=leadership(1, 1, 2))
    effects = step(state, RegistrationsChanged(brokers={**state.brokers, 9: broker(9)}))
    assert sends(effects) == [(1, "brokers"), (2, "brokers"), (9, "UpdateMetadata")]
    metadata = [each for each in effects if isinstance(each, Send) and each.broker_id == 9]
    assert isinstance(metadata[0].orders[0], UpdateMetadata)


OTHER = TopicPartition("others", 0)
EVERYTHING = frozenset([T0])


def knowing_all_of_registrations(*broker_ids: int) -> ControllerState:
    """Everything that a controller may note of a registration is noted of these, and of broker 1 nothing."""
    state = cluster_state(1, 2, 3, now=leadership(1, 1))
    state.shutting_down = state.unresponsive = state.newly_registered = frozenset(broker_ids)
    state.offline_replicas = dict.fromkeys(broker_ids, EVERYTHING)
    state.asked_logs = dict.fromkeys(broker_ids, EVERYTHING)
    state.lost_connections = dict.fromkeys(broker_ids, 1.0)
    state.silent_seconds = dict.fromkeys(broker_ids, 5.0)
    state.logs = {each: {T0: log(9)} for each in broker_ids}
    return state


@pytest.mark.parametrize("is_back", [True, False])
def test_nothing_is_remembered_of_a_registration_that_is_over(is_back: bool) -> None:
    """What is left of it would count for the next one of this broker."""
    state = knowing_all_of_registrations(2, 3)
    now = {each: known for each, known in state.brokers.items() if each != 3}
    if is_back:
        now[3] = broker(3, epoch=99)
    step(state, RegistrationsChanged(brokers=now))
    expected = knowing_all_of_registrations(2)
    expected.brokers = now
    if is_back:
        expected.unresponsive = expected.newly_registered = frozenset([2, 3])
    assert state == expected


@pytest.mark.parametrize(
    "found",
    [TopicsChanged(unreadable=EVERYTHING), LeadershipsWritten(lost={T0: None}, unreadable=EVERYTHING)],
    ids=["read", "found by a write"],
)
def test_a_state_that_cannot_be_read_is_left_alone_from_then_on(found: ControllerEvent) -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    state.unreadable = frozenset([OTHER])
    assert step(state, found) is not None
    assert state.unreadable == {T0, OTHER}
    effects = step(state, RegistrationsChanged(brokers={2: broker(2), 3: broker(3)}))
    assert not [each for each in effects if isinstance(each, WriteLeaderships)]


def test_a_log_is_asked_for_once_until_it_is_said_and_again_when_the_replica_was_offline() -> None:
    state = cluster_state(1, now=leadership(None, 2, 3))

    def asks(event: ControllerEvent) -> list[int]:
        return [each.broker.broker_id for each in step(state, event) if isinstance(each, AskLogs)]

    here = {1: broker(1), 3: broker(3, incarnation="next")}
    assert asks(RegistrationsChanged(brokers=here)) == [1, 3]
    assert asks(RegistrationsChanged(brokers={**here, 2: broker(2, incarnation="next")})) == [2]
    assert asks(LogsReceived(broker_id=3, broker_epoch=30, logs={T0: log(9)})) == []
    assert asks(ReplicasFailed(broker_id=3, broker_epoch=30, partitions=(T0,))) == [3]
    assert state.logs[3] == {}, "what it said before may be true no more"


def test_steps_are_repeatable() -> None:
    """The same events give the same effects, whatever the order in which facts were learnt."""
    forward = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    backward = cluster_state(3, 2, 1, now=leadership(1, 1, 2, 3))
    event = RegistrationsChanged(brokers={3: broker(3), 2: broker(2)})
    other = RegistrationsChanged(brokers={2: broker(2), 3: broker(3)})
    assert repr(step(forward, event)) == repr(step(backward, other))


def failed_on_broker_3(state: ControllerState) -> list[tuple[int, tuple[int, ...], int | None]]:
    """Leader epoch, ISR and leader of each change after the replica of broker 3 failed."""
    effects = step(state, ReplicasFailed(broker_id=3, broker_epoch=30, partitions=(T0,)))
    changes = [change for effect in effects if isinstance(effect, WriteLeaderships) for change in effect.changes]
    return [(each.after.leader_epoch, each.after.in_sync_replicas, each.after.leader) for each in changes]


def test_a_replica_that_fails_outside_the_isr_begins_a_new_epoch_once() -> None:
    """Its leader must not count the position that it reported before, nor propose it any more."""
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, epoch=5))
    assert failed_on_broker_3(state) == [(6, (1, 2), 1)]
    assert failed_on_broker_3(state) == []


def test_a_replica_that_fails_in_the_isr_leaves_it() -> None:
    assert failed_on_broker_3(cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3, epoch=5))) == [(6, (1, 2), 1)]


def test_a_replica_that_fails_while_there_is_no_leader_changes_nothing() -> None:
    assert failed_on_broker_3(cluster_state(2, 3, now=leadership(None, 1, epoch=5))) == []


# ------------------------------------------------------------------------------------------------- topics come and go


@pytest.mark.invariant("I27")
def test_a_topic_that_is_found_with_its_leaders_keeps_them() -> None:
    """An election as of a new topic would begin with epoch 0, and only ZooKeeper would refuse it."""
    state, found = cluster_state(1, 2, 3), leadership(2, 2, 3)
    added, state.topics = state.topics, {}
    effects = step(state, TopicsChanged(added=added, leaderships={T0: found}))
    assert not [each for each in effects if isinstance(each, WriteLeaderships)]
    assert state.leaderships == {T0: found}
    assert [each for each in sends(effects) if each[1] == "LeaderAndIsr"] == [
        (each, "LeaderAndIsr") for each in (1, 2, 3)
    ]


@pytest.mark.invariant("I27")
def test_what_was_read_of_a_known_topic_does_not_replace_what_is_known() -> None:
    now = leadership(1, 1, 2, 3, epoch=6, version=9)
    state = cluster_state(1, 2, 3, now=now)
    earlier = TopicsChanged(added=dict(state.topics), leaderships={T0: leadership(2, 2, 3, epoch=5, version=7)})
    assert step(state, earlier) == []
    assert state.leaderships == {T0: now}


def knowing_all_of(*partitions: TopicPartition) -> ControllerState:
    """Each of these is the only partition of its topic, and everything that a controller may note of one is noted."""
    state = cluster_state(1, 2, 3)
    state.topics = {each.topic: Topic(topic_id="t1", assignment={0: (1, 2, 3)}) for each in partitions}
    state.leaderships = {each: leadership(1, 1, 2, 3) for each in partitions}
    state.deletions = {each.topic: Deletion(is_started=True, is_recorded=True, is_erased=True) for each in partitions}
    state.logs = {3: {each: log(9) for each in partitions}}
    state.offline_replicas, state.asked_logs = {2: frozenset(partitions)}, {3: frozenset(partitions)}
    state.unreadable = frozenset(partitions)
    return state


@pytest.mark.parametrize(
    ("gone", "effects"),
    [
        (TopicErased(topic="lines"), [Report(event=TopicDeleted(topic="lines"))]),
        (TopicsChanged(removed=("lines",)), []),
    ],
    ids=["deleted", "removed by another tool"],
)
def test_nothing_is_remembered_of_a_topic_that_is_gone(gone: ControllerEvent, effects: list[ControllerEffect]) -> None:
    """What is left of it would be elected and sent, and would belong to the next topic of its name."""
    state = knowing_all_of(T0, OTHER)
    assert step(state, gone) == effects
    assert state == knowing_all_of(OTHER)


def test_a_marker_without_a_topic_is_erased_without_touching_others() -> None:
    state = cluster_state(1, 2, 3, now=leadership(1, 1, 2, 3))
    assert step(state, TopicErased(topic="nothing")) == [Report(event=TopicDeleted(topic="nothing"))]
    assert set(state.topics) == {"lines"}
    assert set(state.leaderships) == {T0}
