"""Events of controllers: elections, brokers that come and go, topics."""

from typing import ClassVar

import msgspec

from minibroker.protocol.counted import counted
from minibroker.protocol.events.event_base import ERROR, INFO, WARNING, ClusterEvent, PartitionEvent


class ControllerElected(ClusterEvent, frozen=True, kw_only=True):
    """This broker is the active controller now."""

    TEXT: ClassVar[str] = (
        "took over as controller of epoch {controller_epoch}: brokers {brokers}, topics: {topics}, "
        "partitions: {partitions}, deletions: {deletions}"
    )
    controller_epoch: int
    brokers: list[int]
    topics: int
    partitions: int
    deletions: int


class ControllerResigned(ClusterEvent, frozen=True, kw_only=True):
    """This broker is no longer the active controller."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "resigned as controller of epoch {controller_epoch}: {reason}"
    controller_epoch: int
    reason: str


class LeadershipChanged(PartitionEvent, frozen=True, kw_only=True):
    """The controller wrote another state of a partition: leader, leader epoch, or ISR."""

    TEXT: ClassVar[str] = "{topic}-{partition}: {change}: {reason}"
    change: str
    leader: int | None
    leader_before: int | None
    leader_epoch: int
    isr: list[int]
    isr_before: list[int]
    """Empty for a new partition."""
    reason: str
    is_election: bool = False
    """Another broker leads than before; not for a new partition."""
    is_bad: bool = False
    """Writes stop, or records may be lost."""

    @property
    def level(self) -> int:
        return WARNING if self.is_bad else INFO


class BrokerJoined(ClusterEvent, frozen=True, kw_only=True):
    """The controller sees a registration."""

    TEXT: ClassVar[str] = "broker {broker} {verb} with epoch {broker_epoch}, incarnation {incarnation}"
    broker: int
    broker_epoch: int
    incarnation: str
    is_known: bool
    """An earlier registration of this broker ended and this one came between two looks."""

    def text(self) -> str:
        verb = "registered again" if self.is_known else "registered"
        return self.TEXT.format(verb=verb, **msgspec.structs.asdict(self))


class BrokerLeft(ClusterEvent, frozen=True, kw_only=True):
    """The controller sees that a registration is gone. The next controller does not report so of the one before it:
    look for `broker_failure_confirmed` with `is_controller`, or for `controller_elected` without it in `brokers`."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "broker {broker} is gone"
    broker: int


class BrokerFailureConfirmed(ClusterEvent, frozen=True, kw_only=True):
    """A second broker is refused by the suspected one, too: it is unregistered."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = (
        "{name} is dead: its connection was lost, {address} refuses, broker {confirmer} confirms ({took_ms} ms); "
        "its registration is removed"
    )
    broker: int
    confirmer: int
    address: str
    took_ms: int
    """How long the confirmation took."""
    is_controller: bool = False
    """A candidate reports it of the active controller, whose place it takes with the same write."""

    def text(self) -> str:
        name = f"the controller, broker {self.broker}," if self.is_controller else f"broker {self.broker}"
        return self.TEXT.format(name=name, **msgspec.structs.asdict(self))


class BrokerFailureNotConfirmed(ClusterEvent, frozen=True, kw_only=True):
    """A broker is suspected, and no other broker can confirm it: its session decides."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{name} refuses connections, and no other broker {confirms}: {consequence}"
    broker: int
    is_asked_again: bool = False
    """Other brokers could be asked, and will be again; else only the end of the session can show the failure."""
    is_controller: bool = False
    """A candidate reports it of the active controller."""

    def text(self) -> str:
        return self.TEXT.format(
            name=f"the controller, broker {self.broker}," if self.is_controller else f"broker {self.broker}",
            confirms="confirms it" if self.is_asked_again or self.is_controller else "can confirm it",
            consequence="asking again" if self.is_asked_again else "waiting for its session",
        )


