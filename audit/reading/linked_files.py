"""Finds segment files that are one file of the disk under the names of two brokers.

Links, symbolic or hard, of a file or of a directory above it: what is compared with itself agrees always. Owns: which
replica is reported, the one of the higher broker id. Leaves to others: two names of a whole log directory
(discovery.py), and the finding (rules.py).
"""

import os
from collections.abc import Iterable, Sequence

import msgspec

from minibroker.audit.reading.replica import LinkedFile, ReplicaFacts, segment_file


def with_linked_files(replicas: Sequence[ReplicaFacts]) -> list[ReplicaFacts]:
    """The same facts, each with the first file that a lower broker has, too."""
    seen: dict[tuple[int, int], tuple[int, str]] = {}
    linked = []
    for facts in sorted(replicas, key=lambda facts: facts.broker):
        first = None
        for file in _segment_files(facts):
            identity = _identity(file)
            if identity is None:
                continue
            other, other_file = seen.setdefault(identity, (facts.broker, file))
            if other != facts.broker and first is None:
                first = LinkedFile(file=file, other_broker=other, other_file=other_file)
        linked.append(facts if first is None else msgspec.structs.replace(facts, linked=first))
    return linked


def _segment_files(facts: ReplicaFacts) -> Iterable[str]:
    return (segment_file(facts.directory, base_offset) for base_offset, _ in facts.segments)


def _identity(file: str) -> tuple[int, int] | None:
    """None of a file that is gone, or where the file system numbers no files."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if found.st_ino else None
