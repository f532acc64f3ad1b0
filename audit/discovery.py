"""Finding the replicas: which directories are brokers' log directories, what stands in them, and their small files.

Owns: the step from the user's directories to an Inventory. Reads names, sizes and checkpoints; no batch. Checkpoints
are read before any log: a live high watermark only rises, so the one read is a lower bound of what is committed.
Refuses to judge: a small file that does not read becomes a line in `damage`, the rules decide what it means.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec

from minibroker.audit.errors import AuditError
from minibroker.audit.regular_files import read_regular
from minibroker.audit.replica import ReplicaFacts
from minibroker.protocol import checkpoints
from minibroker.protocol.checkpoints import OFFSETS_FILE_BYTES_MAX, CorruptCheckpoint
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.json_text import decode_json
from minibroker.protocol.meta_properties import MetaProperties, parse_meta_properties
from minibroker.protocol.partition_metadata import parse_partition_metadata

CLUSTER_STATE = "cluster-state.json"
_BROKER_DIRECTORY = re.compile(r"broker-([0-9]{1,9})")

T = TypeVar("T")


class LogDirectory(msgspec.Struct, frozen=True, kw_only=True):
    """One broker's log directory."""

    path: str
    broker: int
    cluster_id: str | None
    cleanly_stopped: bool


class Damage(msgspec.Struct, frozen=True):
    """A small file that should read and does not."""

    broker: int | None
    file: str
    reason: str


