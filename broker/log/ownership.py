"""Which partition a directory belongs to, according to `partition.metadata` and `log-start`.

Source: replication rules, section 11.
Owns: reading the two files, and recognising a directory of another partition. Leaves to others: what happens to such a
replica; it is damaged, like any other with files that cannot be its own.

Theory: two partitions of one topic look alike. Their batches, indexes and epochs may fit each other's names and
history, so a log in the wrong directory would be served, and its log start would delete records on all replicas. Only
these two files show the mistake. Both are on the disk before anything counts as synced. They are read before anything
else is believed, because a wrong log start makes a load remove files.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from minibroker.broker.log.errors import LogDirectoryError
from minibroker.broker.log.loaded_log import LoadContext, LoadedLog, unreadable_log
from minibroker.broker.log.recovery import load_log
from minibroker.broker.log.side_files.damage_note import read_damage_note, replace_damage_note
from minibroker.protocol.events.broker_events import FileNotUsed
from minibroker.protocol.files.checkpoints import (
    LOG_START,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SMALL_FILE_BYTES_MAX,
    CorruptCheckpoint,
    LogStart,
    OtherVersion,
    parse_log_start,
)
from minibroker.protocol.files.partition_metadata import (
    PartitionMetadata,
    belongs_elsewhere,
    format_partition_metadata,
    parse_partition_metadata,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, Disk, DiskError, DiskFull, FileMissing, FileTooLarge

logger = logging.getLogger(__name__)
T = TypeVar("T")


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the two files of a directory; None: missing or unreadable."""

    metadata: PartitionMetadata | None
    start: LogStart | None
    why_no_metadata: str
    """Why `metadata` is None."""
    other_version: str | None
    """Why a sound file cannot be read."""

    @property
    def owners(self) -> set[tuple[str, int]]:
        """(topic id, partition), as each file names them."""
        return {(claim.topic_id, claim.partition) for claim in (self.metadata, self.start) if claim is not None}


def read_claims(disk: Disk, directory: str) -> Claims:
    """Raises BadEntry, DiskError."""
    metadata, why_not = _read(disk, f"{directory}/{PARTITION_METADATA}", parse_partition_metadata)
    start, why_no_start = _read(disk, f"{directory}/{LOG_START}", lambda content: parse_log_start(content)[0])
    other = next((str(error) for error in (why_not, why_no_start) if isinstance(error, OtherVersion)), None)
    return Claims(metadata=metadata, start=start, why_no_metadata=str(why_not), other_version=other)


def _read(disk: Disk, path: str, parse: Callable[[bytes], T]) -> tuple[T | None, Exception | None]:
    try:
        return parse(disk.read_file(path, SMALL_FILE_BYTES_MAX)), None
    except (FileMissing, CorruptCheckpoint, FileTooLarge) as error:
        return None, error


def why_foreign(claims: Claims, partition: TopicPartition) -> str | None:
    """Why a directory with these files cannot belong to the partition; None if nothing contradicts it."""
    metadata, start = claims.metadata, claims.start
    elsewhere = belongs_elsewhere(partition.partition, metadata, start)
    if elsewhere is not None:
        return elsewhere
    if metadata is not None and start is not None and metadata.topic_id != start.topic_id:
        return f"{PARTITION_METADATA} says topic {metadata.topic_id}, {LOG_START} says topic {start.topic_id}"
    return claims.other_version if not claims.owners else None


def named_owner(disk: Disk, directory: str, partition: TopicPartition) -> TopicPartition:
    """The partition under which to keep a log found in this partition's directory: another one of the topic, if the
    files name only that one."""
    try:
        owners = read_claims(disk, directory).owners
    except BadEntry:
        return partition
    if len(owners) != 1:
        return partition
    [(_, number)] = owners
    return TopicPartition(partition.topic, number)


def may_be_of(disk: Disk, directory: str, topic_id: str | None, partition: TopicPartition) -> bool:
    """Whether no file there names another topic or partition."""
    try:
        return read_claims(disk, directory).owners <= {(topic_id or "", partition.partition)}
    except DiskError:
        return False


