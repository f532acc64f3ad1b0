"""The owner of the log in a directory: another partition's log is not served, cut, or given to another topic."""

from __future__ import annotations

import pytest

from minibroker.broker.log import ownership
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.ownership import may_be_of
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.side_files.damage_note import READ_MAX
from minibroker.protocol.files.checkpoints import (
    LOG_START,
    PARTITION_METADATA,
    SMALL_FILE_BYTES_MAX,
    LogStart,
    LogStartReason,
    format_epoch_checkpoint,
    format_log_start,
)
from minibroker.protocol.files.partition_metadata import PartitionMetadata, format_partition_metadata
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import read_header
from minibroker.runtime.ports import DiskError, OutOfDescriptors
from tests.broker.log.machine import PARTITION, PATH, TOPIC_ID, Machine, append, drive, read_all

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
SECOND = TopicPartition(PARTITION.topic, 1)


def two_logs(machine: Machine) -> LogDirectory:
    """Two logs of one topic, equal except for their records' values; all of it is synced."""
    directory = machine.open(CONFIG)
    for partition in (PARTITION, SECOND):
        log = directory.create_log(partition, TOPIC_ID, CONFIG)
        append(log, 30, value=f"record of {partition}".encode())
        drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    return directory


def swap(machine: Machine) -> None:
    disk = machine.disk()
    disk.rename(f"{PATH}/{PARTITION}", f"{PATH}/between")
    disk.rename(f"{PATH}/{SECOND}", f"{PATH}/{PARTITION}")
    disk.rename(f"{PATH}/between", f"{PATH}/{SECOND}")


def names_in(machine: Machine, partition: TopicPartition) -> dict[str, bytes]:
    directory = f"{PATH}/{partition}"
    return {
        name: machine.disk().read_file(f"{directory}/{name}", SMALL_FILE_BYTES_MAX)
        for name in machine.file_names("", directory)
    }


@pytest.mark.invariant("I2", "I16")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("lost", [None, "partition.metadata", "log-start"])
def test_the_directory_of_another_partition_is_damage(machine: Machine, clean: bool, lost: str | None) -> None:
    directory = two_logs(machine)
    if clean:
        drive(directory.close(True, {}))
    machine.kill()
    swap(machine)
    for partition in (PARTITION, SECOND) if lost is not None else ():
        machine.disk().remove(f"{PATH}/{partition}/{lost}")
    before = [names_in(machine, partition) for partition in (PARTITION, SECOND)]
    directory = machine.open(CONFIG)
    assert "is of partition 1 of topic id" in str(directory.logs[PARTITION].damage)
    assert "in the directory of partition 1" in str(directory.logs[SECOND].damage)
    assert directory.logs[PARTITION].topic_id is None
    drive(directory.maintain(10**12))
    assert [names_in(machine, partition) for partition in (PARTITION, SECOND)] == before


@pytest.mark.invariant("I21", "I39")
@pytest.mark.parametrize("offset", [40, 1_000])
@pytest.mark.parametrize("owner", [(TOPIC_ID, 1), ("another-id", 0)])
def test_a_log_start_of_another_log_removes_nothing(machine: Machine, owner: tuple[str, int], offset: int) -> None:
    two_logs(machine)
    other = LogStart(topic_id=owner[0], partition=owner[1], offset=offset, reason=LogStartReason.RETENTION)
    machine.edit("log-start", format_log_start(other, 7) + bytes(4_096))
    before = names_in(machine, PARTITION)
    machine.kill()
    log = machine.open(CONFIG).logs[PARTITION]
    assert "log-start" in str(log.damage)
    assert (log.topic_id, names_in(machine, PARTITION)) == (None, before)


