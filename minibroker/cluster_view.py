"""One look at a whole cluster: who is there, who leads, what each replica says of itself, and what is wrong with it.

Owns: joining the answers of all brokers, and the word 'healthy'. Refuses to know how the cluster was started: it works
with any that answers (local, compose).
"""

import time

import msgspec

from minibroker.asking import ASK_TIMEOUT_S, Asker, NoAnswer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.messages import (
    DescribeReplicaStateResponse,
    MetadataPartition,
    MetadataResponse,
    ReplicaStateDescription,
)


class BrokerView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker, and its own words if it answered."""

    broker_id: int
    server: str
    says: DescribeReplicaStateResponse | None
    problem: str | None


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster says at one moment. Brokers and partitions are sorted."""

    taken_at: float
    cluster_id: str
    controller_id: int
    brokers: list[BrokerView]
    partitions: dict[TopicPartition, MetadataPartition]

    def broker(self, broker_id: int) -> BrokerView | None:
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)

    def replicas(self) -> dict[TopicPartition, dict[int, ReplicaStateDescription]]:
        """Every replica that some broker described, by partition and broker."""
        found: dict[TopicPartition, dict[int, ReplicaStateDescription]] = {}
        for broker in self.brokers:
            for topic in broker.says.topics if broker.says is not None else ():
                for replica in topic.partitions:
                    found.setdefault(TopicPartition(topic.topic, replica.partition), {})[broker.broker_id] = replica
        return dict(sorted(found.items()))


async def look_at_cluster(
    asker: Asker, servers: str, topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
) -> ClusterView:
    """Ask one broker for the map and every broker for its replicas. Raises NoAnswer if nobody answers."""
    metadata = await asker.metadata(servers, topics, timeout_s)
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
    ids = sorted(addresses)
    answers = await asker.replica_states([addresses[broker_id] for broker_id in ids], topics, timeout_s)
    brokers = [
        BrokerView(
            broker_id=broker_id,
            server=addresses[broker_id],
            says=None if isinstance(answer, NoAnswer) else answer,
            problem=str(answer) if isinstance(answer, NoAnswer) else None,
        )
        for broker_id, answer in zip(ids, answers, strict=True)
    ]
    return ClusterView(
        taken_at=time.time(),
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        brokers=brokers,
        partitions=partitions_of(metadata),
    )


def partitions_of(metadata: MetadataResponse) -> dict[TopicPartition, MetadataPartition]:
    return dict(
        sorted(
            (TopicPartition(topic.name, partition.partition_index), partition)
            for topic in metadata.topics
            for partition in topic.partitions
        )
    )


def what_is_wrong(view: ClusterView, brokers_expected: int | None = None) -> list[str]:
    """Why the cluster is not healthy, one sentence a reason; empty if it is."""
    reasons = []
    if brokers_expected is not None and len(view.brokers) < brokers_expected:
        ids = [broker.broker_id for broker in view.brokers]
        reasons.append(f"{len(view.brokers)} of {brokers_expected} brokers are registered: {ids}")
    reasons += [
        f"broker {broker.broker_id} does not answer: {broker.problem}" for broker in view.brokers if broker.problem
    ]
    reasons += [
        f"broker {broker.broker_id} is fenced: it has lost ZooKeeper"
        for broker in view.brokers
        if broker.says is not None and broker.says.fenced
    ]
    if view.broker(view.controller_id) is None:
        reasons.append("no controller is elected")
    for name, partition in view.partitions.items():
        replicas, isr = list(partition.replica_nodes), list(partition.isr_nodes)
        if view.broker(partition.leader_id) is None:
            reasons.append(f"{name} has no leader: replicas {replicas}, ISR {isr}")
        elif set(isr) < set(replicas):
            missing = sorted(set(replicas) - set(isr))
            reasons.append(f"{name} is under-replicated: ISR {isr} of {replicas}, missing {missing}")
    return reasons + _ahead_of_the_map(view)


def _ahead_of_the_map(view: ClusterView) -> list[str]:
    """Who knows of a newer leader than the broker that told the map: one that stood still tells what was, at first."""
    return [
        f"{name}: broker {broker_id} is in leader epoch {replica.leader_epoch}, "
        f"the map still in {partition.leader_epoch}"
        for name, replicas in view.replicas().items()
        for broker_id, replica in replicas.items()
        if (partition := view.partitions.get(name)) is not None and replica.leader_epoch > partition.leader_epoch
    ]
