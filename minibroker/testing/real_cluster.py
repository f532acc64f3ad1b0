"""The real kind of a tested cluster: ZooKeeper and brokers as processes on this machine, with proxies in between.

Owns: a data directory that exists as long as the test, and the proxies. Leaves to others: starting and breaking
processes (local_cluster). All listening sockets are on the loopback interface. Every process is stopped by its own
number at the end.
"""

import asyncio
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from minibroker.client.default_runtime import runtime_or_default
from minibroker.local_cluster import network_proxies
from minibroker.local_cluster.local_cluster import CLIENT_ID, ClusterFailed, LocalCluster
from minibroker.local_cluster.network_proxies import LOOPBACK, NetworkProxies, broker_name
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.messages import DescribeReplicaStateResponse, ReplicaStateDescription
from minibroker.runtime.ports import Runtime
from minibroker.testing.tested_cluster import CLIENTS, SETTINGS, Party, TestedCluster, parties

POLL_SECONDS = 0.1
ASK_SECONDS = 1.0
DOWN_SECONDS = 10.0
"""For a clean stop at the end of a test; then processes are killed."""


class RealTestedCluster(TestedCluster):
    """See the module's docstring."""

    def __init__(self, brokers: int, settings: dict[str, str]) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="minibroker-testing-"))
        self.local = LocalCluster(self.directory / "cluster", brokers, settings=SETTINGS | settings)
        self.broker_ids = tuple(self.local.broker_ids)
        self.proxies = NetworkProxies()
        self._ports: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        try:
            await self.proxies.surround(self.local, self._ports)
            await self.local.up()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.explain(error)
        await self._end()

    async def _end(self) -> None:
        try:
            await self.heal()
            await self.local.down(timeout_s=DOWN_SECONDS)
        finally:
            await self.proxies.close()
            shutil.rmtree(self.directory, ignore_errors=True)

    # ---------------------------------------------------------------------------------------------------- questions
    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{LOOPBACK}:{self._ports[broker_id]}" for broker_id in self.broker_ids)

    @property
    def runtime(self) -> Runtime:
        return runtime_or_default(None)

    @property
    def _poll_seconds(self) -> float:
        return POLL_SECONDS

    async def _answers(self) -> list[DescribeReplicaStateResponse]:
        """Answers of all brokers that run and are not fenced: one that is cut off would answer with old state."""
        running = [self.local.server(b) for b in self.broker_ids if self.local.process_state(b) == "running"]
        async with BrokerQueries(CLIENT_ID) as queries:
            answers = await queries.replica_states(running, timeout_s=ASK_SECONDS)
        return [each for each in answers if not isinstance(each, NoAnswer) and not each.fenced]

    async def _replicas(self) -> dict[TopicPartition, dict[int, ReplicaStateDescription]]:
        """The replicas as their brokers describe them."""
        found: dict[TopicPartition, dict[int, ReplicaStateDescription]] = {}
        for answer in await self._answers():
            for topic in answer.topics:
                for replica in topic.partitions:
                    found.setdefault(TopicPartition(topic.topic, replica.partition), {})[answer.broker_id] = replica
        return dict(sorted(found.items()))

    async def controller(self) -> int | None:
        claims = [(each.controller_epoch, each.controller_id) for each in await self._answers()]
        found = max(claims, default=(-1, -1))[1]
        return found if found >= 0 and self.is_running(found) else None

    async def leader(self, topic: str, partition: int = 0) -> int | None:
        replicas = (await self._replicas()).get(TopicPartition(topic, partition), {})
        return _leader_among(replicas)

    async def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        replicas = (await self._replicas()).get(TopicPartition(topic, partition), {})
        leader = _leader_among(replicas)
        return () if leader is None else tuple(sorted(replicas[leader].in_sync_replicas))

    async def under_replicated(self, topic: str | None = None) -> list[str]:
        partitions = {name: each for name, each in (await self._replicas()).items() if topic in (None, name.topic)}
        problems = [f"no broker knows {topic}"] if topic is not None and not partitions else []
        for name, replicas in partitions.items():
            leader = _leader_among(replicas)
            if leader is None:
                problems.append(f"{name} has no leader")
            elif set(replicas[leader].in_sync_replicas) < set(replicas[leader].assignment):
                isr, assigned = sorted(replicas[leader].in_sync_replicas), sorted(replicas[leader].assignment)
                problems.append(f"{name}, led by {leader}: ISR {isr} of {assigned}")
        return problems

    def is_running(self, broker_id: int) -> bool:
        return self.local.process_state(broker_id) in ("running", "paused")

    def describe(self) -> list[str]:
        states = ", ".join(f"{b} {self.local.process_state(b)}" for b in self.broker_ids)
        lines = [f"minibroker: real processes, brokers {states}"]
        for broker_id in self.broker_ids:
            log = self.local.process_log(broker_id)
            last = log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
            lines += [f"minibroker: broker {broker_id} logged: {line}" for line in last]
        return lines

    # ------------------------------------------------------------------------------------------------------- faults
    async def kill(self, broker_id: int) -> None:
        await self.local.kill(broker_id)
        self.proxies.forget(broker_name(broker_id))

    async def power_loss(self, broker_id: int) -> None:
        await self.local.lose_power(broker_id)
        self.proxies.forget(broker_name(broker_id))

    async def stop(self, broker_id: int) -> None:
        await self.local.stop(broker_id)

    async def start(self, broker_id: int) -> None:
        await self.local.start(broker_id)

    async def pause(self, broker_id: int) -> None:
        await self.local.pause(broker_id)

    async def resume(self, broker_id: int) -> None:
        await self.local.resume(broker_id)

    async def partition(self, some: Party | Sequence[Party], others: Party | Sequence[Party]) -> None:
        for one in map(_proxy_name, parties(some)):
            for other in map(_proxy_name, parties(others)):
                self.proxies.hold(one, other)
                self.proxies.hold(other, one)
        await asyncio.sleep(0)

    async def heal(self) -> None:
        self.proxies.release_all()
        await asyncio.sleep(0)

    async def zookeeper_down(self) -> None:
        await self.local.kill_zookeeper()

    async def zookeeper_up(self) -> None:
        await self.local.start_zookeeper()

    async def _files_for_audit(self, scratch: Path) -> Path:
        try:
            await self.local.save_state()
        except (NoAnswer, ClusterFailed):
            return self.local.data_directory  # no broker answers: audit without a snapshot
        return self.local.data_directory


def _leader_among(replicas: Mapping[int, ReplicaStateDescription]) -> int | None:
    """The replica that considers itself leader in the highest epoch; None if only a follower knows that epoch."""
    leading = {broker_id: replica for broker_id, replica in replicas.items() if replica.role == "leader"}
    highest = max((replica.leader_epoch for replica in replicas.values()), default=-1)
    return next((b for b, replica in leading.items() if replica.leader_epoch == highest), None)


def _proxy_name(party: Party) -> str:
    if isinstance(party, int):
        return broker_name(party)
    return network_proxies.CLIENTS if party == CLIENTS else network_proxies.ZOOKEEPER
