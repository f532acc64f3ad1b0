"""The audit in this process: no Spark, no JVM, same findings. It handles one partition after the other, so memory stays
small."""

import time
from collections.abc import Callable, Iterator
from itertools import groupby

from minibroker.audit.checks.findings import PartitionResult
from minibroker.audit.checks.partition_check import compare_partition
from minibroker.audit.reading.acked_file import AckedChunk, covers_whole_records, plan_acked, read_acked
from minibroker.audit.reading.discovery import Inventory
from minibroker.audit.reading.log_starts import with_explanation
from minibroker.audit.reading.producer_snapshots import read_snapshots
from minibroker.audit.reading.ranges import plan_ranges
from minibroker.audit.reading.replica import AuditedReplica, ReplicaFacts, assemble
from minibroker.audit.reading.segment_reader import scan_range
from minibroker.audit.reports.timings import Stopwatch
from minibroker.protocol.files.checkpoints import parse_partition_directory_name
from minibroker.protocol.ids import TopicPartition

WHOLE_FILE_BYTES = 1 << 62


def compare_locally(
    inventory: Inventory,
    acked: str | None,
    *,
    with_values: bool,
    acked_end: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    stopwatch: Stopwatch | None = None,
) -> list[PartitionResult]:
    """Results in order of topic and partition. `acked_end`: how much of the list was there before the logs were
    listed."""
    stopwatch = stopwatch or Stopwatch()
    began = time.monotonic()
    by_partition: dict[TopicPartition, list[AckedChunk]] = {}
    tasks = plan_acked(acked, acked_end) if acked is not None else []
    whole_records = covers_whole_records(tasks)
    for task in tasks:
        for chunk in read_acked(task):
            by_partition.setdefault(TopicPartition(chunk.topic, chunk.partition), []).append(chunk)
    stopwatch.add(scan=time.monotonic() - began)
    facts = dict(_by_partition(inventory))
    results = []
    expected = {
        partition: each
        for name, each in inventory.expected.items()
        if (partition := parse_partition_directory_name(name)) is not None
    }
    for partition in sorted({*facts, *by_partition, *expected}):
        progress(f"checking {partition}")
        began = time.monotonic()
        replicas = [_read_replica(each, with_values, whole_records) for each in facts.get(partition, [])]
        read = time.monotonic()
        chunks = by_partition.pop(partition, ())
        results.append(compare_partition(partition, replicas, chunks, expected.get(partition)))
        stopwatch.add(scan=read - began, compare=time.monotonic() - read)
    return results


def _by_partition(inventory: Inventory) -> Iterator[tuple[TopicPartition, list[ReplicaFacts]]]:
    ordered = sorted(inventory.replicas, key=lambda facts: (facts.topic, facts.partition, facts.broker))
    for (topic, partition), members in groupby(ordered, key=lambda facts: (facts.topic, facts.partition)):
        yield TopicPartition(topic, partition), list(members)


def _read_replica(facts: ReplicaFacts, with_values: bool, whole_records: bool) -> AuditedReplica:
    tasks = plan_ranges(facts.directory, facts.segments, WHOLE_FILE_BYTES)
    scans = [scan_range(task, with_values=with_values, whole_records=whole_records) for task in tasks]
    return with_explanation(assemble(facts, scans, read_snapshots(facts)))
