"""The audit on Spark: executors read ranges of files, a shuffle brings each partition together, executors judge it.

Owns: the plan of the job. Scanning (CRC of every batch; of every value where a list of acknowledged records is given)
is spread over ranges of files. What comes out is one small row per range, its batches packed in columns, and one per
stretch of the list; grouping by topic and partition is the join of replicas with each other and with the list. The
judgement is judge.py's, the same function that the local engine calls.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from minibroker.audit.acked_file import AckedChunk, plan_acked
from minibroker.audit.discovery import Inventory, LastKnownState
from minibroker.audit.errors import AuditError
from minibroker.audit.findings import PartitionResult
from minibroker.audit.judge import decode_result, encode_result, judge_partition
from minibroker.audit.planning import plan_ranges, portions, range_bytes_for
from minibroker.audit.replica import RangeScan, Replica, ReplicaFacts, assemble
from minibroker.audit.segment_reader import scan_range, stitch
from minibroker.protocol.ids import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

RESULT_SCHEMA = "failure string, result binary"
PROGRESS_SECONDS = 0.5


def judge_on_spark(
    session: "SparkSession",
    inventory: Inventory,
    acked: str | None,
    *,
    with_values: bool,
    range_bytes: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[PartitionResult]:
    """Results in order of topic and partition."""
    from minibroker.audit.source import SCAN_SCHEMA, MinibrokerDataSource, Work

    size = range_bytes or range_bytes_for(inventory.total_bytes)
    names = {facts.directory: (facts.topic, facts.partition) for facts in inventory.replicas}
    tasks = [task for facts in inventory.replicas for task in plan_ranges(facts.directory, facts.segments, size)]
    work = Work(
        portions=tuple(
            tuple((*names[task.directory], task) for task in portion)
            for portion in portions(tasks, range_bytes_for(inventory.total_bytes))
        ),
        acked=tuple(plan_acked(acked)) if acked is not None else (),
        with_values=with_values,
    )
    session.dataSource.register(MinibrokerDataSource)
    reader = session.read.format(MinibrokerDataSource.name()).option("level", "scan")
    rows = reader.option("work", msgspec.json.encode(work).decode()).schema(SCAN_SCHEMA).load()
    judged = rows.groupBy("topic", "partition").applyInArrow(_judge(inventory, with_values), RESULT_SCHEMA)
    with _shown(session, len(work.portions) + len(work.acked), progress):
        collected = judged.collect()
    failures = sorted(row.failure for row in collected if row.failure is not None)
    if failures:
        raise AuditError(failures[0])
    results = [decode_result(bytes(row.result)) for row in collected]
    results += _without_segments(inventory, results)
    return sorted(results, key=lambda result: (result.topic, result.partition))


def _judge(inventory: Inventory, with_values: bool) -> Callable[["pa.Table"], "pa.Table"]:
    """The function that judges one group; what it needs travels packed."""
    packed = msgspec.msgpack.encode((inventory.replicas, inventory.states))

    def judge(table: "pa.Table") -> "pa.Table":
        import pyarrow as pa

        kinds, payloads = table.column("kind").to_pylist(), table.column("payload").to_pylist()
        by_kind: dict[str, list[bytes]] = {"scan": [], "acked": [], "failed": []}
        for kind, payload in zip(kinds, payloads, strict=True):
            by_kind[kind].append(payload)
        schema = pa.schema([("failure", pa.string()), ("result", pa.binary())])
        if by_kind["failed"]:
            return pa.table([[min(by_kind["failed"]).decode()], [None]], schema=schema)
        partition = TopicPartition(table.column("topic")[0].as_py(), table.column("partition")[0].as_py())
        replicas, states = _facts_of(packed, partition)
        scans = [msgspec.msgpack.decode(payload, type=RangeScan) for payload in by_kind["scan"]]
        acked = [msgspec.msgpack.decode(payload, type=AckedChunk) for payload in by_kind["acked"]]
        result = judge_partition(
            partition, [_replica(facts, scans, with_values) for facts in replicas], acked, states.get(str(partition))
        )
        return pa.table([[None], [encode_result(result)]], schema=schema)

    return judge


def _facts_of(packed: bytes, partition: TopicPartition) -> tuple[list[ReplicaFacts], dict[str, LastKnownState]]:
    replicas, states = msgspec.msgpack.decode(packed, type=tuple[list[ReplicaFacts], dict[str, LastKnownState]])
    return [facts for facts in replicas if (facts.topic, facts.partition) == partition], states


def _replica(facts: ReplicaFacts, scans: list[RangeScan], with_values: bool) -> Replica:
    own = [scan for scan in scans if scan.directory == facts.directory]
    return assemble(facts, stitch(own, lambda task: scan_range(task, with_values=with_values)))


def _without_segments(inventory: Inventory, results: list[PartitionResult]) -> list[PartitionResult]:
    """Partitions of which no replica has a segment have no row to judge."""
    seen = {(result.topic, result.partition) for result in results}
    missing: dict[TopicPartition, list[Replica]] = {}
    for facts in inventory.replicas:
        if (facts.topic, facts.partition) not in seen:
            missing.setdefault(TopicPartition(facts.topic, facts.partition), []).append(assemble(facts, []))
    return [
        judge_partition(partition, replicas, (), inventory.states.get(str(partition)))
        for partition, replicas in missing.items()
    ]


@contextmanager
def _shown(session: "SparkSession", tasks: int, progress: Callable[[str], None]) -> Iterator[None]:
    """Tell how many ranges are read while the job runs."""
    done = threading.Event()
    tracker = session.sparkContext.statusTracker()

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
