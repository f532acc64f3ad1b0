"""What one broker knows of one partition that it holds a replica of.

Owns: the fields of the replica state, each with the rule that holds for it. Leaves to others: changing them, which
the modules beside this one do, through `step` and `step_fetch` only (`tests/tidy/replica_state.py` holds that); and the
producers that wrote to the log, which follow from its batches and belong to it. Pure.

Always: low_watermark <= log_start_offset <= high_watermark <= log_end_offset, synced_end_offset <= log_end_offset.
Ends are exclusive.
"""

from enum import Enum
from typing import Any

from msgspec import Struct, field

from minibroker.broker.replication.epoch_history import EpochHistory


class Role(Enum):
    """The role of this broker in the partition."""

    NONE = "none"  # no leader is known, or the replica was stopped
    LEADER = "leader"
    FOLLOWER = "follower"
    OFFLINE = "offline"  # its log directory failed or is full, its own log is damaged, or it waits for a descriptor


LEADER, FOLLOWER, OFFLINE = Role.LEADER, Role.FOLLOWER, Role.OFFLINE
"""For the data path: before Python 3.12, finding a member of an enumeration takes as long as ten attributes."""


class TruncationRule(Enum):
    """How a follower cuts its log when it begins to follow."""

    LEADER_EPOCH = "leader-epoch"
    HIGH_WATERMARK = "high-watermark"  # before Kafka 0.11 (KIP-101): loses and diverges; for teaching only


class ReplicationConfig(Struct, frozen=True, kw_only=True):
    """Settings the rules depend on."""

    broker_id: int
    min_insync_replicas: int = 1
    replica_lag_time_max_ms: int = 30_000
    counts_only_synced: bool = False
    """log.flush.interval.* is on: only synced bytes count for the high watermark (hardening rule 2)."""
    truncation_rule: TruncationRule = TruncationRule.LEADER_EPOCH


class RemoteReplica(Struct, kw_only=True):
    """What a leader knows of a follower in this leader epoch."""

    log_end_offset: int | None = None
    """None: it has not fetched in this epoch. Its end is then unknown, and the high watermark cannot rise."""
    broker_epoch: int | None = None
    """Highest broker epoch it fetched with; a lower one belongs to an older incarnation (KIP-903)."""
    last_caught_up_ms: int
    """Last time its end was known to equal the leader's."""
    log_start_offset: int | None = None
    """The start it last reported in this epoch; None: not yet reported."""
    last_fetch_ms: int
    leader_end_at_last_fetch: int
    eligible: bool = True
    """Live, not shutting down, and fetching under its registered broker epoch."""


class IsrKind(Enum):
    EXPAND = "pending-expand"
    SHRINK = "pending-shrink"


class PendingIsr(Struct, frozen=True):
    """A proposed change of the ISR. Until it is confirmed both the old and the new members count (KIP-497)."""

    kind: IsrKind
    members: tuple[tuple[int, int | None], ...]
    """(broker, the broker epoch under which it qualified). A replica that registers again meanwhile has not qualified,
    so a repeated proposal still names the old broker epoch (KIP-903)."""
    proposal_id: int

    @property
    def in_sync_replicas(self) -> tuple[int, ...]:
        return tuple(broker_id for broker_id, _ in self.members)


class AskingEpochEnd(Struct, frozen=True):
    """Following, not yet aligned: waits for the leader to answer where this epoch ended (KIP-101, KIP-279)."""

    epoch: int


class AskingLeaderEnds(Struct, frozen=True):
    """Out of the leader's range: waits for the leader's log start and end."""


class Fetching(Struct, frozen=True):
    """Aligned with the leader of this epoch; fetches from log_end_offset on."""


class Halted(Struct, frozen=True):
    """Fenced under its own epoch: waits for the next LeaderAndIsr."""


FollowerPhase = AskingEpochEnd | AskingLeaderEnds | Fetching | Halted


class ProduceWaiter(Struct):
    """Batches of one produce request that wait together: with acks=all for the high watermark, with acks=1 (in
    `sync_waiters`) for the leader's sync."""

    tokens: tuple[Any, ...]
    """The shell's handles of the batches; opaque here."""
    base_offset: int
    """Of the first batch; the others follow it."""
    required_offset: int
    """The request is answered once the high watermark (acks=1: the synced end) is not below this."""
    leader_epoch: int
    """Epoch of the append: in another epoch the offset may hold another record."""


