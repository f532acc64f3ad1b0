"""Reads the log start that a replica has recorded, when the audit begins and again where files vanish.

Owns: the order of these reads. A running broker records a later start before it deletes the files in front of it. So a
log start is read after the listing of files, and once more after a listed file was not found: then it says whether
retention deleted that file. Leaves to others: what it means if it does not.
"""

from collections.abc import Iterable

from msgspec.structs import replace

from minibroker.audit.reading.replica import RangeScan, ReplicaFacts
from minibroker.audit.reading.small_files import read_parsed
from minibroker.protocol.files import checkpoints


def with_log_start(facts: ReplicaFacts) -> ReplicaFacts:
    """The same facts with the log start that is recorded now."""
    damage: list[tuple[str, str]] = []
    file = f"{facts.directory}/{checkpoints.LOG_START}"
    recorded = read_parsed(file, checkpoints.parse_log_start, damage)
    log_start = recorded[0] if recorded is not None else None
    return replace(facts, log_start=log_start, damage=(*facts.damage, *damage))


def with_later_log_start(facts: ReplicaFacts, scans: Iterable[RangeScan]) -> ReplicaFacts:
    """With the one recorded now, if files vanished since the first was read, and if it is a later one of this log."""
    if not any(scan.vanished for scan in scans):
        return facts
    before, now = facts.log_start, with_log_start(facts).log_start
    if now is None or now.partition != facts.partition or now.topic_id != facts.topic_id:
        return facts
    return replace(facts, log_start=now) if before is None or now.offset > before.offset else facts
