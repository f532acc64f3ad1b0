"""An audit of files that change while it runs: no false alarm, and real damage is still found."""

import errno
import os
import time
from pathlib import Path

import pytest

from minibroker.audit import run
from minibroker.audit.checks.expectation import SourcedState
from minibroker.audit.checks.findings import Kind, PartitionVerdict
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading import segment_reader, zookeeper_source
from minibroker.audit.reading.discovery import Inventory, discover
from minibroker.audit.reading.regular_files import open_regular
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from tests.audit.damage import BROKER, ENCODED, flip_bit
from tests.audit.planted_cluster import Batch, PlantedCluster, encode

LINES = TopicPartition("lines", 0)
COMMON: list[Batch] = [(0, [b"a"]), (0, [b"b", b"c"])]
DEPOSED: list[Batch] = [*COMMON, (0, [b"x"]), (1, [b"y"])]
SUCCESSOR: list[Batch] = [*COMMON, (2, [b"d"]), (3, [b"e"]), (3, [b"f"])]


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path, clean=False)
    cluster.write(LINES, encode(SUCCESSOR), high_watermark=3)
    cluster.write(LINES, encode(DEPOSED), brokers=[1], high_watermark=3)
    return cluster


def discover_stale_first(monkeypatch: pytest.MonkeyPatch, stale: Inventory) -> list[int]:
    """The audit's first discovery ran before the changes that the test has made since."""
    discoveries: list[int] = []

    def look(directories: tuple[str, ...], states: tuple[SourcedState, ...]) -> Inventory:
        discoveries.append(1)
        return stale if len(discoveries) == 1 else discover(directories)

    monkeypatch.setattr(run, "discover", look)
    return discoveries


