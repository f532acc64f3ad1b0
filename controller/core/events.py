"""Events and effects of a controller: the inputs and outputs of `steps.step`. Pure values.

Owns: the list of events and effects. The result of an effect that has to be awaited (a write to ZooKeeper) comes back
as an event, so that nothing is assumed about it before. The shell performs effects in order, and finishes whatever an
effect causes before the next effect: `ContinueWith` relies on this for what comes after a write.
"""

from typing import TypeAlias

import msgspec

from minibroker.controller.core.control_requests import PartitionOrder
from minibroker.controller.core.controller_state import Leadership, LossChoice, RegisteredBroker, ReplicaLog, Topic
from minibroker.controller.core.election import PartitionChange
from minibroker.protocol.events.event_base import INFO, ClusterEvent
from minibroker.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from minibroker.protocol.wire.messages import (
    AlterPartitionRequest,
    AlterPartitionResult,
    ControlledShutdownRequest,
    LiveBroker,
    Response,
)

RequestId: TypeAlias = int
"""Names a waiting request, so that its answer finds it."""


class ControllerEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened."""


class TookOver(ControllerEvent, frozen=True, kw_only=True):
    """This broker won the controller election, and the state holds what ZooKeeper holds."""


class RegistrationsChanged(ControllerEvent, frozen=True, kw_only=True):
    """All registrations as they stand now."""

    brokers: dict[BrokerId, RegisteredBroker]


class TopicsChanged(ControllerEvent, frozen=True, kw_only=True):
    """Topics that are new or gone."""

    added: dict[str, Topic] = {}
    leaderships: dict[TopicPartition, Leadership] = {}
    """Their partition states that exist already."""
    unreadable: frozenset[TopicPartition] = frozenset()
    """Partition states that exist but cannot be parsed."""
    removed: tuple[str, ...] = ()


class LeadershipsWritten(ControllerEvent, frozen=True, kw_only=True):
    """The result of a WriteLeaderships."""

    written: tuple[PartitionChange, ...] = ()
    """Their `after` now carries the new partition epoch."""
    lost: dict[TopicPartition, Leadership | None] = {}
    """Another client had written: the states found instead."""
    unreadable: frozenset[TopicPartition] = frozenset()
    """Those of `lost` whose state is left alone: it cannot be parsed or written, or another tool has changed it."""


class AlterPartitionReceived(ControllerEvent, frozen=True, kw_only=True):
    """A leader proposes changes of ISRs."""

    request_id: RequestId
    request: AlterPartitionRequest


class AlterPartitionSettled(ControllerEvent, frozen=True, kw_only=True):
    """All writes of an AlterPartition request have succeeded or failed."""

    request_id: RequestId
    broker_id: BrokerId
    results: tuple[tuple[TopicPartition, AlterPartitionResult | PartitionChange], ...]


class ControlledShutdownReceived(ControllerEvent, frozen=True, kw_only=True):
    """A broker wants to stop, or has log directories that fail (or work again)."""

    request_id: RequestId
    request: ControlledShutdownRequest


class LeadersMoved(ControllerEvent, frozen=True, kw_only=True):
    """All leaderships that could be moved away from a broker have been."""

    request_id: RequestId
    broker_id: BrokerId
    partitions: tuple[TopicPartition, ...]
    """The ones that its request was about."""
    followed: tuple[TopicPartition, ...] = ()
    """Those of `partitions` that it followed when it asked to stop."""


class ReplicasFailed(ControllerEvent, frozen=True, kw_only=True):
    """A broker refused LeaderAndIsr with KAFKA_STORAGE_ERROR for these, or named them as offline."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[TopicPartition, ...]
    is_overtaken: bool = False
    """The broker has reported its offline replicas since it got this order: its refusal may be older."""


class RebalanceDue(ControllerEvent, frozen=True, kw_only=True):
    """It is time to check for leaders that are not the preferred ones."""


class DeletionsRequested(ControllerEvent, frozen=True, kw_only=True):
    """All markers under /admin/delete_topics."""

    topics: tuple[str, ...]


class DeletionBegun(ControllerEvent, frozen=True, kw_only=True):
    """ZooKeeper knows that the deletion of this topic has begun."""

    topic: str


class ReplicasErased(ControllerEvent, frozen=True, kw_only=True):
    """A broker answered StopReplica with deletion, for partitions of one topic."""

    broker_id: BrokerId
    topic: str
    topic_id: str
    erased: tuple[int, ...]
    failed: tuple[int, ...] = ()


class TopicErased(ControllerEvent, frozen=True, kw_only=True):
    """All znodes of a deleted topic are gone."""

    topic: str


class LivenessConnectionLost(ControllerEvent, frozen=True, kw_only=True):
    """The liveness connection to this registration of a broker broke, and we did not close it."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    at_seconds: float
    """On the event loop's clock."""


