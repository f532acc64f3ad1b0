"""The verdict on one partition. PURE: replicas, acknowledged records and the last known ISR go in, a result comes out.

Owns: which checks a partition goes through and the verdict that follows. Both engines call this; no other code decides.
"""

from array import array
from collections.abc import Iterable, Sequence

from minibroker.audit.checks.acknowledged import (
    AckedResult,
    acked_twice,
    allowed_loss,
    check_acked,
    of_former_topic,
    sorted_acked,
)
from minibroker.audit.checks.commitment import commitment_of
from minibroker.audit.checks.comparison import Comparison, compare
from minibroker.audit.checks.expectation import ExpectedPartition
from minibroker.audit.checks.findings import (
    Finding,
    Kind,
    PartitionResult,
    PartitionVerdict,
    ReplicaSummary,
    finding,
    has_errors,
    limited,
)
from minibroker.audit.checks.power_cut import truncated_as_by_next_start
from minibroker.audit.checks.presence import absent_replicas, check_presence
from minibroker.audit.checks.rules import check_replica
from minibroker.audit.checks.topic_ids import is_as_listed, of_one_topic
from minibroker.audit.checks.witness_check import check_witness
from minibroker.audit.reading.acked_file import ACKS_ALL, AckedChunk
from minibroker.audit.reading.content import Content
from minibroker.audit.reading.replica import AuditedReplica
from minibroker.protocol.ids import TopicPartition


def compare_partition(
    partition: TopicPartition,
    replicas: Sequence[AuditedReplica],
    acked: Iterable[AckedChunk] = (),
    expected: ExpectedPartition | None = None,
) -> PartitionResult:
    """All findings on one partition, and its verdict. `expected`: None where nothing is known of it."""
    expected = expected or ExpectedPartition()
    replicas = [truncated_as_by_next_start(replica) for replica in replicas]
    findings = [item for replica in replicas for item in check_replica(replica)]
    current, stale = of_one_topic([each for each in replicas if each.facts.owner == partition.partition], expected)
    findings += stale
    others = {item.broker for item in stale}
    present = {each.broker for each in replicas if each.broker not in others or is_as_listed(each, expected)}
    findings += check_presence(partition, present, expected)
    contents = [Content(replica) for replica in current]
    commitment, commitment_findings = commitment_of(partition, expected, contents)
    witnessed = check_witness(partition, expected, commitment, contents)
    if witnessed.differing and witnessed.proven:
        commitment, commitment_findings = commitment_of(partition, expected, contents, witnessed.differing)
        witnessed = check_witness(partition, expected, commitment, contents)
    comparison = compare(contents, commitment, witnessed.differing)
    findings += commitment_findings + witnessed.findings + comparison.findings
    if comparison.uncompared:
        findings.append(_unproven(partition, contents, comparison.uncompared, is_live=not expected.stopped))
    findings += [_unread(each) for each in current if each.is_unread]
    in_sync = tuple(sorted(commitment.in_sync or ()))
    records, acked_result = _acknowledged(partition, acked, contents, in_sync)
    findings += acked_result.findings
    absent = absent_replicas(present, expected)
    kept = limited(findings)
    return PartitionResult(
        topic=partition.topic,
        partition=partition.partition,
        verdict=PartitionVerdict.INCONSISTENT if absent else _verdict(kept, contents, comparison),
        compared_offsets=comparison.compared_offsets,
        total_offsets=comparison.total,
        acked_records=records,
        acked_in_place=acked_result.in_place,
        committed_offset=commitment.committed,
        compared_replicas=comparison.compared,
        witnessed_replicas=tuple(sorted(witnessed.proven)),
        absent_replicas=absent,
        replicas=tuple(_summary(replica) for replica in replicas),
        findings=tuple(kept),
    )


