"""A leader whose log or directory has failed hands over in bounded time, if somebody else in sync could lead.

Owns: since when each leader by ZooKeeper's word is known to be offline, counted only while nothing else is broken.
Refuses to know why it is offline.
"""

from collections.abc import Callable

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.cluster import SimulatedCluster

BOUND_SECONDS = 5.0
"""A report to the controller, an election and its orders, with every request repeated once."""


class OfflineLeaders:
    """Looks when `ReferenceState` takes its samples."""

    def __init__(
        self, cluster: SimulatedCluster, reference: ReferenceState, is_calm: Callable[[ReferencePartition], bool]
    ) -> None:
        """`is_calm`: whether nothing but disks is broken now, and another member of this ISR could lead."""
        self._cluster = cluster
        self._reference = reference
        self._is_calm = is_calm
        self._since: dict[tuple[TopicPartition, int], float] = {}
        reference.samplers.append(self.look)

    def look(self) -> None:
        now = self._cluster.world.loop.elapsed
        for true in self._reference.states():
            key = (true.partition, true.leader_epoch)
            if true.leader == -1 or not self._is_offline(true) or not self._is_calm(true):
                self._since.pop(key, None)
            elif now - self._since.setdefault(key, now) > BOUND_SECONDS:
                self._since[key] = now
                facts = (f"broker {true.leader} leads epoch {true.leader_epoch}", f"in sync: {true.members}")
                text = f"the leader is offline for {BOUND_SECONDS:.0f} s, and others could lead"
                self._reference.find("I42", text, true.partition, *facts)

    def _is_offline(self, true: ReferencePartition) -> bool:
        replica = self._cluster.replica(true.leader, true.partition.topic, true.partition.partition)
        return replica is not None and (replica.state.is_offline or replica.log.storage.offline)
