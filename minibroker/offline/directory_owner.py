"""The owner of the log in a partition's directory, read offline from the two files that name it.

Owns: what `log dump`, `log verify` and `log repair` report of a directory that was put in another one's place. Uses the
formats of protocol/ only. It moves nothing: the files name where a log came from, but the operator must decide.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from minibroker.offline.log_evidence import read_small
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import CorruptCheckpoint, LogStart, OtherVersion
from minibroker.protocol.files.partition_metadata import PartitionMetadata, belongs_elsewhere, parse_partition_metadata
from minibroker.protocol.ids import TopicPartition

T = TypeVar("T")


class DirectoryOwner(msgspec.Struct, frozen=True, kw_only=True):
    """What the files of one directory name as owner."""

    foreign: tuple[tuple[str, str], ...]
    """(file, why) of files that keep a broker from using the directory under its name."""
    unreadable: tuple[tuple[str, str], ...]
    """(file, why) of files that name no owner; the other file is enough for a broker."""
    owner: TopicPartition
    """The partition that the files agree on; else the one that the directory is named after."""
    metadata: PartitionMetadata | None
    start: LogStart | None


def read_owner(directory: Path, partition: TopicPartition) -> DirectoryOwner:
    """Read the owner of a directory that is named after the partition. Raises OSError."""
    unreadable: list[tuple[str, str]] = []
    versions: list[tuple[str, str]] = []

    def read(name: str, parse: Callable[[bytes], T]) -> T | None:
        file = directory / name
        try:
            return parse(read_small(file))
        except FileNotFoundError:
            return None
        except CorruptCheckpoint as error:
            (versions if isinstance(error, OtherVersion) else unreadable).append((str(file), str(error)))
            return None

    metadata = read(checkpoints.PARTITION_METADATA, parse_partition_metadata)
    start = read(checkpoints.LOG_START, lambda content: checkpoints.parse_log_start(content)[0])
    foreign = list(_foreign(directory, partition, metadata, start))
    named = {(claim.topic_id, claim.partition) for claim in (metadata, start) if claim is not None}
    (unreadable if named else foreign).extend(versions)
    numbers = {number for _, number in named}
    owner = TopicPartition(partition.topic, numbers.pop()) if len(numbers) == 1 else partition
    return DirectoryOwner(
        foreign=tuple(foreign), unreadable=tuple(unreadable), owner=owner, metadata=metadata, start=start
    )


def _foreign(
    directory: Path, partition: TopicPartition, metadata: PartitionMetadata | None, start: LogStart | None
) -> list[tuple[str, str]]:
    files = (
        (checkpoints.PARTITION_METADATA, belongs_elsewhere(partition.partition, metadata, None)),
        (checkpoints.LOG_START, belongs_elsewhere(partition.partition, None, start)),
    )
    found = [(str(directory / name), why) for name, why in files if why is not None]
    if not found and metadata is not None and start is not None and metadata.topic_id != start.topic_id:
        why = f"{checkpoints.LOG_START} is of topic id {start.topic_id}, {checkpoints.PARTITION_METADATA} of"
        found.append((str(directory / checkpoints.LOG_START), f"{why} {metadata.topic_id}"))
    return found
