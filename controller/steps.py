"""The controller as a state machine: `step(state, event) -> effects`. Pure.

Owns: what follows from each event: which elections, who is told what, in which order. Refuses to know ZooKeeper, queues
and time. The rules of the elections themselves are in `election`, of deletions in `deletion`.

Order matters in three places (replication.md 9.3 to 9.7): brokers hear of a decision only after it was written; on
taking over UpdateMetadata goes to all before any LeaderAndIsr, so that a follower knows its leader to be alive; and a
broker that has just registered hears everything, because it remembers nothing.

`step` changes the state it is given. It is deterministic: lists are sorted, and no set reaches an effect.
"""

from collections.abc import Iterable, Sequence

import msgspec

from minibroker.controller import deletion
from minibroker.controller.alter_partition import judge, refusal, success
from minibroker.controller.cluster_state import ClusterState, LiveBroker
from minibroker.controller.election import PartitionChange, elect_all, elect_preferred, imbalanced_partitions
from minibroker.controller.events import (
    AlterPartitionAsked,
    AlterPartitionSettled,
    Answer,
    BrokersSeen,
    CloseChannel,
    ControlledShutdownAsked,
    DeletionsSeen,
    Effect,
    Event,
    LeadershipsWritten,
    LeadersMoved,
    OpenChannel,
    RebalanceDue,
    ReplicasErased,
    ReplicasFailed,
    Report,
    RequestId,
    Send,
    Then,
    TookOver,
    TopicConfigsSeen,
    TopicErased,
    TopicsSeen,
    WriteLeaderships,
)
from minibroker.controller.instructions import (
    Instruction,
    leader_and_isr,
    live_brokers,
    stop_replica,
    update_metadata,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import BrokerId, TopicPartition
from minibroker.protocol.messages import (
    AlterPartitionResponse,
    AlterPartitionResult,
    AlterPartitionTopicResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    Response,
    TopicPartitions,
)
from minibroker.protocol.messages import LiveBroker as BrokerOnWire


def step(state: ClusterState, event: Event) -> list[Effect]:
    """Let one event happen: change `state`, and say what is to be done."""
    match event:
        case TookOver():
            return _on_took_over(state)
        case BrokersSeen():
            return _on_brokers_seen(state, event)
        case TopicsSeen():
            return _on_topics_seen(state, event)
        case LeadershipsWritten():
            return _on_leaderships_written(state, event)
        case AlterPartitionAsked():
            return _on_alter_partition(state, event)
        case AlterPartitionSettled():
            return _on_alter_partition_settled(state, event)
        case ControlledShutdownAsked():
            return _on_controlled_shutdown(state, event)
        case LeadersMoved():
            return _on_leaders_moved(state, event)
        case ReplicasFailed():
            return _on_replicas_failed(state, event)
        case RebalanceDue():
            return _write([elect_preferred(state, each, "preferred leader") for each in imbalanced_partitions(state)])
        case DeletionsSeen():
            return deletion.on_deletions_seen(state, event)
        case ReplicasErased():
            return deletion.on_replicas_erased(state, event)
        case TopicErased():
            return deletion.on_topic_erased(state, event)
        case TopicConfigsSeen():
            return _on_topic_configs_seen(state, event)
    raise AssertionError(f"unknown event {event}")


# ------------------------------------------------------------------------------------------- brokers come and go
def _on_took_over(state: ClusterState) -> list[Effect]:
    partitions = state.partitions()
    effects: list[Effect] = [OpenChannel(broker=broker) for broker in state.live_brokers()]
    effects += deletion.resume(state)
    effects += tell_metadata(state, partitions, to=state.brokers)
    changes = elect_all(state, partitions, "controller failover")
    changing = {change.partition for change in changes}
    effects += _tell_leaders(state, [each for each in partitions if each not in changing], state.brokers)
    return [*effects, *_write(changes)]


def _on_brokers_seen(state: ClusterState, event: BrokersSeen) -> list[Effect]:
    """Compare by id and epoch: a broker that bounced between two looks went down and came up (KIP-380)."""
    before, now = state.brokers, event.brokers
    gone = sorted(each for each in before if each not in now)
    came = sorted(each for each in now if each not in before)
    bounced = sorted(each for each in now if each in before and before[each].broker_epoch != now[each].broker_epoch)
    affected = frozenset([*gone, *came, *bounced])
    if not affected:
        return []
    state.brokers = dict(now)
    state.shutting_down = state.shutting_down - affected
    offline = state.offline_replicas
    state.offline_replicas = {each: offline[each] for each in offline if each not in affected}

    partitions = state.partitions_on(affected)
    effects: list[Effect] = [CloseChannel(broker_id=each) for each in (*gone, *bounced)]
    effects += [OpenChannel(broker=now[each]) for each in sorted([*came, *bounced])]
    effects += [Report(text=_describe(now[each], each in before)) for each in sorted([*came, *bounced])]
    effects += [Report(text=f"broker {each} is gone", is_warning=True) for each in gone]
    effects += _tell_live_brokers(state, except_for=frozenset([*came, *bounced]))
    for each in sorted([*came, *bounced]):
        effects += tell_metadata(state, state.partitions(), to=[each])
    changes = elect_all(state, partitions, _why(gone, came, bounced))
    changing = {change.partition for change in changes}
    unchanged = [each for each in partitions if each not in changing]
    effects += _tell_leaders(state, unchanged, [*came, *bounced])
    effects += _write(changes)
    effects += tell_metadata(state, unchanged)  # which replicas are offline has changed
    effects += deletion.resume(state)
    return effects


def _describe(broker: LiveBroker, is_known: bool) -> str:
    verb = "registered anew" if is_known else "registered"
    return f"broker {broker.broker_id} {verb} with epoch {broker.broker_epoch}, incarnation {broker.incarnation_id}"


def _why(gone: list[BrokerId], came: list[BrokerId], bounced: list[BrokerId]) -> str:
    words = (("gone", gone), ("here", came), ("restarted", bounced))
    return ", ".join(f"broker {each} is {word}" for word, ids in words for each in ids)


def _on_replicas_failed(state: ClusterState, event: ReplicasFailed) -> list[Effect]:
    if not state.is_registered_as(event.broker_id, event.broker_epoch):
        return []
    offline = state.offline_replicas.get(event.broker_id, frozenset()) | frozenset(event.partitions)
    return _set_offline(state, event.broker_id, offline, f"a log directory of broker {event.broker_id} failed")


def _set_offline(
    state: ClusterState, broker_id: BrokerId, offline: frozenset[TopicPartition], reason: str
) -> list[Effect]:
    """These replicas of a live broker, and no others, are offline (hardening.md 13)."""
    before = state.offline_replicas.get(broker_id, frozenset())
    affected = sorted(each for each in before ^ offline if broker_id in state.assignment(each))
    state.offline_replicas = {**state.offline_replicas, broker_id: offline}
    changes = elect_all(state, affected, reason)
    changing = {change.partition for change in changes}
    well = [each for each in affected if each not in offline and each not in changing]
    effects: list[Effect] = [*_tell_leaders(state, well, [broker_id]), *_write(changes)]
    effects += tell_metadata(state, [each for each in affected if each not in changing])
    return [*effects, *deletion.resume(state)]


# ------------------------------------------------------------------------------------------------ topics, leaders
def _on_topics_seen(state: ClusterState, event: TopicsSeen) -> list[Effect]:
    added = {name: event.added[name] for name in sorted(event.added) if name not in state.topics}
    for name in event.removed:
        for partition in state.partitions_of(name) if name in state.topics else []:
            state.leaderships.pop(partition, None)
        state.topics.pop(name, None)
        state.deletions.pop(name, None)
    state.topics.update(added)
    state.unreadable = state.unreadable | event.unreadable
    found = sorted(each for each in event.leaderships if each.topic in added)
    state.leaderships.update({each: event.leaderships[each] for each in found})
    partitions = [partition for name in added for partition in state.partitions_of(name)]
    changes = elect_all(state, partitions, "new topic")
    changing = {change.partition for change in changes}
    known = [each for each in partitions if each not in changing]
    return [*tell_metadata(state, known), *_tell_leaders(state, known, state.brokers), *_write(changes)]


def _on_topic_configs_seen(state: ClusterState, event: TopicConfigsSeen) -> list[Effect]:
    topic = state.topics.get(event.topic)
    if topic is None or topic.configs == event.configs:
        return []
    state.topics[event.topic] = msgspec.structs.replace(topic, configs=dict(event.configs))
    partitions = state.partitions_of(event.topic)
    report = Report(text=f"topic {event.topic} has the settings {event.configs}")
    return [report, *tell_metadata(state, partitions), *_write(elect_all(state, partitions, "settings changed"))]


def _on_leaderships_written(state: ClusterState, event: LeadershipsWritten) -> list[Effect]:
    """Adopt what was written (KAFKA-9212) and tell it; look again at what somebody else had changed."""
    for change in event.written:
        _assert_follows(state, change)
        state.leaderships[change.partition] = change.after
    for partition in sorted(event.lost):
        leadership = event.lost[partition]
        if leadership is None:
            state.leaderships.pop(partition, None)
        else:
            state.leaderships[partition] = leadership
    state.unreadable = state.unreadable | event.unreadable
    new_epochs = [each.partition for each in event.written if each.starts_epoch]
    created = frozenset(each.partition for each in event.written if each.before is None)
    lost = sorted(event.lost)
    effects = _tell_leaders(state, new_epochs, state.brokers, created)
    effects += tell_metadata(state, [*(each.partition for each in event.written), *lost])
    again = elect_all(state, lost, "state had changed in ZooKeeper")
    changing = {change.partition for change in again}
    effects += _tell_leaders(state, [each for each in lost if each not in changing], state.brokers)
    return [*effects, *_write(again)]


def _assert_follows(state: ClusterState, change: PartitionChange) -> None:
    """I27: versions and epochs only rise."""
    before = state.leaderships.get(change.partition)
    if before is None:
        return
    assert change.after.partition_epoch > before.partition_epoch, f"partition epoch fell: {change}"
    assert change.after.leader_epoch >= before.leader_epoch, f"leader epoch fell: {change}"
    assert change.after.leader == before.leader or change.after.leader_epoch > before.leader_epoch, (
        f"a new leader needs a new epoch: {change}"
    )


# ------------------------------------------------------------------------------------------ requests from brokers
def _on_alter_partition(state: ClusterState, event: AlterPartitionAsked) -> list[Effect]:
    request = event.request
    if not state.is_registered_as(request.broker_id, request.broker_epoch):
        return [_refuse(event.request_id, ErrorCode.STALE_BROKER_EPOCH)]
    judged: list[tuple[TopicPartition, AlterPartitionResult | PartitionChange]] = []
    for topic in request.topics:
        for wish in topic.partitions:
            partition = TopicPartition(topic.topic_name, wish.partition_index)
            judged.append((partition, judge(state, request.broker_id, partition, wish)))
    changes = [verdict for _, verdict in judged if isinstance(verdict, PartitionChange)]
    settled = AlterPartitionSettled(request_id=event.request_id, broker_id=request.broker_id, judged=tuple(judged))
    return [*_write(_first_of_each(changes)), Then(event=settled)]


def _first_of_each(changes: list[PartitionChange]) -> list[PartitionChange]:
    """A request that names a partition twice gets its first wish; the second one finds its version passed."""
    return list({change.partition: change for change in reversed(changes)}.values())[::-1]


def _on_alter_partition_settled(state: ClusterState, event: AlterPartitionSettled) -> list[Effect]:
    """Answer. A leader that is behind stays as it is until LeaderAndIsr, so it is told again (I38)."""
    topics: dict[str, list[AlterPartitionResult]] = {}
    behind: list[TopicPartition] = []
    for partition, verdict in event.judged:
        if isinstance(verdict, PartitionChange):
            verdict = _outcome(state, verdict)
        topics.setdefault(partition.topic, []).append(verdict)
        if verdict.error_code in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION):
            behind.append(partition)
    response = AlterPartitionResponse(
        topics=[AlterPartitionTopicResponse(topic_name=name, partitions=topics[name]) for name in topics]
    )
    answer = Answer(request_id=event.request_id, response=response)
    return [answer, *_tell_leaders(state, behind, [event.broker_id])]


