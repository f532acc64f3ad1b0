"""The checks on one replica. PURE: the content of its files goes in, findings come out.

Owns: density of offsets and order of epochs (replication invariant I12), and which checks a replica goes through.
Leaves to others: reading the files, and the other replicas (comparison.py).

Every rule has a fast path over whole columns, and takes the slow one only where something is wrong.
"""

import operator
from collections.abc import Iterator

from minibroker.audit.checks.findings import Finding, Kind
from minibroker.audit.checks.replica_report import ReplicaReport
from minibroker.audit.checks.sequences import check_sequences
from minibroker.audit.checks.side_file_rules import (
    check_checkpoints,
    check_epoch_history,
    check_indexes,
    check_log_start,
    check_owner,
)
from minibroker.audit.checks.snapshot_rules import check_snapshots
from minibroker.audit.reading.replica import UNREADABLE, AuditedReplica, AuditedSegment, SegmentGap


def check_replica(replica: AuditedReplica) -> list[Finding]:
    """Every contradiction within one replica's files."""
    report = ReplicaReport(replica)
    for file, reason in replica.facts.damage:
        report.add(Kind.CHECKPOINT_DAMAGE, reason, file=file)
    linked = replica.facts.linked
    if linked is not None:
        message = f"is one file with broker {linked.other_broker}'s {linked.other_file}: the two brokers have one copy"
        report.add(Kind.WRONG_DIRECTORY, message, file=linked.file)
    check_owner(report)
    _check_reading(report)
    _check_offsets(report)
    _check_epochs(report)
    check_sequences(report)
    check_snapshots(report)
    check_epoch_history(report)
    for segment in replica.segments:
        check_indexes(report, segment)
    check_checkpoints(report)
    check_log_start(report)
    return report.findings


def _check_reading(report: ReplicaReport) -> None:
    unexplained = report.replica.unexplained
    for segment in report.replica.segments:
        for position, base_offset, reason in segment.undecodable:
            report.add(
                Kind.UNDECODABLE_RECORDS,
                f"the batch passes its CRC, but {reason}",
                offset=base_offset,
                file=segment.file,
                position=position,
            )
        if segment.vanished:
            report.add(
                Kind.CHANGED_WHILE_READ,
                "the segment was removed while the audit ran (retention or truncation); its offsets are not compared",
                offset=segment.base_offset,
                file=segment.file,
            )
        if segment in unexplained:
            message = (
                "the segment was removed while the audit ran, and no log start explains that (as it does with"
                " retention): nothing shows what became of its records"
            )
            report.add(Kind.UNPROVEN, message, offset=segment.base_offset, file=segment.file)


# offsets


def _check_offsets(report: ReplicaReport) -> None:
    """Offsets are dense from the first segment's name on; each gap of bytes is given the offsets it replaced."""
    if not is_dense(report.replica):
        _OffsetWalk(report).run()


def is_dense(replica: AuditedReplica) -> bool:
    """Every byte belongs to a batch, and each batch begins where the one in front of it ends."""
    columns = replica.columns
    if any(segment.gaps or segment.vanished for segment in replica.segments):
        return False
    if columns.base_offsets[1:] != columns.ends[:-1]:
        return False
    end = None
    for segment in replica.segments:
        has_rows = segment.end_row > segment.first_row
        if has_rows and columns.base_offsets[segment.first_row] != segment.base_offset:
            return False
        if end is not None and segment.base_offset != end:
            return False
        end = columns.ends[segment.end_row - 1] if has_rows else segment.base_offset
    return True


