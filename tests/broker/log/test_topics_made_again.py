"""A topic is deleted and made again around kills, power cuts and faults: its old log says nothing about the new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.side_files.directory_files import read_offsets
from minibroker.broker.log.unsynced_files import gather_all
from minibroker.protocol.events.replica_events import ReplicaRemoved
from minibroker.protocol.files.checkpoints import HIGH_WATERMARK_CHECKPOINT
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import UNOBSERVED, Observers
from minibroker.runtime.ports import DiskError
from minibroker.simulation.world.storage import CHANGES, SimulatedStorage
from tests.broker.log.machine import PARTITION, PATH, SMALL, TOPIC_ID, Machine, append, check_log, drive
from tests.broker.log.test_interrupted_steps import CALLS_MAX, is_killed_at, store

NEXT_ID = "id-of-the-next-topic-of-that-name"
COMMITTED = 12


def committed(machine: Machine) -> tuple[LogDirectory, PartitionLog]:
    """A log whose end both checkpoints promise."""
    directory, log = machine.open_log(incarnation_id="one")
    append(log, 6, epoch=0)
    store(directory, log)
    drive(directory.checkpoint_high_watermarks({PARTITION: COMMITTED}))
    return directory, log


def make_again(directory: LogDirectory) -> PartitionLog:
    directory.delete_log(PARTITION)
    log = directory.create_log(PARTITION, NEXT_ID, SMALL)
    append(log, 1, epoch=0)
    return log


@pytest.mark.invariant("I44")
def test_what_checkpoints_say_of_an_earlier_topic_of_that_name_is_not_believed(machine: Machine) -> None:
    committed(machine)
    machine.kill()
    checkpoints = machine.open(incarnation_id="two")._checkpoints
    unknown = TopicPartition("unknown", 0)
    assert checkpoints.stored_high_watermark(PARTITION, TOPIC_ID) == COMMITTED
    assert checkpoints.stored_high_watermark(PARTITION, None) == COMMITTED, "the log's files do not say whose it is"
    assert checkpoints.stored_high_watermark(PARTITION, NEXT_ID) == 0
    assert checkpoints.stored_high_watermark(unknown, None) == 0
    assert checkpoints.stored_recovery_point(PARTITION, TOPIC_ID) == COMMITTED
    assert checkpoints.stored_recovery_point(PARTITION, NEXT_ID) == 0


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("is_power_cut", [False, True])
def test_an_end_at_any_disk_call_while_a_topic_is_made_again_is_no_damage(is_power_cut: bool) -> None:
    for call in range(1, CALLS_MAX):
        machine = Machine()
        directory, _ = committed(machine)
        killed = is_killed_at(machine, call, lambda directory=directory: make_again(directory))  # type: ignore[misc]
        machine.disk().sync_directory(PATH)  # by chance, before the power fails
        if is_power_cut:
            machine.lose_power()
        directory = machine.open(incarnation_id="two")
        assert [log.damage for log in directory.logs.values() if log.damage is not None] == []
        log = directory.create_log(PARTITION, NEXT_ID, SMALL)
        assert (log.damage, log.log_end_offset) in {(None, 0), (None, 2)}
        check_log(log)
        if not killed:
            return


def fail_at(machine: Machine, call: str, number: int) -> None:
    """The n-th call of this name from now on fails; `heal` ends it."""
    fault = machine.storage.fail(call, times=0)
    left = number

    def count(made: str, path: str) -> None:
        nonlocal left
        left -= made == call
        fault.times = int(left == 0 and made == call)
        SimulatedStorage.check_fault(machine.storage, made, path)

    machine.storage.check_fault = count  # type: ignore[method-assign, assignment]


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("call", sorted(CHANGES | {"open", "list_directory"}))
def test_a_failed_disk_call_while_a_topic_is_made_again_is_no_damage(call: str) -> None:
    for number in range(1, CALLS_MAX):
        machine = Machine()
        directory, _ = committed(machine)
        fail_at(machine, call, number)
        has_failed = False
        try:
            make_again(directory)
        except DiskError:
            has_failed = True
        machine.storage.heal()
        machine.kill()
        log = machine.open().create_log(PARTITION, NEXT_ID, SMALL)
        assert log.damage is None
        check_log(log)
        if not has_failed:
            return


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("is_urgent", [True, False])
def test_a_high_watermark_that_is_being_written_is_not_that_of_the_next_topic(
    machine: Machine, is_urgent: bool
) -> None:
    """The recovery points are written first, and the topic is made again meanwhile."""
    directory, _ = committed(machine)
    if is_urgent:
        directory.create_log(TopicPartition("lines", 1), "other", SMALL)

    async def write_and_make_again() -> None:
        writing = asyncio.ensure_future(directory.checkpoint_high_watermarks({PARTITION: COMMITTED}))
        await asyncio.sleep(0)
        make_again(directory)
        await writing

    drive(write_and_make_again())
    drive(directory.maintain(0))
    machine.kill()
    directory = machine.open()
    assert directory.logs[PARTITION].damage is None
    assert directory.read_high_watermarks().get(PARTITION, 0) == 0


@pytest.mark.invariant("I5")
def test_a_kill_before_the_next_checkpoint_leaves_the_next_topic_no_high_watermark(machine: Machine) -> None:
    """Its records reach beyond the mark of the topic before, and none of them was committed."""
    directory, _ = committed(machine)
    append(make_again(directory), COMMITTED, epoch=0)
    machine.kill()
    machine.disk().remove_tree(f"{PATH}/lines-0.0-delete")  # a full disk: it goes before the checkpoints are written
    directory = machine.open()
    log = directory.logs[PARTITION]
    assert (log.topic_id, log.damage) == (NEXT_ID, None)
    assert log.log_end_offset > COMMITTED
    assert directory.read_high_watermarks().get(PARTITION, 0) == 0


@pytest.mark.invariant("I44")
def test_a_high_watermark_waits_for_a_lower_recovery_point_that_is_being_written(machine: Machine) -> None:
    directory, log = committed(machine)
    log.truncate_to(4)
    order: list[str] = []
    check = machine.storage.check_fault

    def note(call: str, path: str) -> None:
        if call == "replace_file":
            order.append(path.rpartition("/")[2])
        check(call, path)

    machine.storage.check_fault = note  # type: ignore[method-assign]
    writes = [directory.checkpoint_recovery_points(), directory.checkpoint_high_watermarks({PARTITION: 4})]

    async def at_once() -> None:
        await gather_all(writes)

    drive(at_once())
    assert order[0] == "recovery-point-offset-checkpoint"
    assert order.index("replication-offset-checkpoint") > 1


def is_missed(machine: Machine, step: Callable[[LogDirectory], object], call: int) -> tuple[bool, LogDirectory]:
    directory, _ = committed(machine)
    other = directory.create_log(TopicPartition("lines", 1), "other", SMALL)
    append(other, 1)
    directory.delete_log(PARTITION)
    killed = is_killed_at(machine, call, lambda: step(directory))
    return killed, machine.open(incarnation_id="two")


@pytest.mark.invariant("I44")
@pytest.mark.parametrize("with_other_damage", [False, True])
def test_a_deleted_log_is_not_missing_after_a_kill_at_any_disk_call(with_other_damage: bool) -> None:
    def maintain(directory: LogDirectory) -> None:
        if with_other_damage:
            directory.set_log_aside(TopicPartition("lines", 1))
        drive(directory.maintain(0))
        drive(directory.maintain(0))

    for call in range(1, CALLS_MAX):
        killed, directory = is_missed(Machine(), maintain, call)
        assert PARTITION not in directory.wholeness.missing
        if not killed:
            return


@pytest.mark.invariant("I44")
def test_a_start_does_not_remove_a_deleted_log_before_its_checkpoints(machine: Machine) -> None:
    directory, _ = committed(machine)
    directory.delete_log(PARTITION)
    machine.kill()
    for call in range(1, CALLS_MAX):
        directory = machine.open(incarnation_id=f"start-{call}")
        assert directory.wholeness.missing == frozenset()
        maintaining = directory.maintain(0)
        if not is_killed_at(machine, call, lambda maintaining=maintaining: drive(maintaining)):  # type: ignore[misc]
            break
    assert machine.open(incarnation_id="last").wholeness.missing == frozenset()


@pytest.mark.invariant("I44")
def test_the_recovery_point_of_a_deleted_topic_is_not_written_for_the_next_one(machine: Machine) -> None:
    """Another log is set aside, which rewrites both checkpoints at once."""
    directory, _ = committed(machine)
    append(directory.create_log(TopicPartition("lines", 1), "other", SMALL), 1)
    make_again(directory)
    directory.set_log_aside(TopicPartition("lines", 1))
    found = read_offsets(machine.disk(), PATH, "recovery-point-offset-checkpoint", UNOBSERVED)
    assert found is not None
    assert (found.offsets[PARTITION], found.topic_ids[PARTITION]) == (0, NEXT_ID)


def lose_names(machine: Machine) -> None:
    for name in ("partition.metadata", "log-start"):
        machine.disk().remove(f"{PATH}/{PARTITION}/{name}")


def lose_power_and_names(machine: Machine) -> None:
    """The kernel wrote the batches and the names first, and the contents of the small files not at all."""
    _, log = machine.open_log()
    append(log, 3, epoch=0)
    file = machine.disk().open(log.segments[-1].log_path)
    file.sync()
    for path in (log.directory, PATH):
        machine.disk().sync_directory(path)
    machine.lose_power()


@pytest.mark.invariant("I41")
def test_batches_that_a_power_cut_left_without_an_owner_go_to_no_topic(machine: Machine) -> None:
    lose_power_and_names(machine)
    events: list[object] = []
    directory = machine.open(observer=Observers(events.append))
    assert PARTITION not in directory.logs
    assert any(isinstance(each, ReplicaRemoved) for each in events)
    assert directory.create_log(PARTITION, NEXT_ID, SMALL).log_end_offset == 0
    drive(directory.maintain(0))
    assert [name for name in machine.disk().list_directory(PATH) if name.endswith("-delete")] == []


@pytest.mark.invariant("I41")
@pytest.mark.parametrize("is_full", [False, True])
def test_batches_without_an_owner_do_not_return_with_another_power_cut(machine: Machine, is_full: bool) -> None:
    lose_power_and_names(machine)
    if is_full:
        machine.storage.fail("replace_file", is_full=True)
    machine.open()
    machine.lose_power()
    assert not machine.disk().exists(f"{PATH}/{PARTITION}")


@pytest.mark.invariant("I41")
@pytest.mark.parametrize("is_clean", [True, False])
def test_batches_without_an_owner_are_damage_where_no_power_was_lost(machine: Machine, is_clean: bool) -> None:
    directory, log = machine.open_log()
    append(log, 3, epoch=0)
    if is_clean:
        drive(directory.close(clean=True, high_watermarks={}))
        machine.disk().remove(f"{PATH}/recovery-point-offset-checkpoint")
        machine.disk().remove(f"{PATH}/replication-offset-checkpoint")
    lose_names(machine)
    machine.kill()
    assert "names its owner" in str(machine.open().logs[PARTITION].damage)


@pytest.mark.invariant("I41")
@pytest.mark.parametrize(("topic_id", "end"), [(TOPIC_ID, COMMITTED), (NEXT_ID, 0)])
def test_the_checkpoints_name_the_owner_of_a_log_that_lost_its_names(machine: Machine, topic_id: str, end: int) -> None:
    committed(machine)
    lose_names(machine)
    machine.kill()
    log = machine.open().create_log(PARTITION, topic_id, SMALL)
    assert (log.damage, log.log_end_offset) == (None, end)


@pytest.mark.invariant("I11")
def test_the_high_watermark_checkpoint_goes_on_to_name_a_log_that_was_replaced(machine: Machine) -> None:
    """The new log has no role yet, so only the directory can name it (seed 17280484)."""
    directory, _ = committed(machine)
    directory.set_log_aside(PARTITION)
    directory.create_log(PARTITION, TOPIC_ID, SMALL)
    drive(directory.checkpoint_high_watermarks({}))
    stored = read_offsets(machine.disk(), PATH, HIGH_WATERMARK_CHECKPOINT, UNOBSERVED)
    assert stored is not None
    assert stored.offsets == {PARTITION: 0}


def test_a_damaged_log_that_was_set_aside_goes_with_its_own_topic_only(machine: Machine) -> None:
    """Nothing else would find it, if the process ended before there was another log: on a full disk that the deletion
    of a topic should free."""
    directory, log = machine.open_log()
    append(log, 3)
    log.mark_damaged("a test says so")
    directory.set_log_aside(PARTITION)
    machine.kill()
    directory = machine.open()
    assert not directory.remove_set_aside(PARTITION, NEXT_ID), "it may be the last copy of the topic before"
    assert len(directory.set_aside[PARTITION]) == 1
    assert directory.remove_set_aside(PARTITION, TOPIC_ID)
    drive(directory.maintain(0))
    assert [name for name in machine.disk().list_directory(PATH) if name.startswith(str(PARTITION))] == []
