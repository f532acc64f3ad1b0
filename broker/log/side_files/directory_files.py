"""The files at the top of a log directory: its identity, the clean shutdown marker, and the two offset checkpoints.

Owns: reading and replacing them, and what a damaged one means. Leaves to others: logs.

A damaged checkpoint does not stop the broker: then all logs are scanned, no closed segment is cut, and high watermarks
are learned again from the leader or the followers.
"""

import contextlib
import logging
import posixpath
import random
from collections.abc import Callable, Mapping

import msgspec

from minibroker.broker.log.errors import LogDirectoryError
from minibroker.protocol.events.broker_events import DirectoryIdMissing, FileNotUsed
from minibroker.protocol.files.checkpoints import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    OFFSETS_FILE_BYTES_MAX,
    SMALL_FILE_BYTES_MAX,
    TEMPORARY_SUFFIX,
    TOP_FILES,
    CorruptCheckpoint,
    format_clean_shutdown,
    format_offset_checkpoint,
    parse_checkpoint_topic_ids,
    parse_clean_shutdown,
    parse_offset_checkpoint,
    parse_partition_directory_name,
)
from minibroker.protocol.files.meta_properties import MetaProperties, format_meta_properties, parse_meta_properties
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import BadEntry, Disk, DiskFull, FileMissing, FileTooLarge

logger = logging.getLogger(__name__)


def make_directory(disk: Disk, path: str) -> None:
    """With its name, and that of each parent that it makes, on stable storage: without one of them a power cut removes
    all files below it, however well they were synced."""
    made = [path]
    while not disk.exists(parent := posixpath.dirname(made[-1]) or "."):
        made.append(parent)
    disk.make_directory(path)
    for each in made:
        disk.sync_directory(posixpath.dirname(each) or ".")


def require_usable(disk: Disk, path: str) -> None:
    """Check, before anything is removed or loaded, that each entry with one of our names is a usable file. Raises
    BadEntry, which `unusable` explains to the operator."""
    for name in TOP_FILES:
        for entry in (f"{path}/{name}", f"{path}/{name}{TEMPORARY_SUFFIX}"):
            with contextlib.suppress(FileMissing):
                disk.open(entry).close()


def unusable(path: str, error: BadEntry) -> LogDirectoryError:
    """The error for an entry at the top of the directory that is no file, or not accessible to the broker."""
    return LogDirectoryError(
        f"log directory {path} cannot be used: {error}; move that entry away, or give this broker's user the right to"
        f" it, and start the broker again (it makes new files; for {META_PROPERTIES} see docs/FORMATS.md first)"
    )


def read_identity(disk: Disk, path: str, broker_id: int) -> tuple[str | None, str | None]:
    """(cluster id, directory id) of a directory that was used before; (None, None) for a fresh or damaged one. Raises
    LogDirectoryError if it belongs to another broker, before its content is compared with what ZooKeeper knows."""
    try:
        stored = parse_meta_properties(disk.read_file(f"{path}/{META_PROPERTIES}", SMALL_FILE_BYTES_MAX))
    except (FileMissing, BadEntry, CorruptCheckpoint):
        return None, None  # `read_claim` reports what is wrong with a damaged one
    _require_own_broker(stored, path, broker_id)
    return stored.cluster_id, stored.directory_id


def read_claim(disk: Disk, path: str, broker_id: int, cluster_id: str) -> MetaProperties | None:
    """The owner of the directory and the boot id of its last use; None: it has no owner yet. Raises LogDirectoryError
    if it belongs to another broker or cluster."""
    file = f"{path}/{META_PROPERTIES}"
    stored: MetaProperties | None = None
    try:
        stored = parse_meta_properties(disk.read_file(file, SMALL_FILE_BYTES_MAX))
    except FileMissing:
        pass
    except (CorruptCheckpoint, FileTooLarge) as error:
        raise LogDirectoryError(
            f"{file} is damaged ({error}): write its five lines again (docs/FORMATS.md says where each is found), or"
            " remove it: a new one is made, and these logs count for nothing until they have caught up with a leader"
        ) from None
    if stored is not None:
        _require_own(stored, path, broker_id, cluster_id)
    return stored


