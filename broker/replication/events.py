"""What can happen to a replica (events) and what must then be done (effects).

Owns: the vocabulary between the pure core and its shell. An event carries everything the decision needs: time, the
epoch it was asked under, what the other side said. An effect is performed by the shell in order, before the next event;
one that takes time (an fsync, a request to another broker) starts there and comes back as an event. Pure.
"""

from typing import Any

from msgspec import Struct

from minibroker.broker.replication.state import IsrKind
from minibroker.protocol.checkpoints import LogStartReason
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import BatchHeader


class ReplicaEvent(Struct, frozen=True, kw_only=True):
    """Base of all events."""


class ReplicaEffect(Struct, frozen=True, kw_only=True):
    """Base of all effects."""


# ---------------------------------------------------------------------------------------------- events: control plane
class LeaderAndIsrReceived(ReplicaEvent, frozen=True, kw_only=True):
    """The controller says who leads. Already checked: controller epoch, broker epoch, topic id."""

    now_ms: int
    controller_epoch: int
    leader_id: int | None
    leader_epoch: int
    partition_epoch: int
    in_sync_replicas: tuple[int, ...]
    assignment: tuple[int, ...]
    fenced: bool = False
    """ZooKeeper has not confirmed this broker's session in time: a late order does not change that."""


class ReplicaStopped(ReplicaEvent, frozen=True, kw_only=True):
    """The controller took the replica out of service (StopReplica). The data stays or goes by the shell."""

    leader_epoch: int | None
    """None: no check (the topic is being deleted)."""


class ConfigChanged(ReplicaEvent, frozen=True, kw_only=True):
    """min.insync.replicas or the like changed."""

    config: Any
    now_ms: int


class BrokerFenced(ReplicaEvent, frozen=True, kw_only=True):
    """The ZooKeeper deadline passed, or the registration is gone."""


class BrokerUnfenced(ReplicaEvent, frozen=True, kw_only=True):
    """ZooKeeper answered again and the session had survived: the broker epoch is still ours."""

    now_ms: int


class LogFailed(ReplicaEvent, frozen=True, kw_only=True):
    """The log directory is offline, or full."""


class LogHealed(ReplicaEvent, frozen=True, kw_only=True):
    """There is room again. The role comes with the next LeaderAndIsr. What was decided when the disk refused may not
    have been done: the log is as these say."""

    first_offset: int
    """Where the files begin: retention may have deleted while the replica was offline."""
    log_start_offset: int
    log_end_offset: int
    epoch_entries: tuple[tuple[int, int], ...]
    """The epoch history as it was last handed to the log."""


class LogDamaged(ReplicaEvent, frozen=True, kw_only=True):
    """Stored bytes of this log are not what was written, or contradict each other."""

    reason: str


# ---------------------------------------------------------------------------------------------------- events: leader
class ProduceReceived(ReplicaEvent, frozen=True, kw_only=True):
    """A run of a Produce request: one batch, or several of which each `continues` the one before. Their bytes are
    checked (CRC, count)."""

    tokens: tuple[Any, ...]
    """The shell's handles of the batches; opaque to the core."""
    acks: int
    headers: tuple[BatchHeader, ...]
    is_retry: bool = False
    """The producer got no answer to an earlier attempt of the first one."""


class BatchesAppended(ReplicaEvent, frozen=True, kw_only=True):
    """The batches that AppendBatches asked for are in the log."""

    tokens: tuple[Any, ...]
    acks: int
    base_offset: int
    end_offset: int
    now_ms: int


class ProduceExpired(ReplicaEvent, frozen=True, kw_only=True):
    """The own timeout of the request that holds this batch passed."""

    token: Any


class FollowerFetched(ReplicaEvent, frozen=True, kw_only=True):
    """A follower asked its leader for records; the request is also its progress report."""

    now_ms: int
    replica_id: int
    broker_epoch: int | None
    current_leader_epoch: int | None
    fetch_offset: int
    last_fetched_epoch: int | None
    eligible: bool
    log_start_offset: int | None = None
    """Where its log starts, as far as that is durably recorded."""


class BrokersChanged(ReplicaEvent, frozen=True, kw_only=True):
    """UpdateMetadata: which brokers may be in an ISR now. `eligible` maps broker to its registered broker epoch."""

    eligible: dict[int, int]
    now_ms: int


class LagChecked(ReplicaEvent, frozen=True, kw_only=True):
    """Time to look for followers that fell behind, and for caught-up ones whose joining was not proposed yet."""

    now_ms: int


class LeaderStalled(ReplicaEvent, frozen=True, kw_only=True):
    """This process did not run for so long: followers' lag must not count it (hardening rule 7)."""

    stalled_ms: int


class AlterPartitionAnswered(ReplicaEvent, frozen=True, kw_only=True):
    """The controller judged a proposal."""

    proposal_id: int
    error_code: ErrorCode
    leader_epoch: int
    in_sync_replicas: tuple[int, ...]
    partition_epoch: int
    now_ms: int


class AlterPartitionLost(ReplicaEvent, frozen=True, kw_only=True):
    """No answer in time, or the controller changed: it may or may not have been applied."""

    proposal_id: int


class Synced(ReplicaEvent, frozen=True, kw_only=True):
    """Everything below `end_offset` is on stable storage."""

    end_offset: int
    now_ms: int


