"""The controller as a state machine: `step(state, event) -> effects`. Pure.

Owns: what follows from each event: which elections, which orders to which brokers, in which sequence. Leaves to others:
ZooKeeper, queues and time; requests of brokers (`broker_requests`), deletions (`deletion`), elections (`election`), and
failed brokers (`failure_detection`).

Order matters in three places (replication rules, section 9): brokers get a decision only after it was written; on
taking over, UpdateMetadata goes to all before any LeaderAndIsr, so that a follower knows its leader to be alive; and a
broker that has just registered gets everything, because it remembers nothing.

`step` changes the state it is given. It is deterministic: lists are sorted, and no set reaches an effect.
"""

import msgspec

from minibroker.controller.core import broker_requests, deletion, unresponsive_brokers
from minibroker.controller.core.accepted_loss import elect_as_chosen
from minibroker.controller.core.controller_state import ControllerState, RegisteredBroker
from minibroker.controller.core.effects import (
    ask_logs,
    report_waits,
    send_leader_and_isr,
    send_live_brokers,
    send_metadata,
    write_effects,
)
from minibroker.controller.core.election import PartitionChange, elect_all, elect_preferred, imbalanced_partitions
from minibroker.controller.core.events import (
    AlterPartitionReceived,
    AlterPartitionSettled,
    AnswersDue,
    BrokerAnswered,
    BrokerRefused,
    BrokerSilent,
    CloseChannel,
    ControlledShutdownReceived,
    ControllerEffect,
    ControllerEvent,
    DeletionBegun,
    DeletionsRequested,
    FailureConfirmed,
    FailureUnconfirmed,
    LeaderCutOff,
    LeadershipsWritten,
    LeadersMoved,
    LivenessConnectionHeld,
    LivenessConnectionLost,
    LogsReceived,
    LossAccepted,
    OpenChannel,
    RebalanceDue,
    RegistrationsChanged,
    ReplicasErased,
    ReplicasFailed,
    Report,
    TookOver,
    TopicConfigsChanged,
    TopicErased,
    TopicsChanged,
)
from minibroker.controller.core.restarted_members import needs_logs
from minibroker.controller.detection import failure_detection
from minibroker.protocol.events.controller_events import BrokerJoined, BrokerLeft, TopicCreated, TopicSettingsChanged
from minibroker.protocol.ids import BrokerId


def step(state: ControllerState, event: ControllerEvent) -> list[ControllerEffect]:
    """Process one event: change `state`, and return what is to be done."""
    match event:
        case TookOver():
            return _on_took_over(state)
        case RegistrationsChanged():
            return _on_registrations_changed(state, event)
        case TopicsChanged():
            return _on_topics_changed(state, event)
        case LeadershipsWritten():
            return _on_leaderships_written(state, event)
        case AlterPartitionReceived():
            return broker_requests.on_alter_partition(state, event)
        case AlterPartitionSettled():
            return broker_requests.on_alter_partition_settled(state, event)
        case ControlledShutdownReceived():
            return broker_requests.on_controlled_shutdown(state, event)
        case LeadersMoved():
            return broker_requests.on_leaders_moved(state, event)
        case ReplicasFailed():
            return broker_requests.on_replicas_failed(state, event)
        case RebalanceDue():
            return write_effects(
                [elect_preferred(state, each, "preferred leader") for each in imbalanced_partitions(state)]
            )
        case DeletionsRequested():
            return deletion.on_deletions_requested(state, event)
        case DeletionBegun():
            return deletion.on_deletion_begun(state, event)
        case ReplicasErased():
            return deletion.on_replicas_erased(state, event)
        case TopicErased():
            return deletion.on_topic_erased(state, event)
        case LeaderCutOff():
            return unresponsive_brokers.on_leader_cut_off(state, event)
        case LogsReceived():
            return _on_logs_received(state, event)
        case BrokerAnswered():
            return unresponsive_brokers.on_broker_answered(state, event)
        case AnswersDue():
            return unresponsive_brokers.on_answers_due(state)
        case BrokerSilent():
            return unresponsive_brokers.on_broker_silent(state, event)
        case LossAccepted():
            return write_effects(elect_as_chosen(state, event.choices))
        case TopicConfigsChanged():
            return _on_topic_configs_changed(state, event)
        case LivenessConnectionLost():
            return failure_detection.on_liveness_connection_lost(state, event)
        case LivenessConnectionHeld():
            return failure_detection.on_liveness_connection_held(state, event)
        case BrokerRefused():
            return failure_detection.on_broker_refused(state, event)
        case FailureConfirmed():
            return failure_detection.on_failure_confirmed(state, event)
        case FailureUnconfirmed():
            return failure_detection.on_failure_unconfirmed(state, event)
    raise AssertionError(f"unknown event {event}")


