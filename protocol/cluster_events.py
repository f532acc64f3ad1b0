"""What a broker or controller reports of itself: the catalogue of typed events.

Owns: each event with its fields, its level and its sentence. The text log, JSON lines (`--log-format json`) and
`minibroker events` are made of them, so names and fields are an interface (docs/EVENTS.md). Leaves to others: when an
event is reported, and who reads it. What only checkers want is in `broker/replicas/observations.py`.
"""

import json
import re
from typing import Any, ClassVar

import msgspec

INFO, WARNING, ERROR = 20, 30, 40
"""Levels of the standard library's logging."""
LEVEL_NAMES = {INFO: "INFO", WARNING: "WARNING", ERROR: "ERROR"}


def _snake_case(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class ClusterEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_snake_case):
    """Base of all events. `TEXT` is the sentence of the log, filled with the fields."""

    LEVEL: ClassVar[int] = INFO
    TEXT: ClassVar[str] = ""

    def text(self) -> str:
        """One line for people."""
        return self.TEXT.format(**msgspec.structs.asdict(self))

    @property
    def level(self) -> int:
        """Some events are a warning or not by their fields."""
        return self.LEVEL


class PartitionEvent(ClusterEvent, frozen=True, kw_only=True):
    """Base of the events of one partition."""

    topic: str
    partition: int


# --------------------------------------------------------------------------------------------------------- replicas
class ReplicaRoleChanged(PartitionEvent, frozen=True, kw_only=True):
    """A replica became leader or follower, or begins another leader epoch as such."""

    TEXT: ClassVar[str] = (
        "{topic}-{partition}: {role} in leader epoch {leader_epoch} (leader {leader}, log end {log_end_offset}, "
        "high watermark {high_watermark})"
    )
    role: str
    leader_epoch: int | None
    leader: int | None
    log_end_offset: int
    high_watermark: int


class IsrProposed(PartitionEvent, frozen=True, kw_only=True):
    """A leader asks the controller for another ISR (AlterPartition)."""

    TEXT: ClassVar[str] = "{topic}-{partition}: proposing ISR {isr} ({kind})"
    isr: list[int]
    kind: str


class IsrProposalRefused(PartitionEvent, frozen=True, kw_only=True):
    """The controller refused an ISR proposal."""

    TEXT: ClassVar[str] = "{topic}-{partition}: ISR proposal refused: {error}"
    error: str


class AlterPartitionFailed(ClusterEvent, frozen=True, kw_only=True):
    """The controller did not answer ISR proposals, or refused all of them; they are sent again."""

    TEXT: ClassVar[str] = "AlterPartition {problem}"
    problem: str


class IsrChanged(PartitionEvent, frozen=True, kw_only=True):
    """A leader knows that another ISR is committed."""

    TEXT: ClassVar[str] = (
        "{topic}-{partition}: ISR {before} -> {after} (leader epoch {leader_epoch}, partition epoch {partition_epoch})"
    )
    before: list[int]
    after: list[int]
    leader_epoch: int | None
    partition_epoch: int


class ReplicaTruncated(PartitionEvent, frozen=True, kw_only=True):
    """The end of a log was cut, because its leader's log differs from there on."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = (
        "{topic}-{partition}: truncated from {end_before} to {end_after} under leader epoch {leader_epoch}: {reason}"
    )
    end_before: int
    end_after: int
    leader_epoch: int | None
    reason: str


class ReplicaReset(PartitionEvent, frozen=True, kw_only=True):
    """A log was emptied, because its leader's log starts behind its end."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{topic}-{partition}: reset to offset {offset}, the leader's log start"
    offset: int


class LogStartLowered(PartitionEvent, frozen=True, kw_only=True):
    """A follower's log starts earlier again, as its new leader's log does."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{topic}-{partition}: starts at {offset} as its leader does, no more was deleted"
    offset: int


class SegmentsDeleted(PartitionEvent, frozen=True, kw_only=True):
    """The log starts later: retention or an operator removes what lies in front."""

    TEXT: ClassVar[str] = "{topic}-{partition}: deleted up to offset {offset} by {reason}"
    offset: int
    reason: str


class ReplicaWarned(PartitionEvent, frozen=True, kw_only=True):
    """A replica met something that should not be, and went on safely."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{topic}-{partition}: {message}"
    message: str


class ReplicaDamaged(PartitionEvent, frozen=True, kw_only=True):
    """Bytes of a log are not what was written, or contradict each other."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "{topic}-{partition}: the log is damaged: {reason}"
    reason: str


class DamagedReplicaOffline(PartitionEvent, frozen=True, kw_only=True):
    """A damaged replica serves nothing until it is repaired; the controller moves its leadership."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "{topic}-{partition}: offline, its log is damaged"


class RepairBegun(PartitionEvent, frozen=True, kw_only=True):
    """The damaged log is set aside, and the replica fetches everything from its leader."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{topic}-{partition}: the repair begins with an empty log, to be fetched from its leader"


class ReplicaRepaired(PartitionEvent, frozen=True, kw_only=True):
    """A replica that was damaged is in sync again."""

    TEXT: ClassVar[str] = "{topic}-{partition}: repaired: in sync again, the damaged log is removed"


class ReplicaRemoved(PartitionEvent, frozen=True, kw_only=True):
    """A broker holds no replica of the partition any more."""

    TEXT: ClassVar[str] = "{topic}-{partition}: removed: {reason}"
    reason: str


# ----------------------------------------------------------------------------------------------------------- brokers
class LeadershipFenced(ClusterEvent, frozen=True, kw_only=True):
    """The broker leads nothing until its ZooKeeper session is confirmed."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "fenced: ZooKeeper has not confirmed the session of this broker in time; leading nothing"


