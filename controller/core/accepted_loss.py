"""An election that an operator orders because no replica can be elected without a loss. Pure.

Owns: what each replica of a partition without a leader holds, which one holds the most, what is lost if it leads, and
the election itself. Elects only where there is no leader.

Theory (KIP-966). Where no in-sync member has its log (a replaced disk, damage), or the one that has it does not come
back, only a person can know which records may be given up. So the controller offers, of all live replicas, in the ISR
or not, the one that lost least as far as an election can tell (`restarted_members`): the largest log, but an epoch
alone, which may be a flipped bit, outvotes no undisturbed log. The answer names the ISR members that may have held
more. The order repeats this answer: a broker may come or go in between, and the loss would be another one.
"""

from collections.abc import Mapping

import msgspec

from minibroker.controller.core import restarted_members
from minibroker.controller.core.controller_state import LOG_EPOCH_MAX, ControllerState, LossChoice, ReplicaLog
from minibroker.controller.core.election import PartitionChange, change_to
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import NONE, BrokerEpoch, BrokerId, TopicPartition
from minibroker.protocol.wire.message_types import clipped
from minibroker.protocol.wire.messages import ConfirmedElection, ElectionCandidate, ElectionPreview

Logs = Mapping[BrokerId, Mapping[TopicPartition, ReplicaLog]]


def preview(state: ControllerState, partition: TopicPartition, logs: Logs, wanted: BrokerId | None) -> ElectionPreview:
    """Which replicas could lead this partition, and which is best; `wanted` is the operator's own choice."""
    leadership = state.leaderships.get(partition)
    assignment = state.assignment(partition)
    if not assignment or state.is_being_deleted(partition.topic):
        text = f"{partition.topic} is being deleted" if assignment else f"there is no partition {partition}"
        return _refusal(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)
    if leadership is None:  # metadata lists it, so that clients count it
        why = "its state in ZooKeeper cannot be used" if partition in state.unreadable else "it has had no leader yet"
        text = f"{partition} has no state: {why}; its replicas belong on brokers {list(assignment)}"
        return _refusal(partition, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, text)
    if leadership.leader is not None:
        text = f"{partition} is led by broker {leadership.leader}"
        return _refusal(partition, ErrorCode.ELECTION_NOT_NEEDED, text)
    candidates = [_candidate(state, partition, logs, each) for each in assignment]
    able = [each.broker_id for each in candidates if each.problem is None]
    with_logs = msgspec.structs.replace(state, logs={broker_id: dict(held) for broker_id, held in logs.items()})
    best = restarted_members.best_log(with_logs, partition, leadership, able)
    if wanted is not None:
        best = wanted if wanted in able else None
    choice = restarted_members.choose(state, partition, leadership)
    return ElectionPreview(
        topic_name=partition.topic,
        partition_index=partition.partition,
        error_code=ErrorCode.NONE if best is not None else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        leader_epoch=leadership.leader_epoch,
        isr=list(leadership.in_sync_replicas),
        waits_for=list(choice.waits_for),
        reason=clipped(choice.reason),
        candidates=candidates,
        chosen=NONE if best is None else best,
    )


def _refusal(partition: TopicPartition, code: ErrorCode, text: str) -> ElectionPreview:
    return ElectionPreview(
        topic_name=partition.topic, partition_index=partition.partition, error_code=code, error_message=text
    )


def _candidate(state: ControllerState, partition: TopicPartition, logs: Logs, broker_id: BrokerId) -> ElectionCandidate:
    leadership = state.leaderships[partition]
    is_in_sync = broker_id in leadership.in_sync_replicas
    log = logs.get(broker_id, {}).get(partition)
    is_elsewhere = is_in_sync and broker_id in state.brokers and not state.has_its_directory(leadership, broker_id)
    problem = None
    if not state.is_live(broker_id):
        problem = "is not registered"
    elif broker_id in state.shutting_down:
        problem = "is shutting down"
    elif log is None:
        problem = "does not answer"
    elif (damage := restarted_members.damage_of(leadership, log)) is not None:
        problem = f"has a damaged log: {damage}"
    elif log.unavailable is not None or not state.is_online(partition, broker_id):
        problem = "has an offline replica"
    elif restarted_members.is_of_another_topic(state, partition, log):
        problem = restarted_members.OTHER_TOPIC
    held = log if log is not None else ReplicaLog(exists=False)
    return ElectionCandidate(
        broker_id=broker_id,
        is_in_sync=is_in_sync,
        is_on_its_directory=not is_elsewhere,
        problem=None if problem is None else clipped(problem),
        log_start_offset=held.log_start_offset,
        log_end_offset=held.log_end_offset,
        last_epoch=held.last_epoch,
    )


def choice_of(state: ControllerState, confirmed: ConfirmedElection, now: ElectionPreview) -> LossChoice | str:
    """The election that the operator confirmed, or what has changed since. The operator accepts one named loss: with
    another leader, or another log of this one, the loss would be another."""
    partition = TopicPartition(now.topic_name, now.partition_index)
    if now.error_code and now.error_message is not None:
        return now.error_message
    if confirmed.leader_epoch != now.leader_epoch:
        return f"{partition} is in leader epoch {now.leader_epoch}, not {confirmed.leader_epoch}"
    leader = next((each for each in now.candidates if each.broker_id == confirmed.leader), None)
    if leader is None or leader.problem is not None:
        return f"broker {confirmed.leader} {leader.problem if leader is not None else 'has no replica'}"
    if now.chosen != confirmed.leader:
        return f"broker {now.chosen} would be elected now, not broker {confirmed.leader}"
    if (leader.last_epoch, leader.log_end_offset) != (confirmed.last_epoch, confirmed.log_end_offset):
        held = f"{confirmed.log_end_offset}, last epoch {confirmed.last_epoch}"
        return f"the log of broker {confirmed.leader} ended at {held}, and ends at {leader.log_end_offset} now"
    return LossChoice(
        partition=partition,
        leader=confirmed.leader,
        leader_epoch=confirmed.leader_epoch,
        latest_epoch_in_logs=latest_epoch_in(now),
        broker_epoch=state.brokers[confirmed.leader].broker_epoch,
        live_members=_live_members(state, partition),
    )


def _live_members(state: ControllerState, partition: TopicPartition) -> tuple[BrokerEpoch, ...]:
    members = state.leaderships[partition].in_sync_replicas
    return tuple(state.brokers[each].broker_epoch for each in members if each in state.brokers)


def latest_epoch_in(now: ElectionPreview) -> int:
    return max((each.last_epoch for each in now.candidates if each.last_epoch <= LOG_EPOCH_MAX), default=-1)


def elect_as_chosen(state: ControllerState, choices: tuple[LossChoice, ...]) -> list[PartitionChange]:
    """Elect only where everything still is as the operator confirmed it."""
    changes = []
    for choice in choices:
        leadership = state.leaderships.get(choice.partition)
        if (
            leadership is not None
            and leadership.leader is None
            and leadership.leader_epoch == choice.leader_epoch
            and not state.is_being_deleted(choice.partition.topic)
            and state.is_eligible(choice.partition, choice.leader)
            and state.brokers[choice.leader].broker_epoch == choice.broker_epoch
            and set(_live_members(state, choice.partition)) <= set(choice.live_members)  # a new one may have more
        ):
            reason = "an operator accepts the loss of what other members of the ISR held"
            changes.append(
                change_to(state, choice.partition, leadership, choice.leader, reason, choice.latest_epoch_in_logs)
            )
    return [change for change in changes if change is not None]
