"""Effects of the log directory's health on the replicas in it.

Owns: which replicas stop after a disk error, reporting it to the controller, and when they are offered again. Leaves to
others: what an error means for the directory (`log.directory_health`), and what a replica does when its log fails (the
core).

Theory: any access to the disk may hit an error: an append, a read, a periodic task that belongs to no partition. The
directory records it, and from then on no replica in it may lead, whichever access failed (hardening rule 13): an idle
leader that does not learn of the error would keep its leadership on a dead disk until the next write. A lack of file
descriptors passes and is not a disk error: a read is refused, a sync waits, and a replica goes offline for a while only
if its own step could not be performed.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping

from minibroker.broker.log.errors import CorruptLog
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.monitoring.metrics import BrokerCounters
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import Role
from minibroker.protocol.events.broker_events import DescriptorsExhausted, LogDirectoryFailed, LogDirectoryHasRoom
from minibroker.protocol.events.replica_events import ReplicaWaitsForDescriptor
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Observer
from minibroker.runtime.ports import BadEntry, DiskError, FileMissing, OutOfDescriptors

log = logging.getLogger("minibroker.disk")

ENTRY_CURE = "move that entry away, or give this broker's user the right to it"

DESCRIPTOR_RETRY_MS = 500
"""A lack of file descriptors lasts as long as a flood of connections: seconds."""
DESCRIPTOR_REPORT_INTERVAL_MS = 10_000
"""At most one event per interval, although every call may fail."""
BLOCKED_RETRY_MS = 10_000
"""After this long a log is tried again that an entry kept from being created, deleted or set aside. An operator moves
the entry away; until then each attempt logs the cure."""
BLOCKED_RETRY_MAX_MS = 600_000
"""Each attempt to create a log is an order, and its refusal begins a leader epoch: pauses double, up to this one."""


class DiskErrors:
    """Takes replicas offline after an error of their disk, and offers them again."""

    def __init__(
        self,
        *,
        log_directory: LogDirectory,
        partitions: Mapping[TopicPartition, Partition],
        partition_changed: Callable[[Partition], None],
        log_damaged: Callable[[Partition, str], None],
        now_ms: Callable[[], int],
        counters: BrokerCounters,
        observer: Observer,
    ) -> None:
        self.on_changed: Callable[[], None] = lambda: None
        """Called when replicas went offline, or were replaced."""
        self.on_recovered: Callable[[], None] = lambda: None
        """Called when replicas may be used again, or their logs be created."""
        self._directory = log_directory
        self._partitions = partitions
        self._partition_changed = partition_changed
        self._log_damaged = log_damaged
        self._now_ms = now_ms
        self._counters = counters
        self._observer = observer
        self._notice: asyncio.Handle | None = None
        self._logged_reason: str | None = None
        """The reason that was logged last, for which the replicas went offline; None since they were offered again."""
        self._waiting_for_descriptor: dict[TopicPartition, Partition | None] = {}
        """Replicas that wait for a file descriptor; None: its log could not even be created."""
        self._blocked_until_ms: int | None = None
        """When the logs are to be tried again that an entry kept from being created or deleted; None: there is none."""
        self._blocked: dict[TopicPartition, int] = {}
        """These logs, and how long each is to wait for that."""
        self._tried_again: dict[TopicPartition, int] = {}
        """Those that were tried again last."""
        self._tried_again_until_ms = 0
        """If one of them is blocked until then, that was in vain."""
        self._shortage_reported_ms: int | None = None
        health = self._directory.health
        health.on_offline.append(lambda _: self._check_soon())
        health.on_full = lambda _: self._check_soon()
        health.on_no_descriptor = self._note_no_descriptor
        if health.is_impaired:  # found while the logs were loaded
            self._check_soon()

    # ------------------------------------------------------------------------------------------------------- failing
    def log_failed(self, partition: Partition, error: DiskError) -> None:
        """An effect of a replica could not be performed."""
        if isinstance(error, OutOfDescriptors):
            partition.report(ReplicaWaitsForDescriptor)
            self.wait_for_descriptor(partition.topic_partition, partition)
        else:
            self.read_failed(partition, error)

    def read_failed(self, partition: Partition, error: DiskError) -> None:
        """A read failed. A lack of descriptors has no further effect; a file that is missing or unusable stops only its
        partition."""
        if isinstance(error, BadEntry) and not self._directory.offline:
            self._log_damaged(partition, str(error))
        else:
            self.failed(error)

    def failed(self, error: DiskError) -> None:
        """An access that belongs to no single replica failed. It takes all replicas offline, unless a descriptor was
        missing (that passes) or one entry cannot be used (the directory works)."""
        if isinstance(error, OutOfDescriptors):
            return  # the directory has counted it, and the caller tries again
        if isinstance(error, BadEntry) and not self._directory.offline:
            is_gone = isinstance(error, FileMissing)
            log.error("%s%s", error, "" if is_gone else f": {ENTRY_CURE}")
            return  # only this partition's operation failed
        if not self._directory.full and not self._directory.offline:
            self._directory.mark_offline(error)
        self._take_all_offline()

    def log_blocked(self, topic_partition: TopicPartition, error: DiskError) -> None:
        """A log could not be created or deleted. The controller knows that by a refused order, and sends no other one
        before it is told that replicas may be used again."""
        if isinstance(error, OutOfDescriptors):
            self.wait_for_descriptor(topic_partition, None)
            return
        self.failed(error)
        if isinstance(error, BadEntry) and not self._directory.offline and topic_partition not in self._blocked:
            now_ms = self._now_ms()
            before_ms = self._tried_again.get(topic_partition, 0) if now_ms < self._tried_again_until_ms else 0
            pause_ms = min(max(2 * before_ms, BLOCKED_RETRY_MS), BLOCKED_RETRY_MAX_MS)
            self._blocked[topic_partition] = pause_ms
            until_ms = now_ms + pause_ms
            self._blocked_until_ms = min(self._blocked_until_ms or until_ms, until_ms)

    def wait_for_descriptor(self, topic_partition: TopicPartition, partition: Partition | None) -> None:
        """Stop this replica alone until there is a descriptor (None: its log could not be created)."""
        self._waiting_for_descriptor[topic_partition] = partition
        if partition is not None:
            self._take_offline(partition)
            self.on_changed()

    def _check_soon(self) -> None:
        """Deferred, because the directory reports an error in the middle of the failing call."""
        if self._notice is None:
            self._notice = asyncio.get_running_loop().call_soon(self._check)

    def _check(self) -> None:
        self._notice = None
        if self._directory.full or self._directory.offline:
            self._take_all_offline()

    def _take_all_offline(self) -> None:
        health = self._directory.health
        online = [each for each in self._partitions.values() if each.state.role is not Role.OFFLINE]
        if health.reason != self._logged_reason:
            self._logged_reason = health.reason
            how = "offline" if health.offline else "full"
            self._observer.notify(LogDirectoryFailed(path=health.path, state=how, reason=str(health.reason)))
        elif not online:
            return
        for partition in online:
            self._take_offline(partition)
        self.on_changed()

    def _take_offline(self, partition: Partition) -> None:
        partition.handle(ev.LogFailed())
        self._partition_changed(partition)

    # ------------------------------------------------------------------------------------------------------- healing
    @property
    def has_healed(self) -> bool:
        """Whether there is room again for replicas that went offline for lack of it. Whether the directory was full
        at an earlier look does not tell: it may become full and have room again between two looks."""
        return self._logged_reason is not None and not self._directory.full and not self._directory.offline

    def healed(self) -> None:
        """There is room again: offer the replicas to the controller again."""
        self._observer.notify(LogDirectoryHasRoom(path=self._directory.path))
        self._logged_reason = None
        self._offer_again(list(self._partitions.values()))

    def offer_those_waiting_for_descriptor(self) -> None:
        """Offer the replicas that waited for a file descriptor again, if there is one."""
        if not self._waiting_for_descriptor or self._directory.full or self._directory.offline:
            return
        try:
            self._directory.require_descriptor()
        except OutOfDescriptors:
            return
        except DiskError as error:
            self.failed(error)
            return
        waiting, self._waiting_for_descriptor = self._waiting_for_descriptor, {}
        known = self._partitions
        self._offer_again([each for name, each in waiting.items() if each is not None and known.get(name) is each])

    def offer_those_blocked(self) -> None:
        """Have the logs tried again that an entry kept from being created or deleted: nothing tells when it is gone."""
        now_ms = self._now_ms()
        if self._blocked_until_ms is not None and now_ms >= self._blocked_until_ms:
            self._blocked_until_ms, self._tried_again_until_ms = None, now_ms + BLOCKED_RETRY_MS
            self._tried_again, self._blocked = self._blocked, {}
            self.on_recovered()

    def _offer_again(self, partitions: list[Partition]) -> None:
        """A log that cannot be used stays offline alone, damaged: there is no other offer for those behind it."""
        for partition in partitions:
            try:
                partition.log_healed()
            except OutOfDescriptors:
                self._waiting_for_descriptor[partition.topic_partition] = partition
            except CorruptLog as error:
                self._log_damaged(partition, str(error))
            except DiskError as error:
                self.read_failed(partition, error)
                if not isinstance(error, BadEntry) or self._directory.offline:
                    return
        self.on_recovered()

    def _note_no_descriptor(self, reason: str) -> None:
        self._counters.descriptor_shortages += 1
        now_ms, reported_ms = self._now_ms(), self._shortage_reported_ms
        if reported_ms is None or now_ms >= reported_ms + DESCRIPTOR_REPORT_INTERVAL_MS:
            self._shortage_reported_ms = now_ms
            self._observer.notify(DescriptorsExhausted(reason=reason))
