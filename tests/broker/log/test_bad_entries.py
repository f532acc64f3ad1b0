"""An unusable entry of a partition stops only that partition; one of the whole directory stops the broker."""

from __future__ import annotations

import os
import posixpath
import random
import shutil
import stat
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.errors import LogDirectoryError
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.retention import retention_start
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.adapters.disk import RealDisk
from minibroker.runtime.ports import BadEntry, SyncFailed
from tests.broker.log.machine import PARTITION, PATH, TOPIC_ID, Machine, append, drive

OTHER = TopicPartition("others", 0)


def _directory_for_a_segment(partition: Path) -> None:
    (partition / f"{99:020d}.log").mkdir()


def _loop_for_a_segment(partition: Path) -> None:
    (partition / f"{99:020d}.log").symlink_to(f"{99:020d}.log")


def _link_to_nothing_for_a_segment(partition: Path) -> None:
    (partition / f"{99:020d}.log").symlink_to("nothing")


def _directory_for_the_metadata(partition: Path) -> None:
    (partition / "partition.metadata").unlink()
    (partition / "partition.metadata").mkdir()


def _pipe_for(name: str) -> Callable[[Path], None]:
    def spoil(partition: Path) -> None:
        (partition / name).unlink(missing_ok=True)
        os.mkfifo(partition / name)

    spoil.__name__ = f"pipe_for_{name}"
    return spoil


def _endless_device_for_the_epochs(partition: Path) -> None:
    (partition / "leader-epoch-checkpoint").unlink(missing_ok=True)
    (partition / "leader-epoch-checkpoint").symlink_to("/dev/zero")


def _pipe_for_the_partition(partition: Path) -> None:
    partition.rename(partition.parent / "elsewhere")
    os.mkfifo(partition)


def _loop_for_the_partition(partition: Path) -> None:
    partition.rename(partition.parent / "elsewhere")
    partition.symlink_to(partition.name)


def _file_for_the_partition(partition: Path) -> None:
    partition.rename(partition.parent / "elsewhere")
    partition.write_bytes(b"")


def open_real(path: Path) -> LogDirectory:
    opened = LogDirectory.open(RealDisk(), RealClock(), str(path), 1, "cluster", LogConfig(), rng=random.Random(1))
    return drive(opened)


