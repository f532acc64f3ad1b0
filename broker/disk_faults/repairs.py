"""Repair of damaged replicas of this broker: reports, and the start with an empty log.

Owns: what follows a decision of the core (`replication.damage`): the event, the counters, the report to the
controller, setting the directory aside, and removing it later. Leaves to others: whether a log is damaged or may be
dropped.

Theory (Protocol-Aware Recovery, FAST'18): damaged bytes are neither served nor copied, because they are not what was
written; but they are kept until the replica is in sync again, because they may be the only trace of a record.
"""

from collections.abc import Callable
from typing import NamedTuple

from minibroker.broker.configuration.topic_config import TopicConfig
from minibroker.broker.disk_faults.disk_errors import BLOCKED_RETRY_MS, DiskErrors
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.damage import may_reset
from minibroker.protocol.events.replica_events import (
    DamagedReplicaOffline,
    RecordsSalvaged,
    RepairBegun,
    RepairGivenUp,
    ReplicaDamaged,
    ReplicaRepaired,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, OutOfDescriptors

REPAIRS_MAX = 3
REPAIRS_WITHIN_MS = 3_600_000
"""A replica that was damaged more than REPAIRS_MAX times within this time stays offline: its disk, or its leader's log,
is faulty, and fetching the log again forever would only wear out both."""


class InterruptedRepair(NamedTuple):
    """A replica that could not begin its repair yet, and the parameters to begin it with."""

    partition: Partition
    topic_id: str
    topic_config: TopicConfig
    from_ms: int = 0
    """When to begin it at the earliest."""


class Repairs:
    """Implements `partition.RepairServices` for a broker's replicas."""

    def __init__(
        self,
        *,
        broker_id: int,
        log_directory: LogDirectory,
        partitions: dict[TopicPartition, Partition],
        opened: Callable[[TopicPartition, str, TopicConfig], Partition],
        topic_config: Callable[[str], TopicConfig],
        partition_changed: Callable[[Partition], None],
        disk: DiskErrors,
        image: MetadataImage,
        now_ms: Callable[[], int],
        counters: BrokerCounters,
    ) -> None:
        self._broker_id = broker_id
        self._directory = log_directory
        self._partitions = partitions
        self._opened = opened
        self._topic_config = topic_config
        self._partition_changed = partition_changed
        self._disk = disk
        self._image = image
        self._now_ms = now_ms
        self._counters = counters
        self._begun_ms: dict[TopicPartition, list[int]] = {}
        """Recent times at which repairs began, by replica."""
        self._unfinished: dict[TopicPartition, Partition] = {}
        """Replicas whose repair this process has begun. Not all have a log set aside: its directory may be gone."""
        self._interrupted: dict[TopicPartition, InterruptedRepair] = {}
        """Damaged replicas that could not begin their repair for lack of room on the disk or of a descriptor, while a
        checkpoint was being written, or because an entry is in the way; and those that may have refused the order to
        begin it, because they were offline before."""

    def loaded(self, partition: Partition) -> None:
        """A replica was loaded at the start, possibly damaged."""
        if partition.state.damage is not None:
            self.noted(partition, partition.state.damage)

    def damaged(self, partition: Partition, reason: str) -> None:
        """Bytes were read that are not what was written."""
        if self._partitions.get(partition.topic_partition) is partition:
            partition.handle(ev.LogDamaged(reason=reason))

    def noted(self, partition: Partition, reason: str) -> None:
        self._counters.damaged_logs += 1
        partition.report(ReplicaDamaged, reason=reason)

    def out_of_use(self, partition: Partition) -> None:
        """The damaged replica alone is offline; the controller moves its leadership, and takes it out of the ISR."""
        partition.report(DamagedReplicaOffline)
        self._partition_changed(partition)
        self._disk.on_changed()
        topic_partition = partition.topic_partition
        topic_id = self._image.topic_id(topic_partition.topic)
        if topic_id is not None and is_damaged_log_of(partition, topic_id):
            config = self._topic_config(topic_partition.topic)
            self._interrupted[topic_partition] = InterruptedRepair(partition, topic_id, config)

    def reset(self, damaged: Partition, topic_id: str, topic_config: TopicConfig) -> Partition:
        """Set the damaged log aside and begin with an empty one, to be fetched from the leader."""
        topic_partition = damaged.topic_partition
        if self.is_hopeless(topic_partition):
            damaged.report(RepairGivenUp, times=REPAIRS_MAX + 1)
            return damaged
        if not self._directory.may_set_aside:
            self._interrupted[topic_partition] = InterruptedRepair(damaged, topic_id, topic_config)
            return damaged
        try:
            self._directory.set_log_aside(topic_partition)
            del self._partitions[topic_partition]
            self._partition_changed(damaged)
            partition = self._opened(topic_partition, topic_id, topic_config)
        except DiskError as error:
            if self._partitions.get(topic_partition) is not damaged:  # only the new log is missing
                self._disk.log_blocked(topic_partition, error)
                return damaged
            self._disk.failed(error)
            if isinstance(error, OutOfDescriptors | DiskFull | BadEntry):
                from_ms = self._now_ms() + (BLOCKED_RETRY_MS if isinstance(error, BadEntry) else 0)
                self._interrupted[topic_partition] = InterruptedRepair(damaged, topic_id, topic_config, from_ms)
            return damaged
        self._begun_ms.setdefault(topic_partition, []).append(self._now_ms())
        self._unfinished[topic_partition] = partition
        self._counters.repairs_begun += 1
        partition.report(RepairBegun)
        self._disk.on_changed()
        return partition

    def is_hopeless(self, topic_partition: TopicPartition) -> bool:
        """Whether it was repaired so often lately that it is not repaired again."""
        now_ms = self._now_ms()
        recent = [at for at in self._begun_ms.get(topic_partition, []) if now_ms - at < REPAIRS_WITHIN_MS]
        self._begun_ms[topic_partition] = recent
        return len(recent) >= REPAIRS_MAX

    def salvage(self, partition: Partition, max_bytes: int) -> memoryview | None:
        """The leader's log is damaged where this one ends. Returns sound batches from there of the log set aside, if
        any."""
        offset = partition.state.log_end_offset
        if partition.topic_partition not in self._directory.set_aside or self._directory.offline:
            return None
        found = self._directory.read_set_aside(partition.topic_partition, offset, max_bytes)
        if found is not None:
            self._counters.salvaged_bytes += len(found)
            partition.report(RecordsSalvaged, size_bytes=len(found), offset=offset)
        return found

    def go_on(self) -> None:
        """If there is room again, begin the interrupted repairs that may begin now. The controller sends no second
        order for them, because to it the replica is still offline."""
        if not self._interrupted or self._directory.full or self._directory.offline:
            return
        now_ms = self._now_ms()
        due = {name: each for name, each in self._interrupted.items() if each.from_ms <= now_ms}
        for topic_partition, each in due.items():
            del self._interrupted[topic_partition]
            is_same_topic = self._image.topic_id(topic_partition.topic) == each.topic_id
            is_here = self._partitions.get(topic_partition) is each.partition
            info = self._image.partition(topic_partition) if is_here and is_same_topic else None
            if info is not None and may_reset(each.partition.state, info.leader, info.isr, info.leader_epoch):
                self.reset(each.partition, each.topic_id, each.topic_config)

    def finish(self) -> None:
        """End the repair of a replica that is in sync again, according to the controller, in the epoch in which the new
        log follows: its damaged log, if there is one, is removed."""
        for topic_partition in {**self._directory.set_aside, **self._unfinished}:
            partition, info = self._partitions.get(topic_partition), self._image.partition(topic_partition)
            if self._unfinished.get(topic_partition, partition) is not partition:  # its topic was deleted
                del self._unfinished[topic_partition]
                continue
            if partition is None or info is None or partition.state.damage is not None:
                continue
            in_sync = len(info.isr) > 1 and self._broker_id in info.isr
            if in_sync and info.leader_epoch == partition.state.leader_epoch:
                self._directory.remove_set_aside(topic_partition)
                self._unfinished.pop(topic_partition, None)
                self._counters.repairs_done += 1
                partition.report(ReplicaRepaired)


def is_damaged_log_of(partition: Partition, topic_id: str) -> bool:
    """Whether this is the topic's damaged log. Nothing is written into a damaged directory, not even a missing topic
    id."""
    return partition.state.damage is not None and partition.log.topic_id in (None, topic_id)
