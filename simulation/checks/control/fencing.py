"""Failure detection from outside: which brokers are fenced, whether with cause, and whether they obey (hardening rule
11).

Owns: registrations that other brokers remove, controllers that others replace, and what the network really showed them.
Checks: no broker is fenced and no controller replaced without a lost connection and two refusals, or lasting silence
when the remover looked (hardening rule 17); the controller fence changes in one write; no leader is replaced while its
registration exists, unless it handed over; and a fenced broker serves nothing once ZooKeeper has informed it. Leaves to
others: the reasons that the controller gives.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from minibroker.broker.replicas.observations import ConsumerReadGranted, MetadataAnswered, ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import Role
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import (
    BROKER_IDS,
    CONTROLLER,
    CONTROLLER_EPOCH,
    BrokerRegistration,
    ControllerNode,
    TopicAssignment,
    broker_path,
    topic_path,
)
from minibroker.runtime.observer import Handlers
from minibroker.runtime.ports import CheckOp, CreateOp, DeleteOp, NoNode, Operation, SetOp
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.cluster import HELD_SECONDS, SimulatedCluster
from minibroker.simulation.world.node import PROCESS, Process
from minibroker.simulation.world.observations import (
    AnswerArrived,
    DeletedNode,
    DiskCallFailed,
    NodesWritten,
    RequestSent,
    SessionEnded,
)

RULE = "hardening rule 11"

CONFIRMATION_SECONDS = 10.0
"""Maximal age of a refusal or of a silence when its consequence is written: a write may have to wait for ZooKeeper or
for a paused process, and no fault keeps it off longer."""
INFORMED_SECONDS = 3.0
"""For this long after a registration or a leadership began or ended, a controller may act on what it read before."""
SILENT_SECONDS = 5.5
"""A broker that has answered the controller nothing for this long may be unregistered for its silence: an order waits
for six seconds, counted in looks (hardening rule 17)."""
RECONNECT_SECONDS = 3.2
"""For this long after a cut, the suspecting broker may wait for a connection that it began during the cut."""
NEVER_ANSWERED_SECONDS = 1.0
"""The same for a registration that has not answered the suspecting broker since it was created."""
FIRST_ANSWER_ROUND_TRIPS = 3
"""A first order is answered after this many: the connection, ApiVersions on it, and the order."""
UNSEEN_SECONDS = 3.0
"""A registration younger than this may be removed for the failure of the one before it (decision 0011): the remover has
looked, and may stand still before it writes, for less than its session, which is 3 s at most (a disk hangs for 4 s)."""
UNMADE_SECONDS = 1.0
"""For this long after a failed disk call, a broker may report that it could not create a log: it answers the order at
once."""
QUEUED_SECONDS = 1.0
"""The writer of a partition's state may have read the registrations this long before."""


CALLBACKS_TO_HEAR = 5
"""An answer wakes the task that waits for it by a few callbacks of its process. Others may stand before them in the
loop, each with a slow call to the disk (seed 17520077)."""


class Removal(Struct):
    """A registration that another broker removed."""

    broker_epoch: int
    session_id: int
    informed_at: float | None = None
    """When its owner had heard ZooKeeper's answer about it."""


class FoundSilent(Struct):
    """A broker looked at the registration of a silent one. It has decided by then to remove it (decision 0011), and may
    stand still before it writes, while the answer arrives (seed 17151297)."""

    broker_epoch: int
    at: float


