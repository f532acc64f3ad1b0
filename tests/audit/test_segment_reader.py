"""Reading segments: ranges match the whole file, resynchronisation, files that change, hostile content."""

import errno
import os
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minibroker.audit.reading import segment_reader
from minibroker.audit.reading.ranges import plan_ranges
from minibroker.audit.reading.replica import NO_VALUE, Columns, RangeScan, ReplicaFacts, SegmentGap, assemble
from minibroker.audit.reading.segment_reader import RangeTask, scan_range
from minibroker.audit.spark.planning import SHARE_BYTES, comparison_shares, plan_exact_ranges, portions
from minibroker.audit.spark.stitching import stitch
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.files import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch
from tests.audit.damage import ENCODED
from tests.audit.planted_cluster import PlantedReplica, encode

LINES = TopicPartition("lines", 0)


def task_for(directory: Path, size: int) -> RangeTask:
    return RangeTask(directory=str(directory), segment=0, size=size, start=0, end=size)


def whole(directory: Path, content: bytes, with_values: bool = False) -> RangeScan:
    (directory / checkpoints.segment_file_name(0)).write_bytes(content)
    return scan_range(task_for(directory, len(content)), with_values=with_values)


def columns_of(scan: RangeScan) -> Columns:
    columns = Columns()
    columns.extend(scan.columns)
    return columns


def facts_of(directory: Path, size: int) -> ReplicaFacts:
    return ReplicaFacts(
        broker=1,
        topic="lines",
        partition=0,
        directory=str(directory),
        high_watermark=None,
        log_start=None,
        recovery_point=None,
        cleanly_stopped=True,
        epoch_entries=None,
        metadata=None,
        segments=((0, size),),
    )


def in_ranges(directory: Path, size: int, range_bytes: int) -> tuple[list[RangeScan], int]:
    """The stitched scans, and how often a file had to be read again."""
    rereads = []

    def reread(task: RangeTask) -> RangeScan:
        rereads.append(task)
        return scan_range(task, with_values=True)

    tasks = plan_ranges(str(directory), [(0, size)], range_bytes)
    return stitch([scan_range(task, with_values=True) for task in tasks], reread), len(rereads)


def joined(directory: Path, size: int, scans: list[RangeScan]) -> tuple[object, ...]:
    replica = assemble(facts_of(directory, size), scans)
    (segment,) = replica.segments
    return (replica.columns.pack(), segment.gaps, segment.undecodable, segment.size)


CONTENT = b"".join(ENCODED)
FOREIGN = st.sampled_from([b"M" * 100, b"\x00" * 90, b"foreign", ENCODED[2][:70], ENCODED[1][5:], ENCODED[3]])


