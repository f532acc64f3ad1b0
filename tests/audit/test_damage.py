"""Planted damage is found and named with broker, topic-partition, offset, file and position."""

import os
import struct
from pathlib import Path

import pytest

from minibroker.audit.checks.findings import Finding, Kind, PartitionResult, PartitionVerdict, Severity
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.discovery import discover
from minibroker.audit.reports.report import AuditOutcome
from minibroker.audit.run import run_audit
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from tests.audit import damage
from tests.audit.damage import BATCHES, BROKER, ENCODED, Damage
from tests.audit.planted_cluster import PlantedCluster, encode
from tests.undecodable import undecodable

LINES = TopicPartition("lines", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, ENCODED)
    return cluster


def audited_partition(cluster: PlantedCluster, acked: Path | None = None) -> PartitionResult:
    inventory = discover([str(cluster.root)])
    (result,) = compare_locally(inventory, None if acked is None else str(acked), with_values=acked is not None)
    return result


def errors(result: PartitionResult) -> list[Finding]:
    return [item for item in result.findings if item.severity is Severity.ERROR]


def test_an_undamaged_cluster_is_identical_and_completely_compared(cluster: PlantedCluster) -> None:
    result = audited_partition(cluster)
    assert result.findings == ()
    assert result.verdict is PartitionVerdict.IDENTICAL
    assert result.compared_offsets == result.total_offsets == 24


@pytest.mark.invariant("I12", "I13", "I16", "I17", "I20")
@pytest.mark.parametrize("plant", damage.ALL, ids=lambda plant: plant.__name__)
def test_damage_is_found_and_named(cluster: PlantedCluster, plant: Damage) -> None:
    expected = plant(cluster.replica(BROKER, LINES))
    result = audited_partition(cluster)
    assert result.verdict is PartitionVerdict.INCONSISTENT
    found = [item for item in errors(result) if item.kind is expected.kind]
    places = [
        (item.offset, None if item.file is None else Path(item.file).name, item.position)
        for item in found
        if (item.broker, item.topic, item.partition) == (BROKER, "lines", 0)
    ]
    assert (expected.offset, expected.file, expected.position) in places, errors(result)


@pytest.mark.parametrize("plant", damage.ALL, ids=lambda plant: plant.__name__)
def test_only_the_damaged_replica_is_blamed(cluster: PlantedCluster, plant: Damage) -> None:
    plant(cluster.replica(BROKER, LINES))
    assert {item.broker for item in errors(audited_partition(cluster))} == {BROKER}


@pytest.mark.parametrize("plant", damage.ALL, ids=lambda plant: plant.__name__)
def test_damage_is_found_next_to_sound_partitions(cluster: PlantedCluster, plant: Damage) -> None:
    other = TopicPartition("lines", 1)
    cluster.write(other, ENCODED)
    plant(cluster.replica(BROKER, LINES))
    results = compare_locally(discover([str(cluster.root)]), None, with_values=False)
    assert [result.verdict for result in results] == [PartitionVerdict.INCONSISTENT, PartitionVerdict.IDENTICAL]


def test_a_corrupt_batch_is_reported_with_the_lost_offsets(cluster: PlantedCluster) -> None:
    damage.flip_bit(cluster.replica(BROKER, LINES))
    (item,) = errors(audited_partition(cluster))
    assert item.kind is Kind.CORRUPT_BATCH
    assert item.offset is not None and item.end_offset is not None and item.end_offset > item.offset
    assert "are lost" in item.message


def test_offsets_that_a_replica_lost_do_not_count_as_compared(cluster: PlantedCluster) -> None:
    for broker in (2, 3):
        damage_of = cluster.replica(broker, LINES)
        segment, positions, _ = damage.second(damage_of)
        damage_of.patch(segment, positions[1] + 70, b"\xff\xff\xff")
    result = audited_partition(cluster)
    assert result.compared_offsets == result.total_offsets - 1, "the batch of one record is complete on one broker only"


# findings that an unclean stop explains


@pytest.fixture
def killed(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path, clean=False)
    cluster.write(LINES, ENCODED, high_watermark=10)
    return cluster


