"""What a start recovers when files are torn, damaged, missing or wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minibroker.broker.log import recovery
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.segments import walk
from minibroker.protocol.files.checkpoints import DAMAGE_NOTE, format_epoch_checkpoint
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import DiskError
from tests.broker.log.machine import (
    OWNER,
    PARTITION,
    PATH,
    SMALL,
    TOPIC_ID,
    Batch,
    Machine,
    append,
    check_log,
    drive,
    make_batch,
    read_all,
    stored_batches,
)

ONE_SEGMENT = LogConfig(index_interval_bytes=100)
FIRST = f"{0:020d}.log"


def start_with(machine: Machine, count: int = 10, config: LogConfig = ONE_SEGMENT) -> tuple[PartitionLog, list[Batch]]:
    _, log = machine.open_log(config)
    written = []
    for number in range(count):
        written += append(log, 1, epoch=number // 4, producer=(number % 2, 0, number // 2 * 2))
    return log, written


def restart(machine: Machine, config: LogConfig = ONE_SEGMENT) -> PartitionLog:
    machine.kill()
    return machine.open_log(config)[1]


def restart_without_power(machine: Machine, config: LogConfig = ONE_SEGMENT) -> PartitionLog:
    """Restart after a power cut that lost nothing, which the start cannot know."""
    machine.kill()
    machine.storage.boots += 1
    return machine.open_log(config)[1]


@pytest.mark.invariant("I10", "I12", "I13", "I15")
@pytest.mark.parametrize("cut", range(1, 300, 7))
def test_a_torn_tail_is_cut_at_the_last_whole_batch(machine: Machine, cut: int) -> None:
    _, written = start_with(machine)
    content = machine.content(FIRST)
    machine.edit(FIRST, content[:-cut])
    log = restart(machine)
    whole = [batch for _, batch in written]
    while sum(map(len, whole)) > len(content) - cut:
        whole.pop()
    assert read_all(log) == b"".join(whole)
    assert log.report.bytes_cut == len(content) - cut - sum(map(len, whole))
    assert (log.report.reason is None) == (log.report.bytes_cut == 0)
    check_log(log)


@pytest.mark.invariant("I44")
def test_a_start_that_fails_while_loading_does_not_hide_a_power_loss(machine: Machine) -> None:
    """D20b: the next start took a torn batch for rot, as if the machine had not gone down."""
    _, written = start_with(machine)
    content = machine.content(FIRST)
    machine.edit(FIRST, content[:-1] + bytes([content[-1] ^ 0xFF]))
    machine.kill()
    machine.storage.boots += 1
    machine.storage.fail("read", path_prefix=f"{PATH}/{PARTITION}")
    with pytest.raises(DiskError):
        machine.open()
    machine.storage.heal()
    log = restart(machine)
    assert log.damage is None
    assert read_all(log) == b"".join(batch for _, batch in written[:-1])


@pytest.mark.parametrize("garbage", [b"\0", b"\0" * 1_000, b"\xff" * 61, b"M" * 5_000, bytes(range(256)) * 3])
def test_a_garbage_tail_is_cut(machine: Machine, garbage: bytes) -> None:
    _, written = start_with(machine)
    machine.edit(FIRST, machine.content(FIRST) + garbage)
    log = restart_without_power(machine)
    assert read_all(log) == b"".join(batch for _, batch in written)
    assert log.report.bytes_cut == len(garbage)


@pytest.mark.invariant("I12", "I13", "I15")
def test_any_flipped_bit_ends_the_log_at_its_batch(machine: Machine) -> None:
    log, written = start_with(machine, 6)
    content = machine.content(FIRST)
    size = len(written[0][1])
    for position in range(2 * size, 3 * size, 3):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        machine.edit(FIRST, bytes(damaged))
        log = restart_without_power(machine)
        expected = b"".join(batch for _, batch in written[:2])
        is_covered = not (position - 2 * size < 8 or 12 <= position - 2 * size < 16)  # covered by the CRC
        if is_covered:
            assert read_all(log) == expected
            check_log(log)
        else:
            assert log.damage is not None and "the batch there is whole" in log.damage
            assert log.log_end_offset in (4, 6), "only a lower epoch after it reveals a grown one"
            assert machine.content(FIRST) == bytes(damaged)
            machine.disk().remove(f"{log.directory}/{DAMAGE_NOTE}")
        machine.edit("leader-epoch-checkpoint", format_epoch_checkpoint([(0, 0), (1, 8)], OWNER))


Start = Callable[[Machine], PartitionLog]


@pytest.mark.parametrize("start", [restart, restart_without_power])
def test_a_whole_batch_at_the_wrong_offset_is_damage_after_any_stop(machine: Machine, start: Start) -> None:
    start_with(machine, 3)
    content = machine.content(FIRST) + make_batch(7)[1]
    machine.edit(FIRST, content)
    log = start(machine)
    assert log.log_end_offset == 6
    assert "offset 7 where 6 belongs" in str(log.damage)
    assert machine.content(FIRST) == content, "nothing is cut"


@pytest.mark.parametrize("start", [restart, restart_without_power])
def test_a_whole_batch_of_a_falling_epoch_is_damage_after_any_stop(machine: Machine, start: Start) -> None:
    start_with(machine, 9)
    machine.edit(FIRST, machine.content(FIRST) + make_batch(18, epoch=1)[1])
    log = start(machine)
    assert log.log_end_offset == 18
    assert "leader epoch 1 behind epoch 2" in str(log.damage)


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("bit", [0, 6])
def test_an_epoch_that_falls_between_a_closed_segment_and_the_next_is_damage(machine: Machine, bit: int) -> None:
    """The epoch of the closed segment's last batch rotted upward; nothing else of that segment is read (seed 17262314).
    After a power cut no epoch file contradicts it."""
    directory, log = machine.open_log(SMALL)
    append(log, 20, epoch=2)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    closed = log.segments[-2]
    last = closed.size - len(make_batch(0)[1])
    machine.lose_power()
    machine.storage.flip_bit(closed.log_path, last + 15, bit)
    _, log = machine.open_log(SMALL)
    assert "behind epoch" in str(log.damage)


@pytest.mark.invariant("I13", "I20")
@pytest.mark.parametrize("batch", [3, 4])
def test_an_epoch_that_begins_elsewhere_than_its_file_says_is_damage_after_a_power_cut(
    machine: Machine, batch: int
) -> None:
    """One bit turned the epoch of a batch into that of its neighbour, which no CRC covers (seed 17520936). In all
    states of the file that a power cut may leave, an epoch begins where its leader began it."""
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=0)
    append(log, 4, epoch=2)
    drive(log.flush())
    machine.lose_power()
    machine.storage.flip_bit(log.segments[0].log_path, batch * len(make_batch(0)[1]) + 15, 1)
    _, log = machine.open_log(ONE_SEGMENT)
    assert "different leader epochs" in str(log.damage)


def test_segments_after_a_torn_tail_are_deleted(machine: Machine) -> None:
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    log, _ = start_with(machine, 20, config)
    assert log.segment_count > 3
    second = log.segments[1]
    machine.storage.flip_bit(second.log_path, 70)
    end = second.base_offset
    lost_bytes = sum(segment.size for segment in log.segments[1:])
    log = restart_without_power(machine, config)
    assert log.log_end_offset == end
    assert log.report.segments_removed > 0
    assert log.report.bytes_cut == lost_bytes
    assert [int(name[:20]) for name in machine.file_names(".log")] == [0, end]
    check_log(log)


def test_only_segments_from_the_recovery_point_on_are_scanned(machine: Machine) -> None:
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    directory, log = machine.open_log(config)
    append(log, 20)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    append(log, 10)
    log = restart(machine, config)
    assert log.report.segments_scanned < log.report.segments
    check_log(log)


@pytest.mark.invariant("I10")
def test_recovery_does_not_advance_the_recovery_point(machine: Machine) -> None:
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    directory, log = machine.open_log(config)
    append(log, 10)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    append(log, 10)
    assert restart(machine, config).recovery_point == 20


def test_after_a_crash_nothing_of_the_last_segment_counts_as_synced(machine: Machine) -> None:
    """A truncation may have lowered the recovery point after its checkpoint, so later appends are not synced."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(directory.close(True, {}))
    machine.kill()
    _, log = machine.open_log(ONE_SEGMENT)
    log.truncate_to(4)
    written = append(log, 10, value=b"new")
    log = restart(machine)
    assert drive(log.flush()) == 24
    machine.lose_power()
    _, log = machine.open_log(ONE_SEGMENT)
    assert read_all(log).endswith(b"".join(batch for _, batch in written))


