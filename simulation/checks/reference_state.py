"""What ZooKeeper really holds, seen from outside the cluster, and what must always hold of it and of the leaders.

Every write of a partition's state is checked when it happens; the brokers' own state is compared with it by sampling.
"""

from collections.abc import Callable

import msgspec

from minibroker.broker.replication.state import Role
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import CONTROLLER_EPOCH, BrokerRegistration, PartitionState, broker_path
from minibroker.runtime.ports import CreateOp, SetOp
from minibroker.simulation.checks.finding import CheckerFinding
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import Process
from minibroker.simulation.world.observations import DataReplaced, NodesWritten, SessionCutShort
from minibroker.simulation.world.znode_tree import ZNode

FINDINGS_MAX = 20
STATE_SUFFIX = "/state"
"""Of the path of a partition's state."""
PRODUCER_EXPIRY = b"producer.id.expiration.ms"
EXPIRY_NOTICED_SECONDS = 10.0
"""After a fault ended its session, a broker learns of it when it reaches ZooKeeper again; no fault
keeps it off longer."""


class ReferencePartition(msgspec.Struct):
    """The state znode of one partition."""

    partition: TopicPartition
    members: tuple[int, ...]
    incarnations: dict[str, str]
    leader: int
    leader_epoch: int
    controller_epoch: int
    version: int
    czxid: int
    since: float
    """Since when the ISR is this one."""
    min_isr: int
    replication_factor: int = 3


