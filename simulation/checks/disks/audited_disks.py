"""The audit's rules, applied to the simulated disks as they are at the end of a run.

Owns: reading a log and the files next to it, and turning the audit's errors into findings. The rules are the audit's
own: it shares no code with the broker, so a bug of the broker cannot excuse itself. Changes nothing on a disk.
"""

from array import array
from collections.abc import Callable, Mapping
from typing import TypeVar

from msgspec.structs import replace

from minibroker.audit.checks.expectation import ExpectedPartition
from minibroker.audit.checks.findings import Finding as AuditFinding
from minibroker.audit.checks.findings import Kind, Severity
from minibroker.audit.checks.partition_check import compare_partition
from minibroker.audit.reading.acked_file import AckedChunk
from minibroker.audit.reading.replica import NO_VALUE, AuditedReplica, ReplicaFacts, SnapshotFile, assemble
from minibroker.audit.reading.segment_reader import RangeTask, scan_content
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.meta_properties import parse_meta_properties
from minibroker.protocol.files.partition_metadata import parse_partition_metadata
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.checks.reference_state import ReferencePartition
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.storage import DirectoryNode, FileNode
from minibroker.simulation.world.world import PROVISIONED_DIRECTORY

T = TypeVar("T")

LOG_DIRECTORY = f"{PROVISIONED_DIRECTORY}/log"


def audit_disks(
    cluster: SimulatedCluster,
    states: list[ReferencePartition],
    acked: Mapping[tuple[TopicPartition, int], bytes | None],
) -> list[CheckerFinding]:
    """Errors in the replicas of these partitions. `acked`: the value of each acknowledged record."""
    found = []
    for actual in states:
        replicas = [
            replica
            for broker_id in cluster.broker_ids
            if (replica := _replica(cluster, broker_id, actual.partition)) is not None
        ]
        expected = ExpectedPartition(
            source="the simulation",
            stopped=False,
            leader=actual.leader,
            leader_epoch=actual.leader_epoch,
            isr=actual.members,
            holders=dict.fromkeys(sorted(actual.members), "in sync at the end of the run"),
        )
        result = compare_partition(actual.partition, replicas, [_chunk(actual.partition, acked)], expected)
        found += [_finding(actual.partition, each) for each in result.findings if _counts(each)]
    return found


def _counts(found: AuditFinding) -> bool:
    """Errors, except that an empty log proves nothing."""
    return found.severity is Severity.ERROR and found.kind is not Kind.UNPROVEN


def _finding(partition: TopicPartition, found: AuditFinding) -> CheckerFinding:
    where = "" if found.broker is None else f"broker {found.broker}: "
    return CheckerFinding(invariant=f"audit:{found.kind}", text=f"{where}{found.message}", partition=partition)


def _chunk(partition: TopicPartition, acked: Mapping[tuple[TopicPartition, int], bytes | None]) -> AckedChunk:
    records = sorted((offset, value) for (of, offset), value in acked.items() if of == partition)
    crcs = [NO_VALUE if value is None else crc32c(value) for _, value in records]
    return AckedChunk(
        topic=partition.topic,
        partition=partition.partition,
        start=0,
        offsets=array("q", [offset for offset, _ in records]).tobytes(),
        crcs=array("q", crcs).tobytes(),
    )


# ------------------------------------------------------------------------------------------------------------- reading
def _replica(cluster: SimulatedCluster, broker_id: int, partition: TopicPartition) -> AuditedReplica | None:
    """One broker's replica, read from its disk; None if there is none."""
    storage = cluster.world.machine(f"broker-{broker_id}").storage
    log_directory = _child(_child(storage.root, "data"), "log")
    directory = _child(log_directory, str(partition))
    if log_directory is None or directory is None:
        return None
    facts = _facts(log_directory, directory, broker_id, partition, storage.boot_id)
    running = cluster.replica(broker_id, partition.topic, partition.partition)
    if running is not None:
        # Checkpoints are written periodically; the running broker has the current value.
        facts = replace(facts, high_watermark=running.state.high_watermark)
    scans = []
    for segment, size in facts.segments:
        content = _content(directory, checkpoints.segment_file_name(segment, checkpoints.LOG_SUFFIX)) or b""
        indexes = (
            _content(directory, checkpoints.segment_file_name(segment, checkpoints.INDEX_SUFFIX)),
            _content(directory, checkpoints.segment_file_name(segment, checkpoints.TIME_INDEX_SUFFIX)),
        )
        task = RangeTask(directory=facts.directory, segment=segment, size=size, start=0, end=size)
        scans.append(scan_content(task, content, indexes, with_values=True))
    snapshots = [
        SnapshotFile(
            offset, _content(directory, checkpoints.segment_file_name(offset, checkpoints.SNAPSHOT_SUFFIX)) or b""
        )
        for offset in facts.snapshots
    ]
    return assemble(facts, scans, tuple(snapshots))


def _facts(
    log_directory: DirectoryNode, directory: DirectoryNode, broker_id: int, partition: TopicPartition, boot_id: str
) -> ReplicaFacts:
    damage: list[tuple[str, str]] = []
    identity = _parsed(log_directory, checkpoints.META_PROPERTIES, parse_meta_properties, [])

    def offset(name: str) -> int | None:
        return (_parsed(log_directory, name, checkpoints.parse_offset_checkpoint, damage) or {}).get(partition)

    epochs = _parsed(directory, checkpoints.EPOCH_CHECKPOINT, checkpoints.parse_epoch_checkpoint, damage)
    segments, snapshots = [], []
    for name, node in directory.entries.items():
        parsed = checkpoints.parse_segment_file_name(name)
        if parsed is not None and parsed[1] == checkpoints.LOG_SUFFIX and isinstance(node, FileNode):
            segments.append((parsed[0], len(node.content)))
        if parsed is not None and parsed[1] == checkpoints.SNAPSHOT_SUFFIX and isinstance(node, FileNode):
            snapshots.append(parsed[0])
    return ReplicaFacts(
        broker=broker_id,
        topic=partition.topic,
        partition=partition.partition,
        directory=f"broker-{broker_id}:{LOG_DIRECTORY}/{partition}",
        high_watermark=offset(checkpoints.HIGH_WATERMARK_CHECKPOINT),
        log_start=_parsed(directory, checkpoints.LOG_START, _log_start, damage),
        recovery_point=offset(checkpoints.RECOVERY_POINT_CHECKPOINT),
        cleanly_stopped=checkpoints.CLEAN_SHUTDOWN in log_directory.entries,
        lost_power=identity is None or identity.boot_id != boot_id,
        epoch_entries=None if epochs is None else tuple(epochs),
        metadata=_parsed(directory, checkpoints.PARTITION_METADATA, parse_partition_metadata, damage),
        segments=tuple(sorted(segments)),
        snapshots=tuple(sorted(snapshots)),
        damage=tuple(damage),
    )


def _log_start(content: bytes) -> checkpoints.LogStart:
    return checkpoints.parse_log_start(content)[0]


def _child(directory: DirectoryNode | None, name: str) -> DirectoryNode | None:
    found = None if directory is None else directory.entries.get(name)
    return found if isinstance(found, DirectoryNode) else None


def _content(directory: DirectoryNode, name: str) -> bytes | None:
    file = directory.entries.get(name)
    return bytes(file.content) if isinstance(file, FileNode) else None


def _parsed(
    directory: DirectoryNode, name: str, parse: Callable[[bytes], T], damage: list[tuple[str, str]]
) -> T | None:
    content = _content(directory, name)
    if content is None:
        return None
    try:
        return parse(content)
    except ProtocolError as error:
        damage.append((name, str(error)))
        return None