@pytest.mark.parametrize(
    "spoil",
    [
        _directory_for_a_segment,
        _loop_for_a_segment,
        _link_to_nothing_for_a_segment,
        _directory_for_the_metadata,
        *map(_pipe_for, ("partition.metadata", "log-start", "leader-epoch-checkpoint", "damage", f"{0:020d}.log")),
        _endless_device_for_the_epochs,
        _pipe_for_the_partition,
        _loop_for_the_partition,
        _file_for_the_partition,
    ],
)
def test_a_bad_entry_stops_its_partition_alone(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    directory = open_real(tmp_path)
    for partition in (PARTITION, OTHER):
        directory.create_log(partition, TOPIC_ID, LogConfig())
    drive(directory.close(clean=True, high_watermarks={}))
    spoil(tmp_path / str(PARTITION))
    directory = open_real(tmp_path)
    assert not directory.offline
    assert directory.logs[PARTITION].damage is not None
    assert directory.logs[OTHER].damage is None
    drive(directory.maintain(0))
    directory.set_log_aside(PARTITION)
    new = directory.create_log(PARTITION, TOPIC_ID, LogConfig())
    assert (new.damage, new.log_end_offset) == (None, 0)
    drive(directory.close(clean=True, high_watermarks={}))
    assert not directory.offline


# ------------------------------------------------------------------------------------- a linked partition directory
def _behind_a_link(tmp_path: Path) -> tuple[LogDirectory, Path]:
    """What an operator with a full disk does: the directory is moved to another disk, and replaced by a link."""
    directory = open_real(tmp_path / "log")
    for partition in (PARTITION, OTHER):
        append(directory.create_log(partition, TOPIC_ID, LogConfig()), 3)
    drive(directory.close(clean=True, high_watermarks={}))
    elsewhere = tmp_path / "other disk" / str(PARTITION)
    elsewhere.parent.mkdir()
    place = tmp_path / "log" / str(PARTITION)
    place.rename(elsewhere)
    place.symlink_to(elsewhere)
    return open_real(tmp_path / "log"), elsewhere


def test_a_partition_behind_a_link_is_used(tmp_path: Path) -> None:
    directory, elsewhere = _behind_a_link(tmp_path)
    log = directory.logs[PARTITION]
    append(log, 2)
    drive(log.flush())
    drive(directory.close(clean=True, high_watermarks={}))
    directory = open_real(tmp_path / "log")
    log = directory.logs[PARTITION]
    assert (log.damage, log.log_end_offset, directory.was_clean) == (None, 10, True)
    assert (elsewhere / "partition.metadata").exists()


def test_deleting_a_partition_behind_a_link_removes_only_the_link(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory, elsewhere = _behind_a_link(tmp_path)
    files = sorted(elsewhere.iterdir())
    directory.delete_log(PARTITION)
    drive(directory.maintain(0))
    assert not directory.offline
    assert not list((tmp_path / "log").glob(f"{PARTITION}*"))
    assert sorted(elsewhere.iterdir()) == files
    [line] = [each for each in caplog.messages if "link" in each]
    assert str(elsewhere) in line
    append(directory.create_log(PARTITION, "another id", LogConfig()), 1)
    assert not (tmp_path / "log" / str(PARTITION)).is_symlink()


def test_a_link_to_a_missing_disk_damages_only_its_partition(tmp_path: Path) -> None:
    directory, elsewhere = _behind_a_link(tmp_path)
    drive(directory.close(clean=True, high_watermarks={}))
    elsewhere.parent.rename(tmp_path / "not mounted")
    for _ in range(2):
        directory = open_real(tmp_path / "log")
        assert directory.logs[PARTITION].damage is not None
        assert directory.logs[OTHER].damage is None
        directory.set_log_aside(PARTITION)
        append(directory.create_log(PARTITION, TOPIC_ID, LogConfig()), 1)
        directory.set_log_aside(PARTITION)
        directory.create_log(PARTITION, TOPIC_ID, LogConfig())
        assert len(directory.set_aside[PARTITION]) == 2
        directory.remove_set_aside(PARTITION)
        drive(directory.maintain(0))
        assert not directory.offline
        drive(directory.close(clean=True, high_watermarks={}))
        shutil.rmtree(tmp_path / "log" / str(PARTITION))
        (tmp_path / "log" / str(PARTITION)).symlink_to(elsewhere)
    assert (tmp_path / "not mounted" / str(PARTITION) / "partition.metadata").exists()


# ----------------------------------------------------------------------------------------- what can only be read
SMALL_FILES = ("partition.metadata", "log-start", "leader-epoch-checkpoint")


@pytest.mark.parametrize("name", SMALL_FILES)
def test_a_start_that_cannot_sync_a_small_file_damages_only_its_partition(machine: Machine, name: str) -> None:
    """It can be read, but is immutable, or another user's. The broker did not start until it was moved away."""
    directory, log = machine.open_log()
    append(log, 3)
    append(directory.create_log(OTHER, TOPIC_ID, LogConfig()), 3)
    drive(directory.maintain(0))
    machine.kill()
    machine.storage.fail("open", f"{log.directory}/{name}", is_bad_entry=True)
    logs = machine.open().logs
    assert logs[OTHER].damage is None
    assert name in str(logs[PARTITION].damage)
    assert "damage" in machine.file_names()


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_start_that_cannot_rebuild_an_epoch_file_damages_only_its_partition(
    machine: Machine, loses_power: bool
) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    append(directory.create_log(OTHER, TOPIC_ID, LogConfig()), 3)
    for each in directory.logs.values():
        drive(each.flush())
    drive(directory.checkpoint_recovery_points())
    machine.edit("leader-epoch-checkpoint", b"rot")
    machine.lose_power() if loses_power else machine.kill()
    machine.storage.fail("replace_file", f"{log.directory}/leader-epoch", is_bad_entry=True)
    logs = machine.open().logs
    assert logs[OTHER].damage is None
    assert "leader-epoch-checkpoint" in str(logs[PARTITION].damage)


def test_a_small_file_that_cannot_be_synced_holds_up_no_other_log(machine: Machine) -> None:
    directory, log = machine.open_log()
    other = directory.create_log(OTHER, TOPIC_ID, LogConfig())
    drive(directory.maintain(0))
    machine.storage.fail("open", f"{log.directory}/leader-epoch", is_bad_entry=True)
    for each in (log, other):
        append(each, 3)
        each.truncate_to(2)
        assert each.cut_is_unsynced
    with pytest.raises(BadEntry, match="busy"):
        drive(directory.sync_metadata())
    assert (log.cut_is_unsynced, other.cut_is_unsynced) == (True, False)
    assert (bool(log.unsynced), bool(other.unsynced)) == (True, False)
    machine.storage.heal()
    drive(directory.sync_metadata())
    assert not log.cut_is_unsynced


def test_a_sync_that_failed_is_not_forgotten_for_an_entry_that_cannot_be_used(machine: Machine) -> None:
    """A kernel reports a failed sync once: the next one would succeed, and the bytes are not there."""
    directory, log = machine.open_log()
    other = directory.create_log(OTHER, TOPIC_ID, LogConfig())
    drive(directory.maintain(0))
    for each in (log, other):
        append(each, 3)
        each.truncate_to(2)
    machine.storage.fail("open", f"{log.directory}/leader-epoch", is_bad_entry=True)
    machine.storage.fail("sync", other.directory, times=1, forgets=True)
    with pytest.raises(SyncFailed):
        drive(directory.sync_metadata())
    assert directory.offline
    assert other.cut_is_unsynced


def test_a_log_start_that_cannot_be_recorded_holds_up_no_other_log(machine: Machine) -> None:
    directory, log = machine.open_log()
    other = directory.create_log(OTHER, TOPIC_ID, LogConfig())
    for each in (log, other):
        append(each, 3)
        each.trim_before(2)
    machine.storage.fail("open", f"{log.directory}/log-start", is_bad_entry=True)
    drive(directory.maintain(0))
    assert (log.is_start_recorded, other.is_start_recorded) == (False, True)
    with pytest.raises(BadEntry, match="busy"):
        drive(directory.record_log_starts())  # as at a clean stop, which does not count as one then


# ------------------------------------------------------------------------------- what cannot be renamed or removed
def test_a_directory_that_cannot_be_renamed_affects_only_its_partition(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    other = directory.create_log(OTHER, TOPIC_ID, LogConfig())
    machine.storage.fail("rename", log.directory, is_bad_entry=True)
    for take_away in (directory.delete_log, directory.set_log_aside):
        with pytest.raises(BadEntry, match="busy"):
            take_away(PARTITION)
        assert not directory.offline
        assert directory.logs[PARTITION] is log
    append(other, 1)
    drive(other.flush())
    machine.storage.heal()
    directory.delete_log(PARTITION)
    assert PARTITION not in directory.logs


def test_a_file_that_cannot_be_removed_does_not_block_others(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    directory, log = machine.open_log()
    append(log, 60)
    directory.create_log(OTHER, TOPIC_ID, LogConfig())
    directory.delete_log(OTHER)
    drive(log.record_start(60))
    log.trim_before(60)
    delete_head(log, 60)
    kept = log.discarded[0][0]
    machine.storage.fail("remove", kept, is_bad_entry=True)
    for _ in range(3):
        drive(directory.maintain(10**15))
    assert not directory.offline
    assert machine.file_names(".deleted") == [posixpath.basename(kept)]
    assert not [name for name in machine.disk().list_directory(PATH) if name.endswith("-delete")]
    assert len([each for each in caplog.messages if kept in each]) == 1


@pytest.mark.parametrize("call", ["make_directory", "replace_file"])
def test_a_log_that_cannot_be_created_affects_only_its_partition(machine: Machine, call: str) -> None:
    directory = machine.open()
    machine.storage.fail(call, f"{PATH}/{PARTITION}", is_bad_entry=True)
    with pytest.raises(BadEntry):
        directory.create_log(PARTITION, TOPIC_ID, LogConfig())
    assert not directory.offline
    assert PARTITION not in directory.logs
    append(directory.create_log(OTHER, TOPIC_ID, LogConfig()), 1)


def test_a_directory_with_a_too_large_partition_number_is_left_alone(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """Any client would refuse every response that describes this broker's replicas."""
    directory, _ = machine.open_log()
    drive(directory.close(clean=True, high_watermarks={}))
    machine.storage.provision(f"{PATH}/lines-4294967296")
    directory = machine.open()
    assert list(directory.logs) == [PARTITION]
    assert len([each for each in caplog.messages if "lines-4294967296 is left alone" in each]) == 1
    drive(directory.maintain(0))
    assert machine.disk().exists(f"{PATH}/lines-4294967296")


def test_a_damaged_log_is_not_changed(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 30)
    log.mark_damaged("a test says so")
    names = machine.file_names()
    drive(directory.maintain(1_000_000))
    log.roll_if_aged(10**15)
    assert retention_start(log, 60, 10**15) == delete_head(log, 60) == 0
    drive(directory.close(clean=True, high_watermarks={}))
    assert machine.file_names() == names
    machine.kill()
    assert machine.open().logs[PARTITION].damage == "a test says so"


def test_a_log_set_aside_survives_a_restart_until_it_is_removed(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    log.mark_damaged("a test says so")
    directory.set_log_aside(PARTITION)
    directory.create_log(PARTITION, TOPIC_ID, LogConfig())
    drive(directory.maintain(0))
    machine.kill()
    directory = machine.open()
    assert directory.logs[PARTITION].damage is None
    aside = f"{PATH}/{PARTITION}.0-damaged"
    assert directory.set_aside == {PARTITION: [aside]}
    drive(directory.maintain(0))
    assert machine.disk().exists(aside)
    assert directory.remove_set_aside(PARTITION)
    drive(directory.maintain(0))
    assert not machine.disk().exists(aside)


@pytest.mark.parametrize("restarted", [False, True])
def test_nothing_of_a_deleted_partition_stays_in_the_directory(machine: Machine, restarted: bool) -> None:
    """Its damaged copies are of no use any more, either: no later step would find whose they were, and remove them."""
    directory, log = machine.open_log()
    append(log, 3)
    for _ in range(2):
        directory.logs[PARTITION].mark_damaged("a test says so")
        directory.set_log_aside(PARTITION)
        append(directory.create_log(PARTITION, TOPIC_ID, LogConfig()), 3)
    assert len(directory.set_aside[PARTITION]) == 2
    if restarted:
        drive(directory.maintain(0))
        machine.kill()
        directory = machine.open()
    directory.delete_log(PARTITION)
    drive(directory.maintain(0))
    assert [name for name in machine.disk().list_directory(PATH) if name.startswith(str(PARTITION))] == []
    assert directory.set_aside == {}


# ---------------------------------------------------------------------------------------------- of the whole directory
TOP_LEVEL = (
    "meta.properties",
    ".lock",
    ".clean_shutdown",
    "whole-since",
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "whole-since.tmp",
)


def _as_directory(path: Path) -> None:
    path.mkdir()
    (path / "foreign").write_bytes(b"file")


def _as_loop(path: Path) -> None:
    path.symlink_to(path.name)


def _as_pipe(path: Path) -> None:
    os.mkfifo(path)


def _as_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK)  # by `bind` its path could be 107 bytes long


def _as_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("name", TOP_LEVEL)
@pytest.mark.parametrize("put", [_as_directory, _as_loop, _as_pipe, _as_socket, _as_endless_device])
def test_a_bad_entry_of_the_directory_stops_the_broker_with_instructions(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    path = tmp_path / "log"
    directory = open_real(path)
    append(directory.create_log(PARTITION, TOPIC_ID, LogConfig()), 3)
    drive(directory.close(clean=True, high_watermarks={}))
    entry, kept = path / name, tmp_path / "kept"
    if entry.exists():
        entry.rename(kept)
    put(entry)
    before = sorted(path.iterdir())
    with pytest.raises(LogDirectoryError) as caught:
        open_real(path)
    assert f"{entry}: " in str(caught.value)
    assert "start the broker again" in str(caught.value)
    assert sorted(path.iterdir()) == before
    entry.rename(tmp_path / "moved away")
    if name == "meta.properties":
        kept.rename(entry)
    log = open_real(path).logs[PARTITION]
    assert (log.damage, log.log_end_offset) == (None, 6)


# ------------------------------------------------------------------------------------------------------- huge files
HUGE = 300 << 20
"""A sparse file, larger than any limit."""
REBUILT = ("leader-epoch-checkpoint", f"{0:020d}.index", f"{0:020d}.timeindex", f"{6:020d}.snapshot")
AS_IF_CORRUPT = ("whole-since", "recovery-point-offset-checkpoint", "replication-offset-checkpoint", ".clean_shutdown")


def _make_huge(path: Path) -> None:
    path.touch()
    os.truncate(path, HUGE)


@pytest.mark.parametrize("name", [*REBUILT, "log-start", "partition.metadata", "damage", *AS_IF_CORRUPT])
def test_a_huge_file_counts_as_unreadable_and_takes_no_memory(tmp_path: Path, name: str) -> None:
    directory = open_real(tmp_path)
    append(directory.create_log(PARTITION, TOPIC_ID, LogConfig(index_interval_bytes=100)), 3)
    drive(directory.close(clean=True, high_watermarks={}))
    _make_huge(tmp_path / name if name in AS_IF_CORRUPT else tmp_path / str(PARTITION) / name)
    tracemalloc.start()
    directory = open_real(tmp_path)
    log = directory.logs[PARTITION]
    if name != "damage":
        assert log.read(0, 1 << 20, 6).size_bytes > 0
        append(log, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < HUGE // 10
    assert not directory.offline
    assert (log.damage is not None) is (name == "damage")
    assert directory.was_clean is (name != ".clean_shutdown")


def test_a_huge_meta_properties_stops_the_broker_with_instructions(tmp_path: Path) -> None:
    drive(open_real(tmp_path).close(clean=True, high_watermarks={}))
    _make_huge(tmp_path / "meta.properties")
    with pytest.raises(LogDirectoryError, match=r"meta.properties is damaged .*it has \d+ bytes.*write its five lines"):
        open_real(tmp_path)


def test_a_file_in_place_of_the_directory_stops_the_broker_with_instructions(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    with pytest.raises(LogDirectoryError, match="cannot be used"):
        open_real(tmp_path / "log")


@pytest.mark.parametrize("clean", [True, False])
def test_a_start_and_a_stop_leave_no_file_open(tmp_path: Path, clean: bool) -> None:
    path = tmp_path / "log"
    directory = open_real(path)
    append(directory.create_log(PARTITION, TOPIC_ID, LogConfig(segment_bytes=600, index_interval_bytes=100)), 30)
    drive(directory.close(clean=clean, high_watermarks={}))
    before = sorted(os.listdir("/proc/self/fd"))
    for _ in range(3):
        directory = open_real(path)
        assert directory.logs[PARTITION].log_end_offset == 60
        drive(directory.close(clean=clean, high_watermarks={}))
    assert sorted(os.listdir("/proc/self/fd")) == before
