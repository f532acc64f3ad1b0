"""Which stored leader epochs are used at a start."""

from __future__ import annotations

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.side_files.epoch_file import EpochEntry, read_epoch_file
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import (
    EPOCH_CHECKPOINT,
    LogStartReason,
    format_epoch_checkpoint,
    segment_file_name,
)
from tests.broker.log.machine import (
    OWNER,
    PARTITION,
    PATH,
    SMALL,
    Machine,
    append,
    check_log,
    drive,
    trim_epochs,
    truncate,
)

ONE_SEGMENT = LogConfig(index_interval_bytes=100)
FIRST = segment_file_name(0)


def read(machine: Machine, entries: list[EpochEntry]) -> tuple[list[EpochEntry], list[str]]:
    """The entries that count, and why a file does not."""
    machine.open_log()
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint(entries, OWNER))
    found: list[FileNotUsed] = []
    return read_epoch_file(machine.disk(), f"{PATH}/{PARTITION}", found, OWNER), [each.reason for each in found]


def scanned_segment_of(machine: Machine, epoch: int) -> int:
    """Where the segment begins that the next start scans. It has this epoch; those in front have 0, and 1 from 16."""
    directory, log = machine.open_log(SMALL)
    append(log, 8, epoch=0)
    append(log, 7, epoch=1)
    log.roll_if_aged(1 << 60)
    base = log.log_end_offset
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    append(log, 3, epoch=epoch)
    drive(log.flush())
    return base


@pytest.mark.parametrize("entries", [[], [(0, 0)], [(3, 7)], [(0, 0), (1, 1)], [(2, 0), (5, 9), (6, 10)]])
def test_entries_that_rise_in_both_columns_count(machine: Machine, entries: list[EpochEntry]) -> None:
    assert read(machine, entries) == (entries, [])


