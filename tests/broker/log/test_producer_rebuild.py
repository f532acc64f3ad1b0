"""Producer states follow the batches: as they are appended, and as a start rebuilds them from closed segments."""

import struct

import msgspec
import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replication.producer_state import (
    ACCEPT,
    Accept,
    Duplicate,
    ProducerStates,
    Refuse,
    SequenceCheck,
)
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ErrorCode
from minibroker.runtime.ports import OutOfDescriptors
from tests.broker.log.machine import (
    PARTITION,
    SMALL,
    Machine,
    append,
    append_batches,
    drive,
    make_batch,
    reset,
    start_at,
    trim_epochs,
    truncate,
)

CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
FIRST = f"{0:020d}.log"
MAGIC_AT = 16
BASE_OFFSET_AT = 1
PRODUCER_ID_AT = 47


def lose_snapshots(machine: Machine, stop: str) -> None:
    """Producer 0 wrote in the first of several segments alone; the log is stopped, and its snapshots are gone."""
    directory, log = machine.open_log(CONFIG)
    append(log, 1, producer=(0, 0, 0))
    append(log, 30)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    if stop == "clean":
        drive(directory.close(True, {}))
    machine.kill()
    machine.storage.boots += stop == "without power"
    for name in machine.file_names(".snapshot"):
        machine.disk().remove(f"{log.directory}/{name}")


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
def test_producers_are_not_rebuilt_from_a_part_of_the_batches(machine: Machine, stop: str) -> None:
    """Producer 0 wrote in the first segment alone. A start without a usable snapshot left out what it could not read of
    that segment, reported that, and served: a retry of that batch would have been written a second time."""
    lose_snapshots(machine, stop)
    content = bytearray(machine.content(FIRST))
    content[MAGIC_AT] ^= 0xFF
    machine.edit(FIRST, bytes(content))
    log = machine.open_log(CONFIG)[1]
    assert "magic is -78" in str(log.damage)


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
@pytest.mark.parametrize(
    ("position", "why"), [(BASE_OFFSET_AT, "where 0 belongs"), (PRODUCER_ID_AT, "CRC")], ids=["offset", "producer"]
)
def test_producers_are_not_rebuilt_from_rotten_headers(machine: Machine, stop: str, position: int, why: str) -> None:
    """A header may make sense and be wrong: the walk ended at an offset beyond the log's end without a word, and
    without its CRC a batch counted for another producer."""
    lose_snapshots(machine, stop)
    content = bytearray(machine.content(FIRST))
    content[position] ^= 0x10
    machine.edit(FIRST, bytes(content))
    log = machine.open_log(CONFIG)[1]
    assert why in str(log.damage)


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
def test_producers_are_rebuilt_from_all_batches(machine: Machine, stop: str) -> None:
    """Without any snapshot."""
    lose_snapshots(machine, stop)
    log = machine.open_log(CONFIG)[1]
    assert log.damage is None
    assert log.producers.get(0) is not None


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("place", [0, 1, 2])
def test_every_producer_of_a_run_is_remembered(machine: Machine, place: int) -> None:
    """A follower appends what it fetched in one call: batches of several producers, and of some without an id. As a
    leader it would write a retry of those that it left out a second time."""
    log = machine.open_log(CONFIG)[1]
    producers: list[tuple[int, int, int] | None] = [(7, 0, 0), (8, 0, 0)]
    producers.insert(place, None)
    batches = [make_batch(2 * number, producer=producer) for number, producer in enumerate(producers)]
    append_batches(log, batches)
    assert [number for number in (7, 8) if log.producers.get(number) is None] == []
    assert -1 not in dict(log.producers)


def retry_of_a_first_batch(log: PartitionLog, producer: int) -> SequenceCheck:
    return log.producers.check(make_batch(0, producer=(producer, 0, 0))[0], is_retry=True)


def is_refused(answer: SequenceCheck) -> bool:
    return isinstance(answer, Refuse) and answer.error == ErrorCode.UNKNOWN_PRODUCER_ID


def without_head(machine: Machine) -> tuple[LogDirectory, PartitionLog]:
    """Producer 7 wrote the first batch, which is deleted. The log is empty at 8: its files name no producer."""
    directory, log = machine.open_log(CONFIG)
    append(log, 1, producer=(7, 0, 0))
    append(log, 3)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    start_at(log, 8)
    trim_epochs(log)
    settle(directory)
    return directory, log


def settle(directory: LogDirectory) -> None:
    drive(directory.maintain(0))
    drive(directory.checkpoint_recovery_points())


def end(machine: Machine, directory: LogDirectory, stop: str) -> None:
    if stop == "clean":
        drive(directory.close(True, {}))
    machine.kill()
    if stop == "without power":
        machine.lose_power()


