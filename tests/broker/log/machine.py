"""A machine with a simulated disk for tests of the log, and checks that hold for any log at any time."""

from __future__ import annotations

import asyncio
import atexit
import itertools
import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.retention import retention_start
from minibroker.broker.log.segments.segment_digest import digest_of_headers
from minibroker.broker.log.segments.segment_index import NO_TIMESTAMP, SegmentIndex
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.broker.log.segments.walk import scan_batches
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.files.checkpoints import SMALL_FILE_BYTES_MAX, LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader, build_batch, read_header
from minibroker.simulation.world.clock import SimulatedClock
from minibroker.simulation.world.disk import SimulatedDisk, SimulatedFile
from minibroker.simulation.world.loop import VirtualLoop
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.storage import SimulatedStorage
from minibroker.simulation.world.trace import Trace

T = TypeVar("T")
Batch = tuple[BatchHeader, bytearray]

PARTITION = TopicPartition("lines", 0)
TOPIC_ID = "topic-id-of-lines"
OWNER = (TOPIC_ID, PARTITION.partition)
PATH = "/data"
SMALL = LogConfig(segment_bytes=1_000, index_interval_bytes=100, file_delete_delay_ms=0, retention_ms=None)


LOOP = asyncio.new_event_loop()
atexit.register(LOOP.close)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; inside an asynchronous test only coroutines that never really wait."""
    if asyncio._get_running_loop() is None:
        return LOOP.run_until_complete(coroutine)
    while True:
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class CountedDisk(SimulatedDisk):
    """Knows the files that its process has opened."""

    opened: list[SimulatedFile]

    def open(self, path: str, create: bool = False) -> SimulatedFile:
        file = super().open(path, create)
        self.opened.append(file)
        return file


class Machine:
    """One computer: its disk outlives its processes."""

    def __init__(self, seed: int = 0, has_disk_threads: bool = False) -> None:
        self.has_disk_threads = has_disk_threads
        self.loop = VirtualLoop()
        self.random = random.Random(seed)
        self.storage = SimulatedStorage("host", self.loop, self.random, Trace(self.loop))
        self.storage.cost.background_mean = 0.0
        self.storage.provision(PATH)
        self.clock_skew_ms = 0
        self.starts = 0
        self.opened: list[SimulatedFile] = []
        """By the present process."""
        self.process = self._new_process()

    def _new_process(self) -> Process:
        self.starts += 1
        self.opened = []
        return Process("broker", self.starts, self.loop)

    def disk(self) -> SimulatedDisk:
        disk = CountedDisk(self.storage, self.process, self.clock(), self.has_disk_threads)
        disk.opened = self.opened
        return disk

    def check_closed_files(self) -> None:
        """A log keeps one file of each segment open, and nothing else: a broker has few descriptors."""
        left = Counter(file._path for file in self.opened if file._open)
        assert {path for path, count in left.items() if count > 1 or not path.endswith(".log")} == set()

    def clock(self) -> SimulatedClock:
        return SimulatedClock(self.loop, self.process, self)

    def kill(self) -> None:
        """The process ends; the kernel keeps what it wrote."""
        self.process.kill()
        self.storage.process_ended(self.process)
        self.process = self._new_process()

    def lose_power(self, tear: bool = False) -> None:
        """The process ends, and unsynced bytes are lost; with `tear` a random part of them survives."""
        self.kill()
        self.storage.lose_power(tear)

    def open(self, config: LogConfig = SMALL, **options: Any) -> LogDirectory:
        options = {"broker_id": 1, "cluster_id": "cluster", "tail_cache": TailCache(), **options}
        return drive(
            LogDirectory.open(self.disk(), self.clock(), PATH, default_config=config, rng=self.random, **options)
        )

    def open_log(self, config: LogConfig = SMALL, **options: Any) -> tuple[LogDirectory, PartitionLog]:
        directory = self.open(config, **options)
        return directory, directory.create_log(PARTITION, TOPIC_ID, config)

    def file_names(self, suffix: str = "", directory: str = f"{PATH}/{PARTITION}") -> list[str]:
        return [name for name in self.disk().list_directory(directory) if name.endswith(suffix)]

    def file_size(self, name: str) -> int:
        return self.disk().file_size(f"{PATH}/{PARTITION}/{name}")

    def edit(self, name: str, content: bytes) -> None:
        """Replace a file of the partition without the broker's knowledge."""
        self.disk().replace_file(f"{PATH}/{PARTITION}/{name}", content)

    def content(self, name: str) -> bytes:
        return self.disk().read_file(f"{PATH}/{PARTITION}/{name}", SMALL_FILE_BYTES_MAX)


def make_batch(
    base_offset: int,
    records: int = 2,
    *,
    epoch: int = 0,
    value: bytes = b"v" * 40,
    timestamp_ms: int = 1_000,
    producer: tuple[int, int, int] | None = None,
) -> Batch:
    """A stamped batch; `producer` is (id, epoch, base sequence)."""
    producer_id, producer_epoch, sequence = producer if producer is not None else (-1, -1, -1)
    batch = build_batch(
        [(None, value, timestamp_ms, ())] * records,
        base_offset=base_offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
    )
    return read_header(batch), batch


def append(log: PartitionLog, count: int = 1, records: int = 2, **options: Any) -> list[Batch]:
    """Append `count` batches one by one, as a leader does; update the epoch file as the core would."""
    written = []
    for _ in range(count):
        batch = make_batch(log.log_end_offset, records, **options)
        append_batches(log, [batch])
        written.append(batch)
    return written