def test_rot_in_one_of_the_two_files_does_not_damage_the_log(machine: Machine) -> None:
    directory = two_logs(machine)
    expected = read_all(directory.logs[PARTITION])
    machine.storage.flip_bit(f"{PATH}/{PARTITION}/partition.metadata", 45)
    machine.storage.flip_bit(f"{PATH}/{SECOND}/log-start", 45)
    machine.kill()
    directory = machine.open(CONFIG)
    assert [log.damage for log in directory.logs.values()] == [None, None]
    assert read_all(directory.logs[PARTITION]) == expected


def test_files_of_another_version_are_not_treated_as_lost(machine: Machine) -> None:
    """The damage has one clear reason, and the log stays as it is."""
    two_logs(machine)
    machine.edit("partition.metadata", f"version: 0\ntopic_id: {TOPIC_ID}\n".encode())
    machine.disk().remove(f"{PATH}/{PARTITION}/log-start")
    machine.kill()
    log = machine.open(CONFIG).logs[PARTITION]
    assert str(log.damage).startswith("partition.metadata has version 0, not 1")
    assert machine.content("partition.metadata").startswith(b"version: 0")


# --------------------------------------------------------------------------------------------------------- set aside
def set_aside_first(machine: Machine) -> tuple[LogDirectory, PartitionLog]:
    """The log in the directory of the first partition is set aside, and the partition starts empty."""
    machine.kill()
    directory = machine.open(CONFIG)
    assert directory.logs[PARTITION].damage is not None
    directory.set_log_aside(PARTITION)
    return directory, directory.create_log(PARTITION, TOPIC_ID, CONFIG)


def test_another_partitions_log_is_set_aside_under_its_owners_name(machine: Machine) -> None:
    """It may be the only copy: the first partition does not remove it when it is in sync again."""
    two_logs(machine)
    machine.kill()
    swap(machine)
    directory, _ = set_aside_first(machine)
    aside = f"{PATH}/{SECOND}.0-damaged"
    assert directory.set_aside == {SECOND: [aside]}
    assert not directory.remove_set_aside(PARTITION)
    drive(directory.maintain(0))
    assert machine.disk().exists(aside)
    machine.kill()
    assert machine.open(CONFIG).set_aside == {SECOND: [aside]}


def test_the_next_start_knows_a_damaged_log_of_a_topic_with_a_long_name(machine: Machine) -> None:
    """Its directory stayed for ever, and another topic whose name was the same up to there removed it."""
    partition = TopicPartition("x" * 230, 0)
    directory = machine.open(CONFIG)
    append(directory.create_log(partition, TOPIC_ID, CONFIG), 3)
    directory.logs[partition].mark_damaged("a test says so")
    directory.set_log_aside(partition)
    machine.kill()
    assert list(machine.open(CONFIG).set_aside) == [partition]


@pytest.mark.invariant("I26")
@pytest.mark.parametrize("is_nameless", [False, True])
@pytest.mark.parametrize("topic_id", [TOPIC_ID, "id-of-the-next-topic-of-that-name"])
def test_a_log_put_there_while_the_broker_runs_is_not_the_new_log(
    machine: Machine, topic_id: str, is_nameless: bool
) -> None:
    """A backup of a deleted topic was put back before the topic was made again: its records were the new topic's."""
    directory = two_logs(machine)
    directory.delete_log(PARTITION)
    disk, place = machine.disk(), f"{PATH}/{PARTITION}"
    disk.rename(f"{place}.0-delete", place)
    for name in ("partition.metadata", "log-start") if is_nameless else ():
        disk.remove(f"{place}/{name}")
    log = directory.create_log(PARTITION, topic_id, CONFIG)
    assert (log.log_end_offset, log.damage) == (0, None)
    assert directory.set_aside == {PARTITION: [f"{place}.0-damaged"]}
    assert disk.list_directory(f"{place}.0-damaged")


