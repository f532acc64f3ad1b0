"""What a log directory proves about a log's end, whatever else is lost, and to which log a checkpoint belongs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.checkpoints import CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT, LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import DiskError
from tests.broker.log.machine import PARTITION, PATH, SMALL, Machine, append, drive
from tests.broker.log.test_recovery import FIRST, ONE_SEGMENT

COMMITTED = 12


def stopped_cleanly(machine: Machine) -> None:
    directory, log = machine.open_log(ONE_SEGMENT, incarnation_id="i1")
    append(log, 6)
    drive(directory.close(True, {PARTITION: COMMITTED}))


@pytest.mark.parametrize("lost", [[RECOVERY_POINT_CHECKPOINT], [CLEAN_SHUTDOWN, RECOVERY_POINT_CHECKPOINT]])
@pytest.mark.parametrize("has_power", [True, False])
def test_a_log_that_ends_below_the_end_of_a_clean_stop_is_damaged(
    machine: Machine, lost: list[str], has_power: bool
) -> None:
    stopped_cleanly(machine)
    content = machine.content(FIRST)
    machine.edit(FIRST, content[: len(content) // 2])
    for name in lost:
        machine.disk().remove(f"{PATH}/{name}")
        machine.disk().sync_directory(PATH)
    if has_power:
        machine.kill()
    else:
        machine.lose_power()
    log = machine.open_log(ONE_SEGMENT, incarnation_id="i2")[1]
    assert log.damage is not None and "12" in log.damage


def promised(machine: Machine) -> tuple[LogDirectory, PartitionLog]:
    """A log that is synced and committed to its end, according to both checkpoints."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 6)
    drive(log.flush())
    drive(directory.sync_metadata())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: COMMITTED}))
    return directory, log


def powerless(machine: Machine, high_watermark: int, recovery_point: bool = True) -> str | None:
    """The reported damage of a log with a flipped bit in its middle, after a power cut."""
    directory, log = machine.open_log(ONE_SEGMENT)
    drive(directory.maintain(0))
    append(log, 6)
    drive(log.flush())
    drive(directory.sync_metadata())
    if recovery_point:
        drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: high_watermark}))
    machine.lose_power()
    machine.storage.flip_bit(f"{log.directory}/{FIRST}", len(machine.content(FIRST)) // 2 + 65)
    return machine.open_log(ONE_SEGMENT)[1].damage


def test_rot_below_both_checkpoints_is_damage_after_a_power_cut(machine: Machine) -> None:
    assert "it once reached to offset 12" in str(powerless(machine, COMMITTED))


def test_rot_above_the_high_watermark_may_be_a_torn_tail(machine: Machine) -> None:
    """It may have been appended after a truncation, and the recovery point may be from before."""
    assert powerless(machine, 4) is None


def test_rot_above_the_recovery_point_may_be_a_torn_tail(machine: Machine) -> None:
    assert powerless(machine, COMMITTED, recovery_point=False) is None


def test_checkpoints_of_a_deleted_topic_do_not_apply_to_the_next_one(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 6)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: COMMITTED}))
    directory.delete_log(PARTITION)
    append(directory.create_log(PARTITION, "another-id", SMALL), 1)
    for _ in range(2):  # and no start assigns them to the next topic
        machine.kill()
        directory = machine.open()
        assert directory.read_high_watermarks() == {}
        assert (directory.logs[PARTITION].damage, directory.logs[PARTITION].recovery_point) == (None, 0)
        drive(directory.maintain(0))


def deleted(machine: Machine) -> LogDirectory:
    directory, log = machine.open_log(incarnation_id="i1")
    append(log, 6)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: COMMITTED}))
    directory.delete_log(PARTITION)
    return directory


@pytest.mark.parametrize("is_maintained", [False, True])
def test_a_log_that_was_deleted_is_not_missing(machine: Machine, is_maintained: bool) -> None:
    directory = deleted(machine)
    if is_maintained:
        drive(directory.maintain(0))
    machine.kill()
    found = machine.open(incarnation_id="i2").wholeness
    assert (found.missing, found.incarnations) == (frozenset(), ("i1", "i2"))


def test_the_leftover_of_a_deleted_topic_does_not_explain_the_loss_of_the_next_one(machine: Machine) -> None:
    directory = deleted(machine)
    directory.create_log(PARTITION, "another-id", SMALL)
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({}))
    machine.kill()
    machine.disk().remove_tree(f"{PATH}/{PARTITION}")
    machine.kill()
    found = machine.open(incarnation_id="i2").wholeness
    assert (found.missing, found.incarnations) == (frozenset([PARTITION]), ("i2",))


def test_a_failed_directory_loses_its_chain_with_several_listeners(machine: Machine) -> None:
    directory, log = machine.open_log(incarnation_id="i1")
    directory.health.on_offline.append(lambda _: None)
    machine.storage.fail("append")
    with pytest.raises(DiskError):
        append(log, 1)
    machine.storage.heal()
    machine.kill()
    assert machine.open(incarnation_id="i2").wholeness.incarnations == ("i2",)


def test_a_replaced_log_need_not_hold_what_the_damaged_one_had_synced(machine: Machine) -> None:
    """It loses power before its first checkpoint (seed 15000505)."""
    directory, log = promised(machine)
    log.mark_damaged("a test says so")
    directory.set_log_aside(PARTITION)
    new = directory.create_log(PARTITION, log.topic_id or "", ONE_SEGMENT)
    assert new.start_reason is LogStartReason.CREATED, "no checkpoint promises anything that it would have to explain"
    drive(directory.sync_metadata())
    append(new, 6)
    machine.lose_power()
    log = machine.open_log(ONE_SEGMENT)[1]
    assert log.damage is None
    assert log.log_end_offset < COMMITTED


