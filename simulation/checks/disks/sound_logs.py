"""While no disk is faulty, no log is damaged (I44): a broker that only fell behind or only lost power keeps its log.

Owns: a look at each replica that reports its log damaged, at a start or later. Does nothing while any disk is faulty: a
log may then be given up for its leader's. A cluster heals from such a mistake, so no other checker sees it: the log is
set aside and fetched again, and at the fourth time within an hour its replica stays offline.
"""

from collections.abc import Sequence

from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.log_starts import HEAD_MISSING
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.replication.headless_logs import HeadlessLogs
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS


class SoundLogChecker(Checker):
    """Of one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._reference = reference
        self._headless = HeadlessLogs(cluster)
        """A leader that begins earlier makes such a log start over."""

    def replica_loaded(self, replica: ObservedReplica) -> None:
        self._headless.loaded(replica)
        if replica.log.damage is not None:
            self._check(replica, replica.log.damage)

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        for effect in effects:
            if type(effect) is not ev.DamageNoted:
                continue
            is_lawful = replica in self._headless and effect.reason.endswith(HEAD_MISSING)
            if not is_lawful:
                self._check(replica, effect.reason)

    def _check(self, replica: ObservedReplica, reason: str) -> None:
        if not self._reference.faulty and self._reference.is_promised(replica.topic_partition.topic):
            text = f"{PROCESS.get()} reports a damaged log, and no disk is faulty"
            self._reference.find("I44", text, replica.topic_partition, reason)
