"""Reads a replica's `.snapshot` files; `checks/snapshot_rules.py` judges their content."""

from minibroker.audit.reading.regular_files import read_regular
from minibroker.audit.reading.replica import ReplicaFacts, SnapshotFile, segment_file
from minibroker.protocol.files.checkpoints import SNAPSHOT_SUFFIX

FILE_BYTES_MAX = 16 * 1024 * 1024
"""Twice what all producers that a broker remembers can take."""


def read_snapshots(facts: ReplicaFacts) -> tuple[SnapshotFile, ...]:
    """The snapshot files that existed when the audit began and still do."""
    found = []
    for offset in facts.snapshots:
        try:
            content = read_regular(segment_file(facts.directory, offset, SNAPSHOT_SUFFIX), FILE_BYTES_MAX)
        except FileNotFoundError:
            continue
        except OSError as error:
            found.append(SnapshotFile(offset, b"", f"cannot be read: {error.strerror}"))
        else:
            found.append(SnapshotFile(offset, content))
    return tuple(found)
