"""The bytes that leave a leader and enter a log: no record under another offset, no damaged byte copied (I41).

Owns: the bytes of each batch when it was first written. The first batch of a leader's answer must hold the requested
offset and be the one written there; what a follower appends must be what the leader of that epoch wrote. Leaves to
others: what a consumer does with damaged bytes; their CRC shows the damage, and it discards them.
"""

from collections.abc import Sequence

from minibroker.broker.replicas.observations import BatchesLogged, ObservedReplica, RecordsRead
from minibroker.protocol.checksum import crc32c
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import CRC_COVERS_FROM, BatchHeader, CorruptBatch, read_header
from minibroker.protocol.wire.codec import FetchedRecords
from minibroker.runtime.observer import Handlers
from minibroker.runtime.ports import Buffer
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.world.node import PROCESS


class ServedChecker(Checker):
    """Checks one run."""

    def __init__(self, reference: ReferenceState) -> None:
        self._reference = reference
        self._written: dict[TopicPartition, dict[tuple[int, int], bytes]] = {}
        """By partition, and by (epoch, base offset)."""

    def replica_events(self) -> Handlers:
        return {
            RecordsRead: lambda event: self._served(event.replica, event.fetch_offset, event.found),
            BatchesLogged: lambda event: self._appended(event.replica.topic_partition, event.batches),
        }

    def _served(self, replica: ObservedReplica, requested: int, found: FetchedRecords) -> None:
        """Check the first batch of an answer."""
        partition = replica.topic_partition
        if not self._reference.is_promised(partition.topic):
            return
        first = next(bytes(part[:61]) for part in found.parts if len(part))
        request = f"{PROCESS.get()} was asked for offset {requested}"
        try:
            header = read_header(first + bytes(int.from_bytes(first[8:12], "big")), 0)
        except CorruptBatch as error:
            self._reference.find("I41", "damaged bytes were served", partition, request, f"it answered with {error}")
            return
        answer = f"it answered with {header.base_offset}..{header.last_offset} of epoch {header.partition_leader_epoch}"
        if not header.base_offset <= requested <= header.last_offset:
            self._reference.find(
                "I41", "an answer does not hold the offset that was requested", partition, request, answer
            )
            return
        known = self._written.get(partition, {}).get((header.partition_leader_epoch, header.base_offset))
        if known is None or known[17:61] != first[17:61]:
            self._reference.find(
                "I41", "a leader served a batch that was never written at that offset", partition, request, answer
            )

    def _appended(self, partition: TopicPartition, batches: Sequence[tuple[BatchHeader, Buffer]]) -> None:
        if not self._reference.is_promised(partition.topic):
            return
        written = self._written.setdefault(partition, {})
        for header, buffer in batches:
            key = (header.partition_leader_epoch, header.base_offset)
            known = written.get(key)
            if known is None:
                written[key] = bytes(buffer)
            elif known != buffer:
                is_sound = crc32c(bytes(buffer)[CRC_COVERS_FROM:]) == header.crc
                facts = (f"{PROCESS.get()} appended {key}", "its CRC fits" if is_sound else "its CRC does not fit")
                self._reference.find("I41", "damaged bytes were copied", partition, *facts)
