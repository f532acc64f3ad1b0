"""What can happen to a replica (events) and what must then be done (effects).

Owns: the interface between the pure core and its shell. An event carries everything that the decision needs: the time,
the leader epoch under which a question was asked, the other side's answer. The shell performs the effects in order,
before the next event; one that takes time (an fsync, a request to another broker) starts there and comes back as an
event. Pure.
"""

from typing import Any

from msgspec import Struct

from minibroker.broker.replication.producer_state import KnownProducers
from minibroker.broker.replication.state import IsrKind
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.record_batch import BatchHeader


class ReplicaEvent(Struct, frozen=True, kw_only=True):
    """Base of all events."""


class ReplicaEffect(Struct, frozen=True, kw_only=True):
    """Base of all effects."""


# ---------------------------------------------------------------------------------------------- events: control plane
class LeaderAndIsrReceived(ReplicaEvent, frozen=True, kw_only=True):
    """The controller's order: leader, ISR and assignment. Already checked: controller epoch, broker epoch, topic id."""

    now_ms: int
    leader_id: int | None
    leader_epoch: int
    partition_epoch: int
    in_sync_replicas: tuple[int, ...]
    assignment: tuple[int, ...]
    fenced: bool = False
    """ZooKeeper has not confirmed this broker's session in time; a late order does not change that."""


class ReplicaStopped(ReplicaEvent, frozen=True, kw_only=True):
    """The controller took the replica out of service (StopReplica). The shell keeps or deletes the data."""

    leader_epoch: int | None
    """None: no check (the topic is being deleted)."""


class ConfigChanged(ReplicaEvent, frozen=True, kw_only=True):
    """A setting such as min.insync.replicas changed."""

    config: Any
    now_ms: int


class BrokerFenced(ReplicaEvent, frozen=True, kw_only=True):
    """The ZooKeeper deadline passed, or the registration is gone."""


class BrokerUnfenced(ReplicaEvent, frozen=True, kw_only=True):
    """ZooKeeper answered again and the session has survived, so the broker epoch is still valid."""

    now_ms: int


class LogFailed(ReplicaEvent, frozen=True, kw_only=True):
    """The log directory is offline or full, or this replica alone waits for a file descriptor."""


class LogHealed(ReplicaEvent, frozen=True, kw_only=True):
    """The disk has room again. The next LeaderAndIsr sets the role. Effects that the disk refused may not have been
    performed; the log is what these fields say."""

    first_offset: int
    """Where the files begin: retention may have deleted while the replica was offline."""
    log_start_offset: int
    log_end_offset: int
    epoch_entries: tuple[tuple[int, int], ...]
    """The epoch history that the log last received."""


class LogDamaged(ReplicaEvent, frozen=True, kw_only=True):
    """Stored bytes of this log differ from what was written, or contradict each other."""

    reason: str


# ---------------------------------------------------------------------------------------------------- events: leader
class ProduceReceived(ReplicaEvent, frozen=True, kw_only=True):
    """Batches of a Produce request: one, or several of which each `continues` the one before. Their CRC and record
    count are checked."""

    tokens: tuple[Any, ...]
    """The shell's handles of the batches; opaque to the core."""
    acks: int
    headers: tuple[BatchHeader, ...]
    producers: KnownProducers
    """Of the log at its present end."""
    is_retry: bool = False
    """The producer got no answer to an earlier attempt to send the first batch."""


class BatchesAppended(ReplicaEvent, frozen=True, kw_only=True):
    """The batches that AppendBatches asked for are in the log."""

    tokens: tuple[Any, ...]
    acks: int
    base_offset: int
    end_offset: int
    now_ms: int


class ProduceExpired(ReplicaEvent, frozen=True, kw_only=True):
    """The timeout of the request that holds this batch has passed."""

    token: Any


class FollowerFetched(ReplicaEvent, frozen=True, kw_only=True):
    """A follower fetched from this leader; the request also reports the follower's progress."""

    now_ms: int
    replica_id: int
    broker_epoch: int | None
    current_leader_epoch: int | None
    fetch_offset: int
    last_fetched_epoch: int | None
    eligible: bool
    log_start_offset: int | None = None
    """The follower's durably recorded log start."""


class BrokersChanged(ReplicaEvent, frozen=True, kw_only=True):
    """UpdateMetadata: the brokers that may be in an ISR now. `eligible` maps broker to its registered broker epoch."""

    eligible: dict[int, int]
    now_ms: int


