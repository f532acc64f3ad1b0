"""Checks the in-sync set: proposals of leaders, what ZooKeeper makes of them, and whether lag was real.

Owns: its own measure of each follower's lag and log end, from the fetches that arrive, and the proposals in flight.
Checks I5, I6, I8, I31, I34, I37 and hardening rules 4 and 7 (a leader's own stall is not its followers' lag). Leaves to
others: the content of logs.
"""

from collections.abc import Callable

from msgspec import Struct, field

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import IsrKind, ReplicaState, Role
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import BrokerRegistration, broker_path
from minibroker.runtime.observer import Handlers
from minibroker.simulation.checks.control.observed_registrations import ObservedRegistrations
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.checks.replication.lineage import Writer
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.observations import ProcessPaused, ProcessResumed

TOLERANCE_SECONDS = 0.25
"""Lag is checked at intervals of milliseconds by a process that may be in a slow call: this much is no violation."""
SETTLED_SECONDS = 3.0
"""A started fsync is done by then."""


INFORMED_SECONDS = 5.0
"""A controller that was cut off from ZooKeeper may write once more before it learns of newer registrations; no fault
keeps it off longer. It removes such a member again when it learns of them."""


class ObservedFollower(Struct):
    """What the leader received from one follower in this epoch."""

    caught_up_at: float
    fetched_at: float
    end: int | None = None
    leader_end_at_fetch: int = 0


