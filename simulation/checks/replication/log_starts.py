"""Over-deletion: only retention raises a log start (I43).

Owns: its own sum of the bytes of every batch ever written to a partition, and from it the highest start that retention
by size ever allowed. Checks each leader's start, that of each ISR member, and each start that a replica adopts while it
runs. Trusts neither checkpoints nor file names. Leaves to others: what a leader may decide at that moment, and all
topics with retention by age (`retention`). No client trims a log.
"""

from bisect import bisect_left
from collections.abc import Sequence

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.control.wanted_settings import NO_LIMIT, WantedSettings
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.node import PROCESS

AGE_MS_MIN = 86_400_000
"""Retention by age deletes nothing in a run if it keeps this long: the clocks' errors are smaller."""


class BatchSizes:
    """The sizes of one partition's batches, by base offset; a later batch at the same offset replaces the size if
    larger."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._bases: list[int] = []

    def add(self, base_offset: int, size: int) -> None:
        if base_offset not in self._sizes:
            if not self._bases or base_offset > self._bases[-1]:
                self._bases.append(base_offset)
            else:
                self._bases.insert(bisect_left(self._bases, base_offset), base_offset)
        self._sizes[base_offset] = max(size, self._sizes.get(base_offset, 0))

    def bytes_from(self, offset: int) -> int:
        """An upper bound of the bytes that any log ever held from there on."""
        return sum(self._sizes[base] for base in self._bases[bisect_left(self._bases, offset) :])


class LogStartChecker(Checker):
    """Of one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState, settings: WantedSettings) -> None:
        self._cluster = cluster
        self._reference = reference
        self._settings = settings
        self._lowest: dict[tuple[str, str], int] = {}
        """By topic and setting: the lowest limit that any broker may have used so far."""
        self._sizes: dict[TopicPartition, BatchSizes] = {}
        self._lawful: dict[TopicPartition, int] = {}
        """The highest start found lawful."""
        self._starts: dict[ObservedReplica, int] = {}

    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None:
        sizes = self._sizes.setdefault(log.topic_partition, BatchSizes())
        for header in batches:
            sizes.add(header.base_offset, header.size_bytes)

    def replica_loaded(self, replica: ObservedReplica) -> None:
        self._starts[replica] = replica.state.log_start_offset

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        state, start = replica.state, replica.state.log_start_offset
        if start <= self._lawful.get(replica.topic_partition, 0) or state.is_offline:
            return
        if state.is_leader:
            self._check(replica, "leads with the log start")
        elif start > self._starts.get(replica, 0):
            self._check(replica, "took over the log start")
        self._starts[replica] = start

    def state_written(self, partition: TopicPartition) -> None:
        actual = self._reference.state(partition)
        for broker_id in () if actual is None else actual.members:
            replica = self._cluster.replica(broker_id, partition.topic, partition.partition)
            listed = actual is not None and actual.incarnations.get(str(broker_id)) == self._reference.incarnation(
                broker_id
            )
            if replica is not None and listed and not replica.state.is_offline:
                self._check(replica, "is in sync with the log start", f"broker {broker_id}")

    def _check(self, replica: ObservedReplica, role: str, subject: str | None = None) -> None:
        partition, start = replica.topic_partition, replica.state.log_start_offset
        if start <= self._lawful.get(partition, 0) or not self._reference.is_promised(partition.topic):
            return
        kept = self._sizes.get(partition, BatchSizes()).bytes_from(start)
        limit, age_ms = (self._limit(partition.topic, name) for name in ("retention.bytes", "retention.ms"))
        if (age_ms is None or age_ms >= AGE_MS_MIN) and (limit is None or kept < limit):
            facts = (
                f"retention keeps {'all' if limit is None else f'{limit} bytes'}",
                f"at most {kept} bytes were ever written from {start} on",
            )
            text = f"{subject or PROCESS.get()} {role} {start}"
            self._reference.find("I43", f"{text}: more was deleted than retention allows", partition, *facts)
        self._lawful[partition] = max(start, self._lawful.get(partition, 0))

    def _limit(self, topic: str, name: str) -> int | None:
        possible = {each for b in self._cluster.broker_ids for each in self._settings.possible(b, topic, name)}
        known = [self._lowest[topic, name]] if (topic, name) in self._lowest else []
        found = min([*known, *map(int, possible - {NO_LIMIT})], default=None)
        if found is not None:
            self._lowest[topic, name] = found
        return found
