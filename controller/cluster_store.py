"""Writing the cluster's facts to ZooKeeper, as the controller of one epoch.

Owns: the fence on every write (a multi that checks /controller_epoch), batches of bounded size, and the handling of
lost answers and of states that brokers have no right to write. Leaves to others: decisions, and reading
(`cluster_reader`).

Theory. A write that fails its fence means that another controller was elected: `Deposed`, whatever else is going on.
After a write that fails the version of its own znode, or has an unknown outcome, the znode is read again. If it holds
what we wanted, we adopt its version (KAFKA-1382). If it holds what the write was based on, we write again; the version
makes a late first attempt harmless. If it holds something else, the write is lost, and we decide again.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

import msgspec

from minibroker.controller.cluster_reader import RETRY_SECONDS, ClusterReader, Deposed, to_partition_state
from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.core.controller_state import Leadership, Topic
from minibroker.controller.core.election import PartitionChange
from minibroker.controller.core.events import LeadershipsWritten
from minibroker.protocol import znodes
from minibroker.protocol.ids import BrokerEpoch, BrokerId, TopicPartition
from minibroker.protocol.znodes import ConfigNode, TopicAssignment
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import (
    BadVersion,
    CheckOp,
    Coordination,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotAuthorized,
    NotEmpty,
    Operation,
    SetOp,
    Stat,
    WriteOutcomeUnknown,
)

PARTITIONS_PER_MULTI = 200
"""A state and its path are about 300 bytes; ZooKeeper refuses a multi above 1 MB, and a big one delays all others."""
MULTIS_IN_FLIGHT_MAX = 8
"""As zookeeper.max.in.flight.requests in Kafka (10)."""
BROKER_SETTINGS_MAX = 1_000
"""Settings nodes of brokers with which others that are not registered get some. Nothing removes them."""


class TopicExists(Exception):
    """Another client has created it."""


class WriteRefused(Exception):
    """Brokers have no right to this one of the operations: another tool has given its node an ACL of its own."""

    def __init__(self, index: int) -> None:
        super().__init__(f"no right to operation {index}")
        self.index = index


class ClusterStore(ClusterReader):
    """Reads anything; writes under the fence of one controller epoch."""

    def __init__(
        self,
        coordination: Coordination,
        fence: ControllerFence,
        observer: Observer = UNOBSERVED,
        on_broker_gone: Callable[[str], None] = lambda name: None,
    ) -> None:
        super().__init__(coordination, fence, observer, on_broker_gone)
        self._epoch_check = CheckOp(path=znodes.CONTROLLER_EPOCH, version=fence.epoch_version)

    async def multi(self, operations: Sequence[Operation], *, waits_for_rights: bool = True) -> list[str | Stat | None]:
        """All or nothing, fenced. Raises Deposed, what the operations raise, and WriteOutcomeUnknown. Without a right
        to one of them it waits until brokers have it; if it is not to wait for that, it raises WriteRefused."""

        async def ask() -> list[str | Stat | None]:
            try:
                return await self._coordination.multi([self._epoch_check, *operations])
            except NotAuthorized as error:
                if waits_for_rights or not error.index:
                    raise
                raise WriteRefused(error.index - 1) from error

        try:
            results = await self.patiently(ask)
        except (BadVersion, NoNode) as error:
            if error.index == 0:
                raise Deposed(f"controller epoch {self._fence.controller_epoch} is over") from error
            raise
        return results[1:]

    async def write_leaderships(self, changes: Sequence[PartitionChange]) -> LeadershipsWritten:
        """Write each of these changes if its partition is still as it expects. Says nothing of those whose topic
        another tool has removed."""
        batches = [changes[at : at + PARTITIONS_PER_MULTI] for at in range(0, len(changes), PARTITIONS_PER_MULTI)]
        parts: list[LeadershipsWritten] = []
        for at in range(0, len(batches), MULTIS_IN_FLIGHT_MAX):
            group = batches[at : at + MULTIS_IN_FLIGHT_MAX]
            parts += await asyncio.gather(*(self._write_batch(list(batch)) for batch in group))
        return LeadershipsWritten(
            written=tuple(change for part in parts for change in part.written),
            lost={partition: part.lost[partition] for part in parts for partition in part.lost},
            unreadable=frozenset(partition for part in parts for partition in sorted(part.unreadable)),
        )

    async def _write_batch(self, changes: list[PartitionChange]) -> LeadershipsWritten:
        written: list[PartitionChange] = []
        lost: dict[TopicPartition, Leadership | None] = {}
        broken: frozenset[TopicPartition] = frozenset()
        with_parents = True
        while changes:
            operations = [(op, change) for change in changes for op in _write_operations(change, with_parents)]
            try:
                await self.multi([op for op, _ in operations], waits_for_rights=False)
                written += [_as_written(change) for change in changes]
                break
            except WriteRefused as refusal:
                _, change = operations[refusal.index]
                broken |= self._leave_unwritable([change])
                lost[change.partition] = None
                changes.remove(change)
                continue
            except (BadVersion, NodeExists, NoNode, WriteOutcomeUnknown):
                stored, unreadable = await self.read_leaderships([change.partition for change in changes])
            broken |= unreadable | await self._of_removed_states(changes, stored, unreadable)
            pending = []
            for change in changes:
                now = stored[change.partition]
                if now is not None and _is_what_we_wanted(now, change):
                    written.append(msgspec.structs.replace(change, after=now))
                elif now is not None and (known_epoch := _epoch_before_set_back(now, change)) is not None:
                    self.leave_contradicted_state(change.partition, now, known_epoch)
                    lost[change.partition] = None
                    broken |= {change.partition}
                elif now == change.before and change.partition not in unreadable:
                    pending.append(change)
                else:
                    lost[change.partition] = now
            changes = await self._of_topics_that_exist(pending)
            refused = await self._make_partition_nodes(changes)
            broken |= self._leave_unwritable(refused)
            changes = [change for change in changes if change not in refused]
            with_parents = False
        return LeadershipsWritten(written=tuple(written), lost=lost, unreadable=broken)

    async def _of_removed_states(
        self,
        changes: list[PartitionChange],
        stored: Mapping[TopicPartition, Leadership | None],
        unreadable: frozenset[TopicPartition],
    ) -> frozenset[TopicPartition]:
        """The partitions whose state is gone, while their topic is the same: another tool removed it. To make it anew
        would begin again at leader epoch 0, which brokers ignore. Each is reported."""
        removed: set[TopicPartition] = set()
        for change in changes:
            partition, before = change.partition, change.before
            if before is None or stored[partition] is not None or partition in unreadable:
                continue
            topic = await self.read_topic(partition.topic)
            if topic is not None and before.topic_id in ("", topic.topic_id):
                self.leave_contradicted_state(partition, None, before.leader_epoch)
                removed.add(partition)
        return frozenset(removed)

    async def _of_topics_that_exist(self, changes: list[PartitionChange]) -> list[PartitionChange]:
        """Another tool may have removed a topic: its states cannot be written, and the watch of the topics says why."""
        topics = sorted({change.partition.topic for change in changes})
        found = await self.all([znodes.topic_path(topic) for topic in topics], self.exists)
        there = {topic for topic, is_there in zip(topics, found, strict=True) if is_there}
        return [change for change in changes if change.partition.topic in there]

    def _leave_unwritable(self, changes: Sequence[PartitionChange]) -> frozenset[TopicPartition]:
        """Report the states that brokers have no right to write. Tried until they have it, each would hold up all other
        elections."""
        for change in changes:
            path = znodes.partition_state_path(change.partition)
            self._leave_state_alone(path, "another tool gave brokers no right to write it")
        return frozenset(change.partition for change in changes)

    async def _make_partition_nodes(self, changes: Sequence[PartitionChange]) -> list[PartitionChange]:
        """Create missing znodes above the states (a topic that another tool created has none). Returns the changes
        whose znodes brokers have no right to create."""
        refused: set[str] = set()
        new = [change.partition for change in changes if change.before is None]
        paths = [znodes.partitions_path(topic) for topic in sorted({partition.topic for partition in new})]
        paths += [znodes.partition_path(partition) for partition in new]
        for path in paths:
            if not await self.exists(path):
                try:
                    await self._create_unless_there(path, waits_for_rights=False)
                except WriteRefused:
                    refused.add(path)
        above = {each: (znodes.partitions_path(each.topic), znodes.partition_path(each)) for each in new}
        return [each for each in changes if not refused.isdisjoint(above.get(each.partition, ()))]

    async def _create_unless_there(self, path: str, *, waits_for_rights: bool = True) -> None:
        try:
            await self.multi([CreateOp(path=path, data=b"")], waits_for_rights=waits_for_rights)
        except (NodeExists, NoNode, WriteOutcomeUnknown):
            return  # the next attempt sees the result

    async def unregister(self, broker_id: BrokerId, broker_epoch: BrokerEpoch) -> None:
        """Remove this registration of a broker, but not a later one.

        ZooKeeper cannot make a removal depend on a creation's number. So a registration made between the check and the
        removal would go, too: its owner's watch fires, and it registers once more (docs/decisions/0011).
        """
        path = znodes.broker_path(broker_id)
        while True:
            stat = await self.patiently(lambda: self._coordination.exists(path))
            if stat is None or stat.czxid != broker_epoch:
                return
            try:
                await self.multi([DeleteOp(path=path, version=stat.version)])
                return
            except (BadVersion, NoNode, WriteOutcomeUnknown):
                continue

    async def create_topic(self, name: str, topic: Topic) -> None:
        """Settings and assignment in one multi. Raises TopicExists."""
        assignment = TopicAssignment.of(topic.topic_id, topic.assignment)
        config = ConfigNode(config=topic.configs).encode()
        while True:
            stale = await self.patiently(lambda: self._coordination.exists(znodes.topic_config_path(name)))
            operations: list[Operation] = [
                CreateOp(path=znodes.topic_config_path(name), data=config)
                if stale is None
                else SetOp(path=znodes.topic_config_path(name), data=config, version=stale.version),
                CreateOp(path=znodes.topic_path(name), data=assignment.encode()),
                CreateOp(path=znodes.partitions_path(name), data=b""),
            ]
            is_taken = False
            try:
                await self.multi(operations)
                self.ignored_nodes.remove(znodes.topic_path(name))
                self.ignored_nodes.remove(znodes.topic_config_path(name))
                return
            except NoNode:
                await self.create_missing(znodes.TOPIC_CONFIGS)
                await self.create_missing(znodes.BROKER_TOPICS)
            except NodeExists:
                is_taken = await self.exists(znodes.topic_path(name))
            except (BadVersion, WriteOutcomeUnknown):
                pass
            there = await self.read_topic(name)
            if there is not None and there.topic_id == topic.topic_id:
                return  # the answer was lost
            if there is not None or is_taken:  # also by a node that cannot be parsed
                raise TopicExists(name)

    async def mark_deleted(self, name: str) -> None:
        while True:
            try:
                await self.multi([CreateOp(path=znodes.delete_topic_path(name), data=b"")])
                return
            except NodeExists:
                return
            except NoNode:
                await self.create_missing(znodes.DELETE_TOPICS)
            except WriteOutcomeUnknown:
                continue

    async def begin_deletion(self, name: str) -> None:
        """Write that it has begun, so that the next controller knows that replicas may be gone already."""
        while True:
            try:
                await self.multi([SetOp(path=znodes.delete_topic_path(name), data=znodes.DELETION_BEGUN)])
                return
            except NoNode:  # the marker was removed too late: the deletion has been decided
                await self.create_missing(znodes.DELETE_TOPICS)
                await self._create_unless_there(znodes.delete_topic_path(name))
            except WriteOutcomeUnknown:
                continue

    async def write_config(self, path: str, change: Callable[[dict[str, str]], dict[str, str]]) -> dict[str, str]:
        """Read, change, write unless another write came in between; returns the new settings."""
        while True:
            before, stat = await self.read_config(path)
            config = change(before)
            content = ConfigNode(config=config).encode()
            operation: Operation = (
                CreateOp(path=path, data=content)
                if stat is None
                else SetOp(path=path, data=content, version=stat.version)
            )
            try:
                await self.multi([operation])
                self.ignored_nodes.remove(path)
                return config
            except NoNode:
                await self.create_missing(path.rpartition("/")[0])
            except NodeExists:
                await asyncio.sleep(RETRY_SECONDS)  # it may be one that brokers may not read
            except (BadVersion, WriteOutcomeUnknown):
                continue

    async def may_configure(self, broker_id: BrokerId) -> bool:
        """Whether a broker that is not registered may get settings: it has some, or there is room."""
        if await self.exists(znodes.broker_config_path(broker_id)):
            return True
        stat = await self.patiently(lambda: self._coordination.exists(znodes.BROKER_CONFIGS))
        return stat is None or stat.num_children < BROKER_SETTINGS_MAX

    async def erase_topic(self, name: str) -> None:
        """Remove states, assignment and settings; the marker last, in one multi with the topic itself."""
        while True:
            try:
                await self._erase_partitions(name)
                paths = [znodes.partitions_path(name), znodes.topic_path(name), znodes.topic_config_path(name)]
                paths.append(znodes.delete_topic_path(name))
                found = await self.all(paths, self.exists)
                operations = [DeleteOp(path=path) for path, is_there in zip(paths, found, strict=True) if is_there]
                await self.multi(operations)
                self.ignored_nodes.remove(znodes.topic_config_path(name))
                return
            except NotEmpty:
                await self._clear(name)
            except (NoNode, BadVersion, WriteOutcomeUnknown):
                continue  # read again what is left

    async def _clear(self, name: str) -> None:
        """Remove other clients' znodes below the topic's own, which could not be removed otherwise."""
        await asyncio.sleep(RETRY_SECONDS)
        for root in (znodes.topic_path(name), znodes.topic_config_path(name), znodes.delete_topic_path(name)):
            for path in reversed(await self._below(root)):
                with contextlib.suppress(NoNode, NotEmpty, BadVersion, WriteOutcomeUnknown):
                    await self.multi([DeleteOp(path=path)])

    async def _below(self, root: str) -> list[str]:
        """All nodes below this one, parents first."""
        found = [root]
        for path in found:
            found += await self._paths_in(path)
        return found[1:]

    async def _paths_in(self, path: str) -> list[str]:
        try:
            return [f"{path}/{name}" for name in await self.patiently(lambda: self._coordination.get_children(path))]
        except NoNode:
            return []

    async def _erase_partitions(self, name: str) -> None:
        try:
            numbers = await self.patiently(lambda: self._coordination.get_children(znodes.partitions_path(name)))
        except NoNode:
            return
        directories = [f"{znodes.partitions_path(name)}/{number}" for number in numbers]
        for at in range(0, len(directories), PARTITIONS_PER_MULTI):
            batch = directories[at : at + PARTITIONS_PER_MULTI]
            has_state = await self.all([f"{path}/state" for path in batch], self.exists)
            operations: list[DeleteOp] = []
            for path, is_there in zip(batch, has_state, strict=True):
                operations += [DeleteOp(path=f"{path}/state")] if is_there else []
                operations.append(DeleteOp(path=path))
            await self.multi(operations)


def _write_operations(change: PartitionChange, with_parent: bool) -> list[Operation]:
    content = to_partition_state(change.after).encode()
    path = znodes.partition_state_path(change.partition)
    if change.before is not None:
        return [SetOp(path=path, data=content, version=change.before.partition_epoch)]
    parent: list[Operation] = [CreateOp(path=znodes.partition_path(change.partition), data=b"")] if with_parent else []
    return [*parent, CreateOp(path=path, data=content)]


def _as_written(change: PartitionChange) -> PartitionChange:
    """ZooKeeper counts versions by one; the first is 0."""
    version = 0 if change.before is None else change.before.partition_epoch + 1
    return msgspec.structs.replace(change, after=msgspec.structs.replace(change.after, partition_epoch=version))


def _epoch_before_set_back(now: Leadership, change: PartitionChange) -> int | None:
    """The known leader epoch, if the stored one is earlier: only another tool writes that. Else None."""
    known = change.before
    if known is None or now.topic_id != known.topic_id or now.leader_epoch >= known.leader_epoch:
        return None
    return known.leader_epoch


def _is_what_we_wanted(now: Leadership, change: PartitionChange) -> bool:
    """Our own write after a lost answer: no other controller writes with our controller epoch."""
    return now == _as_written(change).after
