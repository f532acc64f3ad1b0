"""The digests of segments: updated while a log grows and is cut, and restored after each kind of stop."""

from __future__ import annotations

from typing import Any, cast

import pytest

from minibroker.broker.log.log_digests import (
    SegmentHead,
    complete_one,
    digest_from_start,
    digest_from_start_to,
    needs_head,
    read_head,
)
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.segments.segment_digest import SegmentDigest
from minibroker.protocol.files.checkpoints import with_checksum
from minibroker.protocol.files.segment_digests import (
    DIGESTS,
    SegmentDigests,
    format_segment_digests,
    parse_segment_digests,
)
from minibroker.protocol.log_digest import MODULUS, batch_digest
from tests.broker.log.machine import (
    PARTITION,
    Machine,
    append,
    drive,
    make_batch,
    reset,
    retain,
    stored_batches,
    truncate,
)


def expected(log: PartitionLog, end_offset: int | None = None) -> int:
    end = log.log_end_offset if end_offset is None else end_offset
    there = stored_batches(log)
    return sum(batch_digest(b) for h, b in there if log.log_start_offset < h.end_offset <= end) % MODULUS


def reopened(machine: Machine) -> PartitionLog:
    machine.kill()
    return machine.open_log()[1]


def stopped(machine: Machine) -> PartitionLog:
    directory, log = machine.open_log()
    append(log, 30)
    drive(directory.close(True, {}))
    return log


def values(log: PartitionLog) -> list[int | None]:
    return [segment.digest.value for segment in log.segments]


def test_the_digest_follows_appends_truncations_and_deletions(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 30)
    assert digest_from_start(log, None) == expected(log)
    truncate(log, 37)
    assert digest_from_start(log, None) == expected(log)
    append(log, 10, epoch=1)
    retain(log, log.log_end_offset, 1 << 50)
    assert digest_from_start(log, None) == expected(log)
    assert digest_from_start_to(log, None, log.log_end_offset - 2) == expected(log, log.log_end_offset - 2)
    reset(log, 7)
    assert digest_from_start(log, None) == 0


def test_a_clean_stop_stores_all_digests(machine: Machine) -> None:
    before = values(stopped(machine))
    log = reopened(machine)
    assert values(log) == before
    assert None not in before
    assert len(before) > 2


def test_after_a_kill_recovery_reads_only_the_last_segment_for_its_digest(machine: Machine) -> None:
    directory, log = machine.open_log()
    append(log, 30)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    again = reopened(machine)
    assert again.report.segments_scanned == 1
    assert values(again) == values(log)


@pytest.mark.parametrize("content", [b"", b"garbage", None])
def test_without_the_file_digests_are_unknown_until_the_segments_are_read(
    machine: Machine, content: bytes | None
) -> None:
    before = values(stopped(machine))
    if content is None:
        machine.disk().remove(f"/data/lines-0/{DIGESTS}")
    else:
        machine.edit(DIGESTS, content)
    log = reopened(machine)
    assert set(values(log)) == {None}
    append(log, 1)
    assert digest_from_start(log, None) is None
    while drive(complete_one(log)):
        pass
    assert values(log)[: len(before) - 1] == before[:-1]
    assert digest_from_start(log, None) == expected(log)


@pytest.mark.parametrize("what", ["rotten", "shorter", "unreadable", "missing"])
def test_the_digest_of_a_segment_that_cannot_be_read_stays_unknown(machine: Machine, what: str) -> None:
    """A read that serves the segment, or the scrubber, reports it."""
    stopped(machine)
    machine.disk().remove(f"/data/lines-0/{DIGESTS}")
    log = reopened(machine)
    log.trim_before(2)
    path = log.segments[0].log_path
    if what == "rotten":
        machine.storage.flip_bit(path, 16)
    elif what == "shorter":
        machine.disk().open(path).truncate(0)
    elif what == "unreadable":
        machine.storage.fail("read", path)
    else:
        machine.disk().remove(path)
    assert drive(read_head(log)) is None
    assert drive(complete_one(log)) is False
    assert (values(log)[0], log.damage) == (None, None)


