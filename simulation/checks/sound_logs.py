"""While no disk is faulty, no log is damaged (I44): who has only fallen behind, or only lost its power, keeps its log.

Owns: a look at whoever calls a log damaged, at a start or later. Refuses to judge while any disk is faulty: a log may
be given up for what its leader's holds. A cluster heals from such a mistake, so nothing else sees it: the log is set
aside and fetched anew, and at the fourth time within an hour its replica stays offline.
"""

from collections.abc import Sequence

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.node import PROCESS


class SoundLogs:
    """Hears what `listening` tells."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._boots: dict[tuple[str, TopicPartition], int] = {}
        self._headless: set[Partition] = set()
        """Loaded after a power loss with a recorded start above 0: in front of it a hole may have been, which the start
        took for the leftover of a deletion. A leader that begins earlier has it begin anew (seed 17030454)."""

    def replica_loaded(self, replica: Partition) -> None:
        process = PROCESS.get()
        assert process is not None, "brokers run in a process"
        key, boots = (process.name, replica.topic_partition), self._cluster.world.machine(process.name).storage.boots
        if self._boots.get(key, boots) != boots and replica.log.recorded_start_offset > 0:
            self._headless.add(replica)
        self._boots[key] = boots
        if replica.log.damage is not None:
            self._check(replica, replica.log.damage)

    def stepped(self, replica: Partition, event: ev.Event, effects: Sequence[ev.Effect], refused: bool) -> None:
        for effect in effects:
            if type(effect) is not ev.DamageNoted:
                continue
            is_lawful = replica in self._headless and effect.reason.endswith("its head is missing")
            if not is_lawful:
                self._check(replica, effect.reason)

    def _check(self, replica: Partition, reason: str) -> None:
        if not self._reference.faulty and self._reference.is_promised(replica.topic_partition.topic):
            text = f"{PROCESS.get()} calls a log damaged, and no disk is faulty"
            self._reference.find("I44", text, replica.topic_partition, reason)

    # ------------------------------------------------------------------------------------------------ of no interest
    def ordered(self, controller_epoch: int) -> None: ...
    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None: ...
    def cut(self, log: PartitionLog, failed: bool) -> None: ...