@pytest.mark.invariant("I15")
@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".snapshot"])
@pytest.mark.parametrize("damage", ["missing", "empty", "torn", "zeros", "noise"])
def test_side_files_are_rebuilt(machine: Machine, suffix: str, damage: str) -> None:
    """Also after a clean stop, although the files are trusted then."""
    config = LogConfig(segment_bytes=900, index_interval_bytes=100)
    directory, log = machine.open_log(config)
    written = [append(log, 1, producer=(1, 0, 2 * number))[0] for number in range(30)]
    drive(directory.close(True, {}))
    machine.kill()
    for name in machine.file_names(suffix):
        content = machine.content(name)
        if damage == "missing":
            machine.disk().remove(f"{log.directory}/{name}")
        else:
            size = len(content)
            changed = {"empty": b"", "torn": content[:-3], "zeros": bytes(size), "noise": b"\x07" * size}
            machine.edit(name, changed[damage])
    _, log = machine.open_log(config)
    assert log.report.clean
    assert read_all(log) == b"".join(batch for _, batch in written)
    for offset in range(60):
        assert log.health.tail_cache.size_bytes == 0
        assert log.read(offset, 1, 60).base_offset == offset - offset % 2
    log.truncate_to(41)
    check_log(log)


@pytest.mark.invariant("I15", "I25")
@pytest.mark.parametrize("source", ["older", "other partition", "other topic"])
def test_a_snapshot_of_another_log_or_offset_is_not_used(machine: Machine, source: str) -> None:
    """D27: its checksum is valid. If it were used, a retry of a later batch would be written a second time."""
    config = LogConfig(segment_bytes=900, index_interval_bytes=100)
    directory = machine.open(config)
    log = directory.create_log(PARTITION, TOPIC_ID, config)
    of_topic = source == "other topic"
    other = directory.create_log(
        TopicPartition("other" if of_topic else PARTITION.topic, 0 if of_topic else 1),
        "id-of-other" if of_topic else TOPIC_ID,
        config,
    )
    for number in range(30):
        append(log, 1, producer=(1, 0, 2 * number))
        append(other, 1, producer=(number, 0, 0))
    drive(directory.close(True, {}))
    machine.kill()
    *_, older, newest = machine.file_names(".snapshot")
    other_name = machine.file_names(".snapshot", other.directory)[-1]
    source_path = f"{log.directory}/{older}" if source == "older" else f"{other.directory}/{other_name}"
    machine.edit(newest, machine.disk().read_file(source_path, 1 << 20))
    directory = machine.open(config)
    log = directory.create_log(PARTITION, TOPIC_ID, config)
    assert log.report.clean
    check_log(log)


