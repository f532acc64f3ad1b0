"""Entries at the top of a stopped broker's log.dir because of which it would not start. Offline; changes nothing.

Owns: the same checks that a broker makes before it loads anything. Leaves to others: partitions (`log_examination`).
"""

from pathlib import Path

import msgspec

from minibroker.offline.log_evidence import read_small
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import CorruptCheckpoint
from minibroker.protocol.files.meta_properties import parse_meta_properties
from minibroker.runtime.adapters.disk import RealDisk
from minibroker.runtime.ports import DiskError, FileMissing

RIGHT_CURE = "give the broker's user access to it (chmod, chown), and start the broker"
AWAY_CURE = "move that entry away, and start the broker: it creates the file again"
WRITABLE_CURE = "mount it for writing"
READ_ONLY = "Read-only file system"
"""The operating system's words."""
META_CURE = "write its five lines again (docs/FORMATS.md says where to find each), and start the broker"


class StartRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why a broker would not start on this directory."""

    file: str
    what: str
    cure: str


def refusals(log_directory: Path) -> list[StartRefusal]:
    """All reasons, in the order in which a broker would find them."""
    found = []
    for name in checkpoints.TOP_FILES:
        for entry in (log_directory / name, log_directory / f"{name}{checkpoints.TEMPORARY_SUFFIX}"):
            try:
                RealDisk().open(str(entry)).close()
            except FileMissing:
                continue
            except DiskError as error:
                if READ_ONLY in str(error):  # it is the same for all of them
                    what = f"{log_directory} is on a read-only file system"
                    return [
                        StartRefusal(file=str(log_directory), what=what, cure=f"{WRITABLE_CURE}, and start the broker")
                    ]
                found.append(StartRefusal(file=str(entry), what=str(error), cure=cure_of(str(error), AWAY_CURE)))
    meta = log_directory / checkpoints.META_PROPERTIES
    if meta.is_file() and not found:
        try:
            parse_meta_properties(read_small(meta))
        except CorruptCheckpoint as error:
            found.append(StartRefusal(file=str(meta), what=f"{meta} is damaged: {error}", cure=META_CURE))
    return found


def cure_of(what: str, otherwise: str) -> str:
    """The cure of an unreadable entry: access rights if they are missing, because the entry may be sound."""
    return RIGHT_CURE if "Permission denied" in what or "Operation not permitted" in what else otherwise
