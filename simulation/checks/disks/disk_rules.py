"""Checks of a running broker's disk: no high watermark is forgotten, nothing is appended after an IO error.

Owns: a look at each checkpoint of high watermarks whenever it has changed and whenever a broker has loaded a log (I11
over a restart: KAFKA-769, KAFKA-1647), and which processes have met an IO error during an append (KAFKA-10778). Leaves
to others: batches (`replicas`, and the audit's rules in `audited_disks`).
"""

from collections.abc import Sequence

import msgspec

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.protocol.files.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LOG_SUFFIX,
    CorruptCheckpoint,
    parse_offset_checkpoint,
    partition_directory_name,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.observer import Handlers
from minibroker.runtime.ports import DiskFull, FileMissing
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.disks.audited_disks import LOG_DIRECTORY
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS, Process
from minibroker.simulation.world.observations import DiskCallFailed
from minibroker.simulation.world.storage import SimulatedStorage

HIGH_WATERMARKS_PATH = f"{LOG_DIRECTORY}/{HIGH_WATERMARK_CHECKPOINT}"


class CheckpointSnapshot(msgspec.Struct, frozen=True):
    """A checkpoint of high watermarks, with the disk and the machine boot it was read from."""

    root: object
    boots: int
    content: bytes
    high_watermarks: dict[TopicPartition, int]
    directories: dict[TopicPartition, object]
    """Directories of its partitions when it was first seen: a recreated one has no high watermark to keep."""


class DiskRuleChecker(Checker):
    """Checks one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._snapshots: dict[int, CheckpointSnapshot] = {}
        self._faulty: dict[int, CheckpointSnapshot | None] = {}
        """The checkpoint when the disk was last faulty: replicas may be recreated then, with high watermarks of their
        own."""
        self._failed: dict[Process, str] = {}
        """Processes with a failed append to a segment, and its path."""

    def world_events(self) -> Handlers:
        return {DiskCallFailed: self._on_disk_call_failed}

    def _storage(self, broker_id: int) -> SimulatedStorage:
        return self._cluster.world.machine(f"broker-{broker_id}").storage

    # -------------------------------------------------------------------------------------------------- IO errors
    def _on_disk_call_failed(self, event: DiskCallFailed) -> None:
        process = PROCESS.get()
        if process is None or isinstance(event.error, DiskFull):
            return
        if event.call == "append" and event.path.endswith(LOG_SUFFIX):
            self._failed.setdefault(process, event.path)

    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None:
        process = PROCESS.get()
        if process is None or process not in self._failed or not self._reference.is_promised(log.topic_partition.topic):
            return
        facts = (f"an append to {self._failed[process]} failed", f"then {batches[0].base_offset} was appended")
        self._reference.find("I15", f"{process} writes on after an IO error", log.topic_partition, *facts)

    # --------------------------------------------------------------------------------------------- high watermarks
    def sample(self) -> None:
        """Whether a live partition is missing from a checkpoint."""
        for broker_id in self._cluster.broker_ids:
            storage = self._storage(broker_id)
            if broker_id in self._reference.faulty:
                found = self._faulty[broker_id] = self._read(storage, self._faulty.get(broker_id))
                if found is None:
                    self._snapshots.pop(broker_id, None)  # a recreated checkpoint remembers nothing
                continue
            now, before = self._read(storage, self._snapshots.get(broker_id)), self._snapshots.get(broker_id)
            if now is None or now is before:
                continue
            self._snapshots[broker_id] = now
            if before is None and self._faulty.get(broker_id, now) is None:
                self._faulty[broker_id] = (
                    now  # readable again: the running broker found it unreadable and started without it
                )
            faulty = self._faulty.get(broker_id)
            if before is None or (faulty is not None and faulty.content in (before.content, now.content)):
                continue  # one of the two comes from the faulty disk
            if before.root is not now.root or before.boots != now.boots:
                continue
            for partition in sorted(before.high_watermarks.keys() - now.high_watermarks.keys()):
                directory = before.directories.get(partition)
                is_kept = directory is not None and directory is _directory(storage, partition)
                if self._reference.is_promised(partition.topic) and is_kept:
                    facts = (
                        f"it had the high watermark {before.high_watermarks[partition]}",
                        f"now it has {sorted(now.high_watermarks)}",
                    )
                    text = f"the checkpoint of broker {broker_id} forgot a replica's high watermark"
                    self._reference.find("I11", text, partition, *facts)

    def replica_loaded(self, replica: ObservedReplica) -> None:
        process = PROCESS.get()
        if process is None or not self._reference.is_promised(replica.topic_partition.topic):
            return
        now = self._read(self._cluster.world.machine(process.name).storage, None)
        if int(process.name.rpartition("-")[2]) in self._reference.faulty:
            return
        state = replica.state
        recorded = 0 if now is None else now.high_watermarks.get(replica.topic_partition, 0)
        if state.high_watermark < min(recorded, state.log_end_offset):
            facts = (f"its checkpoint holds {recorded}, its log ends at {state.log_end_offset}",)
            text = f"{process} starts with the high watermark {state.high_watermark}"
            self._reference.find("I11", text, replica.topic_partition, *facts)

    @staticmethod
    def _read(storage: SimulatedStorage, known: CheckpointSnapshot | None) -> CheckpointSnapshot | None:
        """None: there is none, or it is unreadable."""
        try:
            content = bytes(storage.find_file(HIGH_WATERMARKS_PATH).content)
            if known is not None and (known.root, known.boots, known.content) == (storage.root, storage.boots, content):
                return known
            high_watermarks = parse_offset_checkpoint(content)
            directories = {each: _directory(storage, each) for each in high_watermarks}
            return CheckpointSnapshot(storage.root, storage.boots, content, high_watermarks, directories)
        except (FileMissing, CorruptCheckpoint):
            return None


def _directory(storage: SimulatedStorage, partition: TopicPartition) -> object | None:
    try:
        return storage.find_directory(f"{LOG_DIRECTORY}/{partition_directory_name(partition)}")
    except FileMissing:
        return None
