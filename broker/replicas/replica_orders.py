"""Executes the controller's orders for local replicas: LeaderAndIsr and StopReplica, partition by partition.

Owns: the checks of an order, and their error codes. Leaves to others: decisions on replication (the core), and the map
of partitions (`replica_manager`).

Source: replication rules, section 7; hardening rule 16.
"""

import logging
from collections.abc import Mapping
from typing import Protocol

from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.configuration.topic_config import TopicConfig, log_config, resolve_topic_config
from minibroker.broker.disk_faults.disk_errors import DiskErrors
from minibroker.broker.disk_faults.repairs import Repairs
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.replicas.erased_replicas import ErasedReplicas
from minibroker.broker.replicas.observations import OrderAdmitted
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.damage import may_reset
from minibroker.broker.replication.replica import contradiction, is_stale
from minibroker.broker.replication.state import ReplicationConfig
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.replica_events import LogMissing
from minibroker.protocol.ids import NONE, TopicPartition, from_wire
from minibroker.protocol.wire.messages import (
    LEADER_EPOCH_DURING_DELETE,
    LeaderAndIsrPartition,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopic,
    PartitionError,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
)
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import DiskError

log = logging.getLogger("minibroker.replica_manager")


class LocalReplicas(Protocol):
    """What the orders change: the map of partitions, and the fence over all of them."""

    @property
    def config(self) -> BrokerConfig: ...
    @property
    def partitions(self) -> Mapping[TopicPartition, Partition]: ...
    def now_ms(self) -> int: ...
    def check_fence(self) -> None: ...
    def unfence(self) -> None: ...
    def replication_config(self, topic_config: TopicConfig) -> ReplicationConfig: ...
    def opened(self, topic_partition: TopicPartition, topic_id: str, topic_config: TopicConfig) -> Partition:
        """The partition with its log, which may be new. Raises DiskError."""
        ...

    def drop(self, topic_partition: TopicPartition, reason: str) -> None:
        """Stop the replica and delete its log. Raises DiskError."""
        ...


OLDER_STATE_CURE = "write it again, with a leader epoch above those in `minibroker replicas` and in the logs"


