"""`partition.metadata`, and the owner of the log in a partition's directory by its files (docs/FORMATS.md). Pure.

Owns: the text of the file, and what it and `log-start` name together. Leaves to others: reading files and consequences.

Nothing in a batch, an index or an epoch history names a partition. Two files of the directory do: without them a
directory that was put in the place of another one would be served as that partition's log.
"""

import re

import msgspec

from minibroker.protocol.files.checkpoints import (
    LOG_START,
    PARTITION_METADATA,
    CorruptCheckpoint,
    LogStart,
    require_version,
    text_under_checksum,
    with_checksum,
)

VERSION = 1
_METADATA = re.compile(rf"version: {VERSION}\ntopic_id: ([A-Za-z0-9_-]{{1,64}})\npartition: (0|[1-9][0-9]{{0,9}})\n")
_VERSION_0 = re.compile(rb"version: 0\ntopic_id: [A-Za-z0-9_-]{1,64}\n")
"""It had no checksum."""


class PartitionMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a directory."""

    topic_id: str
    partition: int


def format_partition_metadata(metadata: PartitionMetadata) -> bytes:
    return with_checksum(f"version: {VERSION}\ntopic_id: {metadata.topic_id}\npartition: {metadata.partition}\n")


def parse_partition_metadata(content: bytes) -> PartitionMetadata:
    """Raises CorruptCheckpoint, of a sound file of another version OtherVersion."""
    if _VERSION_0.fullmatch(content):
        require_version(PARTITION_METADATA, content.decode(), VERSION)
    text = text_under_checksum(content)
    match = _METADATA.fullmatch(text)
    if match is None:
        require_version(PARTITION_METADATA, text, VERSION)
        raise CorruptCheckpoint(f"not a {PARTITION_METADATA}: {text!r:.200}")
    return PartitionMetadata(topic_id=match[1], partition=int(match[2]))


Claim = PartitionMetadata | LogStart
"""Each names a topic id and a partition."""


def belongs_elsewhere(partition: int, metadata: PartitionMetadata | None, start: LogStart | None) -> str | None:
    """Why the directory of this partition holds another one's log, in words; None if no file shows that. A file that is
    missing or cannot be parsed (None) proves nothing."""
    for name, claim in ((PARTITION_METADATA, metadata), (LOG_START, start)):
        if claim is not None and claim.partition != partition:
            owner = f"partition {claim.partition} of topic id {claim.topic_id}"
            return f"{name} is of {owner}, in the directory of partition {partition}"
    return None
