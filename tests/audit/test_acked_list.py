"""Version 2 of the list of acknowledged records: whole records, topic ids, their number, and the acks setting."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.acked_file import AckedTask, check_list, open_acked, plan_acked, read_acked
from minibroker.audit.reading.discovery import discover
from minibroker.audit.reports.report import AuditOutcome
from minibroker.audit.run import run_audit
from minibroker.protocol.files.acked_list import AckedListWriter, record_checksum
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import Header, build_batch
from tests.audit.planted_cluster import START_MS, TOPIC_ID, PlantedCluster, acked_line

LINES = TopicPartition("lines", 0)
Kept = tuple[bytes | None, bytes | None, int, tuple[Header, ...]]
"""Key, value, timestamp, headers."""
RECORDS: list[Kept] = [
    (b"k", b"a", START_MS, (("h", b"1"),)),
    (None, b"b", START_MS + 1, ()),
    (b"k", None, START_MS + 2, ()),
    (b"", b"", START_MS + 3, (("h", None), ("h", b""))),
    (b"k", b"e", START_MS + 4, ()),
    (b"k", b"f", START_MS + 5, ()),
]


def log(records: list[Kept]) -> list[bytes]:
    """Batches of two records each."""
    return [
        bytes(build_batch(records[at : at + 2], base_offset=at, leader_epoch=0)) for at in range(0, len(records), 2)
    ]


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, log(RECORDS))
    return cluster


def promised(
    cluster: PlantedCluster,
    records: list[Kept] | None = None,
    *,
    topic_id: str = TOPIC_ID,
    acks: str = "all",
    finish: bool = True,
) -> Path:
    """The list as a producer writes it."""
    parts: list[bytes] = []
    writer = AckedListWriter(parts.append, {"lines": topic_id}, acks)
    kept = enumerate(RECORDS if records is None else records)
    writer.add("lines", 0, [(n, record_checksum(at, key, value, headers)) for n, (key, value, at, headers) in kept])
    if finish:
        writer.finish()
    file = cluster.root / "acked.list"
    file.write_bytes(b"".join(parts))
    return file


def audited_partition(cluster: PlantedCluster, acked: Path) -> PartitionResult:
    (result,) = compare_locally(discover([str(cluster.root)]), str(acked), with_values=True)
    return result


def list_findings(acked: Path) -> list[Finding]:
    return check_list(open_acked(str(acked)))


def test_every_record_of_a_whole_list_is_in_place(cluster: PlantedCluster) -> None:
    acked = promised(cluster)
    result = audited_partition(cluster, acked)
    assert (result.acked_records, result.acked_in_place, result.findings, list_findings(acked)) == (6, 6, (), [])
    report = run_audit([str(cluster.root)], "local", str(acked))
    assert (report.outcome, report.exit_code) == (AuditOutcome.CONSISTENT, 0)


CHANGES: dict[str, Callable[[Kept], Kept]] = {
    "another_key": (lambda kept: (b"other", *kept[1:])),
    "an_empty_key_for_none": (lambda kept: (b"", *kept[1:])),
    "another_value": (lambda kept: (kept[0], b"other", *kept[2:])),
    "another_time": (lambda kept: (*kept[:2], kept[2] + 1, kept[3])),
    "another_header": (lambda kept: (*kept[:3], (("h", b"2"),))),
    "no_header": (lambda kept: (*kept[:3], (("h", None),))),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_record_rewritten_on_all_replicas_is_reported(
    cluster: PlantedCluster, change: Callable[[Kept], Kept]
) -> None:
    acked = promised(cluster)
    cluster.write(LINES, log([RECORDS[0], change(RECORDS[1]), *RECORDS[2:]]))
    found = audited_partition(cluster, acked).findings
    assert [(item.kind, item.broker, item.offset) for item in found] == [(Kind.ACKED_CHANGED, n, 1) for n in (1, 2, 3)]


def test_the_checksum_depends_on_the_borders_of_a_records_fields() -> None:
    """No two of them share a checksum, although their concatenated bytes are equal."""
    records = [
        (b"ab", b"c", ()),
        (b"a", b"bc", ()),
        (None, b"abc", ()),
        (b"abc", None, ()),
        (b"", b"abc", ()),
        (b"ab", b"", (("c", None),)),
        (b"ab", b"", (("c", b""),)),
        (b"ab", b"", (("", b"c"),)),
    ]
    assert len({record_checksum(1, *record) for record in records}) == len(records)


def test_a_list_without_trailer_is_unproven_and_its_records_are_checked(cluster: PlantedCluster) -> None:
    acked = promised(cluster, finish=False)
    report = run_audit([str(cluster.root)], "local", str(acked))
    assert (report.outcome, report.exit_code) == (AuditOutcome.UNPROVEN, 10)
    assert report.statistics.acked_in_place == 6
    (found,) = report.findings
    assert (found.kind, found.file) == (Kind.UNPROVEN, str(acked)) and "has no end" in found.message


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_list_cut_anywhere_never_counts_as_complete(cluster: PlantedCluster, cut: int) -> None:
    acked = promised(cluster)
    acked.write_bytes(acked.read_bytes()[:-cut])
    assert [item.kind for item in list_findings(acked)] == [Kind.UNPROVEN]
    records = sum(len(chunk.offsets) // 8 for task in plan_acked(str(acked)) for chunk in read_acked(task))
    assert 3 <= records <= 6


def test_a_list_with_a_missing_line_stops_the_audit(cluster: PlantedCluster) -> None:
    acked = promised(cluster)
    lines = acked.read_bytes().splitlines(keepends=True)
    acked.write_bytes(b"".join(lines[:4] + lines[5:]))
    with pytest.raises(AuditError, match=r"its last line counts 6 records .*, it holds 5"):
        run_audit([str(cluster.root)], "local", str(acked))


def test_a_list_with_a_changed_byte_stops_the_audit(cluster: PlantedCluster) -> None:
    acked = promised(cluster)
    content = acked.read_bytes()
    acked.write_bytes(content.replace(b"\t1\t", b"\t7\t"))
    with pytest.raises(AuditError, match="was changed or damaged"):
        list_findings(acked)


def test_an_unknown_header_is_rejected(cluster: PlantedCluster) -> None:
    acked = promised(cluster)
    acked.write_bytes(acked.read_bytes().replace(b"#minibroker-acked 2", b"#minibroker-acked 3"))
    with pytest.raises(AuditError, match="it is of version 3; this audit reads 1 and 2"):
        open_acked(str(acked))


@pytest.mark.parametrize("content", [b"", b"#minibroker-acked 2 acks=all\n#end 0 %08x\n"])
def test_an_empty_list_is_unproven(cluster: PlantedCluster, content: bytes) -> None:
    from minibroker.protocol.checksum import crc32c

    acked = cluster.root / "empty"
    head = b"#minibroker-acked 2 acks=all\n"
    acked.write_bytes(content % crc32c(head) if content else b"")
    report = run_audit([str(cluster.root)], "local", str(acked))
    assert (report.outcome, report.exit_code) == (AuditOutcome.UNPROVEN, 10)
    assert [item.message for item in report.findings] == ["the list of acknowledged records is empty"]


def test_a_list_of_a_former_topic_is_unproven_and_not_a_loss(cluster: PlantedCluster) -> None:
    acked = promised(cluster, [*RECORDS, *RECORDS], topic_id="former")
    result = audited_partition(cluster, acked)
    assert [item.kind for item in result.findings] == [Kind.UNPROVEN]
    assert "topic id former, the logs of topic-id" in result.findings[0].message
    assert result.verdict is PartitionVerdict.UNPROVEN


def test_a_lost_record_acknowledged_with_acks_1_is_a_note(cluster: PlantedCluster) -> None:
    acked = promised(cluster, [*RECORDS, RECORDS[0]], acks="1")
    result = audited_partition(cluster, acked)
    assert {(item.kind, item.severity) for item in result.findings} == {(Kind.ACKED_ALLOWED_LOSS, Severity.NOTE)}
    assert result.findings[-1].message.endswith("(acknowledged with acks=1: no promise is broken)")
    assert [item.kind for item in list_findings(acked)] == [Kind.ACKED_ALLOWED_LOSS]


@pytest.mark.parametrize("range_bytes", [16, 30, 57, 400])
def test_ranges_find_each_record_once(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch, range_bytes: int
) -> None:
    monkeypatch.setattr("minibroker.audit.reading.acked_file.RANGE_BYTES", range_bytes)
    acked = promised(cluster)
    assert list_findings(acked) == []
    result = audited_partition(cluster, acked)
    assert (result.acked_records, result.acked_in_place, result.findings) == (6, 6, ())


def test_lists_of_version_1_are_still_read_and_cover_values(cluster: PlantedCluster) -> None:
    acked = cluster.root / "acked.tsv"
    acked.write_text("".join(acked_line(LINES, n, value) for n, (_, value, _, _) in enumerate(RECORDS)))
    assert list_findings(acked) == []
    result = audited_partition(cluster, acked)
    assert (result.acked_records, result.acked_in_place, result.findings) == (6, 6, ())
    assert plan_acked(str(acked))[0] == AckedTask(path=str(acked), start=0, end=acked.stat().st_size)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lines\t9999999999\t5\t-\n", "partition 9999999999 is beyond 2147483647"),
        ("lines\t0\t9223372036854775807\t-\n", "offset 9223372036854775807 is beyond 9223372036854775806"),
        ("lines\t0\t9999999999999999999\t-\n", "offset 9999999999999999999 is beyond 9223372036854775806"),
    ],
)
def test_a_number_that_no_record_has_stops_the_audit(cluster: PlantedCluster, line: str, message: str) -> None:
    """It fits in no column of the report, and the audit ended with pyarrow's own error once all was read."""
    file = cluster.root / "numbers.tsv"
    file.write_text(line)
    with pytest.raises(AuditError, match=message):
        run_audit([str(cluster.root)], "local", acked=str(file), output=str(cluster.root / "report"))


def test_a_list_that_cannot_be_read_to_its_end_stops_the_audit(cluster: PlantedCluster) -> None:
    """It is gone since its beginning was read, or the disk refuses a sector: Python's own error ended the audit."""
    acked = open_acked(str(promised(cluster)))
    (task,) = plan_acked(acked.path)
    os.unlink(acked.path)
    with pytest.raises(AuditError, match="cannot be read: No such file"):
        check_list(acked)
    with pytest.raises(AuditError, match="cannot be read: No such file"):
        read_acked(task)
