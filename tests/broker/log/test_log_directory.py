"""One log directory: its owner, its start and stop, creation and deletion of logs, its checkpoints."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.errors import LogDirectoryError
from minibroker.broker.log.loaded_log import RecoveryReport
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.protocol.events.broker_events import DirectoryIdMissing
from minibroker.protocol.files.checkpoints import (
    EPOCH_CHECKPOINT,
    SMALL_FILE_BYTES_MAX,
    LogStart,
    LogStartReason,
    parse_log_start,
    parse_offset_checkpoint,
)
from minibroker.protocol.files.partition_metadata import PartitionMetadata, parse_partition_metadata
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.adapters.disk import RealDisk
from minibroker.runtime.observer import Observers
from minibroker.runtime.ports import DiskFull, OutOfDescriptors
from tests.broker.log.machine import PARTITION, PATH, SMALL, TOPIC_ID, Machine, append, check_log, drive, read_all

OTHER = TopicPartition("a.topic_with-dashes", 11)


def names(machine: Machine) -> list[str]:
    return machine.disk().list_directory(PATH)


def test_two_brokers_cannot_share_a_directory(machine: Machine) -> None:
    machine.open()
    with pytest.raises(LogDirectoryError, match=r"/data is in use by another broker process"):
        machine.open()


def test_a_killed_broker_leaves_the_directory_free(machine: Machine) -> None:
    machine.open()
    machine.kill()
    machine.open()


def test_another_cluster_s_directory_is_refused(machine: Machine) -> None:
    drive(machine.open().close(True, {}))
    with pytest.raises(LogDirectoryError, match=r"belongs to cluster cluster, but .* cluster other: check"):
        machine.open(cluster_id="other")
    machine.open()  # and the lock was released


def test_another_broker_s_directory_is_refused(machine: Machine) -> None:
    drive(machine.open().close(True, {}))
    with pytest.raises(LogDirectoryError, match=r"belongs to broker 1, not to broker 2: check broker.id"):
        machine.open(broker_id=2)


def test_a_damaged_identity_is_refused_with_instructions(machine: Machine) -> None:
    drive(machine.open().close(True, {}))
    machine.disk().replace_file(f"{PATH}/meta.properties", b"garbage")
    with pytest.raises(LogDirectoryError, match=r"is damaged .*: write its five lines again"):
        machine.open()


def test_an_identity_with_a_wrong_digit_is_refused(machine: Machine) -> None:
    """It once named another directory: a sound log counted for nothing, and no message gave the reason."""
    drive(machine.open().close(True, {}))
    file = f"{PATH}/meta.properties"
    content = machine.disk().read_file(file, 1_000)
    machine.storage.flip_bit(file, content.index(b"directory.id=") + len(b"directory.id="))
    with pytest.raises(LogDirectoryError, match=r"does not match its checksum.*write its five lines again"):
        machine.open()


def test_missing_meta_properties_next_to_logs_are_reported_as_an_error(machine: Machine) -> None:
    """The file was once replaced without a message, and the only copy waited for a leader."""
    events: list[object] = []
    observer = Observers(events.append)
    drive(machine.open(observer=observer).close(clean=True, high_watermarks={}))
    directory, _ = machine.open_log(observer=observer)
    assert events == []
    before = directory.directory_id
    drive(directory.close(clean=True, high_watermarks={}))
    machine.disk().remove(f"{PATH}/meta.properties")
    directory = machine.open(observer=observer)
    assert directory.directory_id != before
    assert events == [DirectoryIdMissing(path=f"{PATH}/meta.properties")]


def test_the_directory_keeps_its_id(machine: Machine) -> None:
    first = machine.open().directory_id
    machine.kill()
    assert machine.open().directory_id == first
    assert len(first) == 32


def test_a_killed_process_is_distinguished_from_a_power_loss(machine: Machine) -> None:
    assert not machine.open().same_boot
    machine.kill()
    assert machine.open().same_boot
    machine.lose_power()
    assert not machine.open().same_boot


def test_logs_are_found_again(machine: Machine) -> None:
    directory, log = machine.open_log()
    other = directory.create_log(OTHER, "other-id", SMALL)
    append(log, 3)
    append(other, 5)
    drive(directory.close(True, {}))
    directory = machine.open()
    assert {partition: log.log_end_offset for partition, log in directory.logs.items()} == {OTHER: 10, PARTITION: 6}
    assert directory.logs[OTHER].topic_id == "other-id"


def test_loading_reports_its_progress(machine: Machine) -> None:
    directory, log = machine.open_log()
    directory.create_log(OTHER, "other-id", SMALL)
    append(log, 3)
    machine.kill()
    seen: list[tuple[int, int, TopicPartition, int]] = []

    def on_progress(done: int, total: int, partition: TopicPartition, report: RecoveryReport) -> None:
        seen.append((done, total, partition, report.bytes_scanned))

    machine.open(on_progress=on_progress)
    assert seen == [(1, 2, OTHER, 0), (2, 2, PARTITION, log.size_bytes)]


# ------------------------------------------------------------------------------------------------------- clean or not
def test_a_clean_stop_is_recognised_once(machine: Machine) -> None:
    drive(machine.open().close(True, {}, broker_epoch=77))
    directory = machine.open()
    assert (directory.was_clean, directory.last_broker_epoch) == (True, 77)
    machine.kill()
    assert not machine.open().was_clean


def test_a_crash_while_loading_does_not_count_as_a_clean_stop(machine: Machine) -> None:
    """B38, KAFKA-10471: the marker is durably removed before loading."""
    directory, _ = machine.open_log()
    drive(directory.close(True, {}))
    machine.storage.fail("read", f"{PATH}/{PARTITION}", times=1)
    with pytest.raises(Exception, match="simulated"):
        machine.open()
    machine.lose_power()
    assert not machine.open().was_clean


def test_an_aborted_start_leaves_no_marker(machine: Machine) -> None:
    """B38, KAFKA-15375."""
    directory, _ = machine.open_log()
    directory._loaded = False
    drive(directory.close(True, {}))
    assert ".clean_shutdown" not in names(machine)


def test_a_stop_that_is_not_clean_writes_nothing(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    before = machine.storage.trace.events
    drive(directory.close(False, {PARTITION: 3}))
    assert machine.storage.trace.events == before


def test_a_damaged_marker_counts_as_unclean(machine: Machine) -> None:
    drive(machine.open().close(True, {}))
    machine.disk().replace_file(f"{PATH}/.clean_shutdown", b"{")
    assert not machine.open().was_clean


def test_a_failing_disk_leaves_no_marker(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    machine.storage.fail("sync", times=1)
    drive(directory.close(True, {}))
    assert ".clean_shutdown" not in names(machine)
    assert directory.offline
    machine.storage.heal()
    machine.open()  # the lock was released


@pytest.mark.invariant("I10", "I15")
def test_everything_survives_a_power_cut_after_a_clean_stop(machine: Machine) -> None:
    directory, log = machine.open_log()
    written = append(log, 30, producer=None)
    log.trim_before(5)
    drive(directory.close(True, {PARTITION: 42}))
    machine.lose_power()
    directory, log = machine.open_log()
    assert directory.was_clean
    assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (5, 60, 60)
    assert directory.read_high_watermarks() == {PARTITION: 42}
    assert read_all(log) == b"".join(batch for header, batch in written if header.end_offset > 5)


# -------------------------------------------------------------------------------------------------------- checkpoints
def test_high_watermarks_are_remembered(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 9)
    drive(log.flush())
    drive(directory.sync_metadata())
    drive(directory.checkpoint_high_watermarks({PARTITION: 17}))
    machine.lose_power()
    assert machine.open().read_high_watermarks() == {PARTITION: 17}


def test_a_checkpoint_keeps_partitions_without_a_known_role(machine: Machine) -> None:
    """B36, KAFKA-769: a checkpoint before the first LeaderAndIsr must not forget the high watermarks."""
    directory, _ = machine.open_log()
    directory.create_log(OTHER, "other-id", SMALL)
    drive(directory.checkpoint_high_watermarks({PARTITION: 17, OTHER: 3}))
    machine.kill()
    directory = machine.open()
    drive(directory.checkpoint_high_watermarks({OTHER: 4}))
    machine.kill()
    assert machine.open().read_high_watermarks() == {PARTITION: 17, OTHER: 4}


@pytest.mark.parametrize("content", [b"", b"0\n1\n", b"\xff\xff", b"0\n1\nlines 0 999999999999999999999999\n"])
def test_damaged_checkpoints_count_as_missing(machine: Machine, content: bytes) -> None:
    directory, log = machine.open_log()
    append(log, 30)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: 9}))
    machine.kill()
    for name in ("recovery-point", "replication", "log-start"):
        machine.disk().replace_file(f"{PATH}/{name}-offset-checkpoint", content)
    directory, log = machine.open_log()
    assert directory.read_high_watermarks() == {}
    assert (log.recovery_point, log.log_end_offset) == (0, 60)
    check_log(log)


def test_each_log_records_its_start_and_why(machine: Machine) -> None:
    directory, log = machine.open_log()
    assert parse_log_start(machine.content("log-start"))[0] == log.start_to_record()
    append(log, 10)
    log.trim_before(3)
    drive(directory.maintain(0))
    expected = LogStart(topic_id=TOPIC_ID, partition=0, offset=3, reason=LogStartReason.COPIED)
    assert parse_log_start(machine.content("log-start")) == (expected, 1)


def test_a_recovery_point_above_the_log_end_is_lowered(machine: Machine) -> None:
    """I10; and it is written soon, because new batches below the old one would count as synced."""
    directory, log = machine.open_log(LogConfig())
    append(log, 10)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    machine.kill()
    machine.edit(f"{0:020d}.log", b"")
    directory, log = machine.open_log(LogConfig())
    assert (log.recovery_point, log.log_end_offset) == (0, 0)
    log.config = SMALL
    drive(directory.sync_metadata())
    append(log, 20)
    assert log.segment_count == 1  # a closed segment below the old recovery point would not be scanned
    drive(directory.maintain(0))
    content = machine.disk().read_file(f"{PATH}/recovery-point-offset-checkpoint", SMALL_FILE_BYTES_MAX)
    assert parse_offset_checkpoint(content) == {PARTITION: 0}


@pytest.mark.parametrize(
    ("is_stored", "damage", "writes"), [(True, None, 0), (False, None, 1), (False, "a hole", 0), (True, "a hole", 0)]
)
def test_epochs_are_written_again_only_where_that_failed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, is_stored: bool, damage: str | None, writes: int
) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    drive(directory.maintain(0))
    written: list[str] = []
    log.epochs_stored, log.damage = is_stored, damage
    monkeypatch.setattr(directory._disk, "replace_file", lambda path, *_, **__: written.append(path))
    directory._store_epochs(log)
    assert written == [f"{log.directory}/{EPOCH_CHECKPOINT}"] * writes


# -------------------------------------------------------------------------------------------------- create and delete
def test_metadata_is_there_before_the_first_append(machine: Machine) -> None:
    machine.open_log()
    expected = PartitionMetadata(topic_id=TOPIC_ID, partition=PARTITION.partition)
    assert parse_partition_metadata(machine.content("partition.metadata")) == expected


def test_a_created_log_survives_a_power_cut_once_its_metadata_is_synced(machine: Machine) -> None:
    directory, _ = machine.open_log()
    drive(directory.maintain(0))
    machine.lose_power()
    assert machine.open().logs[PARTITION].topic_id == TOPIC_ID


def test_creating_an_existing_log_gives_the_same_one(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    changed = msgspec.structs.replace(SMALL, retention_ms=7)
    assert directory.create_log(PARTITION, TOPIC_ID, changed) is log
    assert log.config == changed


def test_the_log_of_a_deleted_topic_of_the_same_name_is_taken_away(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    again = directory.create_log(PARTITION, "another-id", SMALL)
    assert (again.log_end_offset, again.topic_id) == (0, "another-id")
    assert f"{PARTITION}.0-delete" in names(machine)


def test_a_log_without_metadata_goes_to_the_next_topic_of_its_name(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 3)
    machine.disk().remove(f"{log.directory}/partition.metadata")
    machine.kill()
    _, log = machine.open_log()
    assert (log.log_end_offset, log.topic_id) == (6, TOPIC_ID)
    assert "partition.metadata" in machine.file_names()


@pytest.mark.invariant("I10", "I21")
def test_offsets_of_a_deleted_topic_do_not_apply_to_the_next_of_its_name(machine: Machine) -> None:
    """By the old checkpoints its records would count as synced, deleted or committed."""
    directory, log = machine.open_log()
    append(log, 40)
    log.trim_before(31)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.record_log_starts())
    drive(directory.checkpoint_high_watermarks({PARTITION: 70}))
    directory.delete_log(PARTITION)
    log = directory.create_log(PARTITION, "another-id", SMALL)
    append(log, 20)
    assert log.segment_count == 1  # otherwise it would not be scanned after a power cut
    drive(directory.maintain(0))
    append(log, 20)
    assert log.segment_count > 1
    machine.kill()
    directory = machine.open()
    log = directory.logs[PARTITION]
    assert (log.log_start_offset, log.recovery_point) == (0, 0)
    assert directory.read_high_watermarks() == {PARTITION: 0}


def test_a_log_that_was_deleted_and_left_the_checkpoints_is_not_missed_when_it_is_made_again(machine: Machine) -> None:
    """A broker may get a partition back, with the same topic id. Its log owes nothing then."""
    directory, log = machine.open_log()
    append(log, 3)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    directory.delete_log(PARTITION)
    drive(directory.checkpoint_recovery_points())
    assert directory.create_log(PARTITION, TOPIC_ID, SMALL).start_reason is LogStartReason.CREATED


@pytest.mark.invariant("I35")
def test_a_deleted_log_is_renamed_at_once_and_removed_later(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    directory.delete_log(PARTITION)
    assert PARTITION not in directory.logs
    assert [name for name in names(machine) if name.startswith("lines")] == ["lines-0.0-delete"]
    drive(directory.maintain(0))
    assert [name for name in names(machine) if name.startswith("lines")] == []


def test_a_deletion_survives_a_power_cut_and_is_finished(machine: Machine) -> None:
    directory, _ = machine.open_log()
    drive(directory.sync_metadata())
    directory.delete_log(PARTITION)
    machine.lose_power()
    directory = machine.open()
    assert directory.logs == {}
    drive(directory.maintain(0))
    assert [name for name in names(machine) if name.startswith("lines")] == []


def test_files_of_a_deleted_log_stay_until_its_new_name_is_synced(machine: Machine) -> None:
    """A power cut would bring back the old name, for what is left of the log; also on a full disk, which is in need of
    the room."""
    directory, log = machine.open_log()
    append(log, 3)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    machine.storage.fill()
    with pytest.raises(DiskFull):
        append(log, 1)
    machine.storage.fail("sync_directory", PATH, times=2, no_descriptor=True)
    directory.delete_log(PARTITION)
    drive(directory.maintain(0))
    assert machine.disk().exists(f"{PATH}/{PARTITION}.0-delete/{0:020d}.log")
    drive(directory.maintain(0))
    assert not machine.disk().exists(f"{PATH}/{PARTITION}.0-delete")
    machine.lose_power()
    assert machine.open().logs == {}


def test_a_topic_can_be_deleted_and_created_again_and_again(machine: Machine) -> None:
    directory, log = machine.open_log()
    for number in range(3):
        append(log, 1)
        directory.delete_log(PARTITION)
        log = directory.create_log(PARTITION, f"id-{number}", SMALL)
        assert log.log_end_offset == 0


def test_the_longest_topic_name_can_be_deleted(machine: Machine) -> None:
    directory = machine.open()
    partition = TopicPartition("t" * 249, 3)
    directory.create_log(partition, TOPIC_ID, SMALL)
    directory.delete_log(partition)
    assert all(len(name) <= 255 for name in names(machine))
    machine.kill()
    drive(machine.open().maintain(0))
    assert [name for name in names(machine) if name.startswith("t")] == []


def test_foreign_directories_are_left_alone(machine: Machine) -> None:
    machine.disk().make_directory(f"{PATH}/lost+found")
    directory = machine.open()
    assert directory.logs == {}
    drive(directory.maintain(0))
    assert "lost+found" in names(machine)


# ------------------------------------------------------------------------------------------------------ the real disk
async def test_all_of_it_works_on_a_real_disk(tmp_path: Path) -> None:
    import random

    async def open_directory() -> LogDirectory:
        path = str(tmp_path / "data")
        return await LogDirectory.open(RealDisk(), RealClock(), path, 1, "cluster", SMALL, rng=random.Random(1))

    directory = await open_directory()
    log = directory.create_log(PARTITION, TOPIC_ID, SMALL)
    written = append(log, 40, producer=None)
    await log.flush()
    log.truncate_to(50)
    log.write_epoch_entries([(0, 0)])
    await directory.maintain(1 << 60)
    with pytest.raises(LogDirectoryError):
        await open_directory()
    await directory.close(True, {PARTITION: 12})
    directory = await open_directory()
    log = directory.logs[PARTITION]
    check_log(log)
    assert read_all(log) == b"".join(batch for _, batch in written[:25])
    await directory.close(False, {})
    directory = await open_directory()
    check_log(directory.logs[PARTITION])
    log_path = tmp_path / "data" / str(PARTITION) / f"{48:020d}.log"
    assert log_path.stat().st_size == directory.logs[PARTITION].segments[-1].size
    await directory.close(True, {})


def lose_power_below_the_high_watermark(machine: Machine) -> int:
    """The high watermark is checkpointed, but only half of the records below it are synced. Returns the log end."""
    directory, log = machine.open_log()
    append(log, 3)
    drive(log.flush())
    drive(directory.sync_metadata())
    append(log, 3)
    ended = log.log_end_offset
    drive(directory.checkpoint_high_watermarks({PARTITION: ended}))
    machine.lose_power()
    return ended


def test_a_log_below_its_high_watermark_after_a_power_cut_stays_sound(machine: Machine) -> None:
    """The first start is killed before it checkpoints anything: only the starts after it are on the same boot."""
    ended = lose_power_below_the_high_watermark(machine)
    for _ in range(3):
        log = machine.open().logs[PARTITION]
        assert log.log_end_offset < ended
        assert log.damage is None
        machine.kill()


def test_a_power_cut_is_remembered_until_lower_high_watermarks_fit_on_the_disk(machine: Machine) -> None:
    lose_power_below_the_high_watermark(machine)
    machine.storage.fail("replace_file", f"{PATH}/replication-offset-checkpoint", is_full=True)
    for _ in range(2):
        directory = machine.open()
        assert not directory.same_boot
        assert directory.logs[PARTITION].damage is None
        machine.kill()


def test_a_descriptor_is_there_if_a_directory_can_be_listed(machine: Machine) -> None:
    directory = machine.open()
    directory.require_descriptor()
    machine.storage.lacks_descriptors = True
    with pytest.raises(OutOfDescriptors):
        directory.require_descriptor()
