"""The cluster's facts in ZooKeeper, as one controller reads them.

Owns: what each znode means, retries while ZooKeeper cannot be reached, and the handling of znodes that cannot be
parsed. Leaves to others: writing (`cluster_store`) and decisions.

Theory. While ZooKeeper cannot be reached every call waits; the owner cancels it when the session is over. A znode that
cannot be parsed, or read, is left out with an error in the log: one broken topic must not stop the cluster. A state
written under a higher controller epoch than ours means that we were deposed, if /controller_epoch confirms it.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from minibroker.controller.controller_election import ControllerFence
from minibroker.controller.core.controller_state import LOG_EPOCH_MAX, Leadership, RegisteredBroker, Topic
from minibroker.controller.core.events import TopicsChanged
from minibroker.controller.core.ignored_nodes import IgnoredNodes
from minibroker.protocol import znodes
from minibroker.protocol.errors import ProtocolError
from minibroker.protocol.events.broker_events import NodeMissing
from minibroker.protocol.events.controller_events import NodeIgnored
from minibroker.protocol.ids import (
    BrokerId,
    ControllerEpoch,
    LeaderEpoch,
    TopicPartition,
    from_wire,
    is_topic_name,
    to_wire,
)
from minibroker.protocol.wire.messages import BROKERS_MAX
from minibroker.protocol.witness import WITNESS, PartitionWitness, WitnessNode, shard_of, witness_path
from minibroker.protocol.znodes import BrokerRegistration, ConfigNode, CorruptZnode, PartitionState, TopicAssignment
from minibroker.runtime.observer import UNOBSERVED, Observer
from minibroker.runtime.ports import (
    BadVersion,
    Coordination,
    CoordinationError,
    CoordinationUnavailable,
    NodeExists,
    NoNode,
    NotAuthorized,
    NotEmpty,
    SessionExpired,
    Stat,
    Watcher,
    WriteOutcomeUnknown,
)

RETRY_SECONDS = 0.1
"""Pause while ZooKeeper cannot be asked."""
REFUSED_SECONDS = 1.0
"""Pause after an answer that no caller expects: a problem of ZooKeeper, which passes or needs an operator."""
CALLS_IN_FLIGHT_MAX = 256
"""Reads sent before the first answer; more only grows ZooKeeper's queue."""
SHOWN_MAX = 200
"""Characters of a path that are shown: topic names have at most 249, other clients' names any number."""
ANSWERS = (NoNode, NodeExists, BadVersion, NotEmpty, WriteOutcomeUnknown)
"""Errors that callers handle."""

logger = logging.getLogger("minibroker.controller")
T = TypeVar("T")
A = TypeVar("A")


SETTINGS_WHILE_UNKNOWN = {
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "-1",
    "unclean.leader.election.enable": "false",
}
"""Of a topic whose settings cannot be read: the brokers' defaults could delete or lose records that its own settings
keep."""
UNTIL_WRITTEN_AGAIN = "until its settings are written again (`topic alter`), its records are kept whatever their age"


class NotReadable(CorruptZnode):
    """Brokers have no right to read the node: another tool has given it an ACL of its own."""


class Deposed(Exception):
    """Another controller was elected, or the session is over: nothing may be written or sent any more."""


class Resigned(Deposed):
    """This controller resigns, so that another may do better."""


