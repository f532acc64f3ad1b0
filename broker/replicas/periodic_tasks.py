"""Periodic tasks of a broker: lag, deadlines, checkpoints, retention, flushing, recovery from disk errors.

Owns: the intervals and the loops. Leaves to others: the work itself; each periodic task passes an event to the core or
calls its owner. All loops use the loop's time and are tasks of `run`, which the broker owns.
"""

import asyncio
import logging
from collections.abc import Callable

from minibroker.broker.disk_faults.full_disk import RELIEF_MS
from minibroker.broker.disk_faults.scrubber import Scrubber
from minibroker.broker.owned_tasks import OwnedGroup
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.broker.replication import events as ev
from minibroker.broker.requests.produce import ProduceHandler
from minibroker.protocol.events.broker_events import ProcessStalled
from minibroker.runtime.ports import BadEntry, Clock, DiskError

log = logging.getLogger("minibroker.periodic_tasks")

TICK_MS = 100
"""Interval of the checks for fencing, request deadlines and stalls of this process."""
STALL_MS = TICK_MS
"""A tick that is late by more than this is a stall of this process (a pause, a slow disk call), not of the followers.
Short ones count, too: they add up under load, and the lag limit may be close to them."""
LONG_STALL_MS = 500
"""A stall of this length is logged."""
ISR_RETRY_MS = 500
"""Interval at which partitions with replicas out of sync are checked for replicas that have caught up."""
MAINTAIN_MS = 1_000
PRODUCER_EXPIRY_CHECK_MS = 600_000
PRODUCER_EXPIRY_CHECK_MIN_MS = 500
"""Any client may set how long producers are remembered. A check of all logs each millisecond cost a third of a core."""


