"""What each setting of a topic is: by ZooKeeper, and where the topic has none of its own, by the broker's settings.

Owns: the wanted value of each setting on each broker, and the earlier values that a broker may still use because it
cannot have heard of a newer one. Leaves to others: whether the replicas use it.
"""

from math import inf
from typing import NamedTuple

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


class EarlierContent(NamedTuple):
    """Of one node."""

    config: dict[str, str]
    ended: float


class WantedSettings(Checker):
    """Notes each change at the moment at which ZooKeeper is written; reports nothing. Subscribe it before the first
    write: what was stored before a change is known from the writes alone, not from who asked for it (seed
    89102080018)."""

    def __init__(self, cluster: SimulatedCluster, stability: Stability, settings: dict[str, str]) -> None:
        self._cluster = cluster
        self._stability = stability
        self._settings = settings
        self._stored: dict[str, dict[str, str]] = {}
        """The content of each node below /config."""
        self._earlier: dict[str, list[EarlierContent]] = {}
        self._heard: dict[int, float] = {}
        """The time up to which every change has reached this broker."""
        self._controller_since = 0.0
        self.bound_seconds = REACTION_SECONDS + seconds_of(settings, "request.timeout.ms")
        """Time for a change to reach every broker that is up and well."""

    def world_events(self) -> Handlers:
        return {NodesWritten: self._on_nodes_written, DataReplaced: self._on_data_replaced}

    def wanted(self, broker_id: int, topic: str, name: str) -> str:
        """By what is stored now."""
        broker_name, default = BROKER_SETTINGS[name]
        of_topic = self._stored.get(topic_config_path(topic), {}).get(name)
        of_broker = self._stored.get(broker_config_path(broker_id), {}).get(broker_name)
        static = self._settings.get(broker_name, default)
        return of_topic if of_topic is not None else of_broker if of_broker is not None else static

    def possible(self, broker_id: int, topic: str, name: str) -> set[str]:
        """The values that this broker may use now. What it knows of a topic and what it knows of itself come on two
        ways, so each earlier content of one node may meet each of the other."""
        broker_name, default = BROKER_SETTINGS[name]
        static = self._settings.get(broker_name, default)
        of_topic = self._possible_of(broker_id, topic_config_path(topic), name)
        of_broker = self._possible_of(broker_id, broker_config_path(broker_id), broker_name)
        values = {value for value in of_topic if value is not None}
        if None in of_topic:
            values |= {static if value is None else value for value in of_broker}
        return values

    def last_written(self, broker_id: int, topic: str) -> float:
        """When one of the two nodes changed last; 0: never."""
        paths = (topic_config_path(topic), broker_config_path(broker_id))
        return max((each.ended for path in paths for each in self._earlier.get(path, ())), default=0.0)

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

    def _possible_of(self, broker_id: int, path: str, name: str) -> set[str | None]:
        """The values that this broker may have read from this node; None: the node says nothing."""
        heard = self._heard.get(broker_id, -inf)
        earlier = {each.config.get(name) for each in self._earlier.get(path, ()) if each.ended > heard}
        return earlier | {self._stored.get(path, {}).get(name)}

    def _on_nodes_written(self, event: NodesWritten) -> None:
        now = self._cluster.world.loop.elapsed
        for path in sorted({operation.path for operation in event.operations}):
            if path == CONTROLLER:
                self._controller_since = now
            if path.startswith(CONFIG):
                before, after = self._stored.get(path, {}), self._read(path)
                if after != before:
                    self._earlier.setdefault(path, []).append(EarlierContent(before, now))
                self._stored[path] = after

    def _on_data_replaced(self, _event: DataReplaced) -> None:
        """No broker runs then, and each reads at its start."""
        paths = [path for path in self._cluster.world.zookeeper.tree.nodes if path.startswith(CONFIG)]
        self._stored = {path: self._read(path) for path in paths}
        self._earlier.clear()

    def _read(self, path: str) -> dict[str, str]:
        node = self._cluster.world.zookeeper.tree.nodes.get(path)
        return {} if node is None or not node.data else ConfigNode.decode(node.data).config

    def sample(self) -> None:
        long_ago = self._cluster.world.loop.elapsed - self.bound_seconds
        for broker_id in self._cluster.broker_ids:
            if self.could_know(broker_id):
                self._heard[broker_id] = long_ago
