"""Files of one disk that are removed, cut, emptied, zeroed, or replaced by older ones: one method for each change,
named as `disk_options` names it.

Owns: the changes, on stable storage, and the older copies that some of them put back. Leaves to others: whether a
change may come now (`faulty_disk`), and stopping or starting a broker (`disk_faults`, `whole_cluster`).
"""

import random
from collections.abc import Callable

from minibroker.protocol.files.checkpoints import (
    DAMAGE_NOTE,
    EPOCH_CHECKPOINT,
    LOG_START,
    LOG_SUFFIX,
    META_PROPERTIES,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    WHOLE_SINCE,
    parse_partition_directory_name,
    parse_segment_file_name,
)
from minibroker.simulation.swarm.faults.rot_places import LOG_DIRECTORY, batches_of, below
from minibroker.simulation.world.storage import DirectoryNode, FileNode, SimulatedStorage, normalize, walk_files

NOTES = (LOG_START, WHOLE_SINCE, DAMAGE_NOTE, PARTITION_METADATA, EPOCH_CHECKPOINT, SNAPSHOT_SUFFIX)
"""Small files that say what a log is, or which part of it is valid."""
AGEING = (LOG_START, WHOLE_SINCE, PARTITION_METADATA, EPOCH_CHECKPOINT, SNAPSHOT_SUFFIX, "-offset-checkpoint")
"""Files of which a single older copy may come back."""
COPIES_MAX = 3
"""Of each broker's disk; a further copy replaces a random one."""
DIRECTORY_ID = b"directory.id="

Segment = tuple[str, FileNode]


class DiskCopies:
    """Copies of whole disks, taken earlier in the run."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self._copies: dict[str, list[DirectoryNode]] = {}

    def take(self, storage: SimulatedStorage) -> None:
        """Copy the disk as the kernel shows it now, whether a broker runs on it or not."""
        copies = self._copies.setdefault(storage.host, [])
        if len(copies) == COPIES_MAX:
            copies.pop(self._random.randrange(COPIES_MAX))
        copies.append(copied(storage.root))

    def older(self, storage: SimulatedStorage) -> DirectoryNode | None:
        """A copy of the disk that is in the machine now, not of an earlier one."""
        identity = directory_id(storage.root)
        fitting = [each for each in self._copies.get(storage.host, ()) if directory_id(each) == identity is not None]
        return copied(self._random.choice(fitting)) if fitting else None


class FileChanges:
    """Each public method is one change; it returns what changed, or None where it fitted nothing."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng
        self.copies = DiskCopies(rng)
        self.only: frozenset[str] | None = None
        """Directories of the logs that may be changed; None: any."""

    def act(self, kind: str) -> Callable[[SimulatedStorage], str | None]:
        """The change of this name."""
        found: Callable[[SimulatedStorage], str | None] = getattr(self, kind)
        return found

    # ----------------------------------------------------------------------------------------------- a log is shorter
    def cut_at_batch(self, storage: SimulatedStorage) -> str | None:
        """Any number of whole batches is missing at the end of the last segment."""
        found = self._log(storage)
        if found is None:
            return None
        path, file = found[1][-1]
        places = [position for position, _ in batches_of(file.content)]
        if not places:
            return None
        _resize(storage, file, self._random.choice(places[1:] or places))
        return f"{path} -> {len(file.content)}"

    def emptied_segment(self, storage: SimulatedStorage) -> str | None:
        """The last one of a log."""
        found = self._log(storage)
        if found is None or not found[1][-1][1].content:
            return None
        path, file = found[1][-1]
        _resize(storage, file, 0)
        return path

    def zeroed_segment(self, storage: SimulatedStorage) -> str | None:
        found = self._log(storage)
        if found is None:
            return None
        path, file = self._random.choice([each for each in found[1] if each[1].content])
        file.overwrite_on_platter(0, bytes(len(file.content)))
        return path

    def newest_segments_gone(self, storage: SimulatedStorage) -> str | None:
        """With their indexes and snapshots, as if they had never existed."""
        found = self._log(storage, segments_min=2)
        if found is None:
            return None
        directory, segments = found
        number = self._random.randrange(1, len(segments))
        self._forget_from(storage, directory, segments[number][0])
        return segments[number][0]

    def all_segments_gone(self, storage: SimulatedStorage) -> str | None:
        found = self._log(storage)
        if found is None:
            return None
        directory, segments = found
        self._forget_from(storage, directory, segments[0][0])
        return directory

    def directory_gone(self, storage: SimulatedStorage) -> str | None:
        """A partition's."""
        found = self._log(storage)
        if found is None:
            return None
        parent, name = storage.parent_of(found[0])
        del parent.entries[name]
        parent.sync()
        _count(storage)
        return found[0]

    def _forget_from(self, storage: SimulatedStorage, directory: str, first: str) -> None:
        node = storage.find_directory(directory)
        least = first.rpartition("/")[2].removesuffix(LOG_SUFFIX)
        for name in sorted(node.entries):
            parsed = parse_segment_file_name(name)
            if parsed is None or name.partition(".")[0] < least:
                continue
            if parsed[1] != SNAPSHOT_SUFFIX or name.partition(".")[0] > least:
                unlink(storage, f"{directory}/{name}")

    def _log(self, storage: SimulatedStorage, segments_min: int = 1) -> tuple[str, list[Segment]] | None:
        """A log that holds something: its directory and its segments."""
        logs = [each for each in logs_of(storage).items() if len(each[1]) >= segments_min]
        full = [(directory, files) for directory, files in logs if any(file.content for _, file in files)]
        full = [each for each in full if self.only is None or each[0] in self.only]
        return self._random.choice(full) if full else None

    # ----------------------------------------------------------------------------------------------------- small files
    def missing_note(self, storage: SimulatedStorage) -> str | None:
        found = self._small(storage, NOTES)
        if found is None:
            return None
        unlink(storage, found[0])
        return found[0]

    def emptied_note(self, storage: SimulatedStorage) -> str | None:
        found = self._small(storage, NOTES)
        if found is None:
            return None
        _resize(storage, found[1], 0)
        return found[0]

    def _small(self, storage: SimulatedStorage, names: tuple[str, ...]) -> Segment | None:
        """Choose a kind of file first, then one of it: there are many snapshots, and only one `whole-since`."""
        kinds = [files for name in names if (files := below(storage, name))]
        return self._random.choice(self._random.choice(kinds)) if kinds else None

    # ---------------------------------------------------------------------------------------------------- older copies
    def older_file(self, storage: SimulatedStorage) -> str | None:
        """A small file that differs from the present one."""
        root = self.copies.older(storage)
        if root is None:
            return None
        there = {path: bytes(file.content) for path, file in below(storage, *AGEING)}
        old = {path: file for path, file in walk_files(root) if there.get(path, file.content) != file.content}
        kinds = [paths for name in AGEING if (paths := [path for path in sorted(old) if path.endswith(name)])]
        if not kinds:
            return None
        path = self._random.choice(self._random.choice(kinds))
        put_file(storage, path, bytes(old[path].content))
        return path

    def older_directory(self, storage: SimulatedStorage) -> str | None:
        """A partition's."""
        root = self.copies.older(storage)
        found = self._log(storage)
        if root is None or found is None:
            return None
        node: FileNode | DirectoryNode | None = root
        for name in found[0].strip("/").split("/"):
            node = node.entries.get(name) if isinstance(node, DirectoryNode) else None
        if not isinstance(node, DirectoryNode):
            return None
        parent, name = storage.parent_of(found[0])
        parent.entries[name] = node
        parent.sync()
        _count(storage)
        return found[0]

    def older_disk(self, storage: SimulatedStorage) -> str | None:
        root = self.copies.older(storage)
        if root is None:
            return None
        restore(storage, root)
        return LOG_DIRECTORY


