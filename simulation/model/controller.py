"""The active controller in the small model: the real pure steps, and a write that succeeds or finds it deposed.

Owns: what one controller does with one event, as a function of values. A decision and its write are one step: only
another controller can come between them, and then the check of `/controller_epoch` in the write fails (I30), which is
`may_write=False` here. Leaves to others: decisions (`controller.steps`), replicas and queues.
"""

from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from minibroker.controller.core import events as ce
from minibroker.controller.core.control_requests import LeaderAndIsr
from minibroker.controller.core.controller_state import (
    ControllerSettings,
    ControllerState,
    Leadership,
    RegisteredBroker,
    ReplicaLog,
    Topic,
)
from minibroker.controller.core.election import PartitionChange
from minibroker.controller.core.steps import step
from minibroker.protocol.ids import TopicPartition, from_wire, to_wire
from minibroker.protocol.wire.messages import (
    AlterPartitionData,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionTopic,
    BrokerState,
    ControlledShutdownRequest,
)
from minibroker.simulation.model.replica import Proposal

PARTITION = TopicPartition("t", 0)

Registration: TypeAlias = tuple[int, int, int, int]
"""(broker id, broker epoch, incarnation, log directory)"""
Log: TypeAlias = tuple[int, int, int, int, int, tuple[int, ...], tuple[int, ...]]
"""(broker id, broker epoch, leader epoch of the last record, log end, high watermark, incarnations since which it is
whole, and those since which it is undisturbed)"""
Order: TypeAlias = tuple[int, int | None, int, int, tuple[int, ...], tuple[int, ...]]
"""A LeaderAndIsr: (controller epoch of the decision, leader, leader epoch, partition epoch, ISR, assignment)"""
Message: TypeAlias = tuple[int, tuple[tuple[int, int], ...], Order | None]
"""A control request: (controller epoch of the sender, live brokers and their epochs, order)"""
AlterPartitionAnswer: TypeAlias = tuple[int, int, tuple[int, ...], int]
"""The answer to AlterPartition: (error code, leader epoch, ISR, partition epoch)"""


class ModelController(Struct, frozen=True):
    """What one controller knows."""

    controller_epoch: int
    brokers: tuple[Registration, ...]
    leadership: Leadership
    assignment: tuple[int, ...]

    def epoch_of(self, broker_id: int) -> int:
        """The broker epoch under which it addresses that broker; 0 if it knows none."""
        return next((epoch for each, epoch, _, _ in self.brokers if each == broker_id), 0)

    def starts_of(self, broker_id: int) -> int | None:
        return next((starts for each, _, starts, _ in self.brokers if each == broker_id), None)


class ControllerDecision(Struct, frozen=True):
    """The result of one event."""

    controller: ModelController
    change: PartitionChange | None = None
    """What was written, with its new version."""
    sent: tuple[tuple[int, Message | None], ...] = ()
    """None: what waits for this broker is dropped, because its registration has ended."""
    answer: AlterPartitionAnswer | None = None
    """None for a request without an answer about its partition: the sender counts it as lost."""
    is_deposed: bool = False
    unregistered: tuple[int, ...] = ()
    """Brokers that it unregistered in ZooKeeper."""
    asks_logs: bool = False
    """It asks what logs hold; the running brokers answer at once."""
    waits_for_answers: bool = False
    """It waits for answers of brokers before it elects; here all brokers that it knows answer at once."""
    is_gathering: bool = False
    """It is new, and compares everything once it has their answers."""


class _Deposed(Exception):
    """The write was refused: another controller is active."""


class _Decider:
    """One event being handled."""

    def __init__(self, controller: ModelController, may_write: bool) -> None:
        self.controller, self.may_write = controller, may_write
        self.state = ControllerState(
            settings=ControllerSettings(controller_id=1),
            controller_epoch=controller.controller_epoch,
            brokers=_brokers(controller.brokers),
            topics={PARTITION.topic: Topic(topic_id="t", assignment={0: controller.assignment})},
            leaderships={PARTITION: controller.leadership},
        )
        self.change: PartitionChange | None = None
        self.sent: list[tuple[int, Message | None]] = []
        self.answer: AlterPartitionAnswer | None = None
        self.unregistered: list[int] = []
        self.asks_logs = False

    def happen(self, event: ce.ControllerEvent) -> None:
        for effect in step(self.state, event):
            match effect:
                case ce.WriteLeaderships(changes=(change,)):
                    self.write(change)
                case ce.Send():
                    self.send(effect)
                case ce.CloseChannel():
                    self.sent.append((effect.broker_id, None))
                case ce.ContinueWith():
                    self.happen(effect.event)
                case ce.Unregister():
                    self.unregister(effect)
                case ce.AskLogs():
                    self.asks_logs = True
                case ce.Answer(response=AlterPartitionResponse(topics=[topic])):
                    (result,) = topic.partitions
                    self.answer = (result.error_code, result.leader_epoch, tuple(result.isr), result.partition_epoch)

    def write(self, change: PartitionChange) -> None:
        if not self.may_write:
            raise _Deposed
        assert self.change is None, "one write in a step of this model"
        assert change.before == self.controller.leadership, "only the active controller writes"
        after = replace(change.after, partition_epoch=self.controller.leadership.partition_epoch + 1)
        self.change = replace(change, after=after)
        self.happen(ce.LeadershipsWritten(written=(self.change,)))

    def unregister(self, effect: ce.Unregister) -> None:
        if not self.may_write:
            raise _Deposed
        if self.state.brokers[effect.broker_id].broker_epoch == effect.broker_epoch:
            self.unregistered.append(effect.broker_id)

    def send(self, effect: ce.Send) -> None:
        live = tuple((broker.id, broker.broker_epoch) for broker in effect.live_brokers)
        orders = [each.content for each in effect.orders if isinstance(each, LeaderAndIsr)]
        order: Order | None = None
        for content in orders:
            leader, members = from_wire(content.leader), tuple(content.isr)
            epochs = content.leader_epoch, content.partition_epoch
            order = (content.controller_epoch, leader, *epochs, members, tuple(content.replicas))
        self.sent.append((effect.broker_id, (self.controller.controller_epoch, live, order)))


