"""The logs compared with the witness that the cluster recorded outside its disks (`protocol.witness`). Pure.

Owns: what a witness proves. Its digest covers every batch from the leader's log start to what was committed. Even if
all replicas were cut, rewritten, renumbered or replaced by an older backup in the same way, the digest contradicts
them.
"""

from collections.abc import Sequence

import msgspec

from minibroker.audit.checks.commitment import Commitment
from minibroker.audit.checks.expectation import ExpectedPartition
from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.audit.reading.content import Content, surely_equal
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import digest_of, format_digest
from minibroker.protocol.witness import PartitionWitness


class WitnessResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the comparison with the witness."""

    findings: list[Finding]
    proven: frozenset[int] = frozenset()
    """Brokers whose replica holds exactly what was witnessed."""
    differing: frozenset[int] = frozenset()


def check_witness(
    partition: TopicPartition, expected: ExpectedPartition, commitment: Commitment, contents: Sequence[Content]
) -> WitnessResult:
    """Compare each replica that must hold everything that was witnessed."""
    witness = commitment.witness
    if witness is None:
        return WitnessResult(findings=_missing_witness(partition, expected, commitment, contents))
    if not contents:
        return WitnessResult(findings=[])
    low, high = witness.log_start_offset, witness.committed_offset
    found = _started_later(partition, expected, witness, contents)
    found += _appended_since(partition, expected, commitment, contents)
    compared = [each for each in contents if _covers(each, low, high) and commitment.must_hold(each) >= high]
    if not witness.digest and low < high:
        message = (
            f"the witness of offsets {low} to {high - 1} has no digest, for its leader did not know it yet: nothing"
            " shows that what all replicas hold is what was written"
        )
        found.append(_finding(partition, Kind.WITNESS_NOT_COMPARED, message, None, low, high))
    if not witness.digest or low >= high:
        return WitnessResult(findings=found + _behind(partition, commitment, contents))
    equal: list[tuple[Content, bool]] = []
    for content in compared:
        same = next((right for other, right in equal if surely_equal(other, content, low, high)), None)
        equal.append((content, digest_between(content, low, high) == witness.digest if same is None else same))
    right = frozenset(content.replica.broker for content, is_right in equal if is_right)
    wrong = [content for content, is_right in equal if not is_right]
    for content in wrong:
        holders = f"; broker {', '.join(map(str, sorted(right)))} holds it" if right else "; nor does any other replica"
        message = (
            f"broker {content.replica.broker} does not hold what the in-sync replicas {list(witness.isr)} had"
            f" committed at offsets {low} to {high - 1} according to the witness of epoch {witness.leader_epoch}:"
            " batches were lost, rewritten,"
            f" renumbered or replaced{holders}"
        )
        found.append(_finding(partition, Kind.WITNESS_DIFFERS, message, content.replica.broker, low, high))
    return WitnessResult(
        findings=found + _behind(partition, commitment, contents),
        proven=right,
        differing=frozenset(content.replica.broker for content in wrong),
    )


def digest_between(content: Content, low: int, high: int) -> str:
    """Digest of the batches that hold an offset of this stretch."""
    cells = content.cells[content.between(low, high)]
    return format_digest(digest_of((base, size, epoch, crc) for base, _, epoch, crc, size in cells))


def _covers(content: Content, low: int, high: int) -> bool:
    replica = content.replica
    return replica.log_start_offset <= low and replica.log_end_offset >= high


def _started_later(
    partition: TopicPartition, expected: ExpectedPartition, witness: PartitionWitness, contents: Sequence[Content]
) -> list[Finding]:
    """A log that begins behind the witness's log start was trimmed since: by retention, or by a loss that looks like
    it."""
    low = min(witness.log_start_offset, witness.committed_offset)
    later = [each for each in contents if each.replica.log_start_offset > low]
    if not later:
        return []
    reached = max((each.replica.log_end_offset for each in contents if each not in later), default=low)
    stopped = _stopped_cleanly(expected, contents) and _is_the_last_leaders(witness, expected)
    starts = ", ".join(f"broker {each.replica.broker} at {each.replica.log_start_offset}" for each in later)
    first = min(each.replica.log_start_offset for each in later)
    if stopped and reached < first:
        message = (
            f"the leader recorded at its last write that the log began at offset {low}, and the cluster was stopped"
            f" cleanly since; now it begins later ({starts}): {first - reached} records are lost, without another"
            " explanation"
        )
        return [_finding(partition, Kind.RECORDS_LOST, message, None, reached, first)]
    lost = [each for each in later if stopped and _lacks_its_head(each, low, expected, contents)]
    if lost:
        return [_lost_head(partition, each, low, reached) for each in lost]
    message = (
        f"begins behind the witness's log start {low} ({starts}): what was trimmed since cannot be compared with it"
    )
    return [_finding(partition, Kind.WITNESS_NOT_COMPARED, message, None, low, first)]


def _stopped_cleanly(expected: ExpectedPartition, contents: Sequence[Content]) -> bool:
    return expected.stopped and expected.is_whole and all(each.replica.facts.cleanly_stopped for each in contents)


def _appended_since(
    partition: TopicPartition, expected: ExpectedPartition, commitment: Commitment, contents: Sequence[Content]
) -> list[Finding]:
    """At its clean stop the last leader recorded what was committed, and its own checkpoint repeats that; where it
    alone was in sync, its log held nothing more."""
    witness = commitment.witness
    assert witness is not None
    if not (_stopped_cleanly(expected, contents) and _is_the_last_leaders(witness, expected)):
        return []
    ends = [each.replica.log_end_offset for each in contents if expected.isr == (each.replica.broker,)]
    end = max([commitment.committed, *ends])
    if end <= witness.committed_offset:
        return []
    message = (
        f"the last leader recorded at a clean stop that all below {witness.committed_offset} was committed; now"
        f" {end - witness.committed_offset} more records are there: they were appended since, or never acknowledged,"
        " or it could not reach ZooKeeper when it stopped; nothing proves that they are what was written"
    )
    return [_finding(partition, Kind.UNPROVEN, message, None, witness.committed_offset, end)]


def _is_the_last_leaders(witness: PartitionWitness, expected: ExpectedPartition) -> bool:
    """A leader elected while the cluster stopped may have had no time to record anything. If the last leader stopped
    and none followed, the last epoch has no leader."""
    epoch = expected.leader_epoch
    has_no_leader = expected.leader is None or expected.leader < 0
    return witness.leader_epoch == epoch or (has_no_leader and epoch is not None and witness.leader_epoch == epoch - 1)


def _lacks_its_head(content: Content, low: int, expected: ExpectedPartition, contents: Sequence[Content]) -> bool:
    """The log of the last leader, which alone was in sync, began at `low`. So it has recorded no later start, and no
    in-sync broker has deleted files behind it. An earlier leader may have recorded a start that did not reach it."""
    replica = content.replica
    if expected.isr == (replica.broker,):
        return True
    if replica.broker not in (*expected.isr, *expected.isr_before) or not replica.segments:
        return False
    first = replica.segments[0].base_offset
    held = any(each.replica.broker in expected.isr and each.replica.log_start_offset < first for each in contents)
    return first > low and not held  # else commitment.py reports it from the logs


def _lost_head(partition: TopicPartition, content: Content, low: int, reached: int) -> Finding:
    replica = content.replica
    start = replica.log_start_offset
    others = "others hold some of it" if reached > low else "no other replica holds it"
    message = (
        f"the log of broker {replica.broker} begins at offset {start}; the leader recorded at a clean stop that"
        f" it began at {low}, and nothing is deleted while brokers are stopped: its head is missing ({others})"
    )
    return _finding(partition, Kind.MISSING_RANGE, message, replica.broker, low, start)


def _missing_witness(
    partition: TopicPartition, expected: ExpectedPartition, commitment: Commitment, contents: Sequence[Content]
) -> list[Finding]:
    """At a clean stop each leader writes a witness for every partition it leads. A single missing witness proves
    nothing."""
    if not (_stopped_cleanly(expected, contents) and commitment.committed and expected.others_are_witnessed):
        return []
    if not any(_committed_in_its_epoch(each) for each in contents if commitment.is_member(each)):
        return []
    message = (
        f"{expected.source} has witnesses of other partitions and none of this one, of which {commitment.committed} is"
        " committed: it was removed, or its leader could not reach ZooKeeper when it stopped; nothing proves that all"
        " replicas are what was written"
    )
    return [_finding(partition, Kind.UNPROVEN, message, None, 0, commitment.committed)]


def _committed_in_its_epoch(content: Content) -> bool:
    """A leader writes no witness until its high watermark reaches the start of its epoch."""
    entries, high_watermark = content.replica.facts.epoch_entries, content.replica.facts.high_watermark
    return entries is not None and bool(entries) and high_watermark is not None and high_watermark >= entries[-1][1]


def _behind(partition: TopicPartition, commitment: Commitment, contents: Sequence[Content]) -> list[Finding]:
    witness = commitment.witness
    assert witness is not None
    if commitment.committed <= witness.committed_offset:
        return []
    newest = max((max(each.replica.columns.max_timestamps, default=0) for each in contents), default=0)
    seconds = max(0, newest - witness.noted_at_ms) / 1000
    message = (
        f"the witness reaches offset {witness.committed_offset}, {commitment.committed} is committed: the last"
        f" {commitment.committed - witness.committed_offset} records ({seconds:.0f} s) are not covered by it"
    )
    return [_finding(partition, Kind.WITNESS_BEHIND, message, None, witness.committed_offset, commitment.committed)]


def _finding(partition: TopicPartition, kind: Kind, message: str, broker: int | None, low: int, high: int) -> Finding:
    return finding(
        kind,
        message,
        broker=broker,
        topic=partition.topic,
        partition=partition.partition,
        offset=low,
        end_offset=high,
    )
