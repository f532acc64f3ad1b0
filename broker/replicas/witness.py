"""The witness: notes in ZooKeeper how far each partition led by this broker is committed, and its digest up to there.

Owns: the committed point of each led partition, when it is noted, and this broker's shards of `/witness`. Leaves to
others: comparing notes with the logs (`audit`). It blocks nothing: a ZooKeeper error is logged once and tried again.

Theory: a committed point is a former log end with the digest up to it; it counts as soon as the high watermark has
reached it. So only the digest at the log end must be known, at no cost to the path of records. A note outlives its
leader: the next leader notes the same partition under a later epoch, in its own shard (`protocol.witness.newer`). So a
note stays when leadership moves, also after a restart and with an emptied disk; it is removed with its topic. See
docs/decisions/0023.
"""

import asyncio
import logging

import msgspec
from msgspec.structs import replace

from minibroker.broker.log.log_digests import (
    SegmentHead,
    complete_one,
    digest_from_start,
    digest_from_start_to,
    needs_head,
    read_head,
)
from minibroker.broker.owned_tasks import OwnedGroup
from minibroker.broker.replicas.partition import Partition
from minibroker.broker.replicas.replica_manager import ReplicaManager
from minibroker.protocol.events.broker_events import NodeUnreadable, WitnessNotWritten
from minibroker.protocol.files.checkpoints import parse_partition_directory_name
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.log_digest import format_digest
from minibroker.protocol.witness import SHARDS, PartitionWitness, WitnessNode, shard_of, witness_path
from minibroker.protocol.znodes import CorruptZnode
from minibroker.runtime.ports import Clock, Coordination, CoordinationError, NodeExists, NoNode

TICK_MS = 2_000
"""Interval of updating committed points; a partition that changed its leader, ISR or start is then noted at once."""
CLOSE_MS = 3_000
"""Limit at a clean stop: ZooKeeper answers in milliseconds, or the stop continues without it."""
LAST_DIGESTS_MS = 1_000
"""Limit before that for computing digests that are not known yet."""
COMPLETE_MS = 10_000
"""Pause after a round that could compute no further digest."""
NODE_BYTES_MAX = 1_000_000
"""ZooKeeper closes a connection that sends more. With usual names, 60,000 partitions led by one broker fit."""
PARTITIONS_AT_ONCE = 200
"""Checked in one loop iteration: some hundred microseconds."""

log = logging.getLogger("minibroker.witness")


class WitnessPoint(msgspec.Struct, frozen=True):
    """The log up to `end_offset`, as it was at `taken_at_ms`."""

    start_offset: int
    end_offset: int
    digest: int | None
    taken_at_ms: int


class LedPartition:
    """One partition for as long as this broker leads it under one epoch."""

    __slots__ = ("committed", "leader_epoch", "pending", "topic_id")

    def __init__(self, leader_epoch: int, topic_id: str | None) -> None:
        self.leader_epoch = leader_epoch
        self.topic_id = topic_id
        """Topic id of the log: a later topic of the same name has the same epochs."""
        self.pending: WitnessPoint | None = None
        """A former log end that is not committed yet."""
        self.committed: WitnessPoint | None = None

    def observe(self, partition: Partition, head: SegmentHead | None, now_ms: int) -> None:
        """Advance the committed point as far as the high watermark allows."""
        high_watermark = partition.state.high_watermark
        self._settle(high_watermark)
        if self.pending is None and self._is_worth_it(partition, head):
            self.pending = _witness_point(partition, partition.log.log_end_offset, head, now_ms)
            self._settle(high_watermark)

    def _settle(self, high_watermark: int) -> None:
        if self.pending is not None and high_watermark >= self.pending.end_offset:
            self.committed, self.pending = self.pending, None

    def _is_worth_it(self, partition: Partition, head: SegmentHead | None) -> bool:
        known = self.committed
        return (
            known is None
            or known.end_offset != partition.log.log_end_offset
            or known.start_offset != partition.log.log_start_offset
            or (known.digest is None and digest_from_start(partition.log, head) is not None)
        )

    def conclude(self, partition: Partition, head: SegmentHead | None, now_ms: int) -> None:
        """When nothing is appended any more, use the high watermark itself, if it belongs to this epoch."""
        state = partition.state
        if state.leader_epoch_start is not None and state.high_watermark >= state.leader_epoch_start:
            self.committed = _witness_point(partition, state.high_watermark, head, now_ms)

    def note(self, partition: Partition) -> PartitionWitness | None:
        """None: nothing was committed under this epoch yet, or it is over."""
        state, point = partition.state, self.committed
        is_the_same = (state.leader_epoch, partition.log.topic_id) == (self.leader_epoch, self.topic_id)
        if point is None or not state.is_leader or not is_the_same:
            return None
        return PartitionWitness(
            topic_id=self.topic_id or "",
            leader_epoch=self.leader_epoch,
            replicas=state.assignment,
            isr=state.in_sync_replicas,
            log_start_offset=min(point.start_offset, point.end_offset),
            committed_offset=point.end_offset,
            digest="" if point.digest is None else format_digest(point.digest),
            noted_at_ms=point.taken_at_ms,
        )


