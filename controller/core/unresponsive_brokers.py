"""Brokers that do not answer the controller: they are not elected, and a leader among them is replaced. Pure.

Owns: what the controller concludes from answered orders, and from those that wait. Leaves to others: how orders are
sent again (`broker_channel`) and elections (`election`).

Theory (hardening rule 17). A registration in ZooKeeper shows that a process reaches ZooKeeper, but not that other
processes reach it. Otherwise a broker that refuses every connection would be unregistered on confirmed failure,
register again, and stay leader, and writes would stand still. So a registration counts in elections once it
has answered an order, and as long as it answers. A leader that receives nothing for `answer_seconds_max` can neither
learn a new epoch nor change its ISR. If another member can take over, its registration is removed first, like that of a
failed broker (`failure_detection`). It registers again, and has to answer before it leads again. So it is with one that
was a leader until a rebalance and has not answered the order that says so: by all that it knows it leads on.

A controller that most brokers do not answer doubts itself: it suspects no broker and resigns, for another controller
may reach them. A leader that reports that it does not reach its controller is replaced in the same way.
"""

from collections.abc import Iterable

from minibroker.controller.core.controller_state import ControllerState
from minibroker.controller.core.effects import ask_logs, report_waits, send_leader_and_isr, write_effects
from minibroker.controller.core.election import elect_all
from minibroker.controller.core.events import (
    BrokerAnswered,
    BrokerSilent,
    ControllerEffect,
    LeaderCutOff,
    Report,
    Resign,
    Unregister,
)
from minibroker.controller.core.restarted_members import needs_logs
from minibroker.protocol.events.controller_events import UnresponsiveBrokerReplaced
from minibroker.protocol.ids import BrokerId, TopicPartition

NEVER_ANSWERED_SECONDS = 1.0
"""A new registration, which answers its first order within some milliseconds, may be silent for this long."""
SILENT_TOGETHER_SHARE = 0.5
"""A broker that has been silent for this share of the longest allowed silence counts as cut off together with one that
reaches the limit now. Brokers are probed this often, so two that were cut off at one moment differ by no more."""


def on_broker_answered(state: ControllerState, event: BrokerAnswered) -> list[ControllerEffect]:
    """The broker can be reached: hold the elections that waited for it."""
    broker_id = event.broker_id
    if not state.is_registered_as(broker_id, event.broker_epoch):
        return []
    state.unresponsive = state.unresponsive - {broker_id}
    state.newly_registered = state.newly_registered - {broker_id}
    state.silent_seconds = {each: at for each, at in state.silent_seconds.items() if each != broker_id}
    if state.is_gathering:
        return [] if state.unresponsive else on_answers_due(state)
    waiting = [each for each in state.partitions_on({broker_id}) if _may_wait(state, each, broker_id)]
    return _compare(state, waiting, (), f"broker {broker_id} answers")


def on_answers_due(state: ControllerState) -> list[ControllerEffect]:
    """A new controller compares all partitions now, with the brokers that have answered."""
    if not state.is_gathering:
        return []
    state.is_gathering = False
    return _compare(state, state.partitions(), state.brokers, "controller failover")


def _compare(
    state: ControllerState, partitions: list[TopicPartition], receivers: Iterable[BrokerId], reason: str
) -> list[ControllerEffect]:
    """Elect where it is due; send the state of all other partitions to their replicas among `receivers`."""
    changes = elect_all(state, partitions, reason)
    changing = {change.partition for change in changes}
    unchanged = [each for each in partitions if each not in changing]
    effects = send_leader_and_isr(state, unchanged, receivers)
    return [*effects, *ask_logs(state, partitions), *report_waits(state, unchanged), *write_effects(changes)]


def _may_wait(state: ControllerState, partition: TopicPartition, broker_id: BrokerId) -> bool:
    """Whether its election may wait for this broker's answer: a cheap check, for thousands of partitions may not."""
    leadership = state.leaderships.get(partition)
    leader = None if leadership is None else leadership.leader
    if leader in (None, broker_id) or leader not in state.brokers:
        return True
    return leader in state.unresponsive or leader in state.shutting_down


