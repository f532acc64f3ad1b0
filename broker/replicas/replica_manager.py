"""All local replicas: loads and creates them, and provides the services they need.

Owns: the map of partitions, fencing of all partitions at once, and fetchers per leader. Leaves to others: decisions on
replication (the core), parsing requests, the controller's orders (`replica_orders`), periodic work (`periodic_tasks`),
and the effects of disk errors on replicas (`disk_errors`).

Source: replication rules, section 7; hardening rules 7, 8, 13.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.configuration.topic_config import TopicConfig, log_config, resolve_topic_config
from minibroker.broker.disk_faults.disk_errors import DESCRIPTOR_RETRY_MS, DiskErrors
from minibroker.broker.disk_faults.full_disk import FullDisk
from minibroker.broker.disk_faults.repairs import Repairs, is_damaged_log_of
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.membership.refusals import Refusals
from minibroker.broker.membership.registration import Registration
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.owned_tasks import OwnedTasks
from minibroker.broker.replicas.alter_partition_sender import AlterPartitionSender
from minibroker.broker.replicas.log_start_recorder import LogStartRecorder
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replicas.replica_fetcher import FetcherConfig, ReplicaFetcher
from minibroker.broker.replicas.replica_orders import ReplicaOrders
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import (
    Halted,
    ReplicaState,
    ReplicationConfig,
    Role,
    TruncationRule,
)
from minibroker.broker.requests.fetch import FetchHandler
from minibroker.protocol.events.broker_events import LeadershipFenced, LeadershipUnfenced
from minibroker.protocol.events.replica_events import IsrProposed, ReplicaRemoved
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import DiskError, OutOfDescriptors

log = logging.getLogger("minibroker.replica_manager")

BACK_OFF_MS = (20, 50, 100, 200, 500)
"""Pauses after an error of the leader, per partition; then replica.fetch.backoff.ms. Right after an election the new
leader often does not know of it yet: waiting a second would be a second of refused writes."""


class ReplicaManager:
    """All replicas of one broker. Implements `partition.PartitionServices`."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        log_directory: LogDirectory,
        registration: Registration,
        image: MetadataImage,
        dialer: BrokerDialer,
        counters: BrokerCounters,
        reply_room: Callable[[], int],
        observer: Observer,
    ) -> None:
        self.config = config
        self.observer = observer
        self.log_directory = log_directory
        self.registration = registration
        self.image = image
        self.counters = counters
        self.partitions: dict[TopicPartition, Partition] = {}
        self.refusals = Refusals()
        self.fenced = True
        self.disk = self._disk_errors()
        self.full_disk = FullDisk(
            broker_id=config.broker_id,
            log_directory=log_directory,
            partitions=self.partitions,
            image=image,
            address=self.address,
            is_fenced=lambda: self.fenced,
            dialer=dialer,
        )
        self._dialer = dialer
        self._loop = asyncio.get_running_loop()
        self._tasks = OwnedTasks()
        self._fetchers: dict[int, ReplicaFetcher] = {}
        self._followed: dict[TopicPartition, ReplicaFetcher] = {}
        self._has_stopped = False
        self._back_offs: dict[TopicPartition, int] = {}
        self._syncing: dict[Partition, bool] = {}
        self._epochs_to_sync = asyncio.Event()
        self._fenced_broker_epoch: int | None = None
        self.alter_partition = AlterPartitionSender(
            dialer=dialer,
            broker_id=config.broker_id,
            broker_epoch=lambda: registration.broker_epoch,
            controller_address=self.controller_address,
            request_timeout_ms=max(200, config.replica_lag_time_max_ms // 2),
            now_ms=self.now_ms,
            observer=observer,
        )
        self.repairs = self._replica_repairs()
        self.log_start_recorder = LogStartRecorder(self.partitions, self._tasks, self.disk.log_failed, self.fetch_next)
        self.orders = ReplicaOrders(self, log_directory, self.disk, self.repairs, observer)
        self.fetches = self._fetch_handler(reply_room)

    def _disk_errors(self) -> DiskErrors:
        return DiskErrors(
            log_directory=self.log_directory,
            partitions=self.partitions,
            partition_changed=lambda partition: self.fetches.partition_changed(partition),
            log_damaged=lambda partition, reason: self.repairs.damaged(partition, reason),
            now_ms=self.now_ms,
            counters=self.counters,
            observer=self.observer,
        )

    def _replica_repairs(self) -> Repairs:
        return Repairs(
            broker_id=self.config.broker_id,
            log_directory=self.log_directory,
            partitions=self.partitions,
            opened=self.opened,
            topic_config=lambda topic: resolve_topic_config(self.config, self.image.topic_configs(topic)),
            partition_changed=lambda partition: self.fetches.partition_changed(partition),
            disk=self.disk,
            image=self.image,
            now_ms=self.now_ms,
            counters=self.counters,
        )

    def _fetch_handler(self, reply_room: Callable[[], int]) -> FetchHandler:
        return FetchHandler(
            partitions=self.partitions,
            leader_hint=self.image.leader_hint,
            is_known=lambda tp: self.image.knows_partition(tp.topic, tp.partition),
            is_eligible=self.image.is_eligible,
            reply_room=reply_room,
            log_failed=self.disk.read_failed,
            log_damaged=self.repairs.damaged,
            now_ms=self.now_ms,
            response_max_bytes=self.config.fetch_max_bytes,
            counters=self.counters,
            observer=self.observer,
        )

    # ----------------------------------------------------------------------------------------------------- loading
    def load(self) -> None:
        """A partition for every log found, so that its high watermark always stays in the checkpoint (KAFKA-1647)."""
        high_watermarks = self.log_directory.read_high_watermarks()
        for topic_partition in self.log_directory.logs:
            partition = self._add(
                topic_partition, resolve_topic_config(self.config, {}), high_watermarks.get(topic_partition, 0)
            )
            self.repairs.loaded(partition)

    def _add(self, topic_partition: TopicPartition, topic_config: TopicConfig, high_watermark: int) -> Partition:
        partition = Partition(
            self,
            topic_partition,
            self.log_directory.logs[topic_partition],
            self.replication_config(topic_config),
            high_watermark,
        )
        self.partitions[topic_partition] = partition
        return partition

    def replication_config(self, topic_config: TopicConfig) -> ReplicationConfig:
        return ReplicationConfig(
            broker_id=self.config.broker_id,
            min_insync_replicas=topic_config.min_insync_replicas,
            replica_lag_time_max_ms=self.config.replica_lag_time_max_ms,
            counts_only_synced=topic_config.counts_only_synced,
            truncation_rule=TruncationRule(self.config.replica_truncation_rule),
        )

    def reconfigure(self, config: BrokerConfig | None = None, topics: tuple[str, ...] | None = None) -> None:
        """Settings of the broker or of some topics changed."""
        self.config = config or self.config
        for topic_partition, partition in list(self.partitions.items()):
            if topics is not None and topic_partition.topic not in topics:
                continue
            topic_config = resolve_topic_config(self.config, self.image.topic_configs(topic_partition.topic))
            partition.configure(self.replication_config(topic_config), log_config(topic_config))

    def opened(self, topic_partition: TopicPartition, topic_id: str, topic_config: TopicConfig) -> Partition:
        """The partition with its log; created if there is none, or if the log belongs to another topic of that name."""
        known = self.partitions.get(topic_partition)
        if known is not None and (known.log.topic_id == topic_id or is_damaged_log_of(known, topic_id)):
            return known
        if known is not None and known.log.topic_id is not None:
            self.drop(topic_partition, "the topic was deleted and created again")
            known = None
        self.log_directory.create_log(topic_partition, topic_id, log_config(topic_config))
        return known or self._add(topic_partition, topic_config, high_watermark=0)

    def drop(self, topic_partition: TopicPartition, reason: str) -> None:
        partition = self.partitions[topic_partition]
        if partition.state.role is not Role.NONE:
            partition.handle(ev.ReplicaStopped(leader_epoch=None))  # and follows no leader any more
        self.fetches.partition_changed(partition)
        self._back_offs.pop(topic_partition, None)
        self.log_directory.delete_log(topic_partition)  # on an error everything stays, for another attempt
        del self.partitions[topic_partition]
        if partition.state.is_offline:
            self.disk.on_changed()  # the next topic of this name is not offline, or is so anew
        topic, number = topic_partition
        self.observer.notify(ReplicaRemoved(topic=topic, partition=number, reason=reason))

    def offline_partitions(self) -> list[TopicPartition]:
        return sorted(name for name, each in self.partitions.items() if each.state.is_offline)

    def brokers_changed(self, partitions: Iterable[TopicPartition]) -> None:
        """The controller sent other live brokers, or changes of these partitions, so that other replicas may join their
        ISRs. Only these are checked, because consecutive requests each name a few of very many partitions."""
        event = ev.BrokersChanged(eligible=self.image.eligible_brokers(), now_ms=self.now_ms())
        for topic_partition in partitions:
            partition = self.partitions.get(topic_partition)
            if partition is not None and partition.state.is_leader:
                partition.handle(event)

    def controller_address(self) -> tuple[int, str, int] | None:
        """(id, host, port) of the controller, according to UpdateMetadata."""
        controller_id = self.image.controller_id
        if controller_id is None:
            return None
        address = self.address(controller_id)
        return None if address is None else (controller_id, *address)

    def address(self, broker_id: int) -> tuple[str, int] | None:
        return self.image.address(broker_id, self.config.inter_broker_listener)

    # -------------------------------------------------------------------------------------------------------- fencing
    def check_fence(self) -> None:
        """Fence if the ZooKeeper deadline has passed; called before each decision of a leader (hardening rule 8)."""
        if not self.fenced and self.registration.is_fenced():
            self.fence()

    def fence(self) -> None:
        """Stop acting as leader of all partitions, now."""
        if self.fenced:
            return
        self.fenced = True
        self._fenced_broker_epoch = self.registration.broker_epoch
        self.counters.fenced += 1
        self.observer.notify(LeadershipFenced())
        for partition in list(self.partitions.values()):
            partition.handle(ev.BrokerFenced())
            self.fetches.partition_changed(partition)

    def unfence(self) -> None:
        """ZooKeeper answers again. If the registration is still the same, so are the leaderships; otherwise each
        partition waits for a LeaderAndIsr to the new broker epoch, however often the fence comes and goes."""
        if not self.fenced:
            return
        broker_epoch = self.registration.broker_epoch
        if broker_epoch not in (None, self._fenced_broker_epoch):  # also if it is fenced: orders to it may come first
            self._fenced_broker_epoch = broker_epoch
            for partition in self.partitions.values():
                partition.awaits_order = True
        if self.registration.is_fenced():
            return
        self.fenced = False
        self.observer.notify(LeadershipUnfenced(broker_epoch=broker_epoch))
        for partition in list(self.partitions.values()):
            if not partition.awaits_order:
                partition.handle(ev.BrokerUnfenced(now_ms=self.now_ms()))

    # --------------------------------------------------------------------------------------------- partition services
    def now_ms(self) -> int:
        """The loop's time: the only clock that replication uses."""
        return int(self._loop.time() * 1000)

    def propose_isr(self, partition: Partition, proposal: ev.ProposeIsr) -> None:
        members = [b for b, _ in proposal.new_isr_with_epochs]
        if not proposal.after_ms:
            partition.report(IsrProposed, isr=members, kind=proposal.kind.value)
        self.alter_partition.propose(partition, proposal)

    def leader_changed(self, partition: Partition) -> None:
        """Follow, or stop following, and wake waiting fetches. The fetcher looks up the address at each connect."""
        topic_partition = partition.topic_partition
        followed = self._followed.get(topic_partition)
        if followed is not None and followed.leader_id != partition.state.leader_id:
            self._unfollow(topic_partition)
        if partition.state.role is Role.FOLLOWER:
            leader_id = partition.state.leader_id
            assert leader_id is not None
            self._followed[topic_partition] = self._fetcher(leader_id)
        elif followed is not None:
            self._unfollow(topic_partition)
        self._back_offs.pop(topic_partition, None)
        self.fetches.partition_changed(partition)

    def _fetcher(self, leader_id: int) -> ReplicaFetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            config = self.config
            fetcher = self._fetchers[leader_id] = ReplicaFetcher(
                dialer=self._dialer,
                leader_id=leader_id,
                address=self.address,
                leader_registration=self.image.broker_epoch,
                on_refused=self.refusals.note,
                broker_epoch=lambda: self.registration.broker_epoch,
                observer=self.observer,
                config=FetcherConfig(
                    broker_id=config.broker_id,
                    max_wait_ms=config.replica_fetch_wait_max_ms,
                    min_bytes=config.replica_fetch_min_bytes,
                    partition_max_bytes=config.replica_fetch_max_bytes,
                    response_max_bytes=config.replica_fetch_response_max_bytes,
                    socket_timeout_ms=config.replica_socket_timeout_ms,
                ),
            )
            if not self._has_stopped:
                self._tasks.own(fetcher.run(), f"fetcher-{leader_id}")
        return fetcher

    def _unfollow(self, topic_partition: TopicPartition) -> None:
        fetcher = self._followed.pop(topic_partition, None)
        if fetcher is not None:
            fetcher.leave(topic_partition)

    def ask_epoch_end(self, partition: Partition, question: ev.AskEpochEnd) -> None:
        self._followed[partition.topic_partition].ask_epoch_end(partition, question)

    def ask_leader_ends(self, partition: Partition, question: ev.AskLeaderEnds) -> None:
        self._followed[partition.topic_partition].ask_leader_ends(partition, question.leader_epoch)

    def fetch_next(self, partition: Partition) -> None:
        self._back_offs.pop(partition.topic_partition, None)
        if not partition.log.start_record.is_certain:  # this fetch names no start: the one after the record does
            self.log_start_recorder.record_soon(partition)
        self._followed[partition.topic_partition].fetch_next(partition)

    def back_off(self, partition: Partition, effect: ev.BackOff) -> None:
        """Ask again later; sooner the first times."""
        attempt = self._back_offs.get(partition.topic_partition, 0)
        self._back_offs[partition.topic_partition] = attempt + 1
        limit = self.config.replica_fetch_backoff_ms
        wait_ms = min(limit, BACK_OFF_MS[attempt]) if attempt < len(BACK_OFF_MS) else limit
        epoch = partition.state.leader_epoch
        self._loop.call_later(wait_ms / 1000, self._retry, partition, epoch)

    def _retry(self, partition: Partition, leader_epoch: int | None) -> None:
        current = self.partitions.get(partition.topic_partition) is partition
        if current and partition.state.leader_epoch == leader_epoch and not isinstance(partition.state.phase, Halted):
            attempts = self._back_offs.get(partition.topic_partition)
            partition.handle(ev.PhaseRetried())
            if attempts is not None:
                self._back_offs[partition.topic_partition] = attempts  # a retry is no success yet

    # ----------------------------------------------------------------------------------------- disk in the background
    def sync(self, partition: Partition) -> None:
        """fsync soon; appends that come while one runs share the next (group commit)."""
        if partition in self._syncing:
            self._syncing[partition] = True
            return
        self._syncing[partition] = False
        self._tasks.own(self._sync(partition), f"sync-{partition.topic_partition}")

    async def _sync(self, partition: Partition) -> None:
        topic_partition = partition.topic_partition
        try:
            while True:
                self._syncing[partition] = False
                synced_end = await self._flushed(partition)
                if self.partitions.get(topic_partition) is not partition or partition.state.role is Role.OFFLINE:
                    return
                partition.handle(ev.Synced(end_offset=synced_end, now_ms=self.now_ms()))
                if not self._syncing[partition]:
                    return
        except DiskError as error:
            self.disk.log_failed(partition, error)
        finally:
            self._syncing.pop(partition, None)

    async def _flushed(self, partition: Partition) -> int:
        """The synced end; without a file descriptor, retries until there is one."""
        while True:
            try:
                return await partition.log.flush()
            except OutOfDescriptors:
                await asyncio.sleep(DESCRIPTOR_RETRY_MS / 1000)

    def sync_epoch_files_soon(self) -> None:
        """Those that one LeaderAndIsr changed are synced together, off the loop (hardening rule 7)."""
        self._epochs_to_sync.set()

    async def run_epoch_syncing(self) -> None:
        """Task of the owner."""
        while True:
            await self._epochs_to_sync.wait()
            self._epochs_to_sync.clear()
            if self.log_directory.offline:
                continue
            try:
                await self.log_directory.sync_metadata()
            except OutOfDescriptors:
                await asyncio.sleep(DESCRIPTOR_RETRY_MS / 1000)
                self._epochs_to_sync.set()
            except DiskError as error:
                self.disk.failed(error)

    async def stop(self) -> None:
        """Stop following all leaders, also those that a later order names."""
        self._has_stopped = True
        await self._tasks.stop()

    def high_watermarks(self) -> dict[TopicPartition, int]:
        """For the checkpoint."""
        return {tp: p.state.high_watermark for tp, p in self.partitions.items() if p.state.role is not Role.OFFLINE}

    def states(self) -> dict[TopicPartition, ReplicaState]:
        return {tp: p.state for tp, p in self.partitions.items()}