def test_the_log_start_of_another_topic_is_not_that_of_a_new_log(machine: Machine) -> None:
    directory = two_logs(machine)
    machine.disk().make_directory(f"{PATH}/lines-2")
    other = LogStart(topic_id=TOPIC_ID, partition=1, offset=1_000, reason=LogStartReason.RETENTION)
    machine.disk().replace_file(f"{PATH}/lines-2/log-start", format_log_start(other, 7) + bytes(4_096))
    log = directory.create_log(TopicPartition("lines", 2), TOPIC_ID, CONFIG)
    assert (log.log_start_offset, log.log_end_offset) == (0, 0)
    assert directory.set_aside == {SECOND: [f"{PATH}/{SECOND}.0-damaged"]}


def test_a_directory_made_for_a_new_log_is_used(machine: Machine) -> None:
    """As a link to another disk is; and what a failed creation leaves."""
    directory = machine.open(CONFIG)
    place = f"{PATH}/{PARTITION}"
    machine.disk().make_directory(place)
    metadata = format_partition_metadata(PartitionMetadata(topic_id=TOPIC_ID, partition=0))
    machine.disk().replace_file(f"{place}/partition.metadata", metadata)
    machine.disk().replace_file(f"{place}/{0:020d}.log", b"")
    assert directory.create_log(PARTITION, TOPIC_ID, CONFIG).log_end_offset == 0
    assert directory.set_aside == {}


def test_a_log_of_another_topic_hides_none_of_the_partition_that_was_set_aside_later(machine: Machine) -> None:
    directory = two_logs(machine)
    log = directory.logs[PARTITION]
    wanted = machine.content(log.segments[0].log_path.rpartition("/")[2])
    log.mark_damaged("a test says so")
    directory.set_log_aside(PARTITION)
    directory.create_log(PARTITION, TOPIC_ID, CONFIG)
    other = f"{PATH}/{PARTITION}.9-damaged"
    machine.disk().make_directory(other)
    foreign = LogStart(topic_id="another", partition=0, offset=0, reason=LogStartReason.CREATED)
    machine.disk().replace_file(f"{other}/log-start", format_log_start(foreign, 0))
    directory.set_aside[PARTITION].insert(0, other)
    found = directory.read_set_aside(PARTITION, 0, len(wanted))
    assert found is not None
    assert wanted.startswith(bytes(found))


