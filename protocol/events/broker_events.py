"""Events of brokers: registration and session, log directories, settings, the process."""

from typing import ClassVar

import msgspec

from minibroker.protocol.counted import counted
from minibroker.protocol.events.event_base import ERROR, INFO, WARNING, ClusterEvent, PartitionEvent


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
    """A broker has ended cleanly: it was asked to, could not start, or lost its place. Its exit code tells."""

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


class FileNotUsed(ClusterEvent, frozen=True, kw_only=True):
    """A start does without a file beside a log, or beside all logs: it is damaged, of another log, or contradicts the
    batches."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{path} is not used: {reason}; {consequence}"
    path: str
    reason: str
    consequence: str


class DirectoryIdMissing(ClusterEvent, frozen=True, kw_only=True):
    """A log directory has logs, but no `meta.properties`: its logs count as those of another disk."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = (
        "{path} is missing, though there are logs; a new one is made. The logs count for nothing until they have"
        " caught up with a leader; if they are the only copy, stop this broker and restore the old file"
    )
    path: str


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
    """A leader does not answer the requests of this broker's followers."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "broker {leader} is silent, reconnecting"
    leader: int


class LogsDoubted(ClusterEvent, frozen=True, kw_only=True):
    """A start cannot be certain that the logs hold what they held before."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "log directory {path} may have lost records since the start before: {reason}"
    path: str
    reason: str


class DescriptorsExhausted(ClusterEvent, frozen=True, kw_only=True):
    """The process may open no more files. Reported every ten seconds at most."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "no file descriptor left: {reason}. Raise the limit (ulimit -n), or lower max.connections"
    reason: str


class ScrubRoundEnded(ClusterEvent, frozen=True, kw_only=True):
    """The scrubber has read all logs once."""

    TEXT: ClassVar[str] = "scrubbed {what}: {scrubbed_bytes} bytes in {seconds} s, {damaged} found damaged"
    logs: int
    scrubbed_bytes: int
    seconds: int
    damaged: int

    def text(self) -> str:
        return self.TEXT.format(what=counted(self.logs, "log"), **msgspec.structs.asdict(self))


class SessionChanged(ClusterEvent, frozen=True, kw_only=True):
    """The ZooKeeper session of a broker is suspended, connected again, expired, or new."""

    TEXT: ClassVar[str] = "the ZooKeeper session is {state}"
    state: str

    @property
    def level(self) -> int:
        return WARNING if self.state in ("suspended", "expired") else INFO


class RegistrationLost(ClusterEvent, frozen=True, kw_only=True):
    """The broker is not registered any more, and registers again."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "broker {broker}: broker epoch {broker_epoch} is over: {reason}"
    broker: int
    broker_epoch: int
    reason: str


class RegistrationAwaited(ClusterEvent, frozen=True, kw_only=True):
    """Another process is registered under this broker's id, and may be about to vanish."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = (
        "broker id {broker} is registered by another process, waiting up to {seconds:.1f} s for it to go"
    )
    broker: int
    seconds: float


class HandoverUnfinished(ClusterEvent, frozen=True, kw_only=True):
    """A broker stops although it leads partitions."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "leaderships are not handed over: {reason}"
    reason: str


class ClusterSecretReplaced(ClusterEvent, frozen=True, kw_only=True):
    """ZooKeeper holds another secret, by which brokers know each other."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "the cluster's secret was replaced: reconnecting to other brokers with the new one"


class SettingsChanged(ClusterEvent, frozen=True, kw_only=True):
    """Settings of the broker were changed while it runs."""

    TEXT: ClassVar[str] = "settings changed while running: {settings}"
    settings: list[str]


class SettingIgnored(ClusterEvent, frozen=True, kw_only=True):
    """A setting in ZooKeeper has no effect."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{path}: ignored: {reason}"
    path: str
    reason: str


class WitnessNotWritten(ClusterEvent, frozen=True, kw_only=True):
    """The note in ZooKeeper of what is committed is out of date. Reported once an outage."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "the witness is not written: {reason}"
    reason: str


class NodeMissing(ClusterEvent, frozen=True, kw_only=True):
    """ZooKeeper has lost a node that every cluster has."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "{path} is missing in ZooKeeper, creating it again"
    path: str


class NodeUnreadable(ClusterEvent, frozen=True, kw_only=True):
    """A node of ZooKeeper that concerns this broker alone cannot be parsed."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{path} is not readable, {consequence}: {reason}"
    path: str
    consequence: str
    reason: str
