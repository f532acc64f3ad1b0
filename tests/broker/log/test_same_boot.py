"""What a start believes after a kill or a clean stop on the same boot: the kernel has all that was written."""

from __future__ import annotations

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.side_files.epoch_file import EpochEntry, contradicted_at
from minibroker.protocol.files.checkpoints import format_epoch_checkpoint
from minibroker.runtime.ports import DiskError, OutOfDescriptors
from tests.broker.log.machine import OWNER, PARTITION, PATH, Machine, append, drive, make_batch, truncate
from tests.broker.log.test_log_directory import lose_power_below_the_high_watermark
from tests.broker.log.test_recovery import FIRST, ONE_SEGMENT, restart, start_with

EPOCH_FIELD_END = 16
CHECKPOINT = f"{PATH}/replication-offset-checkpoint"


@pytest.mark.invariant("I12")
def test_any_flipped_bit_is_damage_on_the_same_boot(machine: Machine) -> None:
    """The kernel had all bytes, so nothing was torn (D18)."""
    _, written = start_with(machine, 6)
    content, size = machine.content(FIRST), len(written[0][1])
    for position in range(2 * size, 3 * size):
        for bit in (1, 16, 128):
            damaged = bytearray(content)
            damaged[position] ^= bit
            machine.edit(FIRST, bytes(damaged))
            log = restart(machine)
            assert log.damage is not None
            assert machine.content(FIRST) == bytes(damaged), "nothing is cut"
            if log.damage is not None:
                machine.disk().remove(f"{log.directory}/damage")
            machine.edit("leader-epoch-checkpoint", format_epoch_checkpoint([(0, 0), (1, 8)], OWNER))


@pytest.mark.invariant("I20")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("batch", "bit"), [*((each, 1) for each in range(5)), (4, 2), (4, 64)])
def test_an_epoch_that_rots_is_damage_on_the_same_boot(machine: Machine, batch: int, bit: int, clean: bool) -> None:
    """It still follows from the batch before, so only the epoch file contradicts it (seed 17142375)."""
    directory, log = machine.open_log(ONE_SEGMENT)
    written = [append(log, epoch=epoch)[0][1] for epoch in (0, 1, 3, 3, 5)]
    if clean:
        drive(directory.close(True, {}))
    machine.kill()
    content = bytearray(machine.content(FIRST))
    content[sum(map(len, written[:batch])) + EPOCH_FIELD_END - 1] ^= bit
    machine.edit(FIRST, bytes(content))
    _, log = machine.open_log(ONE_SEGMENT)
    is_read_at_start = not clean or batch == len(written) - 1
    assert (log.damage is not None) is is_read_at_start


@pytest.mark.invariant("I20", "I44")
def test_an_epoch_is_in_the_file_before_its_first_batch(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=3)
    log.append([make_batch(log.log_end_offset + 2 * at, epoch=epoch) for at, epoch in enumerate((3, 5, 7))])
    assert machine.content("leader-epoch-checkpoint") == format_epoch_checkpoint([(3, 0), (5, 10), (7, 12)], OWNER)
    log = restart(machine)
    assert (log.damage, log.epoch_entries()) == (None, [(3, 0), (5, 10), (7, 12)])


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("call", ["replace_file", "append"])
def test_a_batch_of_a_new_epoch_that_cannot_be_written_is_no_damage_later(machine: Machine, call: str) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=3)
    machine.storage.fail(call, times=1, is_full=True)
    with pytest.raises(DiskError):
        log.append([make_batch(log.log_end_offset, epoch=5)])
    log = restart(machine)
    assert log.damage is None
    append(log, 2, epoch=6)
    log = restart(machine)
    assert (log.damage, log.epoch_entries()) == (None, [(3, 0), (6, 8)])


