"""The two offset checkpoints of one log directory: recovery points and high watermarks.

Owns: when each is written, what of an older one may still be on the disk, and one write of a file at a time. Refuses to
know how offsets move. Texts are made on the event loop and written off it.

Theory: an old line is harmless while offsets only rise: more is scanned, a mark is learned again. It does harm when an
offset falls, by a cut or because a name was given to another topic: then new records below the old offset would count
as synced or as committed. So such a file is written soon (`urgent`), and until it is, a log whose recovery point fell
closes no segment (`checkpointed_recovery_point`). Where logs start stands in a file of each (`log_start_file`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping

from minibroker.broker.log import directory_files, ownership
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.storage import Storage
from minibroker.protocol.checkpoints import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull

Offsets = dict[TopicPartition, int]

logger = logging.getLogger(__name__)


class OffsetCheckpoints:
    """Reads them when made; `logs` is the directory's own map."""

    def __init__(self, storage: Storage, logs: dict[TopicPartition, PartitionLog]) -> None:
        self._storage = storage
        self._logs = logs
        points, marks = (
            directory_files.read_offsets(storage.disk, storage.path, name)
            for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)
        )
        self.recovery_points, self._ids_of_points = (
            (points.offsets, points.topic_ids) if points is not None else ({}, {})
        )
        self.high_watermarks, self._topic_ids = (marks.offsets, marks.topic_ids) if marks is not None else ({}, {})
        self._are_points_readable = points is not None
        self._writing = {name: asyncio.Lock() for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)}

    def stored_recovery_point(self, partition: TopicPartition, topic_id: str | None) -> int | None:
        """As it is loaded with; 0 where the name stood for another topic; None: nobody can tell, the checkpoint is
        damaged."""
        if topic_id not in (None, self._ids_of_points.get(partition, topic_id)):
            return 0
        return self.recovery_points.get(partition, 0) if self._are_points_readable else None

    def stored_high_watermark(self, partition: TopicPartition, topic_id: str | None) -> int:
        """As it is loaded with; 0 where the name stood for another topic."""
        known = self._topic_ids.get(partition)
        is_its_own = known is not None and topic_id in (None, known)
        return self.high_watermarks.get(partition, 0) if is_its_own else 0

    def reason_to_start(self, partition: TopicPartition, topic_id: str) -> LogStartReason:
        """Of a log that is made: it is anew where they promise something of one of this very topic, whose directory is
        missing. What that one had synced is not asked of this one (seed 17004623)."""
        has_point = bool(self.stored_recovery_point(partition, topic_id))
        is_promised = has_point or self.stored_high_watermark(partition, topic_id) > 0
        return LogStartReason.STARTED_ANEW if is_promised else LogStartReason.CREATED

    def own_high_watermarks(self) -> Offsets:
        """Of the logs that are there, as they were loaded with; that of another topic was forgotten then (`loaded`)."""
        return {each: mark for each, mark in self.high_watermarks.items() if each in self._logs}

    def _is_of_another_topic(self, log: PartitionLog) -> bool:
        """A line without an id (of a log whose files contradict each other) says nothing."""
        known = self._topic_ids.get(log.topic_partition)
        return known is not None and log.topic_id not in (None, known)

    def listed(self, deleted_directories: Iterable[str]) -> list[TopicPartition]:
        """Which logs the start before had. A directory whose files it had not removed yet shows that it had begun to
        delete that very log (by its topic id, for the name may be another topic's): it is not missing."""
        gone: set[tuple[str, int]] = set()
        for directory in deleted_directories:
            with contextlib.suppress(BadEntry):
                gone |= ownership.read_claims(self._storage.disk, directory).owners
        named = ((self.recovery_points, self._ids_of_points), (self.high_watermarks, self._topic_ids))
        return [each for offsets, ids in named for each in offsets if (ids.get(each), each.partition) not in gone]

    def name_was_deleted(self) -> None:
        """Both checkpoints say which logs there are, and a log that they name and that is not there has been lost."""
        self._storage.urgent |= {RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT}

    def loaded(self, log: PartitionLog) -> None:
        """Compare a log that was just loaded or created with what the disk says of its name."""
        stored = self.recovery_points.get(log.topic_partition, 0)
        log.checkpointed_recovery_point = max(stored, log.recovery_point)
        if log.recovery_point < stored:
            self._storage.urgent.add(RECOVERY_POINT_CHECKPOINT)
        if self._is_of_another_topic(log):
            self.forget_high_watermark(log.topic_partition)  # or the next checkpoint would call it this topic's

    def created(self, partition: TopicPartition) -> None:
        """A log was made: it has committed nothing yet, and the checkpoint of recovery points says which there are."""
        self.forget_high_watermark(partition)
        self._storage.urgent.add(RECOVERY_POINT_CHECKPOINT)

    def forget_high_watermark(self, partition: TopicPartition) -> None:
        """The name may be given to another topic."""
        if self.high_watermarks.get(partition):
            del self.high_watermarks[partition]
            self._storage.urgent.add(HIGH_WATERMARK_CHECKPOINT)

    def lower_high_watermark(self, partition: TopicPartition, end: int) -> None:
        """Its log was cut to `end` or starts anew: a start would take an end below the mark for damage."""
        if self.high_watermarks.get(partition, 0) > end:
            self.high_watermarks[partition] = end
            self._storage.urgent.add(HIGH_WATERMARK_CHECKPOINT)

    def reset_offsets(self, partition: TopicPartition) -> None:
        """Both files stop to speak of its log, durably, before another one takes its place: what that one has not
        synced yet would count as synced after a power cut. On the event loop, which is rare. Raises DiskError."""
        self.lower_high_watermark(partition, 0)
        self.recovery_points[partition] = 0
        self._storage.urgent |= {RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT}
        disk, path = self._storage.disk, self._storage.path
        for name, found in (
            (RECOVERY_POINT_CHECKPOINT, self.recovery_points),
            (HIGH_WATERMARK_CHECKPOINT, self.high_watermarks),
        ):
            directory_files.offsets_writer(disk, path, name, found, self._ids_of(found))()

    async def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """A log that is not named keeps the mark it had: a checkpoint must not forget partitions whose role is not
        known yet (KAFKA-769, KAFKA-1647). A recovery point that fell is written first: what lies below both checkpoints
        counts as synced at a start."""
        if RECOVERY_POINT_CHECKPOINT in self._storage.urgent:
            await self.write_recovery_points()
        marks = {**self.high_watermarks, **high_watermarks}
        self.high_watermarks = {partition: mark for partition, mark in marks.items() if partition in self._logs}
        await self._write(HIGH_WATERMARK_CHECKPOINT, lambda: self.high_watermarks)

    async def lower_high_watermarks(self) -> bool:
        """After a power cut logs may end below the marks that stand here: the next start on this boot would take that
        for damage. Whether it is written down; without room it is not."""
        ends = {partition: log.log_end_offset for partition, log in self._logs.items() if log.damage is None}
        marks = {each: min(mark, ends.get(each, mark)) for each, mark in self.high_watermarks.items()}
        if marks == self.high_watermarks:
            return True
        disk, path = self._storage.disk, self._storage.path
        ids = self._ids_of(marks)
        try:
            await disk.in_background(directory_files.offsets_writer(disk, path, HIGH_WATERMARK_CHECKPOINT, marks, ids))
        except DiskFull as error:
            logger.warning("the high watermarks of %s stay above the log ends: %s", path, error)
            return False
        self.high_watermarks = marks
        return True

    async def write_recovery_points(self) -> None:
        """Data first, then the recovery point, then this (KAFKA-10101)."""
        written: dict[TopicPartition, tuple[PartitionLog, int]] = {}

        def offsets() -> Offsets:
            for partition, log in self._logs.items():
                written[partition] = log, log.recovery_point
                log.checkpointed_recovery_point = max(log.checkpointed_recovery_point, log.recovery_point)
            points = {partition: point for partition, (_, point) in written.items()}
            self.recovery_points = {**self.recovery_points, **points}  # while it is written: either
            return points

        await self._write(RECOVERY_POINT_CHECKPOINT, offsets)
        self.recovery_points = {partition: point for partition, (_, point) in written.items()}
        for log, point in written.values():
            log.checkpointed_recovery_point = point

    async def write_urgent(self) -> None:
        """Those whose old lines could do harm."""
        if RECOVERY_POINT_CHECKPOINT in self._storage.urgent:
            await self.write_recovery_points()
        if HIGH_WATERMARK_CHECKPOINT in self._storage.urgent:
            await self.write_high_watermarks({})
        self._forget_former_logs()

    def _forget_former_logs(self) -> None:
        """Once neither file speaks of more than a log that began anew has, both speak of it alone: from then on it owes
        what they say. Its start is recorded with that reason by the next round of periodic tasks."""
        marks = HIGH_WATERMARK_CHECKPOINT
        if marks in self._storage.urgent or self._writing[marks].locked():
            return
        for partition, log in self._logs.items():
            is_named_right = log.recovery_point >= log.checkpointed_recovery_point
            if is_named_right and self.high_watermarks.get(partition, 0) <= log.log_end_offset:
                log.has_settled()

    async def _write(self, name: str, offsets: Callable[[], Offsets]) -> None:
        storage = self._storage
        async with self._writing[name]:
            storage.require_online()
            storage.urgent.discard(name)
            found = offsets()
            write = directory_files.offsets_writer(storage.disk, storage.path, name, found, self._ids_of(found))
            try:
                await storage.disk.in_background(write)
            except BaseException as error:
                storage.urgent.add(name)
                if isinstance(error, DiskError):
                    storage.own_file_failed(error)
                raise

    def _ids_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        logs = ((each, self._logs.get(each)) for each in partitions)
        return {each: log.topic_id for each, log in logs if log is not None and log.topic_id is not None}
