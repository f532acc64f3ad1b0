"""Acknowledged records: in place, changed, missing, trimmed; and the list that names them."""

from array import array
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibroker.audit.checks.acknowledged import sorted_acked
from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, Severity
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading import acked_file
from minibroker.audit.reading.acked_file import AckedTask, plan_acked, read_acked
from minibroker.audit.reading.discovery import discover
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition
from tests.audit import damage
from tests.audit.damage import BATCHES, BROKER, ENCODED
from tests.audit.planted_cluster import PlantedCluster, acked_line, encode

LINES = TopicPartition("lines", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path, clean=False)
    cluster.write(LINES, ENCODED)
    return cluster


def audited_partition(cluster: PlantedCluster, acked: Path) -> PartitionResult:
    return compare_locally(discover([str(cluster.root)]), str(acked), with_values=True)[0]


def acked_errors(result: PartitionResult) -> list[Finding]:
    return [item for item in result.findings if item.kind in (Kind.ACKED_MISSING, Kind.ACKED_CHANGED, Kind.ACKED_TWICE)]


def forge(cluster: PlantedCluster, broker: int, first: int, end: int) -> None:
    """Other values at the same offsets, in batches that are valid in themselves."""
    forged = [(epoch, list(values)) for epoch, values in BATCHES]
    for index in range(first, end):
        forged[index] = (forged[index][0], [b"forged" + (value or b"")[6:] for value in forged[index][1]])
    cluster.write(LINES, encode(forged), brokers=[broker])


@pytest.mark.invariant("I21")
def test_every_acknowledged_record_is_found_in_place(cluster: PlantedCluster) -> None:
    result = audited_partition(cluster, cluster.write_acked(LINES, BATCHES))
    assert (result.acked_records, result.acked_in_place) == (24, 24)
    assert result.findings == ()