@pytest.mark.invariant("I44")
def test_a_truncation_without_a_descriptor_for_the_epoch_file_is_no_damage_later(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 5, epoch=3)
    append(log, 3, epoch=5)
    machine.storage.lacks_descriptors = True
    truncate(log, 8)
    with pytest.raises(OutOfDescriptors):
        append(log, epoch=6)
    machine.storage.lacks_descriptors = False
    append(log, 2, epoch=6)
    log = restart(machine)
    assert (log.damage, log.epoch_entries()) == (None, [(3, 0), (6, 8)])


@pytest.mark.invariant("I44")
def test_two_kills_around_a_truncation_are_no_damage(machine: Machine) -> None:
    """The first comes between the cut of the log and that of the epoch file, the second after an append."""
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 5, epoch=3)
    append(log, 3, epoch=5)
    log.truncate_to(8)
    log = restart(machine)
    for _ in range(4):
        log.append([make_batch(log.log_end_offset, epoch=6)])  # the core writes no epochs in between
    log = restart(machine)
    assert (log.damage, log.epoch_entries()) == (None, [(3, 0), (6, 8)])


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("epochs", [(3, 3), (3, 5), (4, 5), (4, 7)])
def test_an_epoch_without_batches_leaves_the_file_when_batches_of_an_earlier_one_follow(
    machine: Machine, epochs: tuple[int, int]
) -> None:
    """A leader entered epoch 5, its first append found the disk full, and the next leader had more of epoch 3."""
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=3)
    log.write_epoch_entries([(3, 0), (5, 8)])
    log.append([make_batch(8 + 2 * at, epoch=epoch) for at, epoch in enumerate(epochs)])
    known = [(epoch, start) for epoch, start in ((3, 0), (4, 8), (5, 10), (7, 10)) if epoch in (3, *epochs)]
    assert log.epoch_entries() == known
    log.check_at(8)
    log.check_at(10)
    log = restart(machine)
    assert (log.damage, log.epoch_entries()) == (None, known)


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("cut", ["truncate", "reset"])
def test_a_cut_that_failed_half_way_leaves_no_epoch_of_batches_that_are_gone(machine: Machine, cut: str) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 4, epoch=3)
    append(log, 4, epoch=5)
    if cut == "reset":
        machine.storage.fail("sync_directory", log.directory, times=1, no_descriptor=True)
        with pytest.raises(OutOfDescriptors):
            log.reset_to(8)
    else:
        log.truncate_to(8)
    assert directory.try_heal()
    log.finish_cut()
    assert log.epoch_entries() == ([] if cut == "reset" else [(3, 0)])
    log.append([make_batch(8, epoch=3)])
    log = restart(machine)
    assert (log.damage, log.epoch_entries()) == (None, [(3, log.segments[0].base_offset)])


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("seed", range(40))
def test_a_kill_right_after_a_start_behind_a_power_cut_is_no_damage(seed: int) -> None:
    machine = Machine(seed)
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 7, epoch=3)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    append(log, 3, epoch=3)
    append(log, 3, epoch=5)
    drive(directory.sync_metadata())
    truncate(log, 14)
    append(log, 8, epoch=6)
    machine.lose_power(tear=True)
    _, log = machine.open_log(ONE_SEGMENT)
    assert log.damage is None
    assert restart(machine).damage is None


@pytest.mark.parametrize(
    ("stored", "found", "offset"),
    [
        ([(0, 0), (2, 5)], [(0, 0), (2, 5)], None),
        ([], [(0, 0)], None),  # no file
        ([(0, 0)], [(0, 0), (2, 5), (3, 7)], 5),  # an older file, or batches that rotted
        ([(2, 5)], [(0, 0), (2, 5)], None),  # it begins behind the log
        ([(0, 0), (2, 12)], [(0, 0)], None),  # it ends behind the log
        ([(0, 0), (2, 5)], [(0, 0), (3, 5)], 5),
        ([(0, 0), (2, 5)], [(0, 0), (1, 5)], 5),
        ([(0, 0), (2, 5)], [(0, 0), (2, 4)], 4),
        ([(0, 0), (2, 5)], [(0, 0), (2, 6)], 5),
        ([(0, 0), (2, 5)], [(0, 0)], 5),
        ([(0, 0), (2, 5), (4, 8)], [(0, 0), (1, 5), (4, 8)], 5),
        ([(0, 0), (2, 5), (4, 8)], [(0, 0), (3, 5), (4, 8)], 5),
    ],
)
def test_where_the_epoch_file_contradicts_batches(
    stored: list[EpochEntry], found: list[EpochEntry], offset: int | None
) -> None:
    assert contradicted_at(stored, found, 0, 10) == offset
    assert contradicted_at(stored, found, 9, 9) is None