def _unproven(
    partition: TopicPartition, contents: list[Content], uncompared: tuple[int, ...], *, is_live: bool
) -> Finding:
    holders = [content.replica for content in contents if content.coverage]
    commitment = ", ".join(
        f"broker {replica.broker}: offsets {replica.log_start_offset} to {replica.log_end_offset - 1},"
        f" high watermark {'unknown' if replica.facts.high_watermark is None else replica.facts.high_watermark}"
        for replica in holders
    )
    brokers = ", ".join(map(str, uncompared))
    is_new = is_live and any((each.facts.high_watermark or 0) <= each.log_start_offset for each in holders)
    hint = "; a running broker records its high watermark every 5 s: audit again then" if is_new else ""
    return finding(
        Kind.UNPROVEN,
        f"{len(holders)} replicas hold records; that of broker {brokers} was not compared with another one below a"
        f" committed offset ({commitment}){hint}",
        others=tuple(replica.broker for replica in holders),
        topic=partition.topic,
        partition=partition.partition,
    )


def _unread(replica: AuditedReplica) -> Finding:
    facts = replica.facts
    return finding(
        Kind.UNPROVEN,
        f"all that broker {replica.broker} held was removed before it could be read (by retention, or a truncation):"
        " nothing of this replica was compared",
        broker=replica.broker,
        topic=facts.topic,
        partition=facts.partition,
        file=facts.directory,
    )


def _acknowledged(
    partition: TopicPartition, chunks: Iterable[AckedChunk], contents: list[Content], in_sync: tuple[int, ...]
) -> tuple[int, AckedResult]:
    offsets, crcs = array("q"), array("q")
    chunks = sorted(chunks, key=lambda chunk: chunk.start)
    for chunk in chunks:
        offsets.frombytes(chunk.offsets)
        crcs.frombytes(chunk.crcs)
    if not offsets:
        return 0, AckedResult([], 0)
    former = of_former_topic(partition, chunks[0].topic_id, contents)
    if former is not None:
        return 0, AckedResult([former], 0)
    acked, others = sorted_acked(offsets, crcs)
    acked_result, others_result = (check_acked(partition, each, contents, in_sync) for each in (acked, others))
    found = acked_result.findings + [item for item in others_result.findings if item not in acked_result.findings]
    found += [acked_twice(partition, offset) for offset in others.offsets]
    if chunks[0].acks != ACKS_ALL:
        found = [allowed_loss(item, chunks[0].acks) for item in found]
    return len(acked) + len(others), AckedResult(found, acked_result.in_place + others_result.in_place)


def _verdict(findings: list[Finding], contents: list[Content], comparison: Comparison) -> PartitionVerdict:
    kinds = {item.kind for item in findings}
    if has_errors([item for item in findings if item.kind not in (Kind.UNPROVEN, Kind.UNDECODABLE_RECORDS)]):
        return PartitionVerdict.INCONSISTENT
    if Kind.UNPROVEN in kinds:
        return PartitionVerdict.UNPROVEN
    if Kind.UNDECODABLE_RECORDS in kinds:
        return PartitionVerdict.UNDECODABLE
    if comparison.total == 0:
        return PartitionVerdict.EMPTY
    if len(contents) < 2:
        return PartitionVerdict.SINGLE
    if Kind.DIVERGED_ABOVE_HIGH_WATERMARK in kinds:
        return PartitionVerdict.DIVERGED_ABOVE
    return PartitionVerdict.LAGGING if Kind.LAGGING_TAIL in kinds else PartitionVerdict.IDENTICAL


def _summary(replica: AuditedReplica) -> ReplicaSummary:
    columns = replica.columns
    return ReplicaSummary(
        broker=replica.broker,
        directory=replica.facts.directory,
        log_start_offset=replica.log_start_offset,
        log_end_offset=replica.log_end_offset,
        high_watermark=replica.facts.high_watermark,
        last_epoch=columns.epochs[-1] if len(columns) else None,
        batches=len(columns),
        bytes=sum(segment.size for segment in replica.segments),
        cleanly_stopped=replica.facts.cleanly_stopped,
    )
