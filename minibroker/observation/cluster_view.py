"""The state of a whole cluster at one moment: its brokers, its leaders, each replica, and its problems.

Owns: joining the answers of all brokers, and the meaning of 'healthy'. Leaves to others: how the cluster was started;
it works with any cluster that answers (local, compose).
"""

import time

import msgspec

from minibroker.observation import cures
from minibroker.observation.broker_queries import ASK_TIMEOUT_S, BrokerQueries, NoAnswer
from minibroker.observation.cures import ZOOKEEPER_CURE
from minibroker.protocol.counted import NAMES_SHOWN, counted, some_of
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    DescribeClusterResponse,
    DescribeReplicaStateResponse,
    ElectLeadersRequest,
    MetadataPartition,
    MetadataResponse,
    ReplicaStateDescription,
)

IGNORED_NODE_CURE = (
    "correct the node, or delete it if nothing uses it; then restart the broker that is the controller: the next"
    " controller reads everything again"
)
COPIES_CURE = "start the brokers that hold a copy, or cut the log with `minibroker log repair` if none does"
ELECT_CURE = "shows what each replica holds, and which one --accept-loss would elect"


class BrokerView(msgspec.Struct, frozen=True, kw_only=True):
    """A registered broker, and its description of itself if it answered."""

    broker_id: int
    server: str
    description: DescribeReplicaStateResponse | None
    problem: str | None


