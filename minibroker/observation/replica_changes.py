"""What happened between two views of a cluster: elections, truncations, ISR changes, brokers that come and go.

Owns: deriving events from views, for `top` and the demo. Pure. Views are half a second apart, so two events between
them may show as one.
"""

import msgspec

from minibroker.observation.cluster_view import ClusterView
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.messages import MetadataPartition, ReplicaStateDescription


class ReplicaChange(msgspec.Struct, frozen=True, kw_only=True):
    """One event: a kind for programs and a sentence for people."""

    kind: str
    """'election', 'isr', 'truncation', 'controller', 'broker-up', 'broker-down', 'broker-restarted', 'topic'."""
    what: str
    partition: str | None = None
    broker: int | None = None


def changes_between(before: ClusterView, after: ClusterView) -> list[ReplicaChange]:
    """All events between two views, brokers first."""
    changes = _broker_changes(before, after)
    if before.controller_id != after.controller_id:
        what = f"controller {_name(before.controller_id)} -> {_name(after.controller_id)}"
        changes.append(ReplicaChange(kind="controller", what=what, broker=after.controller_id))
    for partition, state in after.partitions.items():
        earlier = before.partitions.get(partition)
        if earlier is None:
            if before.partitions and partition.partition == 0:
                changes.append(ReplicaChange(kind="topic", what=f"topic {partition.topic} was created"))
        else:
            changes += _partition_changes(partition, earlier, state)
    gone = {partition.topic for partition in before.partitions} - {partition.topic for partition in after.partitions}
    changes += [ReplicaChange(kind="topic", what=f"topic {topic} was deleted") for topic in sorted(gone)]
    old_replicas, new_replicas = before.replicas(), after.replicas()
    for partition, replicas in new_replicas.items():
        for broker_id, replica in replicas.items():
            former = old_replicas.get(partition, {}).get(broker_id)
            if former is not None:
                changes += _replica_changes(partition, broker_id, former, replica)
    return changes


def _broker_changes(before: ClusterView, after: ClusterView) -> list[ReplicaChange]:
    def alive(view: ClusterView) -> dict[int, str]:
        return {
            broker.broker_id: broker.description.incarnation_id
            for broker in view.brokers
            if broker.description is not None
        }

    old, new = alive(before), alive(after)
    changes = [
        ReplicaChange(kind="broker-down", what=f"broker {broker_id} does not answer", broker=broker_id)
        for broker_id in sorted(old.keys() - new.keys())
    ]
    for broker_id, incarnation in sorted(new.items()):
        if broker_id not in old:
            changes.append(ReplicaChange(kind="broker-up", what=f"broker {broker_id} answers", broker=broker_id))
        elif old[broker_id] != incarnation:
            what = f"broker {broker_id} has restarted"
            changes.append(ReplicaChange(kind="broker-restarted", what=what, broker=broker_id))
    return changes


def _partition_changes(
    partition: TopicPartition, before: MetadataPartition, after: MetadataPartition
) -> list[ReplicaChange]:
    changes = []
    if (before.leader_id, before.leader_epoch) != (after.leader_id, after.leader_epoch):
        moved = f"leader {_name(before.leader_id)} -> {_name(after.leader_id)}"
        if before.leader_id == after.leader_id:
            moved = f"leader {_name(after.leader_id)} stays"
        what = f"{partition}: {moved}, epoch {before.leader_epoch} -> {after.leader_epoch}"
        changes.append(ReplicaChange(kind="election", what=what, partition=str(partition), broker=after.leader_id))
    old, new = set(before.isr_nodes), set(after.isr_nodes)
    if old != new:
        verb = "grows" if new > old else "shrinks" if new < old else "changes"
        what = f"{partition}: ISR {verb} {sorted(old)} -> {sorted(new)}"
        changes.append(ReplicaChange(kind="isr", what=what, partition=str(partition)))
    return changes


def _replica_changes(
    partition: TopicPartition, broker_id: int, before: ReplicaStateDescription, after: ReplicaStateDescription
) -> list[ReplicaChange]:
    if after.log_end_offset >= before.log_end_offset:
        return []
    old, new = before.log_end_offset, after.log_end_offset
    what = f"{partition}: broker {broker_id} truncated {old - new} records, LEO {old} -> {new}"
    return [ReplicaChange(kind="truncation", what=what, partition=str(partition), broker=broker_id)]


def _name(broker_id: int) -> str:
    return "none" if broker_id < 0 else str(broker_id)