# ------------------------------------------------------------------------------------------- brokers come and go
def _on_took_over(state: ControllerState) -> list[ControllerEffect]:
    """Before brokers have had time to answer (`unresponsive_brokers`), elect no leader and send no LeaderAndIsr."""
    state.unresponsive, state.is_gathering = frozenset(state.brokers), True
    effects: list[ControllerEffect] = [OpenChannel(broker=broker) for broker in state.live_brokers()]
    deletions = deletion.resume(state)
    effects += send_metadata(state, state.partitions(), to=state.brokers)  # first: the answer names offline replicas
    effects += deletions
    return [*effects, *([] if state.brokers else unresponsive_brokers.on_answers_due(state))]


def _on_registrations_changed(state: ControllerState, event: RegistrationsChanged) -> list[ControllerEffect]:
    """Compare by id and epoch: a broker that bounced between two reads went down and came up (KIP-380)."""
    before, now = state.brokers, event.brokers
    gone = sorted(each for each in before if each not in now)
    came = sorted(each for each in now if each not in before)
    bounced = sorted(each for each in now if each in before and before[each].broker_epoch != now[each].broker_epoch)
    affected = frozenset([*gone, *came, *bounced])
    if not affected:
        return []
    state.brokers = dict(now)
    state.shutting_down = state.shutting_down - affected
    state.lost_connections = {each: at for each, at in state.lost_connections.items() if each not in affected}
    offline = state.offline_replicas
    state.offline_replicas = {each: offline[each] for each in offline if each not in affected}
    epochs = {each.broker_epoch for each in now.values()}
    state.newest_reports = {each: number for each, number in state.newest_reports.items() if each in epochs}
    state.unresponsive = (state.unresponsive - affected) | frozenset([*came, *bounced])
    state.newly_registered = (state.newly_registered - affected) | frozenset([*came, *bounced])
    state.silent_seconds = {each: at for each, at in state.silent_seconds.items() if each not in affected}
    state.logs = {each: logs for each, logs in state.logs.items() if each not in affected}
    state.asked_logs = {each: asked for each, asked in state.asked_logs.items() if each not in affected}

    partitions = state.partitions_on(affected)
    effects: list[ControllerEffect] = [CloseChannel(broker_id=each) for each in (*gone, *bounced)]
    effects += [OpenChannel(broker=now[each]) for each in sorted([*came, *bounced])]
    effects += [Report(event=_joined(now[each], is_known=each in before)) for each in sorted([*came, *bounced])]
    effects += [Report(event=BrokerLeft(broker=each)) for each in gone]
    effects += send_live_brokers(state, except_for=frozenset([*came, *bounced]))
    for each in sorted([*came, *bounced]):
        effects += send_metadata(state, state.partitions(), to=[each])
    changes = elect_all(state, partitions, _why(gone, came, bounced))
    changing = {change.partition for change in changes}
    unchanged = [each for each in partitions if each not in changing]
    effects += send_leader_and_isr(state, unchanged, [*came, *bounced])
    effects += ask_logs(state, partitions)
    effects += report_waits(state, unchanged)
    effects += write_effects(changes)
    effects += send_metadata(state, unchanged)  # which replicas are offline has changed
    effects += deletion.resume(state)
    return effects


def _joined(broker: RegisteredBroker, *, is_known: bool) -> BrokerJoined:
    return BrokerJoined(
        broker=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        incarnation=broker.incarnation_id,
        is_known=is_known,
    )


def _why(gone: list[BrokerId], came: list[BrokerId], bounced: list[BrokerId]) -> str:
    words = (("gone", gone), ("here", came), ("restarted", bounced))
    return ", ".join(f"broker {each} is {word}" for word, ids in words for each in ids)


