"""Which decisions a controller reports: one table, situation -> what an operator reads."""

from __future__ import annotations

import copy

import pytest

from minibroker.controller.core.controller_state import ControllerState, Deletion, Topic
from minibroker.controller.core.events import (
    BrokerAnswered,
    BrokerRefused,
    BrokerSilent,
    ControlledShutdownReceived,
    ControllerEvent,
    DeletionBegun,
    DeletionsRequested,
    FailureConfirmed,
    FailureUnconfirmed,
    LeaderCutOff,
    LivenessConnectionLost,
    LogsReceived,
    RegistrationsChanged,
    ReplicasErased,
    Report,
    TopicConfigsChanged,
    TopicErased,
    TopicsChanged,
)
from minibroker.protocol.events import controller_events
from minibroker.protocol.events.controller_events import (
    ControllerElected,
    ControllerResigned,
    LeadershipChanged,
    NodeIgnored,
    PartitionStateReread,
)
from minibroker.protocol.events.event_base import ClusterEvent
from minibroker.protocol.wire.messages import ControlledShutdownRequest, TopicPartitions
from tests.controller.facts import T0, all_effects, broker, cluster_state, leadership, log

TOLD_BY_THE_SHELL = {ControllerElected, ControllerResigned, LeadershipChanged, NodeIgnored, PartitionStateReread}
"""Of what ZooKeeper holds or accepts: no single decision (test_reports.py, test_foreign_znodes.py)."""


def led(*live: int, **others: object) -> ControllerState:
    """Broker 2 leads; broker 1 is the controller."""
    return cluster_state(*live, now=leadership(2, 1, 2, 3), **others)  # type: ignore[arg-type]


def registered(*brokers: int, again: int | None = None) -> RegistrationsChanged:
    """These brokers are registered now, and one of them under another broker epoch."""
    return RegistrationsChanged(brokers={each: broker(each, epoch=99 if each == again else None) for each in brokers})


def shutdown(broker_id: int, offline: list[int] | None = None) -> ControlledShutdownReceived:
    partitions = None if offline is None else [TopicPartitions(topic_name="lines", partitions=offline)]
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=10 * broker_id, offline_partitions=partitions)
    return ControlledShutdownReceived(request_id=1, request=request)


def lost(broker_id: int, at: float = 1.0) -> LivenessConnectionLost:
    return LivenessConnectionLost(broker_id=broker_id, broker_epoch=10 * broker_id, at_seconds=at)


def refused(broker_id: int, attempt: int = 1) -> BrokerRefused:
    return BrokerRefused(broker_id=broker_id, broker_epoch=10 * broker_id, attempt=attempt)


def unconfirmed(broker_id: int, attempt: int = 1) -> FailureUnconfirmed:
    return FailureUnconfirmed(broker_id=broker_id, broker_epoch=10 * broker_id, attempt=attempt)


def confirmed(broker_id: int) -> FailureConfirmed:
    return FailureConfirmed(broker_id=broker_id, broker_epoch=10 * broker_id, confirmer_id=3, address="b:1", took_ms=12)


def restarted(*brokers: int) -> RegistrationsChanged:
    """These brokers are registered, each as another process than the one that was in sync."""
    found = {each: broker(each, epoch=100 + each, incarnation=f"n{each}") for each in brokers}
    return RegistrationsChanged(brokers=found)


def said(broker_id: int, end: int) -> LogsReceived:
    """Its log of the partition ends here."""
    return LogsReceived(broker_id=broker_id, broker_epoch=100 + broker_id, logs={T0: log(end)})


def silent(broker_id: int, seconds: float) -> BrokerSilent:
    return BrokerSilent(broker_id=broker_id, broker_epoch=10 * broker_id, seconds=seconds)


def deleting() -> ControllerState:
    state = led(1, 2, 3)
    state.deletions = {"lines": Deletion(is_started=True)}
    return state


ONE = Topic(topic_id="t2", assignment={0: (1,)})
TWO = Topic(topic_id="t3", assignment={0: (1,), 1: (2,)})
DOUBTS = (
    "lost the liveness connections to brokers [2, 3] within 2 s, most of the cluster: the cause may be this broker's "
    "own network, so no broker is declared dead before its session ends"
)
STANDS_STILL = "and leads 1 partition that others can lead; its registration is removed"

