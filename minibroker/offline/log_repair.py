"""Repairs of what `log_examination` finds in the log directory of a stopped broker. Offline.

Owns: two repairs. `write_damage_note` leaves a note by which the next start does not use the log, so that the replica
fetches it again from its leader. `cut` is for the only copy: it keeps what is before the damage, records that a lost
head is gone, and puts the rest aside. No record is deleted: what is taken out of a log stays in a directory next to it.
Uses the formats of protocol/ only.
"""

import shutil
from pathlib import Path

from minibroker.local_cluster.power_loss import list_segments
from minibroker.offline.directory_owner import read_owner
from minibroker.offline.log_evidence import read_small
from minibroker.offline.log_examination import ExaminedLog
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import LogStart, LogStartReason
from minibroker.protocol.ids import TopicPartition

CUT_DIRECTORY_SUFFIX = "-cut"
"""Of the directory that takes what was after a cut. No broker reads it or removes it."""


class CannotCut(Exception):
    """A cut is not possible; the message says why."""


def remove_rebuildable_files(examined: ExaminedLog) -> list[str]:
    """Remove files of kind index, which a broker rebuilds from the batches. Returns what was removed."""
    removed: list[str] = []
    for each in examined.found:
        if each.kind != "index":
            continue
        file = Path(each.file)
        names = [file]
        if file.suffix in (checkpoints.INDEX_SUFFIX, checkpoints.TIME_INDEX_SUFFIX):
            names = [file.with_suffix(suffix) for suffix in (checkpoints.INDEX_SUFFIX, checkpoints.TIME_INDEX_SUFFIX)]
        for name in names:
            if name.is_file():
                name.unlink()
                removed.append(str(name))
    return removed


def write_damage_note(examined: ExaminedLog) -> str:
    """Leave the note that keeps the next start from using this log: the replica fetches everything again once another
    replica leads, and keeps the damaged log until it is in sync. Returns the note's path."""
    assert examined.damage is not None
    note = Path(examined.directory) / checkpoints.DAMAGE_NOTE
    if not note.exists():
        note.write_text(f"{examined.damage.what} ({examined.damage.file}), found by minibroker log repair\n")
    return str(note)


def cut(log_directory: Path, examined: ExaminedLog) -> str:
    """Keep what is before the damage, and move the rest into a directory next to the log, including a wrong file that
    names the owner. Corrects the checkpoints, and removes what claims that nothing can be missing. Returns the
    directory's path. Raises CannotCut."""
    directory, end = Path(examined.directory), examined.end_offset
    start = _recorded_start(directory, examined)
    places: dict[str, int] = {}
    for each in examined.found:
        if each.kind == "damaged" and each.position:
            places[each.file] = min(each.position, places.get(each.file, each.position))
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
    if start is not None:
        _write_start(directory, rest, start)
    _correct_checkpoints(log_directory, directory, examined, end)
    return str(rest)


def _recorded_start(directory: Path, examined: ExaminedLog) -> LogStart | None:
    """The log start that will explain the lost head; None if the head is not lost."""
    if examined.begins_at is None:
        return None
    partition = _partition_of(examined)
    found = read_owner(directory, partition)
    claims = [claim for claim in (found.metadata, found.start) if claim is not None]
    own = next((claim.topic_id for claim in claims if claim.partition == partition.partition), None)
    if own is None:
        raise CannotCut(f"{examined.partition}: no file names its topic id, so its new start cannot be recorded")
    return LogStart(topic_id=own, partition=partition.partition, offset=examined.begins_at, reason=LogStartReason.TRIM)


def _write_start(directory: Path, rest: Path, start: LogStart) -> None:
    file = directory / checkpoints.LOG_START
    if file.exists():
        shutil.move(file, rest / file.name)
    empty_slot = b"\n" * checkpoints.LOG_START_SLOT_BYTES
    file.write_bytes(checkpoints.format_log_start(start) + empty_slot)


def _partition_of(examined: ExaminedLog) -> TopicPartition:
    partition = checkpoints.parse_partition_directory_name(examined.partition)
    assert partition is not None
    return partition


def _correct_checkpoints(log_directory: Path, directory: Path, examined: ExaminedLog, end: int) -> None:
    (directory / checkpoints.DAMAGE_NOTE).unlink(missing_ok=True)
    epochs = directory / checkpoints.EPOCH_CHECKPOINT
    try:
        entries, owner = checkpoints.parse_epochs_and_owner(read_small(epochs))
        kept = [entry for entry in entries if entry[1] < end]
        epochs.write_bytes(checkpoints.format_epoch_checkpoint(kept, owner))
    except (FileNotFoundError, checkpoints.CorruptCheckpoint):
        epochs.unlink(missing_ok=True)
    for claim in (log_directory / checkpoints.CLEAN_SHUTDOWN, log_directory / checkpoints.WHOLE_SINCE):
        if claim.is_file():
            claim.unlink()
    partition = _partition_of(examined)
    for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.HIGH_WATERMARK_CHECKPOINT):
        file = log_directory / name
        try:
            content = read_small(file)
            offsets, ids = checkpoints.parse_offset_checkpoint(content), checkpoints.parse_checkpoint_topic_ids(content)
        except (OSError, checkpoints.CorruptCheckpoint):
            continue
        if offsets.get(partition, 0) > end:
            file.write_bytes(checkpoints.format_offset_checkpoint({**offsets, partition: end}, ids))


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
