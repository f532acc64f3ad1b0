"""Spark and the local engine agree, in one Spark session; the data source on its own."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minibroker.audit.checks.findings import Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.audit.run import run_audit
from minibroker.broker.replication.producer_state import ProducerStates, SnapshotPlace
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import decode_records, read_header
from tests.audit import damage, test_acked_list, test_sequences
from tests.audit.damage import BATCHES, BROKER, ENCODED
from tests.audit.losses.catalogue import PLACES, ROWS, scene_at, scene_of
from tests.audit.losses.scene import KnownSources
from tests.audit.planted_cluster import TOPIC_ID, PlantedCluster, encode, some_batches

pytest.importorskip("pyspark")
pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

from minibroker.audit.spark.source import MinibrokerDataSource  # noqa: E402
from minibroker.audit.spark.spark_context import spark_context  # noqa: E402
from minibroker.audit.spark.spark_job import compare_on_spark  # noqa: E402
from tests.audit.losses.on_spark import audit_together  # noqa: E402

SEED = 3
RANDOM_CASES = 60
LINES = TopicPartition("lines", 0)


@pytest.fixture(scope="module")
def session() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    with spark_context("local[2]") as context:
        yield SparkSession(context)


def both_engines(
    session: Any, cluster: PlantedCluster, acked: Path | None, range_bytes: int
) -> tuple[list[PartitionResult], list[PartitionResult]]:
    inventory = discover([str(cluster.root)])
    name, with_values = None if acked is None else str(acked), acked is not None
    locally = compare_locally(inventory, name, with_values=with_values)
    on_spark = compare_on_spark(session.sparkContext, inventory, name, with_values=with_values, range_bytes=range_bytes)
    return locally, on_spark


@pytest.mark.parametrize("range_bytes", [1 << 20, 250])
def test_spark_finds_every_planted_damage(tmp_path: Path, session: Any, range_bytes: int) -> None:
    cluster = PlantedCluster(tmp_path)
    expected = {}
    for plant in damage.ALL:
        partition = TopicPartition(plant.__name__, 0)
        cluster.write(partition, ENCODED)
        acked = cluster.write_acked(partition, BATCHES)
        expected[partition.topic] = plant(cluster.replica(BROKER, partition))
    locally, on_spark = both_engines(session, cluster, acked, range_bytes)
    assert on_spark == locally
    for result in on_spark:
        kind, offset, file, position = expected[result.topic]
        places = [
            (item.kind, item.broker, item.offset, item.file and Path(item.file).name, item.position)
            for item in result.findings
            if item.severity is Severity.ERROR
        ]
        assert (kind, BROKER, offset, file, position) in places


def test_engines_agree_on_lists_of_whole_records_sequences_and_snapshots(tmp_path: Path, session: Any) -> None:
    """A truncated list of version 2, over small ranges; a repeated batch, and a snapshot of another log."""
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, test_acked_list.log(test_acked_list.RECORDS))
    acked = test_acked_list.promised(cluster, finish=False)
    changed = [(b"other", *test_acked_list.RECORDS[0][1:]), *test_acked_list.RECORDS[1:]]
    cluster.write(LINES, test_acked_list.log(changed), brokers=[BROKER])
    sent = TopicPartition("sent", 0)
    log = test_sequences.run()
    cluster.write(sent, test_sequences.written([*log, log[2]]))
    states = ProducerStates()
    states.update(read_header(test_sequences.written([log[1]])[0]))
    cluster.replica(BROKER, sent).file(4, ".snapshot").write_bytes(states.snapshot(SnapshotPlace(TOPIC_ID, 0, 4)))
    locally, on_spark = both_engines(session, cluster, acked, range_bytes=120)
    assert on_spark == locally
    kinds = [{item.kind for item in result.findings if item.severity is Severity.ERROR} for result in on_spark]
    assert Kind.ACKED_CHANGED in kinds[0]
    assert kinds[1] == {Kind.SEQUENCE_TWICE, Kind.PRODUCER_SNAPSHOT}


RANGES = {
    KnownSources.NOTHING: 1 << 20,
    KnownSources.LIST: 250,
    KnownSources.STATE: 236,
    KnownSources.ZOOKEEPER: 120,
    KnownSources.WITNESS: 237,
    KnownSources.ALL: 119,
}
"""Bytes of a range. At 236 bytes of the second segment a batch begins, the shortest has 118: ranges begin at batches,
next to them, and some hold none."""


@pytest.mark.parametrize("known", KnownSources)
def test_spark_gives_the_same_table_of_losses(tmp_path: Path, session: Any, known: KnownSources) -> None:
    cases = [(number, count) for number, row in enumerate(ROWS) for count in row.on]
    scenes = [scene_of(ROWS[n], count, tmp_path / f"{n}-{count}", f"row-{n}-on-{count}") for n, count in cases]
    results = audit_together(session.sparkContext, scenes, known, RANGES[known], tmp_path)
    assert len(results.locally) >= len(scenes) - 6
    assert results.on_spark == results.locally


@pytest.mark.parametrize("range_bytes", [236, 130])
def test_spark_finds_damage_at_any_place(tmp_path: Path, session: Any, range_bytes: int) -> None:
    """Also at the borders of segments and of ranges."""
    scenes = [scene_at(*place, tmp_path / str(n), f"place-{n}") for n, place in enumerate(PLACES)]
    results = audit_together(session.sparkContext, scenes, KnownSources.WITNESS, range_bytes, tmp_path)
    assert results.on_spark == results.locally
    assert {result.verdict for result in results.on_spark} == {PartitionVerdict.INCONSISTENT}


def test_engines_agree_on_random_damage(tmp_path: Path, session: Any) -> None:
    """All cases of this property are partitions of one cluster, checked by one Spark job."""
    chooser = random.Random(SEED)
    cluster = PlantedCluster(tmp_path, clean=chooser.random() < 0.5)
    for number in range(RANDOM_CASES):
        partition = TopicPartition("random", number)
        batches = some_batches(chooser.randrange(1, 20))
        cluster.write(partition, encode(batches))
        acked = cluster.write_acked(partition, batches)
        for broker in cluster.brokers:
            cluster.set_high_watermark(broker, partition, chooser.choice([None, 0, 3, 10, 40]))
        for _ in range(chooser.randrange(4)):
            _damage_at_random(chooser, cluster, partition)
    locally, on_spark = both_engines(session, cluster, acked, range_bytes=333)
    assert on_spark == locally
    assert {result.verdict for result in locally} >= {PartitionVerdict.INCONSISTENT, PartitionVerdict.IDENTICAL}


def test_engines_agree_on_segments_removed_before_they_are_read(tmp_path: Path, session: Any) -> None:
    """Both read the log start again: it explains one removed segment, and not the other; one replica is replaced."""
    cluster = PlantedCluster(tmp_path, clean=False)
    cluster.write(LINES, ENCODED)
    inventory = discover([str(cluster.root)])
    explained, unexplained, replaced = (cluster.replica(broker, LINES) for broker in cluster.brokers)
    explained.write_log_start(9)
    for replica in (explained, unexplained):
        replica.file(0).unlink()
    replaced.write(encode(BATCHES, 24), 24)
    locally = compare_locally(inventory, None, with_values=False)
    assert compare_on_spark(session.sparkContext, inventory, None, with_values=False, range_bytes=250) == locally
    assert {item.broker for item in locally[0].findings if item.kind is Kind.UNPROVEN} == {2, 3}


def _damage_at_random(chooser: random.Random, cluster: PlantedCluster, partition: TopicPartition) -> None:
    directory = cluster.replica(chooser.choice(cluster.brokers), partition).directory
    file = chooser.choice(sorted(directory.iterdir()))
    content = bytearray(file.read_bytes())
    at = chooser.randrange(len(content) + 1)
    what = chooser.randrange(6)
    if what == 0 and content:
        content[min(at, len(content) - 1)] ^= 1 << chooser.randrange(8)
    elif what == 1:
        del content[at:]
    elif what == 2:
        content[at:at] = chooser.randbytes(chooser.randrange(200))
    elif what == 3:
        content[at:at] = ENCODED[chooser.randrange(len(ENCODED))]
    elif what == 4:
        del content[at : at + chooser.randrange(200)]
    else:
        file.unlink()
        return
    file.write_bytes(content)


def test_a_whole_audit_on_the_running_session_leaves_it_running(tmp_path: Path, session: Any) -> None:
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, ENCODED)
    empty = TopicPartition("empty", 0)
    cluster.replica(1, empty).directory.mkdir()
    report = run_audit(
        [str(cluster.root)], acked=str(cluster.write_acked(LINES, BATCHES)), output=str(tmp_path / "out")
    )
    assert (report.exit_code, report.meta.engine) == (0, "spark")
    assert report.timings.start_ms > 0
    assert [(result.topic, result.verdict) for result in report.partitions] == [
        ("empty", PartitionVerdict.EMPTY),
        ("lines", PartitionVerdict.IDENTICAL),
    ]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "findings.parquet",
        "report.html",
        "report.json",
    ]
    assert session.range(3).count() == 3


def test_a_cluster_without_topics_is_consistent_and_has_no_rows(tmp_path: Path, session: Any) -> None:
    cluster = PlantedCluster(tmp_path)
    report = run_audit([str(cluster.root)])
    assert (report.exit_code, len(report.partitions)) == (0, 0)
    session.dataSource.register(MinibrokerDataSource)
    assert session.read.format("minibroker").load(str(cluster.root)).count() == 0


def test_a_malformed_list_is_one_sentence_not_a_stack_trace(tmp_path: Path, session: Any) -> None:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, ENCODED)
    acked = cluster.write_acked(LINES, BATCHES)
    acked.write_bytes(acked.read_bytes() + b"nonsense\n")
    with pytest.raises(AuditError, match="the line at byte") as raised:
        run_audit([str(tmp_path)], acked=str(acked))
    assert "\n" not in str(raised.value)


# the data source


@pytest.fixture
def planted(tmp_path: Path, session: Any) -> PlantedCluster:
    session.dataSource.register(MinibrokerDataSource)
    cluster = PlantedCluster(tmp_path)
    for number in (0, 1):
        cluster.write(TopicPartition("lines", number), ENCODED)
    cluster.write(TopicPartition("other", 0), ENCODED[:2])
    return cluster


def test_batches_are_rows_and_corrupt_bytes_too(planted: PlantedCluster, session: Any) -> None:
    expected = damage.flip_bit(planted.replica(BROKER, LINES))
    rows = session.read.format("minibroker").option("range_bytes", "300").load(str(planted.root)).collect()
    assert len(rows) == 3 * (2 * len(ENCODED) + 2)
    (corrupt,) = [row for row in rows if row.problem is not None]
    assert (corrupt.broker, corrupt.topic, corrupt.partition) == (BROKER, "lines", 0)
    assert (corrupt.position, corrupt.base_offset, corrupt.problem) == (expected.position, None, "CRC does not match")
    first = next(row for row in rows if row.broker == 1 and row.topic == "other" and row.position == 0)
    assert (first.base_offset, first.end_offset, first.record_count, first.leader_epoch) == (0, 1, 1, 0)


def test_records_are_rows_where_asked(planted: PlantedCluster, session: Any) -> None:
    reader = session.read.format("minibroker").option("level", "record").option("range_bytes", "300")
    frame = reader.load(str(planted.log_directory(1))).where("topic = 'lines' and partition = 1")
    rows = sorted(frame.collect(), key=lambda row: int(row.offset))
    expected = [record for batch in ENCODED for record in decode_records(batch)]
    assert [
        (row.offset, row.timestamp_ms, row.key, row.value, tuple((h.name, h.value) for h in row.headers))
        for row in rows
    ] == [(each.offset, each.timestamp_ms, each.key, each.value, each.headers) for each in expected]


def test_files_excluded_by_options_are_not_opened(planted: PlantedCluster, session: Any) -> None:
    reader = session.read.format("minibroker").option("range_bytes", "1000")
    frame = reader.option("paths", json.dumps([str(planted.root)])).load()
    wanted = reader.option("topics", '["other"]').option("brokers", "[1, 2]").load()
    assert wanted.rdd.getNumPartitions() < frame.rdd.getNumPartitions() / 2
    assert {(row.broker, row.topic, row.partition) for row in wanted.collect()} == {(1, "other", 0), (2, "other", 0)}


def test_a_filter_of_one_query_does_not_reach_the_next(planted: PlantedCluster, session: Any) -> None:
    frame = session.read.format("minibroker").load(str(planted.root))
    count = frame.count()
    assert frame.where("topic = 'lines' and partition = 0").count() == 3 * len(ENCODED)
    assert frame.count() == count == 3 * (2 * len(ENCODED) + 2)


def test_an_unknown_level_is_rejected(planted: PlantedCluster, session: Any) -> None:
    with pytest.raises(Exception, match="level 'byte' is unknown"):
        session.read.format("minibroker").option("level", "byte").load(str(planted.root)).collect()
