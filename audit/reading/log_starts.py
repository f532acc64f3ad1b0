"""Reads the log start that a replica has recorded, also again when all files are listed, and where files vanish.

Owns: the order of these reads. A running broker records a later start before it deletes the files in front of it, and
it deletes them when all in-sync brokers have recorded one. So a log start is read after the listing of its own files;
again after the listing of all brokers' files, to judge another's head; and again after a listed file was not found, to
say whether retention deleted that. Leaves to others: what it means if it did not.
"""

from msgspec.structs import replace

from minibroker.audit.reading.replica import AuditedReplica, ReplicaFacts
from minibroker.audit.reading.small_files import read_parsed
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.checkpoints import LogStart


def read_log_start(directory: str, damage: list[tuple[str, str]]) -> LogStart | None:
    """The recorded log start; None when the file is missing or invalid (then `damage` holds the reason)."""
    recorded = read_parsed(f"{directory}/{checkpoints.LOG_START}", checkpoints.parse_log_start, damage)
    return recorded[0] if recorded is not None else None


def with_later_log_start(facts: ReplicaFacts) -> ReplicaFacts:
    """The facts of a replica when all brokers' files have been listed."""
    now = _recorded_for(facts)
    return facts if now is None else replace(facts, later_log_start=now.offset)


def with_explanation(replica: AuditedReplica) -> AuditedReplica:
    """With the log start recorded now, if files vanished since they were listed, and if it is a later one."""
    facts = replica.facts
    if not any(segment.vanished for segment in replica.segments):
        return replica
    before, now = facts.log_start, _recorded_for(facts)
    if now is None or (before is not None and now.offset <= before.offset):
        return replica
    if not replica.segments[-1].vanished:  # the log has grown since it was listed: no more than was listed is judged
        now = replace(now, offset=max(min(now.offset, replica.log_end_offset), before.offset if before else 0))
    return replace(replica, facts=replace(facts, log_start=now))


def _recorded_for(facts: ReplicaFacts) -> LogStart | None:
    """None where it is another log's, or where the right to read it was taken away meanwhile."""
    try:
        now = read_log_start(facts.directory, [])
    except PermissionError:
        return None
    same_log = now is not None and (now.topic_id, now.partition) == (facts.topic_id, facts.partition)
    return now if same_log else None
