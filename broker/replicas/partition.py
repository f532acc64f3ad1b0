"""One local replica: its pure state, its log, and the code that performs effects.

Owns: the order 'decide, write, report back' for one partition, and the port to its log. Leaves to others: all
decisions (`replication.replica.step`), what an effect on the log means (`log_effects`), and sockets; what must leave
the partition goes through `PartitionServices`.

Between a decision and its write there is no await: `handle` runs from event to effects in one synchronous call.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from minibroker.broker.log.config import LogConfig
from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.log_effects import LOG_EFFECTS
from minibroker.broker.replicas.observations import BatchesLogged, LogShortened, ReplicaLoaded, ReplicaStepped
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.epoch_history import EpochHistory
from minibroker.broker.replication.leader import FetchGranted, FetchRefused
from minibroker.broker.replication.producer_state import CorruptSnapshot, ProducerStates
from minibroker.broker.replication.replica import step, step_fetch
from minibroker.broker.replication.state import LEADER, ReplicaState, ReplicationConfig, Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.event_base import PartitionEvent
from minibroker.protocol.events.replica_events import (
    IsrChanged,
    LogStartLowered,
    ReplicaReset,
    ReplicaRoleChanged,
    ReplicaTruncated,
    ReplicaWarned,
)
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader, stamp
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import BadEntry, Buffer, DiskError

log = logging.getLogger("minibroker.partition")

_RELEASED = bytearray()


class PartitionServices(Protocol):
    """What a partition needs from its broker."""

    observer: Observer

    def now_ms(self) -> int: ...
    @property
    def fenced(self) -> bool:
        """Whether the ZooKeeper deadline had passed at the last check."""
        ...

    def check_fence(self) -> None:
        """Fence all partitions now if the ZooKeeper deadline has passed."""
        ...

    def leader_changed(self, partition: "Partition") -> None:
        """Waiting fetches end; a fetcher starts or stops copying the partition."""
        ...

    def propose_isr(self, partition: "Partition", proposal: ev.ProposeIsr) -> None: ...
    def sync(self, partition: "Partition") -> None: ...
    def sync_epoch_files_soon(self) -> None: ...
    def ask_epoch_end(self, partition: "Partition", question: ev.AskEpochEnd) -> None: ...
    def ask_leader_ends(self, partition: "Partition", question: ev.AskLeaderEnds) -> None: ...
    def fetch_next(self, partition: "Partition") -> None: ...
    def back_off(self, partition: "Partition", effect: ev.BackOff) -> None: ...
    @property
    def counters(self) -> BrokerCounters: ...
    @property
    def log_directory(self) -> LogDirectory: ...
    @property
    def fetches(self) -> "FetchServices": ...
    @property
    def log_start_recorder(self) -> "LogStartServices": ...
    @property
    def disk(self) -> "DiskServices":
        """Handles errors of the disk."""
        ...

    @property
    def repairs(self) -> "RepairServices":
        """Handles a damaged log."""
        ...


class FetchServices(Protocol):
    """What a partition needs when fetches wait for its records."""

    def appended(self, partition: "Partition") -> None:
        """There are new records for followers."""
        ...

    def offsets_changed(self, partition: "Partition") -> None:
        """Its high watermark, log start or low watermark changed."""
        ...


class ProduceToken(Protocol):
    """A batch of a request, as the core's tokens name it (`produce.ProduceItem`)."""

    records: bytearray
    header: BatchHeader

    def resolve(
        self, error_code: ErrorCode, base_offset: int | None, message: str | None, partition: "Partition"
    ) -> None:
        """The core's answer."""
        ...

    def fail_storage(self, reason: str) -> None:
        """The append itself failed; nothing of it is in the log."""
        ...


class LogStartServices(Protocol):
    """What a partition needs when its log start changes."""

    def record_soon(self, partition: "Partition") -> None:
        """Make the log start durable, then report it to the leader."""
        ...


class DiskServices(Protocol):
    """What a partition needs when its disk fails."""

    def log_failed(self, partition: "Partition", error: DiskError) -> None:
        """An effect could not be performed."""
        ...