def test_an_index_of_another_segment_is_rebuilt(machine: Machine) -> None:
    config = LogConfig(segment_bytes=900, index_interval_bytes=100)
    directory, log = machine.open_log(config)
    append(log, 4, records=1)
    append(log, 20, records=3)
    drive(directory.close(True, {}))
    machine.kill()
    first, second, *_ = machine.file_names(".index")
    machine.edit(first, machine.content(second))
    _, log = machine.open_log(config)
    assert log.read(2, 1, 100).base_offset == 2
    check_log(log)


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("content", [None, b"", b"0\n1\n", b"0\n2\n3 0\n2 8\n", b"\xff\xfe", b"0\n1\n9 0\n"])
@pytest.mark.parametrize("clean", [True, False])
def test_leader_epochs_are_rebuilt_from_the_batches(machine: Machine, content: bytes | None, clean: bool) -> None:
    """KAFKA-10432: epoch 0 is an epoch, too."""
    config = LogConfig(segment_bytes=900, index_interval_bytes=100)
    directory, log = machine.open_log(config)
    for epoch in range(3):
        append(log, 8, epoch=epoch)
    entries = log.epoch_entries()
    assert entries == [(0, 0), (1, 16), (2, 32)]
    if clean:
        drive(directory.close(True, {}))
    machine.kill()
    if content is None:
        machine.disk().remove(f"{log.directory}/leader-epoch-checkpoint")
    else:
        machine.edit("leader-epoch-checkpoint", content)
    _, log = machine.open_log(config)
    if content != b"0\n1\n9 0\n" or not clean:  # believed after a clean stop: it is well-formed
        assert log.epoch_entries() == entries


