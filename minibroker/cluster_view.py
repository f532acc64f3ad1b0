"""One look at a whole cluster: who is there, who leads, what each replica says of itself, and what is wrong with it.

Owns: joining the answers of all brokers, and the word 'healthy'. Refuses to know how the cluster was started: it works
with any that answers (local, compose).
"""

import time

import msgspec

from minibroker import cures
from minibroker.broker_queries import ASK_TIMEOUT_S, BrokerQueries, NoAnswer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.messages import (
    DescribeReplicaStateResponse,
    ElectLeadersRequest,
    MetadataPartition,
    MetadataResponse,
    ReplicaStateDescription,
)

NAMES_SHOWN = 5
"""Partitions named in one sentence."""

LEFT_ALONE_CURE = (
    "correct the node, or delete it if it is nobody's; then delete /controller in ZooKeeper: the next controller reads"
    " all again"
)
COPIES_CURE = "start the brokers that hold a copy, or cut the log with `minibroker log repair` where none does"
ELECT_CURE = "says what each replica holds, and elects one of them with --accept-loss"


class BrokerView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker, and its own words if it answered."""

    broker_id: int
    server: str
    description: DescribeReplicaStateResponse | None
    problem: str | None


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """What the cluster says at one moment. Brokers and partitions are sorted."""

    taken_at: float
    cluster_id: str
    controller_id: int
    brokers: list[BrokerView]
    partitions: dict[TopicPartition, MetadataPartition]
    waits: dict[TopicPartition, str] = {}
    """Why nobody leads a partition, and whom that waits for, in the controller's words."""
    topic_ids: dict[str, str] = {}
    left_alone: dict[str, str] = {}
    """Nodes of ZooKeeper that the controller cannot read or does not believe, and why, in its words."""

    def broker(self, broker_id: int) -> BrokerView | None:
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)

    def replicas(self) -> dict[TopicPartition, dict[int, ReplicaStateDescription]]:
        """Every replica that some broker described, by partition and broker."""
        found: dict[TopicPartition, dict[int, ReplicaStateDescription]] = {}
        for broker in self.brokers:
            for topic in broker.description.topics if broker.description is not None else ():
                for replica in topic.partitions:
                    found.setdefault(TopicPartition(topic.topic, replica.partition), {})[broker.broker_id] = replica
        return dict(sorted(found.items()))


async def view_cluster(
    queries: BrokerQueries, servers: str, topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
) -> ClusterView:
    """Ask one broker for the map and every broker for its replicas. Raises NoAnswer if nobody answers."""
    metadata = await queries.metadata(servers, topics, timeout_s)
    addresses = {broker.node_id: f"{broker.host}:{broker.port}" for broker in metadata.brokers}
    ids = sorted(addresses)
    answers = await queries.replica_states([addresses[broker_id] for broker_id in ids], topics, timeout_s)
    brokers = [
        BrokerView(
            broker_id=broker_id,
            server=addresses[broker_id],
            description=None if isinstance(answer, NoAnswer) else answer,
            problem=str(answer) if isinstance(answer, NoAnswer) else None,
        )
        for broker_id, answer in zip(ids, answers, strict=True)
    ]
    partitions = partitions_of(metadata)
    leaderless = [name for name, partition in partitions.items() if partition.leader_id not in addresses]
    return ClusterView(
        taken_at=time.time(),
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        brokers=brokers,
        partitions=partitions,
        waits=await _waits(queries, addresses.get(metadata.controller_id), leaderless, timeout_s),
        topic_ids={topic.name: topic.topic_id for topic in metadata.topics},
        left_alone=await _left_alone(queries, addresses.get(metadata.controller_id), timeout_s)
        if topics is None
        else {},
    )


async def _left_alone(queries: BrokerQueries, controller: str | None, timeout_s: float) -> dict[str, str]:
    """Known to the controller alone; one that does not answer is named for that."""
    if controller is None:
        return {}
    try:
        described = await queries.describe_cluster(controller, timeout_s)
    except NoAnswer:
        return {}
    return {node.path: node.reason for node in described.left_alone}


async def _waits(
    queries: BrokerQueries, controller: str | None, leaderless: list[TopicPartition], timeout_s: float
) -> dict[TopicPartition, str]:
    """Asked only where nobody leads; a controller that does not answer says nothing."""
    if controller is None or not leaderless:
        return {}
    try:
        outlooks = await queries.elections(controller, ElectLeadersRequest(), timeout_s)
    except NoAnswer:
        return {}
    return {TopicPartition(each.topic_name, each.partition_index): each.reason for each in outlooks}


def partitions_of(metadata: MetadataResponse) -> dict[TopicPartition, MetadataPartition]:
    return dict(
        sorted(
            (TopicPartition(topic.name, partition.partition_index), partition)
            for topic in metadata.topics
            for partition in topic.partitions
        )
    )


class HealthProblem(msgspec.Struct, frozen=True):
    """A reason why the cluster is not healthy, and what an operator does about it, where that is not plain."""

    what: str
    cure: str | None = None

    def __str__(self) -> str:
        return self.what if self.cure is None else f"{self.what} ({self.cure})"


