"""The audit on Spark: executors read ranges of files, a shuffle collects each partition, and executors check it.

Owns: the plan of the job. Scanning (the CRC of every batch, and of every value where a list of acknowledged records is
given) is spread over ranges of files. It yields one small row per range, with its batches packed in columns, and one
per stretch of the list. Bringing the rows of one partition together joins its replicas with each other and with the
list. partition_check.py then gives the verdict, with the same function that the local engine calls.

The rows are packed bytes in plain RDDs, not in a DataFrame: nothing here is SQL, and its planner, its Arrow streams and
the pandas that its workers import cost more than reading gigabytes (docs/decisions/0014).
"""

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from minibroker.audit.checks.expectation import ExpectedPartition
from minibroker.audit.checks.findings import PartitionResult
from minibroker.audit.checks.partition_check import compare_partition
from minibroker.audit.errors import AuditError
from minibroker.audit.reading.acked_file import AckedChunk, AckedTask, open_acked, plan_acked, read_acked
from minibroker.audit.reading.discovery import Inventory
from minibroker.audit.reading.log_starts import with_explanation
from minibroker.audit.reading.producer_snapshots import read_snapshots
from minibroker.audit.reading.ranges import plan_ranges
from minibroker.audit.reading.replica import AuditedReplica, RangeScan, ReplicaFacts, assemble
from minibroker.audit.reading.segment_reader import RangeTask, scan_range
from minibroker.audit.reports.timings import Stopwatch
from minibroker.audit.spark.planning import comparison_shares, portion_bytes_for, portions, range_bytes_for
from minibroker.audit.spark.same_code import code_digest, problem_of_code
from minibroker.audit.spark.stitching import stitch
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files.checkpoints import parse_partition_directory_name
from minibroker.protocol.ids import TopicPartition

if TYPE_CHECKING:
    from pyspark import SparkContext

PROGRESS_SECONDS = 0.5

Name: TypeAlias = tuple[str, int]
"""Topic and partition."""


class _Portion(msgspec.Struct, frozen=True):
    """Input of one task: ranges of segments with the names of their partition, or one range of the list."""

    ranges: tuple[tuple[str, int, RangeTask], ...]
    acked: AckedTask | None


class _PartitionRow(msgspec.Struct, frozen=True):
    """A scan or a part of the list, for the check of its partition."""

    scan: RangeScan | None = None
    acked: AckedChunk | None = None


class _CheckedShare(msgspec.Struct, frozen=True):
    """Result of checking one share."""

    began: float
    """Seconds since the Unix epoch: no check begins before the last range is read."""
    results: tuple[PartitionResult, ...]
    failure: str | None = None


def compare_on_spark(
    context: "SparkContext",
    inventory: Inventory,
    acked: str | None,
    *,
    with_values: bool,
    acked_end: int | None = None,
    range_bytes: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    stopwatch: Stopwatch | None = None,
) -> list[PartitionResult]:
    """Results in order of topic and partition. `acked_end`: how much of the list was there before the logs were
    listed."""
    cores = context.defaultParallelism
    work = _portions(inventory, acked, acked_end, range_bytes, cores)
    shares = comparison_shares(inventory.replicas, cores)
    count = max(shares.values(), default=0) + 1
    began = time.time()
    whole_records = acked is not None and open_acked(acked).covers_whole_records
    rows = context.parallelize(work, max(len(work), 1)).flatMap(_reader(with_values, whole_records, code_digest()))
    checked = rows.partitionBy(count, _placing(shares, count)).mapPartitions(
        _checker(inventory, with_values, whole_records, code_digest())
    )
    with _reported_progress(context, len(work), progress):
        parts = [msgspec.msgpack.decode(content, type=_CheckedShare) for content in checked.collect()]
    if stopwatch is not None:
        read = min((part.began for part in parts), default=began)
        stopwatch.add(scan=read - began, check=time.time() - read)
    failures = sorted(part.failure for part in parts if part.failure is not None)
    if failures:
        raise AuditError(failures[0])
    results = [result for part in parts for result in part.results]
    results += _without_segments(inventory, results)
    return sorted(results, key=lambda result: (result.topic, result.partition))


def _portions(
    inventory: Inventory, acked: str | None, acked_end: int | None, range_bytes: int | None, cores: int
) -> list[bytes]:
    size = range_bytes or range_bytes_for(inventory.total_bytes)
    names = {facts.directory: (facts.topic, facts.partition) for facts in inventory.replicas}
    tasks = [task for facts in inventory.replicas for task in plan_ranges(facts.directory, facts.segments, size)]
    work = [
        _Portion(tuple((*names[task.directory], task) for task in portion), None)
        for portion in portions(tasks, portion_bytes_for(inventory.total_bytes, cores))
    ]
    if acked is not None:
        work += [_Portion((), task) for task in plan_acked(os.path.abspath(acked), acked_end)]
    return [msgspec.msgpack.encode(portion) for portion in work]


