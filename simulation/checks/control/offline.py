"""A leader with a failed log or directory is replaced in bounded time, if another in-sync replica can lead.

Owns: how long each leader in ZooKeeper has been offline, counted only while nothing else is broken. Leaves to others:
why it is offline.
"""

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.cluster import SimulatedCluster

BOUND_SECONDS = 5.0
"""Time for a report to the controller, an election and its orders, with every request repeated once."""


class OfflineLeaderChecker(Checker):
    """Checks one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._since: dict[tuple[TopicPartition, int], float] = {}

    def sample(self) -> None:
        now = self._cluster.world.loop.elapsed
        for actual in self._reference.states():
            key = (actual.partition, actual.leader_epoch)
            if actual.leader == -1 or not self._is_offline(actual) or not self._reference.is_calm(actual):
                self._since.pop(key, None)
            elif now - self._since.setdefault(key, now) > BOUND_SECONDS:
                self._since[key] = now
                facts = (f"broker {actual.leader} leads epoch {actual.leader_epoch}", f"in sync: {actual.members}")
                text = f"the leader has been offline for {BOUND_SECONDS:.0f} s, and others could lead"
                self._reference.find("I42", text, actual.partition, *facts)

    def _is_offline(self, actual: ReferencePartition) -> bool:
        replica = self._cluster.replica(actual.leader, actual.partition.topic, actual.partition.partition)
        return replica is not None and (replica.state.is_offline or replica.log.health.offline)
