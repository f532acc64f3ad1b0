"""An audit of files that change under it: no false alarm, and a real one stays."""

import time
from pathlib import Path

import pytest

from minibroker.audit import run, zookeeper_source
from minibroker.audit.discovery import Inventory, discover
from minibroker.audit.expectation import SourcedState
from minibroker.audit.findings import Kind, PartitionVerdict
from minibroker.audit.local_engine import compare_locally
from minibroker.protocol import checkpoints
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
    """The audit's first look happened before what the test has done since."""
    looks: list[int] = []

    def look(directories: tuple[str, ...], told: tuple[SourcedState, ...]) -> Inventory:
        looks.append(1)
        return stale if len(looks) == 1 else discover(directories)

    monkeypatch.setattr(run, "discover", look)
    return looks


def test_a_truncation_that_was_half_seen_is_looked_at_again(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = discover([str(cluster.root)])
    cluster.write(LINES, encode(SUCCESSOR), brokers=[1], high_watermark=3)
    assert compare_locally(stale, None, with_values=False)[0].verdict is PartitionVerdict.INCONSISTENT, (
        "the first look is torn"
    )
    looks = discover_stale_first(monkeypatch, stale)
    report = run.run_audit([str(cluster.root)], "local")
    assert (report.exit_code, len(looks)) == (0, 2)


def test_damage_on_a_running_broker_is_found_all_the_same(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write(LINES, ENCODED)
    stale = discover([str(cluster.root)])
    cluster.replica(1, LINES).rewrite(lambda batches: [*batches, *encode([(2, [b"more"])], 24)])
    flip_bit(cluster.replica(BROKER, LINES))
    looks = discover_stale_first(monkeypatch, stale)
    report = run.run_audit([str(cluster.root)], "local")
    assert Kind.CORRUPT_BATCH in {item.kind for item in report.findings}
    assert len(looks) == 3, "changed at the second look, still at the third"


def test_files_that_do_not_change_are_not_read_twice(cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.write(LINES, ENCODED)
    flip_bit(cluster.replica(BROKER, LINES))
    looks = discover_stale_first(monkeypatch, discover([str(cluster.root)]))
    assert run.run_audit([str(cluster.root)], "local").exit_code == 10
    assert len(looks) == 2, "one look to see that nothing changed"


@pytest.mark.parametrize("noted_before", [None, 0, 9])
@pytest.mark.parametrize("is_noted", [True, False])
def test_on_a_live_cluster_marks_that_say_nothing_of_what_is_there_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_noted: bool, noted_before: int | None
) -> None:
    cluster = PlantedCluster(tmp_path, clean=False)
    cluster.write(LINES, ENCODED)
    for broker in cluster.brokers:
        cluster.set_high_watermark(broker, LINES, noted_before)
        cluster.replica(broker, LINES).write_log_start(noted_before or 0)
    state = cluster.state
    cluster.forget_state()
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        for broker in cluster.brokers if is_noted else ():
            cluster.set_high_watermark(broker, LINES, 24)

    monkeypatch.setattr(time, "sleep", wait)
    monkeypatch.setattr(zookeeper_source, "read_cluster_from_zookeeper", lambda _: state)
    report = run.run_audit([str(cluster.root)], "local", zookeeper="z:1")
    assert waits == [run.CHECKPOINT_SECONDS]
    assert report.exit_code == (0 if is_noted else 10)
    said = [item.message for item in report.findings if item.kind is Kind.UNPROVEN]
    assert all(
        each.endswith("a running broker records its high watermark every 5 s: audit again then") for each in said
    )
    assert len(said) == (0 if is_noted else 1)


def test_segments_that_retention_removed_since_are_trimmed_not_missing(cluster: PlantedCluster) -> None:
    cluster.write(LINES, ENCODED, high_watermark=24)
    inventory = discover([str(cluster.root)])
    replica = cluster.replica(1, LINES)
    replica.file(replica.segments[0]).unlink()
    (result,) = compare_locally(inventory, None, with_values=False)
    kinds = {item.kind for item in result.findings}
    assert kinds == {Kind.CHANGED_WHILE_READ, Kind.LOG_START_DIFFERS}
    assert result.judged_offsets == 24, "the other two still hold the head"


def test_a_log_that_grows_while_it_is_read_ends_where_it_ended_before(cluster: PlantedCluster) -> None:
    inventory = discover([str(cluster.root)])
    before = compare_locally(inventory, None, with_values=False)
    for broker in cluster.brokers:
        end = 6 if broker != 1 else 5
        cluster.replica(broker, LINES).rewrite(lambda batches, end=end: [*batches, *encode([(3, [b"new"])], end)])  # type: ignore[misc]
    assert compare_locally(inventory, None, with_values=False) == before


def test_the_high_watermark_is_read_before_the_log(cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark read after the sizes could be above the log's end, and look like a lost tail."""
    order: list[str] = []
    read = checkpoints.parse_offset_checkpoint

    def parse(content: bytes) -> dict[TopicPartition, int]:
        order.append("mark")
        return read(content)

    monkeypatch.setattr(checkpoints, "parse_offset_checkpoint", parse)
    parse_name = checkpoints.parse_segment_file_name

    def parse_segment(name: str) -> tuple[int, str] | None:
        order.append("segment")
        return parse_name(name)

    monkeypatch.setattr(checkpoints, "parse_segment_file_name", parse_segment)
    discover([str(cluster.log_directory(1))])
    assert order.index("mark") < order.index("segment")
    assert "mark" not in order[order.index("segment") :]
