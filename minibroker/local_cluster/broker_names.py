"""The names by which a user means a broker of a local cluster: its number, its role, or what it leads."""

from collections.abc import Iterable

from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.local_cluster import LocalCluster
from minibroker.protocol.files.checkpoints import parse_partition_directory_name
from minibroker.protocol.similar_names import suggestion

ALL_CURE = (
    "`minibroker cluster start` without a name starts all that are down, and `minibroker cluster down` stops all; the"
    " other commands take one process at a time"
)


class BadBrokerName(ClusterFailed):
    """The text can name no broker of any cluster."""


async def resolve(cluster: LocalCluster, name: str) -> int:
    """The broker meant by '2', 'controller' or 'leader:TOPIC-PARTITION'.

    Raises BadBrokerName, ClusterFailed, NoAnswer.
    """
    if name.isascii() and name.isdigit() and len(name) <= 10:
        broker_id = int(name)
    elif name == "controller":
        broker_id = (await cluster.look()).controller_id
        if broker_id < 0:
            raise ClusterFailed("there is no controller now: try again in a few seconds")
    elif name.startswith("leader:"):
        broker_id = await _leader_of(cluster, name.removeprefix("leader:"))
    elif name == "all":
        raise BadBrokerName(f"'all' is no process of a cluster: {ALL_CURE}")
    else:
        known = "a number, 'controller', 'leader:TOPIC-PARTITION' or 'zookeeper'"
        meant = suggestion(name, ("controller", "zookeeper"))
        raise BadBrokerName(f"'{name}' is no process of a cluster: give {known}{f'; {meant}' if meant else ''}")
    if broker_id not in cluster.record.brokers:
        raise ClusterFailed(f"there is no broker {broker_id}: this cluster has {cluster.broker_ids}")
    return broker_id


async def resolve_all(cluster: LocalCluster, names: Iterable[str]) -> list[int]:
    """As `resolve`; an error tells of all names that mean no broker."""
    ids, problems = [], []
    for name in names:
        try:
            ids.append(await resolve(cluster, name))
        except ClusterFailed as error:
            problems.append(error)
    if problems:
        kind = BadBrokerName if any(isinstance(each, BadBrokerName) for each in problems) else ClusterFailed
        raise kind("; ".join(map(str, problems)))
    return ids


async def _leader_of(cluster: LocalCluster, name: str) -> int:
    partition = parse_partition_directory_name(name)
    if partition is None:
        raise BadBrokerName(f"'leader:{name}' names no partition: give leader:TOPIC-PARTITION, such as leader:{name}-0")
    found = (await cluster.look([partition.topic])).partitions.get(partition)
    if found is None:
        raise ClusterFailed(f"there is no partition {name}: `minibroker topic describe` lists them")
    if found.leader_id < 0:
        raise ClusterFailed(f"{name} has no leader now: try again in a few seconds")
    return found.leader_id