class LogTrimmed(ReplicaEvent, frozen=True, kw_only=True):
    """The leader's log starts later from now on; the reason and the start are durably recorded."""

    leader_epoch: int
    """In which that was decided."""
    log_start_offset: int
    reason: LogStartReason


class HeadDeleted(ReplicaEvent, frozen=True, kw_only=True):
    """Segments in front of the log's start are gone."""

    first_offset: int
    """Where the first segment begins now; not above the log's start."""


# -------------------------------------------------------------------------------------------------- events: follower
class EpochEndAnswered(ReplicaEvent, frozen=True, kw_only=True):
    """The leader's answer to OffsetForLeaderEpoch."""

    leader_epoch: int
    """The epoch the question was asked under."""
    asked_epoch: int
    error_code: ErrorCode
    epoch: int | None = None
    end_offset: int | None = None


class LeaderEndsAnswered(ReplicaEvent, frozen=True, kw_only=True):
    """The leader's log start and end, asked after OFFSET_OUT_OF_RANGE."""

    leader_epoch: int
    error_code: ErrorCode
    log_start_offset: int = 0
    log_end_offset: int = 0
    low_watermark: int | None = None
    """None: the leader does not say."""
    producers: bytes = b""
    """What the leader knows of producers that wrote below its log's start (`ProducerStates.snapshot_below`)."""


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
    """LowerStart was done as far as the files reach."""

    wanted: int
    log_start_offset: int


class PhaseRetried(ReplicaEvent, frozen=True, kw_only=True):
    """The back-off of a follower's phase ended."""


class LogTruncated(ReplicaEvent, frozen=True, kw_only=True):
    """TruncateTo or ResetTo was done; where the log really ends now."""

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
    """Tell the producer, of each batch."""

    tokens: tuple[Any, ...]
    error_code: ErrorCode = ErrorCode.NONE
    base_offset: int | None = None
    """Of the first batch; the others follow it without a gap."""
    error_message: str | None = None


class HighWatermarkRose(ReplicaEffect, frozen=True, kw_only=True):
    """Consumers may read further."""

    high_watermark: int


class ProposeIsr(ReplicaEffect, frozen=True, kw_only=True):
    """Send AlterPartition; report AlterPartitionAnswered or AlterPartitionLost."""

    kind: IsrKind
    proposal_id: int
    leader_epoch: int
    partition_epoch: int
    new_isr_with_epochs: tuple[tuple[int, int | None], ...]
    after_ms: int = 0
    """Wait so long before sending (a retry)."""


class IsrCommitted(ReplicaEffect, frozen=True, kw_only=True):
    """For people and metrics: the ISR is now this."""

    before: tuple[int, ...]
    after: tuple[int, ...]


class SyncLog(ReplicaEffect, frozen=True, kw_only=True):
    """fsync in the background, then report Synced."""


class WriteEpochHistory(ReplicaEffect, frozen=True, kw_only=True):
    """Write the entries to the checkpoint file."""

    sync: bool


class TruncateTo(ReplicaEffect, frozen=True, kw_only=True):
    """Cut the tail, then report LogTruncated."""

    end_offset: int
    reason: str
    below_high_watermark: bool = False
    """Never in clean operation (I32)."""


class ResetTo(ReplicaEffect, frozen=True, kw_only=True):
    """Drop everything, start empty at `offset`, then report LogTruncated."""

    offset: int
    producers: bytes = b""
    """What the leader knows of producers that wrote below `offset` (`ProducerStates.snapshot_below`)."""


class TrimBefore(ReplicaEffect, frozen=True, kw_only=True):
    """The log starts later; what lies in front goes when everybody in sync has that recorded (HeadDeleted)."""

    log_start_offset: int
    reason: LogStartReason
    drops_all: bool = False
    """Nothing is left, and what lay in front may be what no leader ever had: it goes at once."""


class StartsChanged(ReplicaEffect, frozen=True, kw_only=True):
    """Followers are to hear of a leader's log start or low watermark."""


class LowerStart(ReplicaEffect, frozen=True, kw_only=True):
    """The log starts as early as its leader's, if the files still reach so far; then report StartLowered."""

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
    """The fetch position is valid (again): put the partition into the next Fetch."""


class BackOff(ReplicaEffect, frozen=True, kw_only=True):
    """Try the current phase again after replica.fetch.backoff.ms."""

    error_code: ErrorCode


class DamageNoted(ReplicaEffect, frozen=True, kw_only=True):
    """For people and metrics: this replica's log is damaged."""

    reason: str


class ReportDamage(ReplicaEffect, frozen=True, kw_only=True):
    """What the leader says and what is stored here cannot both be true; report LogDamaged."""

    reason: str


class TakeOutOfUse(ReplicaEffect, frozen=True, kw_only=True):
    """Write and delete nothing in the damaged log any more, and tell the controller that this replica is offline."""

    reason: str


class LeaderChanged(ReplicaEffect, frozen=True, kw_only=True):
    """Role, leader or epoch changed: the shell moves fetchers, drops sessions, ends waiting fetches."""

    became_leader: bool


class Warn(ReplicaEffect, frozen=True, kw_only=True):
    """Something that clean operation excludes; one log line."""

    message: str