class ClusterReader:
    """Reads for the controller that holds this fence."""

    def __init__(
        self,
        coordination: Coordination,
        fence: ControllerFence,
        observer: Observer = UNOBSERVED,
        on_broker_gone: Callable[[str], None] = lambda name: None,
    ) -> None:
        """`on_broker_gone` is called with the name of a registration that was just listed and no longer exists."""
        self._coordination = coordination
        self._fence = fence
        self._observer = observer
        self._on_broker_gone = on_broker_gone
        self.ignored_nodes = IgnoredNodes()
        self._registrations: dict[str, RegisteredBroker] = {}
        """As last read."""

    async def is_still_active(self, watcher: Watcher) -> bool:
        stat = await self.patiently(lambda: self._coordination.exists(znodes.CONTROLLER, watcher))
        return stat is not None and stat.ephemeral_owner == self._coordination.session_id

    async def read_brokers(self, watcher: Watcher) -> dict[BrokerId, RegisteredBroker]:
        names = sorted(await self._children(znodes.BROKER_IDS, watcher), key=lambda name: (len(name), name))
        self.ignored_nodes.listed(znodes.BROKER_IDS, names)
        self._registrations = {each: self._registrations[each] for each in names if each in self._registrations}
        if len(names) > BROKERS_MAX:
            logger.error("%s: only the first %d of %d are known", znodes.BROKER_IDS, BROKERS_MAX, len(names))
        brokers = await self.all(names[:BROKERS_MAX], self._read_broker)
        return {broker.broker_id: broker for broker in brokers if broker is not None}

    async def read_topic_names(self, watcher: Watcher) -> list[str]:
        return self._legal(znodes.BROKER_TOPICS, await self._children(znodes.BROKER_TOPICS, watcher))

    async def read_deletions(self, watcher: Watcher) -> list[str]:
        return self._legal(znodes.DELETE_TOPICS, await self._children(znodes.DELETE_TOPICS, watcher))

    def _legal(self, path: str, names: Sequence[str]) -> list[str]:
        """The legal topic names among these: no order and no directory could carry another name."""
        self.ignored_nodes.listed(path, names)
        legal = [name for name in names if is_topic_name(name)]
        for name in sorted(set(names) - set(legal)):
            self._ignore(f"{path}/{name}", "no topic can have this name")
        return legal

    def _ignore(self, path: str, why: object) -> None:
        """Report it, and note it in DescribeCluster."""
        self.ignored_nodes.add(path, str(why))
        self._observer.notify(NodeIgnored(path=shown(path), reason=str(why)))

    def _leave_state_alone(self, path: str, why: object) -> None:
        self.ignored_nodes.add(path, str(why))
        self._observer.notify(NodeIgnored(path=path, reason=str(why)))

    async def read_begun(self, names: Sequence[str]) -> frozenset[str]:
        """The topics among these for which the deletion has begun."""

        async def has_begun(name: str) -> bool:
            try:
                content, _ = await self.patiently(lambda: self._coordination.get(znodes.delete_topic_path(name)))
            except NoNode:
                return False
            return content == znodes.DELETION_BEGUN

        begun = await self.all(names, has_begun)
        return frozenset(name for name, is_begun in zip(names, begun, strict=True) if is_begun)

    async def read_topics(self, names: Sequence[str]) -> TopicsChanged:
        """Assignment, settings and partition states of these topics; what cannot be parsed is left out and logged."""
        found = await self.all(names, self.read_topic)
        topics = {name: topic for name, topic in zip(names, found, strict=True) if topic is not None}
        partitions = [TopicPartition(name, number) for name in topics for number in sorted(topics[name].assignment)]
        states, unreadable = await self.read_leaderships(partitions)
        leaderships = {each: state for each, state in states.items() if state is not None}
        for name in _exchanged(topics, leaderships):
            path, topic_id = znodes.topic_path(name), topics.pop(name).topic_id
            self._ignore(path, f"its partitions' states are of another topic id than {topic_id}")
        leaderships = {each: state for each, state in leaderships.items() if each.topic in topics}
        return TopicsChanged(added=topics, leaderships=leaderships, unreadable=unreadable)

    async def without_contradicted_states(self, found: TopicsChanged, deletions: Collection[str]) -> TopicsChanged:
        """The same without the states that a leader's note in the witness contradicts, which is of the same topic id
        and of a later leader epoch, or of any if there is no state: another tool has removed the state or set it back.
        A next epoch would be one that a broker may have led already. Each is reported. Topics of `deletions` stay as
        they are: a controller removes their states."""
        ids = {name: topic.topic_id for name, topic in found.added.items() if name not in deletions}
        partitions = [TopicPartition(name, number) for name in ids for number in sorted(found.added[name].assignment)]
        partitions = [each for each in partitions if each not in found.unreadable]
        leaderships, unreadable = dict(found.leaderships), set(found.unreadable)
        notes = await self._read_witness(partitions)
        for partition in partitions:
            state = leaderships.get(partition)
            of_topic = [(epoch, path) for epoch, path, topic_id in notes[partition] if topic_id == ids[partition.topic]]
            noted, path = max(of_topic, default=(-1, ""))
            if noted > (-1 if state is None else state.leader_epoch):
                self.leave_contradicted_state(partition, state, noted, path)
                leaderships.pop(partition, None)
                unreadable.add(partition)
        return msgspec.structs.replace(found, leaderships=leaderships, unreadable=frozenset(unreadable))

    def report_removed_topic(self, name: str, topic_id: str) -> None:
        """Another tool has removed this topic's node, without a deletion."""
        path = znodes.topic_path(name)
        why = f"another tool removed it, and brokers hold its records: put it back with topic id {topic_id}"
        why += ", or create a topic of this name, which deletes them"
        self.ignored_nodes.add_removed(path, why)
        self._observer.notify(NodeIgnored(path=path, reason=why))

    def leave_contradicted_state(
        self, partition: TopicPartition, state: Leadership | None, known_epoch: int, note_path: str | None = None
    ) -> None:
        """Report that this partition has been led under `known_epoch`, and has no state any more or an older one.
        `note_path`: where a leader has noted that epoch."""
        what = "removed it" if state is None else f"set it back to leader epoch {state.leader_epoch}"
        epoch = f"a leader epoch above {known_epoch} and those in `minibroker replicas`"
        why = f"another tool {what}; write it again with {epoch}, or delete the topic"
        if note_path is not None:
            why += f" (leader epoch {known_epoch} is noted in {note_path}; remove the node if that is wrong)"
        self._leave_state_alone(znodes.partition_state_path(partition), why)

    async def _read_witness(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, list[tuple[LeaderEpoch, str, str]]]:
        """What leaders have noted of each of these partitions: the leader epoch, the path of the note, and the topic
        id. A node that cannot be parsed counts as empty, as its broker reports, and so does an impossible epoch."""
        try:
            names = await self.patiently(lambda: self._coordination.get_children(WITNESS)) if partitions else []
        except NoNode:
            names = []
        brokers = sorted({int(name) for name in names if name.isdecimal()})
        by_shard: dict[int, list[tuple[TopicPartition, str]]] = defaultdict(list)
        for each in partitions:
            by_shard[shard_of(each)].append((each, str(each)))
        places = [(broker, shard) for broker in brokers for shard in sorted(by_shard)]
        nodes = await self.all(places, self._read_shard)
        found: dict[TopicPartition, list[tuple[LeaderEpoch, str, str]]] = {each: [] for each in partitions}
        for place, node in zip(places, nodes, strict=True):
            for partition, name in by_shard[place[1]]:
                note = node.get(name)
                if note is not None and note.leader_epoch <= LOG_EPOCH_MAX:
                    found[partition].append((note.leader_epoch, witness_path(*place), note.topic_id))
        return found

    async def _read_shard(self, of: tuple[BrokerId, int]) -> Mapping[str, PartitionWitness]:
        try:
            content, _ = await self._get(witness_path(*of))
            return WitnessNode.decode(content).partitions
        except (NoNode, CorruptZnode):
            return {}

    async def read_config(self, path: str) -> tuple[dict[str, str], Stat | None]:
        """The settings in this node, and its version. Of a topic they are never missing: a node that another tool has
        removed or damaged is reported, and records are kept until its settings are written again."""
        is_topic = path.startswith(f"{znodes.TOPIC_CONFIGS}/")
        unknown = SETTINGS_WHILE_UNKNOWN if is_topic else {}
        stat = None
        try:
            content, stat = await self._get(path)
            config = ConfigNode.decode(content).config
        except NoNode:
            if is_topic:
                self._ignore(path, f"another tool removed it; {UNTIL_WRITTEN_AGAIN}")
            else:
                self.ignored_nodes.remove(path)
            return dict(unknown), None
        except ProtocolError as error:
            self._ignore(path, f"{error}; {UNTIL_WRITTEN_AGAIN}" if is_topic else error)
            return dict(unknown), stat
        self.ignored_nodes.remove(path)
        return config, stat

    async def _children(self, path: str, watcher: Watcher) -> list[str]:
        """Of a znode that every broker creates at its start; created again if it was removed."""
        while True:
            try:
                return await self.patiently(lambda: self._coordination.get_children(path, watcher))
            except NoNode:
                await self.create_missing(path)

    async def create_missing(self, path: str) -> None:
        """Create a znode that every broker creates at its start, if another tool has removed it."""
        if await self.exists(path):
            return
        self._observer.notify(NodeMissing(path=path))
        with contextlib.suppress(NodeExists, WriteOutcomeUnknown):
            await self.patiently(lambda: self._coordination.create(path, b"", make_parents=True))

    async def exists(self, path: str) -> bool:
        async def ask() -> bool:
            try:
                return await self._coordination.exists(path) is not None
            except NotAuthorized:
                return True  # ZooKeeper asks for the right to a node that is there

        return await self.patiently(ask)

    async def _read_broker(self, name: str) -> RegisteredBroker | None:
        path = f"{znodes.BROKER_IDS}/{name}"
        try:
            content, stat = await self._get(path)
            broker_id, registration = znodes.parse_id(name), BrokerRegistration.decode(content)
        except NoNode:
            self._on_broker_gone(name)
            return None  # gone meanwhile; the watch reports it
        except NotReadable as error:
            self._ignore(path, error)
            # As one that is gone it would be told nothing, and lead on beside its successor. It is listed, and a broker
            # that registers again makes a node that can be read.
            return self._registrations.get(name)
        except ProtocolError as error:
            self._ignore(path, error)
            return None
        self.ignored_nodes.remove(path)
        listeners = registration.listeners()
        self._registrations[name] = RegisteredBroker(
            broker_id=broker_id,
            broker_epoch=stat.czxid,
            incarnation_id=registration.incarnation_id,
            directory_id=registration.directory_id,
            listeners=tuple((each, *listeners[each]) for each in listeners),
        )
        return self._registrations[name]

    async def read_topic(self, name: str) -> Topic | None:
        path = znodes.topic_path(name)
        try:
            content, _ = await self._get(path)
            assignment = TopicAssignment.decode(content)
        except NoNode:
            return None
        except ProtocolError as error:
            self._ignore(path, error)
            return None
        self.ignored_nodes.remove(path)
        configs, _ = await self.read_config(znodes.topic_config_path(name))
        return Topic(topic_id=assignment.topic_id, assignment=assignment.replicas(), configs=configs)

    async def read_leaderships(
        self, partitions: Sequence[TopicPartition]
    ) -> tuple[dict[TopicPartition, Leadership | None], frozenset[TopicPartition]]:
        """The states in ZooKeeper (None: none), and those that cannot be parsed. Raises Deposed for a newer epoch's."""
        unreadable: list[TopicPartition] = []

        async def read(partition: TopicPartition) -> Leadership | None:
            path = znodes.partition_state_path(partition)
            try:
                content, stat = await self._get(path)
                leadership = to_leadership(PartitionState.decode(content), stat.version)
            except NoNode:
                return None
            except ProtocolError as error:
                self._leave_state_alone(path, error)
                unreadable.append(partition)
                return None
            if leadership.controller_epoch > self._fence.controller_epoch:
                await self._check_controller_epoch(leadership.controller_epoch, path)
                problem = f"controller epoch {leadership.controller_epoch} was never given to a controller"
                cure = f"correct it, or write that epoch to {znodes.CONTROLLER_EPOCH} if that was set back"
                self._leave_state_alone(path, f"{problem}; {cure}")
                unreadable.append(partition)
                return None
            return leadership

        states = await self.all(partitions, read)
        return dict(zip(partitions, states, strict=True)), frozenset(unreadable)

    async def _check_controller_epoch(self, epoch: ControllerEpoch, path: str) -> None:
        """Raise Deposed only if /controller_epoch has changed: a state alone may hold any number."""
        try:
            content, stat = await self.patiently(lambda: self._coordination.get(znodes.CONTROLLER_EPOCH))
        except NoNode as error:
            raise Deposed(f"{znodes.CONTROLLER_EPOCH} is gone") from error
        if stat.version != self._fence.epoch_version:
            newer = f"controller epoch {epoch} has written {path}"
            raise Deposed(f"{newer}, and {znodes.CONTROLLER_EPOCH} says {content!r:.80}")

    # ---------------------------------------------------------------------------------------------------- asking
    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Retry while ZooKeeper cannot be reached; the end of the session ends this, too."""
        while True:
            try:
                return await ask()
            except CoordinationUnavailable:
                await asyncio.sleep(RETRY_SECONDS)
            except SessionExpired as error:
                raise Deposed("the ZooKeeper session is over") from error
            except ANSWERS:
                raise
            except CoordinationError as error:
                logger.error("ZooKeeper refuses, asking again: %s", error)
                await asyncio.sleep(REFUSED_SECONDS)

    async def _get(self, path: str) -> tuple[bytes, Stat]:
        """Raises NoNode, and NotReadable for a node that brokers have no right to. Asked for until they have it, it
        would hold up everything else."""

        async def ask() -> tuple[bytes, Stat]:
            try:
                return await self._coordination.get(path)
            except NotAuthorized as error:
                raise NotReadable("another tool gave brokers no right to read it") from error

        return await self.patiently(ask)

    async def all(self, items: Sequence[A], ask: Callable[[A], Awaitable[T]]) -> list[T]:
        """Ask about each item, many at a time."""
        answers: list[T] = []
        for at in range(0, len(items), CALLS_IN_FLIGHT_MAX):
            answers += await asyncio.gather(*(ask(item) for item in items[at : at + CALLS_IN_FLIGHT_MAX]))
        return answers


def shown(path: str) -> str:
    """A path that any client of ZooKeeper may have chosen, for one line of a log or a message."""
    return ascii(path)[1:-1][:SHOWN_MAX]


def _exchanged(topics: Mapping[str, Topic], leaderships: Mapping[TopicPartition, Leadership]) -> list[str]:
    """Topics with another id than their states have. An order under it would make brokers delete the logs; a topic that
    was really created again has new states, for a deletion removes them first."""
    other = {
        each.topic for each, state in leaderships.items() if state.topic_id not in ("", topics[each.topic].topic_id)
    }
    return sorted(other)


def to_leadership(state: PartitionState, version: int) -> Leadership:
    members = tuple(state.isr)
    incarnations, directories = state.isr_incarnations, state.isr_directories
    return Leadership(
        leader=from_wire(state.leader),
        leader_epoch=state.leader_epoch,
        in_sync_replicas=members,
        incarnations=tuple((each, incarnations[str(each)]) for each in members if str(each) in incarnations),
        directories=tuple((each, directories[str(each)]) for each in members if str(each) in directories),
        controller_epoch=state.controller_epoch,
        partition_epoch=version,
        is_recovering=state.leader_recovery_state == 1,
        topic_id=state.topic_id,
    )


def to_partition_state(leadership: Leadership) -> PartitionState:
    return PartitionState(
        leader=to_wire(leadership.leader),
        leader_epoch=leadership.leader_epoch,
        controller_epoch=leadership.controller_epoch,
        isr=list(leadership.in_sync_replicas),
        isr_incarnations={str(broker_id): incarnation for broker_id, incarnation in leadership.incarnations},
        isr_directories={str(broker_id): directory for broker_id, directory in leadership.directories},
        leader_recovery_state=int(leadership.is_recovering),
        topic_id=leadership.topic_id,
    )
