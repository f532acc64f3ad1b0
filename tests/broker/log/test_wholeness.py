"""Since which starts the logs of a directory are certainly whole: `whole-since`, over kills, power cuts and rot."""

from __future__ import annotations

import pytest

from minibroker.broker.log.log_directory import LogDirectory
from minibroker.protocol.files.checkpoints import (
    LOG_START,
    LOG_START_SLOT_BYTES,
    CorruptCheckpoint,
    LogStartReason,
    WholeSince,
    format_whole_since,
    parse_log_start,
    parse_whole_since,
)
from minibroker.protocol.ids import TopicPartition
from tests.broker.log.machine import PARTITION, PATH, SMALL, TOPIC_ID, Machine, append, drive

FILE = f"{PATH}/whole-since"
OTHER = TopicPartition("other", 1)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def start(machine: Machine, incarnation: str, records: int = 3) -> LogDirectory:
    """Start a broker and append some records."""
    directory = machine.open(incarnation_id=incarnation)
    if records:
        append(directory.create_log(PARTITION, TOPIC_ID, SMALL), records)
    return directory


def chain(machine: Machine) -> tuple[str, ...]:
    """The chain of incarnations after one more start."""
    return machine.open(incarnation_id="last").wholeness.incarnations


def test_a_fresh_directory_is_whole_since_its_first_start(machine: Machine) -> None:
    assert start(machine, "a").wholeness.incarnations == ("a",)


def test_killed_processes_lose_nothing(machine: Machine) -> None:
    for incarnation in ("a", "b"):
        start(machine, incarnation)
        machine.kill()
    assert chain(machine) == ("a", "b", "last")


def test_a_power_cut_restarts_the_chain_and_says_why(machine: Machine) -> None:
    assert start(machine, "a").wholeness.doubt is None, "there was no start before"
    machine.kill()
    assert start(machine, "b", 0).wholeness.doubt is None
    machine.lose_power()
    wholeness = machine.open(incarnation_id="last").wholeness
    assert wholeness.incarnations == ("last",)
    assert wholeness.doubt == "the machine went down without a clean stop"


def test_the_chain_survives_a_power_cut_after_a_clean_stop(machine: Machine) -> None:
    drive(start(machine, "a").close(True, {}))
    machine.lose_power()
    assert chain(machine) == ("a", "last")


def test_only_clean_stops_in_a_row_prove_that_logs_are_whole_since_before_them(machine: Machine) -> None:
    """A replica that was stopped cleanly may lead alone: without the proof its partitions wait for another member."""
    drive(start(machine, "a").close(True, {}))
    drive(start(machine, "b", 0).close(True, {}))
    wholeness = start(machine, "c", 0).wholeness
    assert (wholeness.incarnations, wholeness.proven) == (("a", "b", "c"), ("a", "b", "c"))
    machine.kill()
    wholeness = machine.open(incarnation_id="d").wholeness
    assert (wholeness.incarnations, wholeness.proven) == (("a", "b", "c", "d"), ("d",))


def test_a_clean_stop_that_proves_nothing_leaves_the_logs_undisturbed(machine: Machine) -> None:
    """The broker could not note in ZooKeeper that it has stopped."""
    drive(start(machine, "a").close(True, {}))
    drive(start(machine, "b", 0).close(True, {}, is_proof=False))
    machine.lose_power()
    wholeness = machine.open(incarnation_id="c").wholeness
    assert (wholeness.incarnations, wholeness.proven) == (("a", "b", "c"), ("c",))


def test_a_log_with_another_end_than_at_the_clean_stop_restarts_the_chain(machine: Machine) -> None:
    directory = start(machine, "a", 3)
    end = directory.logs[PARTITION].log_end_offset
    drive(directory.close(True, {}))
    known = WholeSince(incarnations=("a",), log_ends={PARTITION: end + 1})
    machine.disk().replace_file(FILE, format_whole_since(known))
    assert chain(machine) == ("last",)


def test_a_missing_log_restarts_the_chain_and_is_named(machine: Machine) -> None:
    directory = start(machine, "a")
    append(directory.create_log(OTHER, "other", SMALL), 3)
    drive(directory.close(True, {}))
    machine.disk().remove_tree(f"{PATH}/{PARTITION}")
    directory = machine.open(incarnation_id="b")
    assert directory.wholeness.incarnations == ("b",)
    assert directory.wholeness.missing == {PARTITION}


def test_a_log_that_was_cut_restarts_the_chain(machine: Machine) -> None:
    log = start(machine, "a").logs[PARTITION]
    path = f"{log.directory}/{0:020d}.log"
    machine.kill()
    machine.storage.flip_bit(path, log.size_bytes - 1)
    assert chain(machine) == ("last",)


def test_damage_of_the_file_restarts_the_chain(machine: Machine) -> None:
    start(machine, "a")
    machine.kill()
    machine.storage.flip_bit(FILE, 5)
    assert chain(machine) == ("last",)


def trim(directory: LogDirectory) -> None:
    """The first segment begins lower than the log now."""
    log = directory.logs[PARTITION]
    drive(log.record_start(3, LogStartReason.TRIM))
    log.trim_before(3, LogStartReason.TRIM)