@pytest.mark.parametrize(
    ("stored", "found", "offset"),
    [
        ([], [(0, 0)], None),
        ([(0, 0)], [(0, 0), (2, 5), (3, 7)], None),
        ([(0, 0), (2, 5)], [(0, 0), (3, 5)], None),
        ([(2, 5)], [(0, 0), (2, 5)], None),
        ([(0, 0), (2, 5)], [(0, 0), (1, 5)], 5),
        ([(0, 0), (2, 5)], [(0, 0)], 5),
        ([(0, 0), (4, 8)], [(0, 0), (1, 5)], 8),  # behind an epoch that it lacks
        ([(0, 0), (2, 12)], [(0, 0), (2, 11), (3, 15)], 11),  # behind the range, an epoch begins earlier,
        ([(0, 0), (2, 11), (5, 17)], [(0, 0), (2, 12)], 11),  # or later
        ([(2, 12)], [(0, 0), (2, 11), (4, 14)], None),  # it lost its head
    ],
)
def test_where_an_epoch_file_that_may_be_older_contradicts_batches(
    stored: list[EpochEntry], found: list[EpochEntry], offset: int | None
) -> None:
    assert contradicted_at(stored, found, 0, 10, may_be_older=True) == offset


@pytest.mark.parametrize("garbage", [b"\0" * 1_000, b"\xff" * 61, b"M" * 5_000])
def test_a_garbage_tail_is_damage_on_the_same_boot(machine: Machine, garbage: bytes) -> None:
    start_with(machine)
    machine.edit(FIRST, machine.content(FIRST) + garbage)
    assert restart(machine).damage is not None


@pytest.mark.invariant("I10")
def test_a_log_ends_in_front_of_damage_that_a_scan_finds_and_the_later_files_stay(machine: Machine) -> None:
    """Segments beyond the log's end would be read, measured and cut as if they were part of it."""
    config = LogConfig(segment_bytes=600, index_interval_bytes=100)
    log, _ = start_with(machine, 20, config)
    names, second = machine.file_names(".log"), log.segments[1]
    machine.storage.flip_bit(second.log_path, 70)
    log = restart(machine, config)
    assert log.damage is not None
    assert log.log_end_offset == second.base_offset
    assert [segment.base_offset for segment in log.segments] == [0, second.base_offset]
    assert len(names) > 3
    assert machine.file_names(".log") == names


def test_a_cut_off_write_is_a_torn_tail_on_the_same_boot(machine: Machine) -> None:
    start_with(machine, 3)
    whole, next_batch = machine.content(FIRST), make_batch(6)[1]
    for length in range(1, len(next_batch)):
        machine.edit(FIRST, whole + next_batch[:length])
        log = restart(machine)
        assert (log.damage, log.log_end_offset, log.report.bytes_cut) == (None, 6, length)


@pytest.mark.invariant("I19")
def test_a_log_that_ends_below_its_high_watermark_is_damaged_on_the_same_boot(machine: Machine) -> None:
    """Whole batches are missing at its end, and nothing else shows that (D17)."""
    directory, log = machine.open_log(ONE_SEGMENT)
    (_, first), *_ = append(log, 10, records=1)
    drive(directory.checkpoint_high_watermarks({log.topic_partition: 8}))
    content = machine.content(FIRST)
    for kept in (8, 7, 1, 0):
        machine.edit(FIRST, content[: kept * len(first)])
        log = restart(machine)
        assert (log.damage is not None) is (kept < 8)
    log = restart(machine)
    assert log.damage is not None, "the note stays"