class ControllerDoubtsNetwork(ClusterEvent, frozen=True, kw_only=True):
    """The controller lost most liveness connections at once, so it suspects its own network and no broker."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = (
        "lost the liveness connections to brokers {brokers} within {seconds:g} s, most of the cluster: the cause may "
        "be this broker's own network, so no broker is declared dead before its session ends"
    )
    brokers: list[int]
    seconds: float


class UnresponsiveBrokerReplaced(ClusterEvent, frozen=True, kw_only=True):
    """A broker that is registered does not do its work: it is unregistered, since others can lead its partitions."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "broker {broker} {reason} and leads {what} that others can lead; its registration is removed"
    broker: int
    reason: str
    partitions: int

    def text(self) -> str:
        return self.TEXT.format(what=counted(self.partitions, "partition"), **msgspec.structs.asdict(self))


class BrokerStopping(ClusterEvent, frozen=True, kw_only=True):
    """A broker asked to hand its leaderships over."""

    TEXT: ClassVar[str] = "broker {broker} is shutting down"
    broker: int


class OfflineReplicasReported(ClusterEvent, frozen=True, kw_only=True):
    """A broker reported how many of its replicas are offline; none: all are well again."""

    TEXT: ClassVar[str] = "broker {broker} has {what}"
    broker: int
    replicas: int

    def text(self) -> str:
        if not self.replicas:
            return f"broker {self.broker} is well"
        return self.TEXT.format(what=counted(self.replicas, "offline replica"), broker=self.broker)

    @property
    def level(self) -> int:
        return WARNING if self.replicas else INFO


class PartitionsWithoutLeader(ClusterEvent, frozen=True, kw_only=True):
    """Partitions that no replica may lead, and what they wait for."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "no leader for {what} ({first}): {reason}"
    count: int
    first: str
    """The names of the first ones."""
    reason: str

    def text(self) -> str:
        return self.TEXT.format(what=counted(self.count, "partition"), first=self.first, reason=self.reason)


class PartitionStateReread(PartitionEvent, frozen=True, kw_only=True):
    """Another client wrote a partition's state; the controller decides again."""

    TEXT: ClassVar[str] = "{topic}-{partition}: had changed in ZooKeeper: {found}"
    found: str


class TopicCreated(ClusterEvent, frozen=True, kw_only=True):
    """The controller knows a new topic."""

    TEXT: ClassVar[str] = "topic {topic} was created with {what}"
    topic: str
    partitions: int

    def text(self) -> str:
        return self.TEXT.format(what=counted(self.partitions, "partition"), topic=self.topic)


class TopicSettingsChanged(ClusterEvent, frozen=True, kw_only=True):
    """A topic has other settings."""

    TEXT: ClassVar[str] = "topic {topic} has the settings {settings}"
    topic: str
    settings: dict[str, str]


class TopicDeletionWaits(ClusterEvent, frozen=True, kw_only=True):
    """A topic is deleted only while all brokers with a replica of it live."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "deletion of topic {topic} waits for brokers {brokers}"
    topic: str
    brokers: list[int]


class TopicDeletionBegun(ClusterEvent, frozen=True, kw_only=True):
    """Brokers are told to delete their replicas of a topic."""

    TEXT: ClassVar[str] = "deleting topic {topic}"
    topic: str


class ReplicaDeletionFailed(PartitionEvent, frozen=True, kw_only=True):
    """A broker could not delete a replica."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "broker {broker} could not delete {topic}-{partition}; it is asked again"
    broker: int


class TopicDeleted(ClusterEvent, frozen=True, kw_only=True):
    """No broker and no node of ZooKeeper knows the topic any more."""

    TEXT: ClassVar[str] = "topic {topic} is deleted"
    topic: str


class NodeIgnored(ClusterEvent, frozen=True, kw_only=True):
    """A controller ignores a node that cannot be parsed or is implausible. The next controller reads it again."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "{path} is ignored until it is repaired and another controller is elected: {reason}"
    path: str
    reason: str