def test_a_partition_read_amid_a_truncation_is_read_again(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = discover([str(cluster.root)])
    cluster.write(LINES, encode(SUCCESSOR), brokers=[1], high_watermark=3)
    assert compare_locally(stale, None, with_values=False)[0].verdict is PartitionVerdict.INCONSISTENT, (
        "the first read is torn"
    )
    discoveries = discover_stale_first(monkeypatch, stale)
    report = run.run_audit([str(cluster.root)], "local")
    assert (report.exit_code, len(discoveries)) == (0, 2)


def test_damage_on_a_running_broker_is_found(cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.write(LINES, ENCODED)
    stale = discover([str(cluster.root)])
    cluster.replica(1, LINES).rewrite(lambda batches: [*batches, *encode([(2, [b"more"])], 24)])
    flip_bit(cluster.replica(BROKER, LINES))
    discoveries = discover_stale_first(monkeypatch, stale)
    report = run.run_audit([str(cluster.root)], "local")
    assert Kind.CORRUPT_BATCH in {item.kind for item in report.findings}
    assert len(discoveries) == 3, "changed at the second discovery, unchanged at the third"


def test_files_that_do_not_change_are_not_read_twice(cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.write(LINES, ENCODED)
    flip_bit(cluster.replica(BROKER, LINES))
    discoveries = discover_stale_first(monkeypatch, discover([str(cluster.root)]))
    assert run.run_audit([str(cluster.root)], "local").exit_code == 10
    assert len(discoveries) == 2, "one more discovery to see that nothing changed"


@pytest.mark.parametrize("recorded_before", [None, 0, 9])
@pytest.mark.parametrize("is_recorded", [True, False])
def test_on_a_live_cluster_the_audit_waits_for_missing_high_watermarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_recorded: bool, recorded_before: int | None
) -> None:
    cluster = PlantedCluster(tmp_path, clean=False)
    cluster.write(LINES, ENCODED)
    for broker in cluster.brokers:
        cluster.set_high_watermark(broker, LINES, recorded_before)
        cluster.replica(broker, LINES).write_log_start(recorded_before or 0)
    state = cluster.state
    cluster.forget_state()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        for broker in cluster.brokers if is_recorded else ():
            cluster.set_high_watermark(broker, LINES, 24)

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(zookeeper_source, "read_cluster_from_zookeeper", lambda _: state)
    report = run.run_audit([str(cluster.root)], "local", zookeeper="z:1")
    assert waits == [run.CHECKPOINT_SECONDS]
    assert report.exit_code == (0 if is_recorded else 10)
    messages = [item.message for item in report.findings if item.kind is Kind.UNPROVEN]
    assert all(
        each.endswith("a running broker records its high watermark every 5 s: audit again then") for each in messages
    )
    assert len(messages) == (0 if is_recorded else 1)


def test_segments_removed_by_retention_meanwhile_are_trimmed_not_missing(cluster: PlantedCluster) -> None:
    cluster.write(LINES, ENCODED, high_watermark=24)
    inventory = discover([str(cluster.root)])
    replica = cluster.replica(1, LINES)
    replica.file(replica.segments[0]).unlink()
    (result,) = compare_locally(inventory, None, with_values=False)
    kinds = {item.kind for item in result.findings}
    assert kinds == {Kind.CHANGED_WHILE_READ, Kind.LOG_START_DIFFERS}
    assert result.compared_offsets == 24, "the other two still hold the head"


def test_what_vanishes_while_it_is_read_is_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a note, for retention explains it: all replicas lost a middle segment, and the audit said 'all agree'."""
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, ENCODED)
    stale = discover([str(cluster.root)])
    for broker in cluster.brokers:
        replica = cluster.replica(broker, LINES)
        replica.file(replica.segments[1]).unlink()
    discover_stale_first(monkeypatch, stale)
    report = run.run_audit([str(cluster.root)], "local")
    assert (report.exit_code, report.findings[0].kind) == (10, Kind.MISSING_RANGE)
    assert Kind.CHANGED_WHILE_READ not in {item.kind for item in report.findings}


def test_partitions_that_are_not_read_again_keep_their_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention removed files of one partition while they were read. The second look read the list of acknowledged
    records, too, and called all those of the other partition missing: 'on 0 of 0 replicas'."""
    cluster = PlantedCluster(tmp_path)
    other = TopicPartition("other", 0)
    for partition in (LINES, other):
        cluster.write(partition, encode(SUCCESSOR))
    stale = discover([str(cluster.root)])
    for broker in cluster.brokers:
        cluster.replica(broker, LINES).file(0).rename(cluster.replica(broker, LINES).file(0, ".log.deleted"))
    discover_stale_first(monkeypatch, stale)
    acked = str(cluster.write_acked(other, SUCCESSOR))
    report = run.run_audit([str(cluster.root)], "local", acked=acked)
    (result,) = (each for each in report.partitions if each.topic == other.topic)
    assert (result.verdict, len(result.replicas), result.findings) == (PartitionVerdict.IDENTICAL, 3, ())


def test_files_that_only_some_readers_see_end_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a Spark cluster whose executors do not all see the same paths."""
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, ENCODED)
    hidden = {str(cluster.replica(broker, LINES).file(9)) for broker in cluster.brokers}

    def open_seen(path: str) -> int:
        if path in hidden:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return open_regular(path)

    monkeypatch.setattr(segment_reader, "open_regular", open_seen)
    with pytest.raises(AuditError, match=r"00009\.log is here, .* every executor must see the same paths"):
        run.run_audit([str(cluster.root)], "local")


def test_a_log_growing_while_it_is_read_ends_where_it_ended_at_the_start(cluster: PlantedCluster) -> None:
    inventory = discover([str(cluster.root)])
    before = compare_locally(inventory, None, with_values=False)
    for broker in cluster.brokers:
        end = 6 if broker != 1 else 5
        cluster.replica(broker, LINES).rewrite(lambda batches, end=end: [*batches, *encode([(3, [b"new"])], end)])  # type: ignore[misc]
    assert compare_locally(inventory, None, with_values=False) == before


def test_the_high_watermark_is_read_before_the_log(cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A high watermark read after the sizes could exceed the log's end, and look like a lost tail."""
    order: list[str] = []
    read = checkpoints.parse_offset_checkpoint

    def parse(content: bytes) -> dict[TopicPartition, int]:
        order.append("high watermark")
        return read(content)

    monkeypatch.setattr(checkpoints, "parse_offset_checkpoint", parse)
    parse_name = checkpoints.parse_segment_file_name

    def parse_segment(name: str) -> tuple[int, str] | None:
        order.append("segment")
        return parse_name(name)

    monkeypatch.setattr(checkpoints, "parse_segment_file_name", parse_segment)
    discover([str(cluster.log_directory(1))])
    assert order.index("high watermark") < order.index("segment")
    assert "high watermark" not in order[order.index("segment") :]
