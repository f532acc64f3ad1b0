"""A simulated machine's files, for export to a real directory: the audit reads only real ones.

Owns: only the walk. Whether the machine's process lives does not matter; nothing on the simulated disk changes.
"""

import posixpath
from collections.abc import Iterator

from minibroker.simulation.world.storage import DirectoryNode, SimulatedStorage


def files_below(storage: SimulatedStorage, path: str) -> Iterator[tuple[str, bytes]]:
    """(relative path, bytes as a reader sees them now) for every file below a directory. Raises FileMissing."""
    return _walk(storage.find_directory(path), "")


def _walk(node: DirectoryNode, prefix: str) -> Iterator[tuple[str, bytes]]:
    for name, child in sorted(node.entries.items()):
        path = posixpath.join(prefix, name)
        if isinstance(child, DirectoryNode):
            yield from _walk(child, path)
        else:
            yield path, bytes(child.content)
