"""The Spark data source `minibroker`: segment files of any number of brokers as rows.

    spark.dataSource.register(MinibrokerDataSource)
    spark.read.format("minibroker").load("minibroker-data")                          # a row per batch, corrupt gaps too
    spark.read.format("minibroker").option("level", "record").load("minibroker-data")  # a row per record
    ...option("topics", '["lines"]').option("brokers", "[1, 2]")                      # other files are not opened

Owns: options, schemas, the split into tasks, and rows as Arrow batches. It is for users with questions of their own:
the audit itself reads the files without it (spark_job.py).

Filters are deliberately not pushed down: Spark 4.3 keeps one reader for every query made from one load(), so the filter
of one would silently narrow the next (f.where("partition = 0").count(), then f.count() counts partition 0 only).
"""

import os
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from minibroker.audit.errors import AuditError
from minibroker.audit.reading.discovery import discover
from minibroker.audit.reading.payload import DecodedRecord, Undecodable, decode_payload
from minibroker.audit.reading.replica import ReplicaFacts, SegmentGap
from minibroker.audit.reading.segment_reader import RangeTask, SegmentWindow, open_window, walk
from minibroker.audit.spark.planning import plan_exact_ranges, portions, range_bytes_for
from minibroker.protocol.record_batch import BatchHeader

BATCH_SCHEMA = (
    "broker int, topic string, partition int, file string, segment bigint, position bigint, size bigint,"
    " base_offset bigint, end_offset bigint, record_count int, leader_epoch int, base_timestamp bigint,"
    " max_timestamp bigint, producer_id bigint, producer_epoch int, base_sequence int, crc bigint, problem string"
)
RECORD_SCHEMA = (
    "broker int, topic string, partition int, offset bigint, leader_epoch int, timestamp_ms bigint, key binary,"
    " value binary, headers array<struct<name: string, value: binary>>, file string, position bigint"
)
SCHEMAS = {"batch": BATCH_SCHEMA, "record": RECORD_SCHEMA}
ROWS_PER_ARROW_BATCH = 10_000

T = TypeVar("T")


class MinibrokerDataSource(DataSource):
    """Options: `path` or `paths`, `level` (batch, record), `topics`, `brokers`, `range_bytes`. Lists are JSON."""

    @classmethod
    def name(cls) -> str:
        return "minibroker"

    def schema(self) -> str:
        level = self.options.get("level", "batch")
        if level not in SCHEMAS:
            raise AuditError(f"level {level!r} is unknown: use 'batch' or 'record'")
        return SCHEMAS[level]

    def reader(self, schema: StructType) -> DataSourceReader:
        return RowReader(schema, dict(self.options))


class _Ranges(InputPartition):
    def __init__(self, ranges: list[tuple[int, str, int, RangeTask]]) -> None:
        super().__init__(None)
        self.content = msgspec.msgpack.encode(ranges)


class RowReader(DataSourceReader):
    """One row per batch or record. Files are cut only at proven batch starts, so that ranges need no stitching."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        directories = self._list("paths", str) or []
        if "path" in self._options:
            directories.append(self._options["path"])
        if not directories:
            raise AuditError("no path was given: load('minibroker-data') or option('paths', '[\"a\", \"b\"]')")
        inventory = discover(directories)
        size = int(self._options.get("range_bytes", range_bytes_for(inventory.total_bytes)))
        names = {facts.directory: facts for facts in inventory.replicas if self._is_wanted(facts)}
        tasks = [task for facts in names.values() for task in plan_exact_ranges(facts, size)]
        found: list[InputPartition] = [
            _Ranges(
                [
                    (names[task.directory].broker, names[task.directory].topic, names[task.directory].partition, task)
                    for task in portion
                ]
            )
            for portion in portions(tasks, size)
        ]
        return found or [_Ranges([])]

    def _is_wanted(self, facts: ReplicaFacts) -> bool:
        topics, brokers = self._list("topics", str), self._list("brokers", int)
        return (topics is None or facts.topic in topics) and (brokers is None or facts.broker in brokers)

    def _list(self, option: str, kind: type[T]) -> list[T] | None:
        if option not in self._options:
            return None
        try:
            return msgspec.json.decode(self._options[option], type=list[kind])  # type: ignore[valid-type]
        except msgspec.MsgspecError as error:
            raise AuditError(f"option {option} is not a JSON list of {kind.__name__}: {error}") from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Ranges)
        schema = to_arrow_schema(self._schema, timezone="UTC")
        ranges = msgspec.msgpack.decode(partition.content, type=list[tuple[int, str, int, RangeTask]])
        records = self._options.get("level") == "record"
        rows: list[tuple[Any, ...]] = []
        for broker, topic, number, task in ranges:
            for row in _rows(task, records):
                rows.append((broker, topic, number, *row))
                if len(rows) >= ROWS_PER_ARROW_BATCH:
                    yield _arrow(schema, rows)
                    rows = []
        if rows:
            yield _arrow(schema, rows)


def _arrow(schema: pa.Schema, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _rows(task: RangeTask, records: bool) -> Iterator[tuple[Any, ...]]:
    try:
        with open_window(task) as window:
            yield from _record_rows(window, task) if records else _batch_rows(window, task)
    except FileNotFoundError:
        log_directory = os.path.dirname(task.directory)
        if not os.path.isdir(log_directory):
            raise AuditError(f"{log_directory} is not here: every executor must see the same paths") from None
        return  # removed by retention since the plan was made


def _batch_rows(window: SegmentWindow, task: RangeTask) -> Iterator[tuple[Any, ...]]:
    for position, found in walk(window, task.start, task.end):
        place = (window.file, task.segment, position)
        if isinstance(found, SegmentGap):
            yield (*place, found.end - position, *[None] * 10, found.reason)
        else:
            yield (*place, found.size_bytes, *_header_fields(found), None)


def _header_fields(header: BatchHeader) -> tuple[int, ...]:
    return (
        header.base_offset,
        header.end_offset,
        header.record_count,
        header.partition_leader_epoch,
        header.base_timestamp,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.crc,
    )


def _record_rows(window: SegmentWindow, task: RangeTask) -> Iterator[tuple[Any, ...]]:
    """Undecodable batches give no rows here: corrupt gaps show at level batch, and everything in the audit."""
    for position, found in walk(window, task.start, task.end):
        if isinstance(found, SegmentGap):
            continue
        for offset, record in enumerate(_records(window, position, found), found.base_offset):
            timestamp_ms, key, content, named = record
            headers = [{"name": name, "value": value} for name, value in named]
            place = (window.file, position)
            epoch = found.partition_leader_epoch
            yield (offset, epoch, timestamp_ms, key, content, headers, *place)


def _records(window: SegmentWindow, position: int, header: BatchHeader) -> list[DecodedRecord]:
    try:
        return decode_payload(window.buffer, position - window.base, header)
    except Undecodable:
        return []
