"""Writes to a running cluster at a constant rate, and notes when each record is acknowledged: for `bench --rate`.

Owns: the schedule, the latencies, and the longest time without an acknowledgement. A record is sent when it is due,
whatever happens to earlier ones, and its latency counts from then: a cluster that stands still cannot hide it by
slowing the writer down. Each partition gets its records in turn, so that silence of one is seen although others answer.
Leaves to others: topics, and printing.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.deliveries import Delivery
from minibroker.client.producer.producer import Producer

PROGRESS_EVERY_S = 0.2
LAST_OUTCOMES_S = 1.0
"""They are known by then, and need only be noted."""
SIGNIFICANT_DIGITS = 3
"""Of a latency. Counts of rounded values need bounded memory, however long the run."""


class SteadyReport(msgspec.Struct, frozen=True, kw_only=True):
    """Of a run until now."""

    sent: int
    acknowledged: int
    failed: int
    seconds: float
    p50_ms: float | None
    p99_ms: float | None
    longest_ms: float | None
    """Latencies of acknowledged records."""
    gap_s: float
    """The longest time between two acknowledgements of one partition, its start and the end of the run included."""
    gap_began_s: float
    """Seconds from the start of the run."""
    gap_partition: int
    first_error: str | None


class _PartitionProgress:
    """Its records without an outcome, and its longest silence."""

    def __init__(self, now: float) -> None:
        self.unsettled: asyncio.Queue[tuple[float, Delivery] | None] = asyncio.Queue()
        """Bounded by the producer's memory. None is the end."""
        self.open = 0
        self.is_silent = False
        """Its last outcome was an error."""
        self.last_answer = now
        self.gap_s, self.gap_began = 0.0, now

    def note_silence(self, now: float) -> None:
        if now - self.last_answer > self.gap_s:
            self.gap_s, self.gap_began = now - self.last_answer, self.last_answer


class SteadyWriter:
    """`write` once; `report` at any time, and last after `settle`."""

    def __init__(self, producer: Producer, topic: str, partitions: int, per_second: int, record_bytes: int) -> None:
        self._producer = producer
        self._topic = topic
        self._per_second = per_second
        self._value = b"." * record_bytes
        self._clock = asyncio.get_running_loop().time
        self._started = self._ended = self._clock()
        self._sent = self._failed = 0
        self._first_error: str | None = None
        self._latencies_ms: Counter[float] = Counter()
        self._partitions = [_PartitionProgress(self._started) for _ in range(partitions)]
        self._settling = [asyncio.create_task(self._settle(each)) for each in self._partitions]

    async def write(self, seconds: float, report: Callable[[SteadyReport], None] = lambda _: None) -> None:
        """`report` is called now and then."""
        report_at = self._started + PROGRESS_EVERY_S
        total = round(seconds * self._per_second)
        while self._sent < total:
            due = self._started + self._sent / self._per_second
            now = self._clock()
            if now < due:
                await asyncio.sleep(due - now)
            await self._send(due)
            self._ended = now
            if now >= report_at:
                report_at = now + PROGRESS_EVERY_S
                report(self.report())

    async def _send(self, due: float) -> None:
        index = self._sent % len(self._partitions)
        self._sent += 1
        partition = self._partitions[index]
        try:
            delivery = await self._producer.send(self._topic, self._value, partition=index)
        except MinibrokerError as error:
            self._note_error(error)
            partition.is_silent = True
        else:
            partition.open += 1
            partition.unsettled.put_nowait((due, delivery))

    async def _settle(self, partition: _PartitionProgress) -> None:
        """A partition acknowledges in order."""
        while (sent := await partition.unsettled.get()) is not None:
            due, delivery = sent
            try:
                await delivery
            except MinibrokerError as error:
                self._note_error(error)
                partition.is_silent = True
            else:
                now = self._clock()
                partition.note_silence(now)
                partition.is_silent, partition.last_answer = False, now
                self._latencies_ms[float(f"{(now - due) * 1000:.{SIGNIFICANT_DIGITS}g}")] += 1
            partition.open -= 1

    def _note_error(self, error: MinibrokerError) -> None:
        self._failed += 1
        self._first_error = self._first_error or str(error)

    async def settle(self, timeout_ms: float | None) -> SteadyReport:
        """Wait for outcomes, at most so long; then end."""
        try:
            await self._producer.flush(timeout_ms)
        except MinibrokerError:
            pass  # each record has its own error, or no outcome yet
        for each in self._partitions:
            each.unsettled.put_nowait(None)
        _, late = await asyncio.wait(self._settling, timeout=LAST_OUTCOMES_S)
        for task in late:
            task.cancel()
        self._ended = self._clock()
        return self.report()

    def report(self) -> SteadyReport:
        for each in self._partitions:
            if each.open or each.is_silent:
                each.note_silence(self._clock())
        index, worst = max(enumerate(self._partitions), key=lambda item: item[1].gap_s)
        return SteadyReport(
            sent=self._sent,
            acknowledged=self._latencies_ms.total(),
            failed=self._failed,
            seconds=self._ended - self._started,
            p50_ms=percentile_of_counts(self._latencies_ms, 0.5),
            p99_ms=percentile_of_counts(self._latencies_ms, 0.99),
            longest_ms=max(self._latencies_ms, default=None),
            gap_s=worst.gap_s,
            gap_began_s=worst.gap_began - self._started,
            gap_partition=index,
            first_error=self._first_error,
        )


def percentile_of_counts(counts: Mapping[float, int], share: float) -> float | None:
    """The smallest value that at least `share` of all do not exceed; None if there are none."""
    wanted, reached = share * sum(counts.values()), 0
    for value in sorted(counts):
        reached += counts[value]
        if reached >= wanted:
            return value
    return None
