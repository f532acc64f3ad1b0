"""How long a partition acknowledges nothing, although enough of its replicas are up (I37): also while one is down.

Owns: since when each partition has unanswered writes with acks=all and none acknowledged, and the bound, which counts
from the last fault. Judges only while nothing but dead processes disturbs the cluster (`stability`). Leaves to others:
what is acknowledged.
"""

from minibroker.chaos.history.client_history import EventLog, HistoryEvent
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.control.failover import slow_failover_seconds
from minibroker.simulation.checks.control.wanted_settings import WantedSettings
from minibroker.simulation.checks.reference_state import ReferencePartition, ReferenceState
from minibroker.simulation.checks.run_settings import seconds_of
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster

CLIENT_SECONDS = 3.0
"""A client repeats a lost request after at most one second, and looks for the leader at most a second later."""
LAG_CHECKS = 1.5
"""A dead follower leaves the ISR after `replica.lag.time.max.ms`, which is checked every half of it."""
PAUSE_SECONDS = 1.0
"""Without a send for so long, no client waits for this partition."""
MINIMUM = "min.insync.replicas"
PROMISED = "acks=all"
"""In the name of a process of the history."""


def acknowledging_seconds(settings: dict[str, str]) -> float:
    """The bound: a failover, a member that leaves the ISR, and the client's way to the new leader."""
    lag_seconds = seconds_of(settings, "replica.lag.time.max.ms")
    return slow_failover_seconds(settings) + LAG_CHECKS * lag_seconds + CLIENT_SECONDS


class AcknowledgingChecker(Checker):
    """Of one run."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        reference: ReferenceState,
        stability: Stability,
        events: EventLog,
        wanted: WantedSettings,
        settings: dict[str, str],
    ) -> None:
        self._cluster = cluster
        self._reference = reference
        self._stability = stability
        self._events = events.events
        self._wanted = wanted
        self._seen = 0
        self._open: dict[int, str] = {}
        """Sends without an outcome: the partition, by operation."""
        self._waiting_since: dict[str, float] = {}
        self._last_open_at: dict[str, float] = {}
        self._able_since: dict[str, float] = {}
        self._assigned: dict[TopicPartition, set[int]] = {}
        self._bound_seconds = acknowledging_seconds(settings)

    def sample(self) -> None:
        now = self._cluster.world.loop.elapsed
        for event in self._events[self._seen :]:
            self._take(event, now)
        self._seen = len(self._events)
        waiting = set(self._open.values())
        self._last_open_at.update(dict.fromkeys(waiting, now))
        for actual in self._reference.states():
            self._look_at(actual, str(actual.partition), now)

    def _take(self, event: HistoryEvent, now: float) -> None:
        if event.f != "send" or PROMISED not in event.process:
            return
        for sent in event.sent:
            if event.type == "invoke":
                self._open[event.index] = sent.key
                self._waiting_since.setdefault(sent.key, now)
                self._last_open_at[sent.key] = now  # also if it fails before any sample sees it open
            elif event.type == "ok":
                self._waiting_since.pop(sent.key, None)
        if event.operation is not None:
            self._open.pop(event.operation, None)

    def _look_at(self, actual: ReferencePartition, key: str, now: float) -> None:
        if now - self._last_open_at.get(key, now) > PAUSE_SECONDS:
            self._waiting_since.pop(key, None)
        calm = self._stability.since
        if key not in self._waiting_since or calm is None or not self._is_able(actual):
            self._able_since.pop(key, None)
            return
        since = max(self._able_since.setdefault(key, now), self._waiting_since[key], calm)
        if now - since > self._bound_seconds:
            self._able_since[key] = now
            facts = (
                f"{sum(1 for each in self._open.values() if each == key)} sends wait, the ISR is {actual.members}",
                f"the minimum is {self._minimum(actual.partition)}, up and well are {sorted(self._stability.fit)}",
            )
            text = f"nothing with acks=all is acknowledged for {self._bound_seconds:.1f} s"
            self._reference.find("I37", text, actual.partition, *facts)

    def _is_able(self, actual: ReferencePartition) -> bool:
        """Enough replicas are up, one of the ISR among them, and the others are dead, not half alive."""
        fit = self._stability.fit
        return (
            set(self._cluster.alive()) <= fit
            and len(self._replicas(actual.partition) & fit) >= self._minimum(actual.partition)
            and self._reference.has_sound_member(actual, fit)
        )

    def _minimum(self, partition: TopicPartition) -> int:
        """The most in-sync replicas that any broker may ask for now, at most all."""
        possible = (self._wanted.possible(b, partition.topic, MINIMUM) for b in self._cluster.broker_ids)
        return min(len(self._replicas(partition)), max(int(value) for values in possible for value in values))

    def _replicas(self, partition: TopicPartition) -> set[int]:
        if partition not in self._assigned:
            self._assigned[partition] = set(self._cluster.assignments().get(partition, ()))
        return self._assigned[partition]
