"""The report: outcome and exit code, JSON, Parquet, page, terminal."""

import errno
import json
import os
import shutil
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from rich.console import Console

from minibroker.audit import run
from minibroker.audit.checks.findings import FINDINGS_PER_KIND_MAX, Kind, Severity, finding, limited
from minibroker.audit.errors import AuditError
from minibroker.audit.reports.html_page import html_page
from minibroker.audit.reports.partition_picture import NARROWEST, picture
from minibroker.audit.reports.report import describe
from minibroker.audit.reports.terminal import print_report
from minibroker.audit.run import run_audit
from minibroker.protocol.ids import TopicPartition
from tests.audit import damage
from tests.audit.damage import BATCHES, BROKER, ENCODED
from tests.audit.planted_cluster import PlantedCluster

LINES = TopicPartition("lines", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, ENCODED)
    return cluster


def test_a_consistent_cluster_exits_with_0_and_reports_how_much_was_compared(cluster: PlantedCluster) -> None:
    report = run_audit([str(cluster.root)], "local", str(cluster.write_acked(LINES, BATCHES)))
    assert report.exit_code == 0
    assert report.summary == (
        "consistent: 3 replicas of 1 partition were compared below their committed offsets (24 of 24 offsets), all"
        " agree; 24 of 24 acknowledged records are in place"
    )


def test_findings_exit_with_10(cluster: PlantedCluster) -> None:
    damage.flip_bit(cluster.replica(BROKER, LINES))
    report = run_audit([str(cluster.root)], "local")
    assert report.exit_code == 10
    assert report.summary.startswith("inconsistent: 1 finding, first corrupt-batch")
    assert [each.check for each in report.results if not each.success] == ["every batch passes its CRC"]


def test_json_has_every_field(cluster: PlantedCluster, tmp_path: Path) -> None:
    expected = damage.flip_bit(cluster.replica(BROKER, LINES))
    run_audit([str(cluster.root)], "local", output=str(tmp_path / "out"))
    content = json.loads((tmp_path / "out" / "report.json").read_text())
    assert content["success"] is False
    assert content["outcome"] == "inconsistent"
    assert content["statistics"]["replicas"] == 3
    (item,) = [each for each in content["findings"] if each["severity"] == "error"]
    assert (item["kind"], item["broker"], item["topic"], item["partition"]) == ("corrupt-batch", 2, "lines", 0)
    assert (item["offset"], item["position"]) == (expected.offset, expected.position)
    assert content["meta"]["engine"] == "local"


