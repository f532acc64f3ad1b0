"""A consumer that starts from the beginning again and again, so that old records are read, too, and must be unchanged.

Owns: its rounds. Each offset that it gets is the next one, or the first one that retention has left; each value is what
an earlier reader saw there and what was acknowledged. It runs only where a disk may be faulty.
"""

import asyncio
from collections.abc import Sequence

from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import ReplicaListener
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.workload import Workload

ROUND_SECONDS = 1.5
PAUSE_SECONDS = 0.5


class RoundPositions(ReplicaListener):
    """Of one round: the offset that comes next, and the highest log start of any replica meanwhile. A start may be
    earlier again before the answer arrives, because the leader that deleted has failed (seed 17152458). So a gap below
    a start of this round is not found, even where the broker that answered begins earlier; `LogStartChecker` checks
    whether each start is allowed."""

    def __init__(self, replicas: Sequence[ObservedReplica]) -> None:
        """`replicas`: those that are there when the round begins."""
        self._next: dict[TopicPartition, int] = {}
        self._starts: dict[TopicPartition, int] = {}
        for replica in replicas:
            self.replica_loaded(replica)

    def replica_loaded(self, replica: ObservedReplica) -> None:
        partition, start = replica.topic_partition, replica.state.log_start_offset
        self._starts[partition] = max(start, self._starts.get(partition, 0))

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        self.replica_loaded(replica)

    def advance(self, partition: TopicPartition, offset: int) -> int | None:
        """A record was read there. Returns the offset that had to come; None if this one is right."""
        expected = self._next.get(partition, 0)
        self._next[partition] = offset + 1
        is_after_retention = expected < offset <= self._starts.get(partition, 0)
        return None if offset == expected or is_after_retention else expected


class Rereader:
    """Start `run` as a task; it ends with the workload."""

    def __init__(self, cluster: SimulatedCluster, workload: Workload, history: History) -> None:
        self._cluster = cluster
        self._workload = workload
        self._history = history

    async def run(self) -> None:
        while not self._workload.stop.is_set():
            await asyncio.sleep(PAUSE_SECONDS)
            try:
                await self._round()
            except MinibrokerError as error:
                self._history.note_error("rereader", error)

    async def _round(self) -> None:
        loop, workload = self._cluster.world.loop, self._workload
        until = loop.time() + ROUND_SECONDS
        positions = RoundPositions(self._replicas())
        with self._cluster.world.observers.subscribed(positions.replica_events()):
            async with workload.consumer() as consumer:
                consumer.assign(workload.partitions)
                while loop.time() < until and not workload.stop.is_set():
                    found = await consumer.getmany(timeout_ms=300)
                    for partition, records in found.items():
                        for record in records:
                            self._read(partition, record.offset, record.value, positions)

    def _replicas(self) -> list[ObservedReplica]:
        cluster, partitions = self._cluster, self._workload.partitions
        replicas = [cluster.replica(b, each.topic, each.partition) for b in cluster.alive() for each in partitions]
        return [each for each in replicas if each is not None]

    def _read(self, partition: TopicPartition, offset: int, value: bytes | None, positions: RoundPositions) -> None:
        history, expected = self._history, positions.advance(partition, offset)
        if expected is not None:
            history.find("I22", f"reading again, offset {offset} came where {expected} was next", partition)
        for known, what in ((history.read, "an earlier reader saw"), (history.acked, "acknowledged was")):
            if known.get((partition, offset), value) != value:
                facts = (f"{what} {known[partition, offset]!r:.60}", f"now it is {value!r:.60}")
                history.find("I22", f"offset {offset} holds another record", partition, *facts)