def _outcome(state: ClusterState, change: PartitionChange) -> AlterPartitionResult:
    """Success only if precisely this is what stands in ZooKeeper now."""
    current = state.leaderships.get(change.partition)
    if current is not None:
        wanted = msgspec.structs.replace(change.after, partition_epoch=current.partition_epoch)
        if current == wanted:
            return success(change.partition, current)
    return refusal(change.partition.partition, ErrorCode.INVALID_UPDATE_VERSION)


def _on_controlled_shutdown(state: ClusterState, event: ControlledShutdownAsked) -> list[Effect]:
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
    effects: list[Effect] = [Report(text=f"broker {broker_id} is shutting down")]
    effects += _tell_live_brokers(state)
    effects += _write(elect_all(state, partitions, f"broker {broker_id} is shutting down"))
    return [*effects, Then(event=moved)]


def _on_offline_partitions(
    state: ClusterState, request_id: RequestId, request: ControlledShutdownRequest
) -> list[Effect]:
    assert request.offline_partitions is not None
    broker_id = request.broker_id
    offline = frozenset(
        TopicPartition(topic.topic_name, number) for topic in request.offline_partitions for number in topic.partitions
    )
    was_offline = bool(state.offline_replicas.get(broker_id))
    reason = f"{len(offline)} replicas of broker {broker_id} are offline" if offline else f"broker {broker_id} is well"
    effects: list[Effect] = [Report(text=reason, is_warning=bool(offline))] if offline or was_offline else []
    effects += _set_offline(state, broker_id, offline, reason)
    moved = LeadersMoved(request_id=request_id, broker_id=broker_id, partitions=tuple(sorted(offline)))
    return [*effects, Then(event=moved)]


