"""The kinds of findings, their severity, and the result types. Pure.

Owns: the kinds of findings with their severity and the check each belongs to, the verdicts, and the results of one
partition and of the whole audit as plain data. Leaves to others: how findings are made, run and printed.
docs/QUESTIONS.md lists the steps that add a rule."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TypeAlias

import msgspec


class Severity(StrEnum):
    """An error breaks a promise; a note is allowed and worth knowing."""

    ERROR = "error"
    NOTE = "note"


class Kind(StrEnum):
    """Every kind of finding. Reports and scripts use these names."""

    CORRUPT_BATCH = "corrupt-batch"
    UNDECODABLE_RECORDS = "undecodable-records"
    TORN_TAIL = "torn-tail"
    MISSING_RANGE = "missing-range"
    OFFSET_OVERLAP = "offset-overlap"
    OUT_OF_ORDER = "out-of-order"
    EPOCH_DECREASES = "epoch-decreases"
    SEQUENCE_TWICE = "sequence-twice"
    SEQUENCE_GAP = "sequence-gap"
    SEQUENCE_BACKWARDS = "sequence-backwards"
    SEQUENCE_MALFORMED = "sequence-malformed"
    SEQUENCE_RESTARTED = "sequence-restarted"
    EPOCH_CHECKPOINT = "epoch-checkpoint"
    EPOCH_CHECKPOINT_BEHIND = "epoch-checkpoint-behind"
    INDEX_DAMAGE = "index-damage"
    INDEX_MISSING = "index-missing"
    INDEX_UNREADABLE = "index-unreadable"
    PRODUCER_SNAPSHOT = "producer-snapshot"
    PRODUCER_SNAPSHOT_UNUSED = "producer-snapshot-unused"
    CHECKPOINT_DAMAGE = "checkpoint-damage"
    FOREIGN_FILE = "foreign-file"
    DIVERGED_BELOW_HIGH_WATERMARK = "diverged-below-high-watermark"
    CONFLICTING_EPOCH = "conflicting-epoch"
    LOG_MATCHING = "log-matching"
    DIVERGED_ABOVE_HIGH_WATERMARK = "diverged-above-high-watermark"
    LAGGING_TAIL = "lagging-tail"
    LOG_START_DIFFERS = "log-start-differs"
    TOPIC_ID_DIFFERS = "topic-id-differs"
    CHANGED_WHILE_READ = "changed-while-read"
    UNPROVEN = "unproven"
    ACKED_MISSING = "acked-missing"
    ACKED_CHANGED = "acked-changed"
    ACKED_TWICE = "acked-twice"
    ACKED_TRIMMED = "acked-trimmed"
    ACKED_ALLOWED_LOSS = "acked-allowed-loss"
    STALE_CLUSTER_STATE = "stale-cluster-state"
    MISSING_BROKER = "missing-broker"
    MISSING_REPLICA = "missing-replica"
    REPLICA_ABSENT = "replica-absent"
    BROKER_TWICE = "broker-twice"
    WRONG_DIRECTORY = "wrong-directory"
    CONTRADICTION = "contradiction"
    UNEXPECTED_PARTITION = "unexpected-partition"
    RECORDS_LOST = "records-lost"
    WITNESS_DIFFERS = "witness-differs"
    WITNESS_BEHIND = "witness-behind"
    WITNESS_NOT_COMPARED = "witness-not-compared"


NOTES = frozenset(
    {
        Kind.SEQUENCE_RESTARTED,
        Kind.EPOCH_CHECKPOINT_BEHIND,
        Kind.INDEX_MISSING,
        Kind.INDEX_UNREADABLE,
        Kind.PRODUCER_SNAPSHOT_UNUSED,
        Kind.DIVERGED_ABOVE_HIGH_WATERMARK,
        Kind.LAGGING_TAIL,
        Kind.LOG_START_DIFFERS,
        Kind.CHANGED_WHILE_READ,
        Kind.ACKED_TRIMMED,
        Kind.ACKED_ALLOWED_LOSS,
        Kind.REPLICA_ABSENT,
        Kind.WITNESS_BEHIND,
        Kind.WITNESS_NOT_COMPARED,
        Kind.UNEXPECTED_PARTITION,
    }
)
"""Kinds that are notes wherever they appear. TORN_TAIL is a note where a crash explains it."""

CHECKS: dict[str, tuple[Kind, ...]] = {
    "every replica that should be there is there": (
        Kind.BROKER_TWICE,
        Kind.WRONG_DIRECTORY,
        Kind.CONTRADICTION,
        Kind.TOPIC_ID_DIFFERS,
        Kind.MISSING_BROKER,
        Kind.MISSING_REPLICA,
        Kind.REPLICA_ABSENT,
        Kind.UNEXPECTED_PARTITION,
    ),
    "the logs hold what was witnessed": (
        Kind.RECORDS_LOST,
        Kind.WITNESS_DIFFERS,
        Kind.WITNESS_BEHIND,
        Kind.WITNESS_NOT_COMPARED,
    ),
    "every batch passes its CRC": (Kind.CORRUPT_BATCH, Kind.TORN_TAIL),
    "every record decodes": (Kind.UNDECODABLE_RECORDS,),
    "offsets are dense": (Kind.MISSING_RANGE, Kind.OFFSET_OVERLAP, Kind.OUT_OF_ORDER),
    "leader epochs never fall": (Kind.EPOCH_DECREASES,),
    "every producer's batches are there once and in order": (
        Kind.SEQUENCE_TWICE,
        Kind.SEQUENCE_GAP,
        Kind.SEQUENCE_BACKWARDS,
        Kind.SEQUENCE_MALFORMED,
        Kind.SEQUENCE_RESTARTED,
    ),
    "epoch histories fit the batches": (Kind.EPOCH_CHECKPOINT, Kind.EPOCH_CHECKPOINT_BEHIND),
    "producer snapshots name the log's batches": (Kind.PRODUCER_SNAPSHOT, Kind.PRODUCER_SNAPSHOT_UNUSED),
    "indexes point at batches": (Kind.INDEX_DAMAGE, Kind.INDEX_MISSING, Kind.INDEX_UNREADABLE),
    "checkpoints are readable and true": (
        Kind.CHECKPOINT_DAMAGE,
        Kind.FOREIGN_FILE,
        Kind.STALE_CLUSTER_STATE,
        Kind.CHANGED_WHILE_READ,
    ),
    "replicas agree below the high watermark": (
        Kind.DIVERGED_BELOW_HIGH_WATERMARK,
        Kind.CONFLICTING_EPOCH,
        Kind.UNPROVEN,
        Kind.LAGGING_TAIL,
        Kind.LOG_START_DIFFERS,
    ),
    "one offset and epoch, one content": (Kind.LOG_MATCHING, Kind.DIVERGED_ABOVE_HIGH_WATERMARK),
    "acknowledged records are in place": (
        Kind.ACKED_MISSING,
        Kind.ACKED_CHANGED,
        Kind.ACKED_TWICE,
        Kind.ACKED_TRIMMED,
        Kind.ACKED_ALLOWED_LOSS,
    ),
}


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One violation or note, with every name that helps to locate it."""

    kind: Kind
    severity: Severity
    message: str
    broker: int | None = None
    """The broker whose replica it concerns; None: it belongs to no single one."""
    others: tuple[int, ...] = ()
    """The brokers it was compared with."""
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    end_offset: int | None = None
    """Exclusive."""
    file: str | None = None
    position: int | None = None
    """Byte position in the file."""