class FencingChecker(Checker):
    """Watches one run. `counts` are for coverage; `listeners` get lines for people."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self.counts: Counter[str] = Counter()
        self.listeners: list[Callable[[str], None]] = []
        self._cluster = cluster
        self._reference = reference
        self._loop = cluster.world.loop
        self._network = cluster.world.network
        self._zookeeper = cluster.world.zookeeper
        self._nodes = cluster.world.zookeeper.tree.nodes
        self._removals: dict[int, Removal] = {}
        self._found_silent: dict[tuple[str, int], FoundSilent] = {}
        self._registered_at: dict[int, float] = {}
        self._slow_at: dict[frozenset[str], float] = {}
        self._without_zookeeper_at: dict[int, float] = {}
        self._unanswered_since: dict[tuple[Process, TopicPartition], float] = {}
        self._changed_at: dict[int, float] = {}
        self._held_at: dict[int, float] = {}
        """When a broker was last found paused, or held by a call to a slow disk."""
        self._offline_at: dict[tuple[int, TopicPartition], float] = {}
        self._stopping_at: dict[int, float] = {}
        self._disk_failed_at: dict[int, float] = {}
        self._states: dict[TopicPartition, ReferencePartition] = {}
        self._led_since: dict[TopicPartition, float] = {}
        reference.is_unaware = self.is_unaware

    def world_events(self) -> Handlers:
        return {
            NodesWritten: self._on_nodes_written,
            SessionEnded: self._on_session_ended,
            RequestSent: self._on_request_sent,
            AnswerArrived: self._on_answer_arrived,
            DiskCallFailed: self._on_disk_call_failed,
        }

    # ----------------------------------------------------------------------------------------------- ZooKeeper's writes
    def _on_nodes_written(self, event: NodesWritten) -> None:
        writer = self._host_of(event.session_id)
        paths = {operation.path for operation in event.operations if not isinstance(operation, CheckOp)}
        for broker_id in self._cluster.broker_ids:
            path = broker_path(broker_id)
            if path not in paths:
                continue
            old, new = event.deleted.get(path), self._nodes.get(path)
            self._changed_at[broker_id] = self._loop.elapsed
            if old is not None:
                self._registration_removed(broker_id, old, writer)
            if new is not None and any(isinstance(each, CreateOp) and each.path == path for each in event.operations):
                self._registered_at[broker_id] = self._loop.elapsed
        if CONTROLLER in paths:
            self._controller_changed(event.operations, event.deleted.get(CONTROLLER), writer)

    def _on_session_ended(self, event: SessionEnded) -> None:
        for broker_id in self._cluster.broker_ids:
            if broker_path(broker_id) in event.deleted_paths:
                self._changed_at[broker_id] = self._loop.elapsed

    def _on_disk_call_failed(self, event: DiskCallFailed) -> None:
        """A failed disk call may be the only sign of a log that could not be created (seed 17052041)."""
        if event.host.startswith("broker-"):
            self._disk_failed_at[int(event.host.removeprefix("broker-"))] = self._loop.elapsed

    def _host_of(self, session_id: int) -> str:
        session = self._zookeeper.sessions.get(session_id)
        return session.link.process.name if session is not None and session.link is not None else "no machine"

    def _registration_removed(self, broker_id: int, node: DeletedNode, writer: str) -> None:
        victim = name_of(broker_id)
        if writer == victim or not writer.startswith("broker-"):
            return  # its own stop, its next start, or an operator
        self._removals[broker_id] = Removal(node.czxid, node.ephemeral_owner)
        lives = self._is_alive(broker_id, BrokerRegistration.decode(node.data).incarnation_id)
        self.counts["broker fenced falsely: it lives" if lives else "broker fenced by confirmation"] += 1
        self._log(f"{writer} fences {broker_id}{', which lives' if lives else ''}")
        if not self._was_found_silent(writer, broker_id, node.czxid):
            self._require_confirmation(writer, broker_id, f"{writer} removed the registration of {victim}")

    def _controller_changed(self, operations: Sequence[Operation], before: DeletedNode | None, writer: str) -> None:
        kinds = {(type(operation), operation.path) for operation in operations}
        creates = (CreateOp, CONTROLLER) in kinds
        if creates and (SetOp, CONTROLLER_EPOCH) not in kinds:
            self._find(
                f"{writer} became controller without a new controller epoch", f"it wrote {sorted_operations(kinds)}"
            )
        if before is None or not writer.startswith("broker-"):
            return
        current = ControllerNode.decode(before.data)
        victim = name_of(current.brokerid)
        if writer == victim:
            return
        lives = self._is_alive(current.brokerid, current.incarnation_id)
        self.counts["controller succeeded falsely: it lives" if lives else "controller succeeded by confirmation"] += 1
        self._log(f"{writer} deposes controller {current.brokerid}{', which lives' if lives else ''}")
        if not creates or (DeleteOp, broker_path(current.brokerid)) not in kinds:
            self._find(f"{writer} succeeded {victim} in several writes", f"it wrote {sorted_operations(kinds)}")
        self._require_confirmation(writer, current.brokerid, f"{writer} deposed {victim}")

    def _is_alive(self, broker_id: int, incarnation: str | None) -> bool:
        return broker_id in self._cluster.alive() and self._reference.incarnation(broker_id) == incarnation

    # ------------------------------------------------------------------------------------------------- confirmation
    def _require_confirmation(self, observer: str, broker_id: int, what: str) -> None:
        """Require a connection lost and a refusal, both seen by the suspecting broker, and a refusal seen by a second
        one."""
        victim, now = name_of(broker_id), self._loop.time()
        own = self._network.contact(observer, victim)
        since_registration = self._loop.elapsed - self._registered_at.get(broker_id, 0.0)
        others = {
            other: self._network.contact(other, victim).refused_at
            for other in map(name_of, self._cluster.broker_ids)
            if other not in (observer, victim)
        }
        facts = (
            f"{observer} lost a connection to it {ago(own.lost_at, now)}, and was refused {ago(own.refused_at, now)}",
            f"others were refused: {', '.join(f'{other} {ago(at, now)}' for other, at in sorted(others.items()))}",
            f"registered {since_registration:.3f} s ago",
        )
        oldest = now - CONFIRMATION_SECONDS
        if since_registration > UNSEEN_SECONDS:
            oldest = max(oldest, now - since_registration)
        if own.lost_at is None or own.lost_at < oldest or own.refused_at is None or own.refused_at < oldest:
            self._find(f"{what} and was not refused by it", *facts)
        elif not any(at is not None and at >= oldest for at in others.values()):
            self._find(f"{what}, and no second broker confirmed it", *facts)

    def _on_request_sent(self, event: RequestSent) -> None:
        """Record the moment of a decision: what arrives between it and the write proves nothing against it."""
        parent, _, name = event.path.rpartition("/")
        node = self._nodes.get(event.path)
        if event.kind != "exists" or parent != BROKER_IDS or node is None or event.host == name_of(int(name)):
            return
        if self._is_silent(event.host, int(name)):
            self._found_silent[event.host, int(name)] = FoundSilent(node.czxid, self._loop.elapsed)

    def _was_found_silent(self, observer: str, broker_id: int, broker_epoch: int) -> bool:
        """Whether it was silent when the remover looked at this very registration."""
        found = self._found_silent.get((observer, broker_id))
        if found is None or found.broker_epoch != broker_epoch:
            return False
        return self._loop.elapsed - found.at <= CONFIRMATION_SECONDS

    def _is_silent(self, observer: str, broker_id: int) -> bool:
        """Whether it has owed the suspecting broker an answer for too long, or gets none from it: this replaces the
        confirmation (hardening rule 17)."""
        if self._waits_for_controller(broker_id):
            return True
        back = self._network.contact(name_of(broker_id), observer)
        now = self._loop.time()
        since, until = self._network.last_cut(observer, name_of(broker_id)) or (math.inf, -math.inf)
        # short cuts prove nothing, unless they are in a row
        was_cut_off = until - since >= SILENT_SECONDS and now - until <= CONFIRMATION_SECONDS
        was_refused = back.refused_at is not None and now - back.refused_at <= CONFIRMATION_SECONDS
        if (was_cut_off or was_refused) and now - (back.answered_at or 0.0) >= SILENT_SECONDS:
            return True
        if was_cut_off and now - until <= RECONNECT_SECONDS:
            return True
        if any(now - hold.since(observer, name_of(broker_id)) >= SILENT_SECONDS for hold in self._network.holds):
            return True  # its orders wait, while other connections of the two go on (seed 17490230)
        answered_at = self._network.contact(observer, name_of(broker_id)).answered_at
        silent = math.inf if answered_at is None else self._loop.time() - answered_at
        since_registration = self._loop.elapsed - self._registered_at.get(broker_id, 0.0)
        may_owe_answers = self._was_slow(observer, broker_id) or self._was_without_zookeeper(broker_id)
        has_never_answered = silent > since_registration or may_owe_answers
        return silent >= SILENT_SECONDS or (has_never_answered and since_registration >= NEVER_ANSWERED_SECONDS)

    def _waits_for_controller(self, broker_id: int) -> bool:
        """Whether an AlterPartition of this leader has had no answer for so long that it reports to be cut off from its
        controller. Other answers may have arrived meanwhile (seed 17290212)."""
        process = self._cluster.world.machine(name_of(broker_id)).process
        long_ago = self._loop.elapsed - SILENT_SECONDS
        return any(of is process and since <= long_ago for (of, _), since in self._unanswered_since.items())

    def _was_slow(self, observer: str, broker_id: int) -> bool:
        """Whether their links were so slow that a first order cannot be answered in time, though the connection or
        ApiVersions already were (seed 17200125)."""
        slow_at = self._slow_at.get(frozenset((observer, name_of(broker_id))), -math.inf)
        return self._loop.elapsed - slow_at <= NEVER_ANSWERED_SECONDS

    def _was_without_zookeeper(self, broker_id: int) -> bool:
        """Whether it could not ask ZooKeeper whether its controller is the present one: it refuses all orders of a new
        one, so what it sent is no answer to an order (seed 17270088)."""
        without_at = self._without_zookeeper_at.get(broker_id, -math.inf)
        return self._loop.elapsed - without_at <= NEVER_ANSWERED_SECONDS

    def _sample_slow_links(self) -> None:
        slow_links = self._network.slow_links
        for source, target in slow_links:
            round_trip = slow_links[source, target] + slow_links.get((target, source), 0.0)
            if FIRST_ANSWER_ROUND_TRIPS * round_trip >= NEVER_ANSWERED_SECONDS:
                self._slow_at[frozenset((source, target))] = self._loop.elapsed

    # ---------------------------------------------------------------------------------------------------- elections
    def state_written(self, partition: TopicPartition) -> None:
        after, before = self._reference.state(partition), self._states.get(partition)
        if after is None:
            self._states.pop(partition, None)
            return
        self._states[partition] = after
        if before is None or before.czxid != after.czxid:
            self._led_since[partition] = self._loop.elapsed
            return
        if before.leader not in (-1, after.leader) and not self._has_cause(before, after):
            facts = (f"ZooKeeper held {before}", f"and now {after}", f"broker {before.leader} is registered and lives")
            self._reference.find(RULE, "a leader was replaced that is not fenced", partition, *facts)
        if before.leader_epoch != after.leader_epoch:
            self._led_since[partition] = self._loop.elapsed

    def _has_cause(self, before: ReferencePartition, after: ReferencePartition) -> bool:
        """Whether a leader was replaced with cause: its registration is gone or another's, it stops by itself, its disk
        failed, or it stays in the ISR and the preferred leader takes over.

        It also stops by itself if it was killed right after it had been asked to stop, and is started again (seed
        9000535): the controller has its request to hand over, and no new registration exists yet.
        """
        leader, partition, now = before.leader, before.partition, self._loop.elapsed
        node = self._nodes.get(broker_path(leader))
        if node is None or before.incarnations.get(str(leader)) != BrokerRegistration.decode(node.data).incarnation_id:
            return True
        assignment = self._assignment(partition)
        is_preferred = bool(assignment) and after.leader == assignment[0] and leader in after.members
        if is_preferred or leader not in assignment:
            return True
        began, changed_at = self._led_since.get(partition, 0.0), self._changed_at.get(leader, 0.0)
        if changed_at > began - QUEUED_SECONDS and now - max(began, changed_at) < self._informed_seconds():
            return True
        reasons_at = (
            self._cluster.asked_to_stop_at.get(leader),
            self._stopping_at.get(leader),
            self._offline_at.get((leader, partition)),
        )
        if any(at is not None and now - at < CONFIRMATION_SECONDS for at in reasons_at):
            return True
        return self._cluster.is_stopping(leader) or self._is_offline(leader, partition)

    def _informed_seconds(self) -> float:
        """For how long the controller may act on what it read before: longer if a slow disk holds it again and again,
        for less than a session each time."""
        held_at = self._held_at.get(self._cluster.controller() or 0, -math.inf)
        return CONFIRMATION_SECONDS if self._loop.elapsed - held_at < INFORMED_SECONDS else INFORMED_SECONDS

    def _assignment(self, partition: TopicPartition) -> tuple[int, ...]:
        node = self._nodes.get(topic_path(partition.topic))
        if node is None:
            return ()
        return tuple(TopicAssignment.decode(node.data).partitions.get(str(partition.partition), ()))

    def _is_offline(self, broker_id: int, partition: TopicPartition) -> bool:
        """Whether its replica is offline, or the disk on which the replica could not even be created (seed 3134)."""
        manager = self._cluster.manager(broker_id)
        if manager is None:
            return False
        replica = manager.partitions.get(partition)
        if replica is not None:
            return replica.state.role is Role.OFFLINE
        is_offline = self._cluster.has_offline_directory(broker_id) or manager.log_directory.full
        return is_offline or self._loop.elapsed - self._disk_failed_at.get(broker_id, -math.inf) < UNMADE_SECONDS

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        """Catch what happens between two samples: a full disk may have room again after a
        millisecond (seed 8000487). Note since when a proposal has been unanswered."""
        process, partition = PROCESS.get(), replica.topic_partition
        if process is not None:
            if replica.state.pending_isr is None or isinstance(event, ev.AlterPartitionAnswered):
                self._unanswered_since.pop((process, partition), None)
            else:
                self._unanswered_since.setdefault((process, partition), self._loop.elapsed)
        if replica.state.role is Role.OFFLINE:
            self._offline_at[replica.state.config.broker_id, replica.topic_partition] = self._loop.elapsed

    def sample(self) -> None:
        """Record reasons that may be over when the controller acts on them."""
        self._sample_slow_links()
        for broker_id in self._cluster.broker_ids:
            is_reachable = self._zookeeper.is_reachable(name_of(broker_id), for_answers=True)
            if not (self._zookeeper.is_running and is_reachable):
                self._without_zookeeper_at[broker_id] = self._loop.elapsed
        for broker_id in self._cluster.alive():
            process = self._cluster.world.process(name_of(broker_id))
            if process.paused or process.busy_until - self._loop.time() > HELD_SECONDS:
                self._held_at[broker_id] = self._loop.elapsed
            if self._cluster.is_stopping(broker_id):
                self._stopping_at[broker_id] = self._loop.elapsed
            for partition in self._states:
                if self._is_offline(broker_id, partition):
                    self._offline_at[broker_id, partition] = self._loop.elapsed

    # ----------------------------------------------------------------------------------------------- fenced brokers
    def _on_answer_arrived(self, event: AnswerArrived) -> None:
        """Record when the broker learns what became of its registration."""
        parent, _, name = event.path.rpartition("/")
        if (
            not event.is_awaited
            or event.kind not in ("get", "exists")
            or parent != BROKER_IDS
            or event.host != name_of(int(name))
        ):
            return
        removal = self._removals.get(int(name))
        if removal is not None and removal.informed_at is None and self._denies(removal, event.result, event.error):
            self._is_informed(removal, CALLBACKS_TO_HEAR)

    def _is_informed(self, removal: Removal, callbacks: int) -> None:
        """Once so many callbacks of the running process have had their turn."""
        if callbacks:
            self._loop.call_soon(self._is_informed, removal, callbacks - 1)
        elif removal.informed_at is None:
            removal.informed_at = self._loop.time()

    @staticmethod
    def _denies(removal: Removal, result: Any, error: Any) -> bool:
        if error is not None:
            return isinstance(error, NoNode)
        stat = result[1] if isinstance(result, tuple) else result
        return stat is None or stat.czxid != removal.broker_epoch

    def is_unaware(self, broker_id: int) -> bool:
        """Whether another broker removed its registration and ZooKeeper has not informed it, with its session alive."""
        removal, broker = self._removals.get(broker_id), self._cluster.brokers[broker_id]
        if removal is None or removal.broker_epoch != broker.registration.broker_epoch:
            return False
        is_informed = removal.informed_at is not None and removal.informed_at < self._loop.time()
        return not is_informed and removal.session_id in self._zookeeper.sessions

    def _serves(self, broker_id: int, what: str, partition: TopicPartition | None) -> None:
        if self._reference.session_ended(broker_id):
            self._reference.find(RULE, f"fenced broker {broker_id} {what}", partition)

    def replica_events(self) -> Handlers:
        also: Handlers = {ConsumerReadGranted: self._on_read_granted, MetadataAnswered: self._on_metadata_answered}
        return {**super().replica_events(), **also}

    def _on_read_granted(self, event: ConsumerReadGranted) -> None:
        self._serves(event.replica.state.config.broker_id, "lets a consumer read", None)

    def _on_metadata_answered(self, event: MetadataAnswered) -> None:
        for topic in event.response.topics:
            for partition in topic.partitions:
                if partition.leader_id == event.broker_id:
                    name = TopicPartition(topic.name, partition.partition_index)
                    self._serves(event.broker_id, "names itself the leader", name)

    # ------------------------------------------------------------------------------------------------------- reports
    def _find(self, text: str, *facts: str) -> None:
        self._reference.find(RULE, text, None, *facts)

    def _log(self, line: str) -> None:
        for listener in self.listeners:
            listener(f"{self._loop.elapsed:.3f} {line}")


def name_of(broker_id: int) -> str:
    return f"broker-{broker_id}"


def ago(at: float | None, now: float) -> str:
    return "never" if at is None else f"{now - at:.3f} s ago"


def sorted_operations(kinds: set[tuple[type[Operation], str]]) -> list[str]:
    return sorted(f"{kind.__name__.removesuffix('Op').lower()} {path}" for kind, path in kinds)