def _reader(
    with_values: bool, whole_records: bool, code: str
) -> Callable[[bytes], Iterator[tuple[Name | None, bytes]]]:
    """The function that reads one portion and yields rows by the name of their partition; a failure has the name
    None. `code`: the digest of the driver's."""

    def read(content: bytes) -> Iterator[tuple[Name | None, bytes]]:
        problem = problem_of_code(code)
        if problem is not None:
            yield None, problem.encode()
            return
        portion = msgspec.msgpack.decode(content, type=_Portion)
        for topic, number, task in portion.ranges:
            scan = scan_range(task, with_values=with_values, whole_records=whole_records)
            yield (topic, number), msgspec.msgpack.encode(_PartitionRow(scan=scan))
        if portion.acked is None:
            return
        try:
            for chunk in read_acked(portion.acked):
                yield (chunk.topic, chunk.partition), msgspec.msgpack.encode(_PartitionRow(acked=chunk))
        except AuditError as error:
            yield None, str(error).encode()

    return read


def _placing(shares: dict[TopicPartition, int], count: int) -> Callable[[Name | None], int]:
    """The share of a row. Partitions that only the list names are spread by a checksum of their name."""

    def place(name: Name | None) -> int:
        share = shares.get(TopicPartition(*name)) if name is not None else 0
        return crc32c(repr(name).encode()) % count if share is None else share

    return place


def _checker(
    inventory: Inventory, with_values: bool, whole_records: bool, code: str
) -> Callable[[Iterable[tuple[Name | None, bytes]]], Iterator[bytes]]:
    """The function that checks one share; its inputs are packed."""
    packed = msgspec.msgpack.encode((inventory.replicas, inventory.expected))

    def check(rows: Iterable[tuple[Name | None, bytes]]) -> Iterator[bytes]:
        began = time.time()
        by_name: dict[Name | None, list[bytes]] = {}
        for name, content in rows:
            by_name.setdefault(name, []).append(content)
        failures = [failure.decode() for failure in by_name.pop(None, ())]
        problem = problem_of_code(code)
        failures += [problem] if problem is not None else []
        if failures:
            yield msgspec.msgpack.encode(_CheckedShare(began, (), min(failures)))
            return
        replicas, expected = _facts_by_name(packed)
        results = []
        for name in sorted(name for name in by_name if name is not None):
            partition = TopicPartition(*name)
            read = [msgspec.msgpack.decode(content, type=_PartitionRow) for content in by_name.pop(name)]
            scans = [row.scan for row in read if row.scan is not None]
            acked = [row.acked for row in read if row.acked is not None]
            present = [_replica(facts, scans, with_values, whole_records) for facts in replicas.get(partition, ())]
            results.append(compare_partition(partition, present, acked, expected.get(str(partition))))
        yield msgspec.msgpack.encode(_CheckedShare(began, tuple(results)))

    return check


def _facts_by_name(packed: bytes) -> tuple[dict[TopicPartition, list[ReplicaFacts]], dict[str, ExpectedPartition]]:
    replicas, expected = msgspec.msgpack.decode(packed, type=tuple[list[ReplicaFacts], dict[str, ExpectedPartition]])
    by_name: dict[TopicPartition, list[ReplicaFacts]] = {}
    for facts in replicas:
        by_name.setdefault(TopicPartition(facts.topic, facts.partition), []).append(facts)
    return by_name, expected


def _replica(facts: ReplicaFacts, scans: list[RangeScan], with_values: bool, whole_records: bool) -> AuditedReplica:
    own = [scan for scan in scans if scan.directory == facts.directory]
    stitched = stitch(own, lambda task: scan_range(task, with_values=with_values, whole_records=whole_records))
    return with_explanation(assemble(facts, stitched, read_snapshots(facts)))


def _without_segments(inventory: Inventory, results: list[PartitionResult]) -> list[PartitionResult]:
    """Partitions of which no replica has a segment, or none exists at all, have no row in the shuffle."""
    checked_partitions = {TopicPartition(result.topic, result.partition) for result in results}
    missing: dict[TopicPartition, list[AuditedReplica]] = {}
    for name in inventory.expected:
        partition = parse_partition_directory_name(name)
        if partition is not None and partition not in checked_partitions:
            missing[partition] = []
    for facts in inventory.replicas:
        partition = TopicPartition(facts.topic, facts.partition)
        if partition not in checked_partitions:
            missing.setdefault(partition, []).append(assemble(facts, [], read_snapshots(facts)))
    return [
        compare_partition(partition, replicas, (), inventory.expected.get(str(partition)))
        for partition, replicas in missing.items()
    ]


@contextmanager
def _reported_progress(context: "SparkContext", tasks: int, progress: Callable[[str], None]) -> Iterator[None]:
    """Report how many ranges are read while the job runs."""
    done = threading.Event()
    tracker = context.statusTracker()

    def watch() -> None:
        while not done.wait(PROGRESS_SECONDS):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            completed = max((stage.numCompletedTasks for stage in stages if stage is not None), default=0)
            progress(f"Spark: {completed} of {tasks} portions of the logs read")

    watcher = threading.Thread(target=watch, name="audit progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
