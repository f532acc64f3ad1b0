"""The verdict on one partition. PURE: replicas, acknowledged records and the last known ISR go in, a result comes out.

Owns: which checks a partition goes through and what they add up to. Both engines call this, and nothing else judges.
"""

from array import array
from collections.abc import Iterable, Sequence

from minibroker.audit.acked_file import ACKS_ALL, AckedChunk
from minibroker.audit.acknowledged import (
    AckedResult,
    acked_twice,
    check_acked,
    lawfully_lost,
    of_former_topic,
    sorted_acked,
)
from minibroker.audit.comparison import Comparison, compare
from minibroker.audit.content import Content
from minibroker.audit.expectation import Expected
from minibroker.audit.findings import (
    Finding,
    Kind,
    PartitionResult,
    ReplicaSummary,
    Verdict,
    finding,
    has_errors,
    limited,
)
from minibroker.audit.presence import absent_replicas, check_presence
from minibroker.audit.replica import Replica
from minibroker.audit.rules import check_replica
from minibroker.audit.topic_ids import of_one_topic
from minibroker.protocol.ids import TopicPartition


def judge_partition(
    partition: TopicPartition,
    replicas: Sequence[Replica],
    acked: Iterable[AckedChunk] = (),
    expected: Expected | None = None,
) -> PartitionResult:
    """Everything that can be said of one partition. `expected`: None where nothing is known of it."""
    expected = expected or Expected()
    findings = [item for replica in replicas for item in check_replica(replica)]
    current, stale = of_one_topic([each for each in replicas if each.facts.owner == partition.partition], expected)
    findings += stale
    others = {item.broker for item in stale}
    there = {replica.broker for replica in replicas} - others
    findings += check_presence(partition, there, expected)
    contents = [Content(replica) for replica in current]
    comparison = compare(contents)
    findings += comparison.findings
    holders = sum(1 for content in contents if content.coverage)
    unproven = holders >= 2 and comparison.judged == 0
    if unproven:
        findings.append(_unproven(partition, contents))
    in_sync, state_findings = _in_sync(partition, expected, contents)
    findings += state_findings
    records, outcome = _acknowledged(partition, acked, contents, in_sync)
    findings += outcome.findings
    absent = absent_replicas(there, expected)
    kept = limited(findings)
    return PartitionResult(
        topic=partition.topic,
        partition=partition.partition,
        verdict=Verdict.INCONSISTENT if absent else _verdict(kept, contents, comparison),
        judged_offsets=comparison.judged,
        total_offsets=comparison.total,
        acked_records=records,
        acked_in_place=outcome.in_place,
        absent_replicas=absent,
        replicas=tuple(_summary(replica) for replica in replicas),
        findings=tuple(kept),
    )


def _unproven(partition: TopicPartition, contents: list[Content]) -> Finding:
    holders = [content.replica for content in contents if content.coverage]
    marks = ", ".join(
        f"broker {replica.broker}: offsets {replica.log_start_offset} to {replica.log_end_offset - 1},"
        f" high watermark {'unknown' if replica.facts.high_watermark is None else replica.facts.high_watermark}"
        for replica in holders
    )
    return finding(
        Kind.UNPROVEN,
        f"{len(holders)} replicas hold records and no offset could be judged ({marks})",
        others=tuple(replica.broker for replica in holders),
        topic=partition.topic,
        partition=partition.partition,
    )


def _in_sync(
    partition: TopicPartition, expected: Expected, contents: list[Content]
) -> tuple[tuple[int, ...], list[Finding]]:
    """The last known ISR, where it is known; its members hold everything that any replica knows to be committed."""
    if expected.leader_epoch is None:
        return (), []
    newest = max((max(content.replica.columns.epochs, default=0) for content in contents), default=0)
    if newest > expected.leader_epoch:
        message = f"the cluster's saved state knows leader epoch {expected.leader_epoch}, the logs {newest}: not used"
        return (), [finding(Kind.STALE_CLUSTER_STATE, message, topic=partition.topic, partition=partition.partition)]
    committed = max((content.high_watermark for content in contents), default=0)
    findings = [
        finding(
            Kind.MISSING_RANGE,
            f"broker {content.replica.broker} was in the last known ISR but ends at offset"
            f" {content.replica.log_end_offset}; {committed} was committed",
            broker=content.replica.broker,
            topic=partition.topic,
            partition=partition.partition,
            offset=content.replica.log_end_offset,
            end_offset=committed,
            file=content.replica.segments[-1].file if content.replica.segments else content.replica.facts.directory,
        )
        for content in contents
        if content.replica.broker in expected.isr and content.replica.log_end_offset < committed
    ]
    return expected.isr, findings


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
    acked, twice = sorted_acked(offsets, crcs)
    outcome = check_acked(partition, acked, contents, in_sync)
    found = outcome.findings + [acked_twice(partition, offset) for offset in twice]
    if chunks[0].acks != ACKS_ALL:
        found = [lawfully_lost(item, chunks[0].acks) for item in found]
    return len(acked), AckedResult(found, outcome.in_place)


def _verdict(findings: list[Finding], contents: list[Content], comparison: Comparison) -> Verdict:
    kinds = {item.kind for item in findings}
    if has_errors([item for item in findings if item.kind not in (Kind.UNPROVEN, Kind.UNDECODABLE_RECORDS)]):
        return Verdict.INCONSISTENT
    if Kind.UNPROVEN in kinds:
        return Verdict.UNPROVEN
    if Kind.UNDECODABLE_RECORDS in kinds:
        return Verdict.UNDECODABLE
    if comparison.total == 0:
        return Verdict.EMPTY
    if len(contents) < 2:
        return Verdict.SINGLE
    if Kind.DIVERGED_ABOVE_HIGH_WATERMARK in kinds:
        return Verdict.DIVERGED_ABOVE
    return Verdict.LAGGING if Kind.LAGGING_TAIL in kinds else Verdict.IDENTICAL


def _summary(replica: Replica) -> ReplicaSummary:
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
