"""One log compared with a plain list, under random operations, clean and unclean stops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.segments.tail_cache import TailCache
from tests.broker.log.machine import (
    Batch,
    Machine,
    append_batches,
    check_log,
    drive,
    make_batch,
    reset,
    retain,
    stored_batches,
    trim_epochs,
    truncate,
)

CONFIG = LogConfig(
    segment_bytes=900, index_interval_bytes=200, file_delete_delay_ms=0, retention_ms=None, retention_bytes=2_500
)


class LogModel(RuleBasedStateMachine):
    """`batches` is the reference: the expected batches of the log, by offset."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine()
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        self.sequences = {producer: 0 for producer in range(3)}
        self.trimmed = False
        self.synced = 0
        """Batches that end at or below it survive a power cut."""
        self.ever_written: set[bytes] = set()

    @initialize(cache_bytes=st.sampled_from([0, 1_500, 1_000_000]))
    def open_first(self, cache_bytes: int) -> None:
        self.cache_bytes = cache_bytes
        self.reopen()
        drive(self.directory.sync_metadata())

    def reopen(self) -> None:
        self.directory, self.log = self.machine.open_log(CONFIG, tail_cache=TailCache(self.cache_bytes))

    @rule(records=st.integers(1, 4), producers=st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=4))
    def append_set(self, records: int, producers: list[int | None]) -> None:
        """A leader appends batches of one producer at once, a follower whatever it fetched."""
        self.append(records, producers)

    def append(self, records: int, producers: list[int | None]) -> None:
        batches = []
        for producer in producers:
            options: dict[str, Any] = {"epoch": self.epoch, "timestamp_ms": 1_000 + self.end}
            if producer is not None:
                options["producer"] = (producer, self.epoch, self.sequences[producer])
                self.sequences[producer] += records
            batch = make_batch(self.end, records, **options)
            batches.append(batch)
            self.ever_written.add(bytes(batch[1]))
            self.end = batch[0].end_offset
        append_batches(self.log, batches)
        self.batches += batches

    @rule(many=st.integers(5, 20))
    def append_many(self, many: int) -> None:
        for number in range(many):
            self.append(records=1 + number % 3, producers=[number % 4 if number % 4 < 3 else None])

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1

    @rule(back=st.integers(0, 30))
    def truncate_to(self, back: int) -> None:
        end_offset = max(self.end - back, 0)
        if end_offset < self.log.segments[0].base_offset:
            return self.reset_to(end_offset)
        self.batches = [batch for batch in self.batches if batch[0].end_offset <= end_offset]
        if end_offset < self.end:
            self.end = self.batches[-1][0].end_offset if self.batches else self.log.segments[0].base_offset
        self.start = min(self.start, self.end)
        self.synced = min(self.synced, self.end)
        truncate(self.log, end_offset)
        return None

    @precondition(lambda self: self.end > 40)
    @rule(offset=st.integers(0, 200))
    def reset_to(self, offset: int) -> None:
        self.batches, self.start, self.end, self.trimmed = [], offset, offset, offset > 0
        self.synced = 0
        reset(self.log, offset)

    @rule(share=st.floats(0, 1))
    def trim_before(self, share: float) -> None:
        self.start = max(self.start, int(self.end * share))
        self.trimmed = self.trimmed or self.start > 0
        self.log.trim_before(self.start)
        trim_epochs(self.log)

    @rule(share=st.floats(0, 1))
    def expire(self, share: float) -> None:
        high_watermark = max(self.start, int(self.end * share))
        before = self.log.log_start_offset
        self.start = retain(self.log, high_watermark, now_ms=0)
        assert before <= self.start <= high_watermark or self.start == before
        self.trimmed = self.trimmed or self.start > 0
        self.batches = [batch for batch in self.batches if batch[0].base_offset >= self.log.segments[0].base_offset]
        trim_epochs(self.log)

    @rule()
    def flush(self) -> None:
        assert drive(self.log.flush()) == self.end
        self.synced = self.end

    @rule()
    def maintain(self) -> None:
        drive(self.directory.maintain(now_ms=1 << 50))

    @rule()
    def checkpoint(self) -> None:
        drive(self.directory.checkpoint_recovery_points())
        drive(self.directory.record_log_starts())

    @rule()
    def stop_cleanly(self) -> None:
        drive(self.directory.close(True, {}))
        self.machine.kill()
        self.reopen()
        assert self.log.report.clean
        assert self.log.log_start_offset == self.start
        assert self.log.recovery_point == self.end
        self.synced = self.end

    @rule()
    def kill(self) -> None:
        self.machine.kill()
        self.reopen()
        assert not self.log.report.clean
        assert self.log.log_start_offset <= self.start  # its checkpoint may be older
        self.start = self.log.log_start_offset

    @rule(tear=st.booleans())
    def lose_power(self, tear: bool) -> None:
        self.machine.lose_power(tear)
        self.reopen()
        there = stored_batches(self.log)
        assert self.ever_written.issuperset(batch for _, batch in there)
        survivors = [batch for header, batch in self.batches if self.start < header.end_offset <= self.synced]
        readable = [batch for header, batch in there if header.end_offset > self.start]
        assert readable[: len(survivors)] == survivors
        assert self.log.log_start_offset <= self.start or not survivors
        self.batches = [(header, bytearray(batch)) for header, batch in there]
        self.start, self.end = self.log.log_start_offset, self.log.log_end_offset
        self.synced = min(self.synced, self.end)
        self.trimmed = self.trimmed or self.log.segments[0].base_offset > 0

    @rule(offset=st.floats(0, 1), max_bytes=st.sampled_from([1, 200, 100_000]), bound=st.floats(0, 1))
    def read(self, offset: float, max_bytes: int, bound: float) -> None:
        start = self.start + int((self.end - self.start) * offset)
        end_offset = start + int((self.end - start) * bound)
        found = self.log.read(start, max_bytes, end_offset)
        wanted = [batch for batch in self.batches if batch[0].end_offset > start and batch[0].end_offset <= end_offset]
        data = b"".join(found.parts)
        assert b"".join(batch for _, batch in wanted).startswith(data)
        assert bool(data) == bool(wanted and wanted[0][0].base_offset <= start)

    @rule(share=st.floats(0, 1))
    def look_up_a_time(self, share: float) -> None:
        time_ms = 1_000 + int(self.end * share)
        found = self.log.offset_for_timestamp(time_ms, self.end)
        expected = [
            (header.base_timestamp, max(header.base_offset, self.start))
            for header, _ in self.batches
            if header.base_timestamp >= time_ms and header.end_offset > self.start
        ]
        assert found == (expected[0] if expected else None)

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        log: PartitionLog | None = getattr(self, "log", None)
        if log is not None:
            assert (log.log_start_offset, log.log_end_offset) == (self.start, self.end)
            assert log.recovery_point <= self.end

    @rule()
    def compare(self) -> None:
        check_log(self.log, whole_history=not self.trimmed)
        offset, data = self.start, b""
        while offset < self.end:
            part = self.log.read(offset, 700, self.end)
            data += b"".join(part.parts)
            assert part.next_offset > offset
            offset = part.next_offset
        assert data == b"".join(batch for header, batch in self.batches if header.end_offset > self.start)

    def teardown(self) -> None:
        if hasattr(self, "log"):
            self.compare()
        self.machine.loop.close()


LogModel.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@pytest.mark.invariant("I10", "I12", "I13", "I14", "I15")
class TestLogModel(LogModel.TestCase):  # type: ignore[misc, valid-type]
    """A log behaves like a list, and its indexes, epochs and producer states follow from its batches."""