@given(
    edits=st.lists(st.tuples(st.integers(0, len(CONTENT)), st.integers(0, 150), st.binary(max_size=4) | FOREIGN)),
    range_bytes=st.integers(1, 900),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges_give_exactly_the_result_of_the_whole_file(
    tmp_path: Path, edits: list[tuple[int, int, bytes]], range_bytes: int
) -> None:
    content = bytearray(CONTENT)
    for at, length, patch in edits:
        content[at : at + length] = patch
    expected = whole(tmp_path, bytes(content), with_values=True)
    scans, _ = in_ranges(tmp_path, len(content), range_bytes)
    assert joined(tmp_path, len(content), scans) == joined(tmp_path, len(content), [expected])


@given(range_bytes=st.integers(1, 900))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_ranges_of_a_valid_file_join_without_reading_again(tmp_path: Path, range_bytes: int) -> None:
    whole(tmp_path, CONTENT)
    assert in_ranges(tmp_path, len(CONTENT), range_bytes)[1] == 0


def test_a_batch_inside_a_value_is_never_read_as_a_batch(tmp_path: Path) -> None:
    content = b"".join(encode([(0, [b"a"]), (0, [CONTENT]), (0, [b"b"])]))
    expected = whole(tmp_path, content, with_values=True)
    assert len(columns_of(expected)) == 3
    scans, rereads = in_ranges(tmp_path, len(content), 300)
    assert rereads == 0, "ranges inside the value are dropped, not read again"
    assert joined(tmp_path, len(content), scans) == joined(tmp_path, len(content), [expected])


def test_a_gap_that_spans_ranges_is_reported_once(tmp_path: Path) -> None:
    content = ENCODED[0] + b"\x00" * 1000 + b"".join(ENCODED[1:])
    whole(tmp_path, content)
    scans, rereads = in_ranges(tmp_path, len(content), 200)
    gaps = [gap for scan in scans for gap in scan.gaps]
    assert [(gap.position, gap.end) for gap in gaps] == [(len(ENCODED[0]), len(ENCODED[0]) + 1000)]
    assert rereads == 0


def test_a_gap_behind_a_batch_that_reaches_into_a_range_is_read_again_from_there(tmp_path: Path) -> None:
    content = ENCODED[0] + b"\x00" * 500 + b"".join(ENCODED[1:])
    expected = whole(tmp_path, content, with_values=True)
    scans, rereads = in_ranges(tmp_path, len(content), len(ENCODED[0]) - 10)
    assert rereads == 1
    assert joined(tmp_path, len(content), scans) == joined(tmp_path, len(content), [expected])


@pytest.mark.parametrize("range_bytes", [50, 61, 200])
@pytest.mark.parametrize("tail", [ENCODED[1][:90], b"\x00" * 700, b"\x02" * 700])
def test_a_gap_up_to_the_end_is_torn_in_ranges_as_in_the_whole_file(
    tmp_path: Path, tail: bytes, range_bytes: int
) -> None:
    content = ENCODED[0] + tail
    expected = whole(tmp_path, content, with_values=True)
    scans, _ = in_ranges(tmp_path, len(content), range_bytes)
    assert joined(tmp_path, len(content), scans) == joined(tmp_path, len(content), [expected])


def test_checksums_are_taken_record_by_record(tmp_path: Path) -> None:
    content = b"".join(encode([(0, [b"a", None, b""])]))
    crcs = list(columns_of(whole(tmp_path, content, with_values=True)).record_crcs)
    assert crcs == [crc32c(b"a"), NO_VALUE, 0]


@pytest.mark.parametrize(
    ("tail", "torn"),
    [(ENCODED[1][:30], True), (ENCODED[1][:90], True), (b"\x00" * 80, False), (ENCODED[1][:-1] + b"\xff", False)],
)
def test_a_tail_is_torn_only_if_the_file_ends_inside_a_batch(tmp_path: Path, tail: bytes, torn: bool) -> None:
    (gap,) = whole(tmp_path, ENCODED[0] + tail).gaps
    assert (gap.position, gap.end, gap.torn, gap.reaches_end) == (
        len(ENCODED[0]),
        len(ENCODED[0]) + len(tail),
        torn,
        True,
    )


def test_nothing_is_read_beyond_the_files_size_at_the_start(tmp_path: Path) -> None:
    size = len(ENCODED[0]) + 20
    (tmp_path / checkpoints.segment_file_name(0)).write_bytes(CONTENT)
    scan = scan_range(task_for(tmp_path, size), with_values=False)
    assert len(columns_of(scan)) == 1
    assert [gap.torn for gap in scan.gaps] == [True], "what was appended later is a torn tail to this audit"


def test_a_file_that_shrank_ends_at_its_new_size(tmp_path: Path) -> None:
    (tmp_path / checkpoints.segment_file_name(0)).write_bytes(ENCODED[0])
    scan = scan_range(task_for(tmp_path, len(CONTENT)), with_values=False)
    assert (len(columns_of(scan)), scan.size, scan.gaps) == (1, len(ENCODED[0]), ())


def test_a_vanished_file_is_reported_as_vanished(tmp_path: Path) -> None:
    assert scan_range(task_for(tmp_path, 100), with_values=False).vanished


def test_a_batch_larger_than_the_window_is_read_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", 256)
    big = bytes(build_batch([(None, b"x" * 5000, 1, ())], base_offset=0))
    content = big + bytes(build_batch([(None, b"y" * 5000, 1, ())], base_offset=1))
    assert len(columns_of(whole(tmp_path, content))) == 2


@pytest.mark.parametrize("chunk", [61, 100, 1000])
def test_windows_of_any_size_give_the_same_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    content = ENCODED[0] + b"M" * 300 + ENCODED[1] + b"\x00" * 300 + b"".join(ENCODED[2:])
    expected = whole(tmp_path, content)
    monkeypatch.setattr(segment_reader, "CHUNK_BYTES", chunk)
    assert whole(tmp_path, content) == expected


def test_an_unreadable_file_is_one_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    (tmp_path / checkpoints.segment_file_name(0)).write_bytes(CONTENT)
    monkeypatch.setattr(os, "pread", broken)
    scan = scan_range(task_for(tmp_path, len(CONTENT)), with_values=False)
    reason = "cannot be read: Input/output error"
    assert scan.gaps == (SegmentGap(0, len(CONTENT), reason, torn=False, reaches_end=False),)


# planning


def test_a_disk_that_refuses_the_rest_of_a_file_does_not_end_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system first returns what is in front of a bad sector, and only the next call fails."""
    read = os.pread

    def refuse(descriptor: int, count: int, position: int) -> bytes:
        if position >= 200:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, min(count, 200 - position), position)

    monkeypatch.setattr(os, "pread", refuse)
    content = b"".join(ENCODED)
    (gap,) = whole(tmp_path, content).gaps
    assert (gap.position, gap.end, gap.reason) == (0, len(content), "cannot be read: Input/output error")


def test_a_file_that_comes_in_small_pieces_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"".join(ENCODED)
    at_once = whole(tmp_path, content)
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, count, position: read(descriptor, min(count, 50), position))
    assert whole(tmp_path, content) == at_once


def test_exact_cuts_are_at_batch_starts(tmp_path: Path) -> None:
    replica = PlantedReplica(tmp_path, LINES)
    replica.directory.mkdir()
    replica.write_segment(0, ENCODED)
    size = len(CONTENT)
    tasks = plan_exact_ranges(facts_of(replica.directory, size), 400)
    positions = set(columns_of(scan_range(task_for(replica.directory, size), with_values=False)).positions)
    assert len(tasks) > 3
    assert {task.start for task in tasks} <= positions
    assert [task.end for task in tasks] == [*[task.start for task in tasks[1:]], size]


def test_exact_cuts_do_not_trust_a_garbled_index(tmp_path: Path) -> None:
    replica = PlantedReplica(tmp_path, LINES)
    replica.directory.mkdir()
    replica.write_segment(0, ENCODED)
    replica.file(0, ".index").write_bytes(b"\x00\x00\x00\x01\x00\x00\x01\x00" * 20)
    assert len(plan_exact_ranges(facts_of(replica.directory, len(CONTENT)), 400)) == 1


def test_small_ranges_share_a_portion_and_none_is_lost(tmp_path: Path) -> None:
    tasks = plan_ranges(str(tmp_path), [(segment, 10) for segment in range(1000)], 1 << 20)
    packed = portions(tasks, 1 << 20)
    assert [task for portion in packed for task in portion] == tasks
    assert len(packed) < 10


def replicas_of(sizes: list[int]) -> list[ReplicaFacts]:
    """Two replicas of a partition of each size."""
    return [
        msgspec.structs.replace(facts_of(Path(f"b{broker}-{number}"), size), broker=broker, partition=number)
        for number, size in enumerate(sizes)
        for broker in (1, 2)
    ]


def test_every_partition_is_in_one_share_and_every_core_has_a_share() -> None:
    shares = comparison_shares(replicas_of([100, 100, 100, 300]), cores=2)
    assert shares.keys() == {TopicPartition("lines", number) for number in range(4)}
    assert shares[TopicPartition("lines", 3)] not in {shares[TopicPartition("lines", number)] for number in range(3)}


def test_empty_partitions_are_spread_over_shares_too() -> None:
    assert set(Counter(comparison_shares(replicas_of([0] * 10), cores=2).values()).values()) == {5}


def test_large_logs_are_checked_in_more_shares_than_cores() -> None:
    shares = comparison_shares(replicas_of([SHARE_BYTES // 2] * 6), cores=2)
    assert set(Counter(shares.values()).values()) == {1}
    assert set(shares.values()) == set(range(6))


def test_without_replicas_there_are_no_shares() -> None:
    assert comparison_shares([], cores=2) == {}