def append_batches(log: PartitionLog, batches: Sequence[Batch]) -> None:
    entries = log.epoch_entries()
    for header, _ in batches:
        if not entries or entries[-1][0] < header.partition_leader_epoch:
            entries = [entry for entry in entries if entry[1] < header.base_offset]
            entries.append((header.partition_leader_epoch, header.base_offset))
    if entries != log.epoch_entries():
        log.write_epoch_entries(entries)
    log.append(batches)


def truncate(log: PartitionLog, end_offset: int) -> None:
    """Cut the log and then the epochs, as the core would."""
    log.truncate_to(end_offset)
    is_empty = log.size_bytes == 0
    kept = [] if is_empty else [entry for entry in log.epoch_entries() if entry[1] < log.log_end_offset]
    log.write_epoch_entries(kept)


def trim_epochs(log: PartitionLog) -> None:
    """Trim the epochs as the core does when the log's head was deleted."""
    entries, start = log.epoch_entries(), log.segments[0].base_offset
    below = [entry for entry in entries if entry[1] <= start]
    if below:
        log.write_epoch_entries([(below[-1][0], start), *entries[len(below) :]])


def start_at(log: PartitionLog, offset: int, reason: LogStartReason = LogStartReason.TRIM) -> int:
    """Raise the log's start: record, trim, delete. Returns the base offset of the first remaining segment."""
    drive(log.record_start(offset, reason))
    log.trim_before(offset, reason)
    return delete_head(log, offset)


def retain(log: PartitionLog, high_watermark: int, now_ms: int) -> int:
    """Apply retention like a leader without in-sync followers: decide, record, trim, delete. Returns the log's
    start."""
    start = retention_start(log, high_watermark, now_ms)
    if start > log.log_start_offset:
        drive(log.record_start(start, LogStartReason.RETENTION))
        log.trim_before(start, LogStartReason.RETENTION)
    elif not log.is_start_recorded:
        drive(log.record_start())
    delete_head(log, start)
    return log.log_start_offset


def reset(log: PartitionLog, offset: int) -> None:
    log.reset_to(offset)
    log.write_epoch_entries([])


def stored_batches(log: PartitionLog) -> list[tuple[BatchHeader, bytes]]:
    """The batches in the files, read without the log, with all checks."""
    batches = []
    for segment in log.segments:
        file = log.health.disk.open(segment.log_path)
        for position, header in scan_batches(file, 0, file.size):
            batches.append((header, file.read_at(position, header.size_bytes)))
        file.close()
    return batches


def read_all(log: PartitionLog, max_bytes: int = 1_000_000) -> bytes:
    """Everything from the log's start, through `read`."""
    offset, data = log.log_start_offset, b""
    while offset < log.log_end_offset:
        part = log.read(offset, max_bytes, log.log_end_offset)
        assert part.size_bytes == sum(len(piece) for piece in part.parts) > 0
        assert part.next_offset > offset
        data += b"".join(part.parts)
        offset = part.next_offset
    return data


def check_log(log: PartitionLog, *, whole_history: bool = True) -> None:
    """I10, I12, I13, I15 of one log. `whole_history`: no producer wrote before the log's first batch."""
    assert log.segments[0].base_offset <= log.log_start_offset <= log.log_end_offset
    assert log.recovery_point <= log.log_end_offset
    batches = stored_batches(log)
    _check_shape(log, batches)
    _check_epochs(log, batches)
    _check_indexes(log)
    _check_digests(log)
    if whole_history:
        rebuilt = ProducerStates()
        for header, _ in batches:
            rebuilt.update(header)
        assert rebuilt == log.producers


def _check_shape(log: PartitionLog, batches: list[tuple[BatchHeader, bytes]]) -> None:
    expected, epoch = log.segments[0].base_offset, -1
    for header, _ in batches:
        assert header.base_offset == expected
        assert header.partition_leader_epoch >= epoch
        expected, epoch = header.end_offset, header.partition_leader_epoch
    assert expected == log.log_end_offset
    bases = {header.base_offset for header, _ in batches} | {log.log_end_offset}
    for segment in log.segments[1:]:
        assert segment.base_offset in bases


def _check_epochs(log: PartitionLog, batches: list[tuple[BatchHeader, bytes]]) -> None:
    entries = log.epoch_entries()
    for (epoch, start), (later_epoch, later_start) in itertools.pairwise(entries):
        assert epoch < later_epoch
        assert start < later_start
    assert all(log.segments[0].base_offset <= start <= log.log_end_offset for _, start in entries)
    for header, _ in batches:
        floor = max(entry for entry in entries if entry[1] <= header.base_offset)
        assert floor[0] == header.partition_leader_epoch


def _check_digests(log: PartitionLog) -> None:
    """Each known digest is right."""
    for segment in log.segments:
        assert segment.digest.value in (None, digest_of_headers(header for _, header in segment.headers_from(0)))


def _check_indexes(log: PartitionLog) -> None:
    for segment in log.segments:
        rebuilt = SegmentIndex(log.config.index_interval_bytes)
        largest = NO_TIMESTAMP
        for position, header in segment.headers_from(0):
            largest = max(largest, header.max_timestamp)
            if rebuilt.is_due(position):
                rebuilt.add(header.last_offset - segment.base_offset, position, largest)
        index = segment._loaded_index()
        assert index.last_offsets == rebuilt.last_offsets
        assert index.positions == rebuilt.positions
        assert index.timestamps == rebuilt.timestamps
        assert segment.largest_timestamp() == largest
