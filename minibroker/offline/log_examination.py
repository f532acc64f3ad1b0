"""The damage in one partition's directory of a stopped broker, as the broker itself will see it at its next start.

Owns: the examination of each file, and of what is missing. Its rules are those of the broker (replication
rules, sections 11 and 12): stored records that do not fit are damage, an end that never counted as stored is a torn
tail, and a file that a broker rebuilds is neither. It reads every batch, even those that a start skips. It changes
nothing.
"""

from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from minibroker.local_cluster.power_loss import list_segments
from minibroker.offline.directory_owner import read_owner
from minibroker.offline.log_evidence import DirectoryEvidence, PartitionEvidence, read_small
from minibroker.offline.segment_files import (
    Buffer,
    SegmentBatch,
    SegmentProblem,
    index_problems,
    is_cut_off,
    open_segment,
    read_epochs,
    walk,
    wrong_epoch,
)
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import CorruptCheckpoint, LogStart, LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader

Kind = Literal["damaged", "index", "torn tail", "leftover"]


class LogDamage(msgspec.Struct, frozen=True, kw_only=True):
    """One problem in a partition's directory."""

    kind: Kind
    """damaged: records that counted as stored are changed or missing. index: the broker rebuilds the file once it is
    removed. torn tail: an end that never counted as stored; the next start cuts it. leftover: of a deletion, before the
    log's start; the next start removes it."""
    file: str
    position: int | None
    offset: int | None
    """The first offset that cannot be read."""
    what: str


class ExaminedLog(msgspec.Struct, frozen=True, kw_only=True):
    """One partition directory."""

    partition: str
    directory: str
    segments: int
    bytes: int
    start_offset: int
    """Everything before it was deleted on purpose."""
    end_offset: int
    """End of the sound part, which is before the first damage."""
    begins_at: int | None
    """The first offset that a file holds, if that is after the start: the records in between are lost."""
    promised_end: int
    """This replica had promised to keep all below it, by the checkpoints and `whole-since`; 0 if that is unknown."""
    belongs_to: str
    """The partition that its files name as owner."""
    found: tuple[LogDamage, ...]

    @property
    def damage(self) -> LogDamage | None:
        """The first damage that must be repaired before the broker starts."""
        return next((each for each in self.found if each.kind == "damaged"), None)

    @property
    def loses_what_was_promised(self) -> bool:
        """Would a cut lose promised records, or are some lost already?"""
        is_head_lost = self.begins_at is not None and self.start_offset < self.promised_end
        return is_head_lost or self.end_offset < self.promised_end

    @property
    def is_foreign(self) -> bool:
        """It is another partition's log: a broker notices that and does not use it."""
        return self.belongs_to != self.partition

    @property
    def is_missing(self) -> bool:
        """Its directory is not there."""
        return self.is_unreadable and not Path(self.directory).exists()

    @property
    def is_unreadable(self) -> bool:
        """Something in it cannot be read at all: a broker notices that, too."""
        return any(each.kind == "damaged" and each.file == self.directory for each in self.found)


def examine_directory(log_directory: Path, evidence: DirectoryEvidence) -> list[ExaminedLog]:
    """Examine every partition in a log.dir."""
    found = []
    for path in sorted(log_directory.iterdir()):
        partition = checkpoints.parse_partition_directory_name(path.name)
        if partition is not None:
            found.append(_Examination(path, partition, evidence).run())
    names = {each.partition for each in found}
    missing = sorted(each for each in evidence.listed if str(each) not in names)
    return [*found, *(_missing(log_directory, each, evidence) for each in missing)]


def _missing(log_directory: Path, partition: TopicPartition, evidence: DirectoryEvidence) -> ExaminedLog:
    """A broker that starts here reports that it had this log, and does not lead with an empty one."""
    directory = str(log_directory / checkpoints.partition_directory_name(partition))
    end = max((evidence.points or {}).get(partition, 0), evidence.high_watermarks.get(partition, 0))
    what = f"its directory is missing; its log had reached offset {end} at least"
    return ExaminedLog(
        partition=str(partition),
        directory=directory,
        segments=0,
        bytes=0,
        start_offset=0,
        end_offset=0,
        begins_at=None,
        promised_end=end,
        belongs_to=str(partition),
        found=(LogDamage(kind="damaged", file=directory, position=None, offset=None, what=what),),
    )