class _OffsetWalk:
    """Walks over batches and gaps in file order and tracks the offset that must come next."""

    def __init__(self, report: ReplicaReport) -> None:
        self.report = report
        self.replica = report.replica
        self.expected: int | None = None
        """None: unknown, behind a segment that vanished."""
        self.pending: tuple[AuditedSegment, SegmentGap] | None = None
        """A gap of bytes; the next valid batch shows which offsets were lost in it."""
        self.missing: dict[tuple[int, int], tuple[AuditedSegment, int]] = {}

    def run(self) -> None:
        for segment in self.replica.segments:
            if segment.vanished:
                self._flush_gap(None)
                self.expected = None
                continue
            self._begin_segment(segment)
            for item in _items_in_order(self.replica, segment):
                if isinstance(item, SegmentGap):
                    self._flush_gap(None)
                    self.pending = (segment, item)
                else:
                    self._batch(segment, item)
        self._flush_gap(None)
        for (start, end), (segment, position) in self.missing.items():
            where = "no segment holds them" if position == 0 else "the next batch begins behind them"
            self.report.add(
                Kind.MISSING_RANGE,
                f"offsets {start} to {end - 1} are not in the log: {where}",
                offset=start,
                end_offset=end,
                file=segment.file,
                position=position,
            )

    def _begin_segment(self, segment: AuditedSegment) -> None:
        expected = self.expected
        if expected is None or segment.base_offset == expected:
            self._flush_gap(None)
        elif segment.base_offset > expected:
            if not self._flush_gap(segment.base_offset):
                self.missing[(expected, segment.base_offset)] = (segment, 0)
        else:
            self._flush_gap(None)
            self.report.add(
                Kind.OFFSET_OVERLAP,
                f"the segment's name says {segment.base_offset}, but the log in front of it reaches {expected}",
                offset=segment.base_offset,
                end_offset=expected,
                file=segment.file,
                position=0,
            )
        self.expected = segment.base_offset

    def _batch(self, segment: AuditedSegment, row: int) -> None:
        columns = self.replica.columns
        start, end, position = columns.base_offsets[row], columns.ends[row], columns.positions[row]
        assert self.expected is not None
        if start == self.expected:
            self._flush_gap(None)
        elif start > self.expected:
            if not self._flush_gap(start):
                self.missing[(self.expected, start)] = (segment, position)
        else:
            self._flush_gap(None)
            self._backwards(segment, start, end, position)
        self.expected = max(self.expected, end)

    def _backwards(self, segment: AuditedSegment, start: int, end: int, position: int) -> None:
        for missing_start, missing_end in list(self.missing):
            if missing_start <= start and end <= missing_end:
                place = self.missing.pop((missing_start, missing_end))
                if missing_start < start:
                    self.missing[(missing_start, start)] = place
                if end < missing_end:
                    self.missing[(end, missing_end)] = place
                self.report.add(
                    Kind.OUT_OF_ORDER,
                    f"the batch of offsets {start} to {end - 1} follows later ones (up to {self.expected})",
                    offset=start,
                    end_offset=end,
                    file=segment.file,
                    position=position,
                )
                return
        self.report.add(
            Kind.OFFSET_OVERLAP,
            f"the batch begins at offset {start}, but the log in front of it reaches {self.expected}",
            offset=start,
            end_offset=end,
            file=segment.file,
            position=position,
        )

    def _flush_gap(self, next_offset: int | None) -> bool:
        """Report the pending gap; `next_offset` is the offset behind it, if offsets jumped."""
        if self.pending is None:
            return False
        segment, gap = self.pending
        self.pending = None
        last = segment is self.replica.segments[-1] and gap.reaches_end
        facts = self.replica.facts
        crash = last and not facts.cleanly_stopped and (self.expected or 0) >= (facts.recovery_point or 0)
        length = gap.end - gap.position
        if crash or (gap.torn and last):
            what = (
                "the file ends inside a batch, {} bytes of it are left"
                if gap.torn
                else "the last {} bytes do not count"
            )
            message = f"{what.format(length)}: {gap.reason}"
            if crash:
                message += " (not synced when the broker stopped; its next start cuts this off)"
            kind = Kind.TORN_TAIL
        else:
            lost = "" if next_offset is None else f"; offsets {self.expected} to {next_offset - 1} are lost"
            message = f"{length:,} bytes do not form a valid batch: {gap.reason}{lost}"
            if gap.reason.startswith(UNREADABLE):
                message = f"the segment {gap.reason}{lost}"
            kind = Kind.CORRUPT_BATCH
        self.report.add(
            kind,
            message,
            note=crash,
            offset=self.expected,
            end_offset=next_offset,
            file=segment.file,
            position=gap.position,
        )
        return True


def _items_in_order(replica: AuditedReplica, segment: AuditedSegment) -> Iterator[int | SegmentGap]:
    """Rows and gaps of a segment by position."""
    positions = replica.columns.positions
    gaps = list(segment.gaps)
    for row in range(segment.first_row, segment.end_row):
        while gaps and gaps[0].position < positions[row]:
            yield gaps.pop(0)
        yield row
    yield from gaps


# epochs


def _check_epochs(report: ReplicaReport) -> None:
    """Epochs never decrease along the log, and none is below 0: a leader stamps every batch."""
    epochs = report.replica.columns.epochs
    if epochs[1:] == epochs[:-1] and (not epochs or epochs[0] >= 0):
        return  # one epoch, as in most logs: one memory comparison
    if all(map(operator.le, epochs, epochs[1:])) and (not epochs or epochs[0] >= 0):
        return
    columns = report.replica.columns
    for row, epoch in enumerate(epochs):
        earlier = epochs[row - 1] if row else epoch
        if epoch < earlier or epoch < 0:
            reason = "was never stamped by a leader" if epoch < 0 else f"follows epoch {earlier}"
            report.add(
                Kind.EPOCH_DECREASES,
                f"the batch at offset {columns.base_offsets[row]} has leader epoch {epoch}, which {reason}",
                offset=columns.base_offsets[row],
                end_offset=columns.ends[row],
                file=report.replica.segment_of_row(row).file,
                position=columns.positions[row],
            )