class RepairServices(Protocol):
    """What a partition needs when its log is damaged."""

    def damaged(self, partition: "Partition", reason: str) -> None:
        """Bytes were read that are not what was written."""
        ...

    def noted(self, partition: "Partition", reason: str) -> None: ...
    def salvage(self, partition: "Partition", max_bytes: int) -> memoryview | None:
        """Batches that the leader's log cannot provide: sound ones at this log's end, from a damaged log set aside."""
        ...

    def out_of_use(self, partition: "Partition") -> None:
        """A damaged replica went offline: report it to the controller."""
        ...


class Partition:
    """One local replica: its state, its log, and the performing of effects. Implements `log_effects.LogPort`."""

    __slots__ = (
        "_observer",
        "awaits_order",
        "fetched_buffers",
        "log",
        "now_ms",
        "services",
        "sessions",
        "state",
        "topic_partition",
        "waiting_fetches",
    )

    def __init__(
        self,
        services: PartitionServices,
        topic_partition: TopicPartition,
        partition_log: PartitionLog,
        config: ReplicationConfig,
        high_watermark: int,
    ) -> None:
        self.services = services
        self.now_ms = services.now_ms
        self.topic_partition = topic_partition
        self.log = partition_log
        self.sessions: list[Any] = []
        """Fetch sessions of followers that include this partition (fetch_sessions.FetchSession)."""
        self.waiting_fetches: dict[Any, None] = {}
        """Consumers' fetches that wait for records of this partition (delayed_fetches.DelayedFetch)."""
        self.fetched_buffers: Sequence[Buffer] = ()
        self.awaits_order = False
        """This broker has registered again and got no order for it since: only an order lifts its fence."""
        self.state = self._loaded_state(config, high_watermark)
        self._observer = services.observer
        if self._observer.wants_details:
            self._observer.notify(ReplicaLoaded(self))

    def _loaded_state(self, config: ReplicationConfig, high_watermark: int) -> ReplicaState:
        """As recovered: the high watermark of the checkpoint, within the log; no role before the controller's order."""
        start, end = self.log.log_start_offset, self.log.log_end_offset
        return ReplicaState(
            config=config,
            role=Role.NONE if self.log.damage is None else Role.OFFLINE,
            fenced=self.services.fenced,
            damage=self.log.damage,
            log_start_offset=start,
            low_watermark=min(start, self.first_offset),
            log_end_offset=end,
            synced_end_offset=min(self.log.recovery_point, end),
            high_watermark=max(start, min(high_watermark, end)),
            epoch_history=EpochHistory(self.log.epoch_entries()),
        )

    def __repr__(self) -> str:
        return f"Partition({self.topic_partition}, {self.state.role.value}, epoch {self.state.leader_epoch})"

    # ----------------------------------------------------------------------------------------------------- decide
    def handle(self, event: ev.ReplicaEvent) -> None:
        """Let the core decide, then perform its effects."""
        if type(event) is ev.LeaderAndIsrReceived:
            self.awaits_order = False
            event = self._under_present_fence(event)
        elif self.state.role is LEADER and not self.state.fenced:
            self.services.check_fence()
        self.decide(event)

    def decide(self, event: ev.ReplicaEvent) -> None:
        """Like `handle`, for an event that reports an effect."""
        effects = step(self.state, event)
        if self._observer.wants_details:
            self._observer.notify(ReplicaStepped(self, event, effects, is_refused=False))
        if effects:
            self._perform(effects)

    def _under_present_fence(self, order: ev.LeaderAndIsrReceived) -> ev.LeaderAndIsrReceived:
        """An order lifts the fence, unless the deadline has passed by now: earlier work, such as creating the log on a
        disk that hangs, may have taken longer than the session lasts (hardening rule 8)."""
        self.services.check_fence()
        return replace(order, fenced=self.services.fenced)

    def handle_fetch(self, event: ev.FollowerFetched) -> FetchGranted | FetchRefused:
        """A follower's fetch: record its log end, decide what it may read."""
        if self.state.role is LEADER and not self.state.fenced:
            self.services.check_fence()
        answer, effects = step_fetch(self.state, event)
        if self._observer.wants_details:
            self._observer.notify(ReplicaStepped(self, event, effects, isinstance(answer, FetchRefused)))
        self._perform(effects)
        return answer

    def handle_fetched(self, event: ev.FetchAnswered, buffers: Sequence[Buffer]) -> None:
        """The leader's reply; `buffers` are the bytes of `event.batches`, one each."""
        self.fetched_buffers = buffers
        try:
            self.handle(event)
        finally:
            self.fetched_buffers = ()

    def configure(self, config: ReplicationConfig, log_config: LogConfig) -> None:
        """Settings of the topic changed."""
        self.log.config = log_config
        if config != self.state.config:
            self.handle(ev.ConfigChanged(config=config, now_ms=self.now_ms()))

    def log_healed(self) -> None:
        """Its directory works again: reload the state from the log, not from what was decided meanwhile."""
        self.log.finish_cut()
        self.handle(
            ev.LogHealed(
                first_offset=self.first_offset,
                log_start_offset=self.log.log_start_offset,
                log_end_offset=self.log.log_end_offset,
                epoch_entries=tuple(self.log.epoch_entries()),
            )
        )

    def report(self, event: type[PartitionEvent], /, **fields: Any) -> None:
        """Notify the observer of an event of this partition."""
        topic, number = self.topic_partition
        self._observer.notify(event(topic=topic, partition=number, **fields))

    # --------------------------------------------------------------------------------------------------- log port
    def is_of_topic(self, topic_id: str) -> bool:
        """Whether a request that names this topic id means this log, not one of an earlier or later topic of its name
        (KIP-516). "" means any."""
        return not topic_id or not self.log.topic_id or self.log.topic_id == topic_id

    @property
    def first_offset(self) -> int:
        return self.log.segments[0].base_offset

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    def append_batches(self, effect: ev.AppendBatches) -> int | None:
        items: tuple[ProduceToken, ...] = effect.tokens
        end, leader_epoch = effect.base_offset, effect.leader_epoch
        batches: list[tuple[BatchHeader, Buffer]] = []
        for item in items:
            stamp(item.records, end, leader_epoch)
            header = replace(item.header, base_offset=end, partition_leader_epoch=leader_epoch)
            batches.append((header, item.records))
            end += header.record_count
        try:
            self.log.append(batches)
        except DiskError as error:
            self.services.disk.log_failed(self, error)
            for item in items:
                item.fail_storage(str(error))
            return None
        if self._observer.wants_details:
            self._observer.notify(BatchesLogged(self, batches))
        counters = self.services.counters
        counters.batches_in += len(items)
        counters.records_in += end - effect.base_offset
        for item in items:
            counters.bytes_in += len(item.records)
            item.records = _RELEASED  # the log keeps the bytes; a waiting request must not keep them, too
        return end

    def appended(self) -> None:
        self.services.fetches.appended(self)

    def append_fetched(self, effect: ev.AppendFetched) -> None:
        batches = list(zip(effect.batches, self.fetched_buffers, strict=True))
        self.log.append(batches)
        if self._observer.wants_details:
            self._observer.notify(BatchesLogged(self, batches))

    def truncate_to(self, effect: ev.TruncateTo) -> None:
        before = self.log.log_end_offset
        self._cut(lambda: self.log.truncate_to(effect.end_offset))
        counters = self.services.counters
        counters.truncations += 1
        counters.truncations_below_high_watermark += effect.below_high_watermark
        self.report(
            ReplicaTruncated,
            end_before=before,
            end_after=self.log.log_end_offset,
            leader_epoch=self.state.leader_epoch,
            reason=effect.reason,
        )
        self.services.log_directory.log_was_cut(self.log)

    def reset_to(self, effect: ev.ResetTo) -> None:
        producers = self._producers_from_leader(effect)
        self._cut(lambda: self.log.reset_to(effect.offset, producers))
        self.report(ReplicaReset, offset=effect.offset)
        self.services.log_directory.log_was_cut(self.log)

    def _cut(self, cut: Callable[[], None]) -> None:
        has_failed = True
        try:
            cut()
            has_failed = False
        finally:
            if self._observer.wants_details:
                self._observer.notify(LogShortened(self, has_failed))

    def _producers_from_leader(self, effect: ev.ResetTo) -> ProducerStates:
        """The producer states sent by the leader. Without them, a retry of records below the start would be written a
        second time."""
        if not effect.producers:
            return ProducerStates(is_incomplete=effect.producers is None and effect.offset > 0)
        try:
            return ProducerStates.load(effect.producers, end_offset=effect.offset)
        except CorruptSnapshot as error:
            log.error("%s: the producer states sent by the leader are not readable: %s", self.topic_partition, error)
            return ProducerStates(is_incomplete=True)

    def trim_before(self, effect: ev.TrimBefore) -> None:
        if effect.drops_all:
            self._cut(lambda: self.log.trim_before(effect.log_start_offset, effect.reason, drops_all=True))
        else:
            self.log.trim_before(effect.log_start_offset, effect.reason)
        self.services.log_start_recorder.record_soon(self)

    def lower_start(self, effect: ev.LowerStart) -> int:
        start = self.log.lower_start(effect.log_start_offset)
        self.report(LogStartLowered, offset=start)
        self.services.log_start_recorder.record_soon(self)
        return start

    def write_epoch_history(self, entries: Sequence[tuple[int, int]]) -> None:
        self.log.write_epoch_entries(entries)

    def delete_head(self) -> None:
        """Delete what lies in front of the log start, as far as no in-sync replica needs it."""
        before = self.first_offset
        try:
            first = delete_head(self.log, self.state.low_watermark)
        except BadEntry as error:
            self.services.disk.log_failed(self, error)
            return
        if first > before:
            self.handle(ev.HeadDeleted(first_offset=first))

    # ---------------------------------------------------------------------------------------------------- perform
    def _perform(self, effects: Sequence[ev.ReplicaEffect]) -> None:
        for effect in effects:
            try:
                _PERFORMERS[type(effect)](self, effect)
            except DiskError as error:
                self.services.disk.log_failed(self, error)
                break  # LogFailed has replaced all remaining effects
            except CorruptLog as error:
                self.services.repairs.damaged(self, str(error))
                break  # likewise: only a leader continues, and a leader truncates nothing

    def _answer_produce(self, effect: ev.AnswerProduce) -> None:
        base_offset = effect.base_offset
        for item in effect.tokens:
            item.resolve(effect.error_code, base_offset, effect.error_message, self)
            if base_offset is not None:
                base_offset += item.header.record_count

    def _isr_committed(self, effect: ev.IsrCommitted) -> None:
        if effect.before:
            self.report(
                IsrChanged,
                before=list(effect.before),
                after=list(effect.after),
                leader_epoch=self.state.leader_epoch,
                partition_epoch=self.state.partition_epoch,
            )
            if len(effect.after) < len(effect.before):
                self.services.counters.isr_shrinks += 1
            else:
                self.services.counters.isr_expands += 1

    def _take_out_of_use(self, effect: ev.TakeOutOfUse) -> None:
        self.log.mark_damaged(effect.reason)
        self.services.repairs.out_of_use(self)

    def _leader_changed(self, effect: ev.LeaderChanged) -> None:
        state = self.state
        self.report(
            ReplicaRoleChanged,
            role=state.role.value,
            leader_epoch=state.leader_epoch,
            leader=state.leader_id,
            log_end_offset=state.log_end_offset,
            high_watermark=state.high_watermark,
        )
        self.services.leader_changed(self)


