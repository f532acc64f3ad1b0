"""The checks of the files next to one log: epoch history, indexes, checkpoints. Pure.

Owns: whether they fit the batches (replication invariants I10, I13, I15). Where a broker was not stopped cleanly, its
side files may be behind the log: that is a note, because its next start rebuilds them.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import groupby, pairwise

from minibroker.audit.checks.findings import Kind
from minibroker.audit.checks.replica_report import ReplicaReport
from minibroker.audit.reading.replica import AuditedReplica, AuditedSegment, segment_file
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import CorruptCheckpoint, decode_index, decode_time_index


def check_epoch_history(report: ReplicaReport) -> None:
    """The greatest entry at or below an offset gives its epoch. Epochs without a batch are fine: their leaders wrote
    none.

    The file of a broker that was not stopped cleanly may be behind its log at the end; that is a note.
    """
    facts, columns = report.replica.facts, report.replica.columns
    file = f"{facts.directory}/{checkpoints.EPOCH_CHECKPOINT}"
    if any(damaged == file for damaged, _ in facts.damage):
        return
    entries = facts.epoch_entries
    if entries is None:
        if len(columns):
            kind, message = _kind_and_message(report, "is missing, though the log holds batches", True)
            report.add(kind, message, file=file)
        return
    for (epoch, start), (next_epoch, next_start) in pairwise(entries):
        if next_epoch <= epoch or next_start <= start:
            message = f"epoch {next_epoch} from offset {next_start} follows epoch {epoch} from offset {start}"
            report.add(Kind.EPOCH_CHECKPOINT, message, offset=next_start, file=file)
            return
    start_of_log, end_of_log = report.replica.log_start_offset, report.replica.log_end_offset
    if entries and entries[-1][1] > end_of_log:
        message = f"epoch {entries[-1][0]} begins at offset {entries[-1][1]}, but the log ends at {end_of_log}"
        report.add(Kind.EPOCH_CHECKPOINT, message, note=not facts.cleanly_stopped, offset=entries[-1][1], file=file)
    _check_runs(report, entries, start_of_log)


def _check_runs(report: ReplicaReport, entries: tuple[tuple[int, int], ...], start_of_log: int) -> None:
    starts = [start for _, start in entries]
    for epoch, first_row, end_row in _epoch_runs(report.replica):
        columns = report.replica.columns
        end = columns.ends[end_row - 1]
        start = max(columns.base_offsets[first_row], start_of_log)
        if start >= end:
            continue
        at_start, at_end = bisect_right(starts, start) - 1, bisect_right(starts, end - 1) - 1
        if at_start >= 0 and at_start == at_end and entries[at_start][0] == epoch:
            continue
        history = "no entry covers them" if at_end < 0 else f"the history has epoch {entries[at_end][0]}"
        if at_start >= 0 and entries[at_start][0] != epoch:
            history = f"the history has epoch {entries[at_start][0]}"
        elif at_start < at_end:
            history = f"the history has epoch {entries[at_start + 1][0]} from offset {entries[at_start + 1][1]} on"
        message = f"the batches of offsets {start} to {end - 1} have leader epoch {epoch}, {history}"
        is_behind = at_start == at_end == len(entries) - 1 and (not entries or epoch > entries[-1][0])
        kind, message = _kind_and_message(report, message, is_behind)
        file = report.replica.segment_of_row(first_row).file
        report.add(kind, message, offset=start, end_offset=end, file=file, position=columns.positions[first_row])


def _kind_and_message(report: ReplicaReport, message: str, behind: bool) -> tuple[Kind, str]:
    if behind and not report.replica.facts.cleanly_stopped:
        reason = "the broker was not stopped cleanly: its next start rebuilds the epoch history"
        return Kind.EPOCH_CHECKPOINT_BEHIND, f"{message} ({reason})"
    return Kind.EPOCH_CHECKPOINT, message


def _epoch_runs(replica: AuditedReplica) -> Iterator[tuple[int, int, int]]:
    """(epoch, first row, end row) of rows in file order that share an epoch."""
    epochs = replica.columns.epochs
    if epochs and epochs[1:] == epochs[:-1]:
        yield epochs[0], 0, len(epochs)
        return
    row = 0
    for epoch, members in groupby(epochs):
        count = sum(1 for _ in members)
        yield epoch, row, row + count
        row += count


# indexes


def check_indexes(report: ReplicaReport, segment: AuditedSegment) -> None:
    """Each entry of both indexes names a batch: last offset and position, or last offset and largest timestamp so
    far."""
    facts = report.replica.facts
    if segment.vanished:
        return
    for suffix, index in ((checkpoints.INDEX_SUFFIX, segment.index), (".timeindex", segment.time_index)):
        file = segment_file(facts.directory, segment.base_offset, suffix)
        if index is None:
            if segment.end_row > segment.first_row and not _may_be_behind(report.replica, segment):
                report.add(Kind.INDEX_MISSING, "is missing; the broker rebuilds it", file=file)
            continue
        if index.problem is not None:
            report.add(Kind.INDEX_UNREADABLE, f"cannot be read: {index.problem}; the broker rebuilds it", file=file)
            continue
        try:
            wrong = (
                _wrong_index_entries(report.replica, segment, index.content)
                if suffix == checkpoints.INDEX_SUFFIX
                else _wrong_time_index_entries(report.replica, segment, index.content)
            )
        except CorruptCheckpoint as error:
            report.add(Kind.INDEX_DAMAGE, str(error), note=_may_be_behind(report.replica, segment), file=file)
            continue
        if wrong:
            position, offset, message = wrong[0]
            more = f" (and {len(wrong) - 1} more entries)" if len(wrong) > 1 else ""
            note = _may_be_behind(report.replica, segment)
            report.add(Kind.INDEX_DAMAGE, message + more, note=note, offset=offset, file=file, position=position)


def _may_be_behind(replica: AuditedReplica, segment: AuditedSegment) -> bool:
    """A running broker writes the index of the last segment: the file may name batches that were truncated since, and a
    crash may leave half an entry. A power cut may leave any part of each index of unsynced batches. The start after an
    unclean stop rebuilds them."""
    facts = replica.facts
    if facts.cleanly_stopped or segment is replica.segments[-1]:
        return not facts.cleanly_stopped
    ends = replica.columns.ends
    end = ends[segment.end_row - 1] if segment.end_row > segment.first_row else segment.base_offset
    return facts.lost_power and end > (facts.recovery_point or 0)


def _wrong_index_entries(
    replica: AuditedReplica, segment: AuditedSegment, content: bytes
) -> list[tuple[int, int, str]]:
    columns = replica.columns
    rows = slice(segment.first_row, segment.end_row)
    last_offsets = dict(zip(columns.positions[rows], columns.ends[rows], strict=True))
    wrong = []
    previous = -1
    for number, entry in enumerate(decode_index(content)):
        offset = segment.base_offset + entry.relative_offset
        end = last_offsets.get(entry.position)
        if end is None and _is_excused(replica, segment, entry.position):
            continue
        at = number * checkpoints.INDEX_ENTRY_BYTES
        if end is None:
            wrong.append((at, offset, f"entry {number} points at position {entry.position}, where no batch begins"))
        elif offset != end - 1:
            reason = f"entry {number} says offset {offset} for the batch at position {entry.position}"
            wrong.append((at, offset, f"{reason}, which ends with {end - 1}"))
        elif entry.position <= previous:
            wrong.append((at, offset, f"entry {number} does not rise"))
        previous = entry.position
    return wrong


def _is_excused(replica: AuditedReplica, segment: AuditedSegment, position: int) -> bool:
    """The batch there is corrupt, or was missing (not yet written, or already truncated) when the log was read."""
    if any(gap.position <= position < gap.end for gap in segment.gaps):
        return True
    return position >= segment.size and _may_be_behind(replica, segment)


def _wrong_time_index_entries(
    replica: AuditedReplica, segment: AuditedSegment, content: bytes
) -> list[tuple[int, int, str]]:
    entries = decode_time_index(content)
    if not entries or segment.gaps:
        return []
    columns = replica.columns
    largest: dict[int, int] = {}
    timestamp = -1
    for row in range(segment.first_row, segment.end_row):
        timestamp = max(timestamp, columns.max_timestamps[row])
        largest[columns.ends[row] - 1] = timestamp
    end = columns.ends[segment.end_row - 1] if segment.end_row > segment.first_row else segment.base_offset
    wrong = []
    previous = -1
    for number, entry in enumerate(entries):
        offset = segment.base_offset + entry.relative_offset
        if offset >= end and _may_be_behind(replica, segment):
            continue
        at = number * checkpoints.TIME_INDEX_ENTRY_BYTES
        expected = largest.get(offset)
        if expected is None:
            wrong.append((at, offset, f"entry {number} names offset {offset}, with which no batch ends"))
        elif expected != entry.timestamp_ms:
            reason = f"entry {number} says timestamp {entry.timestamp_ms} at offset {offset}"
            wrong.append((at, offset, f"{reason}, the largest up to there is {expected}"))
        elif offset <= previous:
            wrong.append((at, offset, f"entry {number} does not rise"))
        previous = offset
    return wrong


# checkpoints


def check_owner(report: ReplicaReport) -> None:
    """A directory of another partition, or one of the two files that name its partition. Only these files can show it:
    the batches of two partitions of a topic may fit each other's names."""
    facts = report.replica.facts
    for name, claim in ((checkpoints.PARTITION_METADATA, facts.metadata), (checkpoints.LOG_START, facts.log_start)):
        if claim is not None and claim.partition != facts.partition:
            message = f"{name} is of partition {claim.partition} of topic id {claim.topic_id}"
            if facts.owner != facts.partition:
                message += "; its log is not compared"
            report.add(Kind.FOREIGN_FILE, message, file=f"{facts.directory}/{name}")


