"""Which directories hold replicas, and the errors for those that do not."""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minibroker.audit.checks.findings import Kind, Severity
from minibroker.audit.errors import AuditError
from minibroker.audit.reading import small_files
from minibroker.audit.reading.discovery import discover
from minibroker.audit.reading.regular_files import read_regular
from minibroker.audit.run import run_audit
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.meta_properties import MetaProperties, format_meta_properties
from minibroker.protocol.ids import TopicPartition
from tests.audit.damage import ENCODED
from tests.audit.planted_cluster import PlantedCluster

DASHED = TopicPartition("a-b-0", 7)
LINES = TopicPartition("lines", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> PlantedCluster:
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(DASHED, ENCODED)
    return cluster


def test_a_clusters_data_directory_holds_all_brokers(cluster: PlantedCluster) -> None:
    (cluster.root / "zookeeper").mkdir()
    (cluster.root / "broker-1.out").write_text("log lines")
    inventory = discover([str(cluster.root)])
    assert [log.broker for log in inventory.log_directories] == [1, 2, 3]
    assert {(facts.topic, facts.partition) for facts in inventory.replicas} == {DASHED}


def test_log_directories_can_be_given_one_by_one(cluster: PlantedCluster) -> None:
    given = [str(cluster.log_directory(broker)) for broker in (3, 1)]
    assert [log.broker for log in discover(given).log_directories] == [1, 3]


def test_a_directory_given_twice_counts_once(cluster: PlantedCluster) -> None:
    given = [str(cluster.root), f"{cluster.log_directory(1)}/."]
    assert len(discover(given).replicas) == 3


def test_the_directory_name_gives_the_broker_when_meta_properties_are_missing(cluster: PlantedCluster) -> None:
    file = cluster.log_directory(2) / checkpoints.META_PROPERTIES
    file.unlink()
    inventory = discover([str(cluster.root)])
    assert [log.broker for log in inventory.log_directories] == [1, 2, 3]
    assert [(item.broker, item.file) for item in inventory.damage] == [(2, str(file))]


def test_the_directory_name_gives_the_broker_when_meta_properties_are_damaged(cluster: PlantedCluster) -> None:
    file = cluster.log_directory(2) / checkpoints.META_PROPERTIES
    file.write_bytes(file.read_bytes().replace(b"broker.id=2", b"broker.id=3"))
    inventory = discover([str(cluster.root)])
    assert [log.broker for log in inventory.log_directories] == [1, 2, 3]
    assert [(item.broker, item.file) for item in inventory.damage] == [(2, str(file))]


def test_a_name_that_is_no_text_is_refused_because_no_report_can_hold_it(cluster: PlantedCluster) -> None:
    named = os.fsencode(cluster.root) + b"/x\xff-broker-1"
    os.rename(cluster.log_directory(1), named)
    with pytest.raises(AuditError, match=r"x\\udcff-broker-1' is not UTF-8, .*: rename it"):
        discover([str(cluster.root)])
    with pytest.raises(AuditError, match="rename it"):
        discover([os.fsdecode(named)])


@pytest.mark.parametrize("is_list", [True, False])
def test_a_given_name_that_is_no_text_is_refused_before_the_audit(cluster: PlantedCluster, is_list: bool) -> None:
    """A link to the directory, or a list of acknowledged records: the report failed after all was read."""
    named = os.fsdecode(os.fsencode(cluster.root) + b"/\xff")
    os.symlink(cluster.root, named)
    with pytest.raises(AuditError, match="rename it"):
        run_audit([str(cluster.root) if is_list else named], "local", acked=named if is_list else None)


def test_facts_are_read_from_the_checkpoints(cluster: PlantedCluster) -> None:
    directory = cluster.log_directory(1)
    recovery = checkpoints.format_offset_checkpoint({DASHED: 5})
    (directory / checkpoints.RECOVERY_POINT_CHECKPOINT).write_bytes(recovery)
    cluster.replica(1, DASHED).write_log_start(2)
    facts = discover([str(directory)]).replicas[0]
    assert facts.log_start is not None
    assert (facts.high_watermark, facts.recovery_point, facts.log_start.offset) == (24, 5, 2)
    assert facts.cleanly_stopped
    assert facts.epoch_entries == ((0, 0), (1, 9), (2, 19))


def test_a_malformed_clean_shutdown_file_is_not_a_clean_stop(cluster: PlantedCluster) -> None:
    marker = cluster.log_directory(1) / checkpoints.CLEAN_SHUTDOWN
    marker.write_bytes(b"{")
    inventory = discover([str(cluster.log_directory(1))])
    assert not inventory.log_directories[0].cleanly_stopped
    assert [item.file for item in inventory.damage] == [str(marker)]


def test_directories_being_deleted_are_not_replicas(cluster: PlantedCluster) -> None:
    replica = cluster.replica(1, DASHED)
    replica.directory.rename(cluster.log_directory(1) / checkpoints.deleted_directory_name(DASHED, "abc"))
    assert len(discover([str(cluster.root)]).replicas) == 2


def test_directories_of_two_clusters_are_rejected(cluster: PlantedCluster) -> None:
    meta = MetaProperties(broker_id=2, cluster_id="other", directory_id="d", boot_id="b")
    file = cluster.log_directory(2) / checkpoints.META_PROPERTIES
    file.write_bytes(format_meta_properties(meta))
    with pytest.raises(AuditError, match="different clusters"):
        discover([str(cluster.root)])


@pytest.mark.parametrize("given", ["nowhere", "."])
def test_a_directory_without_brokers_is_rejected_with_a_hint(tmp_path: Path, given: str) -> None:
    with pytest.raises(AuditError, match="log director"):
        discover([str(tmp_path / given)])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission_stops_the_audit(cluster: PlantedCluster) -> None:
    cluster.replica(1, DASHED).file(0).chmod(0)
    with pytest.raises(AuditError, match="as a user who may"):
        discover([str(cluster.root)])


def test_a_segment_removed_between_two_questions_about_it_is_no_lack_of_rights(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running broker deleted it behind `stat`. The audit ended: 'Permission denied; run the audit as a user ..'."""
    removed = cluster.replica(1, DASHED).file(0)
    access = os.access

    def ask(path: str, mode: int) -> bool:
        if path == str(removed):
            removed.unlink()
        return access(path, mode)

    monkeypatch.setattr(os, "access", ask)
    assert len(discover([str(cluster.root)]).replicas) == 3


def test_a_high_watermark_of_a_former_topic_of_this_name_is_ignored(cluster: PlantedCluster) -> None:
    for name in (checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.RECOVERY_POINT_CHECKPOINT):
        file = cluster.log_directory(2) / name
        file.write_bytes(checkpoints.format_offset_checkpoint({DASHED: 900}, {DASHED: "former"}))
    facts = next(facts for facts in discover([str(cluster.root)]).replicas if facts.broker == 2)
    assert (facts.high_watermark, facts.recovery_point) == (None, None)


def test_offsets_and_topic_ids_of_a_checkpoint_are_of_one_reading(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running broker replaced the file between two readings of it: an offset of the former topic had no id, and so
    counted for the later topic of the name."""
    cluster.topic_ids[DASHED] = "former"
    cluster.set_high_watermark(1, DASHED, 24)
    read = read_regular

    def replaced_at_once(path: str, limit: int) -> bytes:
        content = read(path, limit)
        if path.endswith(f"broker-1/{checkpoints.HIGH_WATERMARK_CHECKPOINT}"):
            cluster.set_high_watermark(1, DASHED, None)
        return content

    monkeypatch.setattr(small_files, "read_regular", replaced_at_once)
    assert discover([str(cluster.root)]).log_directories[0].listed == {str(DASHED): "former"}


@pytest.mark.parametrize("line", ["lines x 5 id", "lines 0 5 id more"])
def test_a_checkpoint_with_a_line_that_is_none_is_damaged(cluster: PlantedCluster, line: str) -> None:
    """Its checksum is right, so a program wrote it so. The audit ended with Python's own error."""
    file = cluster.log_directory(1) / checkpoints.HIGH_WATERMARK_CHECKPOINT
    file.write_bytes(checkpoints.with_checksum(f"1\n1\n{line}\n"))
    (damaged,) = discover([str(cluster.root)]).damage
    assert "not 'topic partition offset [topic-id]'" in damaged.reason


def keep_a_backup(cluster: PlantedCluster) -> Path:
    stray = cluster.root / "backup"
    shutil.copytree(cluster.replica(1, LINES).directory, stray / str(LINES))
    return stray


def put_a_partition_beside_the_brokers(cluster: PlantedCluster) -> Path:
    stray = cluster.root / str(LINES)
    shutil.copytree(cluster.replica(1, LINES).directory, stray)
    return stray


@pytest.mark.parametrize("put_stray", [keep_a_backup, put_a_partition_beside_the_brokers])
def test_a_stray_folder_with_partitions_is_named_and_the_brokers_are_audited(
    tmp_path: Path, put_stray: Callable[[PlantedCluster], Path]
) -> None:
    """It ended the audit of the whole, for it names no broker. A broker whose directory it was is missing anyway."""
    cluster = PlantedCluster(tmp_path / "data")
    cluster.write(LINES, ENCODED)
    stray = put_stray(cluster)
    report = run_audit([str(cluster.root)], "local")
    (item,) = report.findings
    assert (report.exit_code, report.statistics.replicas) == (0, 3)
    assert (item.kind, item.severity, item.file) == (Kind.WRONG_DIRECTORY, Severity.NOTE, str(stray))
    shutil.rmtree(cluster.log_directory(1))
    assert Kind.MISSING_BROKER in {item.kind for item in run_audit([str(cluster.root)], "local").findings}


def test_a_stray_folder_that_is_given_itself_ends_the_audit(cluster: PlantedCluster) -> None:
    cluster.write(LINES, ENCODED)
    with pytest.raises(AuditError, match=r"backup does not name its broker: meta\.properties"):
        discover([str(keep_a_backup(cluster))])


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Take away the right to read a file, or to enter a directory: from root, too."""

    def refuse_path(refused: Path) -> None:
        for name in ("stat", "scandir", "open"):
            monkeypatch.setattr(os, name, refusing(getattr(os, name), refused))

    def refusing(ask: Callable[..., object], refused: Path) -> Callable[..., object]:
        def asked(path: str | int | Path, *rest: object, **how: object) -> object:
            if str(path) == str(refused):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return ask(path, *rest, **how)

        return asked

    return refuse_path


@pytest.mark.parametrize("refused", [".", "broker-2", "broker-2/a-b-0-7"])
def test_a_directory_behind_one_that_may_not_be_entered_names_the_cure(
    cluster: PlantedCluster, refuse: Callable[[Path], None], refused: str
) -> None:
    """The system says neither that it is there nor that it is not. The audit said that it is no directory, or that the
    broker or the replica is missing."""
    refuse(cluster.root / refused)
    with pytest.raises(AuditError, match="cannot be read: Permission denied; run the audit as a user who may"):
        discover([str(cluster.root)])


@pytest.mark.parametrize(
    "name",
    [
        "cluster-state.json",
        f"broker-2/{checkpoints.META_PROPERTIES}",
        f"broker-2/{checkpoints.HIGH_WATERMARK_CHECKPOINT}",
        f"broker-2/a-b-0-7/{checkpoints.PARTITION_METADATA}",
        f"broker-2/a-b-0-7/{checkpoints.LOG_START}",
        f"broker-2/a-b-0-7/{checkpoints.EPOCH_CHECKPOINT}",
    ],
)
def test_a_small_file_that_this_user_may_not_read_is_no_damage(
    cluster: PlantedCluster, refuse: Callable[[Path], None], name: str
) -> None:
    """A sound cluster was 'inconsistent' for another user than the brokers'. Of a segment the audit said so already."""
    assert (cluster.root / name).exists()
    refuse(cluster.root / name)
    with pytest.raises(AuditError, match=f"{name} cannot be read: Permission denied; run the audit as a user who may"):
        discover([str(cluster.root)])


def test_a_directory_that_the_disk_does_not_list_is_no_lack_of_rights(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The advice was another user, who reads no more."""
    refused = str(cluster.replica(2, DASHED).directory)
    scan = os.scandir

    def refuse(path: str) -> object:
        if str(path) == refused:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(AuditError, match="a-b-0-7 cannot be read: Input/output error; mend its disk, or audit the oth"):
        discover([str(cluster.root)])


def test_a_mount_beside_the_brokers_that_is_not_connected_does_not_end_the_audit(
    cluster: PlantedCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead mount of a network or of a user's file system. In the place of a broker's directory it does."""
    ask, refused = os.stat, str(cluster.root / "backup")

    def refuse(path: str, **how: Any) -> object:
        if str(path) == refused:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN), path)
        return ask(path, **how)

    monkeypatch.setattr(os, "stat", refuse)
    (cluster.root / "backup").mkdir()
    assert [log.broker for log in discover([str(cluster.root)]).log_directories] == [1, 2, 3]
    refused = str(cluster.root / "broker-2")
    with pytest.raises(AuditError, match="broker-2 cannot be read"):
        discover([str(cluster.root)])


def test_a_folder_beside_the_brokers_that_may_not_be_entered_does_not_end_the_audit(
    cluster: PlantedCluster, refuse: Callable[[Path], None]
) -> None:
    """At the root of a disk stands a `lost+found`, which is root's alone."""
    (cluster.root / "lost+found").mkdir()
    refuse(cluster.root / "lost+found")
    assert [log.broker for log in discover([str(cluster.root)]).log_directories] == [1, 2, 3]
