"""What happens to a controller, and what it wants done: the vocabulary of `steps.step`. Pure values.

Owns: the list of events and effects. An effect that has to be awaited (a write to ZooKeeper) comes back as an event, so
that between a decision and its consequence nothing is assumed. The shell performs effects in order, and whatever an
effect brings about is finished before the next effect: `Then` uses this to say what comes after a write.
"""

from typing import TypeAlias

import msgspec

from minibroker.controller.controller_state import Leadership, LossChoice, RegisteredBroker, ReplicaLog, Topic
from minibroker.controller.election import PartitionChange
from minibroker.controller.instructions import Instruction
from minibroker.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from minibroker.protocol.messages import (
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
    """This broker won the controller election, and the state holds what ZooKeeper says."""


class RegistrationsChanged(ControllerEvent, frozen=True, kw_only=True):
    """All registrations as they stand now."""

    brokers: dict[BrokerId, RegisteredBroker]


class TopicsChanged(ControllerEvent, frozen=True, kw_only=True):
    """Topics that were not there before, or no longer are."""

    added: dict[str, Topic] = {}
    leaderships: dict[TopicPartition, Leadership] = {}
    """States that exist already for them."""
    unreadable: frozenset[TopicPartition] = frozenset()
    """States that exist, but are none."""
    removed: tuple[str, ...] = ()


class LeadershipsWritten(ControllerEvent, frozen=True, kw_only=True):
    """What became of a WriteLeaderships."""

    written: tuple[PartitionChange, ...] = ()
    """Their `after` now carries the new partition epoch."""
    lost: dict[TopicPartition, Leadership | None] = {}
    """Somebody else had written: what stands there instead."""
    unreadable: frozenset[TopicPartition] = frozenset()
    """What stands there instead is no partition state."""


class AlterPartitionReceived(ControllerEvent, frozen=True, kw_only=True):
    """A leader wants to change ISRs."""

    request_id: RequestId
    request: AlterPartitionRequest


class AlterPartitionSettled(ControllerEvent, frozen=True, kw_only=True):
    """All its writes have ended, well or not."""

    request_id: RequestId
    broker_id: BrokerId
    results: tuple[tuple[TopicPartition, AlterPartitionResult | PartitionChange], ...]


class ControlledShutdownReceived(ControllerEvent, frozen=True, kw_only=True):
    """A broker wants to stop, or has log directories that fail (or work again)."""

    request_id: RequestId
    request: ControlledShutdownRequest


class LeadersMoved(ControllerEvent, frozen=True, kw_only=True):
    """Whatever could be moved away from a broker has been."""

    request_id: RequestId
    broker_id: BrokerId
    partitions: tuple[TopicPartition, ...]
    """The ones it asked about."""
    followed: tuple[TopicPartition, ...] = ()
    """Of these, those it followed when it asked to stop."""


class ReplicasFailed(ControllerEvent, frozen=True, kw_only=True):
    """A broker answered LeaderAndIsr with KAFKA_STORAGE_ERROR for these."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    partitions: tuple[TopicPartition, ...]


class RebalanceDue(ControllerEvent, frozen=True, kw_only=True):
    """Time to look for leaders that are not the preferred ones."""


class DeletionsRequested(ControllerEvent, frozen=True, kw_only=True):
    """All markers under /admin/delete_topics."""

    topics: tuple[str, ...]


class DeletionBegun(ControllerEvent, frozen=True, kw_only=True):
    """ZooKeeper knows that the deletion of this topic has begun."""

    topic: str


class ReplicasErased(ControllerEvent, frozen=True, kw_only=True):
    """A broker answered StopReplica with deletion."""

    broker_id: BrokerId
    erased: tuple[TopicPartition, ...]
    failed: tuple[TopicPartition, ...] = ()


class TopicErased(ControllerEvent, frozen=True, kw_only=True):
    """All nodes of a deleted topic are gone."""

    topic: str


class LivenessConnectionLost(ControllerEvent, frozen=True, kw_only=True):
    """The idle connection to this registration of a broker broke, by no will of ours."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    at_seconds: float
    """On the event loop's clock."""


class LivenessConnectionHeld(ControllerEvent, frozen=True, kw_only=True):
    """The idle connection to this registration stands, or stands again."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class BrokerRefused(ControllerEvent, frozen=True, kw_only=True):
    """After its line was lost, its address refuses connections."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    attempt: int
    """Refusals since the line was lost; 1 is the first."""


class FailureConfirmed(ControllerEvent, frozen=True, kw_only=True):
    """Another live broker is refused there, too."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    confirmer_id: BrokerId
    address: str
    took_ms: int
    """From the refusal to the confirmation."""


class FailureUnconfirmed(ControllerEvent, frozen=True, kw_only=True):
    """Nobody who was asked is refused there."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    attempt: int


class BrokerAnswered(ControllerEvent, frozen=True, kw_only=True):
    """This registration answered an order, after it had not been heard of."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class AnswersDue(ControllerEvent, frozen=True, kw_only=True):
    """The moment that a new controller gives brokers to answer is over."""


class BrokerSilent(ControllerEvent, frozen=True, kw_only=True):
    """This registration leaves an order unanswered."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch
    seconds: float
    """Of this controller's own running time."""


class LeaderCutOff(ControllerEvent, frozen=True, kw_only=True):
    """This registration answers orders, and says that its own requests get no answer here."""

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
    """A topic's own settings are these now."""

    topic: str
    configs: dict[str, str]


class ControllerEffect(msgspec.Struct, frozen=True, kw_only=True):
    """Something to be done."""


class WriteLeaderships(ControllerEffect, frozen=True, kw_only=True):
    """Write these states, each conditional on the version it is based on; answer with LeadershipsWritten."""

    changes: tuple[PartitionChange, ...]


class OpenChannel(ControllerEffect, frozen=True, kw_only=True):
    """Begin to talk to a broker; whatever was queued for an earlier registration of it is dropped."""

    broker: RegisteredBroker


class CloseChannel(ControllerEffect, frozen=True, kw_only=True):
    """Its registration is gone."""

    broker_id: BrokerId


class Send(ControllerEffect, frozen=True, kw_only=True):
    """Queue instructions, all of one kind, for one broker. Without any: UpdateMetadata with the live brokers."""

    broker_id: BrokerId
    live_brokers: tuple[LiveBroker, ...]
    instructions: tuple[Instruction, ...] = ()


class Answer(ControllerEffect, frozen=True, kw_only=True):
    """Answer a waiting request."""

    request_id: RequestId
    response: Response


class BeginDeletion(ControllerEffect, frozen=True, kw_only=True):
    """Write that the deletion of this topic has begun; answer with DeletionBegun."""

    topic: str


class EraseTopic(ControllerEffect, frozen=True, kw_only=True):
    """Remove all nodes of a topic whose replicas are gone; answer with TopicErased."""

    topic: str
    partitions: tuple[int, ...]


class ConfirmFailure(ControllerEffect, frozen=True, kw_only=True):
    """Ask these whether that broker refuses them; goes on beside other events, and is answered with FailureConfirmed or
    FailureUnconfirmed."""

    broker: RegisteredBroker
    confirmers: tuple[RegisteredBroker, ...]
    attempt: int


class AskLogs(ControllerEffect, frozen=True, kw_only=True):
    """Ask this broker what its files hold of these partitions, again and again; goes on beside other events, and is
    answered with LogsReceived."""

    broker: RegisteredBroker
    partitions: tuple[TopicPartition, ...]


class Unregister(ControllerEffect, frozen=True, kw_only=True):
    """Remove this registration from ZooKeeper, fenced like every write, then look at the registrations again."""

    broker_id: BrokerId
    broker_epoch: BrokerEpoch


class Resign(ControllerEffect, frozen=True, kw_only=True):
    """Resign, so that a controller that reaches the brokers takes over."""

    reason: str


class ContinueWith(ControllerEffect, frozen=True, kw_only=True):
    """Go on with this event when the effects before it are done."""

    event: ControllerEvent


class Report(ControllerEffect, frozen=True, kw_only=True):
    """Tell the operator."""

    text: str
    is_warning: bool = False
