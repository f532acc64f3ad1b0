"""What a power cut may leave of a log: everything that was synced, and any part of the rest. Pure.

Owns: the log as the broker's next start will truncate it. The start cuts at the first byte behind the recovery point
that is not part of a batch in order. Whatever lies behind that is ignored: a disk writes in an order of its own.
"""

from msgspec.structs import replace

from minibroker.audit.checks.rules import is_dense
from minibroker.audit.reading.replica import UNREADABLE, AuditedReplica, AuditedSegment, Columns, SegmentGap


def truncated_as_by_next_start(replica: AuditedReplica) -> AuditedReplica:
    """The same replica, unless its machine may have lost power and its broker was not started since."""
    facts = replica.facts
    if not facts.lost_power or facts.cleanly_stopped or is_dense(replica) or _is_refused(replica):
        return replica
    synced = facts.recovery_point or 0
    expected = replica.segments[0].base_offset if replica.segments else 0
    for number, segment in enumerate(replica.segments):
        if segment.vanished:
            return replica
        if segment.base_offset != expected and expected >= synced and number:
            before = replica.segments[number - 1]
            return _cut(replica, number - 1, before.end_row, before.size, f"no segment begins at offset {expected}")
        gaps = list(segment.gaps)
        for row in range(segment.first_row, segment.end_row):
            position, start = replica.columns.positions[row], replica.columns.base_offsets[row]
            if gaps and gaps[0].position < position:
                if expected >= synced:
                    return _cut(replica, number, row, gaps[0].position, gaps[0].reason)
                gaps.pop(0)
            elif start != expected and expected >= synced:
                return _cut(replica, number, row, position, f"offset {start} follows where {expected} is expected")
            expected = replica.columns.ends[row]
        if gaps and expected >= synced and number + 1 < len(replica.segments):
            return _cut(replica, number, segment.end_row, gaps[0].position, gaps[0].reason)
    return replica


def _is_refused(replica: AuditedReplica) -> bool:
    """Whether the operating system refuses a part of it. Nothing shows what is there, and the next start ends with the
    same error."""
    return any(gap.reason.startswith(UNREADABLE) for segment in replica.segments for gap in segment.gaps)


def _cut(replica: AuditedReplica, number: int, end_row: int, position: int, reason: str) -> AuditedReplica:
    """Keep these rows and the part of this segment in front of the position."""
    last = replica.segments[number]
    gap = SegmentGap(position=position, end=max(last.size, position), reason=reason, torn=False, reaches_end=True)
    kept: AuditedSegment = replace(
        last,
        size=position,
        end_row=end_row,
        gaps=(*(each for each in last.gaps if each.position < position), gap),
        undecodable=tuple(each for each in last.undecodable if each[0] < position),
    )
    columns = _first(replica.columns, end_row)
    end = max(columns.ends, default=kept.base_offset)
    return replace(
        replica,
        segments=[*replica.segments[:number], kept],
        columns=columns,
        last_end=max(columns.ends, default=0),
        snapshots=tuple(each for each in replica.snapshots if each.offset <= end),
    )


def _first(columns: Columns, rows: int) -> Columns:
    kept = Columns()
    records = sum(columns.ends[row] - columns.base_offsets[row] for row in range(rows))
    for name in Columns.__slots__:
        column = getattr(columns, name)
        getattr(kept, name).extend(column[: records if name == "record_crcs" else rows])
    return kept