def test_parquet_has_a_row_per_finding(cluster: PlantedCluster, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    damage.remove_segment(cluster.replica(BROKER, LINES))
    report = run_audit([str(cluster.root)], "local", output=str(tmp_path))
    rows = parquet.read_table(tmp_path / "findings.parquet").to_pylist()
    assert [(row["kind"], row["broker"], row["offset"]) for row in rows] == [
        (item.kind, item.broker, item.offset) for item in report.findings
    ]


def test_an_audit_that_could_not_run_leaves_no_report_of_an_earlier_one(
    cluster: PlantedCluster, tmp_path: Path
) -> None:
    """Who reads the file would take it for the result."""
    out = tmp_path / "out"
    run_audit([str(cluster.root)], "local", output=str(out))
    (out / "mine.txt").touch()
    with pytest.raises(AuditError):
        run_audit([str(tmp_path / "nothing")], "local", output=str(out))
    assert [file.name for file in out.iterdir()] == ["mine.txt"]


def test_a_report_that_cannot_be_written_whole_leaves_no_part_of_it(
    cluster: PlantedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk was full behind the JSON: the exit code was 1, and report.json said that all is well."""

    def fill_the_disk(_: object) -> str:
        assert (tmp_path / "out" / "report.json").exists()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run, "html_page", fill_the_disk)
    with pytest.raises(AuditError, match=r"cannot be written to .*out: No space left on device"):
        run_audit([str(cluster.root)], "local", output=str(tmp_path / "out"))
    assert list((tmp_path / "out").iterdir()) == []


def test_the_page_is_self_contained_and_escapes(cluster: PlantedCluster) -> None:
    hostile = cluster.root.rename(cluster.root.parent / "<b onclick=x>")
    cluster.root = hostile
    damage.flip_bit(cluster.replica(BROKER, LINES))
    page = html_page(run_audit([str(hostile)], "local"))
    assert "<script" not in page
    assert "<b " not in page
    assert "&lt;b onclick=x&gt;" in page
    assert "http" not in page
    assert "corrupt-batch" in page


def test_the_page_shows_findings_first_and_causes_before_consequences(cluster: PlantedCluster) -> None:
    damage.flip_bit(cluster.replica(BROKER, LINES))
    cluster.write(TopicPartition("gone", 1), ENCODED)
    cluster.write_state(TopicPartition("gone", 1), leader=1, leader_epoch=2, isr=[1, 2, 3])
    shutil.rmtree(cluster.replica(3, TopicPartition("gone", 1)).directory)
    page = html_page(run_audit([str(cluster.root)], "local"))
    places = [page.index(each) for each in (">missing-replica<", ">corrupt-batch<", "<h2>Partitions", "<h2>Checks")]
    assert places == sorted(places)
    assert "<tr class='bad'>" in page


def test_the_picture_shows_what_is_damaged_missing_and_fine(cluster: PlantedCluster) -> None:
    damage.flip_bit(cluster.replica(BROKER, LINES))
    (result,) = run_audit([str(cluster.root)], "local").partitions
    drawn = picture(msgspec.structs.replace(result, absent_replicas=(4,)))
    ElementTree.fromstring(drawn)
    assert [drawn.count(f'<rect class="{css}"') for css in ("agrees", "differs", "missing")] == [3, 1, 1]
    assert "broker 2 !" in drawn
    assert "broker 4: the replica is missing" in drawn


def test_one_offset_of_millions_is_visible_in_the_picture(cluster: PlantedCluster) -> None:
    damage.flip_bit(cluster.replica(BROKER, LINES))
    (result,) = run_audit([str(cluster.root)], "local").partitions
    long = [msgspec.structs.replace(each, log_end_offset=50_000_000) for each in result.replicas]
    drawn = ElementTree.fromstring(picture(msgspec.structs.replace(result, replicas=tuple(long))))
    (damaged,) = [each for each in drawn if each.get("class") == "differs"]
    assert float(damaged.get("width") or 0) >= NARROWEST


def test_the_witness_does_not_hide_where_a_log_is_damaged(cluster: PlantedCluster) -> None:
    """Once it coloured the whole bar, as it concerns all offsets of the log."""
    damage.flip_bit(cluster.replica(BROKER, LINES))
    (result,) = run_audit([str(cluster.root)], "local").partitions
    whole = finding(Kind.WITNESS_DIFFERS, "differs", broker=BROKER, offset=0, end_offset=24)
    drawn = picture(msgspec.structs.replace(result, findings=(*result.findings, whole)))
    assert drawn == picture(result)
    assert 'class="differs"' in picture(msgspec.structs.replace(result, findings=(whole,)))


def test_a_single_replica_is_not_drawn_as_agreeing(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path, brokers=[1])
    cluster.write(LINES, ENCODED)
    (result,) = run_audit([str(tmp_path)], "local").partitions
    assert 'class="alone"' in picture(result)
    assert 'class="agrees"' not in picture(result)


def test_the_terminal_shows_verdict_partition_and_place(cluster: PlantedCluster) -> None:
    expected = damage.flip_bit(cluster.replica(BROKER, LINES))
    out = StringIO()
    print_report(run_audit([str(cluster.root)], "local"), Console(file=out, width=200))
    text = out.getvalue()
    assert "lines-0" in text
    assert f"broker 2, offset {expected.offset}" in text
    assert f"{expected.file} at {expected.position}" in text
    assert text.rstrip().splitlines()[-1].startswith("inconsistent")


def test_the_terminal_shows_a_missing_replica_beside_the_others(cluster: PlantedCluster) -> None:
    """Once only the page did."""
    report = run_audit([str(cluster.root)], "local")
    (result,) = report.partitions
    out = StringIO()
    missing = msgspec.structs.replace(result, absent_replicas=(4,))
    print_report(msgspec.structs.replace(report, partitions=(missing,)), Console(file=out, width=200))
    assert [line for line in out.getvalue().splitlines() if line.strip() == "broker 4: missing"]


def test_the_terminal_obeys_no_name_of_a_file(cluster: PlantedCluster) -> None:
    damage.flip_bit(cluster.replica(BROKER, LINES))
    root = cluster.root.rename(cluster.root.with_name("a\x1b[2J\nconsistent: \x9b1m"))
    out = StringIO()
    print_report(run_audit([str(root)], "local"), Console(file=out, width=200))
    assert r"a\x1b[2J\nconsistent: \x9b1m/broker-2" in out.getvalue()
    assert all(character.isprintable() or character == "\n" for character in out.getvalue())


def test_a_finding_of_no_place_has_no_brackets() -> None:
    assert describe(finding(Kind.UNPROVEN, "nothing says what should be there")) == (
        "unproven: nothing says what should be there"
    )


def test_many_findings_of_a_kind_are_counted_not_listed() -> None:
    many = [finding(Kind.CORRUPT_BATCH, "x", broker=1, topic="t", partition=0, offset=n) for n in range(1000)]
    kept = limited(many)
    assert len(kept) == FINDINGS_PER_KIND_MAX + 1
    assert kept[-1].message == f"and {1000 - FINDINGS_PER_KIND_MAX} more of this kind, from here on"


def test_an_unknown_engine_and_no_directory_cannot_run(cluster: PlantedCluster) -> None:
    with pytest.raises(AuditError, match="engine 'flink' is unknown"):
        run_audit([str(cluster.root)], "flink")
    with pytest.raises(AuditError, match="no directory"):
        run_audit([], "local")


def test_a_single_replica_is_consistent_with_a_remark_that_nothing_was_compared(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path, brokers=[1])
    cluster.write(LINES, ENCODED)
    report = run_audit([str(tmp_path)], "local")
    assert report.exit_code == 0
    assert "nothing was compared" in report.summary


def test_an_audit_changes_no_file(cluster: PlantedCluster) -> None:
    def state() -> dict[Path, tuple[int, bytes]]:
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes()) for path in cluster.root.rglob("*") if path.is_file()
        }

    before = state()
    run_audit([str(cluster.root)], "local", str(cluster.write_acked(LINES, BATCHES)))
    after = state()
    after.pop(cluster.root / "acked.tsv")
    assert after == before


def test_causes_come_before_consequences_and_before_open_questions(cluster: PlantedCluster) -> None:
    cluster.forget_state()
    damage.drop_batch(cluster.replica(BROKER, LINES))
    report = run_audit([str(cluster.root)], "local")
    errors = [item.kind for item in report.findings if item.severity is Severity.ERROR]
    assert errors == [Kind.MISSING_RANGE, Kind.INDEX_DAMAGE, Kind.INDEX_DAMAGE, Kind.UNPROVEN]
    assert "first missing-range" in report.summary
