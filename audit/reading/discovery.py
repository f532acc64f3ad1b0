"""Finds the replicas: which directories are brokers' log directories, what is in them, and their small files.

Owns: the step from the user's directories to an Inventory. Reads names, sizes and checkpoints, but no batch.
Checkpoints are read before any log: a live high watermark only rises, so the value read is a lower bound of what is
committed. Leaves to others: the meaning of an unreadable small file. It becomes an entry in `damage`; the rules decide
what it means.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import msgspec

from minibroker.audit.checks.expectation import (
    AuditedLogDirectory,
    ExpectedPartition,
    SourcedState,
    expected_partitions,
    one_directory_each,
)
from minibroker.audit.checks.findings import Finding, Kind, finding
from minibroker.audit.checks.topic_ids import ids_within_topics, partitions_left_out
from minibroker.audit.errors import AuditError
from minibroker.audit.reading.linked_files import with_linked_files
from minibroker.audit.reading.log_starts import read_log_start, with_later_log_start
from minibroker.audit.reading.replica import ReplicaFacts
from minibroker.audit.reading.small_files import read_parsed
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.cluster_state import BYTES_MAX as STATE_BYTES_MAX
from minibroker.protocol.files.cluster_state import CLUSTER_STATE, parse_cluster_state
from minibroker.protocol.files.meta_properties import MetaProperties, parse_meta_properties
from minibroker.protocol.files.partition_metadata import parse_partition_metadata
from minibroker.protocol.ids import TopicPartition

BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_BROKER_DIRECTORY = re.compile(r"broker-([0-9]{1,9})")


class DamagedFile(msgspec.Struct, frozen=True):
    """A small file that cannot be read or parsed."""

    broker: int | None
    file: str
    reason: str


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything there is to audit."""

    log_directories: tuple[AuditedLogDirectory, ...]
    replicas: tuple[ReplicaFacts, ...]
    expected: dict[str, ExpectedPartition] = {}
    """By `topic-partition`."""
    findings: tuple[Finding, ...] = ()
    """Of brokers and directories as a whole."""
    damage: tuple[DamagedFile, ...] = ()
    """Small files of log directories; those of a replica are in its facts."""

    @property
    def total_bytes(self) -> int:
        return sum(size for replica in self.replicas for _, size in replica.segments)


def discover(directories: Iterable[str], states: Sequence[SourcedState] = ()) -> Inventory:
    """Search each directory: a cluster's data directory, or one broker's log directory. `states`: cluster states from
    other sources, in addition to the state files in these directories."""
    try:
        return _discover(directories, list(states))
    except OSError as error:
        cure = (
            "run the audit as a user who may read it"
            if isinstance(error, PermissionError)
            else "mend its disk, or audit the other brokers' log directories"
        )
        raise AuditError(f"{error.filename} cannot be read: {error.strerror}; {cure}") from error


def _discover(directories: Iterable[str], states: list[SourcedState]) -> Inventory:
    paths: dict[str, bool] = {}
    damage: list[DamagedFile] = []
    findings: list[Finding] = []
    for directory in directories:
        given, strays = _log_directories(directory)
        findings += [_stray(path) for path in strays]
        for path in given:
            real = os.path.realpath(path)
            refuse_unreportable(real)
            paths[real] = paths.get(real, False) or os.path.realpath(directory) != real
        read: list[tuple[str, str]] = []
        file = f"{directory}/{CLUSTER_STATE}"
        state = read_parsed(file, parse_cluster_state, read, STATE_BYTES_MAX)
        states += [SourcedState(source=file, state=state)] if state is not None else []
        damage += [DamagedFile(None, file, reason) for file, reason in read]
    found: list[AuditedLogDirectory] = []
    for path in paths:
        read = []
        found.append(_log_directory(path, read))
        damage += [DamagedFile(found[-1].broker, file, reason) for file, reason in read]
    _refuse_mixtures(found)
    logs, twice = one_directory_each(found)
    findings += twice
    findings += [item for log in logs if paths[log.path] for item in _misnamed(log)]
    replicas, unreadable = _replicas_of_all(logs)
    damage += unreadable
    replicas = with_linked_files(replicas)
    replicas.sort(key=lambda facts: (facts.topic, facts.partition, facts.broker, facts.directory))
    present = [(facts.broker, f"{facts.topic}-{facts.partition}") for facts in replicas]
    expected, state_findings = expected_partitions(logs, present, states)
    findings += state_findings + ids_within_topics(replicas, expected) + partitions_left_out(replicas, expected)
    return Inventory(
        log_directories=tuple(logs),
        replicas=tuple(replicas),
        expected=expected,
        findings=tuple(findings),
        damage=tuple(sorted(set(damage), key=str)),
    )