def lose_snapshot(machine: Machine, loss: str) -> None:
    [name] = machine.file_names(".snapshot")
    if loss == "removed":
        machine.disk().remove(f"/data/{PARTITION}/{name}")
    else:
        machine.edit(name, b"")


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
@pytest.mark.parametrize("loss", ["removed", "emptied"])
def test_without_snapshot_and_head_an_unanswered_first_batch_is_refused(machine: Machine, stop: str, loss: str) -> None:
    """Its producer may have written it in front of the log's first offset. It was written a second time. So it is
    after the next starts, too, which find a snapshot of what was left."""
    directory, log = without_head(machine)
    assert isinstance(retry_of_a_first_batch(log, 7), Duplicate)
    end(machine, directory, stop)
    lose_snapshot(machine, loss)
    machine.kill()
    for following in ("clean", "killed"):
        directory, log = machine.open_log(CONFIG)
        assert log.damage is None
        assert is_refused(retry_of_a_first_batch(log, 7))
        assert log.producers.check(make_batch(0, producer=(8, 0, 0))[0]) == ACCEPT
        append(log, 30)
        drive(log.flush())
        settle(directory)
        end(machine, directory, following)


@pytest.mark.invariant("I25")
def test_a_snapshot_in_front_of_a_deleted_head_does_not_tell_of_the_batches_between(machine: Machine) -> None:
    """A kill in the middle of a deletion leaves it there. The snapshot behind that head is lost."""
    _, log = machine.open_log(CONFIG)
    append(log, 20)
    drive(log.flush())
    older = log.snapshots.offsets[0]
    content = machine.content(f"{older:020d}.snapshot")
    append(log, 1, producer=(7, 0, 0))
    append(log, 20)
    drive(log.flush())
    start = log.segments[-1].base_offset
    start_at(log, start)
    machine.kill()
    lose_snapshot(machine, "removed")
    machine.edit(f"{older:020d}.snapshot", content)
    log = machine.open_log(CONFIG)[1]
    assert log.damage is None
    assert is_refused(retry_of_a_first_batch(log, 7))


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
@pytest.mark.parametrize("how", ["head deleted", "reset"])
def test_a_log_that_begins_above_0_where_no_producer_wrote_accepts_an_unanswered_first_batch(
    machine: Machine, stop: str, how: str
) -> None:
    """Its snapshot says that there was none. Without such a file no log of that kind would accept one."""
    if how == "reset":
        directory, log = machine.open_log(CONFIG)
        append(log, 3)
        log.reset_to(100, ProducerStates())
        log.write_epoch_entries([])
        directory.log_was_cut(log)
        drive(log.flush())
        settle(directory)
    else:
        directory, log = without_head(machine)
    append(log, 2)
    drive(log.flush())
    end(machine, directory, stop)
    log = machine.open_log(CONFIG)[1]
    assert log.segments[0].base_offset == (100 if how == "reset" else 8)
    assert retry_of_a_first_batch(log, 8) == ACCEPT


@pytest.mark.invariant("I25")
@pytest.mark.parametrize(("offset", "is_known"), [(0, True), (100, False)])
def test_a_log_that_is_reset_without_the_leaders_producers_knows_that_they_are_missing(
    machine: Machine, offset: int, is_known: bool
) -> None:
    """In front of offset 0 there are none."""
    _, log = machine.open_log(CONFIG)
    append(log, 3)
    reset(log, offset)
    assert is_refused(retry_of_a_first_batch(log, 8)) != is_known


def dropped_at_its_end(machine: Machine) -> tuple[LogDirectory, PartitionLog]:
    """Producer 7 wrote the first batch as the former leader took it. The next leader's log starts where this one ends,
    and has never been compared with it."""
    directory, log = machine.open_log(CONFIG)
    append(log, 1, producer=(7, 0, 0))
    append(log, 3)
    log.roll_if_aged(1 << 60)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    return directory, log


@pytest.mark.invariant("I21", "I25")
@pytest.mark.parametrize("stop", ["none", "clean", "killed", "without power"])
def test_a_log_that_is_dropped_at_its_leaders_start_does_not_know_its_producers(machine: Machine, stop: str) -> None:
    """Its batches may never have been in any leader's log. A retry of one was answered as a duplicate, once this
    replica led again: acknowledged, and nowhere."""
    directory, log = dropped_at_its_end(machine)
    log.trim_before(log.log_end_offset, drops_all=True)
    trim_epochs(log)
    if stop != "none":
        append(log, 1)
        drive(log.flush())
        end(machine, directory, stop)
        log = machine.open_log(CONFIG)[1]
    assert (log.damage, log.log_start_offset) == (None, 8)
    assert is_refused(retry_of_a_first_batch(log, 7))
    assert log.producers.check(make_batch(0, producer=(8, 0, 0))[0]) == ACCEPT