def check_log_start(report: ReplicaReport) -> None:
    """The only file that explains a missing head of a log."""
    replica, facts = report.replica, report.replica.facts
    start, end = facts.log_start, replica.log_end_offset
    file = f"{facts.directory}/{checkpoints.LOG_START}"
    first = replica.segments[0].base_offset if replica.segments else 0
    if start is None:
        if first > 0:
            message = (
                f"the log begins at offset {first}, no {checkpoints.LOG_START} file explains it: its head is missing"
            )
            report.add(Kind.MISSING_RANGE, message, offset=0, end_offset=first, file=file)
        return
    if facts.topic_id is not None and start.topic_id != facts.topic_id:
        message = f"{checkpoints.LOG_START} is of topic {start.topic_id}, the log of topic {facts.topic_id}"
        report.add(Kind.CHECKPOINT_DAMAGE, message, file=file)
    if first > start.offset:
        message = (
            f"the log begins at offset {first}, but only records below {start.offset} were deleted ({start.reason})"
        )
        report.add(Kind.MISSING_RANGE, message, offset=start.offset, end_offset=first, file=replica.segments[0].file)
    if start.offset > end:
        # A log start is synced at once, the records that it passed may not be.
        unsynced = replica.may_lack_unsynced
        why = ": what was not synced is gone, as a power cut leaves it; all of it was deleted" if unsynced else ""
        message = f"the log start offset {start.offset} is behind the log's end {end}{why}"
        report.add(Kind.CHECKPOINT_DAMAGE, message, note=unsynced, offset=start.offset, file=file)
    committed = facts.high_watermark
    if facts.cleanly_stopped and committed is not None and committed < start.offset <= end:
        message = (
            f"the log start offset {start.offset} is above the high watermark {committed}, and only committed records"
            " are deleted"
        )
        report.add(Kind.CHECKPOINT_DAMAGE, message, offset=start.offset, file=file)


