"""Checks acknowledged records against the logs (promise P1, invariant I21). PURE; acked_file.py reads the list.

Owns: what an acknowledgement demands of the replicas. The record, with its full checksum, is at its offset on every
replica whose log reaches beyond it, on at least two replicas (on all, if there are fewer), and on every member of the
last known ISR, except for what a power cut may have taken from a broker that has not restarted since. A record below a
replica's log start was trimmed by retention: that replica counts as having held it. A record that only the last in-sync
replica can have held counts as trimmed, not as missing, if its `log-start` file states that a leader deleted it.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import TypeAlias

import msgspec

from minibroker.audit.checks.findings import Finding, Kind, Severity, finding
from minibroker.audit.reading.content import Content
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition

REPLICAS_WANTED = 2
"""min.insync.replicas of the promise: an acknowledged record is on at least this many replicas."""


class AckedRecords(msgspec.Struct):
    """Acknowledged records of one partition by offset, each offset once."""

    offsets: "array[int]"
    crcs: "array[int]"
    """CRC-32C of each record. In a list of version 1: of its value, or replica.NO_VALUE without one."""

    def __len__(self) -> int:
        return len(self.offsets)


class AckedResult(msgspec.Struct, frozen=True):
    """Result of looking up the acknowledged records of one partition."""

    findings: list[Finding]
    in_place: int


class AckedState(IntEnum):
    """What one replica holds of one acknowledged record."""

    HELD = 0
    TRIMMED = 1
    CHANGED = 2
    LACKING = 3
    """Its log reaches beyond the offset and does not hold the record."""
    BEHIND = 4
    OF_A_TAIL = 5
    """Another record, above the high watermark of a replica that is not known to be in sync: a deposed leader wrote it
    alone and drops it when it follows."""


LAWFUL_STARTS = (LogStartReason.RETENTION, LogStartReason.TRIM, LogStartReason.COPIED)
"""A leader deleted what was in front of this start, and it was all committed."""

AckedRun: TypeAlias = tuple[int, int, AckedState]
"""Acknowledged records number `first` up to `end` that share a state."""


def sorted_acked(offsets: "array[int]", crcs: "array[int]") -> tuple[AckedRecords, AckedRecords]:
    """The records by offset, without repeats; and a second record of each offset that has two different ones."""
    if all(map(int.__lt__, offsets, offsets[1:])):
        return AckedRecords(offsets, crcs), AckedRecords(array("q"), array("q"))
    firsts: dict[int, int] = {}
    seconds: dict[int, int] = {}
    for offset, crc in sorted(set(zip(offsets, crcs, strict=True))):
        if offset in firsts:
            seconds.setdefault(offset, crc)
        else:
            firsts[offset] = crc
    return _columns(firsts), _columns(seconds)


def _columns(crcs: dict[int, int]) -> AckedRecords:
    return AckedRecords(array("q", crcs.keys()), array("q", crcs.values()))


def check_acked(
    partition: TopicPartition, acked: AckedRecords, contents: list[Content], in_sync: tuple[int, ...]
) -> AckedResult:
    """Look up every acknowledged record on every replica; a run of records with the same states gives one finding."""
    runs = [
        _replica_runs(acked, content)
        if content.replica.broker in in_sync
        else _with_tail(_replica_runs(acked, content), acked, content.high_watermark)
        for content in contents
    ]
    findings = []
    for content, of_replica in zip(contents, runs, strict=True):
        findings += [_replica_finding(acked, content, run) for run in of_replica if _is_wrong(content, run, in_sync)]
    in_place = 0
    for first, end, states in _common_runs(runs, len(acked)):
        wrong = any(
            _is_wrong(content, (first, end, state), in_sync) for content, state in zip(contents, states, strict=True)
        )
        held, trimmed = states.count(AckedState.HELD), states.count(AckedState.TRIMMED)
        excused = sum(map(_is_excused, contents, states))
        wanted = max(1, min(REPLICAS_WANTED, len(contents) - excused))
        if held + trimmed < wanted or not contents:
            if not wrong:
                why = _trimmed_by_survivor(acked.offsets[end - 1], contents, states, in_sync)
                message = why or f"on {held} of {len(contents)} replicas, {wanted} are needed"
                kind = Kind.ACKED_TRIMMED if why else Kind.ACKED_MISSING
                findings.append(_stretch(partition, acked, first, end, kind, message))
        elif not held and not wrong:
            message = "below every replica's log start: trimmed by retention, no longer provable"
            findings.append(_stretch(partition, acked, first, end, Kind.ACKED_TRIMMED, message))
        elif not wrong:
            in_place += end - first
    return AckedResult(findings, in_place)


def _trimmed_by_survivor(
    last: int, contents: list[Content], states: list[AckedState], in_sync: tuple[int, ...]
) -> str | None:
    """While others were down, the last in-sync replica may have deleted records that they never had. Its `log-start`
    file shows that."""
    for content, state in zip(contents, states, strict=True):
        start, broker = content.replica.facts.log_start, content.replica.broker
        if (
            state is not AckedState.TRIMMED
            or start is None
            or start.reason not in LAWFUL_STARTS
            or last >= start.offset
        ):
            continue
        if not in_sync or broker in in_sync:
            return (
                f"the log of broker {broker} begins at offset {start.offset} ({start.reason}), no other replica reaches"
                " that far: trimmed, no longer provable"
            )
    return None


def acked_twice(partition: TopicPartition, offset: int) -> Finding:
    """Two records were acknowledged at one offset: at most one of them can be there."""
    return finding(
        Kind.ACKED_TWICE,
        f"two different records were acknowledged at offset {offset}",
        topic=partition.topic,
        partition=partition.partition,
        offset=offset,
        end_offset=offset + 1,
    )


def allowed_loss(item: Finding, acks: str) -> Finding:
    """The same finding as a note: with this setting of acks the record was never promised to stay."""
    message = f"{item.message} (acknowledged with acks={acks}: no promise is broken)"
    return msgspec.structs.replace(item, kind=Kind.ACKED_ALLOWED_LOSS, severity=Severity.NOTE, message=message)


def of_former_topic(partition: TopicPartition, topic_id: str | None, contents: list[Content]) -> Finding | None:
    """The list is of a deleted topic of the same name: it proves nothing about this one."""
    held = {known for content in contents if (known := content.replica.facts.topic_id) is not None}
    if topic_id is None or not held or topic_id in held:
        return None
    return finding(
        Kind.UNPROVEN,
        f"the list of acknowledged records is of topic id {topic_id}, the logs of {', '.join(sorted(held))}: another"
        f" topic named {partition.topic}; its records are not looked for",
        topic=partition.topic,
        partition=partition.partition,
    )


def _is_wrong(content: Content, run: AckedRun, in_sync: tuple[int, ...]) -> bool:
    state = run[2]
    if _is_excused(content, state):
        return False
    return state in (AckedState.CHANGED, AckedState.LACKING) or (
        state is AckedState.BEHIND and content.replica.broker in in_sync
    )


def _is_excused(content: Content, state: AckedState) -> bool:
    """A power cut may have taken the record. If no replica holds it, check_acked reports that for all of them."""
    return state is AckedState.BEHIND and content.replica.may_lack_unsynced


# one replica


def _replica_runs(acked: AckedRecords, content: Content) -> list[AckedRun]:
    """The states of all acknowledged records on this replica, as runs in order."""
    runs: list[AckedRun] = []
    trimmed = bisect_left(acked.offsets, content.replica.log_start_offset)
    if trimmed:
        runs.append((0, trimmed, AckedState.TRIMMED))
    position = trimmed
    for start, crcs in _record_stretches(content):
        first = max(bisect_left(acked.offsets, start), trimmed)
        end = bisect_left(acked.offsets, start + len(crcs))
        if first > position:
            runs.append((position, first, AckedState.LACKING))
        runs += _compare_stretch(acked, first, end, start, crcs)
        position = max(position, end)
    reached = max(bisect_left(acked.offsets, content.replica.log_end_offset), position)
    if reached > position:
        runs.append((position, reached, AckedState.LACKING))
    if len(acked) > reached:
        runs.append((reached, len(acked), AckedState.BEHIND))
    return runs


def _with_tail(runs: list[AckedRun], acked: AckedRecords, high_watermark: int) -> list[AckedRun]:
    tail = bisect_left(acked.offsets, high_watermark)
    cut: list[AckedRun] = []
    for first, end, state in runs:
        if state is AckedState.CHANGED and end > tail:
            cut += [(first, tail, state)] if first < tail else []
            cut.append((max(first, tail), end, AckedState.OF_A_TAIL))
        else:
            cut.append((first, end, state))
    return cut


def _record_stretches(content: Content) -> Iterator[tuple[int, "array[int]"]]:
    """(first offset, checksum of each record from there on) of every stretch of offsets without a hole."""
    columns = content.replica.columns
    if content.is_dense and len(columns):
        assert len(columns.record_crcs) == columns.ends[-1] - columns.base_offsets[0], (
            "the scan was made without records"
        )
        yield columns.base_offsets[0], columns.record_crcs
        return
    starts = list(accumulate(map(int.__sub__, columns.ends, columns.base_offsets), initial=0))
    assert len(columns.record_crcs) == starts[-1], "the scan was made without records"
    index, count = 0, len(content.cells)
    while index < count:
        first = index
        while index + 1 < count and content.cells[index + 1][0] == content.cells[index][1]:
            index += 1
        index += 1
        rows = content.rows[first:index]
        if rows[-1] - rows[0] == len(rows) - 1 and rows == sorted(rows):
            yield content.cells[first][0], columns.record_crcs[starts[rows[0]] : starts[rows[-1] + 1]]
        else:
            crcs = array("q")
            for row in rows:
                crcs.extend(columns.record_crcs[starts[row] : starts[row + 1]])
            yield content.cells[first][0], crcs


def _compare_stretch(acked: AckedRecords, first: int, end: int, start: int, crcs: "array[int]") -> list[AckedRun]:
    if first >= end:
        return []
    offsets, wanted = acked.offsets[first:end], acked.crcs[first:end]
    if offsets[-1] - offsets[0] == end - first - 1:
        there = crcs[offsets[0] - start : offsets[-1] - start + 1]
    else:
        there = array("q", [crcs[offset - start] for offset in offsets])
    if there == wanted:
        return [(first, end, AckedState.HELD)]
    runs: list[AckedRun] = []
    for index, (found, expected) in enumerate(zip(there, wanted, strict=True), first):
        state = AckedState.HELD if found == expected else AckedState.CHANGED
        if runs and runs[-1][2] is state:
            runs[-1] = (runs[-1][0], index + 1, state)
        else:
            runs.append((index, index + 1, state))
    return runs


# all replicas


def _common_runs(runs: list[list[AckedRun]], count: int) -> Iterator[tuple[int, int, list[AckedState]]]:
    """Split the acknowledged records wherever the state of any replica changes."""
    cuts = sorted({0, count, *(first for of_replica in runs for first, _, _ in of_replica)})
    cursors = [0] * len(runs)
    for first, end in pairwise(cuts):
        states = []
        for number, of_replica in enumerate(runs):
            while of_replica[cursors[number]][1] <= first:
                cursors[number] += 1
            states.append(of_replica[cursors[number]][2])
        yield first, end, states


_STATE_TEXT = {
    AckedState.CHANGED: "has another record there",
    AckedState.LACKING: "does not hold it, though its log reaches beyond",
    AckedState.BEHIND: "ends before it, though it was a member of the last known ISR",
}


def _replica_finding(acked: AckedRecords, content: Content, run: AckedRun) -> Finding:
    first, end, state = run
    facts = content.replica.facts
    kind = Kind.ACKED_CHANGED if state is AckedState.CHANGED else Kind.ACKED_MISSING
    place = _place(content, acked.offsets[first])
    partition = TopicPartition(facts.topic, facts.partition)
    message = f"broker {facts.broker} {_STATE_TEXT[state]}"
    return _stretch(partition, acked, first, end, kind, message, broker=facts.broker, file=place[0], position=place[1])


def _place(content: Content, offset: int) -> tuple[str | None, int | None]:
    """File and position of the batch that holds the offset, or else of the batch in front of it."""
    index = bisect_left(content.bases, offset + 1) - 1
    if index < 0:
        segments = content.replica.segments
        return (segments[0].file, 0) if segments else (content.replica.facts.directory, None)
    row = content.rows[index]
    return content.replica.segment_of_row(row).file, content.replica.columns.positions[row]


def _stretch(
    partition: TopicPartition,
    acked: AckedRecords,
    first: int,
    end: int,
    kind: Kind,
    message: str,
    *,
    broker: int | None = None,
    file: str | None = None,
    position: int | None = None,
) -> Finding:
    low, high = acked.offsets[first], acked.offsets[end - 1]
    what = f"the record acknowledged at offset {low}" if low == high else f"{end - first} records acknowledged"
    where = "" if low == high else f" at offsets {low} to {high}"
    return finding(
        kind,
        f"{what}{where}: {message}",
        broker=broker,
        topic=partition.topic,
        partition=partition.partition,
        offset=low,
        end_offset=high + 1,
        file=file,
        position=position,
    )
