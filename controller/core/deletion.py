"""Deleting a topic without leaving parts of it behind (replication rules, section 7; KIP-570). Pure.

Owns: when a deletion may begin, which replicas are still to be deleted, and when the topic's znodes may be removed.
Leaves to others: how a broker deletes a log.

Theory. A marker in ZooKeeper is the request; it outlives controllers. The deletion begins only while the broker of
every replica lives: a replica whose broker is away would come back with the old log. A replica in a full directory
deletes like any other, for that is what its disk needs; one in a failed directory gets the order again when its broker
returns, and one that an entry keeps from being deleted when its broker reports that its replicas may be used again. The
beginning is written to the marker before any broker gets an order: a later controller that took the topic for one that
still waits would create its replicas again, empty, and elect among them. From then on no leader is elected; brokers
forget the partitions (leader -2), then delete their logs (StopReplica with leader epoch -2, which passes every epoch
check). A replica counts as erased when its broker has confirmed it. Orders lost with a broker's connection are repeated
when the broker returns: deleting a missing log succeeds. A later topic of the same name has another id, and the late
answer to an order that was sent twice says nothing about it.
"""

import msgspec

from minibroker.controller.core.control_requests import PartitionOrder, stop_replica
from minibroker.controller.core.controller_state import ControllerState, Deletion
from minibroker.controller.core.effects import send_metadata, send_to_broker
from minibroker.controller.core.events import (
    BeginDeletion,
    ControllerEffect,
    DeletionBegun,
    DeletionsRequested,
    EraseTopic,
    ReplicasErased,
    Report,
    TopicErased,
)
from minibroker.protocol.events.controller_events import (
    ReplicaDeletionFailed,
    TopicDeleted,
    TopicDeletionBegun,
    TopicDeletionWaits,
)
from minibroker.protocol.ids import BrokerId


def on_deletions_requested(state: ControllerState, event: DeletionsRequested) -> list[ControllerEffect]:
    """Begin deletions for new markers. Remove markers of missing topics, as if their deletion had just ended."""
    effects: list[ControllerEffect] = []
    for topic in event.topics:
        if topic in state.deletions:
            continue
        if topic in state.topics:
            state.deletions[topic] = Deletion()
            effects += _advance(state, topic)
        else:
            effects.append(EraseTopic(topic=topic, partitions=()))
    return effects


def resume(state: ControllerState) -> list[ControllerEffect]:
    """Continue all deletions: a broker or a replica came or went, or this controller has just taken over."""
    return [effect for topic in sorted(state.deletions) for effect in _advance(state, topic)]


def on_replicas_erased(state: ControllerState, event: ReplicasErased) -> list[ControllerEffect]:
    """Only answers about this topic count: an earlier one of its name had another id."""
    topic, broker_id = event.topic, event.broker_id
    if not state.is_being_deleted(topic) or state.topics[topic].topic_id != event.topic_id:
        return []
    reports: list[ControllerEffect] = [
        Report(event=ReplicaDeletionFailed(topic=topic, partition=each, broker=broker_id)) for each in event.failed
    ]
    deletion = state.deletions[topic]
    answered = {(each, broker_id) for each in event.erased}
    state.deletions[topic] = msgspec.structs.replace(deletion, erased=deletion.erased | answered)
    return [*reports, *_finish(state, topic)]


def on_topic_erased(state: ControllerState, event: TopicErased) -> list[ControllerEffect]:
    state.forget_topic(event.topic)
    return [Report(event=TopicDeleted(topic=event.topic))]


def missing_brokers(state: ControllerState, topic: str) -> list[BrokerId]:
    """Brokers that the deletion of this topic waits for."""
    deletion = state.deletions.get(topic, Deletion())
    return sorted(
        {
            broker_id
            for partition in state.partitions_of(topic)
            for broker_id in state.assignment(partition)
            if (partition.partition, broker_id) not in deletion.erased and not state.is_live(broker_id)
        }
    )


def deletion_texts(state: ControllerState) -> dict[str, str]:
    """Each topic that is marked for deletion and still there, with a sentence about that."""
    return {topic: deletion_text(state, topic) for topic in sorted(state.deletions) if topic in state.topics}


def deletion_text(state: ControllerState, topic: str) -> str:
    return f"topic {topic} is marked for deletion{waiting_for(state, topic)}"


def waiting_for(state: ControllerState, topic: str) -> str:
    """What the deletion of this topic waits for, in words, with the cure; empty if it ends by itself."""
    if topic not in state.topics:
        return ""
    missing = missing_brokers(state, topic)
    if len(missing) == 1:
        return f", which waits for broker {missing[0]}: it goes on by itself once broker {missing[0]} runs again"
    if missing:
        return f", which waits for brokers {missing}: it goes on by itself once they run again"
    erased = state.deletions.get(topic, Deletion()).erased
    unconfirmed = sorted(
        {
            broker_id
            for partition in state.partitions_of(topic)
            for broker_id in state.assignment(partition)
            if (partition.partition, broker_id) not in erased
        }
    )
    return f", and brokers {unconfirmed} have not deleted it yet: their logs say why" if unconfirmed else ""


def _advance(state: ControllerState, topic: str) -> list[ControllerEffect]:
    """Begin if every replica's broker lives, else report the missing ones; repeat unanswered orders."""
    deletion = state.deletions[topic]
    if deletion.is_erased:
        return []
    if not deletion.is_started:
        missing = missing_brokers(state, topic)
        if missing:
            return [Report(event=TopicDeletionWaits(topic=topic, brokers=missing))]
        state.deletions[topic] = msgspec.structs.replace(deletion, is_started=True)
        return [BeginDeletion(topic=topic)]
    if not deletion.is_recorded:
        return []
    return [*_stop(state, topic), *_finish(state, topic)]


def on_deletion_begun(state: ControllerState, event: DeletionBegun) -> list[ControllerEffect]:
    """From now on brokers get orders."""
    topic = event.topic
    deletion = state.deletions.get(topic)
    if deletion is None or topic not in state.topics:
        return []
    state.deletions[topic] = msgspec.structs.replace(deletion, is_recorded=True)
    effects: list[ControllerEffect] = [Report(event=TopicDeletionBegun(topic=topic))]
    effects += send_metadata(state, state.partitions_of(topic))  # the leader -2: forget it
    return [*effects, *_stop(state, topic), *_finish(state, topic)]


def _stop(state: ControllerState, topic: str) -> list[ControllerEffect]:
    """Send every live broker the deletions that it has not confirmed yet. Sending twice does no harm."""
    by_broker: dict[BrokerId, list[PartitionOrder]] = {}
    erased = state.deletions[topic].erased
    for order in stop_replica(state, state.partitions_of(topic), delete=True):
        for broker_id in state.assignment(order.partition):
            if (order.partition.partition, broker_id) not in erased and state.is_live(broker_id):
                by_broker.setdefault(broker_id, []).append(order)
    return [effect for each in sorted(by_broker) for effect in send_to_broker(state, each, by_broker[each])]


def _finish(state: ControllerState, topic: str) -> list[ControllerEffect]:
    deletion = state.deletions[topic]
    assignment = state.topics[topic].assignment
    wanted = {(number, broker_id) for number, replicas in assignment.items() for broker_id in replicas}
    if deletion.is_erased or not wanted <= deletion.erased:
        return []
    state.deletions[topic] = msgspec.structs.replace(deletion, is_erased=True)
    return [EraseTopic(topic=topic, partitions=tuple(sorted(assignment)))]
