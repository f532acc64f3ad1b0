"""Who waits, and for whom: nobody waits longer than the rules say, and nobody is refused whom they serve.

Owns: the minimum of in-sync replicas as producers feel it (I24: KAFKA-1555, hardening rule 5), and the high watermark
that waits for a replica which may not join (I37: KAFKA-15021). Refuses to judge what is acknowledged (`replicas`).
"""

from collections.abc import Sequence

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.leader import ACKS_ALL
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import BatchHeader
from minibroker.simulation.checks.reference_state import ReferenceState

RAISES_HIGH_WATERMARK = (ev.FollowerFetched, ev.BatchesAppended, ev.BrokersChanged)
"""Events after which the mark is as high as it may be."""


class WaitingRules:
    """Hears what `listening` tells."""

    def __init__(self, reference: ReferenceState) -> None:
        self._reference = reference

    def stepped(self, replica: Partition, event: ev.Event, effects: Sequence[ev.Effect], refused: bool) -> None:
        state = replica.state
        if isinstance(event, ev.ProduceReceived) and event.acks != ACKS_ALL:
            self._check_refusal(replica, event, effects)
        if not state.is_leader or refused:
            return
        if state.waiters and len(state.in_sync_replicas) < state.effective_min_insync_replicas:
            facts = (f"in sync: {state.in_sync_replicas}", f"{len(state.waiters)} requests with acks=all wait on")
            self._reference.find("I24", "nobody tells who waits of too few in sync", replica.topic_partition, *facts)
        elif isinstance(event, RAISES_HIGH_WATERMARK):
            self._check_mark(replica, state)

    def _check_refusal(self, replica: Partition, event: ev.ProduceReceived, effects: Sequence[ev.Effect]) -> None:
        if any(type(e) is ev.AnswerProduce and e.error_code is ErrorCode.NOT_ENOUGH_REPLICAS for e in effects):
            text = f"acks={event.acks} was refused for want of in-sync replicas"
            self._reference.find("I24", text, replica.topic_partition)

    def _check_mark(self, replica: Partition, state: ReplicaState) -> None:
        """With nobody outside who might join, the mark is the smallest end of those in sync."""
        counted = state.maximal_in_sync_replicas
        if len(state.in_sync_replicas) < state.effective_min_insync_replicas:
            return
        if any(remote.eligible for broker_id, remote in state.remotes.items() if broker_id not in counted):
            return
        ends = [remote.log_end_offset for broker_id, remote in state.remotes.items() if broker_id in counted]
        known = [end for end in ends if end is not None]
        if len(known) == len(ends) and state.high_watermark < min(state.vote, *known, state.log_end_offset):
            facts = (f"in sync: {counted}, ends {known}, own vote {state.vote}", f"the mark is {state.high_watermark}")
            self._reference.find("I37", "the mark waits for who may not join", replica.topic_partition, *facts)

    # ------------------------------------------------------------------------------------------------ of no interest
    def ordered(self, controller_epoch: int) -> None: ...
    def replica_loaded(self, replica: Partition) -> None: ...
    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None: ...
    def cut(self, log: PartitionLog, failed: bool) -> None: ...