def logs_of(storage: SimulatedStorage) -> dict[str, list[Segment]]:
    """The segments of each partition by its directory, empty ones too."""
    found: dict[str, list[Segment]] = {}
    for path, file in storage.files(f"{LOG_DIRECTORY}/"):
        directory, _, name = path.rpartition("/")
        parsed = parse_segment_file_name(name)
        is_log = parsed is not None and parsed[1] == LOG_SUFFIX
        if is_log and parse_partition_directory_name(directory.rpartition("/")[2]) is not None:
            found.setdefault(directory, []).append((path, file))
    return found


def directory_id(root: DirectoryNode) -> bytes | None:
    """From meta.properties."""
    content = next((file.content for path, file in walk_files(root) if path.endswith(f"/{META_PROPERTIES}")), b"")
    return next((bytes(line) for line in content.splitlines() if line.startswith(DIRECTORY_ID)), None)


def copied(node: DirectoryNode) -> DirectoryNode:
    """The whole tree, on stable storage."""
    twin = DirectoryNode()
    for name, child in node.entries.items():
        if isinstance(child, DirectoryNode):
            twin.entries[name] = copied(child)
        else:
            twin.entries[name] = file = FileNode()
            file.content = bytearray(child.content)
            file.modified_ms = child.modified_ms
            file.sync()
    twin.sync()
    return twin


def restore(storage: SimulatedStorage, root: DirectoryNode) -> None:
    """The whole disk is as it was then."""
    storage.root = root
    _count(storage)


def put_file(storage: SimulatedStorage, path: str, content: bytes) -> None:
    """Create or replace the file, on stable storage."""
    parent, name = storage.parent_of(path)
    parent.entries[name] = file = FileNode()
    file.content[:] = content
    file.sync()
    parent.sync()
    _count(storage)


def unlink(storage: SimulatedStorage, path: str) -> None:
    """Remove the file, on stable storage too; no error if it does not exist."""
    parent = storage.find_directory(normalize(path).rpartition("/")[0])
    name = path.rpartition("/")[2]
    node = parent.entries.pop(name, None)
    parent.synced_entries.pop(name, None)
    if isinstance(node, FileNode):
        storage.used_bytes -= len(node.content)


def _resize(storage: SimulatedStorage, file: FileNode, size: int) -> None:
    storage.used_bytes -= len(file.content) - size
    file.cut(size)
    file.sync()


def _count(storage: SimulatedStorage) -> None:
    storage.used_bytes = sum(len(file.content) for _, file in walk_files(storage.root))
