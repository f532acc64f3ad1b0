"""What follows from one event: which orders to which brokers, in which sequence."""

from __future__ import annotations

import msgspec
import pytest

from minibroker.controller.core.control_requests import LeaderAndIsr, UpdateMetadata
from minibroker.controller.core.controller_state import ControllerState
from minibroker.controller.core.election import elect
from minibroker.controller.core.events import (
    AnswersDue,
    CloseChannel,
    ControllerEffect,
    LeadershipsWritten,
    OpenChannel,
    RegistrationsChanged,
    ReplicasFailed,
    Send,
    TookOver,
    WriteLeaderships,
)
from minibroker.controller.core.steps import step
from tests.controller.facts import T0, broker, cluster_state, leadership


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
def test_a_version_that_falls_fails_an_assertion() -> None:
    state = cluster_state(2, 3, now=leadership(1, 1, 2, 3))
    change = elect(state, T0, "test")
    assert change is not None
    with pytest.raises(AssertionError, match="partition epoch fell"):
        step(state, LeadershipsWritten(written=(change,)))


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