@pytest.mark.parametrize(
    "entries",
    [
        [(1, 0), (1, 5)],
        [(2, 0), (1, 5)],
        [(1, 5), (2, 5)],
        [(1, 5), (2, 4)],
        [(0, 0), (1, 3), (2, 9), (2, 12)],
        [(0, 0), (1, 3), (2, 9), (3, 9)],
    ],
)
def test_entries_that_do_not_rise_are_not_used_and_named(machine: Machine, entries: list[EpochEntry]) -> None:
    assert read(machine, entries) == ([], ["its entries do not rise"])


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("later", [1, 9])
def test_leader_epochs_in_front_of_the_log_that_its_batches_contradict_are_not_believed(
    machine: Machine, later: int
) -> None:
    """The epoch file of another log. No batch in front of the log's head is left that could show it."""
    _, log = machine.open_log(ONE_SEGMENT)
    log.reset_to(20)
    append(log, 3, epoch=2)
    append(log, 3, epoch=3)
    drive(log.flush())
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint([(0, 0), (later, 15)], OWNER))
    machine.lose_power()
    _, log = machine.open_log(ONE_SEGMENT)
    check_log(log)
    assert any("contradicts" in each.reason for each in log.report.files_not_used) == (later > 2)


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("stop", ["clean", "kill", "power"])
@pytest.mark.parametrize("is_older", [True, False])
def test_an_older_epoch_file_of_a_log_without_batches_is_not_believed(
    machine: Machine, stop: str, is_older: bool
) -> None:
    """Its last epoch counted as that of the log's start, where a later one had been. As a follower the replica then cut
    to where its leader says that this epoch ended, which is below what is committed."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 5, epoch=1)
    older = machine.content(EPOCH_CHECKPOINT)
    append(log, 5, epoch=2)
    drive(log.flush())
    drive(log.record_start(20, LogStartReason.RETENTION))
    log.trim_before(20, LogStartReason.RETENTION)
    delete_head(log, 20)
    trim_epochs(log)
    drive(log.flush())
    drive(directory.maintain(0))
    if stop == "clean":
        drive(directory.close(clean=True, high_watermarks={}))
    machine.kill()
    if stop == "power":
        machine.lose_power()
    if is_older:
        machine.edit(EPOCH_CHECKPOINT, older)
    _, log = machine.open_log(ONE_SEGMENT)
    assert (log.damage, log.log_start_offset, log.log_end_offset, log.epoch_entries()) == (None, 20, 20, [])
    reasons = [each.reason for each in log.report.files_not_used]
    assert reasons == ["it is from before the log was emptied"] * is_older


@pytest.mark.invariant("I13")
def test_an_epoch_file_that_is_wrong_from_the_scanned_segment_on_counts_in_front_of_it(machine: Machine) -> None:
    base = scanned_segment_of(machine, epoch=2)
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint([(0, 0), (1, 16), (3, base)], OWNER))
    machine.lose_power()
    _, log = machine.open_log(SMALL)
    assert (log.damage, log.epoch_entries()) == (None, [(0, 0), (1, 16), (2, base)])


@pytest.mark.invariant("I13")
def test_epochs_are_cut_to_the_log(machine: Machine) -> None:
    _, log = machine.open_log(ONE_SEGMENT)
    append(log, 2, epoch=1)
    log.write_epoch_entries([(1, 0), (5, 4)])
    machine.kill()
    _, log = machine.open_log(ONE_SEGMENT)
    assert (log.damage, log.epoch_entries()) == (None, [(1, 0)])


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("tail_epoch", [1, 2])
@pytest.mark.parametrize("stored", [[], [(0, 0)]])
def test_a_file_that_lacks_the_epoch_in_front_of_the_scanned_segment_is_rebuilt(
    machine: Machine, stored: list[EpochEntry], tail_epoch: int
) -> None:
    """An older copy, and no power was lost since. Only the last segment is scanned."""
    base = scanned_segment_of(machine, epoch=tail_epoch)
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint(stored, OWNER))
    machine.lose_power()
    _, log = machine.open_log(SMALL)
    known = [(0, 0), (1, 16), (2, base)][: 1 + tail_epoch]
    assert (log.damage, log.epoch_entries()) == (None, known)
    reason = "it lacks epoch 1" if stored else "it is missing or empty"
    assert reason in [each.reason for each in log.report.files_not_used]


@pytest.mark.invariant("I13")
@pytest.mark.parametrize("has_digests", [True, False])
@pytest.mark.parametrize("is_begun", [True, False])
@pytest.mark.parametrize("stored", [[], [(0, 0)], [(0, 0), (1, 16)]])
def test_a_file_that_lacks_the_last_epoch_after_a_clean_stop_is_rebuilt(
    machine: Machine, stored: list[EpochEntry], is_begun: bool, has_digests: bool
) -> None:
    """An older copy. It was believed if the last segment had been begun and was still empty (seed 17403504). Without a
    digest of the batches nothing tells which of the two is wrong."""
    base = scanned_segment_of(machine, epoch=2)
    machine.kill()
    directory, log = machine.open_log(SMALL)
    if is_begun:
        drive(log.flush())
        drive(directory.checkpoint_recovery_points())
        log.roll_if_aged(1 << 60)
    drive(directory.close(clean=True, high_watermarks={}))
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint(stored, OWNER))
    if not has_digests:
        machine.disk().remove(f"{PATH}/{PARTITION}/digests")
    machine.kill()
    _, log = machine.open_log(SMALL)
    assert log.segments[-1].size == 0 if is_begun else log.segments[-1].size > 0
    assert log.epoch_entries() == [(0, 0), (1, 16), (2, base)]
    assert (log.damage is None) is (has_digests or not stored)


@pytest.mark.invariant("I13", "I20")
@pytest.mark.parametrize(
    ("closed_at", "synced", "is_tail_there"),
    [(12, 16, True), (12, 12, True), (14, 12, True), (14, 10, True), (None, 16, True), (None, 10, False)],
)
def test_an_older_copy_of_batches_is_damage_after_a_power_cut_where_later_ones_are_there(
    machine: Machine, closed_at: int | None, synced: int, is_tail_there: bool
) -> None:
    """Its batches were cut, and those of a later epoch committed in their place. The history was bent to fit the copy.
    A power cut may bring back what a cut removed that was not synced: nothing that was written later is there then."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 5, epoch=1)
    append(log, 1, epoch=1, value=b"uncommitted")
    older = machine.content(FIRST)
    truncate(log, 10)
    drive(log.flush())
    for end in (12, 14, 16):
        append(log, 1, epoch=3, value=b"a committed")
        if end == closed_at:
            log.roll_if_aged(1 << 60)
        if end == synced:
            drive(log.flush())
            drive(directory.checkpoint_recovery_points())
    machine.kill()
    machine.storage.boots += 1
    machine.edit(FIRST, older + machine.content(FIRST)[len(older) :] if is_tail_there else older)
    _, log = machine.open_log(ONE_SEGMENT)
    assert (log.damage is not None) is is_tail_there
    if not is_tail_there:
        assert log.log_end_offset == 12
        check_log(log)


