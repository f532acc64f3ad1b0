"""Judges who is called in sync: proposals of leaders, what ZooKeeper makes of them, and whether lag was real.

Owns: its own measure of each follower's lag and end, from the fetches that arrive, and the proposals under way. Judges
I5, I6, I8, I31, I34, I37 and hardening rules 4 and 7 (a leader's own stall is not its followers' lag). Refuses to
judge logs.
"""

from collections.abc import Callable

from msgspec import Struct, field

from minibroker.broker.replication import events as ev
from minibroker.broker.replication.state import IsrKind, ReplicaState, Role
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import BrokerRegistration, broker_path
from minibroker.simulation.checks.lineage import Writer
from minibroker.simulation.checks.observed_registrations import ObservedRegistrations
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.cluster import SimulatedCluster

TOLERANCE_SECONDS = 0.25
"""Lag is looked at by ticks of milliseconds and by a process that may be in a slow call: so much is no mistake."""
SETTLED_SECONDS = 3.0
"""An fsync that was begun is done by then."""


INFORMED_SECONDS = 5.0
"""A controller that was cut off from ZooKeeper may write once more before it hears who has registered meanwhile; no
fault keeps it off longer. Such a member is taken out again when it hears."""


class ObservedFollower(Struct):
    """What its leader heard of it in this leadership."""

    caught_up_at: float
    fetched_at: float
    end: int | None = None
    leader_end_at_fetch: int = 0


class ObservedLeadership(Struct):
    """One broker leading one epoch."""

    leader_epoch: int
    followers: dict[int, ObservedFollower]
    start: int
    """The leader's log end when it took fence."""
    mark: int
    began: float
    """When its broker heard of it: the controller may have died before it told anybody (seed 17071403)."""
    outstanding: int | None = None
    """The proposal that was sent and not answered."""
    stalls: list[tuple[float, float]] = field(default_factory=list)
    """(when, seconds): what the leader says that it stood still."""


class LeaderStep(Struct):
    """One step of a leader."""

    writer: Writer
    partition: TopicPartition
    leadership: ObservedLeadership
    state: ReplicaState
    refused: bool


