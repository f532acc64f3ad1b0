"""One log directory (`log.dirs`): its lock, its identity, its logs, its checkpoints, its health.

Owns: the order of steps at start (lock, identity, clean marker read and removed, logs loaded) and at the end (logs
synced, checkpoints, clean marker last), creation and deletion of partition directories. Leaves to others: roles, and
the directories of deleted and damaged logs (`renamed_directories`).
After an IO error the directory is offline: nothing is written to it any more (KAFKA-10778).
"""

import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from typing import Any

from minibroker.broker.log import ownership
from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.directory_health import DirectoryHealth
from minibroker.broker.log.errors import LogDirectoryError
from minibroker.broker.log.loaded_log import LoadContext, LoadedLog, Progress
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.log.recovery import load_log
from minibroker.broker.log.renamed_directories import RenamedDirectories
from minibroker.broker.log.segments.tail_cache import TailCache
from minibroker.broker.log.segments.warm_segments import WarmSegments
from minibroker.broker.log.side_files import directory_files
from minibroker.broker.log.side_files.offset_checkpoints import OffsetCheckpoints
from minibroker.broker.log.side_files.wholeness import Wholeness
from minibroker.broker.log.unsynced_files import SYNCS_AT_ONCE, UnsyncedFiles, gather_all, one_by_one, sync_each
from minibroker.protocol.events.replica_events import ReplicaRemoved
from minibroker.protocol.files.checkpoints import (
    LOCK,
    PARTITION_METADATA,
    damaged_directory_name,
    deleted_directory_name,
    has_too_large_a_number,
    parse_partition_directory_name,
    partition_directory_name,
)
from minibroker.protocol.files.meta_properties import MetaProperties
from minibroker.protocol.files.partition_metadata import PartitionMetadata, format_partition_metadata
from minibroker.protocol.ids import MAX_PARTITION, TopicPartition
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import (
    BadEntry,
    Clock,
    DirectoryLock,
    Disk,
    DiskError,
    LockHeld,
    disk_error_of,
)

logger = logging.getLogger(__name__)