class ObservedLeadership(Struct):
    """One broker's leadership in one epoch."""

    leader_epoch: int
    followers: dict[int, ObservedFollower]
    start: int
    """The leader's log end when the epoch began."""
    high_watermark: int
    began: float
    """When the broker became leader: the controller may have died before it sent any order (seed 17071403)."""
    outstanding: int | None = None
    """The unanswered proposal."""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds) of the stalls that the leader reports."""


class LeaderStep(Struct):
    """One step of a leader."""

    writer: Writer
    partition: TopicPartition
    leadership: ObservedLeadership
    state: ReplicaState
    refused: bool


class InSyncRules:
    """Part of `ReplicaChecker`, which calls it. Times are the loop's, as the running process sees them."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._observed = ObservedRegistrations(cluster)
        self._loop = cluster.world.loop
        self._leaderships: dict[tuple[Writer, TopicPartition], ObservedLeadership] = {}
        self._proposed: dict[tuple[TopicPartition, int], list[tuple[int, frozenset[int]]]] = {}
        self._states: dict[TopicPartition, ReferencePartition] = {}
        self._led_since: dict[TopicPartition, float] = {}
        self._last_blocked_at: dict[int, float] = {}
        """When a broker was last found paused, in a slow call or with a failing disk, or until when its disk hangs."""
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        self._paused_at: dict[str, float] = {}

    def world_events(self) -> Handlers:
        return {ProcessPaused: self._on_paused, ProcessResumed: self._on_resumed}

    def _on_paused(self, event: ProcessPaused) -> None:
        self._paused_at[event.host] = self._loop.time()

    def _on_resumed(self, event: ProcessResumed) -> None:
        began = self._paused_at.pop(event.host, None)
        if began is not None:
            self._pauses.setdefault(event.host, []).append((began, self._loop.time() - began))

    # -------------------------------------------------------------------------------------------------- leaderships
    def stepped(
        self, writer: Writer, partition: TopicPartition, state: ReplicaState, event: ev.ReplicaEvent, refused: bool
    ) -> None:
        """Call it before the effects of the step are performed."""
        handler = _HANDLERS.get(type(event))
        if handler is None:
            return
        if state.role is not Role.LEADER:
            self._leaderships.pop((writer, partition), None)
            return
        assert state.leader_epoch is not None
        leadership = self._leaderships.get((writer, partition))
        if leadership is None or leadership.leader_epoch != state.leader_epoch:
            # only its answer settles an outstanding proposal (KAFKA-12686)
            outstanding = None if leadership is None else leadership.outstanding
            leadership = self._leaderships[writer, partition] = self._new_leadership(state)
            leadership.outstanding = outstanding
        handler(self, LeaderStep(writer, partition, leadership, state, refused), event)
        if state.high_watermark > leadership.high_watermark:
            leadership.high_watermark = state.high_watermark
            self._check_high_watermark(writer, partition, leadership, state)

    def _check_high_watermark(
        self, writer: Writer, partition: TopicPartition, leadership: ObservedLeadership, state: ReplicaState
    ) -> None:
        """I5: the high watermark covers only what each member has reported in this epoch (Kip320.tla rule 3)."""
        for broker_id in state.in_sync_replicas:
            if broker_id == writer.broker_id:
                continue
            follower = leadership.followers.get(broker_id)
            reported = None if follower is None else follower.end
            if reported is None or reported < leadership.high_watermark:
                facts = (
                    f"broker {broker_id} of the ISR reported {reported} in epoch {leadership.leader_epoch}",
                    f"the high watermark of {writer} rose to {leadership.high_watermark}",
                )
                self._reference.find(
                    "I5", "the high watermark counts what no member reported in this epoch", partition, *facts
                )

    def _new_leadership(self, state: ReplicaState) -> ObservedLeadership:
        assert state.leader_epoch is not None
        now = self._loop.time()
        followers = {b: ObservedFollower(now, now) for b in state.assignment}
        return ObservedLeadership(
            state.leader_epoch, followers, state.log_end_offset, state.high_watermark, began=self._loop.elapsed
        )

    def _on_fetched(self, step: LeaderStep, event: ev.FollowerFetched) -> None:
        follower = step.leadership.followers.get(event.replica_id)
        if follower is None and event.replica_id in step.state.assignment:  # added to the assignment in this epoch
            now = self._loop.time()
            follower = step.leadership.followers[event.replica_id] = ObservedFollower(now, now)
        if step.refused or follower is None:
            return
        if event.current_leader_epoch != step.leadership.leader_epoch:
            facts = (
                f"broker {event.replica_id} fetched in epoch {event.current_leader_epoch}",
                f"{step.writer} leads epoch {step.leadership.leader_epoch}",
            )
            self._reference.find("I5", "a fetch of another leader epoch was counted", step.partition, *facts)
        now, end = self._loop.time(), step.state.log_end_offset
        if event.fetch_offset >= end:
            follower.caught_up_at = now
        elif event.fetch_offset >= follower.leader_end_at_fetch:
            follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        follower.end, follower.fetched_at, follower.leader_end_at_fetch = event.fetch_offset, now, end

    def _on_appended(self, step: LeaderStep, event: ev.BatchesAppended) -> None:
        for follower in step.leadership.followers.values():
            if follower.end == event.base_offset:
                follower.caught_up_at = self._loop.time()

    def _on_stalled(self, step: LeaderStep, event: ev.LeaderStalled) -> None:
        step.leadership.stalls.append((self._loop.time(), event.stalled_ms / 1000))

    def _on_settled(self, step: LeaderStep, event: ev.AlterPartitionAnswered | ev.AlterPartitionLost) -> None:
        if step.leadership.outstanding == event.proposal_id:
            step.leadership.outstanding = None

    def _on_lag_checked(self, step: LeaderStep, event: ev.LagChecked) -> None:
        """I37: a lagging replica leaves the ISR by the next lag check."""
        is_busy = step.state.pending_isr is not None or step.state.proposal_in_flight is not None
        if step.state.fenced or is_busy or step.state.shrink_waits_for_sync is not None:
            return
        limit = step.state.config.replica_lag_time_max_ms / 1000
        for broker_id in step.state.in_sync_replicas:
            follower = step.leadership.followers.get(broker_id)
            if follower is None or broker_id == step.writer.broker_id or follower.end == step.state.log_end_offset:
                continue
            lag = (
                self._loop.time()
                - follower.caught_up_at
                - sum(s for at, s in step.leadership.stalls if at >= follower.caught_up_at)
            )
            if lag > limit + TOLERANCE_SECONDS:
                facts = (f"broker {broker_id} was last caught up {lag:.3f} s ago", f"replica.lag.time.max is {limit} s")
                self._reference.find(
                    "I37", f"{step.writer} leaves a lagging replica in the ISR", step.partition, *facts
                )

    # ---------------------------------------------------------------------------------------------------- proposals
    def proposed(self, writer: Writer, partition: TopicPartition, state: ReplicaState, proposal: ev.ProposeIsr) -> None:
        leadership = self._leaderships.get((writer, partition))
        if leadership is None:
            leadership = self._leaderships[writer, partition] = self._new_leadership(state)
        if leadership.outstanding not in (None, proposal.proposal_id):
            facts = (
                f"proposal {leadership.outstanding} is not answered",
                f"{writer} sends proposal {proposal.proposal_id}",
            )
            self._reference.find("I8", "two proposals in flight", partition, *facts)
        leadership.outstanding = proposal.proposal_id
        members = frozenset(broker_id for broker_id, _ in proposal.new_isr_with_epochs)
        entry = (proposal.partition_epoch, members)
        known = self._proposed.setdefault((partition, proposal.leader_epoch), [])
        if entry not in known:
            known.append(entry)
            if proposal.kind is IsrKind.SHRINK:
                self._check_shrink(writer, partition, leadership, state, members)
            else:
                self._check_expansion(writer, partition, leadership, members - set(state.in_sync_replicas))

    def _check_expansion(
        self, writer: Writer, partition: TopicPartition, leadership: ObservedLeadership, joiners: frozenset[int]
    ) -> None:
        """I6: a joiner has reported in this epoch all up to the high watermark and the epoch's start (KAFKA-7128)."""
        floor = max(leadership.high_watermark, leadership.start)
        for broker_id in sorted(joiners):
            follower = leadership.followers.get(broker_id)
            if follower is None or follower.end is None or follower.end < floor:
                facts = (
                    f"broker {broker_id} reported {None if follower is None else follower.end}",
                    f"the high watermark is {leadership.high_watermark}",
                    f"the epoch of {writer} began at {leadership.start}",
                )
                self._reference.find("I6", "a replica is to join without all committed records", partition, *facts)

    def _check_shrink(
        self,
        writer: Writer,
        partition: TopicPartition,
        leadership: ObservedLeadership,
        state: ReplicaState,
        members: frozenset[int],
    ) -> None:
        """A follower that keeps up stays, by the leader's running time (KAFKA-1546, 4485, 7152; hardening rule 7)."""
        limit = state.config.replica_lag_time_max_ms / 1000
        for broker_id in state.in_sync_replicas:
            follower = leadership.followers.get(broker_id)
            if broker_id in members or follower is None or broker_id not in state.assignment:
                continue
            lag = self._loop.time() - follower.caught_up_at - self._paused_since(writer, follower.caught_up_at)
            if follower.end == state.log_end_offset or lag < limit - TOLERANCE_SECONDS:
                facts = (
                    f"broker {broker_id} reported end {follower.end}, the leader's is {state.log_end_offset}",
                    f"it lags by {lag:.3f} s of the leader's running time, and may lag by {limit} s",
                )
                self._reference.find("I36", f"{writer} drops a follower that keeps up", partition, *facts)

    def _paused_since(self, writer: Writer, since: float) -> float:
        pauses = self._pauses.get(f"broker-{writer.broker_id}", ())
        return sum(seconds for began, seconds in pauses if began >= since)

    # ---------------------------------------------------------------------------------------------------- ZooKeeper
    def state_written(self, partition: TopicPartition) -> None:
        after, before = self._reference.state(partition), self._states.get(partition)
        if after is None:
            self._states.pop(partition, None)
        if after is None or not self._reference.is_promised(partition.topic):
            return
        self._states[partition] = after
        if before is None or before.leader_epoch != after.leader_epoch:
            self._led_since[partition] = self._loop.elapsed
        if before is None or before.czxid != after.czxid or set(before.members) == set(after.members):
            return
        self._check_joiners(before, after)
        if (before.leader, before.leader_epoch) == (after.leader, after.leader_epoch):
            self._check_accepted(before, after)

    def _check_joiners(self, before: ReferencePartition, after: ReferencePartition) -> None:
        """I31, I34: a joiner is alive, and is the process that the ISR lists."""
        nodes = self._cluster.world.zookeeper.tree.nodes
        for broker_id in after.members:
            if broker_id in before.members:
                continue
            node = nodes.get(broker_path(broker_id))
            registered = None if node is None else BrokerRegistration.decode(node.data).incarnation_id
            listed = after.incarnations.get(str(broker_id))
            if registered is None:
                is_registered = self._may_seem_registered(broker_id, listed)
            else:
                is_recent = self._reference.seconds_since_registration(broker_id) < INFORMED_SECONDS
                is_registered = registered == listed or is_recent
            if not is_registered:
                facts = (f"the ISR lists incarnation {listed} of broker {broker_id}", f"registered is {registered}")
                self._reference.find("I34", "a replica joined that is not registered", after.partition, *facts)

    def _may_seem_registered(self, broker_id: int, listed: str | None) -> bool:
        """No write is conditional on a registration, so a broker that is gone may join until ZooKeeper informs the
        controller: the watch fires later than the end of a session, and much later if the controller's own connection
        is broken. It does no harm: the controller then removes such a member, and the incarnation keeps a later process
        from leading."""
        seconds = self._observed.seconds_since_end(broker_id)
        return (
            seconds is not None and seconds < INFORMED_SECONDS and self._observed.may_seem_registered(broker_id, listed)
        )

    def _check_accepted(self, before: ReferencePartition, after: ReferencePartition) -> None:
        """I8: within one epoch the ISR changes only as its leader proposed, on the version for which it proposed it."""
        proposed = self._proposed.get((after.partition, after.leader_epoch), [])
        if (before.version, frozenset(after.members)) not in proposed:
            changed = f"ZooKeeper goes from {before.members} (version {before.version}) to {after.members}"
            last = f"the leader's last proposals: {[(v, sorted(m)) for v, m in proposed[-3:]]}"
            self._reference.find("I8", "an ISR that no leader proposed", after.partition, changed, last)
        leader = self._cluster.replica(after.leader, after.partition.topic, after.partition.partition)
        fell = len(after.members) < min(after.min_isr, after.replication_factor) <= len(before.members)
        # the proposal of a process that is dead by now says nothing about its successor's log (seed 158695320015)
        still_leads = after.incarnations.get(str(after.leader)) == self._reference.incarnation(after.leader)
        if fell and still_leads and leader is not None and leader.log.recovery_point < leader.state.high_watermark:
            facts = (
                f"the leader has synced up to {leader.log.recovery_point}",
                f"its high watermark is {leader.state.high_watermark}, and the ISR is {after.members} now",
            )
            self._reference.find("H14", "the ISR fell below the minimum without an fsync", after.partition, *facts)

    def _leadership_began(self, host: str, actual: ReferencePartition) -> float:
        for (writer, partition), leadership in self._leaderships.items():
            found = (f"broker-{writer.broker_id}", partition, leadership.leader_epoch)
            if found == (host, actual.partition, actual.leader_epoch):
                return leadership.began
        return 0.0

    def sample(self) -> None:
        """Hardening rule 4: soon after the ISR fell below the minimum, its leader's copy survives a power loss. Only
        time in which the leader's process ran and its disk worked counts: an fsync that began on a hanging disk goes on
        as long as the hang was to last, also if the disk is healed meanwhile."""
        for broker_id in self._cluster.alive():
            storage, now = self._cluster.world.machine(f"broker-{broker_id}").storage, self._loop.elapsed
            if storage.hangs_for or storage.faults or not self._cluster.world.process(f"broker-{broker_id}").runs:
                blocked_until = max(now + storage.hangs_for, self._last_blocked_at.get(broker_id, 0.0))
                self._last_blocked_at[broker_id] = blocked_until
        for actual in self._reference.states():
            if len(actual.members) >= min(actual.min_isr, actual.replication_factor) or actual.leader == -1:
                continue
            host = f"broker-{actual.leader}"
            replica = self._cluster.replica(actual.leader, actual.partition.topic, actual.partition.partition)
            moments = (
                self._led_since.get(actual.partition, 0.0),
                self._last_blocked_at.get(actual.leader, 0.0),
                self._leadership_began(host, actual),
            )
            since = max(actual.since, *moments)
            settled = self._loop.elapsed - since > SETTLED_SECONDS
            if replica is None or not settled:
                continue
            state, process = replica.state, self._cluster.world.process(host)
            leads = state.is_leader and state.leader_epoch == actual.leader_epoch and not process.paused
            if leads and process.runs and replica.log.recovery_point < state.high_watermark:
                facts = (
                    f"broker {actual.leader} is the ISR",
                    f"synced {replica.log.recovery_point}, high watermark {state.high_watermark}",
                )
                self._reference.find("H14", "the only copy is not synced", actual.partition, *facts)


_HANDLERS: dict[type[ev.ReplicaEvent], Callable[..., None]] = {
    ev.FollowerFetched: InSyncRules._on_fetched,
    ev.BatchesAppended: InSyncRules._on_appended,
    ev.LeaderStalled: InSyncRules._on_stalled,
    ev.AlterPartitionAnswered: InSyncRules._on_settled,
    ev.AlterPartitionLost: InSyncRules._on_settled,
    ev.LagChecked: InSyncRules._on_lag_checked,
    ev.LeaderAndIsrReceived: lambda *facts: None,
    ev.ReplicaStopped: lambda *facts: None,
    ev.LogFailed: lambda *facts: None,
    ev.LogDamaged: lambda *facts: None,
}
"""The last four only begin or end a leadership."""
