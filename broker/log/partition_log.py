"""One partition's log: a sequence of segments, appended at the end, cut at both ends (replication rules, section 1).

Owns: what others may do with a log, the order of writes (batches first, then everything that refers to them), and
producer states that follow the batches. Leaves to others: the state of the log and the single steps that change it
(`open_log`), and roles, high watermarks and epochs: the pure core decides, and passes in what must be stored. Calls are
synchronous, on the event loop; only `flush` and similar calls wait, off the loop.

Batches are never split: a cut inside a batch removes the whole batch.
"""

from collections.abc import Sequence

import msgspec

from minibroker.broker.log import cutting, retention
from minibroker.broker.log.flushing import flush_log
from minibroker.broker.log.open_log import OpenLog
from minibroker.broker.log.segments.segment_files import remove_files
from minibroker.broker.log.segments.time_lookup import first_record_from
from minibroker.broker.log.side_files.damage_note import write_damage_note
from minibroker.broker.log.side_files.epoch_file import EpochEntry, EpochRebuild
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.files.checkpoints import (
    LogStart,
    LogStartReason,
)
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.ports import Buffer, DiskError, OutOfDescriptors, disk_error_of


class LogSlice(msgspec.Struct, frozen=True):
    """The result of reading: whole batches as they are stored, to be sent unchanged."""

    parts: list[Buffer]
    size_bytes: int
    base_offset: int
    """Of the first batch; it may lie below the requested offset."""
    next_offset: int
    """Where the next read continues; the requested offset if there is no batch."""
    last_epoch: int | None
    """Leader epoch of the last batch; None if there is no batch."""


