"""An entry that cannot be used stops its partition, and nothing else; one of the whole directory stops the broker."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.errors import LogDirectoryError
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.retention import retention_start
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.clock import RealClock
from minibroker.runtime.disk import RealDisk
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
    anew = directory.create_log(PARTITION, TOPIC_ID, LogConfig())
    assert (anew.damage, anew.log_end_offset) == (None, 0)
    drive(directory.close(clean=True, high_watermarks={}))
    assert not directory.offline


def test_a_damaged_log_is_left_as_it_is(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 30)
    log.mark_damaged("somebody says so")
    names = machine.file_names()
    drive(directory.maintain(1_000_000))
    log.roll_if_aged(10**15)
    assert retention_start(log, 60, 10**15) == delete_head(log, 60) == 0
    drive(directory.close(clean=True, high_watermarks={}))
    assert machine.file_names() == names
    machine.kill()
    assert machine.open().logs[PARTITION].damage == "somebody says so"


def test_what_was_set_aside_is_kept_over_a_start_until_it_is_not_needed(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 3)
    log.mark_damaged("somebody says so")
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
    (path / "somebody's").write_bytes(b"file")


def _as_loop(path: Path) -> None:
    path.symlink_to(path.name)


def _as_pipe(path: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("name", TOP_LEVEL)
@pytest.mark.parametrize("put", [_as_directory, _as_loop, _as_pipe])
def test_a_bad_entry_of_the_directory_stops_the_broker_with_the_cure(
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


def test_a_file_in_the_place_of_the_directory_stops_the_broker_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"")
    with pytest.raises(LogDirectoryError, match="cannot be used"):
        open_real(tmp_path / "log")