@pytest.mark.parametrize("what", ["rotten", "unreadable"])
def test_a_digest_up_to_an_offset_is_unknown_if_the_batches_behind_it_cannot_be_read(
    machine: Machine, what: str
) -> None:
    _, log = machine.open_log()
    append(log, 10)
    end, segment = log.log_end_offset, log.segments[-1]
    assert digest_from_start_to(log, None, end - 2) == expected(log, end - 2)
    last_position = list(segment.headers_from(0))[-1][0]
    if what == "rotten":
        machine.storage.flip_bit(segment.log_path, last_position + 16)
    else:
        machine.storage.fail("read", segment.log_path)
    assert digest_from_start_to(log, None, end - 2) is None
    assert log.damage is None, "a read that serves it, or the scrubber, reports it"
    assert digest_from_start_to(log, None, end) == digest_from_start(log, None)


def test_an_unknown_digest_can_be_computed_after_a_truncation(machine: Machine) -> None:
    stopped(machine)
    machine.disk().remove(f"/data/lines-0/{DIGESTS}")
    log = reopened(machine)
    truncate(log, log.log_end_offset - 4)
    append(log, 2, epoch=3)
    while drive(complete_one(log)):
        pass
    assert digest_from_start(log, None) == expected(log)


def test_the_file_of_another_partition_is_not_believed(machine: Machine) -> None:
    stopped(machine)
    foreign = parse_segment_digests(machine.content(DIGESTS)).segments
    machine.edit(
        DIGESTS, format_segment_digests(SegmentDigests(topic_id="another", partition=0, segments=dict(foreign)))
    )
    assert set(values(reopened(machine))) == {None}


@pytest.mark.parametrize("stop", ["clean", "killed", "without power"])
def test_a_file_from_before_a_truncation_is_not_believed(machine: Machine, stop: str) -> None:
    """Its segments end where those of the log do, and it was believed. The scrubber called a sound log damaged, and the
    leader noted the wrong digest for the audit."""
    directory, log = machine.open_log()
    append(log, 6, epoch=1)
    log.roll_if_aged(1 << 60)
    append(log, 1, epoch=1)
    drive(directory.close(True, {}))
    machine.kill()
    older = machine.content(DIGESTS)
    directory, log = machine.open_log()
    truncate(log, 10)
    append(log, 1, epoch=3, value=b"w" * 40)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    log.roll_if_aged(1 << 60)
    append(log, 1, epoch=3)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    if stop == "clean":
        drive(directory.close(True, {}))
    machine.kill()
    if stop == "without power":
        machine.lose_power()
    machine.edit(DIGESTS, older)
    log = machine.open_log()[1]
    assert (log.damage, values(log)[0]) == (None, None)
    while drive(complete_one(log)):
        pass
    assert digest_from_start(log, None) == expected(log)


def test_the_file_of_the_former_version_is_not_believed(machine: Machine) -> None:
    """Its lines name no epochs."""
    stopped(machine)
    lines = machine.content(DIGESTS).decode().replace("version: 2", "version: 1").splitlines(keepends=True)[:-1]
    machine.edit(DIGESTS, with_checksum("".join(lines)))
    log = reopened(machine)
    assert set(values(log)) == {None}
    assert [each.reason.partition(":")[0] for each in log.report.files_not_used] == ["digests has version 1, not 2"]


def test_a_log_start_within_a_segment_needs_one_read(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 30)
    start = log.segments[1].base_offset + 3
    log.trim_before(start)
    assert needs_head(log, None)
    assert digest_from_start(log, None) is None
    head = drive(read_head(log))
    assert not needs_head(log, head)
    assert digest_from_start(log, head) == expected(log)


@pytest.mark.parametrize(("segment", "start_moved"), [(0, 0), (2, 0), (1, -2), (1, 2)])
def test_the_head_of_another_segment_or_start_is_not_used(machine: Machine, segment: int, start_moved: int) -> None:
    """A start falls, too: that of a leader that never received the higher one."""
    _, log = machine.open_log()
    append(log, 30)
    log.trim_before(log.segments[1].base_offset + 4)
    head = drive(read_head(log))
    assert head is not None
    assert head.segment is log.segments[1]
    other = SegmentHead(log.segments[segment], head.start_offset + start_moved, head.digest)
    assert needs_head(log, other)
    assert digest_from_start(log, other) is None
    log.lower_start(log.log_start_offset - 2)
    assert needs_head(log, head)
    assert digest_from_start(log, drive(read_head(log))) == expected(log)