class LogDirectory:
    """See the module docstring. Made by `open`."""

    def __init__(
        self,
        health: DirectoryHealth,
        lock: DirectoryLock,
        broker_id: int,
        cluster_id: str,
        default_config: LogConfig,
        incarnation_id: str = "",
        observer: Observer = UNOBSERVED,
    ) -> None:
        self.health = health
        self.path = health.path
        self.broker_id = broker_id
        self.cluster_id = cluster_id
        self.default_config = default_config
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self.directory_id = ""
        self.was_clean = False
        """Whether the broker that used the directory before stopped cleanly."""
        self.last_broker_epoch: int | None = None
        """The broker epoch that ended with that clean stop."""
        self.same_boot = False
        """Whether the machine has run since the directory was last used: then a killed process lost nothing."""
        self.wholeness = Wholeness(health.disk, health.path, incarnation_id)
        health.on_offline.append(lambda _: self.wholeness.forget())
        self._disk = health.disk
        self._lock = lock
        self._loaded = False
        self._unnoted_boot: MetaProperties | None = None
        """What `meta.properties` must say before the next start may rely on this boot."""
        self._observer = observer
        self._checkpoints = OffsetCheckpoints(health, self.logs, observer)
        self._renamed = RenamedDirectories(health)

    @property
    def offline(self) -> bool:
        return self.health.offline

    @property
    def offline_reason(self) -> str | None:
        return self.health.offline_reason

    @property
    def set_aside(self) -> Mapping[TopicPartition, list[str]]:
        """Directories of damaged logs, kept until their replicas, which started empty, are in sync again."""
        return self._renamed.set_aside

    @property
    def full(self) -> bool:
        """No room: records are refused with DiskFull until `try_heal` finds some."""
        return self.health.full

    # -------------------------------------------------------------------------------------------------------- opening
    @classmethod
    async def open(
        cls,
        disk: Disk,
        clock: Clock,
        path: str,
        broker_id: int,
        cluster_id: str,
        default_config: LogConfig,
        on_progress: Progress | None = None,
        *,
        rng: random.Random,
        tail_cache: TailCache | None = None,
        incarnation_id: str = "",
        segments: WarmSegments | None = None,
        observer: Observer = UNOBSERVED,
    ) -> "LogDirectory":
        """Lock the directory, check its owner and load every log in it, off the loop. Raises LogDirectoryError with the
        reason and the cure, or DiskError."""
        path = path.rstrip("/") or "/"
        try:
            directory_files.make_directory(disk, path)
            lock = disk.lock(f"{path}/{LOCK}")
        except BadEntry as error:
            raise directory_files.unusable(path, error) from None
        except LockHeld:
            raise LogDirectoryError(
                f"log directory {path} is in use by another broker process: stop that one, or give this broker"
                " another log.dirs"
            ) from None
        try:
            directory_files.require_usable(disk, path)
            health = DirectoryHealth(disk, clock, path, tail_cache if tail_cache is not None else TailCache(), segments)
            directory = cls(health, lock, broker_id, cluster_id, default_config, incarnation_id, observer)
            stored = directory_files.read_claim(disk, path, broker_id, cluster_id)
            meta, directory.same_boot = directory_files.claim_directory(
                disk, path, stored, broker_id, cluster_id, rng, observer
            )
            directory.directory_id = meta.directory_id
            directory._unnoted_boot = meta if stored is not None and stored != meta else None
            await directory._load(on_progress)
            await directory._settle_and_note_boot()  # last: until then a power loss shows
        except BaseException as error:
            lock.release()
            if isinstance(error, BadEntry):
                raise directory_files.unusable(path, error) from None
            raise
        return directory

    async def _load(self, on_progress: Progress | None) -> None:
        disk, path = self._disk, self.path
        self.wholeness.take(self._observer)
        self.was_clean, self.last_broker_epoch = directory_files.take_clean_marker(disk, path, self._observer)
        partitions: list[TopicPartition] = []
        for name in disk.list_directory(path):
            partition = parse_partition_directory_name(name)
            if partition is not None:
                partitions.append(partition)
            elif has_too_large_a_number(name):
                logger.warning("%s/%s is left alone: no partition has a number above %d", path, name, MAX_PARTITION)
            else:
                self._renamed.adopt(name)
        self._checkpoints.forget_deleted(self._renamed.to_remove)
        listed = self._checkpoints.listed
        for done, partition in enumerate(partitions, start=1):
            loaded, topic_id = await self._load_partition(partition)
            for each in loaded.report.files_not_used:
                self._observer.notify(each)
            if topic_id is None and loaded.has_batches and loaded.damage is None:
                self._remove_nameless(partition)
            else:
                self._adopt(partition, topic_id, self.default_config, loaded)
            if on_progress is not None:
                on_progress(done, len(partitions), partition, loaded.report)
        if not self.was_clean:
            await self._sync_what_a_killed_process_left()
        self.wholeness.assess(self.logs, listed, self.same_boot)
        self.wholeness.write()
        self._loaded = True

    async def _load_partition(self, partition: TopicPartition) -> tuple[LoadedLog, str | None]:
        def load() -> tuple[LoadedLog, str | None]:
            def context(topic_id: str | None) -> LoadContext:
                return LoadContext(
                    recovery_point=self._checkpoints.stored_recovery_point(partition, topic_id),
                    clean=self.was_clean,
                    same_boot=self.same_boot,
                    high_watermark=self._checkpoints.stored_high_watermark(partition, topic_id),
                    clean_end=self.wholeness.clean_end(partition),
                )

            return ownership.load_own_log(
                self._disk,
                self._directory_of(partition),
                partition,
                context,
                named_elsewhere=self._checkpoints.named_topic_id(partition),
                index_interval_bytes=self.default_config.index_interval_bytes,
            )

        return await self._disk.in_background(load)

    def _remove_nameless(self, partition: TopicPartition) -> None:
        """A power cut left unsynced batches, by chance, and not their owner's name: another topic must not get them."""
        reason = "no file says which topic it is of, and nothing of it was ever synced"
        self._observer.notify(ReplicaRemoved(topic=partition.topic, partition=partition.partition, reason=reason))
        target = self._renamed.rename(self._directory_of(partition), partition, deleted_directory_name)
        if target is not None:  # synced with all that a start behind a power cut finds
            self._renamed.to_remove.append(target)

    def _directory_of(self, partition: TopicPartition) -> str:
        return f"{self.path}/{partition_directory_name(partition)}"

    def _adopt(
        self, partition: TopicPartition, topic_id: str | None, config: LogConfig, loaded: LoadedLog
    ) -> PartitionLog:
        log = PartitionLog(self.health, partition, topic_id, self._directory_of(partition), config, loaded)
        log.snapshots.set_owner(topic_id, partition.partition)
        self.logs[partition] = log
        self._checkpoints.loaded(log)
        return log

    async def _sync_what_a_killed_process_left(self) -> None:
        """Side files and names that a killed process wrote, renamed or removed may be so only in the kernel's memory.
        They are synced before anything relies on them: an append, a deletion, what other replicas are told. Batches
        wait for the next flush."""
        logs = [log for log in self.logs.values() if log.damage is None]
        for number, error in (await sync_each(self._disk, [log.side_files() for log in logs])).items():
            logs[number].mark_damaged(str(error))
        await self._disk.in_background(lambda: self._disk.sync_directory(self.path))

    async def _settle_and_note_boot(self) -> None:
        """Make the files fit the logs as they were found. Only then may the next start rely on this boot."""
        is_settled = await self._checkpoints.forget_lost_tails()
        meta = self._unnoted_boot
        if meta is not None and is_settled and directory_files.note_boot(self._disk, self.path, meta):
            self._unnoted_boot = None

    async def _note_boot_if_due(self) -> None:
        """The start had no room for it."""
        if self._unnoted_boot is not None and not self.full:
            await self._settle_and_note_boot()

    # --------------------------------------------------------------------------------------------- creating, deleting
    def create_log(self, partition: TopicPartition, topic_id: str, config: LogConfig) -> PartitionLog:
        """The partition's log, new or existing. The directory of another topic with the same name is taken away and
        removed. The metadata is on disk before the first append; `sync_metadata` makes it durable."""
        self.health.require_writable()
        known = self.logs.get(partition)
        if known is not None:
            if known.topic_id in (None, topic_id):
                if known.topic_id is None:
                    self._write_metadata(known, topic_id)
                known.config = config
                return known
            logger.warning("%s is of topic id %s, now it is %s: set aside", partition, known.topic_id, topic_id)
            self.delete_log(partition)
        directory, interval = self._directory_of(partition), config.index_interval_bytes
        try:
            self._renamed.set_aside_stray(directory, topic_id, partition)
            self._disk.make_directory(directory)
            loaded = load_log(self._disk, directory, LoadContext(), index_interval_bytes=interval)
            log = self._adopt(partition, topic_id, config, loaded)
            if log.damage is not None and loaded.damage is None:
                raise BadEntry(log.damage)
            log.start_reason = self._checkpoints.reason_to_start(partition, topic_id)
            self._write_metadata(log, topic_id)
            log.unsynced.add_directory(self.path)
        except DiskError as error:
            self.health.record_error(error)
            self._forget(partition)
            raise
        self._checkpoints.created(partition)
        return log

    def _write_metadata(self, log: PartitionLog, topic_id: str) -> None:
        file = f"{log.directory}/{PARTITION_METADATA}"
        metadata = PartitionMetadata(topic_id=topic_id, partition=log.topic_partition.partition)
        self._disk.replace_file(file, format_partition_metadata(metadata), sync=False)
        log.unsynced.add(file)
        log.topic_id = topic_id
        log.snapshots.set_owner(topic_id, metadata.partition)
        log.write_first_start()

    def _forget(self, partition: TopicPartition) -> None:
        if (log := self.logs.pop(partition, None)) is not None:
            log.delete()

    def delete_log(self, partition: TopicPartition) -> None:
        """Take the partition away at once by renaming its directory, which works on a full disk, too; `maintain`
        removes its files. If the renaming fails (also with BadEntry), the partition and its log stay."""
        target = self._take_away(partition, deleted_directory_name)
        self.remove_set_aside(partition)
        self._checkpoints.name_was_deleted()
        if target is not None:
            self._renamed.to_remove.append(target)

    def log_was_cut(self, log: PartitionLog) -> None:
        self._checkpoints.lower_high_watermark(log.topic_partition, log.log_end_offset)

    def set_log_aside(self, partition: TopicPartition) -> None:
        """If `may_set_aside`, take a damaged log away by renaming its directory. It is kept until `remove_set_aside` of
        the partition that its files name: it may be the only copy of another one, put here by mistake."""
        self._checkpoints.reset_offsets(partition)
        owner = ownership.named_owner(self._disk, self._directory_of(partition), partition)
        target = self._take_away(partition, damaged_directory_name, owner)
        if target is not None:
            self._renamed.keep(target, partition, owner, "the damaged log")

    @property
    def may_set_aside(self) -> bool:
        """Not while a checkpoint is being written with what the damaged log had synced."""
        return not self._checkpoints.is_writing

    def read_set_aside(self, partition: TopicPartition, offset: int, max_bytes: int) -> memoryview | None:
        """Sound batches from `offset` on from the partition's damaged logs; None if they have none."""
        topic_id, interval = self.logs[partition].topic_id, self.default_config.index_interval_bytes
        return self._renamed.read_set_aside(partition, topic_id, offset, max_bytes, interval)

    def remove_set_aside(self, partition: TopicPartition, topic_id: str = "") -> bool:
        """Let `maintain` remove the partition's damaged logs (of that topic id); False if there are none."""
        return self._renamed.remove_set_aside(partition, topic_id)

    def _take_away(
        self,
        partition: TopicPartition,
        name: Callable[[TopicPartition, str], str],
        owner: TopicPartition | None = None,
    ) -> str | None:
        log = self.logs.get(partition)
        target = None
        if log is not None and not self.offline:
            target = self._renamed.rename(log.directory, owner or partition, name)
        self._checkpoints.forget_high_watermark(partition)
        self._forget(partition)
        if target is not None:
            self._renamed.sync_names()
        return target

    # ---------------------------------------------------------------------------------------------------- checkpoints
    def read_high_watermarks(self) -> dict[TopicPartition, int]:
        """The checkpointed high watermarks, as read at the start or last written, of logs that still exist with the
        same topic ids."""
        return self._checkpoints.own_high_watermarks()

    async def checkpoint_high_watermarks(self, high_watermarks: Mapping[TopicPartition, int]) -> None:
        """Write the high watermarks; a log that is not named keeps the one it had."""
        await self._checkpoints.write_high_watermarks(high_watermarks)

    async def checkpoint_recovery_points(self) -> None:
        """Write the recovery point of each log."""
        await self._checkpoints.write_recovery_points()

    async def record_log_starts(self) -> None:
        """Make each log's start durable, unless it already is."""
        logs = list(self.logs.values())
        await one_by_one(log.record_start() for log in logs if not log.is_start_recorded and log.damage is None)

    # --------------------------------------------------------------------------------------------------------- health
    def mark_offline(self, error: Exception) -> None:
        """After an IO error: nothing is read from or written to the directory any more."""
        self.health.record_error(error if isinstance(error, DiskError) else DiskError(str(error)))

    def require_descriptor(self) -> None:
        """Raise OutOfDescriptors unless a file can be opened."""
        self._disk.list_directory(self.path)

    def try_heal(self) -> bool:
        """Whether records may be added; checks a full directory for room."""
        try:
            return self.health.try_heal()
        except DiskError as error:
            self.health.record_error(error)
            return False

    async def maintain(self, now_ms: int) -> None:
        """The periodic tasks of every second or so: remove deleted files, check a full disk for room, sync closed
        segments and metadata of new logs, write checkpoints that are due. A failure is noted in the directory's health
        (`DirectoryHealth.on_offline` and `on_full` report it) and does not stop the other tasks."""
        await self._try(self._remove_deleted(now_ms))
        if self.full:
            self.try_heal()
        await self._try(self.sync_metadata())
        for log in list(self.logs.values()):
            if log.recovery_point < log.segments[-1].base_offset and log.damage is None:
                await self._try(log.flush(closed_only=True))
        await self._try(self.record_log_starts())
        await self._try(self._checkpoints.write_urgent())
        await self._try(self._note_boot_if_due())

    async def _try(self, periodic_task: Coroutine[Any, Any, object]) -> None:
        if self.offline:
            periodic_task.close()
            return
        try:
            await periodic_task
        except BadEntry as error:  # of one log: its next use finds it damaged
            logger.warning("%s", error)
        except DiskError as error:
            self.health.record_error(error)

    async def _remove_deleted(self, now_ms: int) -> None:
        """Runs before other tasks, which may need the room. The directory of a deleted log goes after the checkpoints
        that still name it, or a start in between would miss that log; on a full disk it goes at once."""
        self._renamed.sync_names_if_due()
        for log in list(self.logs.values()):
            await log.remove_deleted(now_ms)
        due = tuple(self._renamed.to_remove)
        if due and not self.full:
            await self._checkpoints.write_urgent()
        await self._renamed.remove(due)

    async def sync_metadata(self) -> None:
        """Sync changed epoch files, metadata and names of all logs, off the loop (hardening rule 7). A log that is
        being flushed does it by itself."""
        for log in self.logs.values():
            self._store_epochs(log)
        async with AsyncExitStack() as stack:
            taken: list[tuple[PartitionLog, UnsyncedFiles]] = []
            try:
                for log in tuple(self.logs.values()):
                    if log.unsynced and log.damage is None and not log.flushing.locked():
                        await stack.enter_async_context(log.flushing)  # which a flush may be about to lock
                        taken.append((log, log.unsynced.take()))
                if not taken:
                    return
                failed = await sync_each(self._disk, [files for _, files in taken])
            except BaseException as error:
                for log, files in taken:
                    log.unsynced.give_back(files)
                if (failure := disk_error_of(error)) is not None:
                    self.health.record_error(failure)
                raise
            for number, (log, files) in enumerate(taken):
                if number in failed:
                    log.unsynced.give_back(files)
                else:
                    log.note_synced()
            if failed:
                raise next(iter(failed.values()))

    def _store_epochs(self, log: PartitionLog) -> None:
        """Write the epochs of a log if that failed when they changed."""
        if not log.epochs_stored and log.damage is None:
            try:
                log.store_epochs()
            except DiskError as error:
                if not isinstance(log.recorded(error), BadEntry):  # which concerns this log alone
                    raise

    # -------------------------------------------------------------------------------------------------------- closing
    async def close(
        self,
        clean: bool,
        high_watermarks: Mapping[TopicPartition, int],
        broker_epoch: int | None = None,
        is_proof: bool = True,
    ) -> None:
        """Sync everything, write the checkpoints and, last, the clean marker; then release the lock. Without `clean`,
        if loading never finished, or if the directory is offline, nothing is written: the next start recovers. Without
        `is_proof` the logs are undisturbed then, but not proven whole: others must agree before one of them leads."""
        try:
            if clean and self._loaded and not self.offline:
                await self._close_cleanly(high_watermarks, broker_epoch, is_proof)
        except DiskError as error:
            self.health.record_error(error)
            logger.error("log directory %s could not be closed cleanly, the next start recovers: %s", self.path, error)
        finally:
            for log in self.logs.values():
                log.close()
            self._lock.release()

    async def _close_cleanly(
        self, high_watermarks: Mapping[TopicPartition, int], broker_epoch: int | None, is_proof: bool
    ) -> None:
        await self.checkpoint_high_watermarks(high_watermarks)
        for log in self.logs.values():
            log.prepare_clean_close()
        logs = list(self.logs.values())
        for start in range(0, len(logs), SYNCS_AT_ONCE):
            await gather_all([log.flush() for log in logs[start : start + SYNCS_AT_ONCE]])
        await self.sync_metadata()
        await self.checkpoint_recovery_points()
        await self.record_log_starts()
        ends = {partition: log.log_end_offset for partition, log in self.logs.items()}
        await self._disk.in_background(lambda: self.wholeness.write(ends, is_proof))
        await self._disk.in_background(lambda: directory_files.write_clean_marker(self._disk, self.path, broker_epoch))
