"""What the files at the top of a stopped broker's log.dir prove of its logs. Offline; changes nothing.

Owns: reading these small files, whatever is in their place, and what they prove of one partition. Leaves to others: the
logs themselves (`log_examination`). Uses the formats of protocol/ only.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import CorruptCheckpoint
from minibroker.protocol.files.meta_properties import parse_meta_properties
from minibroker.protocol.ids import TopicPartition

SMALL_FILE_BYTES_MAX = 64 * 1024 * 1024
"""A checkpoint of a million partitions fits; a larger file is not one."""

T = TypeVar("T")


def read_small(file: Path) -> bytes:
    """The content of a small file. Raises OSError, also for a pipe or a device, which would block; and
    CorruptCheckpoint for a file that is far too large."""
    found = file.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(file))
    if found.st_size > SMALL_FILE_BYTES_MAX:
        raise CorruptCheckpoint(f"is {found.st_size} bytes long, more than any such file")
    return file.read_bytes()


class PartitionEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a broker that starts here now knows of one partition from files outside of its directory."""

    recovery_point: int | None = 0
    """None if its checkpoint cannot be read."""
    clean: bool = False
    """The last stop was clean: the whole log was synced."""
    same_boot: bool = False
    """The process was killed but the machine has not rebooted: the kernel has all that was written."""
    high_watermark: int = 0
    """As last checkpointed, if `same_boot`; else 0, because the checkpoint may be ahead of what was synced."""
    clean_end: int = 0
    """The log end that the last clean stop recorded."""
    synced_end: int = 0
    """Everything below was once on the disk, however the broker ended: it is below both checkpoints."""

    def kept_end(self, last_base_offset: int) -> int:
        """Nothing below it counts as a torn tail. After a power loss a broker trusts the recovery point only up to the
        last segment, because a cut may have lowered it since; here damage below it is reported to the operator."""
        if self.same_boot:
            return max(last_base_offset, self.high_watermark)
        return last_base_offset if self.recovery_point is None else self.recovery_point

    @property
    def reached(self) -> int:
        """The log once ended there or later."""
        return max(self.recovery_point or 0, self.high_watermark, self.clean_end)

    def promised_end(self, started_over: bool) -> int:
        """A log that ends below it has lost records that it had promised to keep. If the log started over, the
        checkpoints may be those of the log before."""
        checkpointed = (self.recovery_point or 0) if self.clean else max(self.synced_end, self.high_watermark)
        return self.clean_end if started_over and not self.clean else max(self.clean_end, checkpointed)


class DirectoryEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of a log.dir prove."""

    points: dict[TopicPartition, int] | None
    point_topic_ids: dict[TopicPartition, str]
    high_watermarks: dict[TopicPartition, int]
    high_watermark_topic_ids: dict[TopicPartition, str]
    clean: bool
    same_boot: bool
    clean_ends: dict[TopicPartition, int]
    listed: frozenset[TopicPartition] = frozenset()
    """The logs that the last run of the broker had, by its checkpoints and `whole-since`."""

    def of(self, partition: TopicPartition, topic_id: str | None) -> PartitionEvidence:
        """What they prove of one partition. A line of a checkpoint counts only for the topic it was written for."""
        known = self.high_watermark_topic_ids.get(partition)
        is_its_own = known is not None and topic_id in (None, known)
        high_watermark = self.high_watermarks.get(partition, 0) if is_its_own else 0
        point = None if self.points is None else self.points.get(partition, 0)
        if topic_id not in (None, self.point_topic_ids.get(partition, topic_id)):
            point = 0
        return PartitionEvidence(
            recovery_point=point,
            clean=self.clean,
            same_boot=self.same_boot,
            high_watermark=high_watermark if self.same_boot else 0,
            clean_end=self.clean_ends.get(partition, 0),
            synced_end=min(point or 0, high_watermark),
        )


def read_evidence(log_directory: Path, boot_id: str) -> DirectoryEvidence:
    """`boot_id` is the current one of this machine."""

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
    high_watermarks = read(checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.parse_offset_checkpoint) or {}
    ends = whole.log_ends if whole is not None and whole.log_ends is not None else {}
    return DirectoryEvidence(
        clean_ends=ends,
        listed=frozenset([*(points or {}), *high_watermarks, *ends]),
        points=points,
        point_topic_ids=read(checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.parse_checkpoint_topic_ids) or {},
        high_watermarks=high_watermarks,
        high_watermark_topic_ids=read(checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.parse_checkpoint_topic_ids)
        or {},
        clean=clean,
        same_boot=not clean and meta is not None and meta.boot_id == boot_id,
    )
