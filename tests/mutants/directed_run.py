"""A directed run: a script injects faults into a simulated cluster in one exact order, under every checker of the swarm.

Owns: what a script may use (`DirectedRun`), and the end of every script: faults stop, the cluster must converge, and
replicas, acknowledgements and reads are compared, as after a random run. If the script itself fails (a wait in it times
out), that is reported as `script` and does not count as catching a mutant.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Literal, TypeAlias

import msgspec

from minibroker.broker.replicas.partition import Partition
from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.checks.checker import Checker, checking
from minibroker.simulation.checks.control.counters import CounterChecker
from minibroker.simulation.checks.control.failover import FailoverChecker
from minibroker.simulation.checks.control.fencing import FencingChecker
from minibroker.simulation.checks.control.topic_settings import TopicSettingsChecker
from minibroker.simulation.checks.control.wanted_settings import WantedSettings
from minibroker.simulation.checks.disks.audited_disks import audit_disks
from minibroker.simulation.checks.disks.disk_rules import DiskRuleChecker
from minibroker.simulation.checks.disks.sound_logs import SoundLogChecker
from minibroker.simulation.checks.finding import CheckerFinding, crash_finding
from minibroker.simulation.checks.history.acknowledging import AcknowledgingChecker
from minibroker.simulation.checks.reference_state import ReferenceState
from minibroker.simulation.checks.replication.leaders_starts import LeaderStartChecker
from minibroker.simulation.checks.replication.log_starts import LogStartChecker
from minibroker.simulation.checks.replication.recreated_topics import RecreatedTopicChecker
from minibroker.simulation.checks.replication.replicas import ReplicaChecker
from minibroker.simulation.checks.replication.retention import RetentionChecker
from minibroker.simulation.checks.replication.waiting import WaitingChecker
from minibroker.simulation.checks.stability import Stability
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.final_checks import (
    compare_history,
    compare_replicas,
    converge,
    stay_idle,
    take_records,
)
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.options import RunOptions, draw_options
from minibroker.simulation.swarm.workload import Workload
from minibroker.simulation.world.world import ProcessCrashed
from tests.mutants.mutant import SCRIPT_FAILED

TOPIC = "a"
FIRST = TopicPartition(TOPIC, 0)
SAMPLE_SECONDS = 0.01
SECONDS_MAX = 400

Acks: TypeAlias = Literal["all", 1, 0]

SETTINGS = {
    "auto.leader.rebalance.enable": "false",
    "replica.lag.time.max.ms": "1500",
    "controlled.shutdown.retry.backoff.ms": "500",
}


class ClusterSetup(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster that a script runs on."""

    brokers: int = 3
    topics: dict[str, tuple[int, int, int]] = msgspec.field(default_factory=lambda: {TOPIC: (1, 3, 1)})
    """name: (partitions, replication factor, min.insync.replicas)"""
    settings: dict[str, str] = msgspec.field(default_factory=dict)
    deletes_nothing: bool = False
    """Retention is off, so no log start may rise."""
    judges_time: bool = False
    """Failovers and changed settings are in time while nothing but dead processes disturbs, and retention keeps all
    that it must."""
    sound_disks: bool = False
    """No disk is faulty: no log may be called damaged."""
    seed: int = 1


