"""What should be present and is not: each absence is an error, reported with the source that expects it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from minibroker.audit.checks.findings import Finding, Kind, PartitionVerdict, Severity
from minibroker.audit.reports.report import AuditOutcome, AuditReport
from minibroker.audit.run import run_audit
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.cluster_state import CLUSTER_STATE, format_cluster_state
from minibroker.protocol.ids import TopicPartition
from tests.audit.damage import BATCHES, ENCODED
from tests.audit.planted_cluster import TOPIC_ID, PlantedCluster, put

LINES = TopicPartition("lines", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, ENCODED)
    cluster.write_acked(LINES, BATCHES)
    return cluster


def audited(cluster: PlantedCluster, *, acked: bool = False, allow_unproven: bool = False) -> AuditReport:
    file = str(cluster.root / "acked.tsv") if acked else None
    return run_audit([str(cluster.root)], "local", file, allow_unproven=allow_unproven)


def errors(report: AuditReport) -> list[Finding]:
    return [item for item in report.findings if item.severity is Severity.ERROR]


def remove_replica(cluster: PlantedCluster, *brokers: int) -> None:
    for broker in brokers:
        shutil.rmtree(cluster.replica(broker, LINES).directory)


def remove_broker(cluster: PlantedCluster, *brokers: int) -> None:
    for broker in brokers:
        shutil.rmtree(cluster.log_directory(broker))


def copy_broker_1_over_2(cluster: PlantedCluster) -> None:
    remove_broker(cluster, 2)
    shutil.copytree(cluster.log_directory(1), cluster.log_directory(2))


def exchange_meta_properties(cluster: PlantedCluster) -> None:
    one, two = (cluster.log_directory(broker) / checkpoints.META_PROPERTIES for broker in (1, 2))
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)


def link_a_segment(cluster: PlantedCluster) -> None:
    """As a program does that saves space by linking equal files."""
    one, two = (cluster.replica(broker, LINES).file(0) for broker in (1, 2))
    two.unlink()
    two.hardlink_to(one)


def link_the_directory(cluster: PlantedCluster) -> None:
    """As when two brokers' partitions are moved to another disk, both to the same place."""
    one, two = (cluster.replica(broker, LINES).directory for broker in (1, 2))
    remove_replica(cluster, 2)
    two.symlink_to(one)


ABSENCES: list[tuple[Callable[[PlantedCluster], None], Kind]] = [
    (lambda cluster: remove_replica(cluster, 2), Kind.MISSING_REPLICA),
    (lambda cluster: remove_replica(cluster, 2, 3), Kind.MISSING_REPLICA),
    (lambda cluster: remove_replica(cluster, 1, 2, 3), Kind.MISSING_REPLICA),
    (lambda cluster: remove_broker(cluster, 2), Kind.MISSING_BROKER),
    (lambda cluster: remove_broker(cluster, 2, 3), Kind.MISSING_BROKER),
    (copy_broker_1_over_2, Kind.BROKER_TWICE),
    (exchange_meta_properties, Kind.WRONG_DIRECTORY),
    (lambda cluster: cluster.replace_disk(2), Kind.WRONG_DIRECTORY),
    (link_a_segment, Kind.WRONG_DIRECTORY),
    (link_the_directory, Kind.WRONG_DIRECTORY),
]


@pytest.mark.parametrize("acked", [False, True])
@pytest.mark.parametrize("number", range(len(ABSENCES)))
def test_each_absence_is_an_error(cluster: PlantedCluster, number: int, acked: bool) -> None:
    remove, kind = ABSENCES[number]
    remove(cluster)
    report = audited(cluster, acked=acked)
    assert (report.exit_code, report.outcome) == (10, AuditOutcome.INCONSISTENT)
    assert kind in {item.kind for item in errors(report)}
    assert audited(cluster, acked=acked, allow_unproven=True).exit_code == 10


def test_a_missing_replica_is_reported_with_the_source_that_expects_it(cluster: PlantedCluster) -> None:
    remove_replica(cluster, 2)
    report = audited(cluster)
    (item,) = errors(report)
    assert (item.broker, item.topic, item.partition) == (2, "lines", 0)
    assert (
        item.message
        == f"broker 2 should hold a replica (in sync, according to {cluster.root}/cluster-state.json) and has none"
    )
    assert (report.partitions[0].verdict, report.partitions[0].absent_replicas) == (PartitionVerdict.INCONSISTENT, (2,))


