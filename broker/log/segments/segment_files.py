"""Which files of a partition directory make up its segments.

Owns: listing and removing them. Leaves to others: their content.
"""

import logging
from collections.abc import Sequence

import msgspec

from minibroker.protocol.files.checkpoints import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TEMPORARY_SUFFIX,
    TIME_INDEX_SUFFIX,
    parse_segment_file_name,
    segment_file_name,
)
from minibroker.runtime.ports import BadEntry, Disk

logger = logging.getLogger(__name__)


class SegmentFile(msgspec.Struct):
    """One `.log` as it is found at a start."""

    base_offset: int
    path: str
    """Path of all its files, without their suffixes."""
    size: int
    digest: int | None = None
    """Of all its batches; None: not known yet."""
    last_epoch: int | None = None
    """Leader epoch of its last batch, where its tail was read."""

    def remove_indexes(self, disk: Disk) -> None:
        disk.remove(self.path + INDEX_SUFFIX)
        disk.remove(self.path + TIME_INDEX_SUFFIX)


def list_partition(disk: Disk, directory: str) -> tuple[list[SegmentFile], list[int]]:
    """The segments in rising order, and the offsets of the producer snapshots. Removes what deletions, interrupted
    writes and lost segments left behind."""
    segments: list[SegmentFile] = []
    snapshots: list[int] = []
    others: list[tuple[int, str]] = []
    for name in disk.list_directory(directory):
        parsed = parse_segment_file_name(name)
        if parsed is None:
            if name.endswith((DELETED_SUFFIX, TEMPORARY_SUFFIX)):
                disk.remove(f"{directory}/{name}")
            continue
        base_offset, suffix = parsed
        if suffix == LOG_SUFFIX:
            path = f"{directory}/{segment_file_name(base_offset, '')}"
            segments.append(SegmentFile(base_offset, path, disk.file_size(path + LOG_SUFFIX)))
        elif suffix == SNAPSHOT_SUFFIX:
            snapshots.append(base_offset)
        else:
            others.append((base_offset, name))
    bases = {segment.base_offset for segment in segments}
    for base_offset, name in others:
        if base_offset not in bases:
            disk.remove(f"{directory}/{name}")
    return segments, snapshots


def remove_files(disk: Disk, paths: Sequence[str]) -> None:
    """Remove files of deleted segments; those that cannot be removed are skipped."""
    for path in paths:
        try:
            disk.remove(path)
        except BadEntry as error:
            logger.warning("left alone: %s", error)


def remove_segment(disk: Disk, segment: SegmentFile) -> None:
    """Remove the batches first: the next start removes indexes without a `.log`."""
    disk.remove(segment.path + LOG_SUFFIX)
    segment.remove_indexes(disk)
