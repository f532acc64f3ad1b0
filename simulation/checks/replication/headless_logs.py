"""Logs that may lack what stands in front of their recorded start, by no mistake of their broker (seed 17030454).

Owns: which replicas these are. A power loss may leave a hole in front of a start that was recorded; the next start of
the broker takes it for the rest of a deletion. If only a leader that has failed knew of that start, the next leader
begins earlier, and the log starts over. Leaves to others: what is checked of such a replica.
"""

from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS


class HeadlessLogs:
    """Of one run. Tell it of each replica that is loaded."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._boots: dict[tuple[str, TopicPartition], int] = {}
        self._heads: dict[tuple[str, TopicPartition], int] = {}
        """Where the files of such a log begin. A process that starts after a kill finds the same hole."""
        self._replicas: set[ObservedReplica] = set()

    def loaded(self, replica: ObservedReplica) -> None:
        process = PROCESS.get()
        assert process is not None, "brokers run in a process"
        key, boots = (process.name, replica.topic_partition), self._cluster.world.machine(process.name).storage.boots
        lost_power, segments = self._boots.get(key, boots) != boots, replica.log.segments
        head = segments[0].base_offset if segments else None
        self._boots[key] = boots
        if head is not None and replica.log.recorded_start_offset > 0 and (lost_power or self._heads.get(key) == head):
            self._replicas.add(replica)
            self._heads[key] = head
        else:
            self._heads.pop(key, None)

    def __contains__(self, replica: ObservedReplica) -> bool:
        return replica in self._replicas
