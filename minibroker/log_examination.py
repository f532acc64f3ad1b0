"""What is wrong in one partition's directory of a stopped broker, as the broker itself will see it at its next start.

Owns: the verdict on each file and on what is not there. Its rules are those of the broker (docs/REPLICATION.md, 11 and
12): what counted as stored and does not fit is damage, an end that never did is a torn tail, what a broker makes again
by itself is neither. It reads every batch, also those that a start does not look at. Refuses to change anything.
"""

from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from minibroker.directory_owner import read_owner
from minibroker.log_evidence import DirectoryEvidence, PartitionEvidence, read_small
from minibroker.power_loss import list_segments
from minibroker.protocol import checkpoints
from minibroker.protocol.checkpoints import CorruptCheckpoint, LogStart, LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.segment_files import (
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

Kind = Literal["damaged", "index", "torn tail", "leftover"]


class LogDamage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong in a partition's directory."""

    kind: Kind
    """damaged: records that counted as stored are not as they were written, or not there. index: made again by itself,
    once it is gone. torn tail: an end that never counted as stored; the next start cuts it. leftover: of a deletion,
    in front of the log's start; the next start removes it."""
    file: str
    position: int | None
    offset: int | None
    """The first one that cannot be read."""
    what: str


class ExaminedLog(msgspec.Struct, frozen=True, kw_only=True):
    """One partition directory."""

    partition: str
    directory: str
    segments: int
    bytes: int
    start_offset: int
    """What is in front of it was deleted on purpose."""
    end_offset: int
    """Of the sound part in front of the first damage."""
    begins_at: int | None
    """The first offset that there is a file for, where that is behind the start: what lies between is lost."""
    promised_end: int
    """Up to there this replica had promised to keep all, by the checkpoints and `whole-since`; 0: nobody knows."""
    belongs_to: str
    """The partition whose log its files say that it is."""
    found: tuple[LogDamage, ...]

    @property
    def damage(self) -> LogDamage | None:
        """The first that a broker must not be started on without a cure."""
        return next((each for each in self.found if each.kind == "damaged"), None)

    @property
    def loses_what_was_promised(self) -> bool:
        """By a cut, or by what is gone already."""
        is_headless = self.begins_at is not None and self.start_offset < self.promised_end
        return is_headless or self.end_offset < self.promised_end

    @property
    def is_foreign(self) -> bool:
        """A broker does not use it under this name, and finds out by itself."""
        return self.belongs_to != self.partition

    @property
    def is_missing(self) -> bool:
        """Its directory is not there."""
        return self.is_unreadable and not Path(self.directory).exists()

    @property
    def is_unreadable(self) -> bool:
        """Something there cannot be read at all: the broker finds that by itself, too."""
        return any(each.kind == "damaged" and each.file == self.directory for each in self.found)


def examine_directory(log_directory: Path, evidence: DirectoryEvidence) -> list[ExaminedLog]:
    """Every partition in a log.dir."""
    found = []
    for path in sorted(log_directory.iterdir()):
        partition = checkpoints.parse_partition_directory_name(path.name)
        if partition is not None:
            found.append(_Examination(path, partition, evidence).run())
    names = {each.partition for each in found}
    missing = sorted(each for each in evidence.listed if str(each) not in names)
    return [*found, *(_missing(log_directory, each, evidence) for each in missing)]


def _missing(log_directory: Path, partition: TopicPartition, evidence: DirectoryEvidence) -> ExaminedLog:
    """A broker that starts here says that it had this log, and leads nothing with an empty one."""
    directory = str(log_directory / checkpoints.partition_directory_name(partition))
    end = max((evidence.points or {}).get(partition, 0), evidence.marks.get(partition, 0))
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
    """Of one directory; its steps share what was found."""

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
        """Whether damage was met: what is behind it is no part of the sound one."""
        self.epochs: list[checkpoints.EpochEntry] = []
        self.doubtful_epoch: tuple[Path, int, int, str] | None = None
        """The first batch that contradicts the history: it is wrong, or the history is."""
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
        """Whose log it is, and where it starts by its own record."""
        said = read_owner(self.path, self.partition)
        self.owner = said.owner
        for file, why in said.foreign:
            self._note("damaged", Path(file), None, why)
        topic_id = said.metadata.topic_id if said.metadata is not None else None
        self.known = self.evidence.of(self.owner, topic_id)
        self.recorded_start: LogStart | None = said.start
        self.promised_end = self.known.promised_end(self._began_anew())
        return 0 if said.start is None or said.foreign else said.start.offset

    def _read_epochs(self) -> list[checkpoints.EpochEntry]:
        try:
            return read_epochs(self.path)
        except CorruptCheckpoint as error:
            self._note("index", self.path / checkpoints.EPOCH_CHECKPOINT, None, f"does not read as one: {error}")
            return []

    # ----------------------------------------------------------------------------------------------- what must be there
    def _drop_leftovers(self) -> None:
        """Segments in front of a gap below the log's start."""
        gaps = [
            number + 1
            for number, ((base, path), (following, _)) in enumerate(pairwise(self.segments))
            if following <= self.start and _end_of(path, base) != following
        ]
        if not gaps:
            return
        for _, path in self.segments[: gaps[-1]]:
            self._note("leftover", path, None, f"left in front of the log's start {self.start} by a deletion")
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
        if self.known.reached > self.start and not self._began_anew():
            file = self.path / checkpoints.segment_file_name(self.start)
            self._note("damaged", file, None, f"no segment is there, the log once reached to {self.known.reached}")

    def _began_anew(self) -> bool:
        return self.recorded_start is not None and self.recorded_start.reason is LogStartReason.STARTED_ANEW

    def _check_end(self) -> None:
        """Behind the last batch, where nothing else is wrong."""
        if self.is_broken or self.end is None:
            return
        known, last = self.known, self.segments[-1][1]
        if known.clean and self.end < (known.recovery_point or 0):
            what = f"the log ends at {self.end}, a clean stop synced it up to {known.recovery_point}"
            self._note("damaged", last, None, what, self.end)
        elif self.end < known.high_watermark:
            what = f"the log ends at {self.end}, its process had committed it up to {known.high_watermark}"
            self._note("damaged", last, None, what, self.end)
        elif self.end < self.promised_end:
            what = f"the log ends at {self.end}, it was synced up to {self.promised_end}"
            self._note("damaged", last, None, what, self.end)

    def _check_epochs(self) -> None:
        """The batches are the truth where the history does not know the last one's epoch: it is an older copy, and a
        broker makes it again."""
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
            gap = f"it begins at offset {base_offset}, what is in front of it ends at {self.end}"
            self._breaks_off("damaged" if self._is_kept(self.end) else "torn tail", path, 0, gap, self.end)
        content = open_segment(path)
        positions: dict[int, int] = {}
        expected, epoch = base_offset, 0
        for item in walk(content):
            what: str | None = item.what if isinstance(item, SegmentProblem) else item.problem
            if isinstance(item, SegmentBatch):
                positions[item.position] = item.header.last_offset
                what = what or _misfit(item.header, expected, epoch)
            if what is not None:
                self._ends_at(expected)
                is_whole = isinstance(item, SegmentBatch) and item.problem is None  # no write that was torn leaves one
                kind = "damaged" if is_whole else self._kind_at(content, item.position, expected)
                self._breaks_off(kind, path, item.position, what, expected)
                return
            assert isinstance(item, SegmentBatch)
            self._doubt_epoch(item, path)
            expected, epoch = item.header.end_offset, item.header.partition_leader_epoch
            self.last_epoch = epoch
        for problem in index_problems(path, base_offset, positions):
            self._note("index", Path(problem.file), problem.position, problem.what)
        self._ends_at(expected)

    def _kind_at(self, content: Buffer, position: int, offset: int) -> Kind:
        is_torn = not self._is_kept(offset) and (not self.known.ran_on or is_cut_off(content, position))
        return "torn tail" if is_torn else "damaged"

    def _is_kept(self, offset: int) -> bool:
        """Whether what lies there counted as stored, or is in the memory of a machine that has run on."""
        return self.known.clean or offset < max(self.known.kept_end(self.segments[-1][0]), self.promised_end)

    def _breaks_off(self, kind: Kind, path: Path, position: int, what: str, offset: int) -> None:
        self._note(kind, path, position, what, offset)
        self.is_broken = True

    def _ends_at(self, offset: int) -> None:
        """The sound part, as far as it goes."""
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
    """Behind the last batch of a segment whose headers fit."""
    end = base_offset
    for item in walk(open_segment(path)):
        if isinstance(item, SegmentProblem) or item.header.base_offset != end:
            break
        end = item.header.end_offset
    return end
