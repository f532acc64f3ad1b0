"""Thousands of partitions with a limited number of open files and limited memory for indexes."""

from __future__ import annotations

import random
import tracemalloc
from pathlib import Path

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.broker.log.segments.warm_segments import WarmSegments
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.adapters.clock import RealClock
from minibroker.runtime.adapters.disk import RealDisk
from tests.broker.log.machine import SMALL, Machine, append, check_log, drive, read_all

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
