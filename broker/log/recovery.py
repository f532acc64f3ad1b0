"""Loading one partition from its directory, with recovery after an unclean stop (replication rules, section 11).

Owns: what of the files is believed. Refuses to know the running log. Runs off the event loop, touches nothing shared.

After a clean stop the files are trusted and only the end of the last segment is looked at. After any other stop the
segments from the recovery point on, and always the last one, are read with every check: the first byte that does not
fit ends the log, later segments go, and indexes, producer states and leader epochs are rebuilt from the batches. The
recovery point is not advanced by that: what was read back need not be on the disk yet (KAFKA-10101).

A gap between two segments: below the recovery point everything was contiguous and synced once, and only deletion from
the head takes whole segments away there, so the part in front of the gap is the leftover of a deletion. At or above it
the part behind the gap is a tail whose beginning was lost.
"""

import logging
from collections.abc import Iterator

import msgspec

from minibroker.broker.log.epoch_file import NO_EPOCH, EpochEntry, EpochRebuild, read_epoch_file, truncate_epochs
from minibroker.broker.log.producer_snapshots import ProducerSnapshots
from minibroker.broker.log.segment import read_index
from minibroker.broker.log.segment_files import SegmentFile, list_partition, remove_segment
from minibroker.broker.log.segment_index import NO_TIMESTAMP, CorruptIndex, SegmentIndex
from minibroker.broker.log.walk import scan_batches, walk_headers
from minibroker.broker.replication.producer_state import ProducerStates
from minibroker.protocol.checkpoints import LOG_SUFFIX
from minibroker.protocol.record_batch import BatchHeader, CorruptBatch
from minibroker.runtime.ports import Disk, DiskFull, FileMissing

logger = logging.getLogger(__name__)

PRODUCED_AT_ONCE = 4_096
"""So many headers of a scan are kept before the producers' states take them: of most, states remember nothing."""


class RecoveryReport(msgspec.Struct, kw_only=True):
    """What loading one partition found; for one line in the log."""

    clean: bool
    segments: int = 0
    segments_scanned: int = 0
    segments_removed: int = 0
    bytes_scanned: int = 0
    bytes_cut: int = 0
    reason: str | None = None
    """Why something was cut or removed."""


class LoadedLog(msgspec.Struct, kw_only=True):
    """One partition as it stands on disk now."""

    segments: list[SegmentFile]
    """Rising; empty when there is nothing: the log then starts at log_start_offset."""
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: list[EpochEntry]
    epochs_on_disk: bool
    """Whether the epoch file says the same."""
    producers: ProducerStates
    snapshots: ProducerSnapshots
    report: RecoveryReport
    damage: str | None = None
    """Why the files cannot be what this replica promised: they contradict each other, or what is durably recorded of
    them. Such a replica serves nothing and joins no ISR; what it has on the disk stays there until it starts anew."""


def load_log(
    disk: Disk, directory: str, *, log_start_offset: int, recovery_point: int, clean: bool, index_interval_bytes: int
) -> LoadedLog:
    """Read the partition in `directory`; checkpointed offsets that are not known are 0."""
    return _Loader(disk, directory, recovery_point, index_interval_bytes).load(log_start_offset, clean)


def unreadable_log(disk: Disk, directory: str, reason: str) -> LoadedLog:
    """Of a partition whose directory cannot be read, though the disk works: damaged, and nothing is known of it."""
    return LoadedLog(
        segments=[],
        log_start_offset=0,
        log_end_offset=0,
        recovery_point=0,
        epochs=[],
        epochs_on_disk=True,
        producers=ProducerStates(),
        snapshots=ProducerSnapshots(disk, directory, []),
        report=RecoveryReport(clean=False, reason=reason),
        damage=reason,
    )


