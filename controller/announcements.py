"""Decisions turned into effects: what is written, and who is told, in which order. Pure.

Owns: which brokers hear of a change. A partition's leadership concerns its live replicas, its metadata every broker.
Refuses to know what has happened (`steps`) and the contents of what is told (`instructions`).
"""

from collections.abc import Iterable, Sequence

from minibroker.controller.cluster_state import ClusterState
from minibroker.controller.election import PartitionChange
from minibroker.controller.events import Effect, Send, WriteLeaderships
from minibroker.controller.instructions import Instruction, leader_and_isr, live_brokers, update_metadata
from minibroker.protocol.ids import BrokerId, TopicPartition


def write(changes: Iterable[PartitionChange | None]) -> list[Effect]:
    """Write these decisions; those who have to know are told when that is done."""
    found = tuple(change for change in changes if change is not None)
    return [WriteLeaderships(changes=found)] if found else []


def tell_one(state: ClusterState, broker_id: BrokerId, instructions: Sequence[Instruction]) -> list[Effect]:
    """These instructions to one broker."""
    if not instructions:
        return []
    return [Send(broker_id=broker_id, live_brokers=live_brokers(state), instructions=tuple(instructions))]


def tell_live_brokers(state: ClusterState, except_for: frozenset[BrokerId] = frozenset()) -> list[Effect]:
    """UpdateMetadata that names the live brokers and no partition."""
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


def tell_leaders(
    state: ClusterState,
    partitions: Iterable[TopicPartition],
    to: Iterable[BrokerId],
    new: frozenset[TopicPartition] = frozenset(),
) -> list[Effect]:
    """LeaderAndIsr about these partitions to those of their replicas that are live and among `to`."""
    receivers = sorted(to)
    found = leader_and_isr(state, partitions, new)
    by_broker: dict[BrokerId, list[Instruction]] = {each: [] for each in receivers}
    for instruction in found:
        for broker_id in instruction.content.replicas:
            if broker_id in by_broker and broker_id in state.brokers:
                by_broker[broker_id].append(instruction)
    return [effect for each in receivers for effect in tell_one(state, each, by_broker[each])]
