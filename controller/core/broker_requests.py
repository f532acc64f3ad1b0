"""Requests of brokers: to change an ISR, to shut down, to move leaders away from failing replicas. Pure.

Owns: these requests from event to answer (replication rules, sections 6 and 9; hardening rule 13). Leaves to others:
the checks of an ISR (`alter_partition`) and elections (`election`).
"""

import msgspec

from minibroker.controller.core import deletion
from minibroker.controller.core.alter_partition import check_proposal, refusal, success
from minibroker.controller.core.control_requests import stop_replica
from minibroker.controller.core.controller_state import ControllerState
from minibroker.controller.core.effects import (
    ask_logs,
    send_leader_and_isr,
    send_live_brokers,
    send_metadata,
    send_to_broker,
    write_effects,
)
from minibroker.controller.core.election import PartitionChange, elect_all
from minibroker.controller.core.events import (
    AlterPartitionReceived,
    AlterPartitionSettled,
    Answer,
    ContinueWith,
    ControlledShutdownReceived,
    ControllerEffect,
    LeadersMoved,
    ReplicasFailed,
    Report,
    RequestId,
)
from minibroker.protocol.counted import counted
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.controller_events import BrokerStopping, OfflineReplicasReported
from minibroker.protocol.ids import BrokerId, TopicPartition
from minibroker.protocol.wire.messages import (
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionTopicResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    Response,
    grouped_by_topic,
    partitions_in,
)


def on_replicas_failed(state: ControllerState, event: ReplicasFailed) -> list[ControllerEffect]:
    if not state.is_registered_as(event.broker_id, event.broker_epoch):
        return []
    if event.is_overtaken:  # taken for true, a recovery that is already reported would never be learnt
        return send_leader_and_isr(state, event.partitions, [event.broker_id])
    offline = state.offline_replicas.get(event.broker_id, frozenset()) | frozenset(event.partitions)
    return _set_offline(state, event.broker_id, offline, f"a log directory of broker {event.broker_id} failed")


def _set_offline(
    state: ControllerState, broker_id: BrokerId, offline: frozenset[TopicPartition], reason: str
) -> list[ControllerEffect]:
    """Exactly these replicas of a live broker are offline (hardening rule 13)."""
    before = state.offline_replicas.get(broker_id, frozenset())
    reported = state.logs.get(broker_id, {})
    recovered = {each for each in reported if reported[each].unavailable is not None} - offline
    affected = sorted(each for each in (before ^ offline) | recovered if broker_id in state.assignment(each))
    state.offline_replicas = {**state.offline_replicas, broker_id: offline}
    state.forget_logs_of(broker_id, affected)
    changes = elect_all(state, affected, reason)
    elected = {change.partition for change in changes}
    changes += [
        change
        for each in affected
        if each in offline and each not in elected
        if (change := _forget_position(state, each, broker_id, reason)) is not None
    ]
    changing = {change.partition for change in changes}
    well = [each for each in affected if each not in offline and each not in changing]
    effects: list[ControllerEffect] = [
        *send_leader_and_isr(state, well, [broker_id]),
        *ask_logs(state, affected),
        *write_effects(changes),
    ]
    effects += send_metadata(state, [each for each in affected if each not in changing])
    return [*effects, *deletion.resume(state)]


def _forget_position(
    state: ControllerState, partition: TopicPartition, broker_id: BrokerId, reason: str
) -> PartitionChange | None:
    """A new epoch also for a replica that goes offline outside the ISR: the position that it reported to its leader no
    longer counts, no proposal based on it can be applied, and so a damaged replica may be reset."""
    before = state.leaderships.get(partition)
    if before is None or before.leader not in state.brokers or broker_id in before.in_sync_replicas:
        return None  # where the leader is gone, the next election begins that epoch
    if state.is_being_deleted(partition.topic) or partition in state.unreadable:
        return None
    after = msgspec.structs.replace(
        before, leader_epoch=before.leader_epoch + 1, controller_epoch=state.controller_epoch
    )
    return PartitionChange(partition=partition, before=before, after=after, reason=reason)


def on_alter_partition(state: ControllerState, event: AlterPartitionReceived) -> list[ControllerEffect]:
    request = event.request
    if not state.is_registered_as(request.broker_id, request.broker_epoch):
        return [_refuse(event.request_id, ErrorCode.STALE_BROKER_EPOCH)]
    results: list[tuple[TopicPartition, AlterPartitionResult | PartitionChange]] = []
    for topic in request.topics:
        for proposal in topic.partitions:
            partition = TopicPartition(topic.topic_name, proposal.partition_index)
            result = check_proposal(state, request.broker_id, partition, proposal, topic.topic_id)
            results.append((partition, result))
    changes = [result for _, result in results if isinstance(result, PartitionChange)]
    settled = AlterPartitionSettled(request_id=event.request_id, broker_id=request.broker_id, results=tuple(results))
    return [*write_effects(_first_of_each(changes)), ContinueWith(event=settled)]


