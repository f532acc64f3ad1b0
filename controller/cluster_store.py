"""The cluster's facts in ZooKeeper: read them, and write them as the controller of one epoch.

Owns: which nodes say what, the fence on every write (a multi that checks /controller_epoch), batches of bounded size,
and what to do when an answer was lost. Refuses to decide anything.

Theory. A write that fails its fence means that another controller was elected: `Deposed`, whatever else is going on. A
write that fails the version of its own node, or whose outcome is unknown, is settled by reading again: what we wanted
is there (KAFKA-1382: adopt its version), or what it was based on is there (write again, the version makes a late first
attempt harmless), or something else is there (lost: decide again). While ZooKeeper cannot be reached every call waits;
the owner ends it by cancellation.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from minibroker.controller.cluster_state import Deletion, Leadership, LiveBroker, Topic
from minibroker.controller.contest import Office
from minibroker.controller.election import PartitionChange
from minibroker.controller.events import LeadershipsWritten, TopicsSeen
from minibroker.protocol import znodes
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.ids import BrokerId, TopicPartition, from_wire, to_wire
from minibroker.protocol.znodes import (
    BrokerRegistration,
    ConfigNode,
    PartitionState,
    TopicAssignment,
)
from minibroker.runtime.ports import (
    BadVersion,
    CheckOp,
    Coordination,
    CoordinationUnavailable,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Operation,
    OutcomeUnknown,
    SessionExpired,
    SetOp,
    Stat,
    Watcher,
)

RETRY_SECONDS = 0.1
"""Pause while ZooKeeper cannot be asked."""
PARTITIONS_PER_MULTI = 200
"""A state and its path are about 300 bytes; ZooKeeper refuses a multi above 1 MB, and a big one delays all others."""
CALLS_IN_FLIGHT_MAX = 256
"""Reads sent before the first answer; more only grows ZooKeeper's queue."""
MULTIS_IN_FLIGHT_MAX = 8
"""As zookeeper.max.in.flight.requests in Kafka (10)."""

logger = logging.getLogger("minibroker.controller")
T = TypeVar("T")


class Deposed(Exception):
    """Another controller was elected, or the session is over: nothing may be written or sent any more."""


class TopicExists(Exception):
    """Somebody else created it."""


