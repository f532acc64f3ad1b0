"""Waiting requests and high watermarks: none waits longer than the rules say, and none is refused without need.

Owns: the minimum of in-sync replicas as producers see it (I24: KAFKA-1555, hardening rule 5), and a high watermark that
waits for a replica which may not join (I37: KAFKA-15021). Leaves to others: what is acknowledged (`replicas`).
"""

from collections.abc import Sequence

from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.leader import ACKS_ALL
from minibroker.broker.replication.state import ReplicaState
from minibroker.protocol.errors import ErrorCode
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferenceState

RAISES_HIGH_WATERMARK = (ev.FollowerFetched, ev.BatchesAppended, ev.BrokersChanged)
"""Events after which the high watermark is as high as it may be."""


class WaitingChecker(Checker):
    """Of one run."""

    def __init__(self, reference: ReferenceState) -> None:
        self._reference = reference

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        state = replica.state
        if isinstance(event, ev.ProduceReceived) and event.acks != ACKS_ALL:
            self._check_refusal(replica, event, effects)
        if not state.is_leader or refused:
            return
        if state.waiters and len(state.in_sync_replicas) < state.effective_min_insync_replicas:
            facts = (f"in sync: {state.in_sync_replicas}", f"{len(state.waiters)} requests with acks=all keep waiting")
            self._reference.find(
                "I24", "requests wait although too few replicas are in sync", replica.topic_partition, *facts
            )
        elif isinstance(event, RAISES_HIGH_WATERMARK):
            self._check_high_watermark(replica, state)

    def _check_refusal(
        self, replica: ObservedReplica, event: ev.ProduceReceived, effects: Sequence[ev.ReplicaEffect]
    ) -> None:
        if any(type(e) is ev.AnswerProduce and e.error_code is ErrorCode.NOT_ENOUGH_REPLICAS for e in effects):
            text = f"acks={event.acks} was refused for want of in-sync replicas"
            self._reference.find("I24", text, replica.topic_partition)

    def _check_high_watermark(self, replica: ObservedReplica, state: ReplicaState) -> None:
        """If no replica outside the ISR may join, the high watermark is the smallest log end in the ISR."""
        counted = state.maximal_in_sync_replicas
        if len(state.in_sync_replicas) < state.effective_min_insync_replicas:
            return
        if any(remote.eligible for broker_id, remote in state.remotes.items() if broker_id not in counted):
            return
        ends = [remote.log_end_offset for broker_id, remote in state.remotes.items() if broker_id in counted]
        known = [end for end in ends if end is not None]
        if len(known) == len(ends) and state.high_watermark < min(state.counted_end, *known, state.log_end_offset):
            facts = (
                f"in sync: {counted}, ends {known}, own counted end {state.counted_end}",
                f"the high watermark is {state.high_watermark}",
            )
            self._reference.find(
                "I37", "the high watermark waits for a replica that may not join", replica.topic_partition, *facts
            )