def refuse_unreportable(path: str) -> None:
    """A report and Spark hold text, and such a name is none."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise AuditError(f"the name of {path!a} is not UTF-8, so no report can name its files: rename it") from None


def _misnamed(log: AuditedLogDirectory) -> list[Finding]:
    """The launcher names a directory after its broker."""
    match = _BROKER_DIRECTORY.fullmatch(os.path.basename(log.path))
    if match is None or int(match[1]) == log.broker:
        return []
    message = f"is named after broker {match[1]}, but its {checkpoints.META_PROPERTIES} says broker {log.broker}"
    return [finding(Kind.WRONG_DIRECTORY, message, broker=log.broker, file=log.path)]


def _log_directories(directory: str) -> tuple[list[str], list[str]]:
    """Log directories; and folders beside them that hold partitions and name no broker, as a backup does."""
    if not _is_directory(directory):
        raise AuditError(f"{directory} is not a directory: give a cluster's data directory or brokers' log directories")
    strays: list[str] = []
    if _is_log_directory(directory):
        if _names_its_broker(directory):
            return [directory], []
        names = sorted(entry.name for entry in os.scandir(directory))
        strays = [f"{directory}/{name}" for name in names if _holds_segments(f"{directory}/{name}")]
    found = [path for path in sorted(entry.path for entry in os.scandir(directory)) if _holds_a_broker(path)]
    named = [child for child in found if _names_its_broker(child)]
    if not named and (found or strays):
        return found or [directory], []  # the error of the first says what is missing
    if not found:
        raise AuditError(
            f"{directory} holds no broker's log directory (that is a folder with {checkpoints.META_PROPERTIES} and"
            " <topic>-<partition> folders): give a cluster's data directory or brokers' log directories"
        )
    return named, strays + [child for child in found if child not in named]


def _holds_a_broker(path: str) -> bool:
    """Whether this entry of a cluster's data directory is a log directory. What cannot be entered is one only if its
    name says so: the root of a disk has a `lost+found`, and a mount may be dead."""
    try:
        return _is_directory(path) and _is_log_directory(path)
    except OSError:
        if _BROKER_DIRECTORY.search(os.path.basename(path)) is None:
            return False
        raise


def _is_directory(path: str) -> bool:
    """Raises OSError where the system does not say: the way to it may not be entered, or a mount is dead."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return False
        raise


def _names_its_broker(path: str) -> bool:
    name = os.path.basename(os.path.normpath(path))
    return os.path.lexists(f"{path}/{checkpoints.META_PROPERTIES}") or _BROKER_DIRECTORY.search(name) is not None


def _stray(path: str) -> Finding:
    message = f"holds partitions, and neither its name nor a {checkpoints.META_PROPERTIES} names a broker: not audited"
    return finding(Kind.WRONG_DIRECTORY, message, note=True, file=os.path.realpath(path))


def _is_log_directory(path: str) -> bool:
    names = sorted(entry.name for entry in os.scandir(path))
    if checkpoints.META_PROPERTIES in names or checkpoints.HIGH_WATERMARK_CHECKPOINT in names:
        return True
    if _BROKER_DIRECTORY.fullmatch(os.path.basename(os.path.normpath(path))) is None:
        # A cluster's data directory: its children look like partitions ("broker-1") but hold no segments.
        return any(_holds_segments(f"{path}/{name}") for name in names if _partition_of(name) is not None)
    return any(_partition_of(name) is not None for name in names)


def _holds_segments(path: str) -> bool:
    try:
        return any(checkpoints.parse_segment_file_name(entry.name) is not None for entry in os.scandir(path))
    except OSError:
        return False


def _partition_of(name: str) -> TopicPartition | None:
    return checkpoints.parse_partition_directory_name(name)


def _log_directory(path: str, damage: list[tuple[str, str]]) -> AuditedLogDirectory:
    file = f"{path}/{checkpoints.META_PROPERTIES}"
    meta = read_parsed(file, parse_meta_properties, damage)
    if meta is None and not damage:
        damage.append((file, "is missing"))
    marker = f"{path}/{checkpoints.CLEAN_SHUTDOWN}"
    before = len(damage)
    read_parsed(marker, checkpoints.parse_clean_shutdown, damage)
    return AuditedLogDirectory(
        path=path,
        broker=_broker_of(path, meta),
        meta=meta,
        cleanly_stopped=os.path.exists(marker) and len(damage) == before,
        listed=_listed(path),
    )


def _listed(path: str) -> dict[str, str | None]:
    """The partitions that both checkpoints list. Unreadable checkpoints are reported where their offsets are used."""
    listed: dict[str, str | None] = {}
    for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.HIGH_WATERMARK_CHECKPOINT):
        found = read_parsed(f"{path}/{name}", _parse_offsets, []) or {}
        listed.update({str(partition): each.topic_id for partition, each in found.items()})
    return listed


def _broker_of(path: str, meta: MetaProperties | None) -> int:
    if meta is not None:
        return meta.broker_id
    match = _BROKER_DIRECTORY.search(os.path.basename(path))
    if match is None:
        raise AuditError(f"{path} does not name its broker: {checkpoints.META_PROPERTIES} is missing or unreadable")
    return int(match[1])


def _refuse_mixtures(logs: list[AuditedLogDirectory]) -> None:
    clusters = {log.meta.cluster_id: log.path for log in logs if log.meta is not None}
    if len(clusters) > 1:
        where = ", ".join(f"{path} ({cluster})" for cluster, path in sorted(clusters.items()))
        raise AuditError(f"the directories belong to different clusters: {where}; audit one cluster at a time")