def _on_leaders_moved(state: ClusterState, event: LeadersMoved) -> list[Effect]:
    """Stop the replicas that followed (they would ask to join the ISR again), and say what could not be moved."""
    effects = []
    if event.broker_id in state.shutting_down and event.followed:
        stops = stop_replica(state, event.followed, delete=False)
        effects += _send(event.broker_id, live_brokers(state), stops)
    led: dict[str, list[int]] = {}
    for partition in event.partitions:
        leadership = state.leaderships.get(partition)
        if leadership is not None and leadership.leader == event.broker_id:
            led.setdefault(partition.topic, []).append(partition.partition)
    remaining = [TopicPartitions(topic_name=name, partitions=led[name]) for name in led]
    response = ControlledShutdownResponse(remaining_partitions=remaining)
    return [*effects, Answer(request_id=event.request_id, response=response)]


def _refuse(request_id: RequestId, code: ErrorCode) -> Answer:
    return Answer(request_id=request_id, response=Response(error_code=code))


# --------------------------------------------------------------------------------------------- what brokers are told
def _write(changes: "Iterable[PartitionChange | None]") -> list[Effect]:
    found = tuple(change for change in changes if change is not None)
    return [WriteLeaderships(changes=found)] if found else []


def _send(broker_id: BrokerId, brokers: tuple[BrokerOnWire, ...], instructions: Sequence[Instruction]) -> list[Effect]:
    if not instructions:
        return []
    return [Send(broker_id=broker_id, live_brokers=brokers, instructions=tuple(instructions))]