@pytest.mark.invariant("I21")
def test_a_changed_record_is_named_on_its_broker(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    forge(cluster, BROKER, 2, 3)
    (item,) = acked_errors(audited_partition(cluster, acked))
    assert (item.kind, item.broker, item.offset, item.end_offset) == (Kind.ACKED_CHANGED, BROKER, 3, 6)
    assert item.file is not None and item.file.endswith("broker-2/lines-0/00000000000000000000.log")
    assert item.position == sum(map(len, ENCODED[:2]))


def test_a_record_changed_on_all_replicas_is_found(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    for broker in cluster.brokers:
        forge(cluster, broker, 2, 3)
    result = audited_partition(cluster, acked)
    assert [(item.kind, item.broker) for item in result.findings] == [(Kind.ACKED_CHANGED, n) for n in (1, 2, 3)]
    assert result.acked_in_place == 21


@pytest.mark.parametrize("brokers", [(2,), (2, 3)])
def test_a_broker_that_lost_power_may_lack_unsynced_records(cluster: PlantedCluster, brokers: tuple[int, ...]) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    for broker in brokers:
        cluster.replica(broker, LINES).write(ENCODED[:8])
    cluster.lose_power(*brokers)
    result = audited_partition(cluster, acked)
    assert (acked_errors(result), result.acked_in_place) == ([], 24)


def diverged(cluster: PlantedCluster) -> None:
    """Broker 2 wrote the last batch alone and was then deposed; another leader wrote other records there."""
    cluster.write(LINES, [*ENCODED[:10], *encode([(1, [b"never", b"committed"])], 19)], brokers=[BROKER])
    cluster.set_high_watermark(BROKER, LINES, 19)
    cluster.write_state(LINES, 1, 2, [1, 3])


def test_the_tail_of_a_deposed_leader_is_not_a_changed_record(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    diverged(cluster)
    result = audited_partition(cluster, acked)
    assert (acked_errors(result), result.acked_in_place) == ([], 24)


def test_other_records_of_an_in_sync_replica_are_not_a_tail(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    diverged(cluster)
    cluster.write_state(LINES, 1, 2, [1, 2, 3])
    found = {(item.kind, item.broker, item.offset) for item in acked_errors(audited_partition(cluster, acked))}
    assert (Kind.ACKED_CHANGED, BROKER, 19) in found


def test_records_lost_on_all_replicas_by_a_power_cut_are_missing(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    for broker in cluster.brokers:
        cluster.replica(broker, LINES).write(ENCODED[:8])
    cluster.lose_power()
    (item,) = acked_errors(audited_partition(cluster, acked))
    assert (item.kind, item.broker, item.offset) == (Kind.ACKED_MISSING, None, 15)
    assert "on 0 of 3 replicas" in item.message


def test_a_record_in_a_hole_of_one_replica_is_missing_there(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    expected = damage.flip_bit(cluster.replica(BROKER, LINES))
    (item,) = acked_errors(audited_partition(cluster, acked))
    assert (item.kind, item.broker, item.offset) == (Kind.ACKED_MISSING, BROKER, expected.offset)


def test_a_record_beyond_the_end_of_a_lagging_replica_is_fine(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    cluster.write(LINES, ENCODED[:3], brokers=[BROKER])
    cluster.write_state(LINES, leader=1, leader_epoch=2, isr=[1, 3])
    result = audited_partition(cluster, acked)
    assert acked_errors(result) == []
    assert result.acked_in_place == 24


def test_a_record_beyond_the_end_of_an_isr_member_is_missing_there(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    cluster.write(LINES, ENCODED[:3], brokers=[BROKER])
    cluster.write_state(LINES, leader=1, leader_epoch=2, isr=[1, 2])
    (item,) = acked_errors(audited_partition(cluster, acked))
    assert (item.kind, item.broker, item.offset, item.end_offset) == (Kind.ACKED_MISSING, BROKER, 6, 24)


def test_a_record_on_one_of_three_replicas_is_on_too_few(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    cluster.write(LINES, ENCODED[:3], brokers=[1, 2])
    cluster.write_state(LINES, leader=3, leader_epoch=2, isr=[3])
    (item,) = acked_errors(audited_partition(cluster, acked))
    assert (item.kind, item.broker, item.offset, item.end_offset) == (Kind.ACKED_MISSING, None, 6, 24)
    assert "on 1 of 3 replicas" in item.message


def trim_the_survivor(cluster: PlantedCluster, reason: LogStartReason) -> Path:
    """Broker 3 was alone in sync, and its log now begins at offset 12; the others end at offset 6."""
    acked = cluster.write_acked(LINES, BATCHES)
    cluster.write(LINES, ENCODED[:3], brokers=[1, 2])
    cluster.write(LINES, ENCODED[6:], brokers=[3], base_offset=12)
    cluster.replica(3, LINES).write_log_start(12, reason=reason)
    cluster.write_state(LINES, leader=3, leader_epoch=2, isr=[3])
    return acked


@pytest.mark.parametrize("reason", [LogStartReason.RETENTION, LogStartReason.TRIM, LogStartReason.COPIED])
def test_records_trimmed_by_the_survivor_while_others_were_down_are_no_loss(
    cluster: PlantedCluster, reason: LogStartReason
) -> None:
    result = audited_partition(cluster, trim_the_survivor(cluster, reason))
    (item,) = [item for item in result.findings if item.kind is Kind.ACKED_TRIMMED]
    assert (item.offset, item.end_offset) == (6, 12)
    assert f"the log of broker 3 begins at offset 12 ({reason}), no other replica reaches that far" in item.message
    # The records behind its start were not on two replicas either, without an explanation.
    assert [(item.offset, item.end_offset) for item in acked_errors(result)] == [(12, 24)]


def test_a_log_that_started_from_scratch_explains_no_missing_record(cluster: PlantedCluster) -> None:
    result = audited_partition(cluster, trim_the_survivor(cluster, LogStartReason.RESET))
    assert [(item.offset, item.end_offset) for item in acked_errors(result)] == [(6, 12), (12, 24)]


def test_the_start_of_a_log_that_was_out_of_sync_explains_no_missing_record(cluster: PlantedCluster) -> None:
    acked = trim_the_survivor(cluster, LogStartReason.RETENTION)
    cluster.write_state(LINES, leader=1, leader_epoch=2, isr=[1, 2])
    assert (6, 24) in [(item.offset, item.end_offset) for item in acked_errors(audited_partition(cluster, acked))]


def test_a_record_beyond_every_log_is_missing(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, [*BATCHES, (2, [b"lost"])])
    found = acked_errors(audited_partition(cluster, acked))
    assert {(item.kind, item.offset, item.end_offset) for item in found} == {(Kind.ACKED_MISSING, 24, 25)}
    assert [item.broker for item in found] == [1, 2, 3]


def test_all_records_of_a_partition_without_replicas_are_missing(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(TopicPartition("gone", 3), BATCHES[:2])
    result = audited_partition(cluster, acked)
    assert (result.topic, result.partition, result.acked_records, result.acked_in_place) == ("gone", 3, 3, 0)
    (item,) = acked_errors(result)
    assert (item.kind, item.offset, item.end_offset) == (Kind.ACKED_MISSING, 0, 3)


def test_one_copy_is_enough_where_there_is_one_replica(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path, brokers=[1])
    cluster.write(LINES, ENCODED)
    assert audited_partition(cluster, cluster.write_acked(LINES, BATCHES)).acked_in_place == 24


def test_records_below_every_log_start_are_trimmed_not_missing(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    for broker in cluster.brokers:
        cluster.replica(broker, LINES).write_log_start(9)
    result = audited_partition(cluster, acked)
    assert [(item.kind, item.severity, item.end_offset) for item in result.findings] == [
        (Kind.ACKED_TRIMMED, Severity.NOTE, 9)
    ]
    assert result.acked_in_place == 15


def test_a_null_value_is_not_an_empty_one(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, encode([(0, [None, b""])]))
    file = tmp_path / "acked.tsv"
    file.write_text(acked_line(LINES, 0, None) + acked_line(LINES, 1, b""))
    assert audited_partition(cluster, file).acked_in_place == 2
    file.write_text(acked_line(LINES, 0, b"") + acked_line(LINES, 1, None))
    assert {item.kind for item in acked_errors(audited_partition(cluster, file))} == {Kind.ACKED_CHANGED}


def test_two_values_acknowledged_at_one_offset_are_found(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    with acked.open("a") as lines:
        lines.write(acked_line(LINES, 5, b"another"))
        lines.write(acked_line(LINES, 7, BATCHES[4][1][0]))
    kinds = {(item.kind, item.offset) for item in acked_errors(audited_partition(cluster, acked))}
    assert (Kind.ACKED_TWICE, 5) in kinds
    assert (Kind.ACKED_TWICE, 7) not in kinds, "a repeated acknowledgement counts once"


def test_sparse_and_unordered_lists_give_the_same_result(cluster: PlantedCluster) -> None:
    acked = cluster.write_acked(LINES, BATCHES)
    lines = acked.read_text().splitlines(keepends=True)
    acked.write_text("".join(lines[::-2]))
    forge(cluster, BROKER, 7, 8)
    result = audited_partition(cluster, acked)
    assert result.acked_records == 12
    assert {(item.kind, item.broker) for item in acked_errors(result)} == {(Kind.ACKED_CHANGED, BROKER)}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3)), max_size=20))
def test_sorting_keeps_one_of_each_offset_and_names_conflicts(pairs: list[tuple[int, int]]) -> None:
    acked, others = sorted_acked(array("q", [o for o, _ in pairs]), array("q", [c for _, c in pairs]))
    by_offset: dict[int, set[int]] = {}
    for offset, crc in pairs:
        by_offset.setdefault(offset, set()).add(crc)
    assert list(acked.offsets) == sorted(by_offset)
    assert all(crc in by_offset[offset] for offset, crc in zip(acked.offsets, acked.crcs, strict=True))
    assert list(others.offsets) == sorted(offset for offset, crcs in by_offset.items() if len(crcs) > 1)
    kept = dict(zip(acked.offsets, acked.crcs, strict=True))
    assert all(crc in by_offset[at] - {kept[at]} for at, crc in zip(others.offsets, others.crcs, strict=True))


@pytest.mark.parametrize("other", [b"one", b"other"], ids=["smaller checksum", "larger checksum"])
def test_of_two_records_acknowledged_at_one_offset_the_missing_one_is_named(
    cluster: PlantedCluster, other: bytes
) -> None:
    """Whichever of them has the larger checksum."""
    cluster.write_acked(LINES, BATCHES)
    acked = cluster.write_acked(LINES, [(0, [other])])
    result = audited_partition(cluster, acked)
    assert (result.acked_records, result.acked_in_place) == (25, 24)
    found = [(item.kind, item.broker, item.offset) for item in acked_errors(result)]
    assert sorted(found, key=str) == sorted(
        [*((Kind.ACKED_CHANGED, broker, 0) for broker in (1, 2, 3)), (Kind.ACKED_TWICE, None, 0)], key=str
    )


# the list


@given(
    records=st.lists(
        st.tuples(st.sampled_from(["a", "b-c"]), st.integers(0, 2), st.integers(0, 2**63 - 2)), max_size=9
    ),
    range_bytes=st.integers(1, 60),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges_of_the_list_hold_every_line_once(
    tmp_path: Path, records: list[tuple[str, int, int]], range_bytes: int
) -> None:
    file = tmp_path / "acked.tsv"
    file.write_text("".join(f"{topic}\t{partition}\t{offset}\t0000002a\n" for topic, partition, offset in records))
    size = file.stat().st_size
    tasks = [
        AckedTask(path=str(file), start=start, end=min(start + range_bytes, size))
        for start in range(0, size, range_bytes)
    ]
    found = []
    for chunk in (chunk for task in tasks for chunk in read_acked(task)):
        offsets, crcs = array("q", chunk.offsets), array("q", chunk.crcs)
        assert set(crcs) == {42}
        found += [(chunk.topic, chunk.partition, offset) for offset in offsets]
    assert sorted(found) == sorted(records)


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"lines 0 1 0000002a\n",
        b"lines\t0\t1\t42\n",
        b"lines\t0\t1\t0000002A\n",
        b"lines\t0\t-1\t0000002a\n",
        b"lines\t0\t9223372036854775808\t0000002a\n",
        b"lines\t0\t1\t0000002a\r\n",
        b"lines\t0\t1\t0000002a",
        b"li nes\t0\t1\t0000002a\n",
        b"x" * 600 + b"\n",
    ],
)
def test_a_malformed_line_stops_the_audit_and_is_named(tmp_path: Path, line: bytes) -> None:
    file = tmp_path / "acked.tsv"
    file.write_bytes(b"lines\t0\t0\t0000002a\n" + line)
    (task,) = plan_acked(str(file))
    with pytest.raises(AuditError, match=r"acked\.tsv.*(byte 19|9223372036854775808)"):
        read_acked(task)


def test_a_missing_list_stops_the_audit(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="cannot be read"):
        plan_acked(str(tmp_path / "nowhere"))


def test_an_empty_list_has_no_ranges(tmp_path: Path) -> None:
    file = tmp_path / "acked.tsv"
    file.touch()
    assert plan_acked(str(file)) == []
    assert acked_file.RANGE_BYTES > acked_file.LINE_BYTES_MAX