class PeriodicTasks:
    """The periodic tasks of one broker."""

    def __init__(self, manager: ReplicaManager, produce: ProduceHandler, clock: Clock) -> None:
        self._manager = manager
        self._produce = produce
        self._clock = clock
        self._ticked_ms = manager.now_ms()
        self._scrubber = Scrubber(manager, clock)

    async def run(self) -> None:
        """All loops, until cancelled."""
        config = self._manager.config
        async with OwnedGroup() as group:
            group.create_task(self._tick(), name="tick")
            group.create_task(self._manager.alter_partition.run(), name="alter-partition")
            group.create_task(self._manager.run_epoch_syncing(), name="epochs")
            group.create_task(self._scrubber.run(), name="scrubber")
            lag_check_ms = max(TICK_MS, config.replica_lag_time_max_ms // 2)
            self._every(group, lag_check_ms, self._check_lag, "lag")
            self._every(group, ISR_RETRY_MS, self._retry_expansion, "expand")
            checkpoint_ms = config.replica_high_watermark_checkpoint_interval_ms
            self._every_async(group, checkpoint_ms, self._checkpoint_high_watermarks, "high-watermarks")
            self._every_async(group, config.log_flush_offset_checkpoint_interval_ms, self._checkpoint_logs, "logs")
            self._every_async(group, MAINTAIN_MS, self._maintain, "maintain")
            self._every_async(group, config.log_retention_check_interval_ms, self._apply_retention, "retention")
            self._every_async(group, RELIEF_MS, self._relieve_full_disk, "full-disk")
            group.create_task(self._expire_producers(), name="producers")

    def _every(self, group: asyncio.TaskGroup, interval_ms: int, periodic_task: Callable[[], None], name: str) -> None:
        async def loop() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                try:
                    periodic_task()
                except DiskError as error:
                    self._manager.disk.failed(error)

        group.create_task(loop(), name=f"periodic_task-{name}")

    def _every_async(
        self, group: asyncio.TaskGroup, interval_ms: int, periodic_task: Callable[[], object], name: str
    ) -> None:
        async def loop() -> None:
            while True:
                await asyncio.sleep(interval_ms / 1000)
                try:
                    await periodic_task()  # type: ignore[misc]
                except DiskError as error:
                    self._manager.disk.failed(error)

        group.create_task(loop(), name=f"periodic_task-{name}")

    async def _tick(self) -> None:
        manager = self._manager
        self._ticked_ms = manager.now_ms()
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            manager.check_fence()
            self._notice_stall()
            self._ticked_ms = manager.now_ms()
            manager.unfence()
            self._produce.expire()

    def _notice_stall(self) -> None:
        """Lag counts only time in which this loop ran (hardening rule 7). After a stall, any of the late timers may
        fire first, so each lag check calls this, too."""
        now_ms = self._manager.now_ms()
        stalled_ms = now_ms - self._ticked_ms - TICK_MS
        if stalled_ms > STALL_MS:
            if stalled_ms > LONG_STALL_MS:
                self._manager.observer.notify(ProcessStalled(stalled_ms=stalled_ms))
            self._ticked_ms = now_ms
            self._to_leaders(ev.LeaderStalled(stalled_ms=stalled_ms, now_ms=now_ms))

    def _to_leaders(self, event: ev.ReplicaEvent) -> None:
        for partition in list(self._manager.partitions.values()):
            if partition.state.is_leader:
                partition.handle(event)

    def _check_lag(self) -> None:
        self._notice_stall()
        self._to_leaders(ev.LagChecked(now_ms=self._manager.now_ms()))

    def _retry_expansion(self) -> None:
        """An idle follower sends nothing: without this, one refused proposal would keep it out of the ISR forever."""
        self._notice_stall()
        event = ev.LagChecked(now_ms=self._manager.now_ms())
        for partition in list(self._manager.partitions.values()):
            state = partition.state
            if state.is_leader and len(state.in_sync_replicas) < len(state.assignment):
                partition.handle(event)

    async def _checkpoint_high_watermarks(self) -> None:
        directory = self._manager.log_directory
        if not directory.offline:
            await directory.checkpoint_high_watermarks(self._manager.high_watermarks())

    async def _checkpoint_logs(self) -> None:
        """Data first, then the recovery point, then its checkpoint (KAFKA-10101). This syncs nothing that the
        configuration does not ask for: `maintain` syncs only closed segments."""
        directory = self._manager.log_directory
        if not directory.offline:
            await directory.checkpoint_recovery_points()
            await directory.record_log_starts()

    async def _maintain(self) -> None:
        manager = self._manager
        now_ms = self._clock.now_ms()
        try:
            self._shorten_logs(now_ms)
        except DiskError as error:  # the directory may have room again by what follows
            manager.disk.failed(error)
        await manager.log_directory.maintain(now_ms)
        if manager.disk.has_healed:
            manager.disk.healed()
        manager.repairs.go_on()
        manager.disk.offer_those_waiting_for_descriptor()
        manager.disk.offer_those_blocked()

    def _shorten_logs(self, now_ms: int) -> None:
        """Close segments by age. Remove the damaged logs of finished repairs, and what retention has deleted."""
        for partition in list(self._manager.partitions.values()):
            try:
                partition.log.roll_if_aged(now_ms)
            except BadEntry as error:
                self._manager.disk.log_failed(partition, error)
        self._manager.repairs.finish()
        self._manager.log_start_recorder.delete_heads()

    async def _apply_retention(self) -> None:
        await self._manager.log_start_recorder.apply_retention(self._clock)

    async def _relieve_full_disk(self) -> None:
        await self._manager.full_disk.relieve(self._clock)

    async def _expire_producers(self) -> None:
        """The interval follows a setting that may be lowered at any time, so no single wait is long."""
        waited_ms = 0
        while True:
            pause_ms = min(MAINTAIN_MS, max(1, self._expiry_check_ms - waited_ms))
            await asyncio.sleep(pause_ms / 1000)
            waited_ms += pause_ms
            if waited_ms >= self._expiry_check_ms:
                waited_ms = 0
                for partition in self._manager.partitions.values():
                    partition.log.expire_producers(self._clock.now_ms())

    @property
    def _expiry_check_ms(self) -> int:
        half = self._manager.config.producer_id_expiration_ms // 2 + 1
        return min(PRODUCER_EXPIRY_CHECK_MS, max(PRODUCER_EXPIRY_CHECK_MIN_MS, half))
