"""A power cut may leave any part of what a broker had not synced; everything it had synced is present."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.checks.partition_check import compare_partition
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.audit.reading.ranges import plan_ranges
from minibroker.audit.reading.replica import RangeScan, assemble
from minibroker.audit.reading.segment_reader import RangeTask, scan_range
from minibroker.audit.spark.stitching import stitch
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from tests.audit.damage import BATCHES, BROKER, ENCODED, second
from tests.audit.planted_cluster import PlantedCluster, PlantedReplica

LINES = TopicPartition("lines", 0)
SYNCED = read_header(ENCODED[4]).base_offset
"""In the second segment; a batch of a later epoch begins here."""


def zeros(replica: PlantedReplica) -> None:
    segment, positions, _ = second(replica)
    replica.patch(segment, positions[1], bytes(positions[2] - positions[1]))


def hole(replica: PlantedReplica) -> None:
    segment, _, _ = second(replica)
    replica.rewrite(lambda batches: [batches[0], *batches[2:]], segment)


def no_middle_segment(replica: PlantedReplica) -> None:
    replica.file(replica.segments[1]).unlink()


def empty_middle_segment(replica: PlantedReplica) -> None:
    replica.file(replica.segments[1]).write_bytes(b"")


def half_a_batch_in_the_middle_segment(replica: PlantedReplica) -> None:
    replica.rewrite(lambda batches: [*batches[:-1], batches[-1][:30]], replica.segments[1])


LEFT: list[Callable[[PlantedReplica], None]] = [
    zeros,
    hole,
    no_middle_segment,
    empty_middle_segment,
    half_a_batch_in_the_middle_segment,
]


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, ENCODED)
    cluster.stop_cleanly(False, BROKER)
    cluster.lose_power(BROKER)
    cluster.set_recovery_point(BROKER, LINES, SYNCED)
    return cluster


def audited_partition(cluster: PlantedCluster) -> PartitionResult:
    acked = cluster.write_acked(LINES, BATCHES)
    (result,) = compare_locally(discover([str(cluster.root)]), str(acked), with_values=True)
    return result


def test_a_log_start_moved_beyond_the_synced_end_by_retention_is_lawful(cluster: PlantedCluster) -> None:
    cluster.replica(BROKER, LINES).write(ENCODED[:4])
    for broker in cluster.brokers:
        cluster.replica(broker, LINES).write_log_start(read_header(ENCODED[9]).base_offset)
    assert not errors(audited_partition(cluster))


def test_a_log_start_behind_the_end_is_an_error_without_a_power_cut(cluster: PlantedCluster) -> None:
    cluster.replica(3, LINES).write_log_start(100)
    assert [item.message for item in errors(audited_partition(cluster)) if item.kind is Kind.CHECKPOINT_DAMAGE]


def errors(result: PartitionResult) -> list[Finding]:
    return [item for item in result.findings if item.severity is Severity.ERROR]


@pytest.mark.parametrize("leave", LEFT)
def test_any_part_of_the_unsynced_tail_may_be_left(
    cluster: PlantedCluster, leave: Callable[[PlantedReplica], None]
) -> None:
    leave(cluster.replica(BROKER, LINES))
    result = audited_partition(cluster)
    assert errors(result) == []
    assert result.verdict is PartitionVerdict.LAGGING
    torn = [item for item in result.findings if item.kind is Kind.TORN_TAIL]
    assert [(item.broker, "its next start cuts this off" in item.message) for item in torn] == [(BROKER, True)]


@pytest.mark.parametrize("leave", LEFT)
def test_a_damaged_synced_part_is_an_error(cluster: PlantedCluster, leave: Callable[[PlantedReplica], None]) -> None:
    cluster.set_recovery_point(BROKER, LINES, 24)
    leave(cluster.replica(BROKER, LINES))
    assert {item.broker for item in errors(audited_partition(cluster))} == {BROKER}


@pytest.mark.parametrize("leave", LEFT)
def test_a_killed_broker_has_lost_nothing(
    cluster: PlantedCluster, leave: Callable[[PlantedReplica], None], tmp_path: Path
) -> None:
    """Its machine has not rebooted: everything it wrote is there."""
    killed = PlantedCluster(tmp_path / "killed", clean=False)
    killed.write(LINES, ENCODED)
    leave(killed.replica(BROKER, LINES))
    assert {item.broker for item in errors(audited_partition(killed))} == {BROKER}


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_an_index_of_unsynced_batches_may_hold_anything(cluster: PlantedCluster, suffix: str) -> None:
    replica = cluster.replica(BROKER, LINES)
    file = replica.file(replica.segments[1], suffix)
    file.write_bytes(file.read_bytes()[:-3])
    assert errors(audited_partition(cluster)) == []
    cluster.set_recovery_point(BROKER, LINES, replica.segments[2])
    assert [item.kind for item in errors(audited_partition(cluster))] == [Kind.INDEX_DAMAGE]


def test_unsynced_records_that_no_other_replica_holds_are_lost(cluster: PlantedCluster) -> None:
    for broker in cluster.brokers:
        cluster.stop_cleanly(False, broker)
        cluster.set_recovery_point(broker, LINES, SYNCED)
        zeros(cluster.replica(broker, LINES))
    cluster.lose_power()
    assert Kind.RECORDS_LOST in {item.kind for item in errors(audited_partition(cluster))}


@pytest.mark.parametrize(("segment", "refused_from"), [(1, 450), (2, 0), (2, 250)])
@pytest.mark.parametrize("range_bytes", [1 << 62, 100])
def test_what_a_disk_refuses_to_read_was_not_taken_by_a_power_cut(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch, segment: int, refused_from: int, range_bytes: int
) -> None:
    """Once the log ended there, with a note only, and nothing said that the rest was not read."""
    replica = cluster.replica(BROKER, LINES)
    cluster.set_high_watermark(BROKER, LINES, SYNCED)
    damaged = replica.file(replica.segments[segment]).stat().st_ino
    read = os.pread

    def refuse(descriptor: int, count: int, position: int) -> bytes:
        left = count if os.fstat(descriptor).st_ino != damaged else refused_from - position
        if left <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, min(count, left), position)

    monkeypatch.setattr(os, "pread", refuse)
    inventory = discover([str(cluster.root)])
    replicas = []
    for facts in inventory.replicas:
        scans = [scan(task) for task in plan_ranges(facts.directory, facts.segments, range_bytes)]
        replicas.append(assemble(facts, stitch(scans, scan)))
    result = compare_partition(LINES, replicas, (), inventory.expected[str(LINES)])
    assert result.verdict is PartitionVerdict.INCONSISTENT
    (first, *_) = [item for item in result.findings if item.severity is Severity.ERROR]
    assert first.kind is Kind.CORRUPT_BATCH
    assert first.message.startswith("the segment cannot be read: Input/output error")


def scan(task: RangeTask) -> RangeScan:
    return scan_range(task, with_values=False)