def lose_start(machine: Machine, how: str) -> None:
    """`bit`: in the newest slot. The other one holds the start before. `bits`: in both."""
    content = bytearray(machine.content(LOG_START))
    change = parse_log_start(bytes(content))[1]
    if how == "missing":
        machine.disk().remove(f"{PATH}/{PARTITION}/{LOG_START}")
    elif how in ("bit", "bits"):
        for slot in (change, change + 1) if how == "bits" else (change,):
            content[slot % 2 * LOG_START_SLOT_BYTES + 30] ^= 4
        machine.edit(LOG_START, bytes(content))
    else:
        machine.edit(LOG_START, b"")
    machine.kill()


@pytest.mark.parametrize("stop", ["clean", "killed"])
@pytest.mark.parametrize("how", ["missing", "empty", "bit"])
def test_a_log_without_its_newest_start_restarts_the_chain(machine: Machine, stop: str, how: str) -> None:
    """It begins lower than it did, and nothing else shows it. It led at once, and a sound replica that had deleted
    that head was called damaged."""
    directory = start(machine, "a")
    trim(directory)
    if stop == "clean":
        drive(directory.close(True, {}))
    machine.kill()
    lose_start(machine, how)
    directory = machine.open(incarnation_id="b")
    assert (directory.logs[PARTITION].damage, directory.logs[PARTITION].log_start_offset) == (None, 0)
    assert (directory.wholeness.incarnations, directory.wholeness.proven) == (("b",), ("b",))
    assert directory.wholeness.doubt == f"{PARTITION} may begin too low: its log-start file is missing or damaged"


@pytest.mark.parametrize("how", ["missing", "empty", "bit", "bits"])
def test_a_start_that_was_in_doubt_is_written_again(machine: Machine, how: str) -> None:
    """Else each later start would be in doubt."""
    directory = start(machine, "a")
    trim(directory)
    machine.kill()
    lose_start(machine, how)
    directory = machine.open(incarnation_id="b")
    drive(directory.maintain(0))
    machine.kill()
    directory = machine.open(incarnation_id="c")
    assert (directory.wholeness.doubt, directory.wholeness.incarnations) == (None, ("b", "c"))
    assert directory.logs[PARTITION].report.files_not_used == []


@pytest.mark.parametrize("is_trimmed", [False, True])
def test_a_start_in_one_slot_or_in_both_leaves_no_doubt(machine: Machine, is_trimmed: bool) -> None:
    """The second slot is blank until the start changes."""
    directory = start(machine, "a")
    if is_trimmed:
        trim(directory)
    directory.create_log(OTHER, "other", SMALL)
    machine.kill()
    assert chain(machine) == ("a", "last")


def test_an_empty_log_without_a_start_leaves_no_doubt(machine: Machine) -> None:
    """A kill may come before it is written; then there is no record that could be missing."""
    machine.open(incarnation_id="a").create_log(PARTITION, TOPIC_ID, SMALL)
    machine.kill()
    lose_start(machine, "missing")
    assert chain(machine) == ("a", "last")


def test_a_crash_while_loading_leaves_no_chain(machine: Machine) -> None:
    drive(start(machine, "a").close(True, {}))
    machine.storage.fail("read", f"{PATH}/{PARTITION}", times=1)
    with pytest.raises(Exception, match="simulated"):
        machine.open(incarnation_id="b")
    machine.kill()
    assert chain(machine) == ("last",)


def test_a_failed_directory_restarts_the_chain(machine: Machine) -> None:
    directory = start(machine, "a")
    machine.storage.fail("sync", f"{PATH}/{PARTITION}", times=1)
    with pytest.raises(Exception, match="simulated"):
        drive(directory.logs[PARTITION].flush())
    assert directory.offline
    machine.kill()
    machine.storage.heal()
    assert chain(machine) == ("last",)


def test_a_stop_proves_nothing_of_a_directory_that_has_failed(machine: Machine) -> None:
    directory = start(machine, "a")
    directory.mark_offline(OSError("smoke"))
    directory.wholeness.write({PARTITION: 6})
    machine.kill()
    assert chain(machine) == ("last",)


def test_a_tool_that_opens_the_directory_leaves_no_chain(machine: Machine) -> None:
    start(machine, "a")
    machine.kill()
    drive(machine.open().close(True, {}))
    assert chain(machine) == ("last",)


@pytest.mark.parametrize("ends", [None, {}, {PARTITION: 6, OTHER: 0}])
def test_the_file_survives_a_round_trip(ends: dict[TopicPartition, int] | None) -> None:
    known = WholeSince(incarnations=("a", "b"), log_ends=ends)
    assert parse_whole_since(format_whole_since(known)) == known


def test_any_flipped_bit_of_the_file_is_found() -> None:
    content = bytearray(format_whole_since(WholeSince(incarnations=("a", "b"), log_ends={PARTITION: 6})))
    for position in range(len(content)):
        content[position] ^= 1
        with pytest.raises(CorruptCheckpoint):
            parse_whole_since(bytes(content))
        content[position] ^= 1