def on_broker_silent(state: ControllerState, event: BrokerSilent) -> list[ControllerEffect]:
    """The broker is not elected from now on, and no election waits for what it knows of others' logs; after too long,
    it is replaced as leader."""
    broker_id = event.broker_id
    if not state.is_registered_as(broker_id, event.broker_epoch):
        return []
    was_silent = broker_id in state.silent_seconds
    state.unresponsive = state.unresponsive | {broker_id}
    state.silent_seconds = {**state.silent_seconds, broker_id: event.seconds}
    waiting = [] if was_silent else [each for each in state.partitions_on({broker_id}) if needs_logs(state, each)]
    effects = write_effects(elect_all(state, waiting, f"broker {broker_id} does not answer"))
    if not _is_too_long(state, broker_id) or broker_id in state.shutting_down:
        return effects
    others = [each for each in sorted(state.brokers) if each != state.settings.controller_id]
    silent = [
        each
        for each in others
        if state.silent_seconds.get(each, 0.0) >= SILENT_TOGETHER_SHARE * _seconds_max(state, each)
    ]
    if 2 * len(silent) > len(others):
        return [Resign(reason=f"brokers {silent} do not answer it for {event.seconds:.0f} s, most of those there are")]
    return [*effects, *_replace(state, broker_id, f"does not answer for {event.seconds:g} s", event.may_lead)]


def on_leader_cut_off(state: ControllerState, event: LeaderCutOff) -> list[ControllerEffect]:
    """The leader gets all orders, but can change no ISR: it is replaced."""
    is_present = state.is_registered_as(event.broker_id, event.broker_epoch)
    if not is_present or event.seconds < state.settings.answer_seconds_max or event.broker_id in state.shutting_down:
        return []
    return _replace(state, event.broker_id, f"has got no answer from this controller for {event.seconds:g} s")


def _replace(
    state: ControllerState, broker_id: BrokerId, why: str, may_lead: frozenset[TopicPartition] = frozenset()
) -> list[ControllerEffect]:
    """Fence the broker, if other replicas can take over, or have done so and it was not told."""
    led = [
        each
        for each in state.partitions_on({broker_id})
        if _can_be_replaced(state, each, broker_id) or (each in may_lead and _was_replaced(state, each, broker_id))
    ]
    if not led:
        return []
    report = Report(event=UnresponsiveBrokerReplaced(broker=broker_id, reason=why, partitions=len(led)))
    return [report, Unregister(broker_id=broker_id, broker_epoch=state.brokers[broker_id].broker_epoch)]


def _is_too_long(state: ControllerState, broker_id: BrokerId) -> bool:
    return state.silent_seconds.get(broker_id, 0.0) >= _seconds_max(state, broker_id)


def _seconds_max(state: ControllerState, broker_id: BrokerId) -> float:
    """A registration that has never answered leads nothing yet, so there is nothing to wait for."""
    return NEVER_ANSWERED_SECONDS if broker_id in state.newly_registered else state.settings.answer_seconds_max


def _can_be_replaced(state: ControllerState, partition: TopicPartition, broker_id: BrokerId) -> bool:
    """The broker leads, and another whole member of the ISR that answers could lead."""
    leadership = state.leaderships.get(partition)
    if leadership is None or leadership.leader != broker_id or state.is_being_deleted(partition.topic):
        return False
    return any(
        each != broker_id
        and state.is_eligible(partition, each)
        and state.runs_as_recorded(leadership, each)
        and each not in state.unresponsive
        for each in leadership.in_sync_replicas
    )


def _was_replaced(state: ControllerState, partition: TopicPartition, broker_id: BrokerId) -> bool:
    """Another broker leads. A replica that is offline or being deleted serves nothing, whatever it was told."""
    leadership = state.leaderships.get(partition)
    is_led = leadership is not None and leadership.leader not in (None, broker_id)
    return is_led and state.is_online(partition, broker_id) and not state.is_being_deleted(partition.topic)