_PERFORMERS: dict[type[ev.ReplicaEffect], Callable[[Partition, Any], None]] = {
    **LOG_EFFECTS,
    ev.AnswerProduce: Partition._answer_produce,
    ev.IsrCommitted: Partition._isr_committed,
    ev.LeaderChanged: Partition._leader_changed,
    ev.TakeOutOfUse: Partition._take_out_of_use,
    ev.Warn: lambda partition, effect: partition.report(ReplicaWarned, message=effect.message),
    ev.HighWatermarkRose: lambda partition, effect: partition.services.fetches.offsets_changed(partition),
    ev.StartsChanged: lambda partition, effect: partition.services.fetches.offsets_changed(partition),
    ev.ProposeIsr: lambda partition, effect: partition.services.propose_isr(partition, effect),
    ev.SyncLog: lambda partition, effect: partition.services.sync(partition),
    ev.SyncEpochHistorySoon: lambda partition, effect: partition.services.sync_epoch_files_soon(),
    ev.AskEpochEnd: lambda partition, effect: partition.services.ask_epoch_end(partition, effect),
    ev.AskLeaderEnds: lambda partition, effect: partition.services.ask_leader_ends(partition, effect),
    ev.FetchNext: lambda partition, effect: partition.services.fetch_next(partition),
    ev.BackOff: lambda partition, effect: partition.services.back_off(partition, effect),
    ev.DamageNoted: lambda partition, effect: partition.services.repairs.noted(partition, effect.reason),
    ev.ReportDamage: lambda partition, effect: partition.services.repairs.damaged(partition, effect.reason),
}
