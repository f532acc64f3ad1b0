"""Thousands of partitions with a limited number of open files and limited memory for indexes."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.segments.segment import Segment
from minibroker.broker.log.segments.segment_index import ENTRY_BYTES_IN_MEMORY
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.broker.log.segments.warm_segments import WarmSegments
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.adapters.disk import RealDisk
from minibroker.runtime.ports import Disk, DiskError
from minibroker.simulation.world.disk import SimulatedDisk, SimulatedFile
from tests.broker.log.machine import SMALL, Machine, append, check_log, drive, read_all, reset, truncate

CONFIG = LogConfig(segment_bytes=2_000, index_interval_bytes=10, retention_ms=None)


def logs_with(machine: Machine, segments: WarmSegments, count: int) -> tuple[LogDirectory, list[PartitionLog]]:
    directory = machine.open(CONFIG, tail_cache=TailCache(0))
    directory.health.segments = segments
    return directory, [directory.create_log(TopicPartition("t", number), "id", CONFIG) for number in range(count)]


def test_all_logs_work_with_a_limited_number_of_open_files(machine: Machine) -> None:
    segments = WarmSegments(files_max=3)
    _, logs = logs_with(machine, segments, 10)
    written: dict[int, bytes] = {number: b"" for number in range(10)}
    for _ in range(20):
        for number, log in enumerate(logs):
            written[number] += b"".join(bytes(batch) for _, batch in append(log, 1))
            assert segments.open_files <= 3
    for number, log in enumerate(logs):
        assert read_all(log) == written[number]
        check_log(log)
    assert segments.open_files <= 3


def test_the_file_that_was_not_used_for_longest_is_closed(machine: Machine) -> None:
    _, logs = logs_with(machine, WarmSegments(files_max=2), 3)
    for log in logs:
        append(log, 1)
    disk = CountingDisk(machine.disk())
    logs[0].health.disk = cast(Disk, disk)
    for number in (0, 1, 0, 2):
        read_all(logs[number])
    assert [disk.open_paths[log.segments[0].log_path] for log in logs] == [1, 0, 1]


class Held:
    """A segment with an open file."""

    index_bytes = 0

    def __init__(self, close_file: Callable[[], None]) -> None:
        self.close_file = close_file

    def drop_index(self) -> bool:
        return True


def test_where_the_process_has_no_descriptor_left_the_oldest_file_is_closed() -> None:
    segments = WarmSegments()
    closed: list[str] = []
    for name in ("oldest", "middle", "newest"):
        segments.file_opened(Held(partial(closed.append, name)))
    assert segments.close_oldest()
    assert closed == ["oldest"]
    assert [segments.close_oldest() for _ in range(3)] == [True, True, False]
    assert closed == ["oldest", "middle", "newest"]


def test_released_index_entries_are_read_back_from_their_files(machine: Machine) -> None:
    segments = WarmSegments(index_bytes_max=64)
    directory, logs = logs_with(machine, segments, 4)
    for _ in range(30):
        for log in logs:
            append(log, 1)
    for log in logs:
        check_log(log)
    drive(directory.close(True, {}))
    machine.kill()
    directory = machine.open(CONFIG)
    for log in directory.logs.values():
        assert log.log_end_offset == 60
        check_log(log)


def test_the_index_that_was_not_used_for_longest_is_released(machine: Machine) -> None:
    segments = WarmSegments(index_bytes_max=ENTRY_BYTES_IN_MEMORY)
    _, logs = logs_with(machine, segments, 3)
    for log in logs[:2]:
        append(log, 1)
        append(log, 1)  # the first batch of a segment has no entry
    read_all(logs[0])
    append(logs[2], 1)
    assert [log.segments[-1].index_bytes > 0 for log in logs[:2]] == [True, False]


@pytest.mark.parametrize("load", [Segment._loaded_index, Segment.renew_index])
def test_an_index_that_is_loaded_again_counts_towards_the_limit(
    machine: Machine, load: Callable[[Segment], object]
) -> None:
    """Or a reader of old records, or the scrubber, would bring all indexes into memory for ever."""
    segments = WarmSegments(index_bytes_max=3 * ENTRY_BYTES_IN_MEMORY)
    _, logs = logs_with(machine, segments, 3)
    for log in logs:
        append(log, 60)
        assert len(log.segments) > 1
    every = [segment for log in logs for segment in log.segments]
    for segment in [*every, *every]:
        load(segment)
        assert segment.index_bytes
        assert sum(each.index_bytes for each in every if each is not segment) <= segments.index_bytes_max


def test_an_index_that_cannot_be_written_stays_in_memory_and_counts(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = WarmSegments()
    _, [log] = logs_with(machine, segments, 1)
    append(log, 60)
    first, *_ = log.segments
    read_all(log)

    def fail(self: Segment) -> bool:
        raise DiskError(self.log_path)

    monkeypatch.setattr(Segment, "save_index", fail)
    held = first.index_bytes
    assert not first.drop_index()
    assert first.index_bytes == held > 0


def test_an_index_that_was_only_read_is_released_though_nothing_can_be_written(machine: Machine) -> None:
    """Its files have all of it. A reader of old records would write two files for each segment that it passes, and on a
    full disk the indexes would stay in memory."""
    directory, [log] = logs_with(machine, WarmSegments(), 1)
    append(log, 60)
    drive(directory.close(True, {}))
    machine.kill()
    directory = machine.open(CONFIG)
    log = directory.logs[log.topic_partition]
    read_all(log)
    assert len(log.segments) > 1
    assert all(segment.index_bytes for segment in log.segments)
    machine.storage.fail("append", is_full=True)
    assert [segment.drop_index() for segment in log.segments] == [True] * len(log.segments)
    assert not directory.full
    assert not any(segment.index_bytes for segment in log.segments)


# -------------------------------------------------------------------------------------- what is gone holds nothing
class CountingDisk:
    """Counts the files that are open."""

    def __init__(self, inner: SimulatedDisk) -> None:
        self._inner = inner
        self.open_paths: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def open(self, path: str, create: bool = False) -> SimulatedFile:
        file = self._inner.open(path, create)
        close, is_open = file.close, [True]
        self.open_paths[path] += 1

        def counted_close() -> None:
            if is_open:
                is_open.clear()
                self.open_paths[path] -= 1
            close()

        file.close = counted_close  # type: ignore[method-assign]
        return file


def truncates(directory: LogDirectory, log: PartitionLog) -> None:
    truncate(log, log.segments[1].base_offset)


def starts_anew(directory: LogDirectory, log: PartitionLog) -> None:
    reset(log, 1_000)


def deletes_its_head(directory: LogDirectory, log: PartitionLog) -> None:
    log.trim_before(log.segments[-1].base_offset)
    drive(log.record_start())
    delete_head(log, log.log_start_offset)


def drops_all(directory: LogDirectory, log: PartitionLog) -> None:
    log.trim_before(log.log_end_offset, drops_all=True)


def is_damaged(directory: LogDirectory, log: PartitionLog) -> None:
    log.mark_damaged("rot")


def is_deleted(directory: LogDirectory, log: PartitionLog) -> None:
    directory.delete_log(log.topic_partition)


def is_set_aside(directory: LogDirectory, log: PartitionLog) -> None:
    directory.set_log_aside(log.topic_partition)


def is_closed(directory: LogDirectory, log: PartitionLog) -> None:
    drive(directory.close(True, {}))


WAYS = (truncates, starts_anew, deletes_its_head, drops_all, is_damaged, is_deleted, is_set_aside, is_closed)


@pytest.mark.parametrize("files_max", [100, 1], ids=["with open files", "with closed files"])
@pytest.mark.parametrize("way", WAYS)
def test_what_leaves_a_log_holds_no_descriptor_and_no_index(
    machine: Machine, way: Callable[[LogDirectory, PartitionLog], None], files_max: int
) -> None:
    """A removed file keeps its space on the disk as long as it is open. An index is held whether its segment's file is
    open or was closed for others."""
    segments = WarmSegments(files_max)
    directory, _ = logs_with(machine, segments, 0)
    disk: Any = CountingDisk(machine.disk())
    directory.health.disk = disk
    log = directory.create_log(TopicPartition("t", 0), "id", CONFIG)
    append(log, 60)
    read_all(log)
    for segment in log.segments:
        segment._loaded_index()
    left = list(log.segments)
    assert len(left) >= 3
    open_before = sum(count for path, count in disk.open_paths.items() if path.endswith(".log"))
    assert open_before == min(len(left), files_max)
    way(directory, log)
    kept = {segment.log_path for segment in log.segments} if way in WAYS[:4] else set[str]()
    is_open = {path for path, count in disk.open_paths.items() if count and path.endswith(".log")}
    assert is_open <= kept
    assert segments.open_files == len(is_open)
    assert {segment.log_path for segment in segments._indexes} <= kept  # type: ignore[attr-defined]


async def test_an_idle_partition_costs_little_memory(tmp_path: Path) -> None:
    directory = await LogDirectory.open(
        RealDisk(), RealClock(), str(tmp_path), 1, "cluster", SMALL, rng=random.Random(1)
    )
    directory.create_log(TopicPartition("warm-up", 0), "id", SMALL)
    tracemalloc.start()
    try:
        for number in range(200):
            directory.create_log(TopicPartition("idle", number), "id", SMALL)
        await directory.sync_metadata()
        per_partition = tracemalloc.get_traced_memory()[0] / 200
    finally:
        tracemalloc.stop()
    await directory.close(False, {})
    assert per_partition < 5_000
