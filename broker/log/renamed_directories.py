"""Directories of partitions that have another name now: of deleted logs, to be removed, and of damaged ones, set aside.

Owns: their names, the sync of these names, their removal, and reads from those set aside. Leaves to others: which log
is deleted or damaged, and when a copy set aside is no longer needed.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial

from minibroker.broker.log import ownership
from minibroker.broker.log.directory_health import DirectoryHealth
from minibroker.broker.log.side_files.set_aside import read_set_aside
from minibroker.protocol.files.checkpoints import (
    damaged_directory_name,
    is_deleted_directory_name,
    parse_damaged_directory_name,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, DiskError, FileMissing, OutOfDescriptors

logger = logging.getLogger(__name__)

NAME_CHARACTERS_MAX = 255
"""The file system's limit."""
TOPIC_CHARACTERS_KEPT = 200
"""In the name of a directory that would be longer with its suffix. The next start does not find the partition of a
damaged log under such a name, so names are cut only where they must be."""


class RenamedDirectories:
    """Those of one log directory."""

    def __init__(self, health: DirectoryHealth) -> None:
        self._health = health
        self._disk = health.disk
        self._path = health.path
        self.to_remove: list[str] = []
        """Paths."""
        self.set_aside: dict[TopicPartition, list[str]] = {}
        """Paths by the partition whose log they hold."""
        self._names_unsynced = False

    def adopt(self, name: str) -> None:
        """Take over a directory that an earlier start renamed, if this is the name of one."""
        if is_deleted_directory_name(name):
            self.to_remove.append(f"{self._path}/{name}")
        elif (owner := parse_damaged_directory_name(name)) is not None:
            self.set_aside.setdefault(owner, []).append(f"{self._path}/{name}")

    def rename(self, directory: str, owner: TopicPartition, name: Callable[[TopicPartition, str], str]) -> str | None:
        """The new path; None if the directory is gone already. Raises DiskError."""
        try:
            target = self._free_name(owner, name)
            self._disk.rename(directory, target)
        except DiskError as error:
            self._health.record_error(error)
            if self._health.offline or not isinstance(error, FileMissing):
                raise
            return None
        return target

    def keep(self, path: str, partition: TopicPartition, owner: TopicPartition, what: str) -> None:
        """Keep a renamed directory, found as this partition's, until its owner is in sync."""
        self.set_aside.setdefault(owner, []).append(path)
        logger.warning("%s: %s is set aside in %s", partition, what, path)

    def set_aside_stray(self, directory: str, topic_id: str, partition: TopicPartition) -> None:
        """A new log begins empty. What lies in its place was put there while the broker ran (those of the start have
        logs): a backup, an earlier topic's log, or another partition's. No start has compared it with anything, so it
        is not used, whatever it names. What a failed creation left behind has no batches. Raises DiskError."""
        if not self._disk.exists(directory) or ownership.is_blank(self._disk, directory, topic_id, partition):
            return
        owner = ownership.named_owner(self._disk, directory, partition)
        target = self.rename(directory, owner, damaged_directory_name)
        if target is not None:
            self.keep(target, partition, owner, "a directory that was put there while the broker ran")
            self.sync_names()

    def _free_name(self, partition: TopicPartition, name: Callable[[TopicPartition, str], str]) -> str:
        short = TopicPartition(partition.topic[:TOPIC_CHARACTERS_KEPT], partition.partition)
        kept = partition if len(name(partition, "999")) <= NAME_CHARACTERS_MAX else short
        number = 0
        while self._disk.exists(f"{self._path}/{name(kept, str(number))}"):
            number += 1
        return f"{self._path}/{name(kept, str(number))}"

    def sync_names(self) -> None:
        """Sync the names of the partitions' directories; without a free file descriptor that stays due."""
        try:
            self._disk.sync_directory(self._path)
            self._names_unsynced = False
        except OutOfDescriptors:
            self._names_unsynced = True
        except DiskError as error:
            self._health.own_file_failed(error)
            raise

    def sync_names_if_due(self) -> None:
        if self._names_unsynced:
            self.sync_names()

    def read_set_aside(
        self, partition: TopicPartition, topic_id: str | None, offset: int, max_bytes: int, interval_bytes: int
    ) -> memoryview | None:
        """Sound batches from `offset` on; None if no copy of this partition has any."""
        for path in self.set_aside.get(partition, ()):
            if not ownership.may_be_of(self._disk, path, topic_id, partition):
                continue
            found = read_set_aside(self._health, path, offset, max_bytes, interval_bytes)
            if found is not None:
                return found
        return None

    def remove_set_aside(self, partition: TopicPartition, topic_id: str) -> bool:
        """Let `remove` remove them; False if there are none. With a topic id only those that name it: another topic's
        may be the last copy of its log. Raises DiskError."""
        found = self.set_aside.get(partition, [])
        if topic_id:
            owner = {(topic_id, partition.partition)}
            found = [path for path in found if ownership.read_claims(self._disk, path).owners == owner]
        left = [path for path in self.set_aside.pop(partition, []) if path not in found]
        if left:
            self.set_aside[partition] = left
        self.to_remove += found
        return bool(found)

    async def remove(self, paths: Sequence[str]) -> None:
        """Remove these of what is to be removed, if their new names are synced."""
        for path in reversed(paths):
            if self._names_unsynced or self._health.offline:
                return
            try:
                linked = await self._disk.in_background(partial(self._disk.remove_tree, path))
                if linked is not None:
                    logger.warning("%s was a link and is removed; its target is left alone: %s", path, linked)
            except BadEntry as error:
                logger.warning("left alone: %s", error)
            self.to_remove.remove(path)