class LagChecked(ReplicaEvent, frozen=True, kw_only=True):
    """Time to check for followers that lag, and for caught-up followers that are not yet proposed for the ISR."""

    now_ms: int


class LeaderStalled(ReplicaEvent, frozen=True, kw_only=True):
    """This process did not run for `stalled_ms`, which must not count as lag of its followers (hardening rule 7)."""

    stalled_ms: int
    now_ms: int


class AlterPartitionAnswered(ReplicaEvent, frozen=True, kw_only=True):
    """The controller answered a proposal."""

    proposal_id: int
    error_code: ErrorCode
    leader_epoch: int
    in_sync_replicas: tuple[int, ...]
    partition_epoch: int
    now_ms: int


class AlterPartitionLost(ReplicaEvent, frozen=True, kw_only=True):
    """No answer in time, or the controller changed: the proposal may or may not have been applied."""

    proposal_id: int


class Synced(ReplicaEvent, frozen=True, kw_only=True):
    """Everything below `end_offset` is on stable storage."""

    end_offset: int
    now_ms: int


class LogTrimmed(ReplicaEvent, frozen=True, kw_only=True):
    """The leader's log start rises; the new start and its reason are durably recorded."""

    leader_epoch: int
    """The epoch in which the leader decided it."""
    log_start_offset: int
    reason: LogStartReason


class HeadDeleted(ReplicaEvent, frozen=True, kw_only=True):
    """Segments in front of the log's start are gone."""

    first_offset: int
    """First offset of the first remaining segment; not above the log start."""


# -------------------------------------------------------------------------------------------------- events: follower
class EpochEndAnswered(ReplicaEvent, frozen=True, kw_only=True):
    """The leader's answer to OffsetForLeaderEpoch."""

    leader_epoch: int
    """The epoch under which the question was asked."""
    asked_epoch: int
    error_code: ErrorCode
    epoch: int | None = None
    end_offset: int | None = None


class LeaderEndsAnswered(ReplicaEvent, frozen=True, kw_only=True):
    """The leader's log start and end, requested after OFFSET_OUT_OF_RANGE."""

    leader_epoch: int
    error_code: ErrorCode
    log_start_offset: int = 0
    log_end_offset: int = 0
    low_watermark: int | None = None
    """None: the leader does not report it."""
    producers: bytes = b""
    """The leader's states of producers that wrote below its log start (`ProducerStates.snapshot_below`)."""


class FetchAnswered(ReplicaEvent, frozen=True, kw_only=True):
    """The leader's answer for this partition."""

    leader_epoch: int
    fetch_offset: int
    error_code: ErrorCode
    high_watermark: int | None = None
    log_start_offset: int | None = None
    low_watermark: int | None = None
    diverging: bool = False
    batches: tuple[BatchHeader, ...] = ()


class FetchedAppended(ReplicaEvent, frozen=True, kw_only=True):
    """The batches that AppendFetched asked for are in the log."""

    batches: tuple[BatchHeader, ...]
    high_watermark: int | None
    log_start_offset: int | None
    low_watermark: int | None = None


class StartLowered(ReplicaEvent, frozen=True, kw_only=True):
    """LowerStart was performed as far as the files reach."""

    wanted: int
    log_start_offset: int


class PhaseRetried(ReplicaEvent, frozen=True, kw_only=True):
    """The back-off of a follower's phase ended."""


class TailTruncated(ReplicaEvent, frozen=True, kw_only=True):
    """TruncateTo or ResetTo was performed; these are the log's actual start and end now."""

    log_start_offset: int
    log_end_offset: int


# ------------------------------------------------------------------------------------------------------------ effects
class AppendBatches(ReplicaEffect, frozen=True, kw_only=True):
    """Stamp the batches and append all of them or none, then report BatchesAppended (or LogFailed)."""

    tokens: tuple[Any, ...]
    acks: int
    base_offset: int
    leader_epoch: int


class AnswerProduce(ReplicaEffect, frozen=True, kw_only=True):
    """Answer the producer, for each of these batches."""

    tokens: tuple[Any, ...]
    error_code: ErrorCode = ErrorCode.NONE
    base_offset: int | None = None
    """Of the first batch; the others follow it without a gap."""
    error_message: str | None = None


class HighWatermarkRose(ReplicaEffect, frozen=True, kw_only=True):
    """Consumers may read up to this offset."""

    high_watermark: int