def _first_of_each(changes: list[PartitionChange]) -> list[PartitionChange]:
    """Of two proposals for one partition in a request, the first is written; the second then has an old version."""
    return list({change.partition: change for change in reversed(changes)}.values())[::-1]


def on_alter_partition_settled(state: ControllerState, event: AlterPartitionSettled) -> list[ControllerEffect]:
    """Answer. A leader that is behind changes nothing until it gets LeaderAndIsr, so that is sent again (I38)."""
    topics: dict[str, list[AlterPartitionResult]] = {}
    behind: list[TopicPartition] = []
    for partition, result in event.results:
        if isinstance(result, PartitionChange):
            result = _result_of_write(state, result)
        topics.setdefault(partition.topic, []).append(result)
        if result.error_code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION):
            behind.append(partition)
    response = AlterPartitionResponse(
        topics=[AlterPartitionTopicResponse(topic_name=name, partitions=topics[name]) for name in topics]
    )
    answer = Answer(request_id=event.request_id, response=response)
    return [answer, *send_leader_and_isr(state, behind, [event.broker_id])]


def _result_of_write(state: ControllerState, change: PartitionChange) -> AlterPartitionResult:
    """Success only if ZooKeeper now holds exactly this change."""
    current = state.leaderships.get(change.partition)
    if current is not None:
        wanted = msgspec.structs.replace(change.after, partition_epoch=current.partition_epoch)
        if current == wanted:
            return success(change.partition, current)
    return refusal(change.partition.partition, ErrorCode.INVALID_UPDATE_VERSION)


def on_controlled_shutdown(state: ControllerState, event: ControlledShutdownReceived) -> list[ControllerEffect]:
    request = event.request
    if not state.is_registered_as(request.broker_id, request.broker_epoch):
        return [_refuse(event.request_id, ErrorCode.STALE_BROKER_EPOCH)]
    if request.offline_partitions is not None:
        return _on_offline_partitions(state, event.request_id, request)
    broker_id = request.broker_id
    state.shutting_down = state.shutting_down | {broker_id}
    partitions = [each for each in state.partitions_on({broker_id}) if len(state.assignment(each)) > 1]
    leaders = state.leaderships
    followed = tuple(each for each in partitions if each in leaders and leaders[each].leader != broker_id)
    moved = LeadersMoved(
        request_id=event.request_id, broker_id=broker_id, partitions=tuple(partitions), followed=followed
    )
    effects: list[ControllerEffect] = [Report(event=BrokerStopping(broker=broker_id))]
    effects += send_live_brokers(state)
    effects += write_effects(elect_all(state, partitions, f"broker {broker_id} is shutting down"))
    return [*effects, ContinueWith(event=moved)]


def _on_offline_partitions(
    state: ControllerState, request_id: RequestId, request: ControlledShutdownRequest
) -> list[ControllerEffect]:
    assert request.offline_partitions is not None
    broker_id, epoch = request.broker_id, request.broker_epoch
    if request.report_number < state.newest_reports.get(epoch, 0):
        return [_refuse(request_id, ErrorCode.REQUEST_TIMED_OUT)]  # its sender gave it up, and has sent a later one
    state.newest_reports = {**state.newest_reports, epoch: request.report_number}
    offline = frozenset(partitions_in(request.offline_partitions))
    was_offline = bool(state.offline_replicas.get(broker_id))
    reason = (
        f"broker {broker_id} has {counted(len(offline), 'offline replica')}"
        if offline
        else f"broker {broker_id} is well"
    )
    report = Report(event=OfflineReplicasReported(broker=broker_id, replicas=len(offline)))
    effects: list[ControllerEffect] = [report] if offline or was_offline else []
    effects += _set_offline(state, broker_id, offline, reason)
    moved = LeadersMoved(request_id=request_id, broker_id=broker_id, partitions=tuple(sorted(offline)))
    return [*effects, ContinueWith(event=moved)]


def on_leaders_moved(state: ControllerState, event: LeadersMoved) -> list[ControllerEffect]:
    """Stop the replicas that followed (they would rejoin the ISR otherwise), and answer which could not be moved."""
    effects = []
    if event.broker_id in state.shutting_down and event.followed:
        stops = stop_replica(state, event.followed, delete=False)
        effects += send_to_broker(state, event.broker_id, stops)
    present = state.leaderships
    led = [each for each in event.partitions if each in present and present[each].leader == event.broker_id]
    response = ControlledShutdownResponse(remaining_partitions=grouped_by_topic(led))
    return [*effects, Answer(request_id=event.request_id, response=response)]


def _refuse(request_id: RequestId, code: ErrorCode) -> Answer:
    return Answer(request_id=request_id, response=Response(error_code=code))