class LeadershipUnfenced(ClusterEvent, frozen=True, kw_only=True):
    """The broker may lead again."""

    TEXT: ClassVar[str] = "unfenced: registered under broker epoch {broker_epoch}"
    broker_epoch: int | None


class BrokerRegistered(ClusterEvent, frozen=True, kw_only=True):
    """The broker is registered in ZooKeeper."""

    TEXT: ClassVar[str] = "broker {broker} registered under broker epoch {broker_epoch} at {address}"
    broker: int
    broker_epoch: int
    address: str


class RegistrationReplaced(ClusterEvent, frozen=True, kw_only=True):
    """The broker removes the registration of an earlier start of its own."""

    TEXT: ClassVar[str] = "replacing the registration of an earlier start of broker {broker}"
    broker: int


class BrokerStopped(ClusterEvent, frozen=True, kw_only=True):
    """A clean stop has ended."""

    TEXT: ClassVar[str] = "broker {broker} stopped"
    broker: int


class HandoverBegun(ClusterEvent, frozen=True, kw_only=True):
    """A broker that stops asks the controller to move its leaderships."""

    TEXT: ClassVar[str] = "handing leaderships over"


class LogScanned(PartitionEvent, frozen=True, kw_only=True):
    """A start read a log from its recovery point on."""

    TEXT: ClassVar[str] = (
        "loaded {loaded} of {logs} logs; {topic}-{partition}: scanned {scanned_bytes} bytes, cut {cut_bytes}"
    )
    loaded: int
    logs: int
    scanned_bytes: int
    cut_bytes: int


class LogDirectoryFailed(ClusterEvent, frozen=True, kw_only=True):
    """A log directory is offline or full: its replicas stop."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "log directory {path} is {state}: {reason}"
    path: str
    state: str
    reason: str


class LogDirectoryHasRoom(ClusterEvent, frozen=True, kw_only=True):
    """A log directory that was full can be written again."""

    TEXT: ClassVar[str] = "log directory {path} has room again"
    path: str


class ProcessStalled(ClusterEvent, frozen=True, kw_only=True):
    """The process did not run: it was paused, or a call blocked it."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "this process stalled for {stalled_ms} ms"
    stalled_ms: int


class LeaderSilent(ClusterEvent, frozen=True, kw_only=True):
    """A leader does not answer the fetches of this broker's followers."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "broker {leader} is silent, reconnecting"
    leader: int


# -------------------------------------------------------------------------------------------------------- controller
class ControllerElected(ClusterEvent, frozen=True, kw_only=True):
    """This broker is the active controller now."""

    TEXT: ClassVar[str] = (
        "took over as controller of epoch {controller_epoch}: brokers {brokers}, {topics} topics, {partitions} "
        "partitions, {deletions} deletions"
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
    leader_epoch: int
    isr: list[int]
    reason: str
    is_bad: bool = False
    """Writes stop, or records may be lost."""

    @property
    def level(self) -> int:
        return WARNING if self.is_bad else INFO


class BrokerJoined(ClusterEvent, frozen=True, kw_only=True):
    """The controller sees a registration."""

    TEXT: ClassVar[str] = "{description}"
    broker: int
    description: str


class BrokerLeft(ClusterEvent, frozen=True, kw_only=True):
    """The controller sees that a registration is gone."""

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
    TEXT: ClassVar[str] = "{description}"
    broker: int
    description: str


class ControllerDoubtsNetwork(ClusterEvent, frozen=True, kw_only=True):
    """The controller lost most liveness connections at once, so it suspects its own network and no broker."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{description}"
    brokers: list[int]
    description: str


class ControllerReported(ClusterEvent, frozen=True, kw_only=True):
    """Any other sentence of the controller."""

    TEXT: ClassVar[str] = "{message}"
    message: str
    is_warning: bool = False

    @property
    def level(self) -> int:
        return WARNING if self.is_warning else INFO


EVENTS: dict[str, type[ClusterEvent]] = {
    _snake_case(name): kind
    for name, kind in list(globals().items())
    if isinstance(kind, type) and issubclass(kind, ClusterEvent) and kind.TEXT
}
"""All events by the name that JSON lines give them."""


CONTENT_MAX = 1_500
"""Characters of an event in an answer; a longer one is told by its sentence alone, which is clipped."""
CLIPPED_TEXT_MAX = 500


def as_json(event: ClusterEvent) -> str:
    """One JSON object: the event's name, its fields, and its sentence as `text`."""
    fields, text = as_json_fields(event), event.text()
    content = json.dumps({**fields, "level": LEVEL_NAMES[event.level], "text": text}, ensure_ascii=False)
    if len(content) <= CONTENT_MAX:
        return content
    return json.dumps(
        {"event": fields["event"], "level": LEVEL_NAMES[event.level], "text": text[:CLIPPED_TEXT_MAX]},
        ensure_ascii=False,
    )


def as_json_fields(event: ClusterEvent) -> dict[str, Any]:
    """The event as JSON shows it: its name, then its fields."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return fields


def parse_json_line(line: str) -> dict[str, Any] | None:
    """The fields of a line of a broker's JSON log; None for what is none, such as Python's traceback of a crash."""
    start = line.find("{")  # compose puts the container's name in front
    try:
        fields = json.loads(line[start:]) if start >= 0 else None
    except ValueError:
        return None
    return fields if isinstance(fields, dict) and "event" in fields else None
