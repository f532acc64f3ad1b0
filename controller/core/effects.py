"""Decisions as effects: what to write, and which broker gets which order, in sequence. Pure.

Owns: which brokers learn of a change. A partition's leadership concerns its live replicas, its metadata every broker.
Leaves to others: what has happened (`steps`) and the contents of orders (`control_requests`).
"""

from collections.abc import Iterable, Sequence

from minibroker.controller.core.control_requests import PartitionOrder, leader_and_isr, live_brokers, update_metadata
from minibroker.controller.core.controller_state import ControllerState
from minibroker.controller.core.election import PartitionChange
from minibroker.controller.core.events import AskLogs, ControllerEffect, Report, Send, WriteLeaderships
from minibroker.controller.core.restarted_members import choose, needs_logs, questions
from minibroker.protocol.events.controller_events import PartitionsWithoutLeader
from minibroker.protocol.ids import BrokerId, TopicPartition

NAMES_SHOWN = 5
"""Partitions named in one log line; thousands may wait for one broker."""


def write_effects(changes: Iterable[PartitionChange | None]) -> list[ControllerEffect]:
    """Write these decisions. Brokers get orders after the write."""
    found = tuple(change for change in changes if change is not None)
    return [WriteLeaderships(changes=found)] if found else []


def ask_logs(state: ControllerState, partitions: Iterable[TopicPartition]) -> list[ControllerEffect]:
    """Ask for the logs that an election among restarted brokers depends on."""
    found = questions(state, partitions)
    for broker_id, asked in found.items():
        state.asked_logs = {
            **state.asked_logs,
            broker_id: state.asked_logs.get(broker_id, frozenset()) | frozenset(asked),
        }
    return [AskLogs(broker=state.brokers[each], partitions=tuple(found[each])) for each in sorted(found)]


def report_waits(state: ControllerState, partitions: Iterable[TopicPartition]) -> list[ControllerEffect]:
    """Report which partitions have no leader, and what they wait for: one line for all with the same reason. While
    answers about logs are under way, the report waits for them."""
    waiting: dict[str, list[TopicPartition]] = {}
    for partition in partitions:
        is_asked = any(partition in asked for asked in state.asked_logs.values())
        if needs_logs(state, partition) and not is_asked:
            choice = choose(state, partition, state.leaderships[partition])
            if choice.leader is None:
                waiting.setdefault(choice.reason, []).append(partition)
    reports: list[ControllerEffect] = []
    for reason, found in waiting.items():
        shown = ", ".join(map(str, found[:NAMES_SHOWN])) + (", .." if len(found) > NAMES_SHOWN else "")
        reports.append(Report(event=PartitionsWithoutLeader(count=len(found), first=shown, reason=reason)))
    return reports


def send_to_broker(
    state: ControllerState, broker_id: BrokerId, orders: Sequence[PartitionOrder]
) -> list[ControllerEffect]:
    """Send these orders to one broker."""
    if not orders:
        return []
    return [Send(broker_id=broker_id, live_brokers=live_brokers(state), orders=tuple(orders))]


def send_live_brokers(state: ControllerState, except_for: frozenset[BrokerId] = frozenset()) -> list[ControllerEffect]:
    """Send an UpdateMetadata that names the live brokers and no partition."""
    brokers = live_brokers(state)
    return [Send(broker_id=each, live_brokers=brokers) for each in sorted(state.brokers) if each not in except_for]


def send_metadata(
    state: ControllerState, partitions: Iterable[TopicPartition], to: Iterable[BrokerId] | None = None
) -> list[ControllerEffect]:
    """Send UpdateMetadata about these partitions to all brokers, or to some. A new broker gets the list of live brokers
    even if there is no partition."""
    orders = tuple(update_metadata(state, partitions))
    if not orders and to is None:
        return []
    brokers = live_brokers(state)
    receivers = sorted(state.brokers if to is None else to)
    return [Send(broker_id=each, live_brokers=brokers, orders=orders) for each in receivers]


def send_leader_and_isr(
    state: ControllerState,
    partitions: Iterable[TopicPartition],
    to: Iterable[BrokerId],
    new: frozenset[TopicPartition] = frozenset(),
) -> list[ControllerEffect]:
    """Send LeaderAndIsr about these partitions to those of their replicas that are live and among `to`."""
    receivers = sorted(to)
    found = leader_and_isr(state, partitions, new)
    by_broker: dict[BrokerId, list[PartitionOrder]] = {each: [] for each in receivers}
    for order in found:
        for broker_id in order.content.replicas:
            if broker_id in by_broker and broker_id in state.brokers:
                by_broker[broker_id].append(order)
    return [effect for each in receivers for effect in send_to_broker(state, each, by_broker[each])]
