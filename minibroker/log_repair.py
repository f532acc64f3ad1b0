"""What is damaged in the log directory of a stopped broker, and what makes its replicas take part again. Offline.

Owns: the verdict on each partition directory (`examine`) and the two cures. `mark`: a note that tells the next start
not to use the log, so that the replica fetches it anew from its leader. `cut`: for the only copy there is, keep what
lies in front of the damage and put the rest aside. Refuses to delete a record: what is taken out of a log stays in a
directory beside it. Uses the formats of protocol/ only.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Protocol

import msgspec

from minibroker.directory_owner import read_owner
from minibroker.power_loss import list_segments, read_recovery_points
from minibroker.protocol import checkpoints
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.segment_files import Batch, Problem, index_problems, open_segment, walk

CUT_DIRECTORY_SUFFIX = "-cut"
"""Of the directory that takes what was behind a cut. No broker looks at it or removes it."""

Kind = Literal["damaged", "index", "torn tail"]


class Damage(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong in a partition's directory."""

    kind: Kind
    """damaged: records that counted as stored are not as they were written. index: made again by itself, once it is
    gone. torn tail: an end that never counted as stored; the next start cuts it."""
    file: str
    position: int | None
    offset: int | None
    """The first one that cannot be read."""
    what: str


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One partition directory."""

    partition: str
    directory: str
    segments: int
    bytes: int
    end_offset: int
    """Of the sound part in front of the first damage."""
    belongs_to: str
    """The partition whose log its files say that it is."""
    found: tuple[Damage, ...]

    @property
    def damage(self) -> Damage | None:
        """The first that a broker must not be started on without a cure."""
        return next((each for each in self.found if each.kind == "damaged"), None)

    @property
    def is_foreign(self) -> bool:
        """A broker does not use it under this name, and finds out by itself."""
        return self.belongs_to != self.partition

    @property
    def is_unreadable(self) -> bool:
        return any(each.kind == "damaged" and each.file == self.directory for each in self.found)


def examine_directory(log_directory: Path) -> list[Examined]:
    """Every partition in a log.dir. Changes nothing."""
    try:
        points = read_recovery_points(log_directory)
    except (OSError, checkpoints.CorruptCheckpoint):
        points = {}
    was_clean = (log_directory / checkpoints.CLEAN_SHUTDOWN).is_file()
    found = []
    for path in sorted(log_directory.iterdir()):
        partition = checkpoints.parse_partition_directory_name(path.name)
        if partition is not None:
            found.append(_Examination(path, partition, None if was_clean else points).run())
    return found


class _Examination:
    """Of one directory. `points`: below them all counted as stored; None: all of it did."""

    def __init__(self, path: Path, partition: TopicPartition, points: Mapping[TopicPartition, int] | None) -> None:
        self.path = path
        self.partition = self.owner = partition
        self.points = points
        self.found: list[Damage] = []
        self.segments = 0
        self.bytes = 0
        self.end: int | None = None
        self.is_broken = False
        """Whether damage was met: what is behind it is no part of the sound one."""
        self.epochs = _read_epochs(path, self._note)

    def run(self) -> Examined:
        note = self.path / checkpoints.DAMAGE_NOTE
        try:
            if note.exists():
                self._note("damaged", note, None, f"a broker found: {note.read_text(errors='replace').strip()}")
            self._read_owner()
            paths = list(list_segments(self.path))
            for number, (base_offset, segment) in enumerate(paths):
                self._segment(base_offset, segment, is_last=number == len(paths) - 1)
        except OSError as error:
            self._note("damaged", self.path, None, f"cannot be read: {error}")
        return Examined(
            partition=str(self.partition),
            directory=str(self.path),
            segments=self.segments,
            bytes=self.bytes,
            end_offset=self.end or 0,
            belongs_to=str(self.owner),
            found=tuple(self.found),
        )

    def _note(self, kind: Kind, file: Path, position: int | None, what: str, offset: int | None = None) -> None:
        self.found.append(Damage(kind=kind, file=str(file), position=position, offset=offset, what=what))

    def _read_owner(self) -> None:
        found = read_owner(self.path, self.partition)
        self.owner = found.owner
        for file, why in found.foreign:
            self._note("damaged", Path(file), None, why)

    def _segment(self, base_offset: int, path: Path, is_last: bool) -> None:
        self.segments += 1
        size = path.stat().st_size
        self.bytes += size
        if self.end is not None and base_offset != self.end and not self.is_broken:
            gap = f"it begins at offset {base_offset}, what is in front of it ends at {self.end}"
            self._note("damaged", path, 0, gap, self.end)
            self.is_broken = True
        content = open_segment(path)
        positions: dict[int, int] = {}
        expected, epoch = base_offset, 0
        for item in walk(content):
            what: str | None = item.what if isinstance(item, Problem) else item.problem
            if isinstance(item, Batch):
                positions[item.position] = item.header.last_offset
                what = what or self._misfit(item.header, expected, epoch)
            if what is not None:
                is_torn = is_last and self.points is not None and expected >= self.points.get(self.owner, 0)
                self._note("torn tail" if is_torn else "damaged", path, item.position, what, expected)
                self._ends_at(expected)
                self.is_broken = True
                return
            assert isinstance(item, Batch)
            expected, epoch = item.header.end_offset, item.header.partition_leader_epoch
        for problem in index_problems(path, base_offset, positions):
            self._note("index", Path(problem.file), problem.position, problem.what)
        self._ends_at(expected)

    def _ends_at(self, offset: int) -> None:
        """The sound part, as far as it goes."""
        if not self.is_broken:
            self.end = offset

    def _misfit(self, header: BatchHeader, expected: int, epoch: int) -> str | None:
        if header.base_offset != expected:
            return f"the batch begins at offset {header.base_offset}, expected {expected}"
        if header.partition_leader_epoch < epoch:
            return f"leader epoch {header.partition_leader_epoch} after {epoch}"
        said = [known for known, start in self.epochs if start <= expected]
        if said and said[-1] != header.partition_leader_epoch:
            return f"leader epoch {header.partition_leader_epoch}, the epoch checkpoint says {said[-1]}"
        return None


class Noting(Protocol):
    def __call__(self, kind: Kind, file: Path, position: int | None, what: str) -> None: ...


def _read_epochs(path: Path, note: Noting) -> list[checkpoints.EpochEntry]:
    file = path / checkpoints.EPOCH_CHECKPOINT
    try:
        return checkpoints.parse_epoch_checkpoint(file.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, checkpoints.CorruptCheckpoint) as error:
        note("index", file, None, f"does not read as one: {error}")
        return []


# ---------------------------------------------------------------------------------------------------------------- cures
def remove_what_is_made_again(examined: Examined) -> list[str]:
    """Files of kind index: a broker makes them again from the batches. Returns what was removed."""
    removed: list[str] = []
    for each in examined.found:
        if each.kind != "index":
            continue
        file = Path(each.file)
        names = [file]
        if file.suffix in (checkpoints.INDEX_SUFFIX, checkpoints.TIME_INDEX_SUFFIX):
            names = [file.with_suffix(suffix) for suffix in (checkpoints.INDEX_SUFFIX, checkpoints.TIME_INDEX_SUFFIX)]
        for name in names:
            if name.exists():
                name.unlink()
                removed.append(str(name))
    return removed


def mark(examined: Examined) -> str:
    """Leave the note that keeps the next start from using this log: its replica fetches everything anew once another
    one leads, and keeps the damaged log until it is in sync. Returns the note's path."""
    assert examined.damage is not None
    note = Path(examined.directory) / checkpoints.DAMAGE_NOTE
    if not note.exists():
        note.write_text(f"{examined.damage.what} ({examined.damage.file}), found by minibroker log repair\n")
    return str(note)