def decide(
    controller: ModelController, events: tuple[ce.ControllerEvent, ...], may_write: bool, is_gathering: bool = False
) -> ControllerDecision:
    """Handle one occurrence, which may be several events."""
    decider = _Decider(controller, may_write)
    decider.state.is_gathering = is_gathering
    try:
        for event in events:
            decider.happen(event)
    except _Deposed:
        return ControllerDecision(controller, is_deposed=True)
    brokers = tuple(
        (b.broker_id, b.broker_epoch, int(b.incarnation_id), int(b.directory_id)) for b in decider.state.live_brokers()
    )
    after = ModelController(
        controller.controller_epoch, brokers, decider.state.leaderships[PARTITION], controller.assignment
    )
    return ControllerDecision(
        after,
        decider.change,
        tuple(decider.sent),
        decider.answer,
        unregistered=tuple(decider.unregistered),
        asks_logs=decider.asks_logs,
        waits_for_answers=bool(decider.state.unresponsive),
        is_gathering=decider.state.is_gathering,
    )


def took_over() -> tuple[ce.ControllerEvent, ...]:
    return (ce.TookOver(),)


def rebalance() -> tuple[ce.ControllerEvent, ...]:
    return (ce.RebalanceDue(),)


def look(registered: tuple[Registration, ...]) -> tuple[ce.ControllerEvent, ...]:
    return (ce.RegistrationsChanged(brokers=_brokers(registered)),)


def answers_due() -> tuple[ce.ControllerEvent, ...]:
    return (ce.AnswersDue(),)


def answered(controller: ModelController) -> tuple[ce.ControllerEvent, ...]:
    return tuple(ce.BrokerAnswered(broker_id=each, broker_epoch=epoch) for each, epoch, _, _ in controller.brokers)


def logs_reported(logs: tuple[Log, ...]) -> tuple[ce.ControllerEvent, ...]:
    """The logs of all running brokers."""
    return tuple(
        ce.LogsReceived(
            broker_id=broker_id,
            broker_epoch=epoch,
            logs={
                PARTITION: ReplicaLog(
                    whole_since=frozenset(map(incarnation, whole_since)),
                    undisturbed_since=frozenset(map(incarnation, undisturbed_since)),
                    last_epoch=last_epoch,
                    log_end_offset=end,
                    high_watermark=high_watermark,
                    topic_id="t",
                )
            },
        )
        for broker_id, epoch, last_epoch, end, high_watermark, whole_since, undisturbed_since in logs
    )


def failure_confirmed(broker_id: int, broker_epoch: int) -> tuple[ce.ControllerEvent, ...]:
    """A failure, real or not: the connection is lost, the address refuses, a second broker confirms."""
    lost = ce.LivenessConnectionLost(broker_id=broker_id, broker_epoch=broker_epoch, at_seconds=0.0)
    confirmed = ce.FailureConfirmed(
        broker_id=broker_id, broker_epoch=broker_epoch, confirmer_id=0, address="its address", took_ms=1
    )
    return (lost, confirmed)


def shut_down(broker_id: int, broker_epoch: int) -> tuple[ce.ControllerEvent, ...]:
    """It asks to stop and to hand over what it leads."""
    request = ControlledShutdownRequest(broker_id=broker_id, broker_epoch=broker_epoch)
    return (ce.ControlledShutdownReceived(request_id=1, request=request),)


def alter_partition_requested(asker: int, broker_epoch: int, proposal: Proposal) -> tuple[ce.ControllerEvent, ...]:
    """An AlterPartition request, as the broker's sender makes it."""
    _, leader_epoch, partition_epoch, members = proposal
    data = AlterPartitionData(
        partition_index=PARTITION.partition,
        leader_epoch=leader_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=each, broker_epoch=broker_epoch if each == asker else to_wire(epoch))
            for each, epoch in members
        ],
        partition_epoch=partition_epoch,
    )
    topics = [AlterPartitionTopic(topic_name=PARTITION.topic, partitions=[data])]
    request = AlterPartitionRequest(broker_id=asker, broker_epoch=broker_epoch, topics=topics)
    return (ce.AlterPartitionReceived(request_id=1, request=request),)


def incarnation(number: int) -> str:
    return str(number)


def _brokers(registered: tuple[Registration, ...]) -> dict[int, RegisteredBroker]:
    return {
        broker_id: RegisteredBroker(
            broker_id=broker_id,
            broker_epoch=epoch,
            incarnation_id=incarnation(starts),
            directory_id=str(directory),
        )
        for broker_id, epoch, starts, directory in registered
    }
