"""Segments that a log lacks, for `log verify`: all of them, the first ones, or some between others.

Owns: what the names of segment files, the ends of their batches and the log's start say of files that are gone. Leaves
to others: the segments that are there (`segment_files`), a tail that is gone (`log repair`, the audit).
"""

from itertools import pairwise
from pathlib import Path

from minibroker.local_cluster.power_loss import list_segments
from minibroker.offline.directory_owner import DirectoryOwner, read_owner
from minibroker.offline.log_evidence import read_evidence
from minibroker.offline.segment_files import SegmentProblem
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition


def missing_segments(
    path: Path, segments: list[Path], ends: dict[Path, int | None], boot_id: str
) -> list[SegmentProblem]:
    """What is missing under a path with these segments. `ends` has the end offset of each, None if it is doubtful;
    `boot_id` is the current one of this machine. One file alone lacks nothing."""
    if path.is_file():
        return []
    problems: list[SegmentProblem] = []
    directories = dict.fromkeys(segment.parent for segment in segments)
    for directory in directories:
        partition = checkpoints.parse_partition_directory_name(directory.absolute().name)
        owner = None if partition is None else _owner(directory, partition)
        of_log = [segment for segment in segments if segment.parent == directory]
        problems += _gaps(of_log, ends, 0 if owner is None or owner.start is None else owner.start.offset)
        problems += [] if owner is None else _lost_head(of_log[0], owner)
    parents = {directory.parent for directory in directories if directory != path}
    for log_directory in sorted(parents | {each for each in (path, *path.iterdir()) if _has_an_owner(each)}):
        problems += _empty_logs(log_directory, boot_id)
    return problems


def _has_an_owner(directory: Path) -> bool:
    """Is it the log.dir of a broker, by the file that names the broker?"""
    return (directory / checkpoints.META_PROPERTIES).exists()


def _owner(directory: Path, partition: TopicPartition) -> DirectoryOwner | None:
    try:
        return read_owner(directory, partition)
    except OSError:
        return None  # `owner_problems` names it


def _gaps(segments: list[Path], ends: dict[Path, int | None], start: int) -> list[SegmentProblem]:
    """Gaps in front of the log's start are left by a deletion that was interrupted."""
    problems = []
    for before, segment in pairwise(segments):
        end, base_offset = ends[before], _base_offset(segment)
        if end is not None and base_offset is not None and base_offset > start and end != base_offset:
            what = f"it begins at offset {base_offset}, but the log before it ends at {end}"
            problems.append(SegmentProblem(str(segment), 0, what))
    return problems


def _lost_head(first: Path, owner: DirectoryOwner) -> list[SegmentProblem]:
    base_offset = _base_offset(first)
    if owner.start is None or owner.foreign or base_offset is None or base_offset <= owner.start.offset:
        return []
    what = f"the log begins at {base_offset}, its {checkpoints.LOG_START} file explains only {owner.start.offset}"
    return [SegmentProblem(str(first), 0, what)]


def _empty_logs(log_directory: Path, boot_id: str) -> list[SegmentProblem]:
    """Logs without a segment that had records, by the checkpoints of their broker."""
    evidence = read_evidence(log_directory, boot_id)
    problems = []
    for directory in sorted(child for child in log_directory.iterdir() if child.is_dir()):
        partition = checkpoints.parse_partition_directory_name(directory.name)
        if partition is None or any(list_segments(directory)):
            continue
        owner = _owner(directory, partition)
        if owner is None or (owner.start is not None and owner.start.reason is LogStartReason.RESET):
            continue
        named = owner.metadata or owner.start
        reached = evidence.of(partition, None if named is None else named.topic_id).reached
        start = 0 if owner.start is None else owner.start.offset
        if reached > start:
            file = directory / checkpoints.segment_file_name(start)
            problems.append(SegmentProblem(str(file), 0, f"there is no segment, but the log once reached {reached}"))
    return problems


def _base_offset(segment: Path) -> int | None:
    parsed = checkpoints.parse_segment_file_name(segment.name)
    return None if parsed is None else parsed[0]
