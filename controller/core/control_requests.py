"""Control requests, the controller's orders to brokers: LeaderAndIsr, UpdateMetadata, StopReplica. Pure.

Owns: the contents of the three requests, taken from the facts at the moment of the decision, and their division into
requests of bounded size. Leaves to others: queues and connections (`send_queue`, `broker_channel`).

A `PartitionOrder` is one partition's part of a control request, which carries many. Orders are made once and shared by
all brokers that get them; the broker epoch, which differs, is added when a request is built.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from minibroker.controller.core.controller_state import ControllerState, Topic
from minibroker.protocol.ids import BrokerEpoch, BrokerId, ControllerEpoch, TopicPartition, to_wire
from minibroker.protocol.wire.messages import (
    LEADER_DURING_DELETE,
    LEADER_EPOCH_DURING_DELETE,
    BrokerEndpoint,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrTopic,
    LiveBroker,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaTopic,
    UpdateMetadataPartition,
    UpdateMetadataRequest,
    UpdateMetadataTopic,
)

REQUEST_BYTES_MAX = 512 * 1024
"""A control request may have 1 MiB; a full LeaderAndIsr passes that near 6,000 partitions (hardening rule 14)."""
REQUEST_PARTITIONS_MAX = 500
"""A broker serves no other request while it executes one. One existing partition takes about 0.1 ms."""
REQUEST_LOGS_MAX = 20
"""Logs that one request creates or deletes at most: each takes the broker 0.5 ms, and 10 ms while its disk is busy
syncing others. 5,000 at once made brokers stand still for two seconds, and lose their sessions."""


class LeaderAndIsr(msgspec.Struct, frozen=True):
    """Order to lead or follow this partition."""

    partition: TopicPartition
    topic: Topic
    content: LeaderAndIsrPartition


class UpdateMetadata(msgspec.Struct, frozen=True):
    """Metadata of a partition, for every broker."""

    partition: TopicPartition
    topic: Topic
    content: UpdateMetadataPartition


class StopReplica(msgspec.Struct, frozen=True):
    """Order to stop this replica, or to stop and delete it."""

    partition: TopicPartition
    topic: Topic
    content: StopReplicaPartition


PartitionOrder: TypeAlias = LeaderAndIsr | UpdateMetadata | StopReplica
ControlRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest


class ControllerIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The controller that sends a request."""

    controller_id: BrokerId
    controller_epoch: ControllerEpoch


# ------------------------------------------------------------------------------------------------------ contents
def live_brokers(state: ControllerState) -> tuple[LiveBroker, ...]:
    return tuple(
        LiveBroker(
            id=broker.broker_id,
            broker_epoch=broker.broker_epoch,
            shutting_down=broker.broker_id in state.shutting_down,
            endpoints=[BrokerEndpoint(listener=name, host=host, port=port) for name, host, port in broker.listeners],
        )
        for broker in state.live_brokers()
    )


def leader_and_isr(
    state: ControllerState, partitions: Iterable[TopicPartition], new: frozenset[TopicPartition] = frozenset()
) -> list[LeaderAndIsr]:
    """For those of these partitions that have a state and are not being deleted."""
    found = []
    for partition in partitions:
        leadership = state.leaderships.get(partition)
        if leadership is None or not state.assignment(partition) or state.is_being_deleted(partition.topic):
            continue
        content = LeaderAndIsrPartition(
            partition_index=partition.partition,
            controller_epoch=leadership.controller_epoch,
            leader=to_wire(leadership.leader),
            leader_epoch=leadership.leader_epoch,
            isr=list(leadership.in_sync_replicas),
            partition_epoch=leadership.partition_epoch,
            replicas=list(state.assignment(partition)),
            is_new=partition in new,
            leader_recovery_state=int(leadership.is_recovering),
        )
        found.append(LeaderAndIsr(partition, state.topics[partition.topic], content))
    return found


def update_metadata(state: ControllerState, partitions: Iterable[TopicPartition]) -> list[UpdateMetadata]:
    """For those of these partitions that have a state. One that is being deleted has the leader -2, also without a
    state: brokers must forget it. Not before ZooKeeper knows it: they learn nothing of this topic any more."""
    found = []
    for partition in partitions:
        leadership, replicas = state.leaderships.get(partition), state.assignment(partition)
        deletion = state.deletions.get(partition.topic)
        is_being_deleted = deletion is not None and deletion.is_recorded
        if not replicas or (leadership is None and not is_being_deleted):
            continue
        content = UpdateMetadataPartition(
            partition_index=partition.partition,
            controller_epoch=state.controller_epoch if leadership is None else leadership.controller_epoch,
            leader=LEADER_DURING_DELETE if leadership is None or is_being_deleted else to_wire(leadership.leader),
            leader_epoch=0 if leadership is None else leadership.leader_epoch,
            isr=[] if leadership is None else list(leadership.in_sync_replicas),
            partition_epoch=0 if leadership is None else leadership.partition_epoch,
            replicas=list(replicas),
            offline_replicas=state.offline_replicas_of(partition),
        )
        found.append(UpdateMetadata(partition, state.topics[partition.topic], content))
    return found