class DirectedRun:
    """A running cluster, and what a script does to it."""

    def __init__(
        self, cluster: SimulatedCluster, options: RunOptions, history: History, reference: ReferenceState
    ) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.options = options
        self.history = history
        self.reference = reference
        self.workload = Workload(cluster, options, history, cluster.world.random("workload"))
        self.names_every_send = False
        """The history has the sends with acks=all, too; else only what was acknowledged."""
        self._producers: dict[Acks, Producer] = {}
        self._open = contextlib.AsyncExitStack()

    # ------------------------------------------------------------------------------------------------------ records
    async def produce(self, value: str, acks: Acks = "all", partition: TopicPartition = FIRST) -> int | None:
        """Send one record; returns its offset once acknowledged, None after a failure. The history records which; of
        acks=1 also the order, for which values have to be unique."""
        producer = self._producers.get(acks)
        if producer is None:
            producer = self._producers[acks] = Producer(
                bootstrap_servers=self.cluster.bootstrap_servers,
                acks=acks,
                delivery_timeout_ms=20_000,
                request_timeout_ms=3_000,
                runtime=self.cluster.client_runtime(),
            )
            await self._open.enter_async_context(producer)
        data = f"{acks}-{value}".encode()
        names_it = acks == 1 or self.names_every_send
        operation = self.history.sends(f"burst acks={acks}", partition, data) if names_it else None
        try:
            found = await producer.send_and_wait(partition.topic, data, partition=partition.partition)
        except MinibrokerError as error:
            self.history.count_error(f"producer acks={acks}", error)
            if operation is not None:
                self.history.failed(operation, error)
            if not error.maybe_written:
                self.history.surely_failed.add(data)
            return None
        if operation is not None:
            self.history.wrote(operation, found.offset, found.leader_epoch, is_promised=acks == "all")
        if acks != "all":
            return found.offset
        if found.offset is None:
            self.history.find("I21", f"{value!r} is acknowledged without an offset: nothing proves it", partition)
            return None
        if self.history.acked.setdefault((partition, found.offset), data) != data:
            self.history.find("I21", "two records are acknowledged at one offset", partition, value)
        return found.offset

    def produce_soon(
        self, value: str, acks: Acks = "all", partition: TopicPartition = FIRST
    ) -> asyncio.Task[int | None]:
        return asyncio.create_task(self.produce(value, acks, partition))

    async def close(self) -> None:
        await self._open.aclose()

    # ------------------------------------------------------------------------------------------------------ looking
    def replica(self, broker_id: int, partition: TopicPartition = FIRST) -> Partition:
        found = self.cluster.replica(broker_id, partition.topic, partition.partition)
        assert found is not None, f"broker {broker_id} has no replica of {partition}"
        return found

    @property
    def leader(self) -> int:
        found = self.cluster.leader(TOPIC)
        assert found is not None, "no leader"
        return found

    @property
    def controller(self) -> int:
        found = self.cluster.controller()
        assert found is not None, "no controller"
        return found

    def followers(self) -> list[int]:
        return [b for b in self.cluster.broker_ids if b != self.leader]

    async def until(self, condition: Callable[[], bool], what: str, seconds: float = 30) -> None:
        await self.cluster.until(condition, seconds, what)

    async def until_isr(self, *members: int) -> None:
        await self.until(lambda: self.cluster.in_sync_replicas(TOPIC) == tuple(sorted(members)), f"ISR {members}")

    async def until_leader(self, broker_id: int) -> None:
        await self.until(lambda: self.cluster.leader(TOPIC) == broker_id, f"leader {broker_id}")

    # ------------------------------------------------------------------------------------------------------- the end
    async def repair(self) -> None:
        """Faults stop: everything works, all brokers run."""
        world = self.world
        world.network.heal_all()
        world.network.slow_links.clear()
        world.zookeeper.start()
        world.zookeeper.heal()
        world.zookeeper.options.extra_delay = 0.0
        for broker_id in self.cluster.broker_ids:
            machine = world.machine(f"broker-{broker_id}")
            machine.storage.heal()
            machine.storage.cost.append = 0.0
            if machine.process is not None and machine.process.alive and machine.process.paused:
                world.resume(machine.name)
            if broker_id not in self.cluster.alive():
                self.cluster.start(broker_id)


Script: TypeAlias = Callable[[DirectedRun], Awaitable[None]]
SETUPS: dict[Script, ClusterSetup] = {}


def with_setup(stage: ClusterSetup) -> Callable[[Script], Script]:
    """Declares the cluster that a script runs on."""

    def declare(script: Script) -> Script:
        SETUPS[script] = stage
        return script

    return declare


def run_schedule(script: Script) -> tuple[list[CheckerFinding], float]:
    """(findings, virtual seconds)."""
    stage = SETUPS[script]
    cluster = SimulatedCluster(stage.seed, brokers=stage.brokers, settings={**SETTINGS, **stage.settings})
    drawn = draw_options(cluster.world.random("options"))
    options = msgspec.structs.replace(drawn, topics=stage.topics, settings=stage.settings)
    findings: list[CheckerFinding] = []
    try:
        cluster.world.run(_direct(script, cluster, options, findings), seconds_max=SECONDS_MAX)
    except Exception as error:
        if not isinstance(error, ProcessCrashed):
            findings.append(crash_finding(error, None))
    findings += [crash_finding(error, None, name) for name, error in cluster.world.crashes]
    return findings, cluster.world.loop.elapsed


