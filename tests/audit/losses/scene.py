"""A small cluster after a clean stop, to which one action is applied, and the sources that an audit of it may use.

Owns: the scene of the table of losses (docs/AUDIT.md), the sources of knowledge that are its columns, and one audit of
a scene with one of them. The actions are in `catalogue`.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import msgspec

from minibroker.audit.checks.expectation import SourcedState
from minibroker.audit.checks.findings import PartitionResult
from minibroker.audit.errors import AuditError
from minibroker.audit.local_engine import compare_locally
from minibroker.audit.reading.acked_file import check_list, open_acked
from minibroker.audit.reading.discovery import Inventory, discover
from minibroker.audit.reports.report import AuditReport, Meta, make_report
from minibroker.audit.reports.timings import Stopwatch
from minibroker.audit.run import findings_of_directories
from minibroker.protocol.files.acked_list import AckedListWriter, record_checksum
from minibroker.protocol.files.cluster_state import CLUSTER_STATE, ClusterState, format_cluster_state
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import batch_digest, format_digest
from minibroker.protocol.record_batch import decode_records, read_header
from minibroker.protocol.witness import PartitionWitness
from tests.audit.planted_cluster import START_MS, TOPIC_ID, PlantedCluster, PlantedReplica, encode, put, some_batches

PRODUCER = 7
LOG = encode(some_batches(), producer_id=PRODUCER)
"""Twelve batches, 24 records, epochs 0 to 2, in three segments that begin at 0, 9 and 19."""
BROKERS = (1, 2, 3)
ZOOKEEPER = "ZooKeeper at zookeeper:2181"


class KnownSources(StrEnum):
    """The audit's sources besides the brokers' directories: one column each."""

    NOTHING = "nothing"
    LIST = "acked list"
    STATE = "state file"
    ZOOKEEPER = "ZooKeeper"
    WITNESS = "witness"
    ALL = "all of it"


WITH_STATE = (KnownSources.STATE, KnownSources.WITNESS, KnownSources.ALL)
WITH_LIST = (KnownSources.LIST, KnownSources.ALL)


class Scene:
    """Three replicas of one partition, in sync and stopped cleanly, with all files that a broker leaves."""

    def __init__(self, root: Path, name: str = "lines", log: Sequence[bytes] = LOG) -> None:
        self.root = root
        self.partition = TopicPartition(name, 0)
        self.log = list(log)
        self.cluster = PlantedCluster(root, BROKERS)
        self.cluster.topic_ids[self.partition] = TOPIC_ID
        self.replace_log(self.log, BROKERS)
        self.cluster.write_state(self.partition, 1, 2, BROKERS)
        self.witness = witness_of(self.log)
        self.acked = list(log)
        """The batches whose records are in the list."""
        self.killed: set[int] = set()
        """Brokers that were not stopped cleanly."""
        self.state_is_garbled = False
        self.unreadable: set[str] = set()
        """Files that the audit's user may not read."""

    def replica(self, broker: int) -> PlantedReplica:
        return self.cluster.replica(broker, self.partition)

    def replace_log(self, batches: Sequence[bytes], brokers: Sequence[int], *, with_checkpoints: bool = True) -> None:
        """Rewrite the log with all files next to it and, `with_checkpoints`, the broker's checkpoints to match."""
        end = read_header(batches[-1]).end_offset
        for broker in brokers:
            replica = self.replica(broker)
            replica.write(list(batches), read_header(batches[0]).base_offset)
            replica.write_snapshot(batches)
            if with_checkpoints:
                self.cluster.set_high_watermark(broker, self.partition, end)
                self.cluster.set_recovery_point(broker, self.partition, end)

    # the sources
    def prepare(self, known: KnownSources) -> list[SourcedState]:
        """Leave exactly these sources next to the directories; returns ZooKeeper's state."""
        state = self.cluster.state
        if known in (KnownSources.WITNESS, KnownSources.ALL):
            state = msgspec.structs.replace(state, witnesses={str(self.partition): self.witness})
        file = self.root / CLUSTER_STATE
        file.unlink(missing_ok=True)
        if known in WITH_STATE or self.state_is_garbled:
            file.write_bytes(b"{}" if self.state_is_garbled else format_cluster_state(state))
        # ZooKeeper describes a running cluster.
        present = [broker for broker in BROKERS if self.cluster.log_directory(broker).exists()]
        for broker in present:
            self.cluster.stop_cleanly(known is not KnownSources.ZOOKEEPER and broker not in self.killed, broker)
        return [zookeeper_state(state)] if known is KnownSources.ZOOKEEPER else []


def acked_list(scenes: Iterable[Scene], file: Path) -> Path:
    """As the producer wrote it."""
    scenes = list(scenes)
    parts: list[bytes] = []
    writer = AckedListWriter(parts.append, {scene.partition.topic: TOPIC_ID for scene in scenes})
    for scene in scenes:
        writer.add(*scene.partition, acked_records(scene.acked))
    writer.finish()
    put(file, b"".join(parts))
    return file


def acked_records(batches: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """(offset, checksum)."""
    for batch in batches:
        for offset, kept in enumerate(decode_records(batch), read_header(batch).base_offset):
            yield offset, record_checksum(kept.timestamp_ms, kept.key, kept.value, kept.headers)


def zookeeper_state(state: ClusterState) -> SourcedState:
    return SourcedState(source=ZOOKEEPER, state=state, stopped=False)


def witness_of(batches: Sequence[bytes], topic_id: str = TOPIC_ID) -> PartitionWitness:
    return PartitionWitness(
        topic_id=topic_id,
        leader_epoch=2,
        replicas=BROKERS,
        isr=BROKERS,
        log_start_offset=read_header(batches[0]).base_offset,
        committed_offset=read_header(batches[-1]).end_offset,
        digest=format_digest(sum(map(batch_digest, batches)) % (1 << 128)),
        noted_at_ms=START_MS,
    )


class Audited(NamedTuple):
    """Result of one audit."""

    inventory: Inventory | None
    report: AuditReport | None
    refusal: str | None = None
    """Why it could not run."""


def inventory_of(scene: Scene, known: KnownSources) -> Inventory:
    """The audit's knowledge before it reads a log. Raises AuditError."""
    states = scene.prepare(known)
    with without_access(scene.unreadable):
        return discover([str(scene.root)], states)


def audit(scene: Scene, known: KnownSources) -> Audited:
    """One audit of the scene with these sources, by the local engine."""
    acked = str(acked_list([scene], scene.root / "acked.list")) if known in WITH_LIST else None
    try:
        inventory = inventory_of(scene, known)
    except AuditError as error:
        return Audited(None, None, str(error))
    results = compare_locally(inventory, acked, with_values=acked is not None)
    return Audited(inventory, report_of(inventory, results, acked))


def report_of(inventory: Inventory, results: list[PartitionResult], acked: str | None) -> AuditReport:
    """As `run_audit` makes it."""
    meta = Meta(run_id="", started="", engine="", directories=(), acked=acked, versions={})
    found = [*findings_of_directories(inventory), *(check_list(open_acked(acked)) if acked is not None else ())]
    brokers = len({log.broker for log in inventory.log_directories})
    return make_report(results, found, brokers, 0.0, Stopwatch().timings(), meta)


@contextmanager
def without_access(files: set[str]) -> Iterator[None]:
    """As if permissions denied the audit these files: root, as which tests may run, may read everything."""
    access = os.access

    def denied(path: str, mode: int) -> bool:
        return str(path) not in files and access(path, mode)

    with mock.patch("os.access", denied):
        yield