def test_a_log_that_ends_below_its_start_is_empty_at_that_start(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 1, epoch=3, producer=(7, 0, 0))
    append(log, 9, epoch=3)
    log.trim_before(15)
    drive(directory.record_log_starts())
    machine.kill()
    machine.edit(FIRST, machine.content(FIRST)[:200])
    machine.storage.boots += 1  # a power cut took its tail
    _, log = machine.open_log(ONE_SEGMENT)
    assert (log.log_start_offset, log.log_end_offset, log.epoch_entries()) == (15, 15, [])
    assert list(log.producers) == [], "what they wrote last may have been in the lost tail"
    append(log, 1, epoch=4)
    check_log(log)


@pytest.mark.parametrize("kept_segment", [2, 4])
def test_the_leftover_of_an_interrupted_deletion_is_removed(machine: Machine, kept_segment: int) -> None:
    """Segments in front of a gap below the recorded start were being deleted; those behind it are deleted later."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    directory, log = machine.open_log(config)
    append(log, 30)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    kept, first = log.segments[kept_segment].base_offset, log.segments[2].base_offset
    drive(log.record_start(kept))
    machine.kill()
    machine.disk().remove(log.segments[1].log_path)
    _, log = machine.open_log(config)
    assert log.damage is None
    assert (log.log_start_offset, log.log_end_offset) == (kept, 60)
    assert log.segments[0].base_offset == first
    assert {name[:20] for name in machine.file_names("log")} == {f"{each.base_offset:020d}" for each in log.segments}
    check_log(log)


def test_segments_after_a_missing_unsynced_one_are_removed(machine: Machine) -> None:
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    log, _ = start_with(machine, 30, config)
    end = log.segments[2].base_offset
    machine.kill()
    machine.disk().remove(log.segments[2].log_path)
    _, log = machine.open_log(config)
    assert (log.log_start_offset, log.log_end_offset) == (0, end)
    check_log(log)


def test_an_empty_partition_directory_is_an_empty_log(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    machine.kill()
    machine.disk().remove(f"{log.directory}/{FIRST}")
    _, log = machine.open_log(ONE_SEGMENT)
    assert (log.log_start_offset, log.log_end_offset, log.segment_count) == (0, 0, 1)


def test_foreign_files_are_left_alone(machine: Machine) -> None:
    start_with(machine, 3)
    machine.edit("notes.txt", b"mine")
    machine.edit("00000000000000000009.log.deleted", b"old")
    machine.edit("00000000000000000009.index", b"")
    restart(machine)
    names = machine.file_names()
    assert "notes.txt" in names
    assert not [name for name in names if "9.log" in name or "9.index" in name]


@pytest.mark.parametrize("cut", [20, 156])
def test_a_misfit_after_a_clean_stop_is_damage(machine: Machine, cut: int) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(directory.close(True, {}))
    machine.kill()
    kept = machine.content(FIRST)[:-cut]
    machine.edit(FIRST, kept)
    _, log = machine.open_log(ONE_SEGMENT)
    assert "a clean stop" in str(log.damage)
    assert log.log_end_offset == 18
    assert machine.content(FIRST) == kept, "damage removes nothing"


def test_after_a_clean_stop_nothing_is_scanned(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    written = append(log, 10)
    drive(directory.close(True, {}))
    machine.kill()
    _, log = machine.open_log(ONE_SEGMENT)
    assert (log.report.clean, log.report.bytes_scanned, log.recovery_point) == (True, 0, 20)
    assert len(stored_batches(log)) == len(written)


@pytest.mark.invariant("I15", "I25")
def test_producers_of_a_clean_stop_are_known(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 1, producer=(1, 0, 0))
    append(log, 1, producer=(2, 5, 0))
    drive(directory.close(True, {}))
    machine.kill()
    check_log(machine.open_log(ONE_SEGMENT)[1])


@pytest.mark.invariant("I15", "I25")
def test_snapshots_of_a_lost_tail_are_not_used_for_its_replacement(machine: Machine) -> None:
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    log, _ = start_with(machine, 20, config)
    snapshots = list(log.snapshots.offsets)
    machine.storage.flip_bit(log.segments[0].log_path, 200)
    log = restart_without_power(machine, config)
    assert log.log_end_offset < snapshots[0]
    while log.log_end_offset < snapshots[-1]:
        append(log, 1, epoch=9, producer=(5, 0, log.log_end_offset), records=1)
    log.truncate_to(snapshots[-1] - 1)
    check_log(log)


def test_a_restart_on_a_full_disk_works(machine: Machine) -> None:
    start_with(machine, 20)
    machine.kill()
    machine.storage.capacity_bytes = machine.storage.used_bytes
    directory = machine.open(ONE_SEGMENT)
    (log,) = directory.logs.values()
    assert log.log_end_offset == 40
    assert log.read(0, 1_000_000, 40).next_offset == 40


def test_a_scan_of_several_segments_needs_no_room_for_its_snapshots(machine: Machine) -> None:
    config = LogConfig(segment_bytes=500, index_interval_bytes=100)
    start_with(machine, 20, config)
    machine.kill()
    for name in machine.file_names(".snapshot"):
        machine.disk().remove(f"{PATH}/{PARTITION}/{name}")
    machine.storage.capacity_bytes = machine.storage.used_bytes
    _, log = machine.open_log(config)
    assert log.segment_count > 2
    assert (log.log_end_offset, machine.file_names(".snapshot")) == (40, [])
    check_log(log)


@pytest.mark.invariant("I12", "I13", "I15")
@pytest.mark.parametrize("scan_bytes", [61, 100, 200, 1_000])
def test_batches_are_read_whole_at_any_position_in_the_chunks_of_a_scan(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, scan_bytes: int
) -> None:
    _, written = start_with(machine)
    monkeypatch.setattr(walk, "SCAN_BYTES", scan_bytes)
    log = restart(machine)
    assert log.report.bytes_scanned == sum(len(batch) for _, batch in written)
    assert log.report.bytes_cut == 0
    assert read_all(log) == b"".join(batch for _, batch in written)
    check_log(log)


def test_producers_of_a_long_scan_are_updated_in_pieces(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    before, _ = start_with(machine)
    monkeypatch.setattr(recovery, "PRODUCED_AT_ONCE", 3)
    assert restart(machine).producers == before.producers