class InSyncChecker:
    """One run. Times are the loop's, as the running process sees it."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState) -> None:
        self._cluster = cluster
        self._reference = reference
        self._observed = ObservedRegistrations(cluster)
        self._loop = cluster.world.loop
        self._leaderships: dict[tuple[Writer, TopicPartition], ObservedLeadership] = {}
        self._proposed: dict[tuple[TopicPartition, int], list[tuple[int, frozenset[int]]]] = {}
        self._known: dict[TopicPartition, ReferencePartition] = {}
        self._led_since: dict[TopicPartition, float] = {}
        self._stood_still: dict[int, float] = {}
        """When a broker was last seen paused, or in a slow call."""
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        self._paused_at: dict[str, float] = {}
        self._wrap_pauses()
        reference.listeners.append(self._on_state_written)
        reference.samplers.append(self._sample)

    def _wrap_pauses(self) -> None:
        world = self._cluster.world
        pause, resume = world.pause, world.resume

        def watched_pause(name: str) -> None:
            self._paused_at[name] = self._loop.time()
            pause(name)

        def watched_resume(name: str) -> None:
            began = self._paused_at.pop(name, None)
            if began is not None:
                self._pauses.setdefault(name, []).append((began, self._loop.time() - began))
            resume(name)

        world.pause, world.resume = watched_pause, watched_resume  # type: ignore[method-assign]

    # ------------------------------------------------------------------------------------------------------- reigns
    def stepped(
        self, writer: Writer, partition: TopicPartition, state: ReplicaState, event: ev.Event, refused: bool
    ) -> None:
        """Before the effects of the step are told."""
        handler = _HANDLERS.get(type(event))
        if handler is None:
            return
        if state.role is not Role.LEADER:
            self._leaderships.pop((writer, partition), None)
            return
        assert state.leader_epoch is not None
        leadership = self._leaderships.get((writer, partition))
        if leadership is None or leadership.leader_epoch != state.leader_epoch:
            outstanding = (
                None if leadership is None else leadership.outstanding
            )  # only its answer settles it (KAFKA-12686)
            leadership = self._leaderships[writer, partition] = self._new_leadership(state)
            leadership.outstanding = outstanding
        handler(self, LeaderStep(writer, partition, leadership, state, refused), event)
        if state.high_watermark > leadership.mark:
            leadership.mark = state.high_watermark
            self._check_high_watermark(writer, partition, leadership, state)

    def _check_high_watermark(
        self, writer: Writer, partition: TopicPartition, leadership: ObservedLeadership, state: ReplicaState
    ) -> None:
        """I5: the mark covers only what each member has reported in this leadership (Kip320 rule 3)."""
        for broker_id in state.in_sync_replicas:
            if broker_id == writer.broker_id:
                continue
            follower = leadership.followers.get(broker_id)
            reported = None if follower is None else follower.end
            if reported is None or reported < leadership.mark:
                facts = (
                    f"broker {broker_id} of the ISR reported {reported} in epoch {leadership.leader_epoch}",
                    f"the mark of {writer} rose to {leadership.mark}",
                )
                self._reference.find("I5", "the mark counts what nobody reported in this leadership", partition, *facts)

    def _new_leadership(self, state: ReplicaState) -> ObservedLeadership:
        assert state.leader_epoch is not None
        now = self._loop.time()
        followers = {b: ObservedFollower(now, now) for b in state.assignment}
        return ObservedLeadership(
            state.leader_epoch, followers, state.log_end_offset, state.high_watermark, began=self._loop.elapsed
        )

    def _on_fetched(self, seen: LeaderStep, event: ev.FollowerFetched) -> None:
        follower = seen.leadership.followers.get(event.replica_id)
        if follower is None and event.replica_id in seen.state.assignment:  # which has grown in this leadership
            now = self._loop.time()
            follower = seen.leadership.followers[event.replica_id] = ObservedFollower(now, now)
        if seen.refused or follower is None:
            return
        if event.current_leader_epoch != seen.leadership.leader_epoch:
            facts = (
                f"broker {event.replica_id} fetched in epoch {event.current_leader_epoch}",
                f"{seen.writer} leads epoch {seen.leadership.leader_epoch}",
            )
            self._reference.find("I5", "a fetch of another leadership was counted", seen.partition, *facts)
        now, end = self._loop.time(), seen.state.log_end_offset
        if event.fetch_offset >= end:
            follower.caught_up_at = now
        elif event.fetch_offset >= follower.leader_end_at_fetch:
            follower.caught_up_at = max(follower.caught_up_at, follower.fetched_at)
        follower.end, follower.fetched_at, follower.leader_end_at_fetch = event.fetch_offset, now, end

    def _on_appended(self, seen: LeaderStep, event: ev.BatchesAppended) -> None:
        for follower in seen.leadership.followers.values():
            if follower.end == event.base_offset:
                follower.caught_up_at = self._loop.time()

    def _on_stalled(self, seen: LeaderStep, event: ev.LeaderStalled) -> None:
        seen.leadership.stalls.append((self._loop.time(), event.stalled_ms / 1000))

    def _on_settled(self, seen: LeaderStep, event: ev.AlterPartitionAnswered | ev.AlterPartitionLost) -> None:
        if seen.leadership.outstanding == event.proposal_id:
            seen.leadership.outstanding = None

    def _on_lag_checked(self, seen: LeaderStep, event: ev.LagChecked) -> None:
        """I37: who lags leaves, at the latest when somebody looks."""
        is_busy = seen.state.pending_isr is not None or seen.state.proposal_in_flight is not None
        if seen.state.fenced or is_busy or seen.state.shrink_waits_for_sync is not None:
            return
        limit = seen.state.config.replica_lag_time_max_ms / 1000
        for broker_id in seen.state.in_sync_replicas:
            follower = seen.leadership.followers.get(broker_id)
            if follower is None or broker_id == seen.writer.broker_id or follower.end == seen.state.log_end_offset:
                continue
            lag = (
                self._loop.time()
                - follower.caught_up_at
                - sum(s for at, s in seen.leadership.stalls if at >= follower.caught_up_at)
            )
            if lag > limit + TOLERANCE_SECONDS:
                facts = (f"broker {broker_id} was last caught up {lag:.3f} s ago", f"replica.lag.time.max is {limit} s")
                self._reference.find("I37", f"{seen.writer} leaves a laggard in the ISR", seen.partition, *facts)

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
        floor = max(leadership.mark, leadership.start)
        for broker_id in sorted(joiners):
            follower = leadership.followers.get(broker_id)
            if follower is None or follower.end is None or follower.end < floor:
                facts = (
                    f"broker {broker_id} reported {None if follower is None else follower.end}",
                    f"the mark is {leadership.mark}, the leadership of {writer} began at {leadership.start}",
                )
                self._reference.find("I6", "a replica is to join that lacks what counts", partition, *facts)

    def _check_shrink(
        self,
        writer: Writer,
        partition: TopicPartition,
        leadership: ObservedLeadership,
        state: ReplicaState,
        members: frozenset[int],
    ) -> None:
        """Nobody falls out who keeps up, by time in which the leader ran (KAFKA-1546, 4485, 7152; hardening rule 7)."""
        limit = state.config.replica_lag_time_max_ms / 1000
        for broker_id in state.in_sync_replicas:
            follower = leadership.followers.get(broker_id)
            if broker_id in members or follower is None or broker_id not in state.assignment:
                continue
            lag = self._loop.time() - follower.caught_up_at - self._paused_since(writer, follower.caught_up_at)
            if follower.end == state.log_end_offset or lag < limit - TOLERANCE_SECONDS:
                facts = (
                    f"broker {broker_id} reported end {follower.end}, the leader's is {state.log_end_offset}",
                    f"it lags by {lag:.3f} s of the leader's running time, and may by {limit} s",
                )
                self._reference.find("I36", f"{writer} drops a follower that keeps up", partition, *facts)

    def _paused_since(self, writer: Writer, since: float) -> float:
        pauses = self._pauses.get(f"broker-{writer.broker_id}", ())
        return sum(seconds for began, seconds in pauses if began >= since)

    # ---------------------------------------------------------------------------------------------------- ZooKeeper
    def _on_state_written(self, partition: TopicPartition) -> None:
        after, before = self._reference.state(partition), self._known.get(partition)
        if after is None or not self._reference.is_promised(partition.topic):
            return
        self._known[partition] = after
        if before is None or before.leader_epoch != after.leader_epoch:
            self._led_since[partition] = self._loop.elapsed
        if before is None or before.czxid != after.czxid or set(before.members) == set(after.members):
            return
        self._check_joiners(before, after)
        if (before.leader, before.leader_epoch) == (after.leader, after.leader_epoch):
            self._check_accepted(before, after)

    def _check_joiners(self, before: ReferencePartition, after: ReferencePartition) -> None:
        """I31, I34: a joiner is alive, and is the process that the ISR names."""
        nodes = self._cluster.world.zookeeper.tree.nodes
        for broker_id in after.members:
            if broker_id in before.members:
                continue
            node = nodes.get(broker_path(broker_id))
            registered = None if node is None else BrokerRegistration.decode(node.data).incarnation_id
            listed = after.incarnations.get(str(broker_id))
            if registered is None:
                is_there = self._is_thought_alive(broker_id, listed)
            else:
                is_news = self._reference.seconds_since_registration(broker_id) < INFORMED_SECONDS
                is_there = registered == listed or is_news
            if not is_there:
                facts = (f"the ISR lists incarnation {listed} of broker {broker_id}", f"registered is {registered}")
                self._reference.find("I34", "a replica joined that is not there", after.partition, *facts)

    def _is_thought_alive(self, broker_id: int, listed: str | None) -> bool:
        """No write is tied to registrations, so who is gone may join as long as the controller was not told: its watch
        fires later than the end of a session, and much later if its own connection is broken. It cannot do harm: the
        controller takes such a member out again when it hears, and the incarnation keeps a later one from leading."""
        seconds = self._observed.seconds_since_end(broker_id)
        return seconds is not None and seconds < INFORMED_SECONDS and self._observed.may_be_believed(broker_id, listed)

    def _check_accepted(self, before: ReferencePartition, after: ReferencePartition) -> None:
        """I8: in one leadership the set changes only as its leader proposed, on the version it proposed it for."""
        proposed = self._proposed.get((after.partition, after.leader_epoch), [])
        if (before.version, frozenset(after.members)) not in proposed:
            changed = f"ZooKeeper goes from {before.members} (version {before.version}) to {after.members}"
            last = f"the leader's last proposals: {[(v, sorted(m)) for v, m in proposed[-3:]]}"
            self._reference.find("I8", "an ISR that nobody proposed", after.partition, changed, last)
        leader = self._cluster.replica(after.leader, after.partition.topic, after.partition.partition)
        fell = len(after.members) < min(after.min_isr, after.replication_factor) <= len(before.members)
        if fell and leader is not None and leader.log.recovery_point < leader.state.high_watermark:
            facts = (
                f"the leader has synced up to {leader.log.recovery_point}",
                f"its mark is {leader.state.high_watermark}, and the ISR is {after.members} now",
            )
            self._reference.find("H14", "the ISR fell below the minimum without an fsync", after.partition, *facts)

    def _leadership_began(self, host: str, true: ReferencePartition) -> float:
        for (writer, partition), leadership in self._leaderships.items():
            found = (f"broker-{writer.broker_id}", partition, leadership.leader_epoch)
            if found == (host, true.partition, true.leader_epoch):
                return leadership.began
        return 0.0

    def _sample(self) -> None:
        """Hardening rule 4: some time after the ISR fell below the minimum, its leader's copy survives a power loss.
        Time counts in which its process ran."""
        for broker_id in self._cluster.alive():
            if not self._cluster.world.process(f"broker-{broker_id}").runs:
                self._stood_still[broker_id] = self._loop.elapsed
        for true in self._reference.states():
            if len(true.members) >= min(true.min_isr, true.replication_factor) or true.leader == -1:
                continue
            host = f"broker-{true.leader}"
            replica = self._cluster.replica(true.leader, true.partition.topic, true.partition.partition)
            moments = (
                self._led_since.get(true.partition, 0.0),
                self._stood_still.get(true.leader, 0.0),
                self._leadership_began(host, true),
            )
            since = max(true.since, *moments)
            settled = self._loop.elapsed - since > SETTLED_SECONDS
            if replica is None or not settled or self._cluster.world.machine(host).storage.faults:
                continue
            state, process = replica.state, self._cluster.world.process(host)
            leads = state.is_leader and state.leader_epoch == true.leader_epoch and not process.paused
            if leads and process.runs and replica.log.recovery_point < state.high_watermark:
                facts = (
                    f"broker {true.leader} is the ISR",
                    f"synced {replica.log.recovery_point}, mark {state.high_watermark}",
                )
                self._reference.find("H14", "the only copy is not synced", true.partition, *facts)


_HANDLERS: dict[type[ev.Event], Callable[..., None]] = {
    ev.FollowerFetched: InSyncChecker._on_fetched,
    ev.BatchesAppended: InSyncChecker._on_appended,
    ev.LeaderStalled: InSyncChecker._on_stalled,
    ev.AlterPartitionAnswered: InSyncChecker._on_settled,
    ev.AlterPartitionLost: InSyncChecker._on_settled,
    ev.LagChecked: InSyncChecker._on_lag_checked,
    ev.LeaderAndIsrReceived: lambda *facts: None,
    ev.ReplicaStopped: lambda *facts: None,
    ev.LogFailed: lambda *facts: None,
    ev.LogDamaged: lambda *facts: None,
}
"""The last ones only begin or end a leadership."""
