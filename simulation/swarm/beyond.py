"""Runs that go beyond the promise: acknowledged records are lost on purpose, and the loss must be detected and named.

Owns: the disasters, and the check of both detectors (the clients' history, the audit of the disks) against what the
logs really lack. The loss itself is no finding. The cluster must still converge to identical replicas.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from minibroker.protocol.ids import NONE, TopicPartition
from minibroker.protocol.record_batch import decode_records
from minibroker.simulation.checks.disks.audited_disks import audit_disks
from minibroker.simulation.checks.finding import CheckerFinding, crash_finding
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.accepting import accept_loss
from minibroker.simulation.swarm.faults.fault_injector import FaultInjector
from minibroker.simulation.swarm.final_checks import compare_history, compare_replicas, converge, log_bytes
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.loads.mirror_reader import MirrorReader
from minibroker.simulation.swarm.narrator import Narrator
from minibroker.simulation.swarm.opening import open_run
from minibroker.simulation.swarm.options import RunOptions
from minibroker.simulation.swarm.outcome import RunOutcome
from minibroker.simulation.swarm.workload import Workload

DISASTERS = ("all_lose_power", "in_sync_disks_replaced", "unclean_election", "last_member_loses_power")
NOT_A_LOSS = frozenset({"I20", "I36", "I37", "crash", "client: LogTruncated"})
"""Identical replicas, convergence, running brokers and readers that learn of the loss are required here, too."""
CALM_SECONDS = 1.5
OFFSET = re.compile(r"offset (\d+)")

Place = tuple[TopicPartition, int]


def beyond_options(options: RunOptions, disaster: str) -> RunOptions:
    """The drawn options without flushing and retention, so that a loss is a real loss."""
    settings = {k: v for k, v in options.settings.items() if not k.startswith(("log.flush", "log.retention"))}
    settings["log.flush.offset.checkpoint.interval.ms"] = "60000"
    settings["unclean.leader.election.enable"] = "true" if disaster == "unclean_election" else "false"
    options.settings = settings
    options.topics = {"a": (options.topics["a"][0], options.topics["a"][1], 1)}
    options.churn = options.config_changes = options.containers = False
    return options


async def drive_beyond(
    cluster: SimulatedCluster, outcome: RunOutcome, disaster: str, narrator: Narrator | None
) -> None:
    """Load, disaster, convergence; then a check of which detector noticed the loss."""
    outcome.is_beyond = True
    options, history = outcome.options, outcome.history
    reference = ReferenceState(cluster, options.topics)
    injector = await open_run(cluster, outcome, reference, narrator)
    workload = injector.workload
    working = asyncio.create_task(workload.run())
    seen, names = outcome.coverage.seen, workload.partitions
    kinds: tuple[Literal["raise", "reset"], ...] = ("raise", "reset")
    mirrors = [MirrorReader(cluster, history, names, kind, seen) for kind in kinds]
    mirroring = [asyncio.create_task(mirror.run()) for mirror in mirrors]
    try:
        await asyncio.sleep(CALM_SECONDS)
        injector.note("disaster", disaster)
        outcome.injected[f"disaster {disaster}"] += 1
        act: Callable[[], Awaitable[None]] = getattr(Disasters(injector), disaster)
        await act()
        for broker_id in cluster.broker_ids:
            injector.start(broker_id)
        injector.note("repaired")
        await converge(cluster, options, reference, history)
        await asyncio.sleep(CALM_SECONDS)
        workload.stop.set()
        await working
        await converge(cluster, options, reference, history)
        compare_replicas(cluster, workload, history)
        logs = records_by_partition(cluster, workload)
        lost = lost_records(logs, history)
        for mirror, task in zip(mirrors, mirroring, strict=True):
            await mirror.finish(task, {each: max(log, default=-1) + 1 for each, log in logs.items()})
            for partition, log in sorted(logs.items()):
                mirror.compare(partition, log)
        await compare_history(cluster, workload, history)
        audited = audit_disks(cluster, reference.states(), history.acked)
    finally:
        for task in (working, *mirroring):
            task.cancel()
            if task.done() and not task.cancelled() and task.exception() is not None:
                outcome.findings.append(crash_finding(task.exception() or AssertionError(), None))
    outcome.elections, outcome.isr_changes, outcome.readers = (
        reference.elections,
        reference.isr_changes,
        len(workload.readers),
    )
    outcome.findings += [each for each in history.findings if each.invariant in NOT_A_LOSS]
    outcome.losses = [each for each in history.findings if each.invariant == "I21"]
    outcome.findings += detection_errors(lost, outcome.losses, audited)


class Disasters:
    """Each public method is one disaster."""

    def __init__(self, injector: FaultInjector) -> None:
        self.injector = injector

    def _cut_power(self, victims: list[int], blank: bool = False) -> None:
        injector = self.injector
        for victim in victims:
            injector.note("blank disk" if blank else "power loss", victim)
            injector.cluster.power_loss(victim)
            if blank:
                injector.storage(victim).wipe()
                injector.storage(victim).provision("/data")

    async def _leave(self, broker_id: int) -> None:
        """Kill it, and wait until it is out of every ISR."""
        injector = self.injector
        injector.kill(broker_id)
        await injector.wait(lambda: all(broker_id not in s.members for s in injector.reference.states()), 10.0)
        await asyncio.sleep(CALM_SECONDS / 2)

    def _all_are_led(self) -> bool:
        """By living brokers: ZooKeeper still names a leader that has just ended."""
        return all(self.injector.reference.leads(state.leader, state) for state in self.injector.reference.states())

    async def all_lose_power(self) -> None:
        """Every replica loses what it has not synced."""
        self._cut_power(list(self.injector.cluster.broker_ids))

    async def in_sync_disks_replaced(self) -> None:
        """One replica is behind. All in-sync ones get blank disks, and an operator accepts the loss."""
        injector, behind = self.injector, self.injector.broker()
        await self._leave(behind)
        self._cut_power(injector.others(behind), blank=True)
        for broker_id in injector.cluster.broker_ids:
            injector.start(broker_id)
        if not await injector.wait(lambda: all(state.leader == NONE for state in injector.reference.states()), 20.0):
            raise AssertionError("a partition is led, though no in-sync replica has its log")
        await accept_loss(injector, lambda: all(state.leader != NONE for state in injector.reference.states()))

    async def unclean_election(self) -> None:
        """The in-sync replicas are down for a while, and one that was behind may lead."""
        injector, behind = self.injector, self.injector.broker()
        await self._leave(behind)
        for other in injector.others(behind):
            injector.kill(other)
        await injector.wait(lambda: not any(map(injector.is_alive, injector.others(behind))), 1.0)
        injector.start(behind)
        await injector.wait(lambda: all(s.leader == behind for s in injector.reference.states()), 15.0)
        await asyncio.sleep(CALM_SECONDS)

    async def last_member_loses_power(self) -> None:
        """The ISR has shrunk to one replica, as min.insync.replicas allows, and that replica loses power. It leads
        again, unless its disk shows what it lost: then an operator accepts the loss (seed 3)."""
        injector, last = self.injector, self.injector.broker()
        for other in injector.others(last):
            await self._leave(other)
        self._cut_power([last])
        injector.start(last)
        if await injector.wait(self._all_are_led, CALM_SECONDS * 4):
            return
        for other in injector.others(last):
            injector.start(other)
        await accept_loss(injector, self._all_are_led)


def records_by_partition(
    cluster: SimulatedCluster, workload: Workload
) -> dict[TopicPartition, dict[int, bytes | None]]:
    """What the leader of each partition holds, by offset. Replicas are identical by now."""
    logs: dict[TopicPartition, dict[int, bytes | None]] = {}
    for partition in workload.partitions:
        leader = cluster.leader(partition.topic, partition.partition)
        replica = None if leader is None else cluster.replica(leader, partition.topic, partition.partition)
        if replica is None:
            continue
        content, position, held = log_bytes(replica, replica.state.log_start_offset), 0, {}
        while position < len(content):
            records = decode_records(content, position)
            held.update({record.offset: record.value for record in records})
            position += 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        logs[partition] = held
    return logs


def lost_records(logs: Mapping[TopicPartition, Mapping[int, bytes | None]], history: History) -> set[Place]:
    """Acknowledged records missing from their partition's log."""
    return {
        (partition, offset)
        for (partition, offset), value in history.acked.items()
        if partition in logs and logs[partition].get(offset) != value
    }


def detection_errors(
    lost: set[Place], by_history: list[CheckerFinding], by_audit: list[CheckerFinding]
) -> list[CheckerFinding]:
    """Losses that a detector did not name, and records that it calls lost but that exist."""
    named = {
        (each.partition, int(match.group(1)))
        for each in by_history
        if each.partition is not None and (match := OFFSET.search(each.text)) is not None
    }
    found = [
        CheckerFinding(
            invariant="beyond", text=f"offset {offset} is lost, and the history does not say so", partition=where
        )
        for where, offset in sorted(lost - named)
    ]
    found += [
        CheckerFinding(
            invariant="beyond", text=f"offset {offset} is there, and the history calls it lost", partition=where
        )
        for where, offset in sorted(named - lost, key=str)
    ]
    audited = {each.partition for each in by_audit if each.invariant.startswith("audit:acked")}
    found += [
        CheckerFinding(invariant="beyond", text="records are lost, and the audit does not say so", partition=where)
        for where in sorted({where for where, _ in lost} - audited)
    ]
    return found