def is_blank(disk: Disk, directory: str, topic_id: str, partition: TopicPartition) -> bool:
    """Whether a new log may begin there: no batches, and no file names another topic or partition. A link without a
    target counts as blank: creating the directory reports it. Raises DiskError."""
    try:
        names = disk.list_directory(directory)
        has_batches = any(name.endswith(LOG_SUFFIX) and disk.file_size(f"{directory}/{name}") for name in names)
    except FileMissing:
        return True
    try:
        return not has_batches and read_claims(disk, directory).owners <= {(topic_id, partition.partition)}
    except BadEntry:
        return False


def load_own_log(
    disk: Disk,
    directory: str,
    partition: TopicPartition,
    context_of: Callable[[str | None], LoadContext],
    *,
    named_elsewhere: str | None,
    index_interval_bytes: int,
) -> tuple[LoadedLog, str | None]:
    """Load a partition's directory. Returns the log, and its topic id if known. `context_of`: what the log directory
    knows of this partition of that topic. `named_elsewhere`: the topic id that the checkpoints have for it. An unusable
    directory stops this partition, not the broker: the log is then damaged, and nothing in it is changed."""
    topic_id: str | None = None
    try:
        claims = read_claims(disk, directory)
        foreign = why_foreign(claims, partition)
        if foreign is not None:
            return unreadable_log(disk, directory, foreign), None
        topic_id, found = _settled_topic_id(disk, directory, partition, claims, named_elsewhere)
        noted = read_damage_note(disk, directory)
        number = partition.partition
        context = msgspec.structs.replace(context_of(topic_id), damage=noted, topic_id=topic_id, partition=number)
        loaded = load_log(disk, directory, context, index_interval_bytes=index_interval_bytes)
        loaded.report.found = found + loaded.report.found
        if topic_id is None and loaded.damage is None and (context.same_boot or context.clean):
            loaded.damage = _why_nameless(loaded)
        if loaded.damage is not None and noted is None:
            _note_damage(disk, directory, loaded.damage)
    except (BadEntry, FileMissing) as error:  # stops this partition, not the broker
        loaded = unreadable_log(disk, directory, str(error))
    return loaded, topic_id


def _note_damage(disk: Disk, directory: str, reason: str) -> None:
    """Note the damage before its proofs are overwritten: checkpoints, the clean marker, `whole-since`."""
    try:
        replace_damage_note(disk, directory, reason)
    except DiskFull as error:
        raise LogDirectoryError(
            f"{directory} is damaged ({reason}), and there is no room to write that down ({error}): free some space"
        ) from None


def _why_nameless(loaded: LoadedLog) -> str | None:
    """Its owner is written before its first batch: without a power cut no log with batches lacks both files."""
    return f"neither {PARTITION_METADATA} nor {LOG_START} names its owner" if loaded.has_batches else None


def _settled_topic_id(
    disk: Disk, directory: str, partition: TopicPartition, claims: Claims, named_elsewhere: str | None
) -> tuple[str | None, list[FileNotUsed]]:
    """The topic id from either file, or else from the checkpoints, and what is to be reported. If none names one (a
    power cut right after creation), nothing of the log was ever synced: an empty one goes to the next topic of this
    name."""
    if claims.metadata is not None:
        return claims.metadata.topic_id, []
    topic_id = claims.start.topic_id if claims.start is not None else named_elsewhere
    consequence = f"the topic id is {topic_id}, by another file" if topic_id else "no other file names its topic"
    path = f"{directory}/{PARTITION_METADATA}"
    found: list[FileNotUsed] = [FileNotUsed(path=path, reason=claims.why_no_metadata, consequence=consequence)]
    if topic_id is None:
        return None, found
    metadata = PartitionMetadata(topic_id=topic_id, partition=partition.partition)
    try:
        disk.replace_file(path, format_partition_metadata(metadata))
    except DiskFull as error:
        logger.warning("%s stays without %s: %s", directory, PARTITION_METADATA, error)
    return metadata.topic_id, found