def cut(log_directory: Path, examined: Examined) -> str:
    """Keep what lies in front of the damage, and put the rest into a directory beside the log, also a file of another
    log that says whose this is. Returns its path. What speaks of the rest, or says that nothing can be missing, is
    taken back."""
    directory, end = Path(examined.directory), examined.end_offset
    places = {each.file: each.position for each in examined.found if each.kind == "damaged" and each.position}
    rest = _free_directory(directory)
    rest.mkdir()
    for base_offset, segment in list(list_segments(directory)):
        if base_offset >= end:
            _move(segment, rest)
        elif str(segment) in places:
            shutil.copy2(segment, rest / segment.name)
            with segment.open("r+b") as file:
                file.truncate(places[str(segment)])
            _remove_indexes(segment)
    for snapshot in directory.glob(f"*{checkpoints.SNAPSHOT_SUFFIX}"):
        parsed = checkpoints.parse_segment_file_name(snapshot.name)
        if parsed is not None and parsed[0] > end:
            shutil.move(snapshot, rest / snapshot.name)
    for each in examined.found:
        if Path(each.file).name in (checkpoints.PARTITION_METADATA, checkpoints.LOG_START):
            shutil.move(each.file, rest / Path(each.file).name)
    _take_back(log_directory, directory, examined, end)
    return str(rest)


def _take_back(log_directory: Path, directory: Path, examined: Examined, end: int) -> None:
    (directory / checkpoints.DAMAGE_NOTE).unlink(missing_ok=True)
    epochs = directory / checkpoints.EPOCH_CHECKPOINT
    try:
        entries = [entry for entry in checkpoints.parse_epoch_checkpoint(epochs.read_bytes()) if entry[1] < end]
        epochs.write_bytes(checkpoints.format_epoch_checkpoint(entries))
    except (FileNotFoundError, checkpoints.CorruptCheckpoint):
        epochs.unlink(missing_ok=True)
    for mark in (log_directory / checkpoints.CLEAN_SHUTDOWN, log_directory / checkpoints.WHOLE_SINCE):
        if mark.is_file():
            mark.unlink()
    partition = checkpoints.parse_partition_directory_name(examined.partition)
    assert partition is not None
    for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.HIGH_WATERMARK_CHECKPOINT):
        file = log_directory / name
        try:
            offsets = checkpoints.parse_offset_checkpoint(file.read_bytes())
        except (OSError, checkpoints.CorruptCheckpoint):
            continue
        if offsets.get(partition, 0) > end:
            file.write_bytes(checkpoints.format_offset_checkpoint({**offsets, partition: end}))


def _move(segment: Path, target: Path) -> None:
    for suffix in (checkpoints.LOG_SUFFIX, checkpoints.INDEX_SUFFIX, checkpoints.TIME_INDEX_SUFFIX):
        file = segment.with_suffix(suffix)
        if file.exists():
            shutil.move(file, target / file.name)


def _remove_indexes(segment: Path) -> None:
    for suffix in (checkpoints.INDEX_SUFFIX, checkpoints.TIME_INDEX_SUFFIX):
        segment.with_suffix(suffix).unlink(missing_ok=True)


def _free_directory(directory: Path) -> Path:
    number = 0
    while (found := directory.with_name(f"{directory.name}.{number}{CUT_DIRECTORY_SUFFIX}")).exists():
        number += 1
    return found
