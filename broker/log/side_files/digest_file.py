"""`digests`: the digests of a partition's segments, so that a start need not read the segments for them.

Owns: when the file is written, and what of it is believed. Leaves to others: comparing it with the segments, which the
scrubber does.

Theory: an entry is believed for a segment that recovery does not read, if the segment ends where the entry says, with a
batch of the epoch that it names: an older file may be of other batches with the same end, which a truncation has
removed, but offset and epoch of a batch fix all in front of it. Only the last segment may have changed since its entry
was written, and that one is read after an unclean stop. The file is written again before a new segment begins. After a
recovery or a cut it is synced before the recovery point rises, so no power cut combines an older file with newer
segments that are not read.
"""

import contextlib
import logging

from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import CorruptCheckpoint
from minibroker.protocol.files.segment_digests import (
    DIGESTS,
    DIGESTS_FILE_BYTES_MAX,
    SegmentDigests,
    format_segment_digests,
    parse_segment_digests,
)
from minibroker.runtime.ports import BadEntry, Disk, DiskFull, FileMissing, FileTooLarge, OutOfDescriptors

logger = logging.getLogger(__name__)


def read_digests(
    disk: Disk, directory: str, topic_id: str | None, partition: int, found: list[FileNotUsed]
) -> dict[int, tuple[int, int, int]]:
    """(end offset, last leader epoch, digest) by base offset; empty for a missing, damaged or foreign file: digests are
    unknown then. `found` gets an event for a file that is not used."""
    path = f"{directory}/{DIGESTS}"
    try:
        stored = parse_segment_digests(disk.read_file(path, DIGESTS_FILE_BYTES_MAX))
    except (FileMissing, BadEntry):
        return {}
    except (CorruptCheckpoint, FileTooLarge) as error:
        found.append(_not_used(path, str(error)))
        return {}
    if (stored.topic_id, stored.partition) != (topic_id, partition):
        found.append(_not_used(path, "it is of another partition"))
        return {}
    return dict(stored.segments)


def _not_used(path: str, reason: str) -> FileNotUsed:
    return FileNotUsed(path=path, reason=reason, consequence="the digests are computed from the segments")


def write_digests(disk: Disk, directory: str, digests: SegmentDigests) -> str | None:
    """Write the file, not synced; returns its path, or None if there is no room or no descriptor for it. Raises
    DiskError."""
    path = f"{directory}/{DIGESTS}"
    try:
        disk.replace_file(path, format_segment_digests(digests), sync=False)
        return path
    except (DiskFull, OutOfDescriptors, BadEntry) as error:  # an older file must not stay
        logger.warning("%s is not written: %s", path, error)
        with contextlib.suppress(BadEntry):
            disk.remove(path)
    return None