def _witness_point(partition: Partition, end_offset: int, head: SegmentHead | None, now_ms: int) -> WitnessPoint:
    digest = digest_from_start_to(partition.log, head, end_offset)
    return WitnessPoint(partition.log.log_start_offset, end_offset, digest, now_ms)


class WitnessWriter:
    """The witness of one broker. `run` is a task of its owner; then `conclude`, while the session is still alive."""

    def __init__(self, manager: ReplicaManager, coordination: Coordination, clock: Clock) -> None:
        self._manager = manager
        self._coordination = coordination
        self._clock = clock
        self._led: dict[TopicPartition, LedPartition] = {}
        self._heads: dict[TopicPartition, SegmentHead] = {}
        self._notes: list[dict[str, PartitionWitness]] = [{} for _ in range(SHARDS)]
        self._unread = set(range(SHARDS))
        """Shards of an earlier start of this broker that are not read yet, and must not be overwritten."""
        self._unwritten: set[int] = set()
        self._too_large: set[int] = set()
        """Shards that ZooKeeper lacks until they become smaller."""
        self._gone: set[tuple[str, str]] = set()
        """Partition and topic id of notes on topics that were missing at the last interval."""
        self._noted_ms: int | None = None
        """When all partitions were noted last."""
        self._up_to_date_ms = manager.now_ms()
        self._is_failing = False

    @property
    def age_ms(self) -> int:
        """Time since ZooKeeper last had all notes."""
        return self._manager.now_ms() - self._up_to_date_ms

    async def run(self) -> None:
        """Run until cancelled."""
        async with OwnedGroup() as group:
            group.create_task(self._note_forever(), name="witness-notes")
            group.create_task(self._complete_forever(), name="witness-digests")

    async def conclude(self) -> None:
        """At a clean stop, when nothing is appended any more, note exactly what is committed. Takes some seconds at
        most."""
        try:
            async with asyncio.timeout(LAST_DIGESTS_MS / 1000):
                await self._complete_all()
        except TimeoutError:
            log.info("the digests of some logs are not known yet")
        try:
            async with asyncio.timeout(CLOSE_MS / 1000):
                await self._observe()
                for topic_partition, led in self._led.items():
                    partition = self._manager.partitions.get(topic_partition)
                    if partition is not None:
                        led.conclude(partition, self._heads.get(topic_partition), self._clock.now_ms())
                await self._note(set(self._led))
        except TimeoutError:
            self._manager.observer.notify(WitnessNotWritten(reason=f"ZooKeeper took longer than {CLOSE_MS} ms"))

    async def _note_forever(self) -> None:
        while True:
            interval_ms = self._manager.config.witness_interval_ms
            await asyncio.sleep(min(TICK_MS, interval_ms) / 1000)
            now_ms = self._manager.now_ms()
            urgent = await self._observe()
            if self._noted_ms is None or now_ms >= self._noted_ms + interval_ms:
                self._noted_ms = now_ms
                self._forget_deleted()
                await self._note(set(self._led))
            elif urgent or self._unwritten:  # which a write that failed has left
                await self._note(urgent)

    # ------------------------------------------------------------------------------------------------ what is noted
    async def _observe(self) -> set[TopicPartition]:
        """Update the points of all partitions led here; returns those with an outdated note, records aside."""
        urgent: set[TopicPartition] = set()
        now_ms = self._clock.now_ms()
        led: dict[TopicPartition, LedPartition] = {}
        for number, (topic_partition, partition) in enumerate(list(self._manager.partitions.items())):
            if number % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
                await asyncio.sleep(0)
            state = partition.state
            if not state.is_leader or state.fenced or state.leader_epoch is None:
                continue
            known, topic_id = self._led.get(topic_partition), partition.log.topic_id
            if known is None or (known.leader_epoch, known.topic_id) != (state.leader_epoch, topic_id):
                known = LedPartition(state.leader_epoch, topic_id)
            known.observe(partition, self._heads.get(topic_partition), now_ms)
            led[topic_partition] = known
            if self._is_noted_otherwise(topic_partition, partition, known):
                urgent.add(topic_partition)
        self._led = led
        return urgent

    def _is_noted_otherwise(self, topic_partition: TopicPartition, partition: Partition, led: LedPartition) -> bool:
        if led.committed is None:
            return False
        noted = self._notes[shard_of(topic_partition)].get(str(topic_partition))
        return (
            noted is None
            or (noted.topic_id, noted.leader_epoch) != (led.topic_id or "", led.leader_epoch)
            or noted.isr != partition.state.in_sync_replicas
            or noted.log_start_offset != min(led.committed.start_offset, led.committed.end_offset)
        )

    def _take(self, partitions: set[TopicPartition]) -> None:
        """Put the notes into the shards; changed shards are to be written."""
        for topic_partition in partitions:
            led, partition = self._led.get(topic_partition), self._manager.partitions.get(topic_partition)
            note = led.note(partition) if led is not None and partition is not None else None
            if note is None:
                continue
            shard, name = shard_of(topic_partition), str(topic_partition)
            noted = self._notes[shard].get(name)
            if noted is None or replace(noted, noted_at_ms=note.noted_at_ms) != note:
                self._notes[shard][name] = note
                self._unwritten.add(shard)

    def _forget_deleted(self) -> None:
        """Remove the notes on deleted topics; a new topic of the same name has another id. Only if the topic was
        missing one interval ago, too: a note removed too early is lost evidence. A topic of which this broker has a log
        is not deleted: a controller that cannot read its node tells no broker of it."""
        image, before = self._manager.image, self._gone
        self._gone = set()
        if not image.has_been_updated:
            return
        for shard, notes in enumerate(self._notes):
            for name, note in tuple(notes.items()):
                if image.topic_id(name.rpartition("-")[0]) == note.topic_id or self._has_log_of(name, note.topic_id):
                    continue
                self._gone.add((name, note.topic_id))
                if (name, note.topic_id) in before:
                    del notes[name]
                    self._unwritten.add(shard)

    def _has_log_of(self, name: str, topic_id: str) -> bool:
        topic_partition = parse_partition_directory_name(name)
        partition = None if topic_partition is None else self._manager.partitions.get(topic_partition)
        return partition is not None and partition.log.topic_id == topic_id

    # -------------------------------------------------------------------------------------------------- in ZooKeeper
    async def _note(self, partitions: set[TopicPartition]) -> None:
        if self._manager.registration.is_fenced():
            return  # ZooKeeper does not answer, and another broker may lead
        try:
            await self._read_own()
            self._take(partitions)
            for shard in sorted(self._unwritten):
                await self._write(shard)
        except CoordinationError as error:
            if not self._is_failing:
                self._manager.observer.notify(WitnessNotWritten(reason=f"{error}; it will be tried again"))
            self._is_failing = True
            return
        self._is_failing = False
        if not self._too_large:
            self._up_to_date_ms = self._manager.now_ms()

    async def _read_own(self) -> None:
        """Notes of an earlier start of this broker stay until newer ones replace them."""
        for shard in sorted(self._unread):
            path = witness_path(self._manager.config.broker_id, shard)
            try:
                content, _ = await self._coordination.get(path)
                self._notes[shard] = dict(WitnessNode.decode(content).partitions)
            except NoNode:
                pass
            except CorruptZnode as error:
                consequence = "it will be overwritten"
                unreadable = NodeUnreadable(path=path, consequence=consequence, reason=str(error))
                self._manager.observer.notify(unreadable)
            self._unread.discard(shard)

    async def _write(self, shard: int) -> None:
        path = witness_path(self._manager.config.broker_id, shard)
        self._unwritten.discard(shard)
        content = WitnessNode(partitions=self._notes[shard]).encode()
        if len(content) > NODE_BYTES_MAX:
            reason = f"the {len(self._notes[shard])} notes of {path} take {len(content)} bytes"
            self._manager.observer.notify(WitnessNotWritten(reason=reason))
            self._too_large.add(shard)
            return
        self._too_large.discard(shard)
        try:
            try:
                await self._coordination.set(path, content)
            except NoNode:
                await self._create(path, content)
        except BaseException:
            self._unwritten.add(shard)
            raise

    async def _create(self, path: str, content: bytes) -> None:
        try:
            await self._coordination.create(path, content, make_parents=True)
        except NodeExists:  # created by an earlier attempt with unknown outcome
            await self._coordination.set(path, content)

    # ------------------------------------------------------------------------------------------------ unknown digests
    async def _complete_forever(self) -> None:
        """Compute digests that were not recorded, for instance of logs of an earlier version."""
        while True:
            await asyncio.sleep(COMPLETE_MS / 1000)
            await self._complete_all()

    async def _complete_all(self) -> None:
        while await self._complete_round():
            pass

    async def _complete_round(self) -> bool:
        """Returns whether there may be more to compute."""
        found = False
        partitions = dict(self._manager.partitions)
        self._heads = {each: head for each, head in self._heads.items() if each in partitions}
        for number, (topic_partition, partition) in enumerate(partitions.items()):
            if number % PARTITIONS_AT_ONCE == PARTITIONS_AT_ONCE - 1:
                await asyncio.sleep(0)
            if self._manager.partitions.get(topic_partition) is not partition or partition.log.damage is not None:
                continue
            found |= await complete_one(partition.log)
            if partition.state.is_leader and needs_head(partition.log, self._heads.get(topic_partition)):
                head = await read_head(partition.log)
                if head is not None:
                    self._heads[topic_partition] = head
        return found