def check_checkpoints(report: ReplicaReport) -> None:
    """A replica holds everything up to the offsets in its own checkpoints."""
    replica, facts = report.replica, report.replica.facts
    end = replica.log_end_offset
    file = replica.segments[-1].file if replica.segments else facts.directory
    position = replica.segments[-1].size if replica.segments else None
    claims = {"high watermark": facts.high_watermark or 0, "recovery point": facts.recovery_point or 0}
    name, claimed = max(claims.items(), key=lambda item: item[1])
    unsynced = not facts.cleanly_stopped and facts.lost_power and end >= claims["recovery point"]
    why = "what was not synced is gone, as a power cut leaves it" if unsynced else "its tail is missing"
    if claimed > end:
        report.add(
            Kind.MISSING_RANGE,
            f"the log ends at offset {end}, but its own {name} was {claimed}: {why}",
            note=unsynced,
            offset=end,
            end_offset=claimed,
            file=file,
            position=position,
        )
    first = replica.segments[0].base_offset if replica.segments else 0
    history = facts.epoch_entries
    if facts.cleanly_stopped and history and history[0][1] < first:
        report.add(
            Kind.MISSING_RANGE,
            f"the log begins at offset {first}, but its epoch history at {history[0][1]}: its head is missing"
            " (retention would have moved both)",
            offset=history[0][1],
            end_offset=first,
            file=replica.segments[0].file,
            position=0,
        )