class ReplicaOrders:
    """Carries out the controller's orders."""

    def __init__(
        self,
        replicas: LocalReplicas,
        log_directory: LogDirectory,
        disk: DiskErrors,
        repairs: Repairs,
        observer: Observer,
    ) -> None:
        self._replicas = replicas
        self._directory = log_directory
        self._disk = disk
        self._repairs = repairs
        self._observer = observer
        self._erased = ErasedReplicas()
        self._reported_missing: set[TopicPartition] = set()

    def leader_and_isr(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Apply the roles in the request, partition by partition. The request as a whole was already admitted."""
        replicas = self._replicas
        self._report_admitted(request.controller_epoch)
        replicas.check_fence()
        replicas.unfence()  # a new registration takes effect now, not at the next tick
        errors: list[PartitionError] = []
        for topic in request.topic_states:
            topic_config = resolve_topic_config(replicas.config, topic.configs)
            for state in topic.partition_states:
                code = self._become(topic, state, topic_config)
                if code is not ErrorCode.NONE:
                    name = topic.topic_name
                    log.info("LeaderAndIsr for %s-%d not applied: %s", name, state.partition_index, code.name)
                errors.append(
                    PartitionError(topic_name=topic.topic_name, partition_index=state.partition_index, error_code=code)
                )
        return LeaderAndIsrResponse(partition_errors=errors)

    def _report_admitted(self, controller_epoch: int) -> None:
        if self._observer.wants_details:
            self._observer.notify(OrderAdmitted(controller_epoch))

    def _become(self, topic: LeaderAndIsrTopic, state: LeaderAndIsrPartition, topic_config: TopicConfig) -> ErrorCode:
        replicas, me = self._replicas, self._replicas.config.broker_id
        if me not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not topic.topic_id or (state.leader == me and me not in state.isr):
            return ErrorCode.INVALID_REQUEST
        if any(len(set(brokers)) < len(brokers) for brokers in (state.isr, state.replicas)):
            return ErrorCode.INVALID_REQUEST
        topic_partition = TopicPartition(topic.topic_name, state.partition_index)
        if (topic.topic_id, topic_partition) in self._erased:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if self._directory.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._report_missing(topic_partition)
        if state.leader == NONE and not self._has_log_of(topic_partition, topic.topic_id):
            return ErrorCode.NONE  # nothing to follow; an empty log in place of a missing one would look authentic
        try:
            partition = replicas.opened(topic_partition, topic.topic_id, topic_config)
        except DiskError as error:
            self._disk.log_blocked(topic_partition, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        event = ev.LeaderAndIsrReceived(
            now_ms=replicas.now_ms(),
            leader_id=from_wire(state.leader),
            leader_epoch=state.leader_epoch,
            partition_epoch=state.partition_epoch,
            in_sync_replicas=tuple(state.isr),
            assignment=tuple(state.replicas),
        )
        if may_reset(partition.state, event.leader_id, event.in_sync_replicas, event.leader_epoch):
            partition = self._repairs.reset(partition, topic.topic_id, topic_config)
        if partition.state.is_offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if (why := contradiction(partition.state, event)) is not None:
            log.error("%s: %s: an older state was put into ZooKeeper (%s)", topic_partition, why, OLDER_STATE_CURE)
        if is_stale(partition.state, event):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        partition.configure(replicas.replication_config(topic_config), log_config(topic_config))
        partition.handle(event)
        return ErrorCode.KAFKA_STORAGE_ERROR if partition.state.is_offline else ErrorCode.NONE

    def _report_missing(self, topic_partition: TopicPartition) -> None:
        """Report each missing directory once: the log is fetched again if another replica has it; an only copy is lost
        unless the directory is put back."""
        is_missing = topic_partition in self._directory.wholeness.missing
        if is_missing and topic_partition not in self._reported_missing:
            self._reported_missing.add(topic_partition)
            topic, number = topic_partition
            path = f"{self._directory.path}/{topic_partition}"
            self._observer.notify(LogMissing(topic=topic, partition=number, path=path))

    def _has_log_of(self, topic_partition: TopicPartition, topic_id: str) -> bool:
        known = self._replicas.partitions.get(topic_partition)
        return known is not None and known.log.topic_id in (None, topic_id)

    def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop serving, and delete where asked (KIP-570: a stale order changes nothing)."""
        self._report_admitted(request.controller_epoch)
        errors = [
            PartitionError(
                topic_name=topic.topic_name,
                partition_index=state.partition_index,
                error_code=self._stop(TopicPartition(topic.topic_name, state.partition_index), topic.topic_id, state),
            )
            for topic in request.topic_states
            for state in topic.partition_states
        ]
        return StopReplicaResponse(partition_errors=errors)

    def _remove_damaged_copies(self, topic_partition: TopicPartition, topic_id: str) -> ErrorCode:
        """Of a replica whose damaged log was set aside when the process ended, before it had another one."""
        if not topic_id or topic_partition not in self._directory.set_aside:
            return ErrorCode.NONE
        if self._directory.offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            self._directory.remove_set_aside(topic_partition, topic_id)
        except DiskError as error:
            self._disk.log_blocked(topic_partition, error)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def _stop(self, topic_partition: TopicPartition, topic_id: str, order: StopReplicaPartition) -> ErrorCode:
        replicas = self._replicas
        if order.delete_partition:
            self._erased.note(topic_id, topic_partition)
        partition = replicas.partitions.get(topic_partition)
        if partition is None:
            return self._remove_damaged_copies(topic_partition, topic_id) if order.delete_partition else ErrorCode.NONE
        if topic_id and partition.log.topic_id not in (None, topic_id):
            return ErrorCode.NONE  # meant for an earlier topic of this name, which is gone
        deleting = order.leader_epoch == LEADER_EPOCH_DURING_DELETE
        epoch = None if deleting else from_wire(order.leader_epoch)
        known = partition.state.leader_epoch
        if epoch is not None and known is not None and epoch < known:
            return ErrorCode.FENCED_LEADER_EPOCH
        if self._directory.offline and order.delete_partition:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition.handle(ev.ReplicaStopped(leader_epoch=epoch))
        if order.delete_partition:
            try:
                replicas.drop(topic_partition, "the topic is being deleted")
            except DiskError as error:
                self._disk.log_blocked(topic_partition, error)
                return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE
