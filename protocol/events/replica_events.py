"""Events of replicas: their roles, in-sync sets, logs, damage and repair."""

from typing import ClassVar

from minibroker.protocol.events.event_base import ERROR, WARNING, ClusterEvent, PartitionEvent


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


class RepairGivenUp(PartitionEvent, frozen=True, kw_only=True):
    """A replica was damaged again and again: its disk, or its leader's log, is faulty."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "{topic}-{partition}: damaged {times} times within an hour, stays offline"
    times: int


class RecordsSalvaged(PartitionEvent, frozen=True, kw_only=True):
    """The leader's log is damaged where this one, in its repair, ends."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = (
        "{topic}-{partition}: {size_bytes} bytes at offset {offset} come from the log that was set aside: the leader's "
        "is damaged there"
    )
    size_bytes: int
    offset: int


class DamagedBatchReceived(PartitionEvent, frozen=True, kw_only=True):
    """A follower refuses what its leader sent."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{topic}-{partition}: broker {leader} sent a damaged batch: {reason}"
    leader: int
    reason: str


class LogMissing(PartitionEvent, frozen=True, kw_only=True):
    """A directory is gone that was there before this start: an only copy is lost unless it is put back."""

    LEVEL: ClassVar[int] = ERROR
    TEXT: ClassVar[str] = "{topic}-{partition}: its directory is missing: {path} was there before this start"
    path: str


class IndexRebuilt(PartitionEvent, frozen=True, kw_only=True):
    """The scrubber found an index that does not fit its segment; no record is affected."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{topic}-{partition}: rebuilding the index of {path}: {reason}"
    path: str
    reason: str


class ReplicaWaitsForDescriptor(PartitionEvent, frozen=True, kw_only=True):
    """A replica is offline for lack of a file descriptor, and tries again."""

    LEVEL: ClassVar[int] = WARNING
    TEXT: ClassVar[str] = "{topic}-{partition}: offline until there is a file descriptor for it"
