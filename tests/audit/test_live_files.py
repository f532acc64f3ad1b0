"""An audit of files that change while it runs: no false alarm, and real damage is still found."""

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from minibroker.audit import run
from minibroker.audit.checks.expectation import SourcedState
from minibroker.audit.checks.findings import Kind, PartitionVerdict, Severity
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading import discovery, segment_reader, zookeeper_source
from minibroker.audit.reading.discovery import Inventory, discover
from minibroker.audit.reading.regular_files import open_regular
from minibroker.audit.reports.report import AuditReport
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from tests.audit.damage import BROKER, ENCODED, flip_bit
from tests.audit.planted_cluster import Batch, PlantedCluster, encode, some_batches

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


def test_a_cluster_that_is_started_meanwhile_is_read_again(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All brokers had stopped when it was listed. So nothing was to change, and what changed was called damage."""
    cluster.write(LINES, ENCODED)
    cluster.stop_cleanly(True)
    stale = discover([str(cluster.root)])
    cluster.stop_cleanly(False)
    cluster.write(LINES, encode([*some_batches(), (3, [b"more"])]))
    assert compare_locally(stale, None, with_values=False)[0].verdict is PartitionVerdict.INCONSISTENT
    discover_stale_first(monkeypatch, stale)
    assert run.run_audit([str(cluster.root)], "local").exit_code == 0


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
    replica.write_log_start(replica.segments[1])
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


def test_records_acknowledged_while_the_audit_runs_are_not_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer adds to its list while it writes. The logs were listed first, and the list was read then, on Spark
    ten seconds later: what had been added was 'acked-missing' at each look."""
    cluster = PlantedCluster(tmp_path, clean=False)
    batches = some_batches()
    cluster.write(LINES, encode(batches))
    acked = str(cluster.write_acked(LINES, batches))

    def look(directories: tuple[str, ...], states: tuple[SourcedState, ...]) -> Inventory:
        found = discover(directories, states)
        added: list[Batch] = [(9, [b"more"])]
        cluster.write_acked(LINES, added, read_header(encode(batches)[-1]).end_offset)
        batches.extend(added)
        cluster.write(LINES, encode(batches))
        return found

    monkeypatch.setattr(run, "discover", look)
    report = run.run_audit([str(tmp_path)], "local", acked=acked)
    assert (report.exit_code, report.statistics.acked_in_place) == (0, 24)


class Retention:
    """A running cluster from which retention deletes. The test says between which two reads of the audit it does."""

    def __init__(self, cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        cluster.write(LINES, encode(some_batches(60)))
        self.first = 0
        self._patch = monkeypatch
        state = cluster.state
        cluster.forget_state()
        monkeypatch.setattr(zookeeper_source, "read_cluster_from_zookeeper", lambda _: state)

    def delete_heads(self, *brokers: int) -> None:
        """First all record a later start, then these delete what lies in front of it."""
        replicas = [self.cluster.replica(broker, LINES) for broker in self.cluster.brokers]
        segments = replicas[-1].segments
        for replica in replicas:
            replica.write_log_start(segments[1])
        for replica in (self.cluster.replica(broker, LINES) for broker in brokers or self.cluster.brokers):
            for segment in (each for each in replica.segments if each < segments[1]):
                replica.file(segment).rename(replica.file(segment, ".log.deleted"))

    def delete_all(self) -> None:
        """A producer is so fast that the whole log is another one soon. Its batches have the same sizes."""
        for broker in self.cluster.brokers:
            replica = self.cluster.replica(broker, LINES)
            end = read_header(replica.batches()[-1]).end_offset
            replica.write(encode(some_batches(60), end), end)
            self.cluster.set_high_watermark(broker, LINES, read_header(replica.batches()[-1]).end_offset)

    def trim_all(self, deleted: int) -> None:
        """Records are added, all are trimmed at once, and so many segments are deleted by now."""
        for broker in self.cluster.brokers:
            replica = self.cluster.replica(broker, LINES)
            batches = replica.batches()
            first, end = read_header(batches[0]).base_offset, read_header(batches[-1]).end_offset
            replica.write([*batches, *encode([(11, [b"x" * 900])] * 3, end)], first)
            replica.write_log_start(end + 3)
            for segment in replica.segments[:deleted]:
                replica.file(segment).unlink()

    def after_the_first_log_start(self, act: Callable[[], None]) -> None:
        """In each look of the audit: when it has read the log start of one broker, and not yet that of another."""
        armed: list[int] = []

        def look(directories: tuple[str, ...], states: tuple[SourcedState, ...]) -> Inventory:
            armed.append(1)
            return discover(directories, states)

        def parse(content: bytes) -> tuple[checkpoints.LogStart, int]:
            if armed:
                armed.clear()
                act()
            return parse_log_start(content)

        parse_log_start = checkpoints.parse_log_start
        self._patch.setattr(run, "discover", look)
        self._patch.setattr(checkpoints, "parse_log_start", parse)

    def after_each_discovery(self, act: Callable[[], None]) -> None:
        def look(directories: tuple[str, ...], states: tuple[SourcedState, ...]) -> Inventory:
            found = discover(directories, states)
            act()
            return found

        self._patch.setattr(run, "discover", look)

    def audit(self) -> AuditReport:
        return run.run_audit([str(self.cluster.root)], "local", zookeeper="z:1")


@pytest.fixture
def retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Retention:
    return Retention(PlantedCluster(tmp_path, clean=False), monkeypatch)


@pytest.mark.parametrize("brokers", [(1, 2, 3), (2, 3), (3,)])
def test_heads_deleted_between_the_reads_of_two_brokers_are_no_loss(
    retention: Retention, brokers: tuple[int, ...]
) -> None:
    """The audit read the log start of one broker, and listed the files of another later. In between all recorded a
    later start, and the other deleted its head. It looked lost: 'also in sync, without a recorded deletion'."""
    retention.after_the_first_log_start(lambda: retention.delete_heads(*brokers))
    report = retention.audit()
    assert [item.message for item in report.findings if item.severity is Severity.ERROR] == []
    assert report.exit_code == 0


def test_a_head_lost_between_the_reads_of_two_brokers_is_found(retention: Retention) -> None:
    """The other brokers recorded no later start, so nothing explains why this one begins later."""

    def lose() -> None:
        replica = retention.cluster.replica(3, LINES)
        if replica.segments[0] == 0:
            replica.file(0).unlink()
            replica.write_log_start(replica.segments[0])

    retention.after_the_first_log_start(lose)
    (result,) = (report := retention.audit()).partitions
    lost = [item for item in result.findings if item.kind is Kind.MISSING_RANGE]
    assert (report.exit_code, [item.broker for item in lost]) == (10, [3])
    assert "its head is missing" in lost[0].message


def test_a_middle_segment_lost_while_retention_deletes_is_found(retention: Retention) -> None:
    replica = retention.cluster.replica(3, LINES)
    replica.file(replica.segments[-2]).unlink()
    retention.after_the_first_log_start(retention.delete_heads)
    (result,) = retention.audit().partitions
    assert {(item.kind, item.broker) for item in result.findings if item.severity is Severity.ERROR} == {
        (Kind.MISSING_RANGE, 3)
    }


def test_high_watermarks_of_all_brokers_are_read_before_any_log(
    retention: Retention, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last broker noted a high watermark after the first one's files were listed: the first seemed to lack it."""
    cluster, listed = retention.cluster, discovery.segments_of
    grown = encode([*some_batches(60), (11, [b"more"])])

    def segments(directory: str) -> tuple[tuple[int, int], ...]:
        found = listed(directory)
        for broker in cluster.brokers if directory.startswith(str(cluster.log_directory(1))) else ():
            cluster.write(LINES, grown, brokers=[broker])
        return found

    monkeypatch.setattr(discovery, "segments_of", segments)
    inventory = discover([str(cluster.root)], [SourcedState(source="z", state=cluster.state, stopped=False)])
    (result,) = compare_locally(inventory, None, with_values=False)
    assert [item.message for item in result.findings if item.severity is Severity.ERROR] == []


def test_a_log_that_retention_replaces_at_each_look_is_not_lost_but_unproven(retention: Retention) -> None:
    """All that was listed was deleted before it was read. The rest of the log seemed to end below what its own high
    watermark says; and without one, all replicas seemed empty and well."""
    retention.after_each_discovery(retention.delete_all)
    report = retention.audit()
    (result,) = report.partitions
    errors = [item for item in result.findings if item.severity is Severity.ERROR]
    assert {item.kind for item in errors} == {Kind.UNPROVEN}
    assert (report.exit_code, result.verdict) == (10, PartitionVerdict.UNPROVEN)
    assert (result.compared_offsets, result.total_offsets) == (0, 0)


def test_a_log_start_behind_all_that_was_listed_is_no_damage(retention: Retention) -> None:
    """It was recorded after the listing. The log seemed to end in front of its own start."""
    retention.after_the_first_log_start(lambda: retention.trim_all(0))
    assert [item.message for item in retention.audit().findings if item.severity is Severity.ERROR] == []


def test_a_log_start_behind_the_listed_end_explains_what_vanished_and_is_no_damage(retention: Retention) -> None:
    """The last segment that was listed is still there, and lies in front of the log start, too."""
    retention.after_each_discovery(lambda: retention.trim_all(1))
    (result,) = retention.audit().partitions
    assert {item.kind for item in result.findings if item.severity is Severity.ERROR} == {Kind.UNPROVEN}
    assert result.verdict is PartitionVerdict.UNPROVEN


def test_one_replica_that_retention_replaces_at_each_look_is_unproven(retention: Retention) -> None:
    """The other two have not deleted yet, and agree. Nothing of the third was read."""

    def replace() -> None:
        batches = retention.cluster.replica(1, LINES).batches()
        end = read_header(batches[-1]).end_offset
        added = encode([(11, [b"x" * 900])] * 3, end)
        for broker in (1, 2):
            retention.cluster.replica(broker, LINES).write([*batches, *added])
            retention.cluster.replica(broker, LINES).write_log_start(end)
            retention.cluster.set_high_watermark(broker, LINES, end + 3)
        retention.cluster.replica(3, LINES).write(added, end)

    retention.after_each_discovery(replace)
    (result,) = retention.audit().partitions
    assert (result.verdict, result.compared_replicas) == (PartitionVerdict.UNPROVEN, (1, 2))


def test_a_removed_segment_without_a_later_log_start_is_not_explained(retention: Retention) -> None:
    """It is removed at each look, another one each time: not by retention, which records a log start first."""

    def remove() -> None:
        replica = retention.cluster.replica(3, LINES)
        replica.file(replica.segments[-2]).unlink()

    retention.after_each_discovery(remove)
    (result,) = retention.audit().partitions
    assert result.verdict is PartitionVerdict.UNPROVEN
    assert any("no log start explains" in item.message for item in result.findings if item.kind is Kind.UNPROVEN)


@pytest.mark.parametrize("is_written", [True, False])
def test_a_topic_that_is_being_made_while_zookeeper_is_read_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """Its node is written before its states. It was called a contradiction; one that stays without a state is one."""
    cluster = PlantedCluster(tmp_path, clean=False)
    cluster.write(LINES, ENCODED)
    complete = cluster.state
    cluster.forget_state()
    new = msgspec.structs.replace(complete.partitions["lines-0"], isr=(), leader=None, leader_epoch=0)
    young = msgspec.structs.replace(complete, partitions={"lines-0": new})
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", waits.append)
    monkeypatch.setattr(
        zookeeper_source, "read_cluster_from_zookeeper", lambda _: complete if waits and is_written else young
    )
    report = run.run_audit([str(tmp_path)], "local", zookeeper="z:1")
    contradictions = [item.message for item in report.findings if item.kind is Kind.CONTRADICTION]
    if is_written:
        assert (report.exit_code, contradictions, waits) == (0, [], [run.STATE_SECONDS])
    else:
        assert contradictions == ["ZooKeeper at z:1 has an empty ISR for lines-0, but an ISR is never empty"]