def health_problems(view: ClusterView, brokers_expected: int | None = None) -> list[str]:
    """Why the cluster is not healthy, one sentence a reason; empty if it is."""
    reasons = []
    if brokers_expected is not None and len(view.brokers) < brokers_expected:
        ids = [broker.broker_id for broker in view.brokers]
        reasons.append(f"{len(view.brokers)} of {brokers_expected} brokers are registered: {ids}")
    reasons += [reason for broker in view.brokers for reason in _wrong_with(view, broker)]
    return reasons + [str(each) for each in partition_problems(view)]


def partition_problems(view: ClusterView) -> list[HealthProblem]:
    """What no broker would say of itself."""
    found = []
    if view.broker(view.controller_id) is None:
        found.append(
            HealthProblem("no controller is elected", "start the brokers that are down, or see whether ZooKeeper runs")
        )
    found += _left_alone_by_the_controller(view)
    for name, partition in view.partitions.items():
        replicas, isr = list(partition.replica_nodes), list(partition.isr_nodes)
        if view.broker(partition.leader_id) is None:
            waits = view.waits.get(name)
            why = f"; {waits}" if waits else ""
            cure = f"`minibroker partition elect {name}` {ELECT_CURE}"
            found.append(HealthProblem(f"{name} has no leader: replicas {replicas}, ISR {isr}{why}", cure))
        elif set(isr) < set(replicas):
            missing = sorted(set(replicas) - set(isr))
            found.append(HealthProblem(f"{name} is under-replicated: ISR {isr} of {replicas}, missing {missing}"))
    return found + _wrong_with_replicas(view) + [HealthProblem(each) for each in _ahead_of_the_map(view)]


def _left_alone_by_the_controller(view: ClusterView) -> list[HealthProblem]:
    named = [
        HealthProblem(f"the controller leaves {path} in ZooKeeper alone: {reason}", LEFT_ALONE_CURE)
        for path, reason in list(view.left_alone.items())[:NAMES_SHOWN]
    ]
    more = len(view.left_alone) - len(named)
    return [*named, HealthProblem(f"the controller leaves {more} more nodes in ZooKeeper alone")] if more else named


def _wrong_with(view: ClusterView, broker: BrokerView) -> list[str]:
    says = broker.description
    if says is None:
        silent = [str(name) for name, each in view.partitions.items() if broker.broker_id in each.replica_nodes]
        which = f" (nor its replicas of {_some(silent)})" if silent else ""
        return [f"broker {broker.broker_id} does not answer: {broker.problem}{which}"]
    reasons = []
    if says.fenced:
        reasons.append(f"broker {broker.broker_id} is fenced: it has lost ZooKeeper")
    if says.log_directory != "online":
        what = f"log directory of broker {broker.broker_id} is {says.log_directory}: {says.log_directory_reason}"
        reasons.append(f"{what} ({cures.of_log_directory(says.log_directory, says.log_directory_reason)})")
    return reasons


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


def _wrong_with_replicas(view: ClusterView) -> list[HealthProblem]:
    """Every replica that should be there is asked for: one that nobody describes is not healthy because it is silent.
    Of a broker that does not answer, or whose directory is offline, that is said once."""
    described = view.replicas()
    reasons = []
    for name, partition in view.partitions.items():
        for broker_id in partition.replica_nodes:
            broker, replica = view.broker(broker_id), described.get(name, {}).get(broker_id)
            if broker is None:
                if broker_id in partition.isr_nodes:
                    reasons.append(
                        HealthProblem(f"{name}: broker {broker_id}, in the ISR, gives no answer: it is not registered")
                    )
            elif broker.description is None:
                continue
            elif replica is None and name in view.waits:
                continue  # that says why
            elif replica is None:
                reasons.append(HealthProblem(f"{name}: broker {broker_id} answers, and has no replica of it"))
            elif replica.role == "offline":
                if broker.description.log_directory == "online" and name not in view.waits:
                    reasons.append(
                        HealthProblem(f"{name}: the replica on broker {broker_id} is offline: {replica.why_offline}")
                    )
            elif replica.damage is not None:
                reasons.append(HealthProblem(f"{name}: {serves_damaged(broker_id, replica.damage)}", COPIES_CURE))
            elif replica.leader_epoch < partition.leader_epoch:
                epochs = f"leader epoch {replica.leader_epoch}, the map in {partition.leader_epoch}"
                reasons.append(HealthProblem(f"{name}: the replica on broker {broker_id} is still in {epochs}"))
            elif replica.leader_epoch == partition.leader_epoch:
                role = "leader" if broker_id == partition.leader_id else "follower"
                if replica.role != role and partition.leader_id >= 0:
                    reasons.append(
                        HealthProblem(f"{name}: broker {broker_id} should be {role}, and says '{replica.role}'")
                    )
    return reasons


def serves_damaged(broker_id: int, damage: str) -> str:
    """Of a replica that is not offline although its log is damaged: nobody else is in sync."""
    return f"broker {broker_id} leads with a damaged log, and readers of the damaged range are refused: {damage}"


def _ahead_of_the_map(view: ClusterView) -> list[str]:
    """Who knows of a newer leader than the broker that told the map: one that stood still tells what was, at first."""
    return [
        f"{name}: broker {broker_id} is in leader epoch {replica.leader_epoch}, "
        f"the map still in {partition.leader_epoch}"
        for name, replicas in view.replicas().items()
        for broker_id, replica in replicas.items()
        if (partition := view.partitions.get(name)) is not None and replica.leader_epoch > partition.leader_epoch
    ]
