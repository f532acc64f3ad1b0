"""What processes and containers share: every question is answered by the brokers themselves, over the wire.

Owns: the questions, and that the cluster goes down when its block ends. Leaves to others: starting and breaking
brokers, and the addresses at which running ones answer.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Self

from minibroker.client.default_runtime import runtime_or_default
from minibroker.harness.cluster import ZOOKEEPER, ClusterHarness, Misuse, NamedTimeout
from minibroker.local_cluster.local_cluster import CLIENT_ID
from minibroker.local_cluster.teardown import Ownership
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.observation.event_stream import BrokerEvent
from minibroker.protocol.events.cluster_events import parse_json_line
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import DescribeReplicaStateResponse, ReplicaStateDescription
from minibroker.runtime.ports import Runtime

POLL_SECONDS = 0.1
LOG_LINES_SHOWN = 3
"""Of each broker, in the description of a failure."""
ASK_SECONDS = 1.0
SESSION_EXPIRED_SECONDS = 30.0
"""The longest session timeout in use is 18 s (Kafka's default), and ZooKeeper may end it half a tick late."""


class WireHarness(ClusterHarness):
    """Answers come from the brokers that run; see `DescribeReplicaStateResponse`."""

    ownership: Ownership
    """Of the back end: it takes the cluster down, whatever signals come."""

    async def __aenter__(self) -> Self:
        self.ownership.__enter__()
        self.note_tasks()
        try:
            await self.up()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.explain(error)
        try:
            await self.end_leftovers()
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self.ownership.finish(self._down())
        finally:
            self.ownership.__exit__()

    @abstractmethod
    async def up(self) -> None:
        """Start everything, and wait until it is healthy."""

    @abstractmethod
    async def _down(self) -> None:
        """Stop everything, and remove what `up` made."""

    @abstractmethod
    async def _running_servers(self) -> dict[int, str]:
        """The address of every broker that runs and is not paused, which no block affects if possible."""

    @property
    def runtime(self) -> Runtime:
        return runtime_or_default(None)

    @property
    def _poll_seconds(self) -> float:
        return POLL_SECONDS

    async def _answers(self) -> list[DescribeReplicaStateResponse]:
        """Answers of all brokers that run and are not fenced: one that is cut off would answer with old state."""
        running = list((await self._running_servers()).values())
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

    async def registered(self, asked_of: int) -> set[int]:
        """The brokers that are registered, as this one knows them; empty if it does not answer."""
        server = (await self._running_servers()).get(asked_of)
        if server is None:
            return set()
        async with BrokerQueries(CLIENT_ID) as queries:
            try:
                return {broker.node_id for broker in (await queries.metadata(server, [], ASK_SECONDS)).brokers}
            except NoAnswer:
                return set()

    async def controller(self) -> int | None:
        answers = await self._answers()
        found = max(((each.controller_epoch, each.controller_id) for each in answers), default=(-1, -1))[1]
        return found if found in {each.broker_id for each in answers} else None

    async def leader(self, topic: str, partition: int = 0) -> int | None:
        return _leader_among((await self._replicas()).get(TopicPartition(topic, partition), {}))

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

    async def _partitions_of(self, topic: str) -> Collection[int] | None:
        """As brokers describe all topics: a question about one topic may create it."""
        servers = ",".join((await self._running_servers()).values())
        async with BrokerQueries(CLIENT_ID) as queries:
            try:
                found = (await queries.metadata(servers, None, ASK_SECONDS)).topics if servers else None
            except NoAnswer:
                return None
        return (
            None
            if found is None
            else [p.partition_index for each in found if each.name == topic for p in each.partitions]
        )

    async def reported_events(self) -> list[BrokerEvent]:
        events = []
        for broker_id in tuple(self.broker_ids):
            for line in (await self.read_log(broker_id)).splitlines():
                fields = parse_json_line(line)
                if fields is not None and isinstance(fields.get("at_ms"), int) and fields["event"] != "log":
                    events.append(BrokerEvent(fields["at_ms"], broker_id, fields))
        return sorted(events, key=lambda event: event.at_ms)

    @abstractmethod
    async def read_log(self, broker_id: int) -> str:
        """The output of the broker, over all its starts."""

    async def _expire_session(self, broker_id: int) -> None:
        """Block its traffic with ZooKeeper until the others no longer count it as registered."""
        others = [other for other in await self._running_servers() if other != broker_id]
        if not others:
            raise Misuse("another broker must run, to see the session expire: start or resume one")
        await self.partition(broker_id, ZOOKEEPER)
        try:
            async with NamedTimeout(SESSION_EXPIRED_SECONDS, lambda: f"the session of broker {broker_id} lives on"):
                while not (seen := await self.registered(others[0])) or broker_id in seen:  # noqa: ASYNC110
                    await asyncio.sleep(self._poll_seconds)
        finally:
            await self.unblock(broker_id, ZOOKEEPER)
            await self.unblock(ZOOKEEPER, broker_id)


def _leader_among(replicas: Mapping[int, ReplicaStateDescription]) -> int | None:
    """The replica that considers itself leader in the highest epoch; None if only a follower knows that epoch."""
    leading = {broker_id: replica for broker_id, replica in replicas.items() if replica.role == "leader"}
    highest = max((replica.leader_epoch for replica in replicas.values()), default=-1)
    return next((b for b, replica in leading.items() if replica.leader_epoch == highest), None)