class _Loader:
    """The steps of loading, on the state they share."""

    def __init__(self, disk: Disk, directory: str, recovery_point: int, interval_bytes: int) -> None:
        self.disk = disk
        self.directory = directory
        self.recovery_point = recovery_point
        self.interval_bytes = interval_bytes
        self.segments, snapshot_offsets = list_partition(disk, directory)
        self.snapshots = ProducerSnapshots(disk, directory, snapshot_offsets)
        self.producers = ProducerStates()
        self.report = RecoveryReport(clean=False)
        self.stored_epochs = read_epoch_file(disk, directory)
        self.epochs = EpochRebuild(self.stored_epochs)
        self.last_epoch = NO_EPOCH
        """Of the last batch that was scanned."""

    def load(self, log_start_offset: int, clean: bool) -> LoadedLog:
        end = self._trusted_end() if clean else None
        if end is None:
            end = self._recover()
        else:
            self.report.clean = True
            self._replay_up_to(end)
        start = max(log_start_offset, self.segments[0].base_offset) if self.segments else log_start_offset
        if end < start:  # the checkpoint knows more than the log holds
            self._note(f"the log ends at {end}, below its start {start}")
            self._remove_from(0)
            self.snapshots.remove_above(-1)
            self.producers.clear()
            self.epochs = EpochRebuild([])
        end = max(end, start)
        self._complete_epochs(end)
        epochs = truncate_epochs(self.epochs.entries, start, end)
        self.report.segments = len(self.segments)
        return LoadedLog(
            segments=self.segments,
            log_start_offset=start,
            log_end_offset=end,
            recovery_point=self._safe_recovery_point(end) if self.segments else start,
            epochs=epochs,
            epochs_on_disk=epochs == self.stored_epochs,
            producers=self.producers,
            snapshots=self.snapshots,
            report=self.report,
        )

    def _safe_recovery_point(self, end: int) -> int:
        """After an unclean stop at most the start of the last segment: a cut may have lowered the recovery point after
        the checkpoint, and what was appended behind the cut was not synced. Segments are not closed before that
        checkpoint is written, so the earlier ones can be believed."""
        known = end if self.report.clean else self.segments[-1].base_offset
        return max(min(self.recovery_point, known), self.segments[0].base_offset)

    # ---------------------------------------------------------------------------------------------- after a clean stop
    def _trusted_end(self) -> int | None:
        """The log's end by its last segment's last batches; None when they do not fit and recovery is due."""
        if not self.segments:
            return 0
        end = self._end_by_tail(self.segments[-1])
        if end is None:
            self._note(f"the end of {self.segments[-1].path}{LOG_SUFFIX} is damaged although the stop was clean")
        return end

    def _end_by_tail(self, segment: SegmentFile) -> int | None:
        """End offset of a segment: walk from its last index entry on. None when that meets nonsense."""
        try:
            index = read_index(self.disk, segment.path, segment.size, self.interval_bytes)
        except (CorruptIndex, FileMissing):
            index = SegmentIndex(self.interval_bytes)  # slower, as true; the segment rebuilds it when it is needed
        stale = False
        end, expected = segment.base_offset, None if len(index) else segment.base_offset
        file = self.disk.open(segment.path + LOG_SUFFIX)
        try:
            for position, header in walk_headers(file, index.last_position, segment.size):
                if expected is not None and header.base_offset != expected:
                    return None
                end = expected = header.end_offset
                stale = stale or index.is_due(position)
        except CorruptBatch:
            return None
        finally:
            file.close()
        if stale:  # it was not written since; the segment rebuilds it
            segment.remove_indexes(self.disk)
        return end

    # ------------------------------------------------------------------------------------------------------- recovery
    def _recover(self) -> int:
        self._drop_leftovers_of_deletion()
        first = self._first_to_scan()
        if not self.segments:
            self._replay_up_to(0)
            return 0
        base = self.segments[first].base_offset
        self._distrust_epochs_of_another_log(self.segments[first])
        self._replay_up_to(base)
        end = base
        number = first
        while number < len(self.segments):
            segment = self.segments[number]
            if segment.base_offset != end:
                self._note(f"{segment.path}{LOG_SUFFIX} begins at another offset than {end}, the end before it")
                self._remove_from(number)
                break
            if number > first:
                self._write_snapshot(end)
            end, sound = self._scan(segment)
            number += 1
            if not sound:
                self._remove_from(number)
        return end

    def _drop_leftovers_of_deletion(self) -> None:
        """See the head of this file. Only segments wholly below the recovery point are compared with what follows."""
        for number in range(len(self.segments) - 2, -1, -1):
            following = self.segments[number + 1].base_offset
            if following > self.recovery_point:
                continue
            end = self._end_by_tail(self.segments[number])
            if end is not None and end < following:
                self._note(f"segments in front of {following} are the leftover of a deletion")
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
        """The batches are the truth: a file that knows later epochs in front of a batch is wrong."""
        earlier = [epoch for epoch, start in self.stored_epochs if start < segment.base_offset]
        file = self.disk.open(segment.path + LOG_SUFFIX)
        try:
            for _, header in walk_headers(file, 0, segment.size):
                if earlier and header.partition_leader_epoch < earlier[-1]:
                    logger.warning("rebuilding the leader epochs of %s: they contradict its batches", self.directory)
                    self.epochs = EpochRebuild([])
                return
        except CorruptBatch:
            return  # the scan will say more
        finally:
            file.close()

    def _scan(self, segment: SegmentFile) -> tuple[int, bool]:
        """Read a segment with every check, cut it at the first bad byte, rebuild its indexes. Its end; if it was whole.

        Offset and epoch of a batch are outside its CRC: they must follow from the batch before it (I12).
        """
        index = SegmentIndex(self.interval_bytes)
        base = end = segment.base_offset
        largest, position = NO_TIMESTAMP, 0
        reason = None
        produced: list[BatchHeader] = []
        file = self.disk.open(segment.path + LOG_SUFFIX)
        try:
            for position, header in scan_batches(file, 0, segment.size):
                epoch = header.partition_leader_epoch
                if header.base_offset != end or epoch != self.last_epoch:  # else nothing is new, and it fits
                    reason = _misfit(header, end, self.last_epoch)
                    if reason is not None:
                        break
                    self._note_epoch(epoch, end)
                if header.max_timestamp > largest:
                    largest = header.max_timestamp
                end += header.record_count
                if index.is_due(position):
                    index.add(end - 1 - base, position, largest)
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
        try:
            self.report.segments_scanned += 1
            self.report.bytes_scanned += position
            if position < segment.size:
                self._note(f"{segment.path}{LOG_SUFFIX} is damaged at position {position}: {reason}")
                self.report.bytes_cut += segment.size - position
                file.truncate(position)
                file.sync()
                segment.size = position
        finally:
            file.close()
        self._save_index(segment, index)
        return end, reason is None

    def _note_epoch(self, epoch: int, start_offset: int) -> None:
        """Of a batch whose epoch is not that of the one before it."""
        self.last_epoch = epoch
        if epoch > self.epochs.latest:
            self.epochs.assign(epoch, start_offset)

    def _save_index(self, segment: SegmentFile, index: SegmentIndex) -> None:
        entries, times = index.encode(0)
        try:
            self.disk.replace_file(segment.path + ".index", entries, sync=False)
            self.disk.replace_file(segment.path + ".timeindex", times, sync=False)
        except DiskFull as error:  # a broker starts on a full disk, too; the segment rebuilds its index when it must
            logger.warning("the index of %s is not saved: %s", segment.path, error)
            segment.remove_indexes(self.disk)

    def _write_snapshot(self, offset: int) -> None:
        try:
            self.snapshots.write(offset, self.producers)
        except DiskFull as error:
            logger.warning("no producer snapshot at %d: %s", offset, error)

    # ----------------------------------------------------------------------------------- what earlier segments tell
    def _replay_up_to(self, end: int) -> None:
        """Producer states as of `end`: the newest snapshot and the headers behind it. Epochs that began below `end`."""
        self.epochs.keep_below(end)
        offset, self.producers = self.snapshots.newest(end)
        self.snapshots.remove_above(end)  # they may speak of a tail that is lost
        for header in self._headers(offset or 0, end):
            if header.producer_id >= 0:
                self.producers.update(header)

    def _complete_epochs(self, end: int) -> None:
        """Epochs of batches in front of the first entry: the file is lost, or the log start's checkpoint is older than
        the file, so that the log begins earlier than the file believes."""
        entries = self.epochs.entries
        first_known = entries[0][1] if entries else end
        front = EpochRebuild([])
        for header in self._headers(0, first_known):
            if header.partition_leader_epoch > front.latest:
                front.assign(header.partition_leader_epoch, header.base_offset)
        self.epochs.entries = front.entries + [entry for entry in entries if entry[0] > front.latest]

    def _headers(self, start: int, end: int) -> Iterator[BatchHeader]:
        """Of the batches in [start, end), as far as the files can be read."""
        for number, segment in enumerate(self.segments):
            following = self.segments[number + 1].base_offset if number + 1 < len(self.segments) else end
            if following <= start or segment.base_offset >= end:
                continue
            file = self.disk.open(segment.path + LOG_SUFFIX)
            try:
                for _, header in walk_headers(file, 0, segment.size):
                    if header.base_offset >= end:
                        return
                    if header.base_offset >= start:
                        yield header
            except CorruptBatch as error:
                logger.error("%s%s: producers and epochs may lack something: %s", segment.path, LOG_SUFFIX, error)
            finally:
                file.close()

    # ------------------------------------------------------------------------------------------------------- removing
    def _remove_from(self, number: int) -> None:
        """Newest first: a power cut leaves no gap."""
        while len(self.segments) > number:
            self._remove(self.segments.pop())
            self.disk.sync_directory(self.directory)

    def _remove(self, segment: SegmentFile) -> None:
        self.report.segments_removed += 1
        self.report.bytes_cut += segment.size
        remove_segment(self.disk, segment)

    def _note(self, reason: str) -> None:
        if self.report.reason is None:
            self.report.reason = reason


def _misfit(header: BatchHeader, end: int, epoch: int) -> str | None:
    if header.base_offset != end:
        return f"offset {header.base_offset} where {end} belongs"
    if header.partition_leader_epoch < epoch:
        return f"leader epoch {header.partition_leader_epoch} behind epoch {epoch}"
    return None