class LastKnownState(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher wrote of one partition when it stopped the cluster."""

    leader_epoch: int
    isr: tuple[int, ...]
    leader: int | None = None


class _ClusterState(msgspec.Struct, frozen=True):
    partitions: dict[str, LastKnownState]


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Everything there is to audit."""

    log_directories: tuple[LogDirectory, ...]
    replicas: tuple[ReplicaFacts, ...]
    states: dict[str, LastKnownState]
    """By `topic-partition`; empty when no cluster-state.json lies in a given directory."""
    damage: tuple[Damage, ...] = ()
    """Small files of log directories; those of a replica are in its facts."""

    @property
    def total_bytes(self) -> int:
        return sum(size for replica in self.replicas for _, size in replica.segments)


def discover(directories: Iterable[str]) -> Inventory:
    """Look into each directory: a cluster's data directory, or one broker's log directory."""
    try:
        return _discover(directories)
    except OSError as error:
        raise AuditError(
            f"{error.filename} cannot be read: {error.strerror}; run the audit as a user who may"
        ) from error


def _discover(directories: Iterable[str]) -> Inventory:
    paths: dict[str, None] = {}
    states: dict[str, LastKnownState] = {}
    damage: list[Damage] = []
    for directory in directories:
        for path in _log_directories(directory):
            paths[os.path.realpath(path)] = None
        read: list[tuple[str, str]] = []
        states.update(_read_parsed(f"{directory}/{CLUSTER_STATE}", _parse_cluster_state, read) or {})
        damage += [Damage(None, file, reason) for file, reason in read]
    logs: list[LogDirectory] = []
    replicas: list[ReplicaFacts] = []
    for path in paths:
        read = []
        log = _log_directory(path, read)
        logs.append(log)
        replicas += _replicas(log, read)
        damage += [Damage(log.broker, file, reason) for file, reason in read]
    logs.sort(key=lambda log: (log.broker, log.path))
    _refuse_mixtures(logs)
    replicas.sort(key=lambda facts: (facts.topic, facts.partition, facts.broker, facts.directory))
    return Inventory(
        log_directories=tuple(logs), replicas=tuple(replicas), states=states, damage=tuple(sorted(set(damage), key=str))
    )


def _log_directories(directory: str) -> list[str]:
    if not os.path.isdir(directory):
        raise AuditError(f"{directory} is not a directory: give a cluster's data directory or brokers' log directories")
    if _is_log_directory(directory):
        return [directory]
    children = sorted(entry.path for entry in os.scandir(directory) if os.path.isdir(entry))
    found = [child for child in children if _is_log_directory(child)]
    if not found:
        raise AuditError(
            f"{directory} holds no broker's log directory (that is a folder with {checkpoints.META_PROPERTIES} and"
            " <topic>-<partition> folders): give a cluster's data directory or brokers' log directories"
        )
    return found


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


def _log_directory(path: str, damage: list[tuple[str, str]]) -> LogDirectory:
    file = f"{path}/{checkpoints.META_PROPERTIES}"
    meta = _read_parsed(file, parse_meta_properties, damage)
    if meta is None and not damage:
        damage.append((file, "is missing"))
    marker = f"{path}/{checkpoints.CLEAN_SHUTDOWN}"
    before = len(damage)
    _read_parsed(marker, checkpoints.parse_clean_shutdown, damage)
    return LogDirectory(
        path=path,
        broker=_broker_of(path, meta),
        cluster_id=meta.cluster_id if meta else None,
        cleanly_stopped=os.path.exists(marker) and len(damage) == before,
    )


def _broker_of(path: str, meta: MetaProperties | None) -> int:
    if meta is not None:
        return meta.broker_id
    match = _BROKER_DIRECTORY.search(os.path.basename(path))
    if match is None:
        raise AuditError(f"{path} does not say whose it is: {checkpoints.META_PROPERTIES} is missing or unreadable")
    return int(match[1])


def _refuse_mixtures(logs: list[LogDirectory]) -> None:
    clusters = {log.cluster_id: log.path for log in logs if log.cluster_id is not None}
    if len(clusters) > 1:
        where = ", ".join(f"{path} ({cluster})" for cluster, path in sorted(clusters.items()))
        raise AuditError(f"the directories belong to different clusters: {where}; audit one cluster at a time")


def _replicas(log: LogDirectory, damage: list[tuple[str, str]]) -> list[ReplicaFacts]:
    def offsets(name: str) -> dict[TopicPartition, int]:
        return _read_parsed(f"{log.path}/{name}", checkpoints.parse_offset_checkpoint, damage) or {}

    high_watermarks = offsets(checkpoints.HIGH_WATERMARK_CHECKPOINT)
    recovery_points = offsets(checkpoints.RECOVERY_POINT_CHECKPOINT)
    partitions = {entry.path: _partition_of(entry.name) for entry in os.scandir(log.path) if os.path.isdir(entry)}
    return [
        _replica(
            log,
            directory,
            partition,
            high_watermarks.get(partition),
            recovery_points.get(partition),
        )
        for directory, partition in partitions.items()
        if partition is not None
    ]


def _replica(
    log: LogDirectory,
    directory: str,
    partition: TopicPartition,
    high_watermark: int | None,
    recovery_point: int | None,
) -> ReplicaFacts:
    damage: list[tuple[str, str]] = []
    epochs = _read_parsed(f"{directory}/{checkpoints.EPOCH_CHECKPOINT}", checkpoints.parse_epoch_checkpoint, damage)
    metadata = _read_parsed(f"{directory}/{checkpoints.PARTITION_METADATA}", parse_partition_metadata, damage)
    segments = _segments(directory)
    # Read behind the segments' names: a running broker records a start before it deletes what lies in front of it.
    log_start = _read_parsed(f"{directory}/{checkpoints.LOG_START}", checkpoints.parse_log_start, damage)
    return ReplicaFacts(
        broker=log.broker,
        topic=partition.topic,
        partition=partition.partition,
        directory=directory,
        high_watermark=high_watermark,
        log_start=log_start[0] if log_start is not None else None,
        recovery_point=recovery_point,
        cleanly_stopped=log.cleanly_stopped,
        epoch_entries=None if epochs is None else tuple(epochs),
        metadata=metadata,
        segments=segments,
        damage=tuple(damage),
    )


def _segments(directory: str) -> tuple[tuple[int, int], ...]:
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
            found.append((parsed[0], 1))  # who reads it says what it is
            continue
        try:
            found.append((parsed[0], entry.stat().st_size))
        except FileNotFoundError:
            continue
        if not os.access(entry.path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), entry.path)
    return tuple(sorted(found))


def _read_parsed(path: str, parse: Callable[[bytes], T], damage: list[tuple[str, str]]) -> T | None:
    """The parsed content; None when the file is missing, or does not read (then `damage` says why)."""
    try:
        content = read_regular(path, OFFSETS_FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        damage.append((path, f"cannot be read: {error.strerror}"))
        return None
    try:
        return parse(content)
    except ProtocolError as error:
        damage.append((path, str(error)))
        return None


def _parse_cluster_state(content: bytes) -> dict[str, LastKnownState]:
    return decode_json(content, _ClusterState, CLUSTER_STATE, CorruptCheckpoint).partitions
