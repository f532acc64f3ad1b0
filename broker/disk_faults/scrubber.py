"""The scrubber: reads all logs slowly in the background to find damage in bytes that no client would read for months.

Owns: the order of the segments, the speed (`log.scrub.bytes.per.second`), the pauses (`log.scrub.interval.ms`), and
the consequence of a finding: a damaged replica, or a rebuilt index. Leaves to others: reading (`log.scrub`), and what a
damaged replica does (`replication.damage`).

Theory: replicas protect a record only if damage of one copy is found before the last good copy is damaged, too
("Latent sector errors", Bairavasundaram et al., 2007); bytes of closed segments may not be read for months. A finding
is confirmed on the event loop, because the log may have been truncated or deleted while its bytes were read off it.
Sound batches of another log (a segment of another partition, or of an older backup, under the same name) are only
detected by the digest.
"""

import asyncio
import logging
from collections.abc import Iterator

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.scrub import SegmentScrub
from minibroker.broker.log.segments.segment import Segment
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replication.state import Role
from minibroker.protocol.events.broker_events import ScrubRoundEnded
from minibroker.protocol.events.replica_events import IndexRebuilt
from minibroker.protocol.log_digest import format_digest
from minibroker.runtime.ports import Clock, DiskError, FileMissing

log = logging.getLogger("minibroker.scrubber")

TICK_SECONDS = 1.0
"""Often enough that no piece is large, seldom enough that an idle broker sleeps."""
PIECE_BYTES = 128 * 1024
"""Read by one call in the background: with the smallest batches this takes some milliseconds, which is how long a
thread may hold the interpreter while the event loop waits."""


class Scrubber:
    """The scrubber of one broker. `run` is one of its periodic tasks."""

    def __init__(self, manager: ReplicaManager, clock: Clock) -> None:
        self._manager = manager
        self._clock = clock
        self._allowance = 0.0
        """Bytes that may be read now; a piece may overdraw it."""

    async def run(self) -> None:
        """Round after round, forever."""
        while True:
            next_round = self._manager.now_ms() + self._manager.config.log_scrub_interval_ms
            await self._wait()
            await self._round()
            await asyncio.sleep(max(0, next_round - self._manager.now_ms()) / 1000)

    async def _wait(self) -> None:
        """Wait until bytes may be read again."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            rate = self._manager.config.log_scrub_bytes_per_second
            if rate == 0 or self._manager.log_directory.offline:
                self._allowance = 0.0
                continue
            self._allowance = min(float(rate), self._allowance + rate * TICK_SECONDS)
            if self._allowance > 0:
                return

    async def _round(self) -> None:
        """Read all logs once. Each round begins at another log, so that frequent restarts do not leave the same logs
        unread."""
        manager, counters = self._manager, self._manager.counters
        partitions = sorted(manager.partitions)
        if not partitions:
            return
        first = self._clock.now_ms() % len(partitions)
        began, bytes_before, damaged_before = manager.now_ms(), counters.scrubbed_bytes, counters.scrubbed_damaged
        for topic_partition in [*partitions[first:], *partitions[:first]]:
            partition = manager.partitions.get(topic_partition)
            if partition is not None:
                await self._scrub(partition)
        read = counters.scrubbed_bytes - bytes_before
        if not read:
            return
        counters.scrub_rounds += 1
        seconds, damaged = (manager.now_ms() - began) // 1000, counters.scrubbed_damaged - damaged_before
        ended = ScrubRoundEnded(logs=len(partitions), scrubbed_bytes=read, seconds=seconds, damaged=damaged)
        manager.observer.notify(ended)

    async def _scrub(self, partition: Partition) -> None:
        for segment, scrub in self._segments(partition):
            while not scrub.is_done:
                if self._allowance <= 0:
                    await self._wait()
                if not self._is_scrubbable(partition, segment) or not await self._read_piece(partition, segment, scrub):
                    break
            if self._is_scrubbable(partition, segment):
                self._confirm(partition, segment, scrub)

    def _segments(self, partition: Partition) -> Iterator[tuple[Segment, SegmentScrub]]:
        """The segments that exist now, the active one last."""
        for segment in tuple(partition.log.segments):
            if self._is_scrubbable(partition, segment) and segment.size:
                yield segment, begin_scrub(partition.log, segment)

    def _is_scrubbable(self, partition: Partition, segment: Segment) -> bool:
        """Whether a finding would be valid: the log is in use and not known to be damaged, and the segment exists."""
        manager = self._manager
        return (
            manager.partitions.get(partition.topic_partition) is partition
            and partition.state.role is not Role.OFFLINE
            and partition.state.damage is None
            and not manager.log_directory.offline
            and segment in partition.log.segments
        )

    async def _read_piece(self, partition: Partition, segment: Segment, scrub: SegmentScrub) -> bool:
        """False: there is nothing to confirm."""
        health, interval = partition.log.health, partition.log.config.index_interval_bytes
        try:
            read = await health.disk.in_background(lambda: scrub.read_piece(health.disk, PIECE_BYTES, interval))
        except FileMissing as error:
            health.record_error(error)
            if self._is_scrubbable(partition, segment):  # otherwise it was deleted meanwhile
                self._report_damage(partition, str(error))
            return False
        except DiskError as error:
            if self._is_scrubbable(partition, segment):
                self._manager.disk.read_failed(partition, error)
            return False
        self._allowance -= read
        self._manager.counters.scrubbed_bytes += read
        return True

    def _confirm(self, partition: Partition, segment: Segment, scrub: SegmentScrub) -> None:
        """Check a suspicion again, on the loop, where nothing changes meanwhile."""
        try:
            if scrub.suspicion is not None:
                partition.log.check_at(scrub.offset)
            elif scrub.index_suspicion is not None:
                partition.report(IndexRebuilt, path=segment.log_path, reason=scrub.index_suspicion)
                segment.renew_index()
                self._manager.counters.scrubbed_indexes += 1
            if scrub.suspicion is None and scrub.is_done:
                self._compare_digest(partition, segment, scrub)
        except CorruptLog as error:
            self._report_damage(partition, str(error))
        except DiskError as error:
            self._manager.disk.read_failed(partition, error)

    def _compare_digest(self, partition: Partition, segment: Segment, scrub: SegmentScrub) -> None:
        """Each batch is sound by itself, but may not be what was written here. An unchanged digest means that nothing
        was written or truncated meanwhile."""
        if scrub.recorded_digest is None:
            segment.digest.complete(scrub.size, scrub.total_digest)
        elif segment.digest.value == scrub.recorded_digest != scrub.total_digest:
            found, recorded = format_digest(scrub.total_digest), format_digest(scrub.recorded_digest)
            self._report_damage(
                partition, f"{segment.log_path} holds other batches than were written: digest {found}, not {recorded}"
            )

    def _report_damage(self, partition: Partition, what: str) -> None:
        self._manager.counters.scrubbed_damaged += 1
        self._manager.repairs.damaged(partition, f"the scrubber found: {what}")


def begin_scrub(partition_log: PartitionLog, segment: Segment) -> SegmentScrub:
    number = partition_log.segments.index(segment)
    is_active = number == len(partition_log.segments) - 1
    return SegmentScrub(
        path=segment.path,
        base_offset=segment.base_offset,
        size=segment.size,
        end_offset=None if is_active else partition_log.segment_end(number),
        epochs=partition_log.epoch_entries(),
        offset=segment.base_offset,
        recorded_digest=segment.digest.value,
    )
