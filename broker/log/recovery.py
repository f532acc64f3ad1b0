"""Loading one partition from its directory, with recovery after an unclean stop (replication rules, section 11).

Owns: which files are believed. Leaves to others: the running log. Runs off the event loop, touches nothing shared.

After a clean stop the files are trusted, and only the ends of the segments are read. After any other stop the
segments from the recovery point on, and always the last one, are read with all checks: the first invalid byte ends the
log, later segments are removed, and indexes, producer states and leader epochs are rebuilt from the batches. This does
not advance the recovery point: bytes that were read back need not be on the disk yet (KAFKA-10101).

What was synced cannot be a torn tail. Below the recovery point (after an unclean stop: at most up to the start of the
last segment) files that contradict each other or their names are damaged, and nothing is removed. The `log-start` file
says where the log starts; it is on the disk before anything in front of that start is removed. So segments in front of
a gap below that offset are the leftover of a deletion, and a log that begins above it has lost its head.

If the machine did not go down (same boot), only the last write can be torn: the kernel has all that a killed process
wrote. Then closed segments must meet, the log must reach its last high watermark, and only a batch cut off by the end
of the file is a torn tail. After a power cut a torn tail may be anything, except a whole batch with a sound CRC: if its
offset or epoch, which the CRC does not cover, does not follow from the batch before, that is damage.
"""

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator
from operator import attrgetter

from minibroker.broker.log.loaded_log import LoadContext, LoadedLog, RecoveryReport
from minibroker.broker.log.segments.segment_digest import digest_of_headers
from minibroker.broker.log.segments.segment_files import SegmentFile, list_partition, remove_segment
from minibroker.broker.log.segments.segment_index import NO_TIMESTAMP, SegmentIndex
from minibroker.broker.log.segments.segment_tail import SegmentTail, is_cut_off, is_whole_batch, read_tail, why_misfit
from minibroker.broker.log.segments.walk import scan_batches, walk_headers
from minibroker.broker.log.side_files.digest_file import read_digests
from minibroker.broker.log.side_files.epoch_file import (
    NO_EPOCH,
    EpochEntry,
    EpochRebuild,
    contradicted_at,
    epochs_not_used,
    read_epoch_file,
    truncate_epochs,
)
from minibroker.broker.log.side_files.log_start_file import is_left_of_a_reset, read_log_start
from minibroker.broker.log.side_files.producer_snapshots import ProducerSnapshots
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import INDEX_SUFFIX, LOG_START, LOG_SUFFIX, LogStartReason
from minibroker.protocol.log_digest import MODULUS, NOTHING, digest_of
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch
from minibroker.runtime.ports import Disk, DiskFull, File

logger = logging.getLogger(__name__)

Walk = Callable[[File, int, int], Iterator[tuple[int, BatchHeader]]]
"""Of `segments/walk.py`: (position, header) of each batch in [position, end) of a file."""

PRODUCED_AT_ONCE = 4_096
"""Headers that a scan collects before it updates the producer states, which remember only the newest of them."""


def load_log(disk: Disk, directory: str, context: LoadContext, *, index_interval_bytes: int) -> LoadedLog:
    """Read the partition in `directory`."""
    return _Loader(disk, directory, context, index_interval_bytes).load()