class PartitionLog(OpenLog):
    """See the module docstring. Made by LogDirectory."""

    # -------------------------------------------------------------------------------------------------------- reading
    def has_data(self, offset: int, end_offset: int) -> bool:
        """Whether the log has records from `offset` on below `end_offset`. Reads nothing."""
        return offset < end_offset and offset < self.log_end_offset

    def read(self, offset: int, max_bytes: int, end_offset: int) -> LogSlice:
        """Whole batches, from the one that holds `offset`, that end at or below `end_offset`, at most `max_bytes` (the
        first one whatever its size). Recent ones come from memory; from disk there may be fewer than requested. Raises
        CorruptLog if the stored bytes are damaged, DiskError."""
        assert self.log_start_offset <= offset <= self.log_end_offset, "the caller checks the range"
        if offset >= end_offset or offset == self.log_end_offset:
            return LogSlice([], 0, offset, offset, None)
        held = self._tail.read(offset, max_bytes, end_offset)
        if held is None:
            held = self._read_segment(offset, max_bytes, end_offset)
        if held is None or not held[0]:
            return LogSlice([], 0, offset, offset, None)
        return LogSlice(*held)

    def check_at(self, offset: int) -> None:
        """Read the batch that holds `offset` from the disk, with all checks. Raises CorruptLog, DiskError."""
        if self.log_start_offset <= offset < self.log_end_offset:
            self._read_segment(offset, 0, self.log_end_offset)

    def _read_segment(self, offset: int, max_bytes: int, end: int) -> tuple[list[Buffer], int, int, int, int] | None:
        self.health.require_online()
        segment = self.segments[self.segment_number(offset)]
        try:
            found = segment.read(offset, max_bytes, end, self._epochs)
        except DiskError as error:
            raise self.recorded(error) from None
        if found is None:
            return None
        data, base_offset, next_offset, epoch = found
        return [data], len(data), base_offset, next_offset, epoch

    def offset_for_timestamp(self, timestamp_ms: int, end_offset: int) -> tuple[int, int] | None:
        """(timestamp, offset) of the first record at or after that time and below `end_offset`."""
        self.health.require_online()
        try:
            return first_record_from(self.segments_with_ends(), timestamp_ms, self.log_start_offset, end_offset)
        except DiskError as error:
            raise self.recorded(error) from None

    # ------------------------------------------------------------------------------------------------------ appending
    def append(self, batches: Sequence[tuple[BatchHeader, Buffer]]) -> None:
        """Write checked and stamped batches that continue the log, with few system calls. Only then does the log end
        move (KAFKA-698). The buffers are kept, so they must not change afterwards. After DiskError or DiskFull none of
        them is in the log."""
        if self.health.is_impaired:
            self.health.require_writable()
        assert batches
        assert not self.deleted
        end, size = self.log_end_offset, 0
        parts: list[Buffer] = []
        epochs = None
        for header, buffer in batches:
            assert header.base_offset == end, "batches continue the log"
            end += header.record_count
            size += len(buffer)
            parts.append(buffer)
        try:
            first, last = batches[0][0].partition_leader_epoch, batches[-1][0].partition_leader_epoch
            if not first == last == self._appendable_epoch:
                epochs = self._epochs_with(batches)
                self._write_epoch_file(epochs)
            segment = self.segments[-1]
            if segment.is_full(size, end, self.config) and self._may_roll(size, end):
                segment = self._roll()
            begins = not segment.size
            if begins:  # its file may be created only now
                self.unsynced.add_directory(self.directory)
            segment.append(batches, parts)
        except DiskError as error:
            raise self.recorded(error) from None
        if epochs is not None:  # if the append failed, the file is ahead of the log, which does no harm
            self._epochs = epochs
            self._note_epoch_file()
        if begins:  # else a segment found at the start is as old as its first batch
            segment.first_append_ms = self.health.clock.now_ms()
        self.log_end_offset = end
        self._tail.append(batches, size)
        if batches[0][0].producer_id >= 0 or len(batches) > 1:
            now_ms = self.health.clock.now_ms()
            for header, _ in batches:
                if header.producer_id >= 0:
                    self.producers.update(header, now_ms)

    def _epochs_with(self, batches: Sequence[tuple[BatchHeader, Buffer]]) -> list[EpochEntry]:
        """The epoch entries with those of batches that come next. An entry at their start or later is of an epoch
        without batches, and stays only if they are of that epoch."""
        rebuild = EpochRebuild(self._epochs)
        rebuild.keep_below(batches[0][0].base_offset)
        for header, _ in batches:
            if header.partition_leader_epoch > rebuild.latest:
                rebuild.assign(header.partition_leader_epoch, header.base_offset)
        return rebuild.entries

    def roll_if_aged(self, now_ms: int) -> None:
        """Close the active segment if its first batch is older than segment.ms (by this broker's clock)."""
        segment = self.segments[-1]
        if segment.size == 0 or self.health.is_impaired or self.damage is not None:
            return
        try:
            age_ms = now_ms - retention.first_append_ms(segment, self.health.disk)
            if age_ms >= self.config.segment_ms and self._may_roll(0, self.log_end_offset):
                self._roll()
        except DiskError as error:
            raise self.recorded(error) from None

    # -------------------------------------------------------------------------------------------------------- cutting
    def truncate_to(self, end_offset: int) -> None:
        """Cut the tail: every batch that ends beyond `end_offset`. Below the first segment this is `reset_to`. The
        caller keeps the epoch history, and passes in what remains of it with `write_epoch_entries`."""
        self.health.require_online()
        if end_offset >= self.log_end_offset:
            return
        if end_offset < self.segments[0].base_offset:
            self.reset_to(end_offset)
            return
        try:
            cutting.record_start_below_cut(self, end_offset)
            self.is_cut_unfinished = True
            while self.segments[-1].base_offset > end_offset:
                cutting.drop_newest(self)
            end = self.segments[-1].truncate_to(end_offset)
            self.note_cut()
            self.set_end(end)
            cutting.rebuild_producers(self)
        except DiskError as error:
            raise self.recorded(error) from None

    def reset_to(self, offset: int, producers: ProducerStates | None = None) -> None:
        """Drop everything and start empty at `offset`, which may lie anywhere (KAFKA-9491). `producers`: another
        replica's states of producers that wrote below it. Without them, they count as incomplete."""
        self.health.require_online()
        self._reset_to(offset, ProducerStates(is_incomplete=offset > 0) if producers is None else producers)

    def trim_before(
        self, start_offset: int, reason: LogStartReason = LogStartReason.COPIED, drops_all: bool = False
    ) -> None:
        """Raise the log's start. `delete_head` removes whole segments below it, once that is recorded; `drops_all`
        removes them now, and the log is empty. Its producers are not known then: what they wrote here may never have
        been in any leader's log, and a retry of that would count as written."""
        assert start_offset <= self.log_end_offset, "a log cannot start after its end: reset_to"
        if start_offset <= self.log_start_offset:
            return
        if drops_all and self.segments[0].base_offset < self.log_end_offset:
            assert start_offset == self.log_end_offset
            self.health.require_online()
            self._reset_to(start_offset, ProducerStates(is_incomplete=True))
        self.log_start_offset = start_offset
        self.start_reason = reason

    def lower_start(self, start_offset: int) -> int:
        """Lower the log's start to that of a leader that never received the higher one, as far as the files still
        reach. Returns the new start, which is above `start_offset` if that is deleted already."""
        self.log_start_offset = min(self.log_start_offset, max(start_offset, self.segments[0].base_offset))
        return self.log_start_offset

    def finish_cut(self) -> None:
        """After a failure, before the log is used again: sync the names that a cut changed, bring producer states and
        snapshots in line with it, and create the file of an empty log."""
        self.health.require_online()
        if self.damage is not None:
            return
        try:
            if self.is_cut_unfinished:
                self.health.disk.sync_directory(self.directory)
                cutting.rebuild_producers(self)
            self.record_if_changed()
            self.make_file()
        except DiskError as error:
            raise self.recorded(error) from None

    def _reset_to(self, offset: int, producers: ProducerStates) -> None:
        try:
            cutting.reset_to(self, offset, producers)
        except DiskError as error:
            raise self.recorded(error) from None

    # ------------------------------------------------------------------------------------------------------ retention
    def settle_start_reason(self) -> None:
        """No checkpoint on the disk describes the earlier log any more that this one has replaced."""
        if self.start_reason is LogStartReason.RESET:
            self.start_reason = LogStartReason.CREATED

    async def record_start(self, offset: int | None = None, reason: LogStartReason = LogStartReason.RETENTION) -> None:
        """Make the log's start durable, or the given higher one, before any other replica learns it. A higher one that
        the log does not reach any more, once earlier writes are over, is dropped."""
        if self.topic_id is None or self.deleted:
            return
        self.health.require_online()

        def wanted() -> LogStart | None:
            if offset is None or not self.log_start_offset < offset <= self.log_end_offset:
                return self.start_to_record()
            return self._start_at(offset, reason)

        try:
            await self.start_record.write(wanted)
        except BaseException as error:
            if (failure := disk_error_of(error)) is not None and not self.deleted:
                self.recorded(failure)
            raise

    def write_first_start(self) -> None:
        """Write the start file of a new log, or of a log that now has a known topic id."""
        start = self.start_to_record()
        assert start is not None, "the topic is known"
        self.start_record.write_first(start, self.unsynced)

    async def remove_deleted(self, now_ms: int) -> int:
        """Remove files deleted more than file.delete.delay.ms ago, on a full disk all at once. Returns how many."""
        due = [entry for entry in self.discarded if entry[1] <= now_ms or self.health.full]
        if not due or self.health.offline or self.deleted or self.damage is not None:
            return 0
        try:
            await self.health.disk.in_background(lambda: remove_files(self.health.disk, [path for path, _ in due]))
        except DiskError as error:
            raise self.recorded(error) from None
        gone = set(due)
        self.discarded = [entry for entry in self.discarded if entry not in gone]
        return len(due)

    def expire_producers(self, now_ms: int) -> int:
        return self.producers.expire(now_ms, self.config.producer_id_expiration_ms)

    # ----------------------------------------------------------------------------------------------------- durability
    def write_epoch_entries(self, entries: Sequence[EpochEntry]) -> None:
        """Replace the epoch file, if it differs. The next flush syncs it before the recovery point rises."""
        self.health.require_online()
        self._epochs = list(entries)
        self._note_epoch_file()
        if self.epochs_stored:
            return
        try:
            self.store_epochs()
        except OutOfDescriptors:
            return  # the next sync of metadata or of the log writes them
        except DiskError as error:
            raise self.recorded(error) from None

    async def flush(self, *, closed_only: bool = False) -> int:
        """Sync everything appended before the call (`closed_only`: in segments that no longer grow), off the loop.
        Returns the recovery point, the end of what is synced. Concurrent callers share one sync."""
        if self.damage is None:
            await flush_log(self, closed_only)
        return self.recovery_point

    def mark_damaged(self, reason: str) -> None:
        """The stored bytes differ from what was written: from now on nothing is written, cut or deleted here, not even
        after a restart. Reads still return what is there."""
        if self.damage is None:
            self.damage = reason
            self.unsynced.take()
            self.close()
            if not self.health.offline:
                write_damage_note(self.health, self.directory, reason)

    # -------------------------------------------------------------------------------------------------------- closing
    def prepare_clean_close(self) -> None:
        """Write what saves the next start some work: indexes and producer states. Not synced: if a power cut after a
        clean stop loses or tears them, they are rebuilt."""
        if self.damage is not None:
            return
        for segment in self.segments:
            segment.save_index()
        if self.log_end_offset not in self.snapshots.offsets and self.size_bytes:
            self.snapshots.remove_above(self.segments[-1].base_offset)  # of earlier stops
            self.write_snapshot()
        self.write_digests()

    def delete(self) -> None:
        """The directory is removed or goes to another topic: write nothing there any more."""
        self.deleted = True
        self.start_record.close()
        self.close()
