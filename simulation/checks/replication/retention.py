"""What retention must keep: a leader deletes no record that the topic's settings keep, by its own clock (I43).

Owns: the size of each batch that a broker holds and when that broker wrote it, and the highest start that the settings
allow at the moment of the decision. Trusts neither file sizes nor times of files. Leaves to others: starts that
replicas take over (`log_starts`), records above the high watermark (I14).
"""

from bisect import bisect_left
from collections.abc import Sequence
from math import inf

from msgspec import Struct

from minibroker.broker.log.partition_log import PartitionLog
from minibroker.broker.replicas.observations import ObservedReplica
from minibroker.broker.replication import events as ev
from minibroker.protocol.files.checkpoints import LogStartReason
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import BatchHeader
from minibroker.simulation.checks.checker import Checker
from minibroker.simulation.checks.control.wanted_settings import NO_LIMIT, WantedSettings
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.clock import WALL_CLOCK_START_MS
from minibroker.simulation.world.node import PROCESS


class HeldBatch(Struct, frozen=True):
    """A batch that a broker wrote."""

    base_offset: int
    size_bytes: int
    written_ms: int
    """By the wall clock of that broker."""


class RetentionChecker(Checker):
    """Of one run."""

    def __init__(self, cluster: SimulatedCluster, reference: ReferenceState, settings: WantedSettings) -> None:
        self._cluster = cluster
        self._reference = reference
        self._settings = settings
        self._batches: dict[tuple[str, TopicPartition, str | None], list[HeldBatch]] = {}
        self._starts: dict[ObservedReplica, int] = {}
        self._unreliable: set[int] = set()
        """Brokers whose disk was faulty: older files may have come back."""
        self._skews: dict[int, int] = {}
        self._set_back: dict[int, tuple[int, float]] = {}
        """Of clocks that were set back: the highest skew before, in milliseconds, and when the last time; time in which
        the broker stood still does not count."""

    def sample(self) -> None:
        self._unreliable |= self._reference.faulty
        for broker_id in self._cluster.broker_ids:
            skew_ms = self._skew_ms(f"broker-{broker_id}")
            if skew_ms < self._skews.get(broker_id, skew_ms):
                highest_ms = max(self._skews[broker_id], self._skew_before(broker_id, skew_ms))
                self._set_back[broker_id] = (highest_ms, self._cluster.world.loop.elapsed)
            elif self._stands_still(broker_id):
                highest_ms = self._skew_before(broker_id, skew_ms)
                self._set_back[broker_id] = (highest_ms, self._cluster.world.loop.elapsed)
            self._skews[broker_id] = skew_ms

    def _stands_still(self, broker_id: int) -> bool:
        """Whether a start that it has decided cannot be recorded now: its disk hangs, or its process is held."""
        machine = self._cluster.world.machine(f"broker-{broker_id}")
        process = machine.process
        return process is not None and process.alive and (machine.storage.hangs_for > 0 or not process.runs)

    def appended(self, log: PartitionLog, batches: Sequence[BatchHeader]) -> None:
        host = _acting_host()
        held = self._batches.setdefault((host, log.topic_partition, log.topic_id), [])
        for header in batches:
            while held and held[-1].base_offset >= header.base_offset:
                held.pop()  # truncated
            held.append(HeldBatch(header.base_offset, header.size_bytes, self._now_ms(host)))

    def replica_loaded(self, replica: ObservedReplica) -> None:
        self._starts[replica] = replica.state.log_start_offset

    def stepped(
        self, replica: ObservedReplica, event: ev.ReplicaEvent, effects: Sequence[ev.ReplicaEffect], refused: bool
    ) -> None:
        before, start = self._starts.get(replica, 0), replica.state.log_start_offset
        self._starts[replica] = start
        if isinstance(event, ev.LogTrimmed) and event.reason is LogStartReason.RETENTION and start > before:
            self._check(replica, before, start)

    def _check(self, replica: ObservedReplica, before: int, start: int) -> None:
        name, partition = _acting_host(), replica.topic_partition
        broker_id = int(name.rpartition("-")[2])
        if broker_id in self._unreliable or not self._reference.is_promised(partition.topic):
            return
        held = self._batches.get((name, partition, replica.log.topic_id), [])
        by_size, by_age = (
            self._kept_by_size(broker_id, partition, held),
            self._kept_by_age(broker_id, partition, held, start),
        )
        if start > max(by_size, by_age, before):
            wanted = [
                f"{each}={self._settings.wanted(broker_id, partition.topic, each)}"
                for each in ("retention.bytes", "retention.ms")
            ]
            facts = (
                f"{' and '.join(wanted)} allow a start of {max(by_size, by_age)} at most",
                f"behind {start} there are {self._bytes_from(held, start)} bytes",
            )
            self._reference.find(
                "I43", f"broker {broker_id} deletes up to {start} what it must keep", partition, *facts
            )

    def _kept_by_size(self, broker_id: int, partition: TopicPartition, held: list[HeldBatch]) -> int:
        """The highest offset with at least retention.bytes behind it."""
        limits = self._limits(broker_id, partition, "retention.bytes")
        behind = 0
        for batch in reversed(held) if limits else ():
            behind += batch.size_bytes
            if behind >= min(limits):
                return batch.base_offset
        return 0

    def _kept_by_age(self, broker_id: int, partition: TopicPartition, held: list[HeldBatch], start: int) -> int:
        """The highest offset up to `start` with a batch older than retention.ms right in front. A segment is as old as
        its last write, so what stands in front of that batch may go with it. The broker decided before it recorded the
        start, and its clock may have been set back since (seed 17540027)."""
        limits = self._limits(broker_id, partition, "retention.ms")
        skew_ms = self._skew_ms(f"broker-{broker_id}")
        now_ms = self._now_ms(f"broker-{broker_id}") + max(0, self._skew_before(broker_id, skew_ms) - skew_ms)
        lawful = 0
        for batch, following in zip(held, [*held[1:], None], strict=True):
            end = start if following is None else following.base_offset
            if limits and batch.base_offset < start and now_ms - batch.written_ms > min(limits):
                lawful = max(lawful, end)
        return lawful

    def _skew_before(self, broker_id: int, skew_ms: int) -> int:
        """The highest one by which a start that is recorded now may have been decided. `skew_ms`: the present one."""
        earlier_ms, set_back_at = self._set_back.get(broker_id, (skew_ms, -inf))
        is_recent = self._cluster.world.loop.elapsed < set_back_at + self._settings.bound_seconds
        return earlier_ms if is_recent else skew_ms

    def _limits(self, broker_id: int, partition: TopicPartition, name: str) -> list[int]:
        return [int(each) for each in self._settings.possible(broker_id, partition.topic, name) if each != NO_LIMIT]

    def _bytes_from(self, held: list[HeldBatch], offset: int) -> int:
        first = bisect_left(held, offset, key=lambda batch: batch.base_offset)
        return sum(batch.size_bytes for batch in held[first:])

    def _now_ms(self, host: str) -> int:
        """As `SimulatedClock` has it."""
        return WALL_CLOCK_START_MS + self._skew_ms(host) + round(self._cluster.world.loop.elapsed * 1000)

    def _skew_ms(self, host: str) -> int:
        return self._cluster.world.machine(host).clock_skew_ms


def _acting_host() -> str:
    process = PROCESS.get()
    assert process is not None, "replicas act in the process of a broker"
    return process.name