def _replicas_of_all(logs: list[AuditedLogDirectory]) -> tuple[list[ReplicaFacts], list[DamagedFile]]:
    """The replicas, and checkpoints that cannot be read. Brokers may be running, so the order holds for all of them
    together: high watermarks, then names and sizes of segments, then log starts again. A high watermark of one broker
    says what the others' logs hold already, and a broker deletes a head when all have recorded a later start."""
    damage: list[DamagedFile] = []
    offsets: list[list[dict[TopicPartition, _CheckpointOffset]]] = []
    for log in logs:
        read: list[tuple[str, str]] = []
        names = (checkpoints.HIGH_WATERMARK_CHECKPOINT, checkpoints.RECOVERY_POINT_CHECKPOINT)
        offsets.append([read_parsed(f"{log.path}/{name}", _parse_offsets, read) or {} for name in names])
        damage += [DamagedFile(log.broker, file, reason) for file, reason in read]
    listed = [facts for log, each in zip(logs, offsets, strict=True) for facts in _replicas(log, *each)]
    return [with_later_log_start(facts) for facts in listed], damage


def _replicas(
    log: AuditedLogDirectory,
    high_watermarks: dict[TopicPartition, "_CheckpointOffset"],
    recovery_points: dict[TopicPartition, "_CheckpointOffset"],
) -> list[ReplicaFacts]:
    partitions = {entry.path: _partition_of(entry.name) for entry in os.scandir(log.path)}
    return [
        _replica(log, directory, partition, high_watermarks.get(partition), recovery_points.get(partition))
        for directory, partition in partitions.items()
        if partition is not None and _is_directory(directory)
    ]


class _CheckpointOffset(NamedTuple):
    """An offset in a checkpoint, and its topic id where the checkpoint holds one."""

    offset: int
    topic_id: str | None

    def of(self, topic_id: str | None) -> int | None:
        """None where it belongs to another topic of this name: that topic was deleted, and the broker was killed before
        it rewrote its checkpoint."""
        return self.offset if self.topic_id in (None, topic_id) or topic_id is None else None


def _parse_offsets(content: bytes) -> dict[TopicPartition, _CheckpointOffset]:
    """Offsets and ids of one reading: a running broker replaces the file."""
    offsets = checkpoints.parse_offset_checkpoint(content)
    ids = checkpoints.parse_checkpoint_topic_ids(content)
    return {partition: _CheckpointOffset(offset, ids.get(partition)) for partition, offset in offsets.items()}


def _replica(
    log: AuditedLogDirectory,
    directory: str,
    partition: TopicPartition,
    high_watermark: _CheckpointOffset | None,
    recovery_point: _CheckpointOffset | None,
) -> ReplicaFacts:
    damage: list[tuple[str, str]] = []
    epochs = read_parsed(f"{directory}/{checkpoints.EPOCH_CHECKPOINT}", checkpoints.parse_epoch_checkpoint, damage)
    metadata = read_parsed(f"{directory}/{checkpoints.PARTITION_METADATA}", parse_partition_metadata, damage)
    topic_id = metadata.topic_id if metadata is not None else None
    segments, snapshots = segments_of(directory), _snapshots(directory)
    # Read after the segments' names: a running broker records a start before it deletes what lies in front of it.
    log_start = read_log_start(directory, damage)
    return ReplicaFacts(
        broker=log.broker,
        topic=partition.topic,
        partition=partition.partition,
        directory=directory,
        high_watermark=high_watermark.of(topic_id) if high_watermark is not None else None,
        log_start=log_start,
        recovery_point=recovery_point.of(topic_id) if recovery_point is not None else None,
        cleanly_stopped=log.cleanly_stopped,
        lost_power=log.meta is None or log.meta.boot_id != _boot_id(),
        epoch_entries=None if epochs is None else tuple(epochs),
        metadata=metadata,
        segments=segments,
        snapshots=snapshots,
        damage=tuple(damage),
    )


@lru_cache
def _boot_id() -> str | None:
    """Of this machine's last boot."""
    try:
        with open(BOOT_ID_FILE, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None


def segments_of(directory: str) -> tuple[tuple[int, int], ...]:
    found = []
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        return ()
    for entry in entries:
        parsed = checkpoints.parse_segment_file_name(entry.name)
        if parsed is None or parsed[1] != checkpoints.LOG_SUFFIX:
            continue
        if not os.path.isfile(entry) and os.path.lexists(entry):
            found.append((parsed[0], 1))  # the reader reports what it is
            continue
        try:
            found.append((parsed[0], entry.stat().st_size))
        except FileNotFoundError:
            continue
        if not os.access(entry.path, os.R_OK) and os.path.lexists(entry.path):  # not removed since
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), entry.path)
    return tuple(sorted(found))


def _snapshots(directory: str) -> tuple[int, ...]:
    try:
        parsed = [checkpoints.parse_segment_file_name(name) for name in os.listdir(directory)]
    except FileNotFoundError:
        return ()
    return tuple(sorted(name[0] for name in parsed if name is not None and name[1] == checkpoints.SNAPSHOT_SUFFIX))