def finding(
    kind: Kind,
    message: str,
    *,
    note: bool = False,
    broker: int | None = None,
    others: tuple[int, ...] = (),
    topic: str | None = None,
    partition: int | None = None,
    offset: int | None = None,
    end_offset: int | None = None,
    file: str | None = None,
    position: int | None = None,
) -> Finding:
    """A finding with the severity of its kind; `note` lowers it where the caller knows a harmless cause."""
    return Finding(
        kind=kind,
        severity=Severity.NOTE if note or kind in NOTES else Severity.ERROR,
        message=message,
        broker=broker,
        others=others,
        topic=topic,
        partition=partition,
        offset=offset,
        end_offset=end_offset,
        file=file,
        position=position,
    )


class PartitionVerdict(StrEnum):
    """The verdict on one partition, worst first."""

    INCONSISTENT = "inconsistent"
    UNPROVEN = "unproven"
    UNDECODABLE = "holds records that cannot be decoded"
    DIVERGED_ABOVE = "diverged above the high watermark"
    LAGGING = "identical, one lags"
    IDENTICAL = "identical"
    SINGLE = "one replica"
    EMPTY = "empty"


class ReplicaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One replica in the report."""

    broker: int
    directory: str
    log_start_offset: int
    log_end_offset: int
    high_watermark: int | None
    last_epoch: int | None
    batches: int
    bytes: int
    cleanly_stopped: bool


class PartitionResult(msgspec.Struct, frozen=True, kw_only=True):
    """One partition in the report."""

    topic: str
    partition: int
    verdict: PartitionVerdict
    compared_offsets: int
    """Offsets at which at least two replicas were compared below both their high watermarks."""
    total_offsets: int
    """Offsets that at least one replica holds."""
    acked_records: int
    acked_in_place: int
    committed_offset: int = 0
    """Everything below it is known to be committed: the highest high watermark of any replica, or the witness's."""
    compared_replicas: tuple[int, ...] = ()
    """Brokers whose replica was compared with another one below the offset that both must hold."""
    witnessed_replicas: tuple[int, ...] = ()
    """Brokers whose replica holds exactly what was witnessed."""
    absent_replicas: tuple[int, ...] = ()
    """Brokers that should hold a replica and have none."""
    replicas: tuple[ReplicaSummary, ...]
    findings: tuple[Finding, ...]