def test_a_log_is_reset_on_a_full_disk_that_has_no_room_for_a_snapshot(machine: Machine) -> None:
    """Then the next start takes its producers for incomplete, unless a later snapshot tells of them."""
    directory, log = machine.open_log(CONFIG)
    append(log, 3)
    machine.storage.fail("replace_file", f"{log.directory}/{100:020d}.snapshot", times=1, is_full=True)
    log.reset_to(100, ProducerStates())
    log.write_epoch_entries([])
    assert directory.full
    assert directory.try_heal()
    append(log, 1)
    drive(log.flush())
    machine.kill()
    log = machine.open_log(CONFIG)[1]
    assert (log.damage, log.log_start_offset) == (None, 100)
    assert is_refused(retry_of_a_first_batch(log, 8))


SNAPSHOT = f"{12:020d}.snapshot"
"""The same name for two logs that end at offset 12."""


def check_first_of(log: PartitionLog, producer: int) -> SequenceCheck:
    """How a retry of the producer's first batch is answered."""
    return log.producers.check(make_batch(0, producer=(producer, 0, 0))[0], is_retry=True)


def sync(directory: LogDirectory, log: PartitionLog) -> None:
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: log.log_end_offset}))


def close_segment(log: PartitionLog, epoch: int) -> None:
    """The next one begins with a batch of no producer."""
    log.roll_if_aged(1 << 60)
    append(log, 1, epoch=epoch)


def snapshots_of_two_logs(machine: Machine, closes_segment: bool) -> tuple[LogDirectory, PartitionLog, bytes]:
    """Producer 2 wrote what ended at offset 12. The next leader never had it, and producer 7's batch ends there now.
    Returns the snapshot of the former log, too."""
    directory, log = machine.open_log(SMALL)
    append(log, 5, epoch=1)
    append(log, 1, epoch=1, producer=(2, 0, 0))
    if closes_segment:
        close_segment(log, epoch=1)
    drive(directory.close(True, {PARTITION: 10}))
    machine.kill()
    older = machine.content(SNAPSHOT)
    directory, log = machine.open_log(SMALL)
    truncate(log, 10)
    append(log, 1, epoch=3, producer=(7, 0, 0))
    sync(directory, log)
    if closes_segment:
        close_segment(log, epoch=3)
        sync(directory, log)
    return directory, log, older


@pytest.mark.invariant("I15", "I25")
@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
def test_a_snapshot_from_before_a_truncation_is_not_used(machine: Machine, stop: str) -> None:
    """Its name and its end offset are right, and it was believed. A retry of a batch in the log was written a second
    time. One of a batch that was nowhere was answered as a duplicate: acknowledged, and lost."""
    directory, log, older = snapshots_of_two_logs(machine, closes_segment=stop != "clean")
    if stop == "clean":
        drive(directory.close(True, {PARTITION: 12}))
    machine.kill()
    if stop == "without power":
        machine.lose_power()
    machine.edit(SNAPSHOT, older)
    log = machine.open_log(SMALL)[1]
    assert log.damage is None
    assert (check_first_of(log, 7), check_first_of(log, 2)) == (Duplicate(10, 11), Accept())
    (found,) = log.report.files_not_used
    assert found.path.endswith(SNAPSHOT) and "leader epoch 1" in found.reason


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("content", ["older", "garbage"])
def test_a_snapshot_that_is_not_used_is_written_anew(machine: Machine, content: str) -> None:
    """Once the batches in front of it are deleted, nothing contradicts an older one, and a damaged one is all there
    was."""
    _, log, older = snapshots_of_two_logs(machine, closes_segment=True)
    machine.kill()
    machine.edit(SNAPSHOT, older if content == "older" else b"garbage")
    log = machine.open_log(SMALL)[1]
    machine.lose_power()
    log = machine.open_log(SMALL)[1]
    assert log.report.files_not_used == []
    start_at(log, 12)
    machine.kill()
    log = machine.open_log(SMALL)[1]
    assert (check_first_of(log, 7), check_first_of(log, 2)) == (Duplicate(10, 11), Accept())


@pytest.mark.invariant("I25")
def test_a_snapshot_that_is_not_used_goes_if_there_is_no_room_for_a_new_one(machine: Machine) -> None:
    """It stayed, and was believed once the batches in front were deleted. Without it the states are incomplete."""
    _, log, older = snapshots_of_two_logs(machine, closes_segment=True)
    machine.kill()
    machine.edit(SNAPSHOT, older)
    machine.storage.fail("replace_file", f"{log.directory}/{SNAPSHOT}", is_full=True)
    log = machine.open_log(SMALL)[1]
    machine.storage.heal()
    assert check_first_of(log, 7) == Duplicate(10, 11)
    start_at(log, 12)
    machine.kill()
    log = machine.open_log(SMALL)[1]
    assert is_refused(check_first_of(log, 7))


