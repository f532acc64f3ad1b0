"""What stands at the top of a stopped broker's log.dir and says what its logs must hold. Offline; changes nothing.

Owns: reading the small files of a log.dir whatever lies in their place, and what they prove of one partition. Refuses
to look into a log (`log_examination`). Uses the formats of protocol/ only.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from minibroker.protocol import checkpoints
from minibroker.protocol.checkpoints import CorruptCheckpoint
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.meta_properties import parse_meta_properties

SMALL_FILE_BYTES_MAX = 64 * 1024 * 1024
"""A checkpoint of a million partitions fits; what is larger is none."""

T = TypeVar("T")


def read_small(file: Path) -> bytes:
    """The content of a small file. Raises OSError, also for a pipe or a device, which would keep us waiting; and
    CorruptCheckpoint for one that is far too large."""
    found = file.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(file))
    if found.st_size > SMALL_FILE_BYTES_MAX:
        raise CorruptCheckpoint(f"is {found.st_size} bytes long, more than any such file")
    return file.read_bytes()


class PartitionEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Of one partition: what a broker that starts here now knows from outside of its directory."""

    recovery_point: int | None = 0
    """None: its checkpoint cannot be read."""
    clean: bool = False
    """The last stop was clean: all of it was synced."""
    ran_on: bool = False
    """The process was killed, and the machine has run on: the kernel has all that was written."""
    high_watermark: int = 0
    """As it was last written down, where the machine has run on; else it may be ahead of what was synced."""
    clean_end: int = 0
    """Where the last clean stop wrote that the log ends."""
    synced_end: int = 0
    """All below was on the disk once, however the broker ended: it lies below both checkpoints."""

    def kept_end(self, last_base_offset: int) -> int:
        """Below it nothing is a torn tail. After a power cut a broker believes the recovery point only up to the last
        segment, for a cut may have lowered it since; a person who looks should hear of what lies below it."""
        if self.ran_on:
            return max(last_base_offset, self.high_watermark)
        return last_base_offset if self.recovery_point is None else self.recovery_point

    @property
    def reached(self) -> int:
        """Where the log ended at least, once."""
        return max(self.recovery_point or 0, self.high_watermark, self.clean_end)

    def promised_end(self, began_anew: bool) -> int:
        """Who ends below it has lost what it had promised to keep. What the checkpoints say may be of the log in whose
        place this one began anew."""
        checkpointed = (self.recovery_point or 0) if self.clean else max(self.synced_end, self.high_watermark)
        return self.clean_end if began_anew and not self.clean else max(self.clean_end, checkpointed)


class DirectoryEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Of a log.dir."""

    points: dict[TopicPartition, int] | None
    point_topic_ids: dict[TopicPartition, str]
    marks: dict[TopicPartition, int]
    mark_topic_ids: dict[TopicPartition, str]
    clean: bool
    ran_on: bool
    clean_ends: dict[TopicPartition, int]
    listed: frozenset[TopicPartition] = frozenset()
    """The logs that the last run of the broker had, by its checkpoints and `whole-since`."""

    def of(self, partition: TopicPartition, topic_id: str | None) -> PartitionEvidence:
        """A line counts for the topic that it was written for."""
        known = self.mark_topic_ids.get(partition)
        is_its_own = known is not None and topic_id in (None, known)
        mark = self.marks.get(partition, 0) if is_its_own else 0
        point = None if self.points is None else self.points.get(partition, 0)
        if topic_id not in (None, self.point_topic_ids.get(partition, topic_id)):
            point = 0
        return PartitionEvidence(
            recovery_point=point,
            clean=self.clean,
            ran_on=self.ran_on,
            high_watermark=mark if self.ran_on else 0,
            clean_end=self.clean_ends.get(partition, 0),
            synced_end=min(point or 0, mark),
        )


def read_evidence(log_directory: Path, boot_id: str) -> DirectoryEvidence:
    """`boot_id`: of this machine, as it runs now."""

    def read(name: str, parse: Callable[[bytes], T]) -> T | None:
        try:
            return parse(read_small(log_directory / name))
        except (OSError, CorruptCheckpoint):
            return None

    points = read(checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.parse_offset_checkpoint)
    if points is None and not (log_directory / checkpoints.RECOVERY_POINT_CHECKPOINT).exists():
        points = {}
    meta = read(checkpoints.META_PROPERTIES, parse_meta_properties)
    clean = read(checkpoints.CLEAN_SHUTDOWN, lambda content: (checkpoints.parse_clean_shutdown(content),)) is not None
    whole = read(checkpoints.WHOLE_SINCE, checkpoints.parse_whole_since)
    marks = read(checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.parse_offset_checkpoint) or {}
    ends = whole.log_ends if whole is not None and whole.log_ends is not None else {}
    return DirectoryEvidence(
        clean_ends=ends,
        listed=frozenset([*(points or {}), *marks, *ends]),
        points=points,
        point_topic_ids=read(checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.parse_checkpoint_topic_ids) or {},
        marks=marks,
        mark_topic_ids=read(checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.parse_checkpoint_topic_ids) or {},
        clean=clean,
        ran_on=not clean and meta is not None and meta.boot_id == boot_id,
    )