def test_one_file_is_never_two_replicas(cluster: PlantedCluster) -> None:
    """It was compared with itself, and the verdict was that all three agree."""
    link_the_directory(cluster)
    report = audited(cluster)
    (item,) = errors(report)
    assert (item.broker, item.topic, item.partition) == (2, "lines", 0)
    one, two = (cluster.replica(broker, LINES).file(0) for broker in (1, 2))
    assert (item.file, item.message) == (
        str(two),
        f"is one file with broker 1's {one}: the two brokers have one copy",
    )
    assert report.partitions[0].verdict is PartitionVerdict.INCONSISTENT


def test_a_partition_on_another_disk_is_a_replica_like_any_other(cluster: PlantedCluster) -> None:
    directory = cluster.replica(2, LINES).directory
    moved = shutil.move(directory, cluster.root.parent / "other-disk")
    directory.symlink_to(moved)
    assert audited(cluster).exit_code == 0


def test_a_missing_broker_is_one_finding_for_all_its_replicas(cluster: PlantedCluster) -> None:
    cluster.write(TopicPartition("lines", 1), ENCODED)
    remove_broker(cluster, 2)
    report = audited(cluster)
    (item,) = errors(report)
    assert (item.kind, item.broker) == (Kind.MISSING_BROKER, 2)
    assert "2 partitions have a replica on it" in item.message
    assert [each.verdict for each in report.partitions] == [
        PartitionVerdict.INCONSISTENT,
        PartitionVerdict.INCONSISTENT,
    ]


def test_a_partition_in_a_brokers_checkpoint_is_expected_without_a_state_too(cluster: PlantedCluster) -> None:
    cluster.forget_state()
    remove_replica(cluster, 2)
    (item,) = [item for item in errors(audited(cluster)) if item.kind is Kind.MISSING_REPLICA]
    assert (item.broker, "its own checkpoint lists it" in item.message) == (2, True)


def test_a_partition_that_only_checkpoints_of_killed_brokers_list_is_named(cluster: PlantedCluster) -> None:
    """It was shown as an empty one. Its topic may have been deleted a moment before."""
    cluster.forget_state()
    remove_replica(cluster, 1, 2, 3)
    for broker in (1, 2, 3):
        cluster.stop_cleanly(False, broker)
    named = [item for item in errors(audited(cluster)) if item.topic is not None]
    assert [(item.kind, item.topic, item.partition, item.others) for item in named] == [
        (Kind.UNPROVEN, "lines", 0, (1, 2, 3))
    ]


def test_a_replica_of_the_topic_id_that_its_checkpoint_lists_is_not_missing(cluster: PlantedCluster) -> None:
    """No source shows which id is right: the replicas differ, and each is present."""
    give_another_id(cluster, "earlier", 2)
    for broker, topic_id in ((1, TOPIC_ID), (2, "earlier"), (3, TOPIC_ID)):
        cluster.topic_ids[LINES] = topic_id
        cluster.set_high_watermark(broker, LINES, 24)
    cluster.forget_state()
    kinds = {item.kind for item in errors(audited(cluster))}
    assert kinds == {Kind.TOPIC_ID_DIFFERS, Kind.UNPROVEN}


def test_a_replica_that_was_out_of_sync_may_be_absent(cluster: PlantedCluster) -> None:
    cluster.set_high_watermark(3, LINES, None)
    cluster.write_state(LINES, leader=1, leader_epoch=2, isr=[1, 2])
    remove_replica(cluster, 3)
    report = audited(cluster)
    assert (report.exit_code, [item.kind for item in report.findings]) == (0, [Kind.REPLICA_ABSENT])


def give_another_id(cluster: PlantedCluster, topic_id: str, *brokers: int) -> None:
    for broker in brokers:
        cluster.replica(broker, LINES).write_metadata(topic_id)
        cluster.replica(broker, LINES).write_log_start(0, topic_id)


@pytest.mark.parametrize("ids", [{2: "earlier"}, {2: "earlier", 3: "earlier"}, {2: "earlier", 3: "later"}])
@pytest.mark.parametrize("knows", [True, False])
def test_a_replica_under_another_topic_id_is_an_error(
    cluster: PlantedCluster, ids: dict[int, str], knows: bool
) -> None:
    for broker, topic_id in ids.items():
        give_another_id(cluster, topic_id, broker)
    if not knows:
        cluster.forget_state()
    found = {(item.kind, item.broker) for item in errors(audited(cluster))}
    if knows:
        assert found >= {(kind, broker) for broker in ids for kind in (Kind.MISSING_REPLICA, Kind.TOPIC_ID_DIFFERS)}
    assert Kind.TOPIC_ID_DIFFERS in {kind for kind, _ in found}


