"""A consumer that starts from the beginning again and again, so that old records are read, too, and must be unchanged.

Owns: its rounds. Each offset that it gets is the next one, or the first one that retention has left; each value is what
an earlier reader saw there and what was acknowledged. It runs only where a disk may be faulty.
"""

import asyncio

from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.workload import Workload

ROUND_SECONDS = 1.5
PAUSE_SECONDS = 0.5
NEW_OFFSETS_MAX = 1_000_000
"""The log start assumed while no replica is up."""


class Rereader:
    """Start `run` as a task; it ends with the workload."""

    def __init__(
        self, cluster: SimulatedCluster, workload: Workload, history: History, reference: ReferenceState
    ) -> None:
        self._cluster = cluster
        self._workload = workload
        self._history = history
        self._reference = reference

    async def run(self) -> None:
        while not self._workload.stop.is_set():
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await self._round()
            except MinibrokerError as error:
                self._history.note_error("rereader", error)

    async def _round(self) -> None:
        loop, positions = self._cluster.world.loop, dict[TopicPartition, int]()
        until = loop.time() + ROUND_SECONDS
        async with self._workload.consumer() as consumer:
            consumer.assign(self._workload.partitions)
            while loop.time() < until and not self._workload.stop.is_set():
                found = await consumer.getmany(timeout_ms=300)
                for partition, records in found.items():
                    for record in records:
                        self._read(partition, record.offset, record.value or b"", positions)

    def _read(self, partition: TopicPartition, offset: int, value: bytes, positions: dict[TopicPartition, int]) -> None:
        history, expected = self._history, positions.get(partition, 0)
        positions[partition] = offset + 1
        if offset != expected and (offset < expected or offset > self._highest_start(partition)):
            history.find("I22", f"reading again, offset {offset} came where {expected} was next", partition)
        for known, what in ((history.read, "an earlier reader saw"), (history.acked, "acknowledged was")):
            if known.get((partition, offset), value) != value:
                facts = (f"{what} {known[partition, offset]!r:.60}", f"now it is {value!r:.60}")
                history.find("I22", f"offset {offset} holds another record", partition, *facts)

    def _highest_start(self, partition: TopicPartition) -> int:
        """Of any live replica; `checks.log_starts` checks whether it is allowed."""
        replicas = [self._cluster.replica(b, partition.topic, partition.partition) for b in self._cluster.alive()]
        return max(
            (replica.log.log_start_offset for replica in replicas if replica is not None), default=NEW_OFFSETS_MAX
        )