class ClusterStore:
    """Reads anything; writes with the fence of one office."""

    def __init__(self, coordination: Coordination, office: Office) -> None:
        self._coordination = coordination
        self._office = office
        self._fence = CheckOp(path=znodes.CONTROLLER_EPOCH, version=office.fence_version)

    # ---------------------------------------------------------------------------------------------------- reading
    async def holds_office(self, watcher: Watcher) -> bool:
        stat = await self._patiently(lambda: self._coordination.exists(znodes.CONTROLLER, watcher))
        return stat is not None and stat.ephemeral_owner == self._coordination.session_id

    async def read_brokers(self, watcher: Watcher) -> dict[BrokerId, LiveBroker]:
        names = await self._patiently(lambda: self._coordination.get_children(znodes.BROKER_IDS, watcher))
        brokers = await self._all(names, self._read_broker)
        return {broker.broker_id: broker for broker in brokers if broker is not None}

    async def read_topic_names(self, watcher: Watcher) -> list[str]:
        return await self._patiently(lambda: self._coordination.get_children(znodes.BROKER_TOPICS, watcher))

    async def read_deletions(self, watcher: Watcher) -> list[str]:
        return await self._patiently(lambda: self._coordination.get_children(znodes.DELETE_TOPICS, watcher))

    async def read_topics(self, names: Sequence[str]) -> TopicsSeen:
        """Assignment, settings and partition states of these topics; what cannot be read is left out, and said."""
        found = await self._all(names, self._read_topic)
        topics = {name: topic for name, topic in zip(names, found, strict=True) if topic is not None}
        partitions = [TopicPartition(name, number) for name in topics for number in sorted(topics[name].assignment)]
        states, unreadable = await self._read_leaderships(partitions)
        leaderships = {each: state for each, state in states.items() if state is not None}
        return TopicsSeen(added=topics, leaderships=leaderships, unreadable=unreadable)

    async def read_config(self, path: str) -> tuple[dict[str, str], Stat | None]:
        try:
            content, stat = await self._patiently(lambda: self._coordination.get(path))
        except NoNode:
            return {}, None
        try:
            return ConfigNode.decode(content).config, stat
        except ProtocolError as error:
            logger.error("%s is ignored: %s", path, error)
            return {}, stat

    async def _read_broker(self, name: str) -> LiveBroker | None:
        path = f"{znodes.BROKER_IDS}/{name}"
        try:
            content, stat = await self._patiently(lambda: self._coordination.get(path))
            broker_id, registration = znodes.parse_id(name), BrokerRegistration.decode(content)
        except NoNode:
            return None  # gone meanwhile; the watch tells
        except ProtocolError as error:
            logger.error("%s is ignored: %s", path, error)
            return None
        listeners = registration.listeners()
        return LiveBroker(
            broker_id=broker_id,
            broker_epoch=stat.czxid,
            incarnation_id=registration.incarnation_id,
            listeners=tuple((each, *listeners[each]) for each in listeners),
        )

    async def _read_topic(self, name: str) -> Topic | None:
        path = znodes.topic_path(name)
        try:
            content, _ = await self._patiently(lambda: self._coordination.get(path))
            assignment = TopicAssignment.decode(content)
        except NoNode:
            return None
        except ProtocolError as error:
            logger.error("%s is ignored: %s", path, error)
            return None
        configs, _ = await self.read_config(znodes.topic_config_path(name))
        return Topic(topic_id=assignment.topic_id, assignment=assignment.replicas(), configs=configs)

    async def _read_leaderships(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, Leadership | None], frozenset[TopicPartition]]:
        """What stands in ZooKeeper (None: nothing), and which of it cannot be read. Deposed by a newer controller's."""
        unreadable: list[TopicPartition] = []

        async def read(partition: TopicPartition) -> Leadership | None:
            path = znodes.partition_state_path(partition)
            try:
                content, stat = await self._patiently(lambda: self._coordination.get(path))
                leadership = to_leadership(PartitionState.decode(content), stat.version)
            except NoNode:
                return None
            except ProtocolError as error:
                logger.error("%s is left alone until it is repaired: %s", path, error)
                unreadable.append(partition)
                return None
            if leadership.controller_epoch > self._office.controller_epoch:
                raise Deposed(f"controller epoch {leadership.controller_epoch} has written the state of {partition}")
            return leadership

        states = await self._all(partitions, read)
        return dict(zip(partitions, states, strict=True)), frozenset(unreadable)

    # --------------------------------------------------------------------------------------------------- writing
    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """All or nothing, fenced. Raises Deposed, what the operations raise, and OutcomeUnknown."""
        try:
            results = await self._patiently(lambda: self._coordination.multi([self._fence, *operations]))
        except (BadVersion, NoNode) as error:
            if error.index == 0:
                raise Deposed(f"controller epoch {self._office.controller_epoch} is over") from error
            raise
        return results[1:]

    async def write_leaderships(self, changes: Sequence[PartitionChange]) -> LeadershipsWritten:
        """Write them all, each if its partition still is as the change says."""
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
            try:
                await self.multi([op for change in changes for op in _write_operations(change, with_parents)])
                written += [_as_written(change) for change in changes]
                break
            except (BadVersion, NodeExists, NoNode, OutcomeUnknown):
                stored, unreadable = await self._read_leaderships([change.partition for change in changes])
            broken |= unreadable
            pending = []
            for change in changes:
                now = stored[change.partition]
                if now is not None and _is_what_we_wanted(now, change):
                    written.append(msgspec.structs.replace(change, after=now))
                elif now == change.before and change.partition not in unreadable:
                    pending.append(change)
                else:
                    lost[change.partition] = now
            changes = pending
            await self._make_partition_nodes(changes)
            with_parents = False
        return LeadershipsWritten(written=tuple(written), lost=lost, unreadable=broken)

    async def _make_partition_nodes(self, changes: Sequence[PartitionChange]) -> None:
        """The nodes above the states, where they are missing (a topic that another tool created has none)."""
        new = [change.partition for change in changes if change.before is None]
        paths = [znodes.partitions_path(topic) for topic in sorted({partition.topic for partition in new})]
        paths += [znodes.partition_path(partition) for partition in new]
        for path in paths:
            if await self._patiently(lambda path=path: self._coordination.exists(path)) is None:  # type: ignore[misc]
                await self._create_unless_there(path)

    async def _create_unless_there(self, path: str) -> None:
        try:
            await self.multi([CreateOp(path=path, data=b"")])
        except (NodeExists, NoNode, OutcomeUnknown):
            return  # the next attempt finds out

    async def create_topic(self, name: str, topic: Topic) -> None:
        """Settings and assignment in one multi. Raises TopicExists."""
        assignment = TopicAssignment.of(topic.topic_id, topic.assignment)
        config = ConfigNode(config=topic.configs).encode()
        while True:
            stale = await self._patiently(lambda: self._coordination.exists(znodes.topic_config_path(name)))
            operations: list[Operation] = [
                CreateOp(path=znodes.topic_config_path(name), data=config)
                if stale is None
                else SetOp(path=znodes.topic_config_path(name), data=config, version=stale.version),
                CreateOp(path=znodes.topic_path(name), data=assignment.encode()),
                CreateOp(path=znodes.partitions_path(name), data=b""),
            ]
            try:
                await self.multi(operations)
                return
            except (NodeExists, BadVersion, NoNode, OutcomeUnknown):
                there = await self._read_topic(name)
            if there is not None and there.topic_id == topic.topic_id:
                return  # the answer was lost
            if there is not None:
                raise TopicExists(name)

    async def mark_deleted(self, name: str) -> None:
        while True:
            try:
                await self.multi([CreateOp(path=znodes.delete_topic_path(name), data=b"")])
                return
            except NodeExists:
                return
            except OutcomeUnknown:
                continue

    async def write_config(self, path: str, change: Callable[[dict[str, str]], dict[str, str]]) -> dict[str, str]:
        """Read, change, write if nobody else wrote in between; returns the settings as they are now."""
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
                return config
            except (BadVersion, NodeExists, NoNode, OutcomeUnknown):
                continue

    async def erase_topic(self, name: str) -> None:
        """Remove states, assignment and settings; the marker last, in one multi with the topic itself."""
        while True:
            try:
                await self._erase_partitions(name)
                paths = [znodes.partitions_path(name), znodes.topic_path(name), znodes.topic_config_path(name)]
                paths.append(znodes.delete_topic_path(name))
                found = await self._all(paths, self._exists)
                operations = [DeleteOp(path=path) for path, is_there in zip(paths, found, strict=True) if is_there]
                await self.multi(operations)
                return
            except (NoNode, NotEmpty, BadVersion, OutcomeUnknown):
                continue  # look again at what is left

    async def _erase_partitions(self, name: str) -> None:
        try:
            numbers = await self._patiently(lambda: self._coordination.get_children(znodes.partitions_path(name)))
        except NoNode:
            return
        directories = [f"{znodes.partitions_path(name)}/{number}" for number in numbers]
        for at in range(0, len(directories), PARTITIONS_PER_MULTI):
            batch = directories[at : at + PARTITIONS_PER_MULTI]
            has_state = await self._all([f"{path}/state" for path in batch], self._exists)
            operations: list[DeleteOp] = []
            for path, is_there in zip(batch, has_state, strict=True):
                operations += [DeleteOp(path=f"{path}/state")] if is_there else []
                operations.append(DeleteOp(path=path))
            await self.multi(operations)

    async def _exists(self, path: str) -> bool:
        return await self._patiently(lambda: self._coordination.exists(path)) is not None

    # ---------------------------------------------------------------------------------------------------- asking
    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Wait while ZooKeeper cannot be reached; the end of the session is the end of the office."""
        while True:
            try:
                return await ask()
            except CoordinationUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            except SessionExpired as error:
                raise Deposed("the ZooKeeper session is over") from error

    async def _all(self, items: Sequence["A"], ask: "Callable[[A], Awaitable[T]]") -> list[T]:
        """Ask about each of them, many at a time."""
        answers: list[T] = []
        for at in range(0, len(items), CALLS_IN_FLIGHT_MAX):
            answers += await asyncio.gather(*(ask(item) for item in items[at : at + CALLS_IN_FLIGHT_MAX]))
        return answers


A = TypeVar("A")


def to_leadership(state: PartitionState, version: int) -> Leadership:
    members = tuple(state.isr)
    incarnations = tuple(
        (each, state.isr_incarnations[str(each)]) for each in members if str(each) in state.isr_incarnations
    )
    return Leadership(
        leader=from_wire(state.leader),
        leader_epoch=state.leader_epoch,
        in_sync_replicas=members,
        incarnations=incarnations,
        controller_epoch=state.controller_epoch,
        partition_epoch=version,
        is_recovering=state.leader_recovery_state == 1,
    )


def to_partition_state(leadership: Leadership) -> PartitionState:
    return PartitionState(
        leader=to_wire(leadership.leader),
        leader_epoch=leadership.leader_epoch,
        controller_epoch=leadership.controller_epoch,
        isr=list(leadership.in_sync_replicas),
        isr_incarnations={str(broker_id): incarnation for broker_id, incarnation in leadership.incarnations},
        leader_recovery_state=int(leadership.is_recovering),
    )


def new_deletions(names: Iterable[str], topics: Iterable[str]) -> dict[str, Deletion]:
    """Deletions to go on with after taking over: markers of topics that exist."""
    known = set(topics)
    return {name: Deletion() for name in names if name in known}


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


def _is_what_we_wanted(now: Leadership, change: PartitionChange) -> bool:
    """Our own write, whose answer was lost: nobody else writes with our controller epoch."""
    return now == _as_written(change).after
