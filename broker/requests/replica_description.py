"""Answers DescribeReplicaState: the current state of this broker's replicas.

Owns: mapping replica states to the message that `minibroker replicas`, `minibroker top` and the tests read. Changes
nothing."""

from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.membership.registration import Registration
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replication.high_watermark import NEVER_MS
from minibroker.broker.replication.state import RemoteReplica, ReplicaState, Role
from minibroker.protocol.ids import to_wire
from minibroker.protocol.wire.message_types import clipped
from minibroker.protocol.wire.messages import (
    DescribedEpoch,
    DescribedReplicaTopic,
    DescribeReplicaStateRequest,
    DescribeReplicaStateResponse,
    RemoteReplicaState,
    ReplicaStateDescription,
)

EPOCHS_MAX = 10_000
"""Limit for the epochs of a history in an answer, the newest ones."""


def describe_replicas(
    manager: ReplicaManager, registration: Registration, image: MetadataImage, body: DescribeReplicaStateRequest
) -> DescribeReplicaStateResponse:
    """All local replicas, or those of the named topics."""
    topics: dict[str, list[ReplicaStateDescription]] = {}
    named = None if body.topics is None else set(body.topics)
    for topic_partition in sorted(manager.partitions):
        if named is None or topic_partition.topic in named:
            described = _describe(manager, manager.partitions[topic_partition])
            topics.setdefault(topic_partition.topic, []).append(described)
    health = manager.log_directory.health
    return DescribeReplicaStateResponse(
        broker_id=manager.config.broker_id,
        broker_epoch=to_wire(registration.broker_epoch),
        incarnation_id=registration.incarnation_id,
        fenced=manager.fenced or registration.is_fenced(),
        controller_id=to_wire(image.controller_id),
        controller_epoch=image.controller_epoch,
        topics=[DescribedReplicaTopic(topic=name, partitions=found) for name, found in topics.items()],
        log_directory="offline" if health.offline else "full" if health.full else "online",
        log_directory_reason=None if health.reason is None else clipped(health.reason),
    )


def _describe(manager: ReplicaManager, partition: Partition) -> ReplicaStateDescription:
    state, now_ms = partition.state, manager.now_ms()
    return ReplicaStateDescription(
        partition=partition.topic_partition.partition,
        role=state.role.value,
        leader_id=to_wire(state.leader_id),
        leader_epoch=to_wire(state.leader_epoch),
        partition_epoch=state.partition_epoch,
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        synced_end_offset=max(state.synced_end_offset, min(partition.log.recovery_point, state.log_end_offset)),
        high_watermark=state.high_watermark,
        leader_epoch_start=to_wire(state.leader_epoch_start),
        epoch_history=[DescribedEpoch(epoch=e, start_offset=s) for e, s in state.epoch_history.entries[-EPOCHS_MAX:]],
        assignment=list(state.assignment),
        in_sync_replicas=list(state.in_sync_replicas),
        maximal_in_sync_replicas=list(state.maximal_in_sync_replicas),
        isr_state="committed" if state.pending_isr is None else state.pending_isr.kind.value,
        min_insync_replicas=state.effective_min_insync_replicas,
        remotes=[_describe_remote(state, b, remote, now_ms) for b, remote in sorted(state.remotes.items())],
        size_bytes=partition.log.size_bytes,
        segment_count=partition.log.segment_count,
        waiting_produce_requests=len(state.waiters),
        why_offline=_why_offline(manager, partition) if state.role is Role.OFFLINE else None,
        damage=None if state.damage is None else clipped(state.damage),
    )


def _why_offline(manager: ReplicaManager, partition: Partition) -> str:
    return clipped(partition.state.damage or manager.log_directory.health.reason or "it found no file descriptor")


def _describe_remote(state: ReplicaState, broker_id: int, remote: RemoteReplica, now_ms: int) -> RemoteReplicaState:
    end = remote.log_end_offset
    return RemoteReplicaState(
        replica_id=broker_id,
        broker_epoch=to_wire(remote.broker_epoch),
        log_end_offset=to_wire(end),
        lag=-1 if end is None else max(0, state.log_end_offset - end),
        last_caught_up_ago_ms=-1 if remote.last_caught_up_ms == NEVER_MS else max(0, now_ms - remote.last_caught_up_ms),
    )
