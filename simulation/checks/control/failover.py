"""How long a partition has no leader that serves, although another member of its ISR could lead (I37).

Owns: the bound, from the settings and from how the leader ended, and since when each partition is without a leader.
Judges only while nothing but dead processes disturbs the cluster (`stability`), and counts from the last fault: a lost
reply is over before the next sample, and what it leaves behind takes time. Leaves to others: which member is elected
(`reference_state`), leaders with a failed disk (`offline`).
"""

from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.checks.run_settings import seconds_of
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster

REACTION_SECONDS = 2.0
"""Time to detect a refusal, ask a second broker, elect, and order, with a request or two repeated."""
CONNECTION = "connection"


def slow_failover_seconds(settings: dict[str, str]) -> float:
    """A dead leader that refuses connections is detected by them, within `REACTION_SECONDS`. Any other is, at the
    latest, when its session ends; before that, what is left of earlier faults may cost the timeout of a request, and
    the controller's session."""
    sessions = 2 * seconds_of(settings, "zookeeper.session.timeout.ms")
    return REACTION_SECONDS + sessions + seconds_of(settings, "request.timeout.ms")


def settling_seconds(settings: dict[str, str]) -> float:
    """As long as anything of an earlier fault may last: a session, and a request that gets no answer."""
    return seconds_of(settings, "zookeeper.session.timeout.ms") + seconds_of(settings, "request.timeout.ms")


class FailoverChecker(Checker):
    """Of one run."""

    def __init__(
        self, cluster: SimulatedCluster, reference: ReferenceState, stability: Stability, settings: dict[str, str]
    ) -> None:
        self._cluster = cluster
        self._reference = reference
        self._stability = stability
        self._detects_connections = settings.get("broker.failure.detection", CONNECTION) == CONNECTION
        self._settling_seconds = settling_seconds(settings)
        self._slow_seconds = slow_failover_seconds(settings)
        self._since: dict[TopicPartition, float] = {}
        self._slow: set[TopicPartition] = set()
        """Partitions whose present failover may need the end of a session."""

    def sample(self) -> None:
        now = self._cluster.world.loop.elapsed
        for actual in self._reference.states():
            partition, calm = actual.partition, self._stability.since
            if calm is None or self._serves(actual) or not self._another_could_lead(actual):
                self._since.pop(partition, None)
                self._slow.discard(partition)
                continue
            since = self._since.setdefault(partition, now)
            if not self._is_fast(actual, since):
                self._slow.add(partition)
            bound = self._slow_seconds if partition in self._slow else REACTION_SECONDS
            if now - max(since, calm) > bound:
                self._since[partition] = now
                facts = (
                    f"ZooKeeper names leader {actual.leader} of epoch {actual.leader_epoch}, in sync: {actual.members}",
                    f"brokers that are up and well: {sorted(self._stability.fit)}",
                )
                self._reference.find("I37", f"no leader has served for {bound:.1f} s", partition, *facts)

    def _is_fast(self, actual: ReferencePartition, since: float) -> bool:
        """The leader refuses connections, and the controller and one more broker, which can see that, have been well
        for as long as anything of an earlier fault may last."""
        controller, fit, calm = self._cluster.controller(), self._stability.fit, self._stability.since
        settled = since - self._settling_seconds
        witnesses = [b for b in fit if (self._stability.fit_since(b) or 0.0) <= settled]
        return (
            self._detects_connections
            and calm is not None
            and calm <= settled
            and controller in witnesses
            and len(witnesses) > 1
            and self._refuses(actual.leader)
        )

    def _refuses(self, broker_id: int) -> bool:
        name, network = f"broker-{broker_id}", self._cluster.world.network
        others = [f"broker-{b}" for b in self._stability.fit]
        is_dead = broker_id in self._cluster.broker_ids and broker_id not in self._cluster.alive()
        is_reached = network.look_up(name) is not None and all(network.is_open(other, name) for other in others)
        return is_dead and network.is_up(name) and is_reached

    def _serves(self, actual: ReferencePartition) -> bool:
        replica = self._cluster.replica(actual.leader, actual.partition.topic, actual.partition.partition)
        if replica is None or self._cluster.world.process(f"broker-{actual.leader}").paused:
            return False
        state = replica.state
        return state.is_leader and state.leader_epoch == actual.leader_epoch and not state.fenced

    def _another_could_lead(self, actual: ReferencePartition) -> bool:
        return self._reference.has_sound_member(actual, self._stability.fit - {actual.leader})
