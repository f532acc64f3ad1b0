"""The witness against the logs: every replica holds what each partition's newest note says was committed.

Owns: the comparison, by batches read without the broker's own digests. Leaves to others: waiting until the notes are
there.
"""

from minibroker.broker.replicas.partition import Partition
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import digest_of, format_digest
from minibroker.protocol.witness import SHARDS, PartitionWitness, WitnessNode, newer, shard_of, witness_path
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.cluster import SimulatedCluster

INVARIANT = "witness"


def newest_note(cluster: SimulatedCluster, partition: TopicPartition, topic_id: str | None) -> PartitionWitness | None:
    """The newest of all brokers' notes on this topic."""
    newest = None
    for broker_id in cluster.broker_ids:
        node = cluster.world.zookeeper.tree.nodes.get(witness_path(broker_id, shard_of(partition)))
        note = None if node is None else WitnessNode.decode(node.data).partitions.get(str(partition))
        if note is not None and note.topic_id == topic_id:
            newest = note if newest is None else newer(newest, note)
    return newest


def lacking_notes(cluster: SimulatedCluster, states: list[ReferencePartition]) -> list[str]:
    """Partitions with an outdated newest note: its epoch, ISR, end or start is not the leader's."""
    found = []
    for actual in states:
        leader = cluster.replica(actual.leader, actual.partition.topic, actual.partition.partition)
        if leader is None:
            found.append(f"{actual.partition}: no leader")
            continue
        note = newest_note(cluster, actual.partition, leader.log.topic_id)
        wanted = (actual.leader_epoch, set(actual.members), leader.log.log_start_offset, leader.state.high_watermark)
        noted = note and (note.leader_epoch, set(note.isr), note.log_start_offset, note.committed_offset)
        if note is None or not note.digest or noted != wanted:
            found.append(f"{actual.partition}: {note} instead of {wanted}")
    return found


def compare_notes(cluster: SimulatedCluster, states: list[ReferencePartition]) -> list[CheckerFinding]:
    """Contradictions between replicas and the newest notes."""
    found = []
    for actual in states:
        for broker_id in cluster.broker_ids:
            replica = cluster.replica(broker_id, actual.partition.topic, actual.partition.partition)
            if replica is None or replica.state.is_offline:
                continue
            note = newest_note(cluster, actual.partition, replica.log.topic_id)
            text = None if note is None else _contradiction(replica, note)
            if text is not None:
                where = f"broker {broker_id}: {text}"
                found.append(
                    CheckerFinding(invariant=INVARIANT, text=where, partition=actual.partition, facts=(str(note),))
                )
    return found


def _contradiction(replica: Partition, note: PartitionWitness) -> str | None:
    partition_log = replica.log
    if partition_log.log_end_offset < note.committed_offset:
        return f"the log ends at {partition_log.log_end_offset}, {note.committed_offset} was committed"
    if not note.digest or partition_log.log_start_offset > note.log_start_offset:
        return None
    cells = [
        (header.base_offset, header.size_bytes, header.partition_leader_epoch, header.crc)
        for header in partition_log.headers(note.log_start_offset)
        if note.log_start_offset < header.end_offset <= note.committed_offset
    ]
    digest = format_digest(digest_of(cells))
    return (
        None if digest == note.digest else f"digest {digest} of the committed records, the witness says {note.digest}"
    )


class WitnessChecker(Checker):
    """A leader notes nothing uncommitted."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._checked_mzxids: dict[str, int] = {}

    def sample(self) -> None:
        """Check the shards that were written since the last sample."""
        nodes = self._cluster.world.zookeeper.tree.nodes
        for broker_id in self._cluster.broker_ids:
            for shard in range(SHARDS):
                path = witness_path(broker_id, shard)
                node = nodes.get(path)
                if node is None or self._checked_mzxids.get(path) == node.mzxid:
                    continue
                self._checked_mzxids[path] = node.mzxid
                for name, note in WitnessNode.decode(node.data).partitions.items():
                    self._check(broker_id, name, note)

    def _check(self, broker_id: int, name: str, note: PartitionWitness) -> None:
        topic, _, number = name.rpartition("-")
        replica = self._cluster.replica(broker_id, topic, int(number))
        if replica is None or not replica.state.is_leader or replica.state.leader_epoch != note.leader_epoch:
            return  # an older note
        if note.topic_id == replica.log.topic_id and note.committed_offset > replica.state.high_watermark:
            text = f"broker {broker_id} notes {note.committed_offset} as committed"
            facts = f"its high watermark is {replica.state.high_watermark}"
            self._reference.find(INVARIANT, text, TopicPartition(topic, int(number)), facts, str(note))
