"""What each setting of a topic is: by ZooKeeper, and where the topic has none of its own, by the broker's settings.

Owns: the wanted value of each setting on each broker, and the earlier values that a broker may still use because it
cannot have heard of a newer one. Leaves to others: whether the replicas use it.
"""

from msgspec import Struct

from minibroker.protocol.znodes import CONTROLLER, ConfigNode, broker_config_path, topic_config_path
from minibroker.runtime.observer import Handlers
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.run_settings import seconds_of
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.observations import DataReplaced, NodesWritten

REACTION_SECONDS = 2.0
"""Time for the controller's UpdateMetadata to every broker; a request that is repeated takes its timeout more."""
NO_LIMIT = "-1"
CONFIG = "/config/"
BROKER_SETTINGS = {
    "segment.bytes": ("log.segment.bytes", str(1 << 30)),
    "segment.ms": ("log.roll.ms", "604800000"),
    "retention.bytes": ("log.retention.bytes", NO_LIMIT),
    "retention.ms": ("log.retention.ms", "604800000"),
    "max.message.bytes": ("message.max.bytes", "1048588"),
    "min.insync.replicas": ("min.insync.replicas", "2"),
}
"""The broker's setting of each, and its default (of min.insync.replicas that of `SimulatedCluster`)."""


class WantedValue(Struct):
    """Of one setting, on one broker."""

    value: str
    since: float
    ended: dict[str, float]
    """Earlier values that the broker may still use, and when each was replaced."""


class WantedSettings(Checker):
    """Notes each change at the moment at which ZooKeeper is written; reports nothing."""

    def __init__(self, cluster: SimulatedCluster, stability: Stability, settings: dict[str, str]) -> None:
        self._cluster = cluster
        self._stability = stability
        self._settings = settings
        self._wanted: dict[tuple[int, str, str], WantedValue] = {}
        self._controller_since = 0.0
        self.bound_seconds = REACTION_SECONDS + seconds_of(settings, "request.timeout.ms")
        """Time for a change to reach every broker that is up and well."""

    def world_events(self) -> Handlers:
        return {NodesWritten: self._on_nodes_written, DataReplaced: lambda event: self._wanted.clear()}

    def wanted(self, broker_id: int, topic: str, name: str) -> WantedValue:
        key = (broker_id, topic, name)
        if key not in self._wanted:
            self._wanted[key] = WantedValue(self._stored(*key), self._cluster.world.loop.elapsed, {})
        return self._wanted[key]

    def possible(self, broker_id: int, topic: str, name: str) -> set[str]:
        """The values that this broker may use now."""
        wanted = self.wanted(broker_id, topic, name)
        return {wanted.value, *wanted.ended}

    def could_know(self, broker_id: int) -> bool:
        """There has been one controller, and it and this broker have been well, for so long that every change has
        reached the broker in time. One that starts without a controller knows no topic's settings (seed 17271494)."""
        controller, stability = self._cluster.controller(), self._stability
        if controller is None:
            return False
        known_since = self._cluster.world.loop.elapsed - self.bound_seconds
        fit_since = (stability.fit_since(broker_id), stability.fit_since(controller))
        since = (stability.since, self._controller_since, *fit_since)
        return all(each is not None and each <= known_since for each in since)

    def _stored(self, broker_id: int, topic: str, name: str) -> str:
        broker_name, default = BROKER_SETTINGS[name]
        of_broker = self._node(broker_config_path(broker_id)).get(broker_name)
        of_topic = self._node(topic_config_path(topic)).get(name)
        static = self._settings.get(broker_name, default)
        return of_topic if of_topic is not None else of_broker if of_broker is not None else static

    def _node(self, path: str) -> dict[str, str]:
        node = self._cluster.world.zookeeper.tree.nodes.get(path)
        return {} if node is None else ConfigNode.decode(node.data).config

    def _on_nodes_written(self, event: NodesWritten) -> None:
        if any(operation.path == CONTROLLER for operation in event.operations):
            self._controller_since = self._cluster.world.loop.elapsed
        if not any(operation.path.startswith(CONFIG) for operation in event.operations):
            return
        for key, known in self._wanted.items():
            value = self._stored(*key)
            if known.value != value:
                known.ended[known.value] = self._cluster.world.loop.elapsed
                known.ended.pop(value, None)
                known.value, known.since = value, self._cluster.world.loop.elapsed

    def sample(self) -> None:
        """Drop the values that no broker can use any more."""
        long_ago = self._cluster.world.loop.elapsed - self.bound_seconds
        knowing = {b for b in self._cluster.broker_ids if self.could_know(b)}
        for (broker_id, _, _), known in self._wanted.items():
            if known.ended and broker_id in knowing:
                known.ended = {value: ended for value, ended in known.ended.items() if ended > long_ago}
