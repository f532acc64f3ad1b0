"""Sound batches from a damaged log that was set aside.

Owns: reading such a directory with all checks of a read, writing nothing. Leaves to others: whether a batch belongs in
the new log; the follower treats it like a batch from its leader, and the leader compares the histories at the next
fetch.

Theory: two copies may have rotted at different places; then each has what the other lacks, though neither is sound. The
same offset and epoch mean the same bytes (I16), whichever copy they are read from.
"""

import logging

from minibroker.broker.log.directory_health import DirectoryHealth
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.segments.segment import ENDLESS, Segment
from minibroker.broker.log.side_files.epoch_file import read_epoch_file
from minibroker.protocol.files.checkpoints import LOG_SUFFIX, parse_segment_file_name, segment_file_name
from minibroker.runtime.ports import DiskError

logger = logging.getLogger(__name__)


def read_set_aside(
    health: DirectoryHealth, directory: str, offset: int, max_bytes: int, interval: int
) -> memoryview | None:
    """Whole batches that begin exactly at `offset`; None if this copy has no sound ones there."""
    disk = health.disk
    try:
        parsed = [parse_segment_file_name(name) for name in disk.list_directory(directory)]
        bases = [found[0] for found in parsed if found is not None and found[1] == LOG_SUFFIX and found[0] <= offset]
        epochs = read_epoch_file(disk, directory, [])
        if not bases or not epochs or offset < epochs[0][1]:
            return None
        size = disk.file_size(f"{directory}/{segment_file_name(bases[-1])}")
        segment = Segment(health, directory, bases[-1], size, interval)
        try:
            found = segment.read(offset, max_bytes, ENDLESS, epochs) if size else None
        finally:
            segment.close()
    except (CorruptLog, DiskError) as error:
        logger.info("nothing at offset %d in %s: %s", offset, directory, error)
        return None
    return found[0] if found is not None and found[1] == offset else None