def test_a_torn_tail_after_a_crash_is_a_note(killed: PlantedCluster) -> None:
    killed.replica(BROKER, LINES).rewrite(lambda batches: [*batches[:-1], batches[-1][:-5]])
    result = audited_partition(killed)
    assert [(item.kind, item.severity) for item in result.findings if item.kind is Kind.TORN_TAIL] == [
        (Kind.TORN_TAIL, Severity.NOTE)
    ]
    assert errors(result) == []
    assert result.verdict is PartitionVerdict.LAGGING


def test_an_unreadable_segment_is_an_error_even_after_a_crash(
    killed: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its content is unknown: no start of the broker truncates it."""
    unreadable = str(sorted(killed.replica(BROKER, LINES).directory.glob("*.log"))[-1])
    open_really = os.open

    def open_or_fail(path: str, *args: int, **more: int) -> int:
        if str(path) == unreadable:
            raise PermissionError(13, "Permission denied")
        return open_really(path, *args, **more)

    monkeypatch.setattr(os, "open", open_or_fail)
    found = [item for item in errors(audited_partition(killed)) if item.kind is Kind.CORRUPT_BATCH]
    assert [(item.broker, item.file) for item in found] == [(BROKER, unreadable)]
    assert "cannot be read: Permission denied" in found[0].message


def test_a_torn_tail_below_the_recovery_point_is_an_error(killed: PlantedCluster) -> None:
    file = killed.log_directory(BROKER) / checkpoints.RECOVERY_POINT_CHECKPOINT
    file.write_bytes(checkpoints.format_offset_checkpoint({LINES: 24}))
    killed.replica(BROKER, LINES).rewrite(lambda batches: [*batches[:-1], batches[-1][:-5]])
    assert Kind.TORN_TAIL in {item.kind for item in errors(audited_partition(killed))}


def test_a_log_ending_below_its_high_watermark_is_an_error_even_after_a_crash(killed: PlantedCluster) -> None:
    killed.set_high_watermark(BROKER, LINES, 24)
    damage.cut_tail(killed.replica(BROKER, LINES))
    assert {item.kind for item in errors(audited_partition(killed))} == {Kind.MISSING_RANGE}


def test_an_epoch_history_behind_a_killed_brokers_log_is_a_note(killed: PlantedCluster) -> None:
    killed.replica(BROKER, LINES).write_epochs([(0, 0), (1, 9)])
    result = audited_partition(killed)
    assert [item.kind for item in result.findings] == [Kind.EPOCH_CHECKPOINT_BEHIND]


def test_an_index_ahead_of_a_killed_brokers_log_is_fine(killed: PlantedCluster) -> None:
    replica = killed.replica(BROKER, LINES)
    replica.rewrite(lambda batches: batches[:-1])
    assert errors(audited_partition(killed)) == []


@pytest.mark.parametrize("segment_number", [0, -1])
def test_an_index_of_truncated_batches_is_a_note_in_the_last_segment_only(
    killed: PlantedCluster, segment_number: int
) -> None:
    """The log was truncated and has grown again: some entries of the index file point at no batch."""
    replica = killed.replica(BROKER, LINES)
    file = replica.file(replica.segments[segment_number], ".index")
    content = bytearray(file.read_bytes())
    content[7] ^= 1
    file.write_bytes(content)
    severity = Severity.ERROR if segment_number == 0 else Severity.NOTE
    assert [(item.kind, item.severity) for item in audited_partition(killed).findings] == [
        (Kind.INDEX_DAMAGE, severity)
    ]


# small files


def test_empty_epochs_are_legal_on_the_leader_that_had_them(cluster: PlantedCluster) -> None:
    cluster.replica(BROKER, LINES).write_epochs([(0, 0), (1, 9), (2, 19), (7, 24)])
    assert audited_partition(cluster).findings == ()


def test_a_malformed_high_watermark_checkpoint_is_named_and_proves_nothing(cluster: PlantedCluster) -> None:
    for broker in (1, 2, 3):
        file = cluster.log_directory(broker) / checkpoints.HIGH_WATERMARK_CHECKPOINT
        file.write_bytes(b"0\n9\n")
    report = run_audit([str(cluster.root)], "local")
    kinds = {(item.kind, item.broker) for item in report.findings}
    assert kinds == {(Kind.UNPROVEN, None), *((Kind.CHECKPOINT_DAMAGE, broker) for broker in (1, 2, 3))}
    assert report.exit_code == 10


def test_a_missing_index_is_a_note(cluster: PlantedCluster) -> None:
    replica = cluster.replica(BROKER, LINES)
    replica.file(replica.segments[1], ".index").unlink()
    result = audited_partition(cluster)
    assert [item.kind for item in result.findings] == [Kind.INDEX_MISSING]
    assert result.verdict is PartitionVerdict.IDENTICAL


def trim(cluster: PlantedCluster, broker: int) -> None:
    """As retention does."""
    replica = cluster.replica(broker, LINES)
    replica.file(replica.segments[0]).unlink()
    replica.write_epochs([(1, 9), (2, 19)])
    replica.write_log_start(9)


def test_a_log_trimmed_by_retention_is_a_note(cluster: PlantedCluster) -> None:
    """The others have recorded the new start but not deleted yet."""
    trim(cluster, BROKER)
    for broker in (1, 3):
        cluster.replica(broker, LINES).write_log_start(9)
    assert audited_partition(cluster).findings == ()


def test_a_trimmed_replica_next_to_an_out_of_sync_one_is_a_note(cluster: PlantedCluster) -> None:
    for broker in (1, 2):
        trim(cluster, broker)
    cluster.write_state(LINES, 1, 2, [1, 2])
    result = audited_partition(cluster)
    assert [item.kind for item in result.findings] == [Kind.LOG_START_DIFFERS, Kind.LOG_START_DIFFERS]
    assert result.compared_offsets == 15


@pytest.mark.invariant("I39")
@pytest.mark.parametrize("brokers", [(1,), (2,), (2, 3)])
def test_a_head_that_other_in_sync_replicas_still_have_was_not_trimmed(
    cluster: PlantedCluster, brokers: tuple[int, ...]
) -> None:
    """Files are deleted only in front of the smallest start that the in-sync replicas have recorded."""
    for broker in brokers:
        trim(cluster, broker)
    found = errors(audited_partition(cluster))
    assert [(item.kind, item.broker, item.offset, item.end_offset) for item in found] == [
        (Kind.MISSING_RANGE, broker, 0, 9) for broker in brokers
    ]


@pytest.mark.invariant("I39")
@pytest.mark.parametrize("recorded", [0, 4, None])
def test_a_log_that_begins_behind_its_recorded_start_lacks_its_head(
    cluster: PlantedCluster, recorded: int | None
) -> None:
    replica = cluster.replica(BROKER, LINES)
    replica.file(replica.segments[0]).unlink()
    replica.write_epochs([(1, 9), (2, 19)])
    file = replica.write_log_start(recorded or 0)
    if recorded is None:
        file.unlink()
    (found,) = [item for item in audited_partition(cluster).findings if item.kind is Kind.MISSING_RANGE]
    assert (found.broker, found.offset, found.end_offset) == (BROKER, recorded or 0, 9)


@pytest.mark.invariant("I14")
@pytest.mark.parametrize("brokers", [(BROKER,), (1, 2, 3)])
def test_a_log_start_above_an_exact_high_watermark_is_named(cluster: PlantedCluster, brokers: tuple[int, ...]) -> None:
    """Retention deletes what is committed. The start hid all records between the two, and nothing was compared."""
    for broker in cluster.brokers:
        cluster.set_high_watermark(broker, LINES, 9)
    for broker in brokers:
        cluster.replica(broker, LINES).write_log_start(19)
    found = errors(audited_partition(cluster))
    assert [(item.kind, item.broker, item.offset) for item in found] == [
        (Kind.CHECKPOINT_DAMAGE, broker, 19) for broker in brokers
    ]
    cluster.stop_cleanly(False)  # the checkpoint may be some seconds behind the log start
    assert Kind.CHECKPOINT_DAMAGE not in {item.kind for item in errors(audited_partition(cluster))}


def test_a_log_start_of_another_topic_is_named(cluster: PlantedCluster) -> None:
    file = cluster.replica(BROKER, LINES).write_log_start(0, "other")
    (found,) = audited_partition(cluster).findings
    assert (found.kind, found.file) == (Kind.CHECKPOINT_DAMAGE, str(file))


def test_the_directory_of_another_partition_is_named_and_not_compared(cluster: PlantedCluster) -> None:
    """Its batches may fit the name and the history: only the files that name the partition show the error."""
    replica = cluster.replica(BROKER, LINES)
    damage.change_record(cluster.replica(BROKER, LINES))
    files = [replica.write_metadata(partition=7), replica.write_log_start(0, partition=7)]
    result = audited_partition(cluster)
    found = sorted((item.kind, item.file) for item in errors(result))
    assert found == sorted((Kind.FOREIGN_FILE, str(file)) for file in files)
    assert "not compared" in result.findings[0].message


def test_a_log_start_of_another_partition_is_named(cluster: PlantedCluster) -> None:
    file = cluster.replica(BROKER, LINES).write_log_start(0, partition=7)
    (found,) = errors(audited_partition(cluster))
    assert (found.kind, found.file) == (Kind.FOREIGN_FILE, str(file))


def test_a_log_start_inside_a_segment_is_used(cluster: PlantedCluster) -> None:
    cluster.replica(BROKER, LINES).write_log_start(4)
    cluster.replica(BROKER, LINES).write_epochs([(0, 4), (1, 9), (2, 19)])
    assert [item.kind for item in audited_partition(cluster).findings] == [Kind.LOG_START_DIFFERS]


def test_a_value_that_contains_a_whole_batch_gives_no_finding(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path)
    cluster.write(LINES, encode([(0, [b"a"]), (0, [ENCODED[0] * 3]), (0, [b"b"])]))
    assert audited_partition(cluster).verdict is PartitionVerdict.IDENTICAL


def test_undecodable_records_have_their_own_verdict(tmp_path: Path) -> None:
    """All replicas hold what the producer sent: they are consistent, but the operator must know."""
    cluster = PlantedCluster(tmp_path)
    batches = encode([(0, [b"a"]), (0, [b"b", b"c"]), (0, [b"d"])])
    cluster.write(LINES, [batches[0], bytes(undecodable(batches[1])), batches[2]])
    report = run_audit([str(cluster.root)], "local", records=True)
    (result,) = report.partitions
    assert result.verdict is PartitionVerdict.UNDECODABLE
    assert {(item.kind, item.offset) for item in errors(result)} == {(Kind.UNDECODABLE_RECORDS, 1)}
    assert (report.outcome, report.exit_code) == (AuditOutcome.UNDECODABLE, 10)
    assert "records that cannot be decoded" in report.summary


def test_undecodable_records_are_not_allowed_where_what_is_unproven_is(tmp_path: Path) -> None:
    """Without a state file the exit code was 0, though with one it is 10: who knew less was more content."""
    cluster = PlantedCluster(tmp_path)
    batches = encode([(0, [b"a"]), (0, [b"b"])])
    cluster.write(LINES, [batches[0], bytes(undecodable(batches[1]))])
    cluster.forget_state()
    report = run_audit([str(tmp_path)], "local", records=True, allow_unproven=True)
    assert (report.outcome, report.exit_code) == (AuditOutcome.UNPROVEN, 10)
    assert "and there are 3 batches with records that cannot be decoded" in report.summary


def test_an_undecodable_payload_with_a_valid_crc_is_found_where_records_are_read(cluster: PlantedCluster) -> None:
    replica = cluster.replica(BROKER, LINES)
    segment, positions, offsets = damage.second(replica)
    content = bytearray(replica.file(segment).read_bytes()[positions[1] : positions[2]])
    content[62] = 0xC1  # not a msgpack type
    struct.pack_into(">I", content, 17, crc32c(content[21:]))
    replica.patch(segment, positions[1], bytes(content))
    found = audited_partition(cluster, cluster.write_acked(LINES, BATCHES))
    kinds = {item.kind for item in errors(found) if item.offset == offsets[1]}
    assert kinds == {Kind.UNDECODABLE_RECORDS, Kind.DIVERGED_BELOW_HIGH_WATERMARK, Kind.ACKED_CHANGED}