SortKey: TypeAlias = tuple[bool, str, int, int, str, int, str, int, str]


def sort_key(item: Finding) -> SortKey:
    """Errors first, then by place: a report is the same whichever engine wrote it."""
    return (
        item.severity is not Severity.ERROR,
        item.topic or "",
        -1 if item.partition is None else item.partition,
        -1 if item.offset is None else item.offset,
        item.kind,
        -1 if item.broker is None else item.broker,
        item.file or "",
        -1 if item.position is None else item.position,
        item.message,
    )


_CAUSES_FIRST = {kind: number for number, kind in enumerate(kind for kinds in CHECKS.values() for kind in kinds)}
"""The checks are ordered from cause to consequence: what is absent, what is damaged on disk, what then differs between
replicas, which promised records are gone."""
assert set(_CAUSES_FIRST) == set(Kind), "every kind belongs to a check"
_CAUSES_FIRST[Kind.WITNESS_DIFFERS] = _CAUSES_FIRST[Kind.DIVERGED_BELOW_HIGH_WATERMARK]
"""This kind only shows that something is wrong; a damaged batch or a missing file shows what."""


def cause_key(item: Finding) -> tuple[bool, bool, int, SortKey]:
    """For readers: errors first, violations before what could not be decided, causes before consequences, then by
    place."""
    open_question = item.kind in (Kind.UNPROVEN, Kind.UNDECODABLE_RECORDS)
    return item.severity is not Severity.ERROR, open_question, _CAUSES_FIRST[item.kind], sort_key(item)


FINDINGS_PER_KIND_MAX = 20
"""Per kind and replica. A completely wrong replica is reported by twenty examples and a count."""


def limited(findings: Iterable[Finding]) -> list[Finding]:
    """Sorted, without repeats, and limited per kind and replica; a last finding counts the rest."""
    groups: dict[tuple[Kind, Severity, int | None, str | None, int | None], list[Finding]] = {}
    for item in sorted(set(findings), key=sort_key):
        groups.setdefault((item.kind, item.severity, item.broker, item.topic, item.partition), []).append(item)
    kept: list[Finding] = []
    for group in groups.values():
        kept += group[:FINDINGS_PER_KIND_MAX]
        more = len(group) - FINDINGS_PER_KIND_MAX
        if more > 0:
            rest = group[FINDINGS_PER_KIND_MAX]
            kept.append(msgspec.structs.replace(rest, message=f"and {more} more of this kind, from here on"))
    return sorted(kept, key=sort_key)


def has_errors(findings: Sequence[Finding]) -> bool:
    return any(item.severity is Severity.ERROR for item in findings)