def _tell_live_brokers(state: ClusterState, except_for: frozenset[BrokerId] = frozenset()) -> list[Effect]:
    brokers = live_brokers(state)
    return [Send(broker_id=each, live_brokers=brokers) for each in sorted(state.brokers) if each not in except_for]


def tell_metadata(
    state: ClusterState, partitions: Iterable[TopicPartition], to: Iterable[BrokerId] | None = None
) -> list[Effect]:
    """UpdateMetadata about these partitions to all brokers, or to some; a new broker hears of the live ones anyway."""
    instructions = tuple(update_metadata(state, partitions))
    if not instructions and to is None:
        return []
    brokers = live_brokers(state)
    receivers = sorted(state.brokers if to is None else to)
    return [Send(broker_id=each, live_brokers=brokers, instructions=instructions) for each in receivers]


def _tell_leaders(
    state: ClusterState,
    partitions: Iterable[TopicPartition],
    to: Iterable[BrokerId],
    new: frozenset[TopicPartition] = frozenset(),
) -> list[Effect]:
    """LeaderAndIsr about these partitions to those of their replicas that are live and among `to`."""
    brokers = live_brokers(state)
    receivers = sorted(to)
    found = leader_and_isr(state, partitions, new)
    by_broker: dict[BrokerId, list[Instruction]] = {each: [] for each in receivers}
    for instruction in found:
        for broker_id in instruction.content.replicas:
            if broker_id in by_broker and broker_id in state.brokers:
                by_broker[broker_id].append(instruction)
    return [effect for each in receivers for effect in _send(each, brokers, by_broker[each])]
