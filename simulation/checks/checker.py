"""What a checker of a run is told, and the one way to subscribe it.

Owns: the interface of checkers, and their subscription (`checking`). Leaves to others: all checks, and which checkers a
run has (`simulation/swarm/checkers.py`). docs/QUESTIONS.md lists the steps that add one.
"""

import contextlib
from collections.abc import Iterator, Sequence

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.observations import (
    BatchesLogged,
    LogShortened,
    ObservedReplica,
    OrderAdmitted,
    ReplicaLoaded,
    ReplicaStepped,
)
from minibroker.broker.replication import events as ev
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.observer import Handlers
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster


class ReplicaListener:
    """Base of whatever follows the replicas of a run. Each method is called right after its event, in the process that
    caused it."""

    def ordered(self, controller_epoch: int) -> None:
        """See `OrderAdmitted`."""

    def replica_loaded(self, replica: ObservedReplica) -> None:
        """See `ReplicaLoaded`."""

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        """See `ReplicaStepped`."""

    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None:
        """See `BatchesLogged`."""

    def shortened(self, log: PartitionLog, failed: bool) -> None:
        """See `LogShortened`."""

    def replica_events(self) -> Handlers:
        """What it does with events of the observer port. It is not called for methods that it does not override: a run
        has thousands of these events."""
        calls: Handlers = {
            OrderAdmitted: lambda event: self.ordered(event.controller_epoch),
            ReplicaLoaded: lambda event: self.replica_loaded(event.replica),
            ReplicaStepped: lambda event: self.stepped(event.replica, event.event, event.effects, event.is_refused),
            BatchesLogged: lambda event: self.appended(event.replica.log, [header for header, _ in event.batches]),
            LogShortened: lambda event: self.shortened(event.replica.log, event.has_failed),
        }
        names = ("ordered", "replica_loaded", "stepped", "appended", "shortened")
        return {
            kind: call
            for name, (kind, call) in zip(names, calls.items(), strict=True)
            if getattr(type(self), name) is not getattr(ReplicaListener, name)
        }


class Checker(ReplicaListener):
    """Base of the checkers of a run: override what matters. It reports by `ReferenceState.find`."""

    def state_written(self, partition: TopicPartition) -> None:
        """The state of this partition was written in ZooKeeper, just now; or all of its data was replaced, and this
        partition has no state, or begins with another one (two calls)."""

    def sample(self) -> None:
        """Called every few hundredths of a virtual second: for what no event reports."""

    def world_events(self) -> Handlers:
        """What it does with events of the simulated world (`simulation/world/observations.py`): nothing, unless
        overridden."""
        return {}


@contextlib.contextmanager
def checking(cluster: SimulatedCluster, reference: ReferenceState, checker: Checker) -> Iterator[None]:
    """Tell the checker everything until the block ends (events of the world: until the world ends)."""
    for kind, handle in checker.world_events().items():
        cluster.world.world_observers.subscribe(kind, handle)
    reference.listeners.append(checker.state_written)
    reference.samplers.append(checker.sample)
    try:
        with cluster.world.observers.subscribed(checker.replica_events()):
            yield
    finally:
        reference.listeners.remove(checker.state_written)
        reference.samplers.remove(checker.sample)
