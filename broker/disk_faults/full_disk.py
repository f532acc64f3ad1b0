"""Retention on a full disk: replicas that are offline for lack of room delete records that are no longer needed.

Owns: up to where such a replica may delete its head, and asking its leader for that. Leaves to others: where a log
starts (its leader decides) and when a disk is full (`log.directory_health`).

Theory: the cure of a full disk is retention, which the leader decides; but a replica on a full disk neither leads nor
follows. There are two ways to know how far it may delete. If another replica leads, that leader is asked for its low
watermark. No in-sync replica has recorded a lower log start, so a leader elected from them starts no earlier, and this
replica never begins behind its leader (I39). If there is no leader and, according to the controller, this replica is
the whole ISR, it decides itself: only it can be elected, so it was the last leader, and its own retention may delete
records below its own high watermark. In all other cases nothing is deleted.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial

from minibroker.broker.log.cutting import delete_head
from minibroker.broker.log.log_directory import LogDirectory
from minibroker.broker.log.retention import retention_start
from minibroker.broker.membership.metadata_image import MetadataImage
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import Role
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.events.replica_events import SegmentsDeleted
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    EARLIEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from minibroker.runtime.broker_dialer import BrokerDialer
from minibroker.runtime.ports import BadEntry, Clock, DiskFull, OutOfDescriptors
from minibroker.runtime.request_channel import RequestChannel, RequestFailed

log = logging.getLogger("minibroker.full_disk")

RELIEF_MS = 2_000
"""Interval of attempts to free room: the leader's answer changes with its own retention check."""
ASK_MS = 2_000
"""Timeout; a leader that does not answer is asked again in the next round."""
NOT_DELETED = "%s: nothing could be deleted: %s"
ASKED_MAX = 200
"""Partitions in one request."""


class FullDisk:
    """Frees room on a full log directory."""

    def __init__(
        self,
        *,
        broker_id: int,
        log_directory: LogDirectory,
        partitions: Mapping[TopicPartition, Partition],
        image: MetadataImage,
        address: Callable[[int], tuple[str, int] | None],
        is_fenced: Callable[[], bool],
        dialer: BrokerDialer,
    ) -> None:
        self._broker_id = broker_id
        self._directory = log_directory
        self._partitions = partitions
        self._image = image
        self._address = address
        self._is_fenced = is_fenced
        self._dialer = dialer

    async def relieve(self, clock: Clock) -> None:
        """One round; nothing unless the directory is full."""
        if not self._is_full() or self._is_fenced():
            return
        asked: dict[int, list[Partition]] = {}
        for partition in list(self._partitions.values()):
            leader = self._limit_source(partition)
            if leader == self._broker_id:
                await self._apply_retention(partition, clock.now_ms())
            elif leader is not None:
                asked.setdefault(leader, []).append(partition)
        for leader, partitions in sorted(asked.items()):
            for first in range(0, len(partitions), ASKED_MAX):
                await self._ask(leader, partitions[first : first + ASKED_MAX])

    def _is_full(self) -> bool:
        return self._directory.full and not self._directory.offline

    def _limit_source(self, partition: Partition) -> int | None:
        """The broker that decides how far this replica may delete; itself if it is the whole ISR; None: no broker."""
        me, name = self._broker_id, partition.topic_partition
        info = self._image.partition(name)
        if partition.state.role is not Role.OFFLINE or partition.state.damage is not None or info is None:
            return None
        if self._image.topic_id(name.topic) != partition.log.topic_id:
            return None
        if info.leader is None:
            return me if info.isr == (me,) else None
        return info.leader if info.leader != me else None

    async def _ask(self, leader: int, partitions: list[Partition]) -> None:
        address = self._address(leader)
        if address is None:
            return
        client_id = f"broker-{self._broker_id}"
        dial = partial(self._dialer.connect, leader, address, client_id=client_id, timeout_ms=ASK_MS)
        try:
            with RequestChannel(dial) as channel:
                response = await channel.ask(self._request(partitions), ListOffsetsResponse, ASK_MS)
        except RequestFailed as error:
            log.info("broker %d cannot be asked for its log starts: %s", leader, error)
            return
        by_name = {partition.topic_partition: partition for partition in partitions}
        for topic in response.topics:
            for answer in topic.partitions:
                partition = by_name.get(TopicPartition(topic.name, answer.partition_index))
                low = reported_low_watermark(answer)
                if partition is not None and low is not None:
                    await self._trim(partition, low, LogStartReason.COPIED)

    def _request(self, partitions: list[Partition]) -> ListOffsetsRequest:
        """With the leader epoch that the controller sent: a deposed leader does not answer it."""
        topics: dict[tuple[str, str], list[ListOffsetsPartition]] = {}
        for partition in partitions:
            topic, number = partition.topic_partition
            info = self._image.partition(partition.topic_partition)
            if info is not None:
                question = ListOffsetsPartition(
                    partition_index=number, current_leader_epoch=info.leader_epoch, timestamp=EARLIEST_TIMESTAMP
                )
                topics.setdefault((topic, partition.log.topic_id or ""), []).append(question)
        return ListOffsetsRequest(
            replica_id=self._broker_id,
            topics=[
                ListOffsetsTopic(name=name, topic_id=topic_id, partitions=found)
                for (name, topic_id), found in topics.items()
            ],
        )

    async def _apply_retention(self, partition: Partition, now_ms: int) -> None:
        try:
            start = retention_start(partition.log, partition.state.high_watermark, now_ms)
        except BadEntry as error:
            log.warning(NOT_DELETED, partition.topic_partition, error)
        else:
            await self._trim(partition, start, LogStartReason.RETENTION)

    async def _trim(self, partition: Partition, start: int, reason: LogStartReason) -> None:
        """A replica that cannot even record its start does not affect others: on some file systems this needs room."""
        try:
            await self._trim_one(partition, start, reason)
        except (DiskFull, OutOfDescriptors, BadEntry) as error:
            log.warning(NOT_DELETED, partition.topic_partition, error)

    async def _trim_one(self, partition: Partition, start: int, reason: LogStartReason) -> None:
        """Record, then delete, as always. Never above what is committed and held here."""
        log_of_it = partition.log
        start = min(start, partition.state.high_watermark, log_of_it.log_end_offset)
        if start > log_of_it.log_start_offset and self._is_idle(partition):
            await log_of_it.record_start(start, reason)
            if self._is_idle(partition) and start <= log_of_it.log_end_offset:  # it may have led and been cut meanwhile
                log_of_it.trim_before(start, reason)
        if not self._is_idle(partition):
            return  # offered again meanwhile: its leader decides
        before = log_of_it.segments[0].base_offset
        first = delete_head(log_of_it, start)
        if first > before:
            partition.report(SegmentsDeleted, offset=first, reason="retention on a full disk")
            partition.handle(ev.HeadDeleted(first_offset=first))

    def _is_idle(self, partition: Partition) -> bool:
        """Still here, and offline for lack of room alone."""
        here = self._partitions.get(partition.topic_partition) is partition
        return here and self._is_full() and partition.state.role is Role.OFFLINE and partition.state.damage is None


def reported_low_watermark(answer: ListOffsetsPartitionResponse) -> int | None:
    """The low watermark that the leader sent with its log start. A value above the log start is contradictory (I10) and
    ignored: records deleted because of it could not be restored."""
    if answer.error_code != ErrorCode.NONE or not 0 <= answer.low_watermark <= answer.offset:
        return None
    return answer.low_watermark
