"""Only the leader decides the log start (I39: log_start(replica) <= log_start(leader)).

Owns: two checks of each follower: a start that rises in a step is not above the start of the leader of that epoch, and
no follower has deleted records with which its leader's log still begins. And one check of each replica: its files begin
at or below its low watermark. Leaves to others: why a start rises (`log_starts` has a sum of its own for that), and
what a damaged replica holds.
"""

from collections.abc import Sequence

from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import Role
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.replication.headless_logs import HeadlessLogs
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS


class LeaderStartChecker(Checker):
    """Checks one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._starts: dict[ObservedReplica, int] = {}
        self._answered: dict[ObservedReplica, int] = {}
        """The leader epoch of the last answer from which the replica learned where its leader's log starts."""
        self._headless = HeadlessLogs(cluster)

    def replica_loaded(self, replica: ObservedReplica) -> None:
        self._starts[replica] = replica.state.log_start_offset
        self._headless.loaded(replica)

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        if isinstance(event, ev.FetchAnswered) and event.log_start_offset is not None and not event.diverging:
            self._answered[replica] = event.leader_epoch
        start = replica.state.log_start_offset
        before, self._starts[replica] = self._starts.get(replica, start), start
        if start <= before or replica.state.role is not Role.FOLLOWER:
            return
        leader = self._leader_of(replica)
        if leader is not None and leader.state.log_start_offset < start:
            facts = (f"it was {before}, it is {start}", f"its leader's is {leader.state.log_start_offset}")
            text = f"{PROCESS.get()} raises its log start above its leader's"
            self._reference.find("I39", text, replica.topic_partition, *facts)

    def sample(self) -> None:
        """Compare the first offsets of followers' files. An empty log cannot lack anything."""
        for actual in self._reference.states():
            for broker_id in self._cluster.broker_ids:
                replica = self._cluster.replica(broker_id, actual.partition.topic, actual.partition.partition)
                if replica is None or replica.log.damage is not None:
                    continue
                if replica.state.role in (Role.LEADER, Role.FOLLOWER):
                    self._check_low_watermark(broker_id, replica, actual.partition)
                if replica.state.role is Role.FOLLOWER and replica.log.size_bytes:
                    self._compare(broker_id, replica, actual.partition)

    def _check_low_watermark(self, broker_id: int, replica: ObservedReplica, partition: TopicPartition) -> None:
        first, low = first_offset(replica), replica.state.low_watermark
        if first > low:
            facts = (f"its files begin at {first}", f"its low watermark is {low}")
            self._reference.find("I39", f"broker {broker_id} has deleted above its low watermark", partition, *facts)

    def _compare(self, broker_id: int, replica: ObservedReplica, partition: TopicPartition) -> None:
        leader = self._leader_of(replica)
        first = first_offset(replica)
        if leader is None or first <= leader.state.log_start_offset:
            return
        is_disk_faulty = not self._reference.faulty.isdisjoint((broker_id, replica.state.leader_id))
        is_explained = is_disk_faulty or replica in self._headless or partition in self._reference.uncleanly_led
        if is_explained and self._answered.get(replica) != replica.state.leader_epoch:
            # its own start, which this leader never heard of, explains what the disk lost (seed 17351561); or the
            # leader's disk has an older start than the one that was recorded there (seed 17362972); or the leader was
            # not in sync when the follower deleted, and was elected uncleanly (seed 17250724)
            return
        facts = (f"its first record is at {first}", f"its leader's log starts at {leader.state.log_start_offset}")
        self._reference.find("I39", f"broker {broker_id} has deleted what its leader has not", partition, *facts)

    def _leader_of(self, replica: ObservedReplica) -> ObservedReplica | None:
        """The leader of the epoch that it follows, if that broker runs as such."""
        partition, state = replica.topic_partition, replica.state
        if state.leader_id is None or not self._reference.is_promised(partition.topic):
            return None
        leader = self._cluster.replica(state.leader_id, partition.topic, partition.partition)
        leads = leader is not None and leader.state.is_leader and leader.state.leader_epoch == state.leader_epoch
        return leader if leads else None


def first_offset(replica: ObservedReplica) -> int:
    """First offset of its files."""
    return replica.log.segments[0].base_offset
