"""What a broker remembers of its producers (`.snapshot` files, docs/FORMATS.md), checked against the log next to them.

Owns: their format, and that the batches they name are in the log: a broker that trusted a wrong snapshot would write a
retry a second time, or reject a new record. Decoded with the msgpack package, not with the broker's codec. Leaves to
others: reading the files (`reading/producer_snapshots.py`), and which producers should be in a snapshot; brokers forget
producers (`sequences.py`). Pure.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import msgpack
import msgspec

from minibroker.audit.checks.findings import Kind
from minibroker.audit.checks.replica_report import ReplicaReport
from minibroker.audit.reading.replica import SnapshotFile, segment_file
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.checkpoints import SNAPSHOT_SUFFIX
from minibroker.protocol.record_batch import SEQUENCE_MAX

UNUSED_VERSION = 1
"""It did not name its partition; brokers no longer use it."""
NOT_KNOWN = -1
"""A leader epoch."""
_CRC = struct.Struct(">I")


class _RememberedBatch(NamedTuple):
    """One batch; offsets and sequences are those of its first and last record."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    crc: int


class _Producer(NamedTuple):
    producer_id: int
    epoch: int
    appended_ms: int
    batches: list[_RememberedBatch]
    """Oldest first, at least one."""


class _Place(NamedTuple):
    topic_id: str
    partition: int
    offset: int
    leader_epoch: int | None = None
    """Of the batch that ends at the offset; -1: its broker did not know it. None: version 2."""


class _Snapshot(NamedTuple):
    version: int
    place: _Place
    producers: list[_Producer]
    incomplete_since_ms: int | None = None
    """Producers may be missing that wrote in front of the log's first batch."""


class _Unreadable(Exception):
    """The message gives the reason."""


def check_snapshots(report: ReplicaReport) -> None:
    """Each snapshot is valid, belongs to this partition, and names batches of the log, including each producer's
    newest."""
    replica = report.replica
    columns = replica.columns
    is_dense = columns.base_offsets[1:] == columns.ends[:-1]
    newest: dict[int, int] = {}
    checked_rows = 0
    for file in replica.snapshots:
        try:
            snapshot = _decoded(file)
        except _Unreadable as error:
            # A power cut may tear one, and the next start keeps it: the broker uses an older one and the batches.
            _report(report, file, f"{error}; brokers skip it", note=file.problem is None)
            continue
        if snapshot is None:
            _report(report, file, f"is of version {UNUSED_VERSION}, which brokers no longer use", note=True)
            continue
        if _is_foreign(report, file, snapshot) or not is_dense:
            continue
        if file.offset > replica.log_end_offset:
            # A running broker's log may have grown meanwhile; a crash may lose the tail, and a start removes the file.
            note = not replica.facts.cleanly_stopped
            _report(report, file, f"is of a log that ends there; this one ends at {replica.log_end_offset}", note=note)
        elif len(columns) and file.offset >= columns.base_offsets[0]:
            end_row = bisect_left(columns.base_offsets, file.offset)
            newest.update(zip(columns.producer_ids[checked_rows:end_row], range(checked_rows, end_row), strict=True))
            checked_rows = end_row
            _check_epoch(report, file, snapshot.place.leader_epoch, end_row)
            _check_fit(report, file.offset, snapshot.producers, newest, end_row)


def _is_foreign(report: ReplicaReport, file: SnapshotFile, snapshot: _Snapshot) -> bool:
    facts = report.replica.facts
    topic_id, partition, offset, _ = snapshot.place
    if (partition, offset) == (facts.partition, file.offset) and facts.topic_id in (None, topic_id):
        return False
    _report(
        report, file, f"is of partition {partition} of topic id {topic_id} at offset {offset}; brokers do not use it"
    )
    return True


def _check_epoch(report: ReplicaReport, file: SnapshotFile, named: int | None, end_row: int) -> None:
    """An older copy, from before a truncation, names another one. Brokers take it once the batches in front are
    deleted: nothing contradicts it then."""
    if named in (None, NOT_KNOWN) or end_row == 0:
        return
    there = report.replica.columns.epochs[end_row - 1]
    if named != there:
        _report(report, file, f"is of a log whose last batch there has leader epoch {named}; this one's has {there}")


