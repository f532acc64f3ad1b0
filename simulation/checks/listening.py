"""The events that a checker of replicas receives: each step of a replica, each append and each cut of a log.

Owns: the interface of such a checker, and its subscription to a world's observers. Leaves to others: all checks.
"""

import contextlib
from collections.abc import Sequence

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.observations import (
    BatchesLogged,
    LogCut,
    ObservedReplica,
    OrderAdmitted,
    ReplicaLoaded,
    ReplicaStepped,
)
from minibroker.broker.replication import events as ev
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.observer import Observers


class ReplicaListener:
    """Base of the checkers of replicas: override what matters. Called right after each event, in the process that
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

    def cut(self, log: PartitionLog, failed: bool) -> None:
        """See `LogCut`."""


def listening(observers: Observers, listener: ReplicaListener) -> contextlib.AbstractContextManager[None]:
    """Call the listener for every event until the block ends."""

    def dispatch(event: object) -> None:
        if type(event) is ReplicaStepped:
            listener.stepped(event.replica, event.event, event.effects, event.is_refused)
        elif type(event) is BatchesLogged:
            listener.appended(event.replica.log, [header for header, _ in event.batches])
        elif type(event) is LogCut:
            listener.cut(event.replica.log, event.has_failed)
        elif type(event) is ReplicaLoaded:
            listener.replica_loaded(event.replica)
        elif type(event) is OrderAdmitted:
            listener.ordered(event.controller_epoch)

    return observers.subscribed(dispatch)