def test_a_log_replacing_a_missing_one_need_not_hold_what_that_had_synced(machine: Machine) -> None:
    """It loses power before its first checkpoint (seed 17004623)."""
    promised(machine)
    machine.kill()
    for name in machine.file_names():
        machine.disk().remove(f"{PATH}/{PARTITION}/{name}")
    machine.disk().remove_tree(f"{PATH}/{PARTITION}")
    directory, new = machine.open_log(ONE_SEGMENT)
    assert new.log_end_offset == 0
    append(new, 3)
    drive(new.flush())
    drive(directory.sync_metadata())
    append(new, 3)
    machine.lose_power(tear=True)
    log = machine.open_log(ONE_SEGMENT)[1]
    assert log.damage is None
    assert log.log_end_offset < COMMITTED


@pytest.mark.parametrize("is_settled", [True, False])
def test_a_reset_log_must_hold_what_it_has_synced_since(machine: Machine, is_settled: bool) -> None:
    """A reset log was once exempt for ever: after a power cut, rot below its recovery point was cut as a torn tail."""
    directory, log = machine.open_log(ONE_SEGMENT)
    append(log, 6)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: COMMITTED}))
    log.reset_to(0)
    directory.log_was_cut(log)
    append(log, 6)
    drive(log.flush())
    drive(directory.sync_metadata())
    for _ in range(3 if is_settled else 0):
        drive(directory.maintain(0))
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: COMMITTED}))
    machine.lose_power()
    machine.storage.flip_bit(f"{log.directory}/{FIRST}", len(machine.content(FIRST)) // 2 + 65)
    damage = machine.open_log(ONE_SEGMENT)[1].damage
    assert (damage is not None) == is_settled


class HeldWrites:
    """Work of a disk that begins when a test says so."""

    def __init__(self, directory: LogDirectory) -> None:
        self.held: list[asyncio.Future[None]] = []
        directory.health.disk.in_background = self._in_background  # type: ignore[method-assign, assignment]

    async def _in_background(self, call: Callable[[], object]) -> object:
        self.held.append(asyncio.get_running_loop().create_future())
        await self.held[-1]
        return call()

    async def let_go(self, number: int) -> None:
        self.held.pop(number).set_result(None)
        await self.others()

    async def others(self) -> None:
        """Let the other tasks go on until each waits."""
        for _ in range(10):
            await asyncio.sleep(0)


def promised_in_segments(machine: Machine, committed: int) -> tuple[LogDirectory, PartitionLog]:
    directory, log = machine.open_log(SMALL)
    append(log, 25)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: committed}))
    return directory, log


@pytest.mark.invariant("I44")
def test_high_watermarks_that_a_late_settling_lowers_do_not_overtake_a_recovery_point_that_fell(
    machine: Machine,
) -> None:
    """The start had no room to settle, and the maintenance does it while the log is in use."""
    directory, log = promised_in_segments(machine, committed=50)
    log.truncate_to(30)
    directory.log_was_cut(log)
    append(log, 20)
    directory._checkpoints.high_watermarks[PARTITION] = log.log_end_offset
    assert drive(directory._checkpoints.lower_high_watermarks())
    machine.lose_power()
    assert machine.open_log(SMALL)[1].damage is None


@pytest.mark.invariant("I44")
def test_high_watermarks_that_wait_for_the_recovery_points_are_lowered_by_a_cut_meanwhile(machine: Machine) -> None:
    """The cut is above the recovery point, which does not fall and bounds nothing. A kill would show a log that ends
    below what its process had committed."""
    directory, log = promised_in_segments(machine, committed=50)
    append(log, 10)
    directory.create_log(TopicPartition("other", 0), "id-of-other", SMALL)  # recovery points are due

    async def cut_meanwhile() -> None:
        writes = HeldWrites(directory)
        writing = asyncio.ensure_future(directory.checkpoint_high_watermarks({PARTITION: 70}))
        await writes.others()
        log.truncate_to(60)
        directory.log_was_cut(log)
        for _ in range(2):
            await writes.let_go(0)
        await writing

    machine.loop.run_until_complete(cut_meanwhile())
    machine.kill()
    log = machine.open_log(SMALL)[1]
    assert (log.damage, log.log_end_offset) == (None, 60)


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("committed", [30, 50])
@pytest.mark.parametrize("first", [0, 1])
def test_high_watermarks_do_not_overtake_a_recovery_point_that_fell_after_they_had_waited_for_another(
    machine: Machine, first: int, committed: int
) -> None:
    """One write of the high watermarks has waited for the recovery points, which are from before a cut. A later one,
    with what was committed since, still waits for those after the cut. If the first one wrote that, both checkpoints
    would promise records of which none was synced."""
    directory, log = promised_in_segments(machine, committed)
    directory.create_log(TopicPartition("other", 0), "id-of-other", SMALL)  # recovery points are due

    async def cut_meanwhile() -> None:
        writes = HeldWrites(directory)
        tasks = [asyncio.ensure_future(directory.checkpoint_high_watermarks({}))]
        await writes.others()
        log.truncate_to(30)
        directory.log_was_cut(log)
        append(log, 20)
        tasks.append(asyncio.ensure_future(directory.checkpoint_high_watermarks({PARTITION: log.log_end_offset})))
        await writes.others()
        await writes.let_go(0)
        assert len(writes.held) == 2
        await writes.let_go(first)
        machine.lose_power()
        for task in tasks:
            task.cancel()

    machine.loop.run_until_complete(cut_meanwhile())
    log = machine.open_log(SMALL)[1]
    assert log.damage is None
    assert 30 <= log.log_end_offset < 50