REPORTED: dict[str, tuple[ControllerState, list[ControllerEvent], list[str]]] = {
    "brokers come and go": (
        led(1, 2, 3),
        [registered(1, 4)],
        ["broker 4 registered with epoch 40, incarnation i4", "broker 2 is gone", "broker 3 is gone"],
    ),
    "a broker comes back before it was missed": (
        led(1, 2, 3),
        [registered(1, 2, 3, again=3)],
        ["broker 3 registered again with epoch 99, incarnation i3"],
    ),
    "the same brokers": (led(1, 2, 3), [registered(1, 2, 3)], []),
    "new topics": (
        led(1, 2, 3),
        [TopicsChanged(added={"two": TWO, "one": ONE, "lines": TWO})],
        ["topic one was created with 1 partition", "topic two was created with 2 partitions"],
    ),
    "another setting": (
        led(1, 2, 3),
        [TopicConfigsChanged(topic="lines", configs={"retention.ms": "5"})],
        ["topic lines has the settings {'retention.ms': '5'}"],
    ),
    "the same settings": (led(1, 2, 3), [TopicConfigsChanged(topic="lines", configs={})], []),
    "a deletion while brokers are away": (
        led(2),
        [DeletionsRequested(topics=("lines",))],
        ["deletion of topic lines waits for brokers [1, 3]"],
    ),
    "a deletion from its marker to its end": (
        led(1, 2, 3),
        [DeletionsRequested(topics=("lines",)), DeletionBegun(topic="lines"), TopicErased(topic="lines")],
        ["deleting topic lines", "topic lines is deleted"],
    ),
    "a deletion that begins when its topic is gone": (led(1, 2, 3), [DeletionBegun(topic="lines")], []),
    "replicas that could not be deleted": (
        deleting(),
        [ReplicasErased(broker_id=3, topic="lines", topic_id="t1", erased=(), failed=(0, 1))],
        [f"broker 3 could not delete {each}; it is asked again" for each in ("lines-0", "lines-1")],
    ),
    "a broker stops": (led(1, 2, 3), [shutdown(2)], ["broker 2 is shutting down"]),
    "replicas are offline, and well again": (
        led(1, 2, 3),
        [shutdown(2, [0]), shutdown(2, [])],
        ["broker 2 has 1 offline replica", "broker 2 is well"],
    ),
    "replicas are well as before": (led(1, 2, 3), [shutdown(2, [])], []),
    "no replica may lead": (
        cluster_state(now=leadership(None, 1, 2)),
        [restarted(2), BrokerAnswered(broker_id=2, broker_epoch=102), said(2, 9)],
        [
            "broker 2 registered with epoch 102, incarnation n2",
            "no leader for 1 partition (lines-0): waiting for brokers [1]: broker 1 is not registered",
        ],
    ),
    "one connection of many is lost": (led(1, 2, 3, 4), [lost(2)], []),
    "most connections are lost": (led(1, 2, 3), [lost(2), lost(3), lost(3)], [DOUBTS]),
    "a failure that no other broker is left to confirm": (
        led(1, 2, 3, 4),
        [lost(2), lost(3, at=10.0), lost(4, at=20.0), refused(2), refused(2, attempt=2)],
        ["broker 2 refuses connections, and no other broker can confirm it: waiting for its session"],
    ),
    "a failure that is not confirmed": (
        led(1, 2, 3, 4),
        [lost(2), refused(2), unconfirmed(2), unconfirmed(2, attempt=2)],
        ["broker 2 refuses connections, and no other broker confirms it: asking again"],
    ),
    "a confirmed failure": (
        led(1, 2, 3, 4),
        [lost(2), refused(2), confirmed(2)],
        [
            "broker 2 is dead: its connection was lost, b:1 refuses, broker 3 confirms (12 ms); "
            "its registration is removed"
        ],
    ),
    "a leader that does not answer": (
        led(1, 2, 3, 4),
        [silent(2, 5.5), silent(2, 6.0)],
        [f"broker 2 does not answer for 6 s {STANDS_STILL}"],
    ),
    "a leader that gets no answer": (
        led(1, 2, 3, 4),
        [LeaderCutOff(broker_id=2, broker_epoch=20, seconds=6.5)],
        [f"broker 2 has got no answer from this controller for 6.5 s {STANDS_STILL}"],
    ),
}


def reports_of(state: ControllerState, events: list[ControllerEvent]) -> list[ClusterEvent]:
    """What these events, one after the other, make a controller report."""
    state = copy.deepcopy(state)
    return [effect.event for event in events for effect in all_effects(state, event) if isinstance(effect, Report)]


@pytest.mark.parametrize(("state", "events", "texts"), REPORTED.values(), ids=REPORTED)
def test_a_decision_is_reported_once(state: ControllerState, events: list[ControllerEvent], texts: list[str]) -> None:
    assert [each.text() for each in reports_of(state, events)] == texts


def test_each_kind_of_decision_is_in_the_table() -> None:
    shown = {type(event) for state, events, _ in REPORTED.values() for event in reports_of(state, events)}
    kinds = {
        each
        for each in vars(controller_events).values()
        if isinstance(each, type) and issubclass(each, ClusterEvent) and each.__module__ == controller_events.__name__
    }
    assert shown == kinds - TOLD_BY_THE_SHELL
