"""The two offset checkpoints of one log directory: recovery points and high watermarks.

Owns: when each is written, which older version may still be on the disk, and that each file is written once at a time.
Leaves to others: how offsets move. The content is formatted on the event loop and written off it.

Theory: an old entry is harmless while offsets only rise: more is scanned, a high watermark is learned again. It does
harm when an offset falls, because of a truncation or because another topic got the name: then new records below the old
offset would count as synced or as committed. So such a file is written soon (`checkpoints_due`), and until then a log
with a lowered recovery point closes no segment (`checkpointed_recovery_point`). Log starts have a file for each log
(`log_start_file`)."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from minibroker.broker.log import ownership
from minibroker.broker.log.directory_health import DirectoryHealth
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.side_files import directory_files
from minibroker.protocol.files.checkpoints import HIGH_WATERMARK_CHECKPOINT, RECOVERY_POINT_CHECKPOINT, LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import BadEntry, DiskFull, OutOfDescriptors, disk_error_of

Offsets = dict[TopicPartition, int]

logger = logging.getLogger(__name__)


class OffsetCheckpoints:
    """Reads both files when constructed; `logs` is the log directory's own dictionary."""

    def __init__(self, health: DirectoryHealth, logs: dict[TopicPartition, PartitionLog], observer: Observer) -> None:
        self._health = health
        self._logs = logs
        points, high = (
            directory_files.read_offsets(health.disk, health.path, name, observer)
            for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)
        )
        self.recovery_points, self._ids_of_points = (
            (points.offsets, points.topic_ids) if points is not None else ({}, {})
        )
        self.high_watermarks, self._topic_ids = (high.offsets, high.topic_ids) if high is not None else ({}, {})
        self._are_points_readable = points is not None
        self._is_in_use = False
        """The start is over: replicas rely on the logs."""
        self._writing = {name: asyncio.Lock() for name in (RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT)}

    def stored_recovery_point(self, partition: TopicPartition, topic_id: str | None) -> int | None:
        """The recovery point to load a log with; 0 if it belongs to another topic of this name; None if it is unknown,
        because the checkpoint is damaged."""
        if topic_id not in (None, self._ids_of_points.get(partition, topic_id)):
            return 0
        return self.recovery_points.get(partition, 0) if self._are_points_readable else None

    def stored_high_watermark(self, partition: TopicPartition, topic_id: str | None) -> int:
        """The high watermark to load a log with; 0 if it belongs to another topic of this name."""
        known = self._topic_ids.get(partition)
        is_its_own = known is not None and topic_id in (None, known)
        return self.high_watermarks.get(partition, 0) if is_its_own else 0

    def reason_to_start(self, partition: TopicPartition, topic_id: str) -> LogStartReason:
        """Why a new log starts. If the checkpoints promise records of this same topic, its earlier directory is missing
        and the log is RESET: it does not owe what the earlier one had synced (seed 17004623)."""
        has_point = bool(self.stored_recovery_point(partition, topic_id))
        is_promised = has_point or self.stored_high_watermark(partition, topic_id) > 0
        return LogStartReason.RESET if is_promised else LogStartReason.CREATED

    def own_high_watermarks(self) -> Offsets:
        """High watermarks of the existing logs; those of another topic were removed when the log was loaded."""
        return {each: offset for each, offset in self.high_watermarks.items() if each in self._logs}

    def _is_of_another_topic(self, log: PartitionLog) -> bool:
        """Whether the checkpointed high watermark names another topic id. Without an id (because the log's files
        contradicted each other) it proves nothing."""
        known = self._topic_ids.get(log.topic_partition)
        return known is not None and log.topic_id not in (None, known)

    def forget_deleted(self, deleted_directories: Sequence[str]) -> None:
        """Before logs are loaded: drop the entries of logs whose directories are still to be removed, by topic id,
        since the name may belong to another topic. Such a log is not missing, and a directory under its name that names
        no owner is not what is left of it."""
        gone: set[tuple[str, int]] = set()
        for directory in deleted_directories:
            with contextlib.suppress(BadEntry):
                gone |= ownership.read_claims(self._health.disk, directory).owners
        for offsets, ids in ((self.recovery_points, self._ids_of_points), (self.high_watermarks, self._topic_ids)):
            for partition in [each for each in offsets if (ids.get(each), each.partition) in gone]:
                del offsets[partition]
        if deleted_directories:
            self.name_was_deleted()

    @property
    def listed(self) -> list[TopicPartition]:
        """The logs that existed before this start."""
        return [*self.recovery_points, *self.high_watermarks]

    def named_topic_id(self, partition: TopicPartition) -> str | None:
        """The topic id that the checkpoints have for this partition, if any."""
        for offsets, ids in ((self.recovery_points, self._ids_of_points), (self.high_watermarks, self._topic_ids)):
            if partition in offsets and partition in ids:
                return ids[partition]
        return None

    def name_was_deleted(self) -> None:
        """Rewrite both checkpoints soon: a log that they name and that does not exist would count as lost."""
        self._health.checkpoints_due |= {RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT}

    def loaded(self, log: PartitionLog) -> None:
        """Compare a log that was just loaded or created with the checkpoints' entries for its name."""
        stored = self.recovery_points.get(log.topic_partition, 0)
        log.checkpointed_recovery_point = max(stored, log.recovery_point)
        if log.recovery_point < stored:
            self._health.checkpoints_due.add(RECOVERY_POINT_CHECKPOINT)
        if self._is_of_another_topic(log):
            self.forget_high_watermark(log.topic_partition)  # else the next checkpoint would assign it to this topic

    def created(self, partition: TopicPartition) -> None:
        """A log was created: it has committed nothing yet, and both checkpoints must name it. One that replaces a
        damaged log was named before (KAFKA-769)."""
        self.lower_high_watermark(partition, 0)
        self.high_watermarks.setdefault(partition, 0)
        self._health.checkpoints_due.add(RECOVERY_POINT_CHECKPOINT)

    def forget_high_watermark(self, partition: TopicPartition) -> None:
        """Drop the entry: another topic may get the name."""
        if self.high_watermarks.pop(partition, 0):
            self._health.checkpoints_due.add(HIGH_WATERMARK_CHECKPOINT)

    def lower_high_watermark(self, partition: TopicPartition, end: int) -> None:
        """The log was truncated to `end` or reset: a start would take an end below the high watermark for damage."""
        if self.high_watermarks.get(partition, 0) > end:
            self.high_watermarks[partition] = end
            self._health.checkpoints_due.add(HIGH_WATERMARK_CHECKPOINT)

    def reset_offsets(self, partition: TopicPartition) -> None:
        """Durably set both offsets to 0 before a new log takes the place of this one: otherwise records that the new
        one has not synced yet would count as synced after a power cut. On the event loop, which is rare; never while
        `is_writing`. Raises DiskError."""
        assert not self.is_writing, "the older content would replace this one"
        self.lower_high_watermark(partition, 0)
        self.recovery_points[partition] = 0
        self._health.checkpoints_due |= {RECOVERY_POINT_CHECKPOINT, HIGH_WATERMARK_CHECKPOINT}
        disk, path = self._health.disk, self._health.path
        points = {each: min(self.recovery_points.get(each, 0), log.recovery_point) for each, log in self._logs.items()}
        for name, found in (
            (RECOVERY_POINT_CHECKPOINT, {**points, partition: 0}),
            (HIGH_WATERMARK_CHECKPOINT, self.own_high_watermarks()),
        ):
            directory_files.offsets_writer(disk, path, name, found, self._ids_of(found))()

    async def write_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """A log that is not named keeps its high watermark: a checkpoint must not forget partitions without a known
        role (KAFKA-769, KAFKA-1647). A recovery point that fell is written first, because at a start everything below
        both checkpoints counts as synced. The offsets are taken over before that: a log that is cut or replaced
        meanwhile lowers them."""
        merged = {**self.high_watermarks, **high_watermarks}
        self.high_watermarks = {partition: offset for partition, offset in merged.items() if partition in self._logs}
        if self._is_out_of_date(RECOVERY_POINT_CHECKPOINT):
            await self.write_recovery_points()
        await self._write(HIGH_WATERMARK_CHECKPOINT, self._storable_high_watermarks)

    def _storable_high_watermarks(self) -> Offsets:
        """None above the recovery point of a log of which the disk may have a higher one. It may have fallen since
        these high watermarks waited for the recovery points, and others may have raised them since it fell."""
        fell = [log for log in self._logs.values() if log.recovery_point < log.checkpointed_recovery_point]
        bounds = {log.topic_partition: log.recovery_point for log in fell}
        return {each: min(offset, bounds.get(each, offset)) for each, offset in self.high_watermarks.items()}

    async def forget_lost_tails(self) -> bool:
        """After loading: high watermarks and epochs of lost records go, and epochs of found ones come, or the next
        start on this boot would take them for damage. False if the disk has no room to write that."""
        is_start, self._is_in_use = not self._is_in_use, True
        try:
            for log in self._logs.values():
                if not log.epochs_stored and log.damage is None:
                    _store_epochs(log, is_start)
        except (DiskFull, OutOfDescriptors) as error:
            logger.warning("%s: an epoch file does not match its log: %s", self._health.path, error)
            return False
        return await self.lower_high_watermarks()

    async def lower_high_watermarks(self) -> bool:
        """Lower the high watermarks to the log ends. After a power cut logs may end below them, which the next start on
        this boot would take for damage. False if there is no room, or no descriptor, to write that."""
        ends = {partition: log.log_end_offset for partition, log in self._logs.items() if log.damage is None}
        lowered = {each: min(offset, ends.get(each, offset)) for each, offset in self.own_high_watermarks().items()}
        if lowered == self.high_watermarks and HIGH_WATERMARK_CHECKPOINT not in self._health.checkpoints_due:
            return True
        self.high_watermarks = lowered
        async with self._writing[HIGH_WATERMARK_CHECKPOINT]:
            try:
                await self._replace(HIGH_WATERMARK_CHECKPOINT, self._storable_high_watermarks())
            except (DiskFull, OutOfDescriptors) as error:
                logger.warning("the high watermarks of %s stay above the log ends: %s", self._health.path, error)
                return False
        return True

    async def write_recovery_points(self) -> None:
        """The order is: data, then the recovery point in memory, then this checkpoint (KAFKA-10101)."""
        written: dict[TopicPartition, tuple[PartitionLog, int]] = {}

        def offsets() -> Offsets:
            for partition, log in self._logs.items():
                written[partition] = log, log.recovery_point
                log.checkpointed_recovery_point = max(log.checkpointed_recovery_point, log.recovery_point)
            points = {partition: point for partition, (_, point) in written.items()}
            self.recovery_points = {**self.recovery_points, **points}  # until it is written, old names count, too
            return points

        await self._write(RECOVERY_POINT_CHECKPOINT, offsets)
        self.recovery_points = {partition: point for partition, (_, point) in written.items()}
        for log, point in written.values():
            log.checkpointed_recovery_point = point

    async def write_urgent(self) -> None:
        """Write the checkpoints with old entries that could do harm."""
        if self._is_out_of_date(RECOVERY_POINT_CHECKPOINT):
            await self.write_recovery_points()
        if self._is_out_of_date(HIGH_WATERMARK_CHECKPOINT):
            await self.write_high_watermarks({})
        self._forget_former_logs()

    @property
    def is_writing(self) -> bool:
        """Whether one of the files is being written off the event loop."""
        return any(lock.locked() for lock in self._writing.values())

    def _is_out_of_date(self, name: str) -> bool:
        """Whether old entries that could do harm may be on the disk: also while the write that replaces them runs."""
        return name in self._health.checkpoints_due or self._writing[name].locked()

    def _forget_former_logs(self) -> None:
        """Once neither checkpoint names more than a restarted log holds, both describe this log alone: from then on it
        must hold what they say. The next periodic tasks record its start with the new reason."""
        if self._is_out_of_date(HIGH_WATERMARK_CHECKPOINT):
            return
        for partition, log in self._logs.items():
            is_current = log.recovery_point >= log.checkpointed_recovery_point
            if is_current and self.high_watermarks.get(partition, 0) <= log.log_end_offset:
                log.settle_start_reason()

    async def _write(self, name: str, offsets: Callable[[], Offsets]) -> None:
        async with self._writing[name]:
            self._health.require_online()
            try:
                await self._replace(name, offsets())
            except BaseException as error:
                if (failure := disk_error_of(error)) is not None:
                    self._health.own_file_failed(failure)
                raise

    async def _replace(self, name: str, found: Offsets) -> None:
        """Write the file off the event loop, with its lock held. It is due until that has succeeded."""
        health = self._health
        health.checkpoints_due.discard(name)
        write = directory_files.offsets_writer(health.disk, health.path, name, found, self._ids_of(found))
        try:
            await health.disk.in_background(write)
        except BaseException:
            health.checkpoints_due.add(name)
            raise

    def _ids_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, str]:
        logs = ((each, self._logs.get(each)) for each in partitions)
        return {each: log.topic_id for each, log in logs if log is not None and log.topic_id is not None}


def _store_epochs(log: PartitionLog, is_start: bool) -> None:
    """A log with an epoch file that cannot be replaced is damaged alone, before anything relies on it."""
    try:
        log.store_epochs()
    except BadEntry as error:
        if not is_start:
            raise
        log.mark_damaged(str(error))