def _check_fit(
    report: ReplicaReport, offset: int, producers: Sequence[_Producer], newest: dict[int, int], end_row: int
) -> None:
    columns = report.replica.columns
    first = columns.base_offsets[0]
    for producer in producers:
        last_known = producer.batches[-1].last_offset
        row = newest.get(producer.producer_id)
        if row is not None and columns.base_offsets[row] > last_known:
            claim = f"knows producer {producer.producer_id} up to offset {last_known} only"
            _report_row(report, offset, row, claim)
        for batch in producer.batches:
            if batch.base_offset < first:
                continue  # its head was deleted
            at = bisect_left(columns.base_offsets, batch.base_offset, 0, end_row)
            if at == end_row or not _is_row(report, at, producer, batch):
                claim = (
                    f"remembers a batch of producer {producer.producer_id}, epoch {producer.epoch}, sequences"
                    f" {batch.first_sequence} to {batch.last_sequence}, at offset {batch.base_offset}"
                )
                _report_row(report, offset, max(min(at, end_row - 1), 0), claim)
                break


def _is_row(report: ReplicaReport, row: int, producer: _Producer, batch: _RememberedBatch) -> bool:
    columns = report.replica.columns
    records = columns.ends[row] - columns.base_offsets[row]
    return (
        producer.producer_id == columns.producer_ids[row]
        and producer.epoch == columns.producer_epochs[row]
        and batch.base_offset == columns.base_offsets[row]
        and batch.last_offset == columns.ends[row] - 1
        and batch.crc == columns.crcs[row]
        and batch.first_sequence == columns.base_sequences[row]
        and batch.last_sequence == (batch.first_sequence + records - 1) & SEQUENCE_MAX
    )


def _report_row(report: ReplicaReport, offset: int, row: int, claim: str) -> None:
    columns = report.replica.columns
    producer = columns.producer_ids[row]
    logged = (
        f"the log's batch of offsets {columns.base_offsets[row]} to {columns.ends[row] - 1} is producer {producer}'s,"
        f" epoch {columns.producer_epochs[row]}, from sequence {columns.base_sequences[row]}"
        if producer >= 0
        else f"the log's batch of offsets {columns.base_offsets[row]} to {columns.ends[row] - 1} has no producer"
    )
    report.add(
        Kind.PRODUCER_SNAPSHOT,
        f"{claim}; {logged}",
        offset=columns.base_offsets[row],
        end_offset=columns.ends[row],
        file=segment_file(report.replica.facts.directory, offset, SNAPSHOT_SUFFIX),
    )


def _report(report: ReplicaReport, file: SnapshotFile, message: str, *, note: bool = False) -> None:
    path = segment_file(report.replica.facts.directory, file.offset, SNAPSHOT_SUFFIX)
    kind = Kind.PRODUCER_SNAPSHOT_UNUSED if note else Kind.PRODUCER_SNAPSHOT
    report.add(kind, message, offset=file.offset, file=path)


def _decoded(file: SnapshotFile) -> _Snapshot | None:
    """None for a version that is not used. Raises _Unreadable."""
    if file.problem is not None:
        raise _Unreadable(file.problem)
    body = file.content[_CRC.size :]
    if len(file.content) < _CRC.size or crc32c(body) != _CRC.unpack_from(file.content)[0]:
        raise _Unreadable("its CRC does not match")
    try:
        decoded = msgpack.unpackb(body, raw=False)
        if isinstance(decoded, list) and decoded[:1] == [UNUSED_VERSION]:
            return None
        snapshot = msgspec.convert(decoded, _Snapshot)
    except (ValueError, msgspec.ValidationError, TypeError, msgpack.UnpackException, RecursionError) as error:
        raise _Unreadable(f"it does not decode: {error}") from None
    if not all(producer.batches for producer in snapshot.producers):
        raise _Unreadable("a producer in it has no batch")
    return snapshot
