"""A topic made again holds nothing of its predecessor: no read gives a batch of another topic id of that name (I22).

Owns: under which topic ids a leader has appended each batch, of all topics. Leaves to others: what was written to the
present topic (`served`), positions of consumers (clients).
"""

from minibroker.broker.replicas.observations import BatchesLogged, RecordsRead
from minibroker.protocol.ids import TopicPartition
from minibroker.runtime.observer import Handlers
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.world.node import PROCESS

CRC = slice(17, 21)
"""Of a batch: it covers producer, times and records, so no two batches of one partition share it."""


class RecreatedTopicChecker(Checker):
    """Of one run."""

    def __init__(self, reference: ReferenceState) -> None:
        self._reference = reference
        self._topic_ids: dict[tuple[TopicPartition, bytes], set[str | None]] = {}

    def replica_events(self) -> Handlers:
        return {BatchesLogged: self._logged, RecordsRead: self._read}

    def _logged(self, event: BatchesLogged) -> None:
        if event.replica.state.is_leader:
            for _, buffer in event.batches:
                key = (event.replica.topic_partition, bytes(buffer[CRC]))
                self._topic_ids.setdefault(key, set()).add(event.replica.log.topic_id)

    def _read(self, event: RecordsRead) -> None:
        partition, topic_id = event.replica.topic_partition, event.replica.log.topic_id
        first = next((bytes(part[: CRC.stop]) for part in event.found.parts if len(part)), b"")
        written_to = self._topic_ids.get((partition, first[CRC]), {topic_id})
        if topic_id not in written_to:
            facts = (
                f"{PROCESS.get()} read it as topic {topic_id}",
                f"it was written to {sorted(map(str, written_to))}",
            )
            text = f"a record of a deleted topic is read at offset {event.fetch_offset}"
            self._reference.find("I22", text, partition, *facts)
