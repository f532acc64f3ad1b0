"""The log start is written by a thread and on the event loop at once: the later one counts, whichever is slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.protocol.files.checkpoints import LOG_START, LogStartReason, parse_log_start, parse_log_starts
from minibroker.runtime.ports import OutOfDescriptors
from tests.broker.log.machine import PARTITION, Machine, append, drive
from tests.broker.log.test_log_starts import CONFIG, restart, synced


def in_front_of(machine: Machine, place: str, step: Callable[[], object]) -> list[str]:
    """Let the loop take a step while a thread that writes a log start is slow to begin this call. Returns the calls
    so far."""
    check, seen = machine.storage.check_fault, list[str]()

    def slow(call: str, path: str) -> None:
        if path.endswith(LOG_START) and place not in seen:
            seen.append(call)
            if call == place:
                step()
        check(call, path)

    machine.storage.check_fault = slow  # type: ignore[method-assign]
    return seen


@pytest.mark.invariant("I21", "I44")
@pytest.mark.parametrize("has_file", [True, False])
@pytest.mark.parametrize("call", ["open", "write_at", "sync"])
def test_a_thread_that_is_slow_to_write_a_start_does_not_replace_later_ones(
    machine: Machine, call: str, has_file: bool
) -> None:
    """The log is reset meanwhile to a lower offset. That writes two starts, and the file has two slots: the thread
    overwrote the second one. The records since then would lie in front of an earlier start, which counts as damage."""
    directory, log = synced(machine)
    drive(log.record_start(40, LogStartReason.RETENTION))
    log.trim_before(40, LogStartReason.RETENTION)
    if not has_file:
        machine.disk().remove(f"{log.directory}/{LOG_START}")
    seen = in_front_of(machine, call, lambda: log.reset_to(10))
    drive(log.record_start(50, LogStartReason.RETENTION))
    assert (call in seen) == (has_file or call == "open")
    if call not in seen:
        log.reset_to(10)
    append(log, 10)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    drive(directory.checkpoint_high_watermarks({PARTITION: log.log_end_offset}))
    log = restart(machine)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 10, 30)


@pytest.mark.invariant("I21")
@pytest.mark.parametrize("call", ["open", "write_at", "sync"])
def test_a_thread_that_is_slow_to_write_a_start_leaves_the_next_topic_of_that_name_alone(
    machine: Machine, call: str
) -> None:
    """The earlier topic's start had changed more often: no start of the next topic would have replaced it for long."""
    directory, log = synced(machine)
    for start in (10, 20, 30):
        drive(log.record_start(start, LogStartReason.RETENTION))

    def make_again() -> None:
        directory.delete_log(PARTITION)
        append(directory.create_log(PARTITION, "another-id", CONFIG), 5)

    assert in_front_of(machine, call, make_again) == []
    drive(log.record_start(40, LogStartReason.RETENTION))
    machine.kill()
    log = machine.open(CONFIG).logs[PARTITION]
    assert (log.damage, log.log_start_offset, log.log_end_offset, log.topic_id) == (None, 0, 10, "another-id")


@pytest.mark.invariant("I44")
def test_a_torn_write_of_a_start_on_the_loop_leaves_the_earlier_one_though_a_thread_has_a_slot(
    machine: Machine,
) -> None:
    """Of two slots one is the thread's, and the other one has the newest start that is stored."""
    _, log = synced(machine)
    for start in (10, 20, 30):
        drive(log.record_start(start, LogStartReason.RETENTION))
    stored = parse_log_start(machine.content(LOG_START))
    found: list[object] = []

    def fall() -> None:
        machine.storage.fail("sync", f"{log.directory}/{LOG_START}", times=1, no_descriptor=True)
        with pytest.raises(OutOfDescriptors):
            log.record_at_once(5, LogStartReason.RESET)
        found.append(parse_log_start(machine.content(LOG_START)))

    in_front_of(machine, "write_at", fall)
    drive(log.record_start(40, LogStartReason.RETENTION))
    assert found == [stored]


@pytest.mark.invariant("I44")
def test_a_kill_in_a_reset_that_began_while_a_thread_writes_a_start_damages_nothing(machine: Machine) -> None:
    """The start before the reset explains the files that it leaves."""
    _, log = synced(machine)
    in_front_of(machine, "write_at", lambda: log.record_at_once(100, LogStartReason.RESET))
    drive(log.record_start(40, LogStartReason.RETENTION))
    log = restart(machine)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 100, 100)


def no_descriptor(machine: Machine, call: str, log: PartitionLog) -> None:
    """A start is not recorded for want of a file descriptor, which passes."""
    machine.storage.fail(call, f"{log.directory}/{LOG_START}", times=1, no_descriptor=True)
    with pytest.raises(OutOfDescriptors):
        drive(log.record_start(40, LogStartReason.RETENTION))


@pytest.mark.invariant("I44")
def test_a_kill_in_a_reset_after_a_start_that_found_no_descriptor_damages_nothing(machine: Machine) -> None:
    """The reset was written over the start before it, which alone explains the files that it leaves."""
    _, log = synced(machine)
    for start in (10, 20, 30):
        drive(log.record_start(start, LogStartReason.RETENTION))
        log.trim_before(start, LogStartReason.RETENTION)
        delete_head(log, start)
    no_descriptor(machine, "open", log)
    log.record_at_once(100, LogStartReason.RESET)
    log = restart(machine)
    assert (log.damage, log.log_start_offset, log.log_end_offset) == (None, 100, 100)


@pytest.mark.parametrize("call", ["open", "write_at", "sync"])
def test_the_newest_stored_start_stays_until_another_one_is_stored(machine: Machine, call: str) -> None:
    """However many attempts failed in between: a torn write falls back to it."""
    _, log = synced(machine)
    for attempts in range(1, 4):
        drive(log.record_start(10 * attempts, LogStartReason.RETENTION))
        stored = parse_log_start(machine.content(LOG_START))
        for _ in range(attempts):
            no_descriptor(machine, call, log)
        no_descriptor(machine, "sync", log)
        assert stored in parse_log_starts(machine.content(LOG_START))


@pytest.mark.parametrize("fails", [False, True])
async def test_a_start_whose_writer_was_cancelled_is_written_again(machine: Machine, fails: bool) -> None:
    """As at a stop. The thread has written it, or a part of it; the log has not taken it over, and says so when it is
    closed. The next start would otherwise begin where no replica was told that this log begins."""
    directory, log = synced(machine)

    async def in_background(call: Callable[[], object]) -> object:
        call()
        raise asyncio.CancelledError from OutOfDescriptors("too many open files") if fails else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log.health.disk, "in_background", in_background)
        with pytest.raises(asyncio.CancelledError):
            await log.record_start(40, LogStartReason.RETENTION)
    assert not log.is_start_recorded
    drive(directory.record_log_starts())
    machine.kill()
    assert machine.open(CONFIG).logs[PARTITION].log_start_offset == 0
