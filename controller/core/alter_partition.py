"""Checks of a leader's proposal to change its ISR (KIP-497). Pure.

Owns: the checks of AlterPartition and their order, which is part of the protocol (replication rules, section 6). Leaves
to others: how an accepted change is written. The version check of that write is the last check.

Why this order: a request with higher epochs than this controller knows shows that this controller is deposed, so it
must not decide (KAFKA-14154). A proposal that is already applied is a retry after a lost answer, so it succeeds
whatever version it carries (KAFKA-14144). Eligibility comes last: INELIGIBLE_REPLICA is the only answer after which the
leader may be sure that nothing has changed and that it should withdraw the proposal.
"""

from minibroker.controller.core.controller_state import ControllerState, Leadership, check_leadership
from minibroker.controller.core.election import PartitionChange
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import NONE, BrokerId, TopicPartition, to_wire
from minibroker.protocol.wire.messages import AlterPartitionData, AlterPartitionResult, BrokerState

RECOVERED, RECOVERING = 0, 1
"""leader_recovery_state on the wire."""


def check_proposal(
    state: ControllerState,
    broker_id: BrokerId,
    partition: TopicPartition,
    proposal: AlterPartitionData,
    topic_id: str = "",
) -> PartitionChange | AlterPartitionResult:
    """A change to write, or an answer that needs no write. `topic_id`: of the topic that the leader means; "" is any.

    The request as a whole has been checked: this controller is active, and the broker epoch is the registered one.
    """
    current = state.leaderships.get(partition)
    if current is None or not state.assignment(partition) or state.is_being_deleted(partition.topic):
        return refusal(proposal.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if topic_id not in ("", state.topics[partition.topic].topic_id):  # its epochs may be the same by chance
        return refusal(proposal.partition_index, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if proposal.leader_epoch > current.leader_epoch or proposal.partition_epoch > current.partition_epoch:
        return refusal(proposal.partition_index, ErrorCode.NOT_CONTROLLER)
    if proposal.leader_epoch < current.leader_epoch:
        return refusal(proposal.partition_index, ErrorCode.FENCED_LEADER_EPOCH)
    if _is_applied(current, broker_id, proposal):
        return success(partition, current)
    if proposal.partition_epoch != current.partition_epoch:
        return refusal(proposal.partition_index, ErrorCode.INVALID_UPDATE_VERSION)
    if not _is_legal(state, partition, current, broker_id, proposal):
        return refusal(proposal.partition_index, ErrorCode.INVALID_REQUEST)
    if not all(_is_eligible(state, partition, current, member) for member in proposal.new_isr_with_epochs):
        return refusal(proposal.partition_index, ErrorCode.INELIGIBLE_REPLICA)
    return _accept(state, partition, current, proposal)


def refusal(partition_index: int, code: ErrorCode) -> AlterPartitionResult:
    return AlterPartitionResult(partition_index=partition_index, error_code=code)


def success(partition: TopicPartition, leadership: Leadership) -> AlterPartitionResult:
    """What the leader may take as committed."""
    return AlterPartitionResult(
        partition_index=partition.partition,
        leader_id=to_wire(leadership.leader),
        leader_epoch=leadership.leader_epoch,
        isr=list(leadership.in_sync_replicas),
        leader_recovery_state=RECOVERING if leadership.is_recovering else RECOVERED,
        partition_epoch=leadership.partition_epoch,
    )


def _requested_members(proposal: AlterPartitionData) -> list[BrokerId]:
    return [member.broker_id for member in proposal.new_isr_with_epochs]


def _is_applied(current: Leadership, broker_id: BrokerId, proposal: AlterPartitionData) -> bool:
    return (
        current.leader == broker_id
        and set(current.in_sync_replicas) == set(_requested_members(proposal))
        and current.is_recovering == (proposal.leader_recovery_state == RECOVERING)
    )


def _is_legal(
    state: ControllerState,
    partition: TopicPartition,
    current: Leadership,
    broker_id: BrokerId,
    proposal: AlterPartitionData,
) -> bool:
    """Only the leader may propose, only a subset of the assignment that includes itself; recovery may only end."""
    members = _requested_members(proposal)
    is_set = len(set(members)) == len(members) and set(members) <= set(state.assignment(partition))
    wants_recovering = proposal.leader_recovery_state == RECOVERING
    return (
        proposal.leader_recovery_state in (RECOVERED, RECOVERING)
        and current.leader == broker_id
        and broker_id in members
        and is_set
        and not (wants_recovering and len(members) > 1)
        and not (wants_recovering and not current.is_recovering)
    )


def _is_eligible(state: ControllerState, partition: TopicPartition, current: Leadership, member: BrokerState) -> bool:
    """Live, not shutting down, with a working log directory, and under the registration that the leader saw catch up.

    A member stays only while it runs as recorded: one that was started again may have lost its tail, and a leader
    that misses the controller's orders names its new registration all the same. It leaves first, by an election or by
    the leader's proposal (hardening rule 1). A leader may name a member without an epoch (-1); a replica that joins
    must be the one that fetched (KIP-903). A leader that is shutting down still leads because no other member could
    take over, so it alone may stay in the ISR.
    """
    broker_id = member.broker_id
    if not state.is_online(partition, broker_id):
        return False
    if broker_id in state.shutting_down and broker_id != current.leader:
        return False
    is_member = broker_id in current.in_sync_replicas
    if is_member and not state.runs_as_recorded(current, broker_id):
        return False
    if member.broker_epoch == NONE:
        return is_member
    return state.is_registered_as(broker_id, member.broker_epoch)


def _accept(
    state: ControllerState, partition: TopicPartition, current: Leadership, proposal: AlterPartitionData
) -> PartitionChange:
    assignment, requested = state.assignment(partition), _requested_members(proposal)
    members = tuple(each for each in assignment if each in requested)
    after = Leadership(
        leader=current.leader,
        leader_epoch=current.leader_epoch,
        in_sync_replicas=members,
        incarnations=tuple((each, state.brokers[each].incarnation_id) for each in members),
        directories=tuple((each, state.brokers[each].directory_id) for each in members),
        controller_epoch=state.controller_epoch,
        partition_epoch=current.partition_epoch,
        is_recovering=proposal.leader_recovery_state == RECOVERING,
        topic_id=state.topics[partition.topic].topic_id,
    )
    check_leadership(after, assignment)
    return PartitionChange(partition=partition, before=current, after=after, reason="asked for by the leader")
