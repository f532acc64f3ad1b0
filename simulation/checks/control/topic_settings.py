"""A changed setting of a topic takes effect on every live replica in bounded time (I45).

Owns: the comparison of what each replica uses with what it should (`wanted_settings`). Leaves to others: what a setting
does.
"""

from collections.abc import Callable

from minibroker.broker.replicas.partition import Partition
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.control.wanted_settings import NO_LIMIT, WantedSettings
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster

EFFECTIVE: dict[str, Callable[[Partition], int | None]] = {
    "segment.bytes": lambda replica: replica.log.config.segment_bytes,
    "segment.ms": lambda replica: replica.log.config.segment_ms,
    "retention.bytes": lambda replica: replica.log.config.retention_bytes,
    "retention.ms": lambda replica: replica.log.config.retention_ms,
    "max.message.bytes": lambda replica: replica.log.config.max_message_bytes,
    "min.insync.replicas": lambda replica: replica.state.config.min_insync_replicas,
}
"""What a replica uses; None: no limit."""


class TopicSettingsChecker(Checker):
    """Of one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState, settings: WantedSettings) -> None:
        self._cluster = cluster
        self._reference = reference
        self._settings = settings
        self._found: set[tuple[int, TopicPartition, str]] = set()

    def sample(self) -> None:
        knowing = [b for b in self._cluster.broker_ids if self._settings.could_know(b)]
        for actual in self._reference.states():
            for broker_id in knowing:
                replica = self._cluster.replica(broker_id, actual.partition.topic, actual.partition.partition)
                if replica is not None and not replica.state.is_offline:
                    self._compare(broker_id, actual.partition, replica)

    def _compare(self, broker_id: int, partition: TopicPartition, replica: Partition) -> None:
        for name, effective in EFFECTIVE.items():
            number = effective(replica)
            used = NO_LIMIT if number is None else str(number)
            is_possible = used in self._settings.possible(broker_id, partition.topic, name)
            if not is_possible and (broker_id, partition, name) not in self._found:
                self._found.add((broker_id, partition, name))
                wanted = self._settings.wanted(broker_id, partition.topic, name)
                written = self._settings.last_written(broker_id, partition.topic)
                fact = f"it should be {wanted}, by what was last written at {written:.3f}"
                text = f"broker {broker_id} still uses {name}={used}"
                self._reference.find("I45", text, partition, fact)