@pytest.mark.parametrize("knows", [True, False])
def test_a_partition_with_another_id_than_the_rest_of_its_topic_is_an_error(
    cluster: PlantedCluster, knows: bool
) -> None:
    cluster.write(TopicPartition("lines", 1), ENCODED)
    give_another_id(cluster, "other", 1, 2, 3)
    if not knows:
        cluster.forget_state()
    report = audited(cluster)
    assert Kind.TOPIC_ID_DIFFERS in {item.kind for item in errors(report)}


def test_one_replica_as_assigned_is_consistent(tmp_path: Path) -> None:
    cluster = PlantedCluster(tmp_path, brokers=[1])
    cluster.write(LINES, ENCODED)
    assert audited(cluster).exit_code == 0


def test_without_a_source_of_what_is_expected_the_result_is_unproven(cluster: PlantedCluster) -> None:
    cluster.forget_state()
    report = audited(cluster)
    assert (report.exit_code, report.outcome) == (10, AuditOutcome.UNPROVEN)
    (item,) = errors(report)
    assert "--zookeeper" in item.message and "--allow-unproven" in item.message
    allowed = audited(cluster, allow_unproven=True)
    assert (allowed.exit_code, allowed.outcome, allowed.success) == (0, AuditOutcome.UNPROVEN, False)


def test_a_partition_missing_in_the_state_is_reported(cluster: PlantedCluster) -> None:
    other = TopicPartition("former", 0)
    cluster.replica(2, other).write(ENCODED[:2])
    cluster.set_high_watermark(2, other, 3)
    report = audited(cluster)
    assert (report.exit_code, [item.kind for item in report.findings]) == (0, [Kind.UNEXPECTED_PARTITION])


@pytest.mark.parametrize("remains", [(1, 2, 3), (2,), ()])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_topic_without_one_of_its_partitions_is_a_contradiction(
    tmp_path: Path, number: int, remains: tuple[int, ...]
) -> None:
    """A topic never loses a partition, so its topic was not deleted. Whatever was left of the partition, also nothing,
    was consistent: no source expected it."""
    cluster, lost = PlantedCluster(tmp_path / "data"), TopicPartition("lines", number)
    for each in range(3):
        cluster.write(TopicPartition("lines", each), ENCODED)
    for broker in {1, 2, 3} - {*remains}:
        shutil.rmtree(cluster.replica(broker, lost).directory)
        cluster.set_high_watermark(broker, lost, None)
    partitions = {name: each for name, each in cluster.state.partitions.items() if name != str(lost)}
    put(cluster.root / CLUSTER_STATE, format_cluster_state(replace(cluster.state, partitions=partitions)))
    is_beyond_its_end = number == 2 and not remains  # nothing shows that there was a third one
    found = [(item.kind, item.topic, item.partition) for item in errors(audited(cluster))]
    assert found == ([] if is_beyond_its_end else [(Kind.CONTRADICTION, "lines", number)])


def test_a_missing_clean_shutdown_file_is_reported(cluster: PlantedCluster) -> None:
    """Without it, and with another boot id, a truncated log looked like one whose tail a power cut had taken."""
    file = cluster.root / "cluster-state.json"
    file.write_bytes(file.read_bytes().replace(b'"partitions":', b'"stopped_cleanly":[1,2,3],"partitions":', 1))
    assert errors(audited(cluster)) == []
    cluster.stop_cleanly(False, 2)
    found = [item for item in errors(audited(cluster)) if item.kind is Kind.CHECKPOINT_DAMAGE]
    assert [(item.broker, "was stopped cleanly" in item.message) for item in found] == [(2, True)]


def test_a_state_with_an_empty_isr_is_a_contradiction(cluster: PlantedCluster) -> None:
    """It disabled the checks of the ISR."""
    file = cluster.root / "cluster-state.json"
    file.write_bytes(re.sub(rb'"isr":\[[0-9,]+\]', b'"isr":[]', file.read_bytes()))
    assert Kind.CONTRADICTION in {item.kind for item in errors(audited(cluster))}


def test_a_state_of_another_cluster_is_a_contradiction(cluster: PlantedCluster) -> None:
    file = cluster.root / "cluster-state.json"
    file.write_bytes(file.read_bytes().replace(b'"cluster_id":"c"', b'"cluster_id":"x"'))
    assert Kind.CONTRADICTION in {item.kind for item in errors(audited(cluster))}