@pytest.mark.invariant("I25")
def test_a_cut_does_not_use_a_snapshot_from_before_an_earlier_one(machine: Machine) -> None:
    """A cut rebuilds the producers as a start does."""
    _, log, older = snapshots_of_two_logs(machine, closes_segment=True)
    machine.edit(SNAPSHOT, older)
    truncate(log, 12)
    assert (check_first_of(log, 7), check_first_of(log, 2)) == (Duplicate(10, 11), Accept())


@pytest.mark.invariant("I25")
def test_a_snapshot_without_a_batch_in_front_is_used(machine: Machine) -> None:
    """The log is emptied, and a power cut has left an older epoch file, which names another epoch there. The snapshot
    is all that is known of the producers."""
    directory, log = machine.open_log(SMALL)
    append(log, 5, epoch=1)
    older_epochs = machine.content("leader-epoch-checkpoint")
    append(log, 1, epoch=3, producer=(7, 0, 0))
    sync(directory, log)
    start_at(log, 12)
    sync(directory, log)
    drive(directory.maintain(0))
    machine.lose_power()
    machine.edit("leader-epoch-checkpoint", older_epochs)
    log = machine.open_log(SMALL)[1]
    assert (log.damage, log.segments[0].base_offset, log.log_end_offset) == (None, 12, 12)
    assert check_first_of(log, 7) == Duplicate(10, 11)


@pytest.mark.invariant("I25")
def test_a_snapshot_of_the_former_version_is_used(machine: Machine) -> None:
    """It names no epoch. A broker that is upgraded has no other, and the batches in front may be gone."""
    directory, log = machine.open_log(SMALL)
    append(log, 5, epoch=1)
    append(log, 1, epoch=1, producer=(7, 0, 0))
    drive(directory.close(True, {PARTITION: 12}))
    machine.kill()
    version, (*place, epoch), producers = msgspec.msgpack.decode(machine.content(SNAPSHOT)[4:])
    assert (version, epoch) == (3, 1)
    body = msgspec.msgpack.encode((2, place, producers))
    machine.edit(SNAPSHOT, struct.pack(">I", crc32c(body)) + body)
    log = machine.open_log(SMALL)[1]
    assert log.report.files_not_used == []
    assert check_first_of(log, 7) == Duplicate(10, 11)


@pytest.mark.invariant("I15", "I25")
@pytest.mark.parametrize("is_refused_before", [False, True])
def test_an_older_snapshot_is_not_believed_once_the_head_is_gone(machine: Machine, is_refused_before: bool) -> None:
    """A start reads the newest snapshot only, and a truncation left a refused one where it was. Once the batches in
    front were deleted, nothing told any more that it was of others."""
    directory, log, older = snapshots_of_two_logs(machine, closes_segment=True)
    if is_refused_before:
        machine.edit(SNAPSHOT, older)
        truncate(log, 12)
        append(log, 1, epoch=4)
    else:
        drive(directory.close(True, {PARTITION: 12}))
        machine.kill()
        machine.edit(SNAPSHOT, older)
        log = machine.open_log(SMALL)[1]
    assert check_first_of(log, 7) == Duplicate(10, 11)
    start_at(log, 12)
    machine.kill()
    log = machine.open_log(SMALL)[1]
    assert log.damage is None
    assert is_refused(check_first_of(log, 7)) and is_refused(check_first_of(log, 2))


@pytest.mark.invariant("I25")
@pytest.mark.parametrize("producer", [None, (7, 0, 0)])
@pytest.mark.parametrize("failing", range(1, 6))
def test_a_reset_that_a_lack_of_descriptors_interrupts_knows_no_producer_by_the_log_that_is_gone(
    machine: Machine, failing: int, producer: tuple[int, int, int] | None
) -> None:
    """That log may have had a batch that no leader has: a retry of it would be answered as written. One that another
    replica wrote below the new start would be written twice, if producers did not count as missing."""
    _, log = machine.open_log(CONFIG)
    for number in range(8):
        append(log, 1, producer=None if producer is None else (7, 0, 2 * number))
    assert len(log.snapshots.offsets) > (producer is not None)
    left = failing

    def check(call: str, path: str) -> None:
        nonlocal left
        if call in ("sync_directory", "open"):
            left -= 1
            if left == 0:
                raise OutOfDescriptors(f"cannot {call} {path}: too many open files")

    machine.storage.check_fault = check  # type: ignore[method-assign]
    try:
        log.reset_to(100)
    except OutOfDescriptors:
        log.finish_cut()
    if log.log_end_offset == 100:
        assert (len(log.producers), log.producers.is_incomplete) == (0, True)
    else:
        assert (len(log.producers) > 0) == (producer is not None)
