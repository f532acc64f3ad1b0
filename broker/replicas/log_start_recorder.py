"""Raises log starts: the start that retention decides, its durable record, and the files in front of it.

Owns: the order 'decide, record, report, delete'. Leaves to others: what may be deleted (`log.retention`,
`replication.log_starts`).
"""

import logging
from collections.abc import Callable, Mapping

from minibroker.broker.log.retention import retention_start
from minibroker.broker.owned_tasks import OwnedTasks
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import Fetching
from minibroker.protocol.events.replica_events import SegmentsDeleted
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.ports import BadEntry, Clock, DiskError

log = logging.getLogger("minibroker.log_start_recorder")


class LogStartRecorder:
    """Records log starts and applies retention. Implements `partition.LogStartServices`."""

    def __init__(
        self,
        partitions: Mapping[TopicPartition, Partition],
        tasks: OwnedTasks,
        log_failed: Callable[[Partition, DiskError], None],
        fetch_next: Callable[[Partition], None],
    ) -> None:
        self._partitions = partitions
        self._tasks = tasks
        self._log_failed = log_failed
        self._fetch_next = fetch_next
        self._recording: set[Partition] = set()
        """Not by name: the writer for a deleted partition does nothing for one of that name."""

    async def apply_retention(self, clock: Clock) -> None:
        """For each partition that is led here: whole segments below the high watermark (KAFKA-5634)."""
        for partition in list(self._partitions.values()):
            state = partition.state
            if state.is_leader and not state.fenced:
                try:
                    start = retention_start(partition.log, state.high_watermark, clock.now_ms())
                    await self.raise_start(partition, start, LogStartReason.RETENTION)
                except BadEntry as error:
                    self._log_failed(partition, error)

    async def raise_start(self, partition: Partition, start: int, reason: LogStartReason) -> bool:
        """Record a later log start, then apply it; returns whether the log starts there now. If the epoch of the
        decision is over when the record is written, the decision is dropped, and the record corrected."""
        state = partition.state
        epoch = state.leader_epoch
        if start <= state.log_start_offset or epoch is None:
            return start <= state.log_start_offset
        await partition.log.record_start(start, reason)
        if self._partitions.get(partition.topic_partition) is not partition:
            return False
        partition.handle(ev.LogTrimmed(leader_epoch=epoch, log_start_offset=start, reason=reason))
        if state.log_start_offset < start:
            return False
        partition.report(SegmentsDeleted, offset=start, reason=str(reason))
        partition.delete_head()
        return True

    def record_soon(self, partition: Partition) -> None:
        """Record the log start that the leader sent, then report it to the leader."""
        if partition not in self._recording:
            self._recording.add(partition)
            self._tasks.own(self._record(partition), f"start-{partition.topic_partition}")

    async def _record(self, partition: Partition) -> None:
        try:
            while self._is_here(partition) and not partition.log.is_start_recorded:
                await partition.log.record_start()
        except DiskError as error:
            self._log_failed(partition, error)
            return
        finally:
            self._recording.discard(partition)
        if self._is_here(partition) and isinstance(partition.state.phase, Fetching):
            self._fetch_next(partition)

    def _is_here(self, partition: Partition) -> bool:
        return self._partitions.get(partition.topic_partition) is partition and not partition.state.is_offline

    def delete_heads(self) -> None:
        """For all partitions, as far as all in-sync replicas have recorded their starts."""
        for partition in list(self._partitions.values()):
            partition.delete_head()