class _Loader:
    """The steps of loading, on the state they share."""

    def __init__(self, disk: Disk, directory: str, context: LoadContext, interval_bytes: int) -> None:
        self.disk, self.directory = disk, directory
        self.recovery_point = context.recovery_point or 0
        self.is_point_known = context.recovery_point is not None
        self.clean = context.clean
        self.was_only_killed = context.same_boot and not context.clean
        """Only its process ended, by a kill: the kernel has all that it had written."""
        self.high_watermark = context.high_watermark if self.was_only_killed else 0
        self.interval_bytes = interval_bytes
        self.segments, snapshot_offsets = list_partition(disk, directory)
        self.snapshots = ProducerSnapshots(disk, directory, snapshot_offsets)
        self.snapshots.set_owner(context.topic_id, context.partition)
        self.producers = ProducerStates()
        self.report = RecoveryReport(clean=False)
        found = self.report.found
        owner = None if context.topic_id is None else (context.topic_id, context.partition)
        self.stored_epochs = read_epoch_file(disk, directory, found, owner)
        self.epochs = EpochRebuild(self.stored_epochs)
        self.last_epoch = NO_EPOCH
        """Leader epoch of the last scanned batch, or of the last one of a segment that is not scanned."""
        self.recorded_start = read_log_start(disk, directory, found)
        self.promised_end = self._promised_end(context)
        self.start = self.recorded_start[0].offset if self.recorded_start is not None else 0
        self.synced_end = 0
        """Everything below it was on stable storage, or is in the kernel's memory: a misfit there is damage."""
        self.damage: str | None = context.damage
        self.context = context

    def load(self) -> LoadedLog:
        self._drop_leftovers_of_deletion()
        self._check_head()
        self.synced_end = self._surely_synced()
        end = self._end_before_damage()
        if end is None and self.clean:
            end = self._trusted_end()
        if end is None:
            end = self._recover()
        else:
            self.report.clean = self.clean
            self._replay_up_to(end)
        if end < self.high_watermark:
            self._damaged(f"the log ends at {end}, its process had committed it up to {self.high_watermark}")
        if end < self.promised_end:
            self._damaged(f"the log ends at {end}, it was synced up to {self.promised_end}")
        start = max(self.start, self.segments[0].base_offset) if self.segments else self.start
        # After a clean stop or a kill no power cut has taken the tail, and a clean stop interrupts no reset. Behind a
        # power cut a lost tail, an interrupted reset and an older copy of the file look alike.
        if end < start and (self.clean or self.was_only_killed):
            first = self.segments[0].base_offset
            if self.clean or not is_left_of_a_reset(self.disk, self.directory, first):
                self._damaged(f"the log ends at {end}, its {LOG_START} file says that it begins at {start}")
        if end < start and self.damage is None:  # all that is left of the log lies in front of its start
            self._note(f"the log ends at {end}, below its start {start}")
            self._remove_from(0)
            self.snapshots.remove_above(-1)
            self.producers = ProducerStates(is_incomplete=True)
            self.epochs = EpochRebuild([])
        end = max(end, start)
        self._fill_recorded_digests(end)
        first = self.segments[0].base_offset if self.segments else start
        self._complete_epochs(first, end)
        epochs = truncate_epochs(self.epochs.entries, first, end)
        self.report.segments = len(self.segments)
        return LoadedLog(
            segments=self.segments,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=min(self._safe_recovery_point(end) if self.segments else start, end),
            epochs=epochs,
            stored_epochs=self.stored_epochs,
            producers=self.producers,
            snapshots=self.snapshots,
            report=self.report,
            recorded_start=self.recorded_start,
            damage=self.damage,
        )

    def _safe_recovery_point(self, end: int) -> int:
        """After an unclean stop at most the start of the last segment: a cut may have lowered the recovery point after
        the checkpoint, and appends after the cut were not synced. Segments are not closed before that checkpoint is
        written, so the earlier ones can be believed."""
        known = end if self.report.clean else self.segments[-1].base_offset
        return max(min(self.recovery_point, known), self.segments[0].base_offset)

    # ---------------------------------------------------------------------------------------------- after a clean stop
    def _trusted_end(self) -> int:
        """The log's end, from the last batches of its last segment."""
        if not self.segments:
            return self.start
        segment = self.segments[-1]
        tail = self._read_tail(segment)
        if tail.misfit is not None:
            self._damaged(f"{segment.path}{LOG_SUFFIX} was synced by a clean stop, {tail.misfit}")
        elif tail.end_offset < self.synced_end:
            self._damaged(f"the log ends at {tail.end_offset}, a clean stop synced it up to {self.synced_end}")
        is_begun = tail.last_epoch is None and len(self.segments) > 1  # and nothing written to it
        self._check_last_epoch(self._read_tail(self.segments[-2]) if is_begun else tail)
        return tail.end_offset

    def _fill_recorded_digests(self, end: int) -> None:
        """Take the recorded digests for segments that were not read."""
        if self.damage is not None or all(segment.digest is not None for segment in self.segments):
            return
        recorded = self._read_digests()
        ends = [segment.base_offset for segment in self.segments[1:]] + [end]
        for segment, segment_end in zip(self.segments, ends, strict=True):
            found = recorded.get(segment.base_offset)
            if segment.digest is None and found is not None and found[:2] == (segment_end, segment.last_epoch):
                segment.digest = found[2]

    def _has_recorded_digest(self, offset: int, end: int) -> bool:
        """Whether the headers in the segment that holds the offset, epochs included, are those of which the digest was
        recorded. `end`: that of the last segment."""
        number = bisect_right(self.segments, offset, key=attrgetter("base_offset"))
        base = self.segments[number - 1].base_offset
        end = self.segments[number].base_offset if number < len(self.segments) else end
        return self._read_digests().get(base, ())[::2] == (end, digest_of_headers(self._headers(base, end)))

    def _read_digests(self) -> dict[int, tuple[int, int, int]]:
        owner = self.context.topic_id, self.context.partition
        return read_digests(self.disk, self.directory, *owner, self.report.found)

    # --------------------------------------------------------------------------------------------- what must be there
    def _check_head(self) -> None:
        if self.segments:
            first = self.segments[0].base_offset
            if first > self.start:
                why = "no readable" if self.recorded_start is None else "its"
                self._damaged(f"the log begins at {first}, {why} {LOG_START} file explains only {self.start}")
        elif max(self.recovery_point, self.high_watermark) > self.start and not self._was_restarted_empty():
            reached = max(self.recovery_point, self.high_watermark)
            self._damaged(f"no segment is there, though the log once reached to {reached}")

    def _was_restarted_empty(self) -> bool:
        return self.recorded_start is not None and self.recorded_start[0].reason is LogStartReason.RESET

    def _promised_end(self, context: LoadContext) -> int:
        """What is below both checkpoints was synced: no cut goes below the high watermark, and its checkpoint is never
        newer than that of a recovery point that fell. A restarted log may be shorter than earlier checkpoints say."""
        if self._was_restarted_empty():
            return context.clean_end
        return max(context.clean_end, min(self.recovery_point, context.high_watermark))

    def _surely_synced(self) -> int:
        """The end of what was certainly synced; how far checkpoints prove it, see `_safe_recovery_point`."""
        return max(self._synced_by_checkpoints(), self.promised_end)

    def _synced_by_checkpoints(self) -> int:
        if self.clean or not self.segments:
            return self.recovery_point
        last = self.segments[-1].base_offset
        if self.was_only_killed:
            return max(last, self.high_watermark)
        return min(self.recovery_point, last) if self.is_point_known else last

    def _end_before_damage(self) -> int | None:
        """Closed segments that were synced (by a clean stop: all) must end where the next one begins. If one does not,
        returns the end of the last batch before the misfit. Later bytes stay on the disk, but not in the log."""
        for number, segment in enumerate(self.segments[:-1]):
            following = self.segments[number + 1].base_offset
            if following > self.synced_end and not self.clean:
                return None
            tail = self._read_tail(segment)
            if tail.end_offset != following or tail.misfit is not None:
                what = tail.misfit or f"ends at offset {tail.end_offset}"
                is_longer = tail.end_offset == following
                problem = "holds more than the batches up to" if is_longer else "does not reach to"
                self._damaged(f"{segment.path}{LOG_SUFFIX} {problem} {following}, the next one: {what}")
                del self.segments[number + 1 :]
                return min(tail.end_offset, following)
        return None

    def _read_tail(self, segment: SegmentFile) -> SegmentTail:
        tail = read_tail(self.disk, segment, self.interval_bytes)
        segment.last_epoch = tail.last_epoch
        if tail.is_index_stale:
            segment.remove_indexes(self.disk)  # the segment rebuilds it
            consequence = "the index is rebuilt from the batches"
            path = segment.path + INDEX_SUFFIX
            self.report.found.append(
                FileNotUsed(path=path, reason="it does not fit the batches", consequence=consequence)
            )
        return tail

    def _damaged(self, reason: str) -> None:
        if self.damage is None:
            self.damage = reason
            self._note(reason)

    # ------------------------------------------------------------------------------------------------------- recovery
    def _recover(self) -> int:
        first = self._first_to_scan()
        if not self.segments:
            self._replay_up_to(0)
            return self.start
        base = self.segments[first].base_offset
        self._distrust_epochs_of_another_log(self.segments[first])
        if first > 0:
            self._check_last_epoch(self._read_tail(self.segments[first - 1]))
        self._replay_up_to(base)
        end = base
        number = first
        while number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset != end:
                self._note(f"{segment.path}{LOG_SUFFIX} begins at another offset than {end}, the end before it")
                self._drop_from(number)
                break
            if number > first:
                self._write_snapshot(end)
            end, sound = self._scan(segment)
            number += 1
            if not sound:
                self._drop_from(number)
        self._check_epochs(self.epochs.entries, base, end)
        return end

    def _drop_from(self, number: int) -> None:
        """Drop the segments after one that is not whole; of a damaged log no file is removed."""
        if self.damage is None:
            self._remove_from(number)
        else:
            del self.segments[number:]

    def _drop_leftovers_of_deletion(self) -> None:
        """Remove segments in front of a gap below the recorded start (see above); others are deleted later as usual."""
        if self.damage is not None:
            return
        for number in range(len(self.segments) - 2, -1, -1):
            following = self.segments[number + 1].base_offset
            if following <= self.start and self._read_tail(self.segments[number]).end_offset != following:
                self._note(f"segments in front of {following} are the leftover of a deletion up to {self.start}")
                for leftover in self.segments[: number + 1]:
                    self._remove(leftover)
                del self.segments[: number + 1]
                return

    def _first_to_scan(self) -> int:
        """The segment that holds the recovery point, but never later than the last one."""
        for number in range(len(self.segments) - 1):
            if self.segments[number + 1].base_offset > self.recovery_point:
                return number
        return max(len(self.segments) - 1, 0)

    def _distrust_epochs_of_another_log(self, segment: SegmentFile) -> None:
        """The batches decide: an epoch file that has later epochs in front of a batch is wrong."""
        earlier = [epoch for epoch, start in self.stored_epochs if start < segment.base_offset]
        file = self.disk.open(segment.path + LOG_SUFFIX)
        try:
            for _, header in walk_headers(file, 0, segment.size):
                if earlier and header.partition_leader_epoch < earlier[-1]:
                    self.report.found.append(epochs_not_used(self.directory, "it contradicts the batches"))
                    self.epochs = EpochRebuild([])
                return
        except CorruptBatch:
            return  # the scan reports it
        finally:
            file.close()

    def _check_epochs(self, found: list[EpochEntry], start: int, end: int) -> None:
        """An epoch is written before its first batch, so unless a power cut may have taken what was written last, the
        file names the epoch of each batch, and rot of either is damage. After a power cut the file may be older, but
        names no epoch at another start than the batches, and no later one where a closed segment was synced. Without a
        file, or with a recorded digest of the segment, the batches decide."""
        may_be_older = not (self.clean or self.was_only_killed)
        compared = min(end, self.synced_end, self.segments[-1].base_offset) if may_be_older else end
        offset = contradicted_at(self.stored_epochs, found, start, compared, may_be_older)
        if offset is not None and (self.was_only_killed or not self._has_recorded_digest(offset, end)):
            self._damaged(f"its epoch file and its batches name different leader epochs at offset {offset}")

    def _check_last_epoch(self, tail: SegmentTail) -> None:
        """An older copy of the file, or an empty one, lacks the epoch of the last batch."""
        if tail.last_epoch is None:
            return
        self.last_epoch = tail.last_epoch
        last = tail.end_offset - 1
        self._check_epochs([(tail.last_epoch, last)], last, tail.end_offset)
        there = [epoch for epoch, start in self.stored_epochs if start < tail.end_offset]
        if not there or there[-1] != tail.last_epoch:
            reason = f"it lacks epoch {tail.last_epoch}" if there else "it is missing or empty"
            self.report.found.append(epochs_not_used(self.directory, reason))
            self.epochs = EpochRebuild([])

    def _scan(self, segment: SegmentFile) -> tuple[int, bool]:
        """Read a segment with all checks, cut it at the first bad byte, rebuild its indexes. (Its end, whether whole.)

        Offset and epoch of a batch are outside its CRC: they must follow from the batch before it (I12).
        """
        index = SegmentIndex(self.interval_bytes)
        base = end = segment.base_offset
        largest, position, digest = NO_TIMESTAMP, 0, NOTHING
        reason = None
        produced: list[BatchHeader] = []
        file = self.disk.open(segment.path + LOG_SUFFIX)
        try:
            for position, header in scan_batches(file, 0, segment.size):
                epoch = header.partition_leader_epoch
                if header.base_offset != end or epoch != self.last_epoch:  # else nothing is new, and it fits
                    reason = why_misfit(header, end, self.last_epoch)
                    if reason is not None:
                        break
                    self._note_epoch(epoch, end)
                if header.max_timestamp > largest:
                    largest = header.max_timestamp
                end += header.record_count
                if index.is_due(position):
                    index.add(end - 1 - base, position, largest)
                digest += digest_of(((header.base_offset, header.size_bytes, epoch, header.crc),))
                if header.producer_id >= 0:
                    produced.append(header)
                    if len(produced) == PRODUCED_AT_ONCE:
                        self.producers.update_all(produced)
                        produced.clear()
            else:
                position = segment.size
        except CorruptBatch as error:
            position, reason = error.position, error.reason
        self.producers.update_all(produced)
        segment.digest = digest % MODULUS
        self.report.segments_scanned += 1
        self.report.bytes_scanned += position
        try:
            if position < segment.size:
                self._misfit_at(segment, file, position, end, str(reason))
        finally:
            file.close()
        if self.damage is None:
            self._save_index(segment, index)
        return end, reason is None

    def _misfit_at(self, segment: SegmentFile, file: File, position: int, end: int, reason: str) -> None:
        what = f"{segment.path}{LOG_SUFFIX} is damaged at position {position}: {reason}"
        if end < self.synced_end:
            self._damaged(f"{what}; it once reached to offset {self.synced_end}")
        elif self.was_only_killed and not is_cut_off(file, position, segment.size):
            self._damaged(f"{what}; the machine has run on, and no write was cut off there")
        elif is_whole_batch(file, position, segment.size):
            self._damaged(f"{what}; the batch there is whole, which no write that was cut off is")
        if self.damage is not None:
            return
        self._note(what)
        self.report.bytes_cut += segment.size - position
        file.truncate(position)
        file.sync()
        segment.size = position

    def _note_epoch(self, epoch: int, start_offset: int) -> None:
        """Note the epoch of a batch that differs from that of the batch before."""
        self.last_epoch = epoch
        if epoch > self.epochs.latest:
            self.epochs.assign(epoch, start_offset)

    def _save_index(self, segment: SegmentFile, index: SegmentIndex) -> None:
        entries, times = index.encode(0)
        try:
            self.disk.replace_file(segment.path + ".index", entries, sync=False)
            self.disk.replace_file(segment.path + ".timeindex", times, sync=False)
        except DiskFull as error:  # a broker must start on a full disk, too; the segment rebuilds its index when needed
            logger.warning("the index of %s is not saved: %s", segment.path, error)
            segment.remove_indexes(self.disk)

    def _write_snapshot(self, offset: int, *, sync: bool = False) -> None:
        try:
            self.snapshots.write(offset, self.producers, self.last_epoch, sync=sync)
        except DiskFull as error:
            logger.warning("no producer snapshot at %d: %s", offset, error)

    # ----------------------------------------------------------------------------- states from the earlier segments
    def _replay_up_to(self, end: int) -> None:
        """Restore producer states as of `end`, from the newest snapshot and later batches; keep epochs begun below. The
        snapshot is usually that of `end`: batches are read, with all checks, where it is lost."""
        self.epochs.keep_below(end)
        first = self.segments[0].base_offset if self.segments else self.start
        offset, self.producers = self.snapshots.newest(first, end, self.epochs.entries, self.report.found)
        self.snapshots.remove_above(end)  # they may describe a tail that is lost
        for header in self._headers(offset, end, scan_batches):
            if header.producer_id >= 0:
                self.producers.update(header)
        if first < end != offset and end in self.snapshots.offsets and self.damage is None:
            self._write_snapshot(end, sync=True)  # once the head is deleted nothing contradicts the one that is there

    def _complete_epochs(self, first: int, end: int) -> None:
        """Add epochs of batches in front of the first entry: the epoch file is lost, or the recorded log start is older
        than it, so that the log begins earlier."""
        entries = self.epochs.entries
        if entries and entries[0][1] < first and not any(segment.size for segment in self.segments):
            self.report.found.append(epochs_not_used(self.directory, "it is from before the log was emptied"))
            entries = []  # which of them was the last one in front of the log is unknown
        first_known = entries[0][1] if entries else end
        front = EpochRebuild([])
        for header in self._headers(0, first_known):
            if header.partition_leader_epoch > front.latest:
                front.assign(header.partition_leader_epoch, header.base_offset)
        self.epochs.entries = front.entries + [entry for entry in entries if entry[0] > front.latest]

    def _headers(self, start: int, end: int, walk: Walk = walk_headers) -> Iterator[BatchHeader]:
        """Headers of the batches in [start, end), as far as the files can be read: what follows from a part of them
        would be wrong without a sign of it, and a producer's batch would be written twice. So the rest is damage."""
        for number, segment in enumerate(self.segments):
            following = self.segments[number + 1].base_offset if number + 1 < len(self.segments) else end
            if following <= start or segment.base_offset >= end:
                continue
            expected = segment.base_offset
            file = self.disk.open(segment.path + LOG_SUFFIX)
            try:
                for position, header in walk(file, 0, segment.size):
                    if expected >= end:
                        return
                    if header.base_offset != expected:
                        raise CorruptBatch(f"offset {header.base_offset} where {expected} belongs", position)
                    expected += header.record_count
                    if header.base_offset >= start:
                        yield header
            except CorruptBatch as error:
                self._damaged(f"{segment.path}{LOG_SUFFIX} is damaged at position {error.position}: {error.reason}")
                return
            finally:
                file.close()

    # ------------------------------------------------------------------------------------------------------- removing
    def _remove_from(self, number: int) -> None:
        """Remove segments, newest first: a power cut leaves no gap."""
        while len(self.segments) > number:
            self._remove(self.segments.pop())
            self.disk.sync_directory(self.directory)

    def _remove(self, segment: SegmentFile) -> None:
        self.report.segments_removed += 1
        self.report.bytes_cut += segment.size
        remove_segment(self.disk, segment)

    def _note(self, reason: str) -> None:
        self.report.reason = self.report.reason or reason