def test_the_head_of_a_deleted_topic_is_not_used_for_the_next_one_of_its_name(machine: Machine) -> None:
    """The witness would note a wrong digest of its records, and the audit report replicas that agree."""
    directory, log = machine.open_log()
    append(log, 30)
    log.trim_before(4)
    head = drive(read_head(log))
    directory.delete_log(PARTITION)
    log = directory.create_log(PARTITION, "another-topic-id", log.config)
    append(log, 30, value=b"another")
    log.trim_before(4)
    assert needs_head(log, head)
    assert digest_from_start(log, head) is None
    assert digest_from_start(log, drive(read_head(log))) == expected(log)


@pytest.mark.parametrize("cut", ["truncated", "killed"])
def test_what_changed_without_a_roll_is_in_the_file_before_the_recovery_point_rises(machine: Machine, cut: str) -> None:
    _, log = machine.open_log()
    append(log, 3)
    drive(log.flush())
    if cut == "truncated":
        truncate(log, 4)
        append(log, 1, epoch=1, value=b"w" * 40)
    else:
        log = reopened(machine)
        append(log, 1)
    drive(log.flush())
    digests = {0: (log.log_end_offset, 1 if cut == "truncated" else 0, expected(log))}
    machine.lose_power()
    assert parse_segment_digests(machine.content(DIGESTS)).segments == digests


def test_a_flush_writes_no_digests_without_a_cut_before_it(machine: Machine) -> None:
    _, log = machine.open_log()
    append(log, 3)
    drive(log.flush())
    truncate(log, 2)
    for _ in range(2):
        append(log, 1)
        drive(log.flush())
    [(end, _, _)] = parse_segment_digests(machine.content(DIGESTS)).segments.values()
    assert end == log.log_end_offset - 2


def test_a_power_cut_does_not_combine_an_older_file_with_newer_segments(machine: Machine) -> None:
    """A segment is closed, truncated, filled with other records up to the same end, and closed again."""
    directory, log = machine.open_log()
    append(log, 3)
    while len(log.segments) == 1:
        append(log, 1)
    drive(log.flush())
    drive(directory.checkpoint_recovery_points())
    end = log.segments[1].base_offset
    truncate(log, end - 2)
    append(log, 1, epoch=2, value=b"w" * 40)
    for _ in range(2):
        drive(log.flush())
        drive(directory.checkpoint_recovery_points())
        append(log, 3, epoch=2)
    machine.lose_power()
    again = machine.open_log()[1]
    assert [segment.base_offset for segment in again.segments][:2] == [0, end]
    assert digest_from_start(again, None) == expected(again)


def test_without_room_for_its_successor_an_older_file_does_not_stay(machine: Machine) -> None:
    """Its digests would be of batches that a cut has replaced since."""
    log = stopped(machine)
    assert machine.disk().exists(f"{log.directory}/{DIGESTS}")
    directory, log = machine.open_log()
    truncate(log, 30)
    append(log, 1, epoch=1)
    machine.storage.fail("replace_file", f"{log.directory}/{DIGESTS}", is_full=True)
    drive(directory.close(True, {}))
    assert not machine.disk().exists(f"{log.directory}/{DIGESTS}")


@pytest.mark.parametrize(
    ("position", "lost", "value"), [(60, 9, None), (60, None, None), (40, 9, None), (40, None, None)]
)
def test_the_digest_of_a_segment_is_unknown_in_front_of_what_was_counted(
    position: int, lost: int | None, value: int | None
) -> None:
    digest = SegmentDigest(50, None)
    digest.append([(cast(Any, None), make_batch(0)[1])])
    digest.cut(position, lost)
    assert digest.value is value
    assert digest.known_from == (50 if position > 50 and lost is not None else position)


def test_the_part_in_front_of_the_log_start_is_not_that_of_an_earlier_log(machine: Machine) -> None:
    """A blank replica was elected uncleanly, this log was dropped, and it grew and starts within its first segment as
    before. With the earlier part's digest its leader would note in ZooKeeper what no log holds."""
    _, log = machine.open_log()
    append(log, 3)
    log.trim_before(2)
    head = drive(read_head(log))
    assert digest_from_start(log, head) == expected(log)
    reset(log, 0)
    append(log, 3, epoch=3)
    log.trim_before(2)
    assert digest_from_start(log, head) in (None, expected(log))
    assert needs_head(log, head)