class ProposeIsr(ReplicaEffect, frozen=True, kw_only=True):
    """Send AlterPartition; report AlterPartitionAnswered or AlterPartitionLost."""

    kind: IsrKind
    proposal_id: int
    leader_epoch: int
    partition_epoch: int
    new_isr_with_epochs: tuple[tuple[int, int | None], ...]
    after_ms: int = 0
    """Delay before sending (for a retry)."""


class IsrCommitted(ReplicaEffect, frozen=True, kw_only=True):
    """For people and metrics: the committed ISR changed."""

    before: tuple[int, ...]
    after: tuple[int, ...]


class SyncLog(ReplicaEffect, frozen=True, kw_only=True):
    """fsync in the background, then report Synced."""


class WriteEpochHistory(ReplicaEffect, frozen=True, kw_only=True):
    """Replace the epoch file now, without an fsync, which would stop the event loop for all partitions (hardening rule
    7). A flush syncs the file before the recovery point rises. That is enough: below the recovery point a start relies
    on the file, and above it on the epochs in the batches."""


class SyncEpochHistorySoon(ReplicaEffect, frozen=True, kw_only=True):
    """Have the epoch file synced off the loop, together with those of the other partitions that one order changed;
    nothing is reported. Nothing waits for it: without flushing, the next flush may be far away, and until then a power
    cut would lose each epoch that has no batch yet."""


class TruncateTo(ReplicaEffect, frozen=True, kw_only=True):
    """Truncate the tail, then report TailTruncated."""

    end_offset: int
    reason: str
    below_high_watermark: bool = False
    """Never in clean operation (I32)."""


class ResetTo(ReplicaEffect, frozen=True, kw_only=True):
    """Delete everything, start empty at `offset`, then report TailTruncated."""

    offset: int
    producers: bytes | None = None
    """The leader's states of producers that wrote below `offset` (`ProducerStates.snapshot_below`). None: it was not
    asked."""


class TrimBefore(ReplicaEffect, frozen=True, kw_only=True):
    """Raise the log start. Segments in front are deleted once all in-sync replicas have recorded it (HeadDeleted)."""

    log_start_offset: int
    reason: LogStartReason
    drops_all: bool = False
    """No record is left, and those in front may never have been in any leader's log: delete them at once."""


class StartsChanged(ReplicaEffect, frozen=True, kw_only=True):
    """The leader's log start or low watermark changed; send it to the followers."""


class LowerStart(ReplicaEffect, frozen=True, kw_only=True):
    """Lower the log start to the leader's, as far as the files still reach; then report StartLowered."""

    log_start_offset: int


class AppendFetched(ReplicaEffect, frozen=True, kw_only=True):
    """Append the fetched batches as they are, then report FetchedAppended (or LogFailed)."""

    batches: tuple[BatchHeader, ...]
    high_watermark: int | None
    log_start_offset: int | None
    low_watermark: int | None = None


class AskEpochEnd(ReplicaEffect, frozen=True, kw_only=True):
    """Send OffsetForLeaderEpoch to the leader; report EpochEndAnswered."""

    leader_epoch: int
    epoch: int


class AskLeaderEnds(ReplicaEffect, frozen=True, kw_only=True):
    """Ask the leader for its log start and end; report LeaderEndsAnswered."""

    leader_epoch: int


class FetchNext(ReplicaEffect, frozen=True, kw_only=True):
    """The fetch position is valid: put the partition into the next Fetch."""


class BackOff(ReplicaEffect, frozen=True, kw_only=True):
    """Retry the current phase after replica.fetch.backoff.ms."""

    error_code: ErrorCode


class DamageNoted(ReplicaEffect, frozen=True, kw_only=True):
    """For people and metrics: this replica's log is damaged."""

    reason: str


class ReportDamage(ReplicaEffect, frozen=True, kw_only=True):
    """The leader's answers and the stored log contradict each other; report LogDamaged."""

    reason: str


class TakeOutOfUse(ReplicaEffect, frozen=True, kw_only=True):
    """Stop writing to and deleting from the damaged log, and report this replica as offline to the controller."""

    reason: str


class LeaderChanged(ReplicaEffect, frozen=True):
    """Role, leader or epoch changed: the shell moves fetchers, drops fetch sessions, ends delayed fetches."""


class Warn(ReplicaEffect, frozen=True, kw_only=True):
    """Log one line about something that does not happen in clean operation."""

    message: str
