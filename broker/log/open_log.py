"""A log while it is open: its segments, its offsets, and the single steps that lead from one sound log to the next.

Owns: the state that all operations on a log share. Leaves to others: the operations, which are several steps each:
appending and reading (`partition_log`), cutting (`cutting`), syncing (`flushing`), and what retention deletes.

Local order (I10): log_start_offset <= log_end_offset, recovery_point <= log_end_offset. A change of several files leads
from one sound log to the next: after each step, and so if the next one fails, the offsets in memory match the files.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.directory_health import DirectoryHealth
from minibroker.broker.log.loaded_log import LoadedLog, RecoveryReport
from minibroker.broker.log.segments.segment import Segment
from minibroker.broker.log.side_files.digest_file import write_digests
from minibroker.broker.log.side_files.epoch_file import NO_EPOCH, EpochEntry, epoch_at, epoch_file_path
from minibroker.broker.log.side_files.log_start_file import StartRecord
from minibroker.broker.log.unsynced_files import UnsyncedFiles
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.files.checkpoints import (
    EPOCH_CHECKPOINT,
    LOG_START,
    PARTITION_METADATA,
    RECOVERY_POINT_CHECKPOINT,
    LogStart,
    LogStartReason,
    format_epoch_checkpoint,
)
from minibroker.protocol.files.segment_digests import SegmentDigests
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.ports import BadEntry, DiskError, DiskFull, OutOfDescriptors


class OpenLog:
    """See the module docstring."""

    def __init__(
        self,
        health: DirectoryHealth,
        topic_partition: TopicPartition,
        topic_id: str | None,
        directory: str,
        config: LogConfig,
        loaded: LoadedLog,
    ) -> None:
        self.health = health
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.directory = directory
        self.config = config
        self.report: RecoveryReport = loaded.report
        self.log_start_offset = loaded.log_start_offset
        is_whole = not loaded.report.is_reported(f"{directory}/{LOG_START}")
        self.start_record = StartRecord(health.disk, directory, loaded.recorded_start, is_whole)
        self.start_reason = loaded.recorded_start[0].reason if loaded.recorded_start else LogStartReason.CREATED
        self.log_end_offset = loaded.log_end_offset
        self.recovery_point = loaded.recovery_point
        self.checkpointed_recovery_point = loaded.recovery_point
        """The highest value that the checkpoint on disk may hold, set by OffsetCheckpoints. While the recovery point is
        below it no segment is closed: new batches would count as synced after a power cut (KAFKA-10101)."""
        self.producers: ProducerStates = loaded.producers
        self.deleted = False
        self.damage: str | None = loaded.damage
        """Why this log must not be used; see `LoadedLog.damage`."""
        self.unsynced = UnsyncedFiles()
        self.cut_is_unsynced = False
        """Whether a power cut may bring back what was cut from the last segment. While it may, the segment is not
        closed: the old tail in front of newer segments would be a log that no leader ever had."""
        self.snapshots = loaded.snapshots
        self.segments = [
            Segment(health, directory, found.base_offset, found.size, config.index_interval_bytes, found.digest)
            for found in loaded.segments
        ]
        self.are_digests_stored = True
        """False if the `digests` file may differ from segments that no recovery reads."""
        self.discarded: list[tuple[str, int]] = []
        """Files renamed to `.deleted`, and the times from which they may be removed."""
        self._tail = health.tail_cache.tail()
        self._epochs = loaded.epochs
        self._epochs_in_file = loaded.stored_epochs
        self.epochs_stored = False
        """Whether the epoch file holds the same as `epoch_entries`; if not, the next flush writes it."""
        self._appendable_epoch: int | None = None
        """Leader epoch of batches that may be appended as the epoch file is. Others must wait until it names theirs, or
        the next start on this boot takes them for rotten."""
        self._note_epoch_file()
        self.flushing = asyncio.Lock()
        self.cut_to: int | None = None
        """Lowest truncation since the running flush began; what the flush synced above it is gone."""
        self.is_cut_unfinished = False
        """A cut is not finished: producer states and snapshots may still include removed batches."""
        if self.damage is not None:
            self.segments = self.segments or [self.new_segment(self.log_end_offset)]  # without writing
        elif not self.segments:
            try:
                self._start_empty_at(self.log_end_offset)
            except BadEntry as error:
                self.damage = str(error)
        elif not loaded.report.clean:
            self.note_cut()  # the process before may have cut it
            for offset in self.snapshots.offsets:  # neither it nor recovery has synced them
                self.unsynced.add(self.snapshots.path(offset))

    @property
    def size_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def segment_count(self) -> int:
        return len(self.segments)

    def segment_number(self, offset: int) -> int:
        return max(bisect_right(self.segments, offset, key=_base_offset) - 1, 0)

    def segment_end(self, number: int) -> int:
        return self.segments[number + 1].base_offset if number + 1 < len(self.segments) else self.log_end_offset

    def segments_with_ends(self) -> Iterator[tuple[Segment, int]]:
        for number, segment in enumerate(self.segments):
            yield segment, self.segment_end(number)

    def headers(self, offset: int) -> Iterator[BatchHeader]:
        first = self.segment_number(max(offset, self.segments[0].base_offset))
        for segment in self.segments[first:]:
            for _, header in segment.headers(offset):
                yield header

    def epoch_entries(self) -> list[EpochEntry]:
        """(epoch, start offset), rising in both, as loaded and repaired or last written."""
        return list(self._epochs)

    # ------------------------------------------------------------------------------------------------------- segments
    def _may_roll(self, incoming_bytes: int, end_offset: int) -> bool:
        if self.recovery_point >= self.checkpointed_recovery_point and not self.cut_is_unsynced:
            return True
        return self.segments[-1].is_exhausted(incoming_bytes, end_offset)

    def _roll(self) -> Segment:
        """Begin a new segment at the log's end. A later `flush(closed_only=True)` syncs the old one."""
        closed = self.segments[-1]
        closed.save_index()
        for path in closed.index_paths:
            self.unsynced.add(path)
        self.unsynced.add(self.write_snapshot())
        self.write_digests()
        segment = self.new_segment(self.log_end_offset)
        segment.file()
        self.segments.append(segment)
        return segment

    def rolled_for_retention(self) -> bool:
        """Close the active segment so that it can be deleted; False if it must stay, for example on a full disk, which
        has no room for its successor."""
        if not self._may_roll(0, self.log_end_offset) or self.health.full:
            return False
        try:
            self._roll()
        except DiskFull as error:
            self.health.record_error(error)
            return False
        return True

    def new_segment(self, base_offset: int) -> Segment:
        return Segment(self.health, self.directory, base_offset, 0, self.config.index_interval_bytes)

    def _start_empty_at(self, offset: int) -> None:
        """Add the first segment: a log always has one."""
        self.segments.append(self.new_segment(offset))
        self.make_file()

    def make_file(self) -> None:
        """Create the file of an empty log. On a full disk, or without a descriptor, the first append creates it."""
        try:
            if not self.segments[-1].size:
                self.segments[-1].file()
        except (DiskFull, OutOfDescriptors) as error:
            self.health.record_error(error)

    def set_end(self, end: int) -> None:
        self.log_end_offset = end
        is_empty = self.segments[0].base_offset == end
        self._epochs = [] if is_empty else [entry for entry in self._epochs if entry[1] < end]
        self._note_epoch_file()
        self._tail.truncate_to(end)
        self.recovery_point = min(self.recovery_point, end)
        self.cut_to = end if self.cut_to is None else min(self.cut_to, end)
        if self.recovery_point < self.checkpointed_recovery_point:
            self.health.checkpoints_due.add(RECOVERY_POINT_CHECKPOINT)
        if end < self.log_start_offset:
            self.log_start_offset, self.start_reason = end, LogStartReason.RESET
            self.record_if_changed()

    def note_cut(self) -> None:
        self.cut_is_unsynced, self.are_digests_stored = True, False
        self.unsynced.add(self.segments[-1].log_path)

    def note_synced(self) -> None:
        """A sync succeeded; `unsynced` holds only what came since it began."""
        if not self.unsynced.holds(self.segments[-1].log_path):
            self.cut_is_unsynced = False

    # ----------------------------------------------------------------------------------------------------- side files
    @property
    def recorded_start_offset(self) -> int:
        """Below it nothing is promised any more, even after a crash. Not above the log's start."""
        known = self.start_record.known
        is_known = known is not None and self.start_record.is_certain
        return min(known.offset, self.log_start_offset) if known is not None and is_known else 0

    @property
    def is_start_recorded(self) -> bool:
        return self.start_record.is_certain and self.start_record.known == self.start_to_record()

    def start_to_record(self) -> LogStart | None:
        """The log's current start; None while the topic id is unknown."""
        return self._start_at(self.log_start_offset, self.start_reason)

    def _start_at(self, offset: int, reason: LogStartReason) -> LogStart | None:
        """A restarted log keeps the reason RESET while an older recovery point on the disk exceeds its own."""
        if self.topic_id is None:
            return None
        if self.recovery_point < self.checkpointed_recovery_point and self.start_record.was_restarted_empty:
            reason = LogStartReason.RESET
        number = self.topic_partition.partition
        return LogStart(topic_id=self.topic_id, partition=number, offset=offset, reason=reason)

    def record_if_changed(self) -> None:
        """Record a lower start durably before anything is appended below the recorded one."""
        if not self.is_start_recorded:
            self.record_at_once(self.log_start_offset, self.start_reason)

    def record_at_once(self, offset: int, reason: LogStartReason) -> None:
        """Record a start on the event loop, which is rare."""
        start = self._start_at(offset, reason)
        if start is not None:
            self.start_record.write_at_once(start)

    def side_files(self) -> UnsyncedFiles:
        """The files and names, without those of batches, that a start relies on."""
        files = UnsyncedFiles()
        for path in (PARTITION_METADATA, EPOCH_CHECKPOINT, LOG_START):
            files.add(f"{self.directory}/{path}")
        return files

    def store_epochs(self) -> None:
        """Write the epoch file. Raises DiskError."""
        self._write_epoch_file(self._epochs)

    def _write_epoch_file(self, entries: list[EpochEntry]) -> None:
        path = epoch_file_path(self.directory)
        owner = None if self.topic_id is None else (self.topic_id, self.topic_partition.partition)
        self.health.disk.replace_file(path, format_epoch_checkpoint(entries, owner), sync=False)
        self._epochs_in_file = list(entries)
        self._note_epoch_file()
        self.unsynced.add(path)

    def _note_epoch_file(self) -> None:
        """Entries are added and cut at the end, so a file whose last entry still holds lacks only the newest."""
        self.epochs_stored = self._epochs_in_file == self._epochs
        last = self._epochs_in_file[-1] if self._epochs_in_file else None
        self._appendable_epoch = last[0] if last is not None and self._epochs[-1:] == [last] else None

    def write_snapshot(self) -> str:
        """Write the producer states at the log's end; returns the path, which is not synced. Raises DiskError."""
        end = self.log_end_offset
        return self.snapshots.write(end, self.producers, epoch_at(self._epochs, end - 1))

    def write_digests(self) -> None:
        """Write the digests of all segments, including the current one of the last. Not synced. Raises DiskError."""
        if self.topic_id is not None:
            known = {
                segment.base_offset: (end, epoch, value)
                for segment, end in self.segments_with_ends()
                if segment.size and (value := segment.digest.value) is not None
                if (epoch := epoch_at(self._epochs, end - 1)) != NO_EPOCH
            }
            number = self.topic_partition.partition
            digests = SegmentDigests(topic_id=self.topic_id, partition=number, segments=known)
            if (path := write_digests(self.health.disk, self.directory, digests)) is not None:
                self.unsynced.add(path)
            self.are_digests_stored = True

    # ------------------------------------------------------------------------------------------------------------ end
    def recorded(self, error: DiskError) -> DiskError:
        """Report an error to the directory, which ignores a bad entry; the caller raises the returned error."""
        self.health.record_error(error)
        return error

    def close(self) -> None:
        """Release files and memory. Nothing is written."""
        for segment in self.segments:
            segment.close()
        self._tail.clear()


_base_offset = attrgetter("base_offset")
