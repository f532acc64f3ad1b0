"""Which events, wire APIs and settings one run reached, and which there are.

Owns: the names under which they are counted, and the catalogue of all that a swarm should reach. Leaves to others:
lines and calls of the client library (`minibroker/swarm_coverage`), and what follows if one was never reached.
"""

from collections import Counter

from minibroker.broker.configuration.config_table import BrokerConfig
from minibroker.broker.configuration.config_values import BadValue, parse_value
from minibroker.broker.configuration.settings import SETTINGS, TOPIC_SETTINGS, Setting
from minibroker.protocol.events.cluster_events import EVENTS
from minibroker.protocol.wire.messages import APIS, FetchPartitionResponse, FetchResponse
from minibroker.protocol.znodes import BROKER_CONFIGS, TOPIC_CONFIGS, ConfigNode
from minibroker.runtime.ports import CreateOp, SetOp
from minibroker.runtime.server.incoming_request import AnswerSent
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.observations import NodesWritten

EVENT, API, SETTING, TOPIC_SETTING = "event", "API", "setting", "topic setting"
CHANGED = "changed setting"
"""A setting of a broker that was changed while it ran."""
CHANGED_OF_TOPIC = "changed topic setting"
"""A setting of a topic that had another value before."""

EVENT_NAMES: dict[type, str] = {kind: f"{EVENT} {name}" for name, kind in EVENTS.items()}
API_NAMES: dict[type, str] = {api.response: f"{API} {api.key.name}" for api in APIS.values()}
API_NAMES[FetchPartitionResponse] = API_NAMES[FetchResponse]  # a fetch is answered partition by partition


def catalogue() -> list[str]:
    """All that a swarm should reach, by the names of `Reached.counts`."""
    return [
        *EVENT_NAMES.values(),
        *dict.fromkeys(API_NAMES.values()),
        *(f"{SETTING} {name}" for name in SETTINGS),
        *(f"{CHANGED} {name}" for name, setting in SETTINGS.items() if setting.key.dynamic),
        *(f"{TOPIC_SETTING} {name}" for name in TOPIC_SETTINGS),
        *(f"{CHANGED_OF_TOPIC} {name}" for name in TOPIC_SETTINGS),
    ]


class Reached:
    """Of one run."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """How often, by the names of `catalogue`; a setting once for each broker or write that has it."""
        self._stored: dict[str, dict[str, str]] = {}
        """The settings in ZooKeeper, by the node's path."""

    def watch(self, cluster: SimulatedCluster) -> None:
        """Follow the settings that ZooKeeper holds."""
        cluster.world.world_observers.subscribe(NodesWritten, self._on_nodes_written)

    def observe(self, event: object) -> None:
        """An event of the observer port."""
        name = API_NAMES.get(type(event.body)) if type(event) is AnswerSent else EVENT_NAMES.get(type(event))
        if name is not None:
            self.counts[name] += 1

    def add_settings(self, config: BrokerConfig) -> None:
        """What a broker was started with."""
        for name, setting in SETTINGS.items():
            self.counts[f"{SETTING} {name}"] += getattr(config, setting.field) != setting.default

    def _on_nodes_written(self, event: NodesWritten) -> None:
        for operation in event.operations:
            folder = operation.path.rpartition("/")[0]
            if folder not in (TOPIC_CONFIGS, BROKER_CONFIGS):
                continue
            before = self._stored.pop(operation.path, None)
            if not isinstance(operation, CreateOp | SetOp):
                continue  # deleted: what comes next is of another topic
            stored = self._stored[operation.path] = ConfigNode.decode(operation.data).config
            if folder == TOPIC_CONFIGS:
                self._count_of_topic(before, stored)
            else:
                self.counts.update(f"{CHANGED} {name}" for name in changed(before or {}, stored))

    def _count_of_topic(self, before: dict[str, str] | None, stored: dict[str, str]) -> None:
        self.counts.update(
            f"{TOPIC_SETTING} {name}"
            for name, value in stored.items()
            if name in TOPIC_SETTINGS and differs(TOPIC_SETTINGS[name], value)
        )
        if before is not None:
            self.counts.update(f"{CHANGED_OF_TOPIC} {name}" for name in changed(before, stored))


def changed(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """The names whose values differ; one that is missing on one side does."""
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


def differs(setting: Setting, text: str) -> bool:
    """Whether this is another value than the built-in default."""
    try:
        return bool(parse_value(setting, text) != setting.default)
    except BadValue:
        return False