def claim_directory(
    disk: Disk,
    path: str,
    stored: MetaProperties | None,
    broker_id: int,
    cluster_id: str,
    rng: random.Random,
    observer: Observer,
) -> tuple[MetaProperties, bool]:
    """Claim a new directory, or renew the claim. Also returns whether the machine has run since the last use (same
    boot): then only a process ended, and written bytes are still there."""
    boot_id = disk.boot_id()
    if stored is not None:
        return msgspec.structs.replace(stored, boot_id=boot_id), stored.boot_id == boot_id
    if any(parse_partition_directory_name(name) is not None for name in disk.list_directory(path)):
        observer.notify(DirectoryIdMissing(path=f"{path}/{META_PROPERTIES}"))
    directory_id = f"{rng.getrandbits(128):032x}"
    meta = MetaProperties(broker_id=broker_id, cluster_id=cluster_id, directory_id=directory_id, boot_id=boot_id)
    disk.replace_file(f"{path}/{META_PROPERTIES}", format_meta_properties(meta))
    return meta, False


def note_boot(disk: Disk, path: str, meta: MetaProperties) -> bool:
    """Record that this boot uses the directory: after loading, so that a start that dies earlier hides no power loss.
    False if the disk has no room."""
    file = f"{path}/{META_PROPERTIES}"
    try:
        disk.replace_file(file, format_meta_properties(meta))
    except DiskFull as error:
        logger.warning("%s keeps the former boot id: %s", file, error)
        return False
    return True


def _require_own(stored: MetaProperties, path: str, broker_id: int, cluster_id: str) -> None:
    if stored.cluster_id != cluster_id:
        raise LogDirectoryError(
            f"log directory {path} belongs to cluster {stored.cluster_id}, but ZooKeeper says this is cluster"
            f" {cluster_id}: check zookeeper.connect, or give this broker another log.dirs"
        )
    _require_own_broker(stored, path, broker_id)


def _require_own_broker(stored: MetaProperties, path: str, broker_id: int) -> None:
    if stored.broker_id != broker_id:
        raise LogDirectoryError(
            f"log directory {path} belongs to broker {stored.broker_id}, not to broker {broker_id}: check broker.id,"
            " or give this broker another log.dirs"
        )


def take_clean_marker(disk: Disk, path: str, observer: Observer) -> tuple[bool, int | None]:
    """Whether the last stop was clean, and the broker epoch that it ended. The marker is durably removed before
    anything is loaded: a crash while loading must not look like a clean stop (KAFKA-10471)."""
    file = f"{path}/{CLEAN_SHUTDOWN}"
    was_clean, broker_epoch = False, None
    try:
        was_clean, broker_epoch = True, parse_clean_shutdown(disk.read_file(file, SMALL_FILE_BYTES_MAX))
    except FileMissing:
        return False, None
    except (CorruptCheckpoint, FileTooLarge) as error:
        observer.notify(FileNotUsed(path=file, reason=str(error), consequence="the stop counts as unclean"))
    disk.remove(file)
    disk.sync_directory(path)
    return was_clean, broker_epoch


def write_clean_marker(disk: Disk, path: str, broker_epoch: int | None) -> None:
    disk.replace_file(f"{path}/{CLEAN_SHUTDOWN}", format_clean_shutdown(broker_epoch))


class StoredOffsets(msgspec.Struct, frozen=True):
    """The content of one offset checkpoint."""

    offsets: dict[TopicPartition, int] = {}
    topic_ids: dict[TopicPartition, str] = {}
    """Topic ids of these partitions, as far as the checkpoint has them."""


def read_offsets(disk: Disk, path: str, name: str, observer: Observer) -> StoredOffsets | None:
    """One offset checkpoint; empty when it is missing, None when it is damaged."""
    try:
        content = disk.read_file(f"{path}/{name}", OFFSETS_FILE_BYTES_MAX)
        return StoredOffsets(parse_offset_checkpoint(content), parse_checkpoint_topic_ids(content))
    except FileMissing:
        return StoredOffsets()
    except (CorruptCheckpoint, FileTooLarge) as error:
        consequence = "the offsets in it count as unknown"
        observer.notify(FileNotUsed(path=f"{path}/{name}", reason=str(error), consequence=consequence))
        return None


def offsets_writer(
    disk: Disk,
    path: str,
    name: str,
    offsets: Mapping[TopicPartition, int],
    topic_ids: Mapping[TopicPartition, str],
) -> Callable[[], None]:
    """A function that writes one offset checkpoint, formatted now; to be called off the event loop."""
    content = format_offset_checkpoint(offsets, topic_ids)
    return lambda: disk.replace_file(f"{path}/{name}", content)