# ------------------------------------------------------------------------------------------------ topics, leaders
def _on_topics_changed(state: ControllerState, event: TopicsChanged) -> list[ControllerEffect]:
    added = {name: event.added[name] for name in sorted(event.added) if name not in state.topics}
    for name in event.removed:
        state.forget_topic(name)
    state.topics.update(added)
    state.unreadable = state.unreadable | event.unreadable
    found = sorted(each for each in event.leaderships if each.topic in added)
    state.leaderships.update({each: event.leaderships[each] for each in found})
    partitions = [partition for name in added for partition in state.partitions_of(name)]
    changes = elect_all(state, partitions, "new topic")
    changing = {change.partition for change in changes}
    unchanged = [each for each in partitions if each not in changing]
    effects: list[ControllerEffect] = [
        Report(event=TopicCreated(topic=name, partitions=len(state.partitions_of(name)))) for name in added
    ]
    effects += [*send_metadata(state, unchanged), *send_leader_and_isr(state, unchanged, state.brokers)]
    return [*effects, *ask_logs(state, partitions), *write_effects(changes)]


def _on_topic_configs_changed(state: ControllerState, event: TopicConfigsChanged) -> list[ControllerEffect]:
    topic = state.topics.get(event.topic)
    if topic is None or topic.configs == event.configs:
        return []
    state.topics[event.topic] = msgspec.structs.replace(topic, configs=dict(event.configs))
    partitions = state.partitions_of(event.topic)
    report = Report(event=TopicSettingsChanged(topic=event.topic, settings=dict(event.configs)))
    changes = elect_all(state, partitions, "settings changed")
    return [report, *send_metadata(state, partitions), *ask_logs(state, partitions), *write_effects(changes)]


def _on_logs_received(state: ControllerState, event: LogsReceived) -> list[ControllerEffect]:
    """Keep the logs of partitions that wait for them; other logs may have changed since the answer. Elections that wait
    for a silent broker wait on: this answer does not name the replicas that are offline."""
    broker_id = event.broker_id
    if not state.is_registered_as(broker_id, event.broker_epoch):
        return []
    partitions = sorted(each for each in event.logs if needs_logs(state, each))
    asked = state.asked_logs.get(broker_id, frozenset()) - frozenset(event.logs)
    state.asked_logs = {**state.asked_logs, broker_id: asked}
    logs = {**state.logs.get(broker_id, {}), **{each: event.logs[each] for each in partitions}}
    state.logs = {**state.logs, broker_id: logs}
    changes = elect_all(state, partitions, f"broker {broker_id} said what its logs hold")
    return [*ask_logs(state, partitions), *report_waits(state, partitions), *write_effects(changes)]


def _on_leaderships_written(state: ControllerState, event: LeadershipsWritten) -> list[ControllerEffect]:
    """Adopt what was written (KAFKA-9212) and send it; compare again what another client had changed."""
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
    state.forget_logs(each.partition for each in event.written if each.after.leader is not None)
    new_epochs = [each.partition for each in event.written if each.starts_epoch]
    created = frozenset(each.partition for each in event.written if each.before is None)
    lost = sorted(event.lost)
    effects = send_leader_and_isr(state, new_epochs, state.brokers, created)
    effects += send_metadata(state, [*(each.partition for each in event.written), *lost])
    again = elect_all(state, lost, "state had changed in ZooKeeper")
    changing = {change.partition for change in again}
    effects += send_leader_and_isr(state, [each for each in lost if each not in changing], state.brokers)
    return [*effects, *ask_logs(state, lost), *write_effects(again)]


def _assert_follows(state: ControllerState, change: PartitionChange) -> None:
    """I27: versions and epochs only rise."""
    before = state.leaderships.get(change.partition)
    if before is None:
        return
    assert change.after.partition_epoch > before.partition_epoch, f"partition epoch fell: {change}"
    assert change.after.leader_epoch >= before.leader_epoch, f"leader epoch fell: {change}"
    assert change.after.leader == before.leader or change.after.leader_epoch > before.leader_epoch, (
        f"a new leader needs a new epoch: {change}"
    )