def stop_replica(state: ControllerState, partitions: Iterable[TopicPartition], delete: bool) -> list[StopReplica]:
    """A deletion carries an epoch above all others; a mere stop carries the present one (KIP-570)."""
    found = []
    for partition in partitions:
        leadership = state.leaderships.get(partition)
        if delete:
            epoch = LEADER_EPOCH_DURING_DELETE
        elif leadership is not None:
            epoch = leadership.leader_epoch
        else:
            continue
        content = StopReplicaPartition(partition_index=partition.partition, leader_epoch=epoch, delete_partition=delete)
        found.append(StopReplica(partition, state.topics[partition.topic], content))
    return found


# ------------------------------------------------------------------------------------------------------ requests
def to_requests(
    sender: ControllerIdentity,
    broker_epoch: BrokerEpoch,
    brokers: Sequence[LiveBroker],
    orders: Sequence[PartitionOrder],
) -> list[ControlRequest]:
    """Requests in the sequence of the orders, which are of one kind. No orders: only the live brokers."""
    fixed_bytes = len(msgspec.msgpack.encode(list(brokers))) + 200
    if not orders:
        return [_update_metadata_request(sender, broker_epoch, brokers, [])]
    requests: list[ControlRequest] = []
    for part in _parts(orders, REQUEST_BYTES_MAX - fixed_bytes):
        first = part[0]
        if isinstance(first, LeaderAndIsr):
            requests.append(_leader_and_isr_request(sender, broker_epoch, brokers, part))
        elif isinstance(first, UpdateMetadata):
            requests.append(_update_metadata_request(sender, broker_epoch, brokers, part))
        else:
            requests.append(_stop_replica_request(sender, broker_epoch, part))
    return requests


def _parts(orders: Sequence[PartitionOrder], bytes_max: int) -> list[list[PartitionOrder]]:
    """Divide by encoded size and by work; a single order is never too large (names and sets are bounded)."""
    parts: list[list[PartitionOrder]] = [[]]
    size = logs = 0
    topic: tuple[str, str] | None = None
    for each in orders:
        header = (each.partition.topic, each.topic.topic_id)
        content_bytes = len(msgspec.msgpack.encode(each.content))
        header_bytes = len(msgspec.msgpack.encode((*header, each.topic.configs))) + 80
        cost = content_bytes + (header_bytes if header != topic else 0)
        is_full = len(parts[-1]) >= REQUEST_PARTITIONS_MAX or logs >= REQUEST_LOGS_MAX
        if parts[-1] and (size + cost > bytes_max or is_full):
            parts.append([])
            size, cost, logs = 0, content_bytes + header_bytes, 0
        parts[-1].append(each)
        size, topic, logs = size + cost, header, logs + changes_a_log(each)
    return parts


def changes_a_log(order: PartitionOrder) -> bool:
    """Whether the broker has to create or delete a log."""
    if isinstance(order, LeaderAndIsr):
        return order.content.is_new
    return isinstance(order, StopReplica) and order.content.delete_partition


def _by_topic(orders: Sequence[PartitionOrder]) -> dict[tuple[str, str], list[PartitionOrder]]:
    """Grouped by topic name and id, in order of first appearance; the topic's settings are those of the last one."""
    groups: dict[tuple[str, str], list[PartitionOrder]] = {}
    for each in orders:
        groups.setdefault((each.partition.topic, each.topic.topic_id), []).append(each)
    return groups


def _leader_and_isr_request(
    sender: ControllerIdentity,
    broker_epoch: BrokerEpoch,
    brokers: Sequence[LiveBroker],
    part: Sequence[PartitionOrder],
) -> LeaderAndIsrRequest:
    return LeaderAndIsrRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        live_brokers=list(brokers),
        topic_states=[
            LeaderAndIsrTopic(
                topic_name=name,
                topic_id=topic_id,
                configs=group[-1].topic.configs,
                partition_count=len(group[-1].topic.assignment),
                partition_states=[each.content for each in group if isinstance(each, LeaderAndIsr)],
            )
            for (name, topic_id), group in _by_topic(part).items()
        ],
    )


def _update_metadata_request(
    sender: ControllerIdentity,
    broker_epoch: BrokerEpoch,
    brokers: Sequence[LiveBroker],
    part: Sequence[PartitionOrder],
) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        live_brokers=list(brokers),
        topic_states=[
            UpdateMetadataTopic(
                topic_name=name,
                topic_id=topic_id,
                configs=group[-1].topic.configs,
                partition_count=len(group[-1].topic.assignment),
                partition_states=[each.content for each in group if isinstance(each, UpdateMetadata)],
            )
            for (name, topic_id), group in _by_topic(part).items()
        ],
    )


def _stop_replica_request(
    sender: ControllerIdentity, broker_epoch: BrokerEpoch, part: Sequence[PartitionOrder]
) -> StopReplicaRequest:
    return StopReplicaRequest(
        controller_id=sender.controller_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=broker_epoch,
        topic_states=[
            StopReplicaTopic(
                topic_name=name,
                topic_id=topic_id,
                partition_states=[each.content for each in group if isinstance(each, StopReplica)],
            )
            for (name, topic_id), group in _by_topic(part).items()
        ],
    )