class ReferenceState:
    """Watches ZooKeeper and the leaders during one run."""

    def __init__(self, cluster: SimulatedCluster, topics: dict[str, tuple[int, int, int]]) -> None:
        self.findings: list[CheckerFinding] = []
        self.elections = 0
        self.isr_changes = 0
        self.listeners: list[Callable[[TopicPartition], None]] = []
        """Called right after a partition's state was written."""
        self.samplers: list[Callable[[], None]] = []
        """Called at each sample."""
        self.allows_unclean_election = False
        """Set it if the run's settings allow it."""
        self.uncleanly_led: set[TopicPartition] = set()
        """Partitions that ever had a leader from outside their ISR."""
        self.faulty: set[int] = set()
        """Brokers with a disk that lied, rots or was replaced, until they are whole again: what such a disk holds at a
        start is not its broker's fault. What the broker then does is checked as always."""
        self.lost_files: set[Process] = set()
        """Processes that lost files by a fault: their wrong view of those files is not their fault."""
        self.forgets_producers = False
        """Whether any broker's producer.id.expiration.ms was ever changed: producers that were forgotten stay so."""
        self.deleted_below: dict[TopicPartition, int] = {}
        """The highest log start that any leader had: no reader may have skipped a record behind it."""
        self.is_unaware: Callable[[int], bool] = lambda broker_id: False
        """Whether another broker removed this broker's registration and it cannot know yet (see `fencing`)."""
        self.is_calm: Callable[[ReferencePartition], bool] = lambda state: False
        """Whether only disks are broken now, and another member of this ISR could lead. Set by the run, which knows
        what it broke."""
        self._cluster = cluster
        self._topics = topics
        self._states: dict[TopicPartition, ReferencePartition] = {}
        self._leaders: dict[tuple[TopicPartition, str, int], int] = {}
        self._high_watermarks: dict[tuple[TopicPartition, str, int, int, int], int] = {}
        self._lost: dict[int, set[str]] = {}
        self._leaders_by_epoch: dict[TopicPartition, set[tuple[int, int]]] = {}
        self._expired_at: dict[str, float] = {}
        self._written_at: dict[str, float] = {}
        cluster.world.world_observers.subscribe(NodesWritten, self._on_nodes_written)
        cluster.world.world_observers.subscribe(DataReplaced, lambda event: self._read_all_states())
        cluster.world.world_observers.subscribe(SessionCutShort, self._on_session_cut_short)

    def _on_nodes_written(self, event: NodesWritten) -> None:
        for operation in event.operations:
            self._written_at[operation.path] = self._cluster.world.loop.elapsed
            if operation.path.endswith(STATE_SUFFIX):
                self._check_write(operation.path)
            elif isinstance(operation, CreateOp | SetOp) and PRODUCER_EXPIRY in operation.data:
                self.forgets_producers = True

    def _on_session_cut_short(self, event: SessionCutShort) -> None:
        """A session that a fault ends early is over before its owner's deadline: that is not the owner's mistake."""
        self._expired_at[event.host] = self._cluster.world.loop.elapsed

    def _read_all_states(self) -> None:
        """After ZooKeeper's data was replaced: no state follows another one. Each partition is told as if it had been
        deleted, and made again."""
        for partition in sorted(self._states):
            del self._states[partition]
            self._tell(partition)
        for path, node in sorted(self._cluster.world.zookeeper.tree.nodes.items()):
            if path.endswith(STATE_SUFFIX):
                partition = partition_of(path)
                self._keep(partition, PartitionState.decode(node.data), node, None)
                self._tell(partition)

    def _tell(self, partition: TopicPartition) -> None:
        for listener in list(self.listeners):
            listener(partition)

    def find(self, invariant: str, text: str, partition: TopicPartition | None = None, *facts: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            at_seconds = self._cluster.world.loop.elapsed
            self.findings.append(
                CheckerFinding(invariant=invariant, text=text, at_seconds=at_seconds, partition=partition, facts=facts)
            )

    def states(self) -> list[ReferencePartition]:
        """States of the promised topics."""
        return [self._states[each] for each in sorted(self._states) if each.topic in self._topics]

    def state(self, partition: TopicPartition) -> ReferencePartition | None:
        return self._states.get(partition)

    def is_promised(self, topic: str) -> bool:
        """Whether the run promises to keep this topic's records."""
        return topic in self._topics

    def has_led(self, partition: TopicPartition, leader: int | None, leader_epoch: int) -> bool:
        """Whether ZooKeeper ever named this broker (None: no leader) the leader of this epoch."""
        return (-1 if leader is None else leader, leader_epoch) in self._leaders_by_epoch.get(partition, set())

    def seconds_since_registration(self, broker_id: int) -> float:
        """Seconds since the newest registration, whether or not it still exists."""
        return self._cluster.world.loop.elapsed - self._written_at.get(broker_path(broker_id), 0.0)

    def written_at(self, path: str) -> float:
        """When this node was created, changed or deleted last."""
        return self._written_at.get(path, 0.0)

    def session_ended(self, broker_id: int) -> bool:
        """Whether the registration that a living broker relies on is gone: its session ended naturally, or another
        broker removed it and this one has been informed."""
        if self.is_unaware(broker_id):
            return False
        host, broker = f"broker-{broker_id}", self._cluster.brokers[broker_id]
        expired_at = self._expired_at.get(host)
        if expired_at is not None and self._cluster.world.loop.elapsed - expired_at < EXPIRY_NOTICED_SECONDS:
            return False
        node = self._cluster.world.zookeeper.tree.nodes.get(broker_path(broker_id))
        return node is None or node.czxid != broker.registration.broker_epoch

    # ------------------------------------------------------------------------------------------------- each write
    def _check_write(self, path: str) -> None:
        """I1, I9, I27, I28, I30: one write of a partition's state."""
        tree, partition = self._cluster.world.zookeeper.tree, partition_of(path)
        node = tree.nodes.get(path)
        if node is None:
            self._states.pop(partition, None)
            return
        state = PartitionState.decode(node.data)
        before = self._states.get(partition)
        if before is not None and before.czxid != node.czxid:
            before = None
        facts = (f"ZooKeeper held {before}", f"and then {state}")
        epoch = int(tree.nodes[CONTROLLER_EPOCH].data)
        if state.controller_epoch != epoch:
            self.find("I30", f"written by a controller of another epoch than {epoch}", partition, *facts)
        self._keep(partition, state, node, before)
        if before is not None:
            self._check_transition(before, state, partition, facts)
        self._tell(partition)

    def _keep(
        self, partition: TopicPartition, state: PartitionState, node: ZNode, before: ReferencePartition | None
    ) -> None:
        """`before`: the state that this one follows."""
        self._leaders_by_epoch.setdefault(partition, set()).add((state.leader, state.leader_epoch))
        same_isr = before is not None and set(before.members) == set(state.isr)
        _, replication_factor, min_isr = self._topics.get(partition.topic, (0, 1, 1))
        self._states[partition] = ReferencePartition(
            partition,
            tuple(state.isr),
            dict(state.isr_incarnations),
            state.leader,
            state.leader_epoch,
            state.controller_epoch,
            node.version,
            node.czxid,
            before.since if before is not None and same_isr else self._cluster.world.loop.elapsed,
            min_isr,
            replication_factor,
        )

    def _check_transition(
        self, before: ReferencePartition, state: PartitionState, partition: TopicPartition, facts: tuple[str, ...]
    ) -> None:
        if state.leader_epoch < before.leader_epoch or state.controller_epoch < before.controller_epoch:
            self.find("I27", "an epoch fell", partition, *facts)
        is_next = state.leader_epoch == before.leader_epoch + 1 or self._follows_a_log(partition, state.leader_epoch)
        if state.leader != before.leader and not is_next:
            self.find("I27", "another leader, but not in the next epoch", partition, *facts)
        if state.leader != before.leader and state.leader not in (-1, *before.members):
            self.uncleanly_led.add(partition)
            if not self.allows_unclean_election:
                self.find("I28", "the new leader was not in sync", partition, *facts)
            elif state.isr != [state.leader]:
                self.find("I28", "other replicas stay in sync with an uncleanly elected leader", partition, *facts)
        self.elections += state.leader != before.leader and state.leader != -1
        self.isr_changes += set(before.members) != set(state.isr)

    def _follows_a_log(self, partition: TopicPartition, leader_epoch: int) -> bool:
        """Whether a log reached the epoch before: ZooKeeper may have older data, or that epoch a flipped bit."""
        for broker_id in self._cluster.alive():
            replica = self._cluster.replica(broker_id, partition.topic, partition.partition)
            entries = [] if replica is None else replica.log.epoch_entries()
            if entries and entries[-1][0] == leader_epoch - 1:
                return True
        return False

    # --------------------------------------------------------------------------------------------------- sampling
    def sample(self) -> None:
        """I4, I11, I18 over the present state of living brokers."""
        for sampler in self.samplers:
            sampler()
        for state in list(self._states.values()):
            for broker_id in self._cluster.alive():
                self._sample_one(state, broker_id)

    def _sample_one(self, actual: ReferencePartition, broker_id: int) -> None:
        replica = self._cluster.replica(broker_id, actual.partition.topic, actual.partition.partition)
        if replica is None or replica.state.role is not Role.LEADER or replica.state.leader_epoch is None:
            return
        state, topic_id, epoch = replica.state, str(replica.log.topic_id), replica.state.leader_epoch
        assert epoch is not None
        key = (actual.partition, topic_id, epoch)
        if self._leaders.setdefault(key, broker_id) != broker_id:
            self.find("I18", f"epoch {epoch} is led by {self._leaders[key]} and {broker_id}", actual.partition)
        incarnation = self._cluster.world.machine(f"broker-{broker_id}").incarnations
        key_of_process = (actual.partition, topic_id, epoch, broker_id, incarnation)
        if state.high_watermark < self._high_watermarks.get(key_of_process, 0):
            fell = f"the high watermark of broker {broker_id} fell in epoch {epoch}"
            self.find(
                "I11", f"{fell}: {self._high_watermarks[key_of_process]} -> {state.high_watermark}", actual.partition
            )
        self._high_watermarks[key_of_process] = state.high_watermark
        if (
            state.leader_epoch != actual.leader_epoch
            or actual.leader != broker_id
            or actual.partition.topic not in self._topics
        ):
            return
        for member in actual.members:
            other = self._cluster.replica(member, actual.partition.topic, actual.partition.partition)
            if other is None or actual.incarnations.get(str(member)) != self.incarnation(member):
                continue
            if other.state.log_end_offset < state.high_watermark and other.state.role is not Role.OFFLINE:
                self.find(
                    "I4",
                    "a member of the ISR ends below its leader's high watermark",
                    actual.partition,
                    f"broker {member} of ISR {actual.members} ends at {other.state.log_end_offset}",
                    f"the high watermark of leader {broker_id} is {state.high_watermark}",
                )

    def incarnation(self, broker_id: int) -> str | None:
        """Incarnation of the living process, as it registers itself; None if it has none yet (seed 17072105)."""
        if broker_id in self._cluster.starting:
            return None
        broker = self._cluster.brokers.get(broker_id)
        return broker.registration.incarnation_id if broker is not None and hasattr(broker, "registration") else None

    # -------------------------------------------------------------------------------------------- for the schedule
    def leads(self, broker_id: int, state: ReferencePartition) -> bool:
        replica = self._cluster.replica(broker_id, state.partition.topic, state.partition.partition)
        return (
            replica is not None
            and state.leader == broker_id
            and replica.state.is_leader
            and replica.state.leader_epoch == state.leader_epoch
            and replica.state.synced_end_offset >= replica.state.high_watermark
        )

    def has_sound_member(self, state: ReferencePartition, sound: set[int]) -> bool:
        """Whether a living member has all its bytes on a working disk, is registered as the incarnation that the ISR
        lists, and stays in the ISR."""
        left_out = self._members_left_out(state)
        return any(
            member in sound - left_out
            and state.incarnations.get(str(member)) == self._registered_incarnation(member)
            and not self._is_offline(member, state.partition)
            for member in state.members
        )

    def _members_left_out(self, state: ReferencePartition) -> set[int]:
        """By a proposal of the leader that has no answer yet: it may be written at any moment, also after the leader
        has lost its power."""
        leader = self._cluster.replica(state.leader, state.partition.topic, state.partition.partition)
        pending = None if leader is None else leader.state.pending_isr
        return set() if pending is None else set(state.members) - {member for member, _ in pending.members}

    def _is_offline(self, broker_id: int, partition: TopicPartition) -> bool:
        replica = self._cluster.replica(broker_id, partition.topic, partition.partition)
        return replica is not None and replica.state.is_offline

    def _registered_incarnation(self, broker_id: int) -> str | None:
        node = self._cluster.world.zookeeper.tree.nodes.get(broker_path(broker_id))
        if node is None or broker_id not in self._cluster.alive():
            return None
        registered = BrokerRegistration.decode(node.data).incarnation_id
        return registered if registered == self.incarnation(broker_id) else None

    def lost_bytes(self, broker_id: int) -> None:
        """Note the incarnations that may still count for these bytes: an earlier one, if it has just restarted."""
        incarnations = {each.incarnations.get(str(broker_id)) for each in self._states.values()}
        node = self._cluster.world.zookeeper.tree.nodes.get(broker_path(broker_id))
        if node is not None:
            incarnations.add(BrokerRegistration.decode(node.data).incarnation_id)
        incarnations.add(self.incarnation(broker_id))
        self._lost.setdefault(broker_id, set()).update(each for each in incarnations if each is not None)

    def counts_for_what_it_lost(self, broker_id: int) -> bool:
        """Whether an ISR lists the incarnation that held the lost bytes, or its registration exists, so that an ISR
        still may."""
        lost = self._lost.get(broker_id, set())
        node = self._cluster.world.zookeeper.tree.nodes.get(broker_path(broker_id))
        if node is not None and BrokerRegistration.decode(node.data).incarnation_id in lost:
            return True
        listed = [each for each in self._states.values() if broker_id in each.members]
        return any(each.incarnations.get(str(broker_id)) in lost for each in listed)


def partition_of(path: str) -> TopicPartition:
    """Of the path of a partition's state."""
    _, _, _, topic, _, number, _ = path.split("/")
    return TopicPartition(topic, int(number))
