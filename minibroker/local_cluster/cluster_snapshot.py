"""What goes into `cluster-state.json` when a cluster is stopped: the brokers' state before, ZooKeeper's after.

Owns: how both are joined. The ISR before the stop comes from the running brokers, the rest from ZooKeeper, which runs
until the last broker has written its witness. If ZooKeeper cannot be read, only the brokers' state is used.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from minibroker.audit.errors import AuditError
from minibroker.audit.reading.zookeeper_source import NoCluster, read_cluster_from_zookeeper
from minibroker.observation.cluster_view import ClusterView
from minibroker.protocol.files.cluster_state import CLUSTER_STATE, VERSION, ClusterState, PartitionSnapshot
from minibroker.protocol.wire.messages import MetadataPartition, ReplicaStateDescription

ZOOKEEPER_TIMEOUT_S = 10.0
NO_STATE = "without it `minibroker audit` has less to compare the logs with"

log = logging.getLogger("minibroker.cluster")


def state_of_view(view: ClusterView) -> ClusterState:
    """The state as the brokers describe it."""
    replicas = view.replicas()
    return ClusterState(
        version=VERSION,
        taken_at=view.taken_at,
        cluster_id=view.cluster_id or None,
        brokers={str(broker.broker_id): None for broker in view.brokers},
        partitions={
            str(name): _snapshot(
                each, replicas.get(name, {}).get(each.leader_id), view.topic_ids.get(name.topic) or None
            )
            for name, each in view.partitions.items()
            if each.replica_nodes  # else the controller knows no state of it
        },
    )


def _snapshot(
    known: MetadataPartition, leader: ReplicaStateDescription | None, topic_id: str | None
) -> PartitionSnapshot:
    """The leader gives ISR and high watermark in one answer: each member of that ISR holds all records below it."""
    if leader is not None and (leader.role != "leader" or leader.leader_epoch != known.leader_epoch):
        leader = None
    return PartitionSnapshot(
        leader=known.leader_id,
        leader_epoch=max(0, known.leader_epoch),
        isr=tuple(known.isr_nodes),
        isr_before=tuple(known.isr_nodes if leader is None else leader.in_sync_replicas),
        committed_before=None if leader is None else leader.high_watermark,
        replicas=tuple(known.replica_nodes),
        topic_id=topic_id,
    )


def why_no_state(data_directory: Path) -> list[str]:
    """After a stop of processes that had all ended before, which told it nothing; empty if it is there."""
    if (data_directory / CLUSTER_STATE).exists():
        return []
    cure = "`minibroker cluster up`, then `minibroker cluster down` write it"
    return [f"{CLUSTER_STATE} was not written: neither a broker nor ZooKeeper could be asked. For the audit, {cure}"]


async def ask_zookeeper(connect: str, *, brokers_told: bool) -> ClusterState | None:
    """ZooKeeper's state; None if no broker ever registered there, or if it cannot be read. Then what the brokers told
    is all that there is, which is logged."""
    try:
        return await asyncio.to_thread(read_cluster_from_zookeeper, connect, ZOOKEEPER_TIMEOUT_S)
    except NoCluster:
        return None
    except AuditError as error:
        if brokers_told:
            log.warning("cluster-state.json holds only what the brokers reported: %s", error)
        return None


def joined(
    before: ClusterState | None, running: ClusterState | None, after: ClusterState, stopped_cleanly: Sequence[int]
) -> ClusterState:
    """`before` is from the brokers, `running` from ZooKeeper while they were registered, `after` from ZooKeeper at the
    end."""
    directories = {} if running is None else {each: known for each, known in running.brokers.items() if known}
    without_directory = {} if before is None else before.brokers
    return replace(
        after,
        stopped_cleanly=tuple(stopped_cleanly),
        brokers=without_directory | after.brokers | directories,
        partitions={
            name: replace(
                each,
                isr_before=before.partitions[name].isr_before,
                committed_before=before.partitions[name].committed_before,
            )
            if before is not None and name in before.partitions and _is_same_topic(each, before.partitions[name])
            else each
            for name, each in after.partitions.items()
        },
    )


def _is_same_topic(one: PartitionSnapshot, other: PartitionSnapshot) -> bool:
    return other.topic_id is None or one.topic_id == other.topic_id
