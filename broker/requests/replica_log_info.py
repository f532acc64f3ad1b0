"""Answers GetReplicaLogInfo: the state of this broker's log files, for a controller that has to choose among brokers
that were all restarted (hardening rule 16; KIP-966).

Owns: mapping logs to the message. Changes nothing, and decides nothing.
"""

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.membership.registration import Registration
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.protocol.ids import NONE, TopicPartition, to_wire
from minibroker.protocol.wire.message_types import clipped
from minibroker.protocol.wire.messages import (
    GetReplicaLogInfoRequest,
    GetReplicaLogInfoResponse,
    ReplicaLogInfo,
    ReplicaLogInfoTopic,
)


def answer_log_info(
    manager: ReplicaManager, registration: Registration, body: GetReplicaLogInfoRequest
) -> GetReplicaLogInfoResponse:
    """Describe the named partitions."""
    return GetReplicaLogInfoResponse(
        broker_epoch=to_wire(registration.broker_epoch),
        whole_since=list(manager.log_directory.wholeness.proven),
        undisturbed_since=list(manager.log_directory.wholeness.incarnations),
        topics=[
            ReplicaLogInfoTopic(
                topic_name=topic.topic_name,
                partitions=[_info(manager, TopicPartition(topic.topic_name, number)) for number in topic.partitions],
            )
            for topic in body.topics
        ],
    )


def _info(manager: ReplicaManager, topic_partition: TopicPartition) -> ReplicaLogInfo:
    directory, number = manager.log_directory, topic_partition.partition
    if directory.offline:
        reason = f"its log directory is offline: {directory.offline_reason}"
        return ReplicaLogInfo(partition=number, exists=True, unavailable=clipped(reason))
    partition = manager.partitions.get(topic_partition)
    if partition is None:
        is_missing = topic_partition in directory.wholeness.missing
        return ReplicaLogInfo(partition=number, damage="its directory is missing" if is_missing else None)
    log = partition.log
    is_offline = log.damage is None and partition.state.is_offline
    return ReplicaLogInfo(
        partition=number,
        topic_id=log.topic_id or "",
        exists=True,
        damage=None if log.damage is None else clipped(log.damage),
        unavailable="the replica is offline" if is_offline else None,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        last_epoch=last_written_epoch(log),
        high_watermark=partition.state.high_watermark,
    )


def last_written_epoch(log: PartitionLog) -> int:
    """Epoch of the last record. An epoch that began at the log end wrote nothing: it must not outweigh the records of a
    replica that does not know it. If retention has deleted all records, the current epoch."""
    start, end = log.log_start_offset, log.log_end_offset
    written = [epoch for epoch, began in log.epoch_entries() if began < end or end == start > 0]
    return max(written, default=NONE)