async def _direct(
    script: Script, cluster: SimulatedCluster, options: RunOptions, findings: list[CheckerFinding]
) -> None:
    reference = ReferenceState(cluster, options.topics)
    reference.allows_unclean_election = options.settings.get("unclean.leader.election.enable") == "true"
    with contextlib.ExitStack() as stack:
        history = History(lambda: cluster.world.loop.elapsed)
        for checker in _checkers(cluster, reference, options, history, SETUPS[script]):
            stack.enter_context(checking(cluster, reference, checker))
        await _run_script(script, cluster, options, findings, reference, history)


def _checkers(
    cluster: SimulatedCluster,
    reference: ReferenceState,
    options: RunOptions,
    history: History,
    setup: ClusterSetup,
) -> Iterator[Checker]:
    """Those of the swarm (`simulation/swarm/checkers.py`) that a single scripted fault can concern."""
    stability, all_settings = Stability(cluster, reference), {**SETTINGS, **options.settings}
    settings = WantedSettings(cluster, stability, all_settings)
    yield FencingChecker(cluster, reference)
    yield stability
    yield settings
    if setup.judges_time:
        yield FailoverChecker(cluster, reference, stability, all_settings)
        yield TopicSettingsChecker(cluster, reference, settings)
        yield RetentionChecker(cluster, reference, settings)
        yield AcknowledgingChecker(cluster, reference, stability, history.events, settings, all_settings)
    yield ReplicaChecker(cluster, reference, options.flushes)
    yield LeaderStartChecker(cluster, reference)
    yield DiskRuleChecker(cluster, reference)
    yield WaitingChecker(reference)
    yield RecreatedTopicChecker(reference)
    yield CounterChecker(cluster, reference)
    if setup.deletes_nothing:
        yield LogStartChecker(cluster, reference, settings)
    if setup.sound_disks:
        yield SoundLogChecker(cluster, reference)


async def _run_script(
    script: Script,
    cluster: SimulatedCluster,
    options: RunOptions,
    findings: list[CheckerFinding],
    reference: ReferenceState,
    history: History,
) -> None:
    cluster.world.network.count_frames(match=lambda _: False)  # from now on responses are matched with requests
    cluster.start_all()
    await cluster.until_ready()
    directed = DirectedRun(cluster, options, history, reference)
    directed.names_every_send = SETUPS[script].judges_time
    await _create_topics(directed)
    sampling = asyncio.create_task(_sample(reference))
    try:
        try:
            await script(directed)
        except Exception as error:
            text = f"the script failed: {type(error).__name__}: {error}"
            findings.append(CheckerFinding(invariant=SCRIPT_FAILED, text=text, at_seconds=cluster.world.loop.elapsed))
        await directed.repair()
        await converge(cluster, options, reference, history)
        await take_records(cluster, directed.workload, history)
        await stay_idle(cluster, history)
        compare_replicas(cluster, directed.workload, history)
        await compare_history(cluster, directed.workload, history)
        findings += audit_disks(cluster, reference.states(), history.acked)
        await directed.close()
    finally:
        sampling.cancel()
        findings += reference.findings + history.findings
        if sampling.done() and not sampling.cancelled() and (failure := sampling.exception()) is not None:
            findings.append(crash_finding(failure, None))


async def _create_topics(directed: DirectedRun) -> None:
    options, cluster = directed.options, directed.cluster
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
        for name, (partitions, replication_factor, min_isr) in sorted(options.topics.items()):
            configs = {"min.insync.replicas": str(min_isr)}
            await admin.create_topic(
                name, partitions=partitions, replication_factor=replication_factor, configs=configs
            )

    def is_whole() -> bool:
        return all(
            len(cluster.in_sync_replicas(name, number)) == factor
            for name, (partitions, factor, _) in options.topics.items()
            for number in range(partitions)
        )

    await cluster.until(is_whole, what="topics with full ISRs")


async def _sample(reference: ReferenceState) -> None:
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        reference.sample()