class ClusterView(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment. Brokers and partitions are sorted."""

    taken_at: float
    cluster_id: str
    controller_id: int
    brokers: list[BrokerView]
    partitions: dict[TopicPartition, MetadataPartition]
    waits: dict[TopicPartition, str] = {}
    """Why a partition has no leader, and which brokers it waits for, in the controller's words."""
    topic_ids: dict[str, str] = {}
    ignored_nodes: dict[str, str] = {}
    """Znodes that the controller ignores because they cannot be parsed or are implausible; with its reason."""
    topic_deletions: dict[str, str] = {}
    """Topics that are marked for deletion, each with the controller's sentence about that."""

    def broker(self, broker_id: int) -> BrokerView | None:
        return next((broker for broker in self.brokers if broker.broker_id == broker_id), None)

    def replicas(self) -> dict[TopicPartition, dict[int, ReplicaStateDescription]]:
        """Every described replica, by partition and broker."""
        found: dict[TopicPartition, dict[int, ReplicaStateDescription]] = {}
        for broker in self.brokers:
            for topic in broker.description.topics if broker.description is not None else ():
                for replica in topic.partitions:
                    found.setdefault(TopicPartition(topic.topic, replica.partition), {})[broker.broker_id] = replica
        return dict(sorted(found.items()))


def with_present_leaders(view: ClusterView) -> ClusterView:
    """The view; without leaders and controller where all brokers have lost ZooKeeper, because what they know of both is
    old, and none leads."""
    if not _all_fenced(view):
        return view
    led_by_none = {name: msgspec.structs.replace(each, leader_id=-1) for name, each in view.partitions.items()}
    return msgspec.structs.replace(view, controller_id=-1, partitions=led_by_none)


def _all_fenced(view: ClusterView) -> bool:
    answers = [broker.description for broker in view.brokers if broker.description is not None]
    return bool(answers) and all(each.fenced for each in answers)


async def view_cluster(
    queries: BrokerQueries, servers: str, topics: list[str] | None = None, timeout_s: float = ASK_TIMEOUT_S
) -> ClusterView:
    """Ask one broker for the metadata and every broker for its replicas. Raises NoAnswer if no broker answers."""
    metadata = await queries.present_metadata(servers, topics, timeout_s)
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
    notes = await _controllers_notes(queries, addresses.get(metadata.controller_id), timeout_s)
    leaderless = [name for name, partition in partitions.items() if partition.leader_id not in addresses]
    return ClusterView(
        taken_at=time.time(),
        cluster_id=metadata.cluster_id,
        controller_id=metadata.controller_id,
        brokers=brokers,
        partitions=partitions,
        waits=await _waits(queries, addresses.get(metadata.controller_id), leaderless, timeout_s),
        topic_ids={topic.name: topic.topic_id for topic in metadata.topics},
        ignored_nodes={node.path: node.reason for node in notes.ignored_nodes} if topics is None else {},
        topic_deletions={
            each.topic: each.reason for each in notes.topic_deletions if topics is None or each.topic in topics
        },
    )


async def _controllers_notes(
    queries: BrokerQueries, controller: str | None, timeout_s: float
) -> DescribeClusterResponse:
    """What only the controller knows; one that does not answer is itself a problem of the view."""
    if controller is None:
        return DescribeClusterResponse()
    try:
        return await queries.describe_cluster(controller, timeout_s)
    except NoAnswer:
        return DescribeClusterResponse()


async def _waits(
    queries: BrokerQueries, controller: str | None, leaderless: list[TopicPartition], timeout_s: float
) -> dict[TopicPartition, str]:
    """Asked only if a partition has no leader; empty if the controller does not answer."""
    if controller is None or not leaderless:
        return {}
    try:
        previews = await queries.elections(controller, ElectLeadersRequest(), timeout_s)
    except NoAnswer:
        return {}
    return {
        TopicPartition(each.topic_name, each.partition_index): each.reason or each.error_message or ""
        for each in previews
    }


def partitions_of(metadata: MetadataResponse) -> dict[TopicPartition, MetadataPartition]:
    found = {
        TopicPartition(topic.name, partition.partition_index): partition
        for topic in metadata.topics
        for partition in topic.partitions
    }
    return dict(sorted(found.items()))  # names differ, so no two partitions are compared


class HealthProblem(msgspec.Struct, frozen=True):
    """A reason why the cluster is not healthy, and its cure where that is not obvious."""

    what: str
    cure: str | None = None

    def __str__(self) -> str:
        return self.what if self.cure is None else f"{self.what} ({self.cure})"


def health_problems(view: ClusterView, brokers_expected: int | None = None) -> list[str]:
    """Why the cluster is not healthy, one sentence per reason; empty if it is."""
    return [str(each) for each in problems_of(view, brokers_expected)]


def problems_of(view: ClusterView, brokers_expected: int | None = None) -> list[HealthProblem]:
    """Why the cluster is not healthy; empty if it is."""
    found = []
    if brokers_expected is not None and len(view.brokers) < brokers_expected:
        ids = [broker.broker_id for broker in view.brokers]
        registered = f"{len(view.brokers)} of {counted(brokers_expected, 'broker')} are registered: {ids}"
        found.append(HealthProblem(registered))
    found += [problem for broker in view.brokers for problem in _broker_problems(view, broker)]
    return found + partition_problems(view)


def partition_problems(view: ClusterView) -> list[HealthProblem]:
    """Problems of partitions, of their replicas and of the controller."""
    if _all_fenced(view):  # what they know of partitions is old
        return [HealthProblem("no broker leads a partition, because all have lost ZooKeeper", ZOOKEEPER_CURE)]
    found = []
    if view.broker(view.controller_id) is None:
        found.append(
            HealthProblem(
                "no controller is elected", "start the brokers that are down, or check whether ZooKeeper runs"
            )
        )
    found += _ignored_node_problems(view)
    found += [HealthProblem(reason) for reason in view.topic_deletions.values()]
    for name, partition in view.partitions.items():
        replicas, isr = list(partition.replica_nodes), list(partition.isr_nodes)
        if view.broker(partition.leader_id) is None:
            waits = view.waits.get(name)
            why = f"; {waits}" if waits else ""
            cure = _full_disk(view, isr) or f"`minibroker partition elect {name}` {ELECT_CURE}"
            found.append(HealthProblem(f"{name} has no leader: replicas {replicas}, ISR {isr}{why}", cure))
        elif set(isr) < set(replicas):
            missing = sorted(set(replicas) - set(isr))
            what = f"{name} is under-replicated: ISR {isr} of {replicas}, missing {missing}"
            found.append(HealthProblem(what, _full_disk(view, missing)))
    return found + _replica_problems(view) + [HealthProblem(each) for each in _newer_epochs(view)]


def _full_disk(view: ClusterView, broker_ids: list[int]) -> str | None:
    """The cure where one of these brokers runs and has a full disk: to start brokers, or to accept a loss, is none."""
    described = [(each.broker_id, each.description) for each in view.brokers if each.broker_id in broker_ids]
    full = [broker_id for broker_id, answer in described if answer is not None and answer.log_directory == "full"]
    return f"the disk of broker {full[0]} is full: {cures.MAKE_ROOM}" if full else None


def _ignored_node_problems(view: ClusterView) -> list[HealthProblem]:
    named = [
        HealthProblem(f"the controller ignores {path} in ZooKeeper: {reason}", IGNORED_NODE_CURE)
        for path, reason in list(view.ignored_nodes.items())[:NAMES_SHOWN]
    ]
    more = len(view.ignored_nodes) - len(named)
    return (
        [*named, HealthProblem(f"the controller ignores {counted(more, 'more node')} in ZooKeeper")] if more else named
    )


def _broker_problems(view: ClusterView, broker: BrokerView) -> list[HealthProblem]:
    description = broker.description
    if description is None:
        silent = [str(name) for name, each in view.partitions.items() if broker.broker_id in each.replica_nodes]
        which = f" (it has replicas of {some_of(silent)})" if silent else ""
        return [HealthProblem(f"broker {broker.broker_id} does not answer: {broker.problem}{which}")]
    reasons = []
    if description.fenced and not _all_fenced(view):  # `partition_problems` tells that of all
        what = f"broker {broker.broker_id} is fenced, because it has lost ZooKeeper"
        reasons.append(HealthProblem(what, ZOOKEEPER_CURE))
    if description.log_directory != "online":
        state, reason = description.log_directory, description.log_directory_reason
        what = f"log directory of broker {broker.broker_id} is {state}: {reason}"
        reasons.append(HealthProblem(what, cures.of_log_directory(state, reason)))
    return reasons


def _replica_problems(view: ClusterView) -> list[HealthProblem]:
    """Problems of every assigned replica; one that no broker describes is a problem, too. A broker that does not
    answer, or has its log directory offline, is one problem of its own instead."""
    described = view.replicas()
    reasons = []
    for name, partition in view.partitions.items():
        for broker_id in partition.replica_nodes:
            broker, replica = view.broker(broker_id), described.get(name, {}).get(broker_id)
            if broker is None:
                if broker_id in partition.isr_nodes:
                    reasons.append(HealthProblem(f"{name}: broker {broker_id} is in the ISR but not registered"))
            elif broker.description is None:
                continue
            elif replica is None and name in view.waits:
                continue  # `waits` gives the reason
            elif replica is None:
                reasons.append(HealthProblem(f"{name}: broker {broker_id} answers, but has no replica of it"))
            elif replica.role == "offline":
                if broker.description.log_directory == "online" and name not in view.waits:
                    reasons.append(
                        HealthProblem(f"{name}: the replica on broker {broker_id} is offline: {replica.why_offline}")
                    )
            elif replica.damage is not None:
                reasons.append(HealthProblem(f"{name}: {serves_damaged(broker_id, replica.damage)}", COPIES_CURE))
            elif replica.leader_epoch < partition.leader_epoch:
                epochs = f"leader epoch {replica.leader_epoch}, the metadata in {partition.leader_epoch}"
                reasons.append(HealthProblem(f"{name}: the replica on broker {broker_id} is still in {epochs}"))
            elif replica.leader_epoch == partition.leader_epoch:
                role = "leader" if broker_id == partition.leader_id else "follower"
                if replica.role != role and partition.leader_id >= 0:
                    reasons.append(
                        HealthProblem(f"{name}: broker {broker_id} should be {role}, but is '{replica.role}'")
                    )
    return reasons


def serves_damaged(broker_id: int, damage: str) -> str:
    """Of a replica that stays online with a damaged log, because no other one is in sync."""
    return f"broker {broker_id} leads with a damaged log, and readers of the damaged range are refused: {damage}"


def _newer_epochs(view: ClusterView) -> list[str]:
    """Replicas with a newer leader epoch than the metadata: a broker that was paused gives old metadata at first."""
    return [
        f"{name}: broker {broker_id} is in leader epoch {replica.leader_epoch}, "
        f"the metadata still in {partition.leader_epoch}"
        for name, replicas in view.replicas().items()
        for broker_id, replica in replicas.items()
        if (partition := view.partitions.get(name)) is not None and replica.leader_epoch > partition.leader_epoch
    ]