def test_a_directory_that_cannot_be_read_is_not_taken_for_the_partitions_own(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_logs(machine)
    place = f"{PATH}/{PARTITION}"
    assert may_be_of(machine.disk(), place, TOPIC_ID, PARTITION)

    def fail(disk: object, directory: str) -> None:
        raise DiskError(f"{directory} cannot be read")

    monkeypatch.setattr(ownership, "read_claims", fail)
    assert not may_be_of(machine.disk(), place, TOPIC_ID, PARTITION)


def test_salvage_takes_only_records_of_the_partition(machine: Machine) -> None:
    directory = two_logs(machine)
    directory.logs[PARTITION].mark_damaged("a test says so")
    directory, _ = set_aside_first(machine)
    assert directory.read_set_aside(PARTITION, 0, 10_000) is not None
    aside = f"{PATH}/{PARTITION}.0-damaged"
    metadata = format_partition_metadata(PartitionMetadata(topic_id=TOPIC_ID, partition=1))
    machine.disk().replace_file(f"{aside}/partition.metadata", metadata)
    assert directory.read_set_aside(PARTITION, 0, 10_000) is None


def test_salvage_reaches_the_last_of_many_records(machine: Machine) -> None:
    directory, log = machine.open_log(CONFIG)
    append(log, 100)
    log.mark_damaged("a test says so")
    directory, _ = set_aside_first(machine)
    last = directory.read_set_aside(PARTITION, 198, 10_000)
    assert last is not None
    assert read_header(last).base_offset == 198
    for offset in (199, 200):
        assert directory.read_set_aside(PARTITION, offset, 10_000) is None, "no batch begins there"


@pytest.mark.parametrize("first_epoch_at", [None, 50])
def test_salvage_takes_no_record_of_an_unknown_epoch(machine: Machine, first_epoch_at: int | None) -> None:
    directory, log = machine.open_log(CONFIG)
    append(log, 20)
    log.mark_damaged("a test says so")
    directory, _ = set_aside_first(machine)
    assert directory.read_set_aside(PARTITION, 0, 10_000) is not None
    file = f"{PATH}/{PARTITION}.0-damaged/leader-epoch-checkpoint"
    if first_epoch_at is None:
        machine.disk().remove(file)
    else:
        machine.disk().replace_file(file, format_epoch_checkpoint([(0, first_epoch_at)], (TOPIC_ID, 0)))
    assert directory.read_set_aside(PARTITION, 0, 10_000) is None


def test_only_the_first_line_of_a_damage_note_is_the_reason(machine: Machine) -> None:
    directory, log = machine.open_log(CONFIG)
    append(log, 3)
    drive(directory.close(True, {}))
    machine.edit("damage", b"a checksum is wrong\nsee the log of broker 3\n")
    assert machine.open(CONFIG).logs[PARTITION].damage == "a checksum is wrong"


@pytest.mark.parametrize("note", ["x" * 40_000, "a line\n" * 5_000, "\x00\x1b[31m" * 8_000])
def test_a_damage_note_is_passed_on_as_one_short_line(machine: Machine, note: str) -> None:
    directory, log = machine.open_log(CONFIG)
    append(log, 3)
    drive(directory.close(True, {}))
    machine.kill()
    machine.edit("damage", note.encode())
    damage = machine.open(CONFIG).logs[PARTITION].damage
    assert damage is not None
    assert damage.isprintable()
    assert len(damage) <= READ_MAX


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("is_emptied", [False, True])
def test_the_epochs_of_another_partition_are_not_believed(machine: Machine, clean: bool, is_emptied: bool) -> None:
    directory = machine.open(CONFIG)
    for partition, first in ((PARTITION, 10), (SECOND, 3)):
        log = directory.create_log(partition, TOPIC_ID, CONFIG)
        append(log, first)
        append(log, 30 - first, epoch=4 if partition == PARTITION or not is_emptied else 50)
    log = directory.logs[PARTITION]
    if is_emptied:
        log.trim_before(log.log_end_offset, LogStartReason.RETENTION)
        drive(directory.record_log_starts())
        delete_head(log, log.log_end_offset)
    drive(directory.close(clean, {}))
    machine.kill()
    machine.edit("leader-epoch-checkpoint", names_in(machine, SECOND)["leader-epoch-checkpoint"])
    log = machine.open(CONFIG).logs[PARTITION]
    assert log.damage is None
    assert (50 not in dict(log.epoch_entries())) if is_emptied else log.epoch_entries() == [(0, 0), (4, 20)]


@pytest.mark.parametrize("is_broken", [True, False])
def test_what_a_failed_creation_left_is_not_taken_for_a_foreign_log_because_it_cannot_be_read(
    machine: Machine, is_broken: bool
) -> None:
    """It was set aside as a log that was put there, and a repair was reported that there never was. Of a broken disk
    nothing learned."""
    directory = machine.open(CONFIG)
    machine.storage.fail("replace_file", f"{PATH}/{PARTITION}/{LOG_START}", times=1, no_descriptor=True)
    with pytest.raises(OutOfDescriptors):
        directory.create_log(PARTITION, TOPIC_ID, CONFIG)
    machine.storage.fail("read", f"{PATH}/{PARTITION}/{PARTITION_METADATA}", times=1, no_descriptor=not is_broken)
    with pytest.raises(DiskError):
        directory.create_log(PARTITION, TOPIC_ID, CONFIG)
    assert (directory.set_aside, directory.offline) == ({}, is_broken)
    if not is_broken:
        directory.create_log(PARTITION, TOPIC_ID, CONFIG)
        assert directory.set_aside == {}
