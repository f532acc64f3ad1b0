"""The present state of a cluster in ZooKeeper: assignment, topic ids, in-sync replicas, directories, witnesses. Read
only.

Owns: reading all of it within a deadline, or one sentence where that fails. Leaves to others: what it means. kazoo
itself waits for ever: every wait here has a limit, and its threads are daemons that do not delay the end of the
process.

The nodes are read one by one while a live cluster may change them. A topic that is deleted meanwhile, or whose deletion
was requested, is left out: its records are no longer promised. A node with a name that no broker, topic or shard can
have is left out, too, as brokers ignore it. A node with a valid name that cannot be read is an error, with its path.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from minibroker.audit.errors import AuditError
from minibroker.protocol.files.checkpoints import parse_partition_directory_name
from minibroker.protocol.files.cluster_state import VERSION, ClusterState, PartitionSnapshot
from minibroker.protocol.ids import TopicPartition, is_topic_name
from minibroker.protocol.witness import WITNESS, PartitionWitness, WitnessNode, broker_witness_path, newer
from minibroker.protocol.znodes import (
    BROKER_IDS,
    BROKER_TOPICS,
    CLUSTER_ID,
    DELETE_TOPICS,
    BrokerRegistration,
    ClusterId,
    CorruptZnode,
    PartitionState,
    TopicAssignment,
    Znode,
    broker_path,
    parse_id,
    partition_state_path,
    topic_path,
)

TIMEOUT_S = 15.0
"""In all. A thousand nodes take 0.2 s on one machine."""
CONNECT_TIMEOUT_S = 5.0
SESSION_S = 6.0
READ_AT_ONCE = 500
"""Requests in flight: ZooKeeper answers them in order, and a thousand are no burden."""
STOP_TIMEOUT_S = 2.0

Z = TypeVar("Z", bound=Znode)


class NoCluster(AuditError):
    """No broker has ever registered in this ZooKeeper."""


def read_cluster_from_zookeeper(connect: str, timeout_s: float = TIMEOUT_S) -> ClusterState:
    """Everything the audit needs, from 'HOST:PORT,..' with an optional path. Raises AuditError."""
    reader = _Reader(connect, time.monotonic() + timeout_s)
    try:
        return reader.read()
    finally:
        reader.close()


class _Reader:
    """One session."""

    def __init__(self, connect: str, deadline: float) -> None:
        try:
            from kazoo.client import KazooClient
            from kazoo.exceptions import KazooException, NoNodeError
            from kazoo.handlers.threading import KazooTimeoutError
        except ImportError:
            raise AuditError("ZooKeeper cannot be asked without kazoo: pip install kazoo") from None
        self._connect = connect
        self._deadline = deadline
        self._no_node = NoNodeError
        self._errors = (KazooException, KazooTimeoutError)
        silent = logging.Logger("kazoo-silent", level=logging.CRITICAL + 1)
        try:
            self._client = KazooClient(hosts=connect, timeout=SESSION_S, read_only=True, logger=silent)
        except (ValueError, KazooException) as error:
            raise AuditError(f"'{connect}' does not name a ZooKeeper (HOST:PORT,..): {error}") from None
        if not self._client.start_async().wait(max(0.1, min(CONNECT_TIMEOUT_S, self._left()))):
            self.close()
            raise self._unreachable("it does not answer")

    def close(self) -> None:
        """In a separate thread: with a hanging ZooKeeper it takes as long as a session."""

        def stop() -> None:
            self._client.stop()
            self._client.close()

        stopping = threading.Thread(target=stop, daemon=True, name="zookeeper-stop")
        stopping.start()
        stopping.join(STOP_TIMEOUT_S)

    def read(self) -> ClusterState:
        cluster_id = self._one(CLUSTER_ID, ClusterId)
        if cluster_id is None:
            raise NoCluster(f"ZooKeeper at {self._connect} knows no cluster: name the one that the brokers use")
        topics = self._topics()
        partitions, brokers = self._partitions(topics)
        witnesses, witness_brokers = self._witnesses({name: node.topic_id for name, node in topics.items()})
        for number in witness_brokers:
            brokers.setdefault(str(number), None)
        for number in self._numbers(BROKER_IDS):
            node = self._one(broker_path(number), BrokerRegistration)
            if node is not None:
                brokers[str(number)] = node.directory_id
        return ClusterState(
            version=VERSION,
            taken_at=time.time(),
            cluster_id=cluster_id.id,
            brokers=dict(sorted(brokers.items(), key=lambda item: int(item[0]))),
            partitions=partitions,
            witnesses=dict(sorted(witnesses.items())),
        )

    def _topics(self) -> dict[str, TopicAssignment]:
        deleted = set(self._children(DELETE_TOPICS))
        names = [name for name in self._children(BROKER_TOPICS) if name not in deleted and is_topic_name(name)]
        nodes = self._many([topic_path(name) for name in names], TopicAssignment)
        return {name: node[0] for name, node in zip(names, nodes, strict=True) if node is not None}

    def _partitions(
        self, topics: dict[str, TopicAssignment]
    ) -> tuple[dict[str, PartitionSnapshot], dict[str, str | None]]:
        """The partitions, and the log directory that each broker had when it was last known to be in sync."""
        assigned = [
            (TopicPartition(topic, number), replicas, node.topic_id)
            for topic, node in sorted(topics.items())
            for number, replicas in node.replicas().items()
        ]
        states = self._many([partition_state_path(name) for name, _, _ in assigned], PartitionState)
        partitions: dict[str, PartitionSnapshot] = {}
        brokers: dict[str, str | None] = {}
        changed_at: dict[str, int] = {}
        for (name, replicas, topic_id), found in zip(assigned, states, strict=True):
            for replica in replicas:
                brokers.setdefault(str(replica), None)
            if found is None:  # just created: it has had no leader, nothing was promised
                partitions[str(name)] = PartitionSnapshot(leader_epoch=0, isr=(), replicas=replicas, topic_id=topic_id)
                continue
            state, changed = found
            partitions[str(name)] = PartitionSnapshot(
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=tuple(state.isr),
                replicas=replicas,
                topic_id=topic_id,
            )
            for broker, directory in state.isr_directories.items():
                if changed > changed_at.get(broker, -1):
                    brokers[broker], changed_at[broker] = directory, changed
        return partitions, brokers

    def _witnesses(self, topic_ids: dict[str, str]) -> tuple[dict[str, PartitionWitness], list[int]]:
        """The newest witness of each partition, and all brokers that wrote any."""
        writers = self._numbers(WITNESS)
        paths = [
            f"{broker_witness_path(writer)}/{shard}"
            for writer in writers
            for shard in self._numbers(broker_witness_path(writer))
        ]
        nodes = [found[0] for found in self._many(paths, WitnessNode) if found is not None]
        return newest_witnesses(nodes, topic_ids), writers

    # ---------------------------------------------------------------------------------------------------- questions
    def _one(self, path: str, kind: type[Z]) -> Z | None:
        found = self._many([path], kind)[0]
        return None if found is None else found[0]

    def _many(self, paths: list[str], kind: type[Z]) -> list[tuple[Z, int] | None]:
        """Content, and the transaction that last changed it; None where the node does not exist."""
        nodes: list[tuple[Z, int] | None] = []
        for start in range(0, len(paths), READ_AT_ONCE):
            batch = paths[start : start + READ_AT_ONCE]
            for path, answer in zip(batch, [self._client.get_async(path) for path in batch], strict=True):
                found = self._answer(answer)
                try:
                    nodes.append(None if found is None else (kind.decode(found[0]), found[1].mzxid))
                except CorruptZnode as error:
                    place = f"ZooKeeper at {self._connect}, {path}: {error}"
                    raise AuditError(f"{place}: correct that node, or remove it") from None
        return nodes

    def _children(self, path: str) -> list[str]:
        return sorted(self._answer(self._client.get_children_async(path)) or ())

    def _numbers(self, path: str) -> list[int]:
        found = []
        for name in self._children(path):
            with contextlib.suppress(CorruptZnode):
                found.append(parse_id(name))
        return sorted(found)

    def _answer(self, answer: Any) -> Any:
        """None: the node does not exist."""
        try:
            return answer.get(timeout=max(0.01, self._left()))
        except self._no_node:
            return None
        except self._errors as error:
            raise self._unreachable(f"it stopped answering ({type(error).__name__})") from None

    def _left(self) -> float:
        return self._deadline - time.monotonic()

    def _unreachable(self, what: str) -> AuditError:
        return AuditError(f"ZooKeeper at {self._connect} cannot be read: {what}; start it, or correct the address")


def newest_witnesses(nodes: Iterable[WitnessNode], topic_ids: Mapping[str, str]) -> dict[str, PartitionWitness]:
    """By `topic-partition`, without those of deleted topics: of a topic that is gone, or an earlier one of the name. A
    partition that its topic's node lacks is kept, for a topic never loses a single one."""
    newest: dict[str, PartitionWitness] = {}
    for node in nodes:
        for name, witness in node.partitions.items():
            partition = parse_partition_directory_name(name)
            if partition is None or topic_ids.get(partition.topic) != witness.topic_id:
                continue
            newest[name] = newer(newest[name], witness) if name in newest else witness
    return newest