class ReplicaState(Struct, kw_only=True):
    """One replica. Changed within `step` and `step_fetch` only."""

    config: ReplicationConfig
    role: Role = Role.NONE
    leader_id: int | None = None
    leader_epoch: int | None = None
    partition_epoch: int = -1
    """zkVersion of the state znode in the last accepted LeaderAndIsr or AlterPartition response."""
    assignment: tuple[int, ...] = ()
    fenced: bool = False
    """This broker is past its ZooKeeper deadline: it must not act as leader."""

    log_start_offset: int = 0
    low_watermark: int = 0
    """Every in-sync replica has durably recorded a start at or above it; only files in front of it may be deleted. A
    leader computes it, a follower receives it. It falls only when this replica's own start falls. It is never below the
    first offset of this replica's files, so a replica never reports a value that its own files do not reach."""
    log_end_offset: int = 0
    synced_end_offset: int = 0
    high_watermark: int = 0
    epoch_history: EpochHistory = field(default_factory=EpochHistory)

    damage: str | None = None
    """What is wrong with this log's bytes; it lasts until the replica starts empty again, see `damage`."""

    # leader only; empty otherwise (I33)
    leader_epoch_start: int | None = None
    elected_log_start: int | None = None
    """The log start when this epoch began: an earlier leader may have deleted files up to there, because it had to wait
    for the start of this member of the ISR only."""
    in_sync_replicas: tuple[int, ...] = ()
    """Last committed ISR, the leader included; never empty on a leader."""
    pending_isr: PendingIsr | None = None
    proposal_in_flight: int | None = None
    """Cleared only by the reply, even if LeaderAndIsr has settled the proposal before (KAFKA-12686)."""
    last_proposal_id: int = 0
    remotes: dict[int, RemoteReplica] = field(default_factory=dict)
    waiters: list[ProduceWaiter] = field(default_factory=list)
    """Sorted by required_offset."""
    sync_waiters: list[ProduceWaiter] = field(default_factory=list)
    """acks=1 with flushing on: answered once the leader's own fsync covers them."""
    forfeited_epoch: int | None = None
    """Leader epoch of this replica when its log failed. It does not lead in that epoch again: a proposal of that time
    may still be applied, and its members have not been counted since (KIP-497)."""
    shrink_waits_for_sync: int | None = None
    """Log end that must be synced before the ISR may fall below the minimum (hardening rule 4)."""

    # follower only
    phase: FollowerPhase | None = None
    matches_leader: bool = False
    """This epoch's leader compared this log with its own at an offset above its low watermark: all before is equal."""
    diverged_at: tuple[int, int | None] | None = None
    """(log end, latest epoch) when this epoch's leader last reported a divergence after an alignment."""
    alignments_without_progress: int = 0
    """How often in a row it reported a divergence at that same place."""

    @property
    def is_leader(self) -> bool:
        return self.role is LEADER

    @property
    def is_offline(self) -> bool:
        return self.role is OFFLINE

    @property
    def effective_min_insync_replicas(self) -> int:
        """min.insync.replicas, but at most the number of replicas."""
        wanted, replicas = self.config.min_insync_replicas, len(self.assignment)
        return wanted if wanted <= replicas else max(1, replicas)

    @property
    def maximal_in_sync_replicas(self) -> tuple[int, ...]:
        """The committed ISR and all members of a pending proposal: safe whether or not it is applied (KIP-497)."""
        if self.pending_isr is None:
            return self.in_sync_replicas
        extra = tuple(b for b in self.pending_isr.in_sync_replicas if b not in self.in_sync_replicas)
        return self.in_sync_replicas + extra

    @property
    def is_shrinking_below_minimum(self) -> bool:
        """A shrink below the minimum is pending: the controller may have applied it already."""
        pending = self.pending_isr
        return (
            pending is not None
            and pending.kind is IsrKind.SHRINK
            and len(pending.in_sync_replicas) < self.effective_min_insync_replicas
        )

    @property
    def counted_end(self) -> int:
        """The end up to which this broker's own copy counts for the high watermark (hardening rules 2 and 4)."""
        only_synced = self.config.counts_only_synced or self.is_shrinking_below_minimum
        return self.synced_end_offset if only_synced else self.log_end_offset

    @property
    def last_fetched_epoch(self) -> int | None:
        """Epoch of the last record held."""
        entries = self.epoch_history.entries
        return entries[-1][0] if entries and self.log_end_offset > self.log_start_offset else None