class _Examination:
    """The examination of one directory; its steps share what was found."""

    def __init__(self, path: Path, partition: TopicPartition, evidence: DirectoryEvidence) -> None:
        self.path = path
        self.partition = self.owner = partition
        self.evidence = evidence
        self.known = PartitionEvidence()
        self.promised_end = 0
        self.start = 0
        self.found: list[LogDamage] = []
        self.segments: list[tuple[int, Path]] = []
        self.bytes = 0
        self.end: int | None = None
        self.begins_at: int | None = None
        self.is_broken = False
        """Set at the first damage: nothing after it belongs to the sound part."""
        self.epochs: list[checkpoints.EpochEntry] = []
        self.doubtful_epoch: tuple[Path, int, int, str] | None = None
        """The first batch that contradicts the epoch history: either of them is wrong."""
        self.last_epoch: int | None = None

    def run(self) -> ExaminedLog:
        try:
            self.segments = list(list_segments(self.path))
            self._read_note()
            self.start = self._read_owner()
            self.epochs = self._read_epochs()
            self._drop_leftovers()
            self._check_head()
            for number, (base_offset, segment) in enumerate(self.segments):
                self._segment(base_offset, segment, number)
            self._check_epochs()
            self._check_end()
        except OSError as error:
            self._note("damaged", self.path, None, f"{error.filename or self.path} cannot be read: {error.strerror}")
        return ExaminedLog(
            partition=str(self.partition),
            directory=str(self.path),
            segments=len(self.segments),
            bytes=self.bytes,
            start_offset=self.start,
            end_offset=max(self.end or 0, self.start),
            begins_at=self.begins_at,
            promised_end=self.promised_end,
            belongs_to=str(self.owner),
            found=tuple(self.found),
        )

    def _note(self, kind: Kind, file: Path, position: int | None, what: str, offset: int | None = None) -> None:
        self.found.append(LogDamage(kind=kind, file=str(file), position=position, offset=offset, what=what))

    # ---------------------------------------------------------------------------------------------------- small files
    def _read_note(self) -> None:
        note = self.path / checkpoints.DAMAGE_NOTE
        try:
            text = read_small(note).decode(errors="replace").strip()
        except FileNotFoundError:
            return
        except CorruptCheckpoint as error:
            text = str(error)
        self._note("damaged", note, None, f"a broker found: {text}")

    def _read_owner(self) -> int:
        """Read the log's owner; returns the recorded start of the log."""
        found = read_owner(self.path, self.partition)
        self.owner = found.owner
        for file, why in found.foreign:
            self._note("damaged", Path(file), None, why)
        topic_id = found.metadata.topic_id if found.metadata is not None else None
        self.known = self.evidence.of(self.owner, topic_id)
        self.recorded_start: LogStart | None = found.start
        self.promised_end = self.known.promised_end(self._started_over())
        return 0 if found.start is None or found.foreign else found.start.offset

    def _read_epochs(self) -> list[checkpoints.EpochEntry]:
        try:
            return read_epochs(self.path)
        except CorruptCheckpoint as error:
            self._note("index", self.path / checkpoints.EPOCH_CHECKPOINT, None, f"is damaged: {error}")
            return []

    # ----------------------------------------------------------------------------------------------- what must be there
    def _drop_leftovers(self) -> None:
        """Note and skip the segments before a gap that lies below the log's start."""
        gaps = [
            number + 1
            for number, ((base, path), (following, _)) in enumerate(pairwise(self.segments))
            if following <= self.start and _end_of(path, base) != following
        ]
        if not gaps:
            return
        for _, path in self.segments[: gaps[-1]]:
            self._note("leftover", path, None, f"left before the log's start {self.start} by a deletion")
        self.segments = self.segments[gaps[-1] :]

    def _check_head(self) -> None:
        if self.segments:
            first = self.segments[0][0]
            if first > self.start:
                why = "no readable" if self.recorded_start is None else "its"
                what = f"the log begins at {first}, {why} {checkpoints.LOG_START} file explains only {self.start}"
                self._note("damaged", self.segments[0][1], None, what, self.start)
                self.begins_at = first
            return
        if self.known.reached > self.start and not self._started_over():
            file = self.path / checkpoints.segment_file_name(self.start)
            self._note("damaged", file, None, f"there is no segment, but the log once reached {self.known.reached}")

    def _started_over(self) -> bool:
        return self.recorded_start is not None and self.recorded_start.reason is LogStartReason.RESET

    def _check_end(self) -> None:
        """Compare the log's end with the evidence, if nothing else is damaged."""
        if self.is_broken or self.end is None:
            return
        known, last = self.known, self.segments[-1][1]
        if known.clean and self.end < (known.recovery_point or 0):
            what = f"the log ends at {self.end}, but a clean stop synced it up to {known.recovery_point}"
            self._note("damaged", last, None, what, self.end)
        elif self.end < known.high_watermark:
            what = f"the log ends at {self.end}, but it was committed up to {known.high_watermark}"
            self._note("damaged", last, None, what, self.end)
        elif self.end < self.promised_end:
            what = f"the log ends at {self.end}, but it was synced up to {self.promised_end}"
            self._note("damaged", last, None, what, self.end)

    def _check_epochs(self) -> None:
        """Decide whether a batch or the epoch history is wrong. A history that lacks the last batch's epoch is an older
        copy, which a broker rebuilds from the batches."""
        if self.doubtful_epoch is None:
            return
        path, position, offset, what = self.doubtful_epoch
        known = [epoch for epoch, start in self.epochs if self.end is None or start < self.end]
        if not self.is_broken and self.last_epoch is not None and (not known or known[-1] != self.last_epoch):
            self._note("index", self.path / checkpoints.EPOCH_CHECKPOINT, None, f"it contradicts the batches: {what}")
            return
        self.found.insert(0, LogDamage(kind="damaged", file=str(path), position=position, offset=offset, what=what))
        self.end = offset if self.end is None else min(self.end, offset)
        self.is_broken = True

    # -------------------------------------------------------------------------------------------------------- segments
    def _segment(self, base_offset: int, path: Path, number: int) -> None:
        size = path.stat().st_size
        self.bytes += size
        if self.end is not None and base_offset != self.end and not self.is_broken:
            gap = f"it begins at offset {base_offset}, but the log before it ends at {self.end}"
            self._break_at("damaged" if self._is_kept(self.end) else "torn tail", path, 0, gap, self.end)
        content = open_segment(path)
        positions: dict[int, int] = {}
        expected, epoch = base_offset, 0
        for item in walk(content):
            what: str | None = item.what if isinstance(item, SegmentProblem) else item.problem
            if isinstance(item, SegmentBatch):
                positions[item.position] = item.header.last_offset
                what = what or _misfit(item.header, expected, epoch)
            if what is not None:
                self._set_end(expected)
                is_whole = isinstance(item, SegmentBatch) and item.problem is None  # no torn write leaves one
                kind = "damaged" if is_whole else self._kind_at(content, item.position, expected)
                self._break_at(kind, path, item.position, what, expected)
                return
            assert isinstance(item, SegmentBatch)
            self._doubt_epoch(item, path)
            expected, epoch = item.header.end_offset, item.header.partition_leader_epoch
            self.last_epoch = epoch
        for problem in index_problems(path, base_offset, positions):
            self._note("index", Path(problem.file), problem.position, problem.what)
        self._set_end(expected)

    def _kind_at(self, content: Buffer, position: int, offset: int) -> Kind:
        is_torn = not self._is_kept(offset) and (not self.known.same_boot or is_cut_off(content, position))
        return "torn tail" if is_torn else "damaged"

    def _is_kept(self, offset: int) -> bool:
        """Did the record there count as stored, or is it in the page cache of a machine that has not rebooted?"""
        return self.known.clean or offset < max(self.known.kept_end(self.segments[-1][0]), self.promised_end)

    def _break_at(self, kind: Kind, path: Path, position: int, what: str, offset: int) -> None:
        self._note(kind, path, position, what, offset)
        self.is_broken = True

    def _set_end(self, offset: int) -> None:
        """Set the end of the sound part."""
        if not self.is_broken:
            self.end = offset

    def _doubt_epoch(self, batch: SegmentBatch, path: Path) -> None:
        what = wrong_epoch(batch.header, self.epochs)
        if what is not None and self.doubtful_epoch is None and not self.is_broken:
            self.doubtful_epoch = path, batch.position, batch.header.base_offset, what


def _misfit(header: BatchHeader, expected: int, epoch: int) -> str | None:
    if header.base_offset != expected:
        return f"the batch begins at offset {header.base_offset}, expected {expected}"
    if header.partition_leader_epoch < epoch:
        return f"leader epoch {header.partition_leader_epoch} after {epoch}"
    return None


def _end_of(path: Path, base_offset: int) -> int:
    """The end of the last batch of a segment that follows the one before."""
    end = base_offset
    for item in walk(open_segment(path)):
        if isinstance(item, SegmentProblem) or item.header.base_offset != end:
            break
        end = item.header.end_offset
    return end
