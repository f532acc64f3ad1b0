"""After a failed sync the content of the disk is unknown, whatever its error: nothing more is appended (I15), and the
log's record of its file sizes matches the files (I12).

Owns: which processes have met a failed sync, and a look at segment sizes on disks that had faults. Leaves to others:
the content of the files (`served`, `audited_disks`). Source: "Can Applications Recover from fsync Failures?" (ATC'20).
"""

from collections.abc import Sequence

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.partition import Partition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.runtime.observer import Handlers
from minibroker.runtime.ports import FileMissing, OutOfDescriptors
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS, Process
from minibroker.simulation.world.observations import DiskCallFailed
from minibroker.simulation.world.storage import SimulatedStorage

SYNCS = ("sync", "sync_directory")
NOTICED_SECONDS = 0.25
"""Syncs run in the background, several at once: the event loop notices a failure when all of them are done. Only time
in which the process runs counts: what stands in its loop before that may be calls to a slow disk."""


class FailedSyncChecker(Checker):
    """Checks one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._failed: dict[Process, tuple[str, float]] = {}
        """Path of the file, and time of the failure, or when its process last stood still."""
        self._had_errors: set[Process] = set()
        """Processes that have met any disk error."""

    def world_events(self) -> Handlers:
        return {DiskCallFailed: self._on_disk_call_failed}

    def _on_disk_call_failed(self, event: DiskCallFailed) -> None:
        process = PROCESS.get()
        if process is None:
            return
        self._had_errors.add(process)
        if event.call in SYNCS and not isinstance(event.error, OutOfDescriptors):
            self._failed.setdefault(process, (event.path, self._cluster.world.loop.elapsed))

    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None:
        process = PROCESS.get()
        if process is None or process not in self._failed or not self._reference.is_promised(log.topic_partition.topic):
            return
        path, when = self._failed[process]
        if self._cluster.world.loop.elapsed - when < NOTICED_SECONDS:
            return
        facts = (f"a sync of {path} failed by {when:.3f}", f"then {batches[0].base_offset} was appended")
        self._reference.find("I15", f"{process} writes on after a failed sync", log.topic_partition, *facts)

    def sample(self) -> None:
        """I12, for processes that met disk errors."""
        for process, (path, _) in self._failed.items():
            if process.alive and not process.runs:
                self._failed[process] = (path, self._cluster.world.loop.elapsed)
        for broker_id in self._cluster.alive():
            machine = self._cluster.world.machine(f"broker-{broker_id}")
            if machine.process in self._had_errors and machine.process not in self._reference.lost_files:
                for actual in self._reference.states():
                    replica = self._cluster.replica(broker_id, actual.partition.topic, actual.partition.partition)
                    if replica is not None and not replica.state.is_offline and not replica.log.health.is_impaired:
                        self._compare(machine.storage, replica)

    def _compare(self, storage: SimulatedStorage, replica: Partition) -> None:
        for segment in replica.log.segments:
            try:
                size = len(storage.find_file(segment.log_path).content)
            except FileMissing:
                size = 0
            if size != segment.size:
                facts = (f"{segment.log_path} has {size} bytes", f"the log counts {segment.size}")
                text = f"{storage.host} has a log that its files do not hold"
                self._reference.find("I12", text, replica.topic_partition, *facts)
                return