def test_a_high_watermark_from_before_a_power_loss_proves_nothing_later(machine: Machine) -> None:
    """The tail was lost with the power, and the start that found this was killed (seed 8000025)."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(directory.checkpoint_high_watermarks({log.topic_partition: 20}))
    machine.lose_power()
    log = machine.open_log(ONE_SEGMENT)[1]
    assert (log.damage, log.log_end_offset < 20) == (None, True)
    assert restart(machine).damage is None


@pytest.mark.parametrize("cut_to", [12, 0])
def test_a_truncation_below_the_high_watermark_is_not_damage_after_a_kill(machine: Machine, cut_to: int) -> None:
    """Its leader was elected with an accepted loss; the checkpoint of high watermarks is due after five seconds."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(directory.checkpoint_high_watermarks({log.topic_partition: 20}))
    log.truncate_to(cut_to)
    directory.log_was_cut(log)
    drive(directory.maintain(0))
    log = restart(machine)
    assert (log.damage, log.log_end_offset) == (None, cut_to)


def test_the_high_watermark_of_an_earlier_topic_of_the_name_proves_nothing(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 10)
    drive(directory.checkpoint_high_watermarks({log.topic_partition: 20}))
    log = directory.create_log(log.topic_partition, "another", ONE_SEGMENT)
    append(log, 1)
    assert restart(machine).damage is None


def test_damage_found_by_a_start_is_found_by_the_next_start_too(machine: Machine) -> None:
    """Its proofs are overwritten by then: the clean marker, the recovery point (D19)."""
    directory, log = machine.open_log(ONE_SEGMENT)
    (_, first), *_ = append(log, 10)
    drive(directory.close(clean=True, high_watermarks={}))
    machine.edit(FIRST, machine.content(FIRST)[: 5 * len(first)])
    assert machine.open_log(ONE_SEGMENT)[1].damage is not None
    for _ in range(2):
        assert restart(machine).damage is not None
        assert len(machine.content(FIRST)) == 5 * len(first)


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("end", ["clean", "kill", "power"])
def test_an_older_epoch_file_is_not_believed(machine: Machine, end: str) -> None:
    """After a clean stop a digest proves the batches. After a power cut they decide, because what was written last may
    be lost."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 5, epoch=1)
    older = machine.content("leader-epoch-checkpoint")
    append(log, 5, epoch=3)
    known = log.epoch_entries()
    drive(log.flush())
    if end == "clean":
        drive(directory.close(clean=True, high_watermarks={}))
    elif end == "kill":
        machine.kill()
    else:
        machine.lose_power()
    machine.edit("leader-epoch-checkpoint", older)
    log = machine.open_log(ONE_SEGMENT)[1]
    assert log.epoch_entries() == known
    assert (log.damage is None) is (end != "kill")


@pytest.mark.invariant("I20")
@pytest.mark.parametrize("fault", [{"is_full": True}, {"no_descriptor": True}])
def test_lower_high_watermarks_that_were_not_written_stay_due(machine: Machine, fault: dict[str, bool]) -> None:
    """Only then may the next start rely on this boot: it would take the log, which ends below them, for damaged."""
    lose_power_below_the_high_watermark(machine)
    machine.storage.fail("replace_file", CHECKPOINT, times=1, is_full=True)
    directory = machine.open()
    directory.try_heal()
    machine.storage.fail("replace_file", CHECKPOINT, times=2, **fault)  # also of the urgent write before it
    drive(directory.maintain(1))
    drive(directory.maintain(2))
    machine.kill()
    assert machine.open().logs[PARTITION].damage is None


def test_a_start_goes_on_without_a_descriptor_for_lower_high_watermarks(machine: Machine) -> None:
    lose_power_below_the_high_watermark(machine)
    machine.storage.fail("replace_file", CHECKPOINT, times=1, no_descriptor=True)
    assert machine.open().logs[PARTITION].damage is None
    machine.kill()
    assert machine.open().logs[PARTITION].damage is None
