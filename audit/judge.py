"""The verdict on one partition. PURE: replicas, acknowledged records and the last known ISR go in, a result comes out.

Owns: which checks a partition goes through and what they add up to. Both engines call this, and nothing else judges.
"""

from array import array
from collections.abc import Iterable, Sequence

from minibroker.audit.acked_file import AckedChunk
from minibroker.audit.acknowledged import AckedResult, acked_twice, check_acked, sorted_acked
from minibroker.audit.comparison import Comparison, compare
from minibroker.audit.content import Content
from minibroker.audit.discovery import LastKnownState
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
from minibroker.audit.replica import Replica
from minibroker.audit.rules import check_replica
from minibroker.protocol.ids import TopicPartition


def judge_partition(
    partition: TopicPartition,
    replicas: Sequence[Replica],
    acked: Iterable[AckedChunk] = (),
    state: LastKnownState | None = None,
) -> PartitionResult:
    """Everything that can be said of one partition."""
    findings = [item for replica in replicas for item in check_replica(replica)]
    current, stale = _same_topic([each for each in replicas if each.facts.owner == partition.partition])
    findings += stale
    contents = [Content(replica) for replica in current]
    comparison = compare(contents)
    findings += comparison.findings
    holders = sum(1 for content in contents if content.coverage)
    unproven = holders >= 2 and comparison.judged == 0
    if unproven:
        findings.append(_unproven(partition, contents))
    in_sync, state_findings = _in_sync(partition, state, contents)
    findings += state_findings
    records, outcome = _acknowledged(partition, acked, contents, in_sync)
    findings += outcome.findings
    kept = limited(findings)
    return PartitionResult(
        topic=partition.topic,
        partition=partition.partition,
        verdict=_verdict(kept, contents, comparison),
        judged_offsets=comparison.judged,
        total_offsets=comparison.total,
        acked_records=records,
        acked_in_place=outcome.in_place,
        replicas=tuple(_summary(replica) for replica in replicas),
        findings=tuple(kept),
    )


def _same_topic(replicas: Sequence[Replica]) -> tuple[list[Replica], list[Finding]]:
    """A replica of an earlier topic of this name is not compared: its broker was away when the topic was deleted."""
    by_id: dict[str | None, list[Replica]] = {}
    for replica in replicas:
        by_id.setdefault(replica.facts.topic_id, []).append(replica)
    by_id.pop(None, None)
    if len(by_id) <= 1:
        return list(replicas), []
    most = max(by_id, key=lambda topic_id: (len(by_id[topic_id]), _bytes(by_id[topic_id]), topic_id or ""))
    stale = [
        finding(
            Kind.TOPIC_ID_DIFFERS,
            f"belongs to topic id {replica.facts.topic_id}, most replicas to {most}: a topic that was deleted and"
            " created anew; not compared",
            broker=replica.broker,
            topic=replica.facts.topic,
            partition=replica.facts.partition,
            file=replica.facts.directory,
        )
        for topic_id, members in by_id.items()
        if topic_id != most
        for replica in members
    ]
    current = [replica for replica in replicas if replica.facts.topic_id in (None, most)]
    return current, stale


def _bytes(replicas: Iterable[Replica]) -> int:
    return sum(size for replica in replicas for _, size in replica.facts.segments)


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
    partition: TopicPartition, state: LastKnownState | None, contents: list[Content]
) -> tuple[tuple[int, ...], list[Finding]]:
    """The last known ISR, where it is known; its members hold everything that any replica knows to be committed."""
    if state is None:
        return (), []
    newest = max((max(content.replica.columns.epochs, default=0) for content in contents), default=0)
    if newest > state.leader_epoch:
        message = f"the cluster's saved state knows leader epoch {state.leader_epoch}, the logs {newest}: not used"
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
        if content.replica.broker in state.isr and content.replica.log_end_offset < committed
    ]
    return state.isr, findings


def _acknowledged(
    partition: TopicPartition, chunks: Iterable[AckedChunk], contents: list[Content], in_sync: tuple[int, ...]
) -> tuple[int, AckedResult]:
    offsets, crcs = array("q"), array("q")
    for chunk in sorted(chunks, key=lambda chunk: chunk.start):
        offsets.frombytes(chunk.offsets)
        crcs.frombytes(chunk.crcs)
    if not offsets:
        return 0, AckedResult([], 0)
    acked, twice = sorted_acked(offsets, crcs)
    outcome = check_acked(partition, acked, contents, in_sync)
    repeated = [acked_twice(partition, offset) for offset in twice]
    return len(acked), AckedResult(outcome.findings + repeated, outcome.in_place)


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