class LivenessConnectionHeld(ControllerEvent, frozen=True, kw_only=True):
    """The liveness connection to this registration is open, or open again."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class BrokerRefused(ControllerEvent, frozen=True, kw_only=True):
    """After its liveness connection was lost, its address refuses connections."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    attempt: int
    """Refusals since the connection was lost; 1 is the first."""


class FailureConfirmed(ControllerEvent, frozen=True, kw_only=True):
    """The suspected broker refuses another live broker, too."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    confirmer_id: BrokerId
    address: str
    took_ms: int
    """From the refusal to the confirmation."""


class FailureUnconfirmed(ControllerEvent, frozen=True, kw_only=True):
    """No broker that was asked confirms the failure."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    attempt: int


class BrokerAnswered(ControllerEvent, frozen=True, kw_only=True):
    """This registration answered an order, after being unresponsive."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class AnswersDue(ControllerEvent, frozen=True, kw_only=True):
    """The time that a new controller gives brokers to answer is over."""


class BrokerSilent(ControllerEvent, frozen=True, kw_only=True):
    """This registration leaves an order unanswered."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    seconds: float
    """Of this controller's own running time."""
    may_lead: frozenset[TopicPartition] = frozenset()
    """Partitions that it was ordered to lead, and has not answered a later order about."""


class LeaderCutOff(ControllerEvent, frozen=True, kw_only=True):
    """This registration answers orders, but reports that its own requests to this controller get no answer."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    seconds: float


class LogsReceived(ControllerEvent, frozen=True, kw_only=True):
    """A registration answered GetReplicaLogInfo."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    logs: dict[TopicPartition, ReplicaLog]


class LossAccepted(ControllerEvent, frozen=True, kw_only=True):
    """An operator orders elections that may lose records."""

    choices: tuple[LossChoice, ...]


class TopicConfigsChanged(ControllerEvent, frozen=True, kw_only=True):
    """A topic's own settings after a change."""

    topic: str
    configs: dict[str, str]


class ControllerEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be done."""


class WriteLeaderships(ControllerEffect, frozen=True, kw_only=True):
    """Write these states, each conditional on the version it is based on; answer with LeadershipsWritten."""

    changes: tuple[PartitionChange, ...]


class OpenChannel(ControllerEffect, frozen=True, kw_only=True):
    """Open a channel to a broker; orders queued for an earlier registration of it are dropped."""

    broker: RegisteredBroker


class CloseChannel(ControllerEffect, frozen=True, kw_only=True):
    """Close a broker's channel: its registration is gone."""

    broker_id: BrokerId


class Send(ControllerEffect, frozen=True, kw_only=True):
    """Queue orders, all of one kind, for one broker. None: UpdateMetadata that only names the live brokers."""

    broker_id: BrokerId
    live_brokers: tuple[LiveBroker, ...]
    orders: tuple[PartitionOrder, ...] = ()


class Answer(ControllerEffect, frozen=True, kw_only=True):
    """Answer a waiting request."""

    request_id: RequestId
    response: Response


class BeginDeletion(ControllerEffect, frozen=True, kw_only=True):
    """Write that the deletion of this topic has begun; answer with DeletionBegun."""

    topic: str


class EraseTopic(ControllerEffect, frozen=True, kw_only=True):
    """Remove all znodes of a topic without replicas; answer with TopicErased."""

    topic: str
    partitions: tuple[int, ...]


class ConfirmFailure(ControllerEffect, frozen=True, kw_only=True):
    """Ask these whether that broker refuses them. Runs concurrently with other events; the answer is FailureConfirmed
    or FailureUnconfirmed."""

    broker: RegisteredBroker
    confirmers: tuple[RegisteredBroker, ...]
    attempt: int


class AskLogs(ControllerEffect, frozen=True, kw_only=True):
    """Ask this broker until it answers what its files hold of these partitions. Runs concurrently with other events;
    the answer is LogsReceived."""

    broker: RegisteredBroker
    partitions: tuple[TopicPartition, ...]


class Unregister(ControllerEffect, frozen=True, kw_only=True):
    """Remove this registration from ZooKeeper, fenced like every write, then read all registrations again."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class Resign(ControllerEffect, frozen=True, kw_only=True):
    """Resign, so that a controller that reaches the brokers takes over."""

    reason: str


class ContinueWith(ControllerEffect, frozen=True, kw_only=True):
    """Process this event when the effects before it are done."""

    event: ControllerEvent


class Report(ControllerEffect, frozen=True, kw_only=True):
    """Report this for the operator."""

    event: ClusterEvent

    @property
    def text(self) -> str:
        return self.event.text()

    @property
    def is_warning(self) -> bool:
        return self.event.level > INFO