@pytest.mark.invariant("I13", "I44")
@pytest.mark.parametrize("has_digests", [True, False])
def test_an_epoch_file_ahead_of_a_closed_segment_is_rebuilt_if_the_recorded_digest_fits_the_batches(
    machine: Machine, has_digests: bool
) -> None:
    """A copy from a moment when an epoch had begun that got no batches."""
    base = scanned_segment_of(machine, epoch=2)
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint([(0, 0), (1, 16), (5, base - 2)], OWNER))
    if not has_digests:
        machine.disk().remove(f"{PATH}/{PARTITION}/digests")
    machine.kill()
    machine.storage.boots += 1
    _, log = machine.open_log(SMALL)
    assert (log.damage is None) is has_digests
    assert log.epoch_entries() == [(0, 0), (1, 16), (2, base)]


def test_an_epoch_file_that_is_written_is_not_written_again(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 2, epoch=1)
    machine.disk().remove(f"{PATH}/{PARTITION}/{EPOCH_CHECKPOINT}")
    log.store_epochs()
    drive(directory.sync_metadata())
    before = machine.storage.trace.events
    drive(directory.sync_metadata())
    assert machine.storage.trace.events == before


@pytest.mark.parametrize(
    ("owner", "reason"),
    [(None, "it names no owner"), (("another", 3), "it is of partition 3 of topic id another"), (OWNER, None)],
)
def test_a_file_of_another_log_is_not_used_and_named(
    machine: Machine, owner: tuple[str, int] | None, reason: str | None
) -> None:
    machine.open_log()
    machine.edit(EPOCH_CHECKPOINT, format_epoch_checkpoint([(1, 0)], owner))
    found: list[FileNotUsed] = []
    entries = read_epoch_file(machine.disk(), f"{PATH}/{PARTITION}", found, OWNER)
    assert entries == ([] if reason else [(1, 0)])
    assert [each.reason for each in found] == ([reason] if reason else [])


def test_a_log_that_is_emptied_at_a_start_keeps_no_snapshot_of_what_it_had(machine: Machine) -> None:
    directory, log = machine.open_log(SMALL)
    append(log, 20, epoch=3)
    log.trim_before(35)
    drive(directory.record_log_starts())
    machine.kill()
    for name in machine.file_names(".log")[1:]:
        machine.disk().remove(f"{PATH}/{PARTITION}/{name}")
    assert machine.file_names(".snapshot")
    machine.storage.boots += 1  # a power cut took them
    _, log = machine.open_log(SMALL)
    assert (log.log_start_offset, log.log_end_offset) == (35, 35)
    assert machine.file_names(".snapshot") == []
