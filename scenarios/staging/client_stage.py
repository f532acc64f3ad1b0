"""What the stages of simulated and of real brokers share, because clients and ZooKeeper's data are the same there.

Owns: broker ids, settings and topic of a variant, the verbs that involve only the client, and those that the harness
does. Leaves to others: what the brokers run on (`minibroker/harness/`), and the contents of the table.
"""

import asyncio
from abc import abstractmethod

from minibroker.broker.replication.state import TruncationRule
from minibroker.client.admin import AdminClient
from minibroker.client.descriptions import NewTopic
from minibroker.client.errors import MinibrokerError
from minibroker.harness.cluster import ClusterHarness
from minibroker.protocol.znodes import PartitionState
from minibroker.runtime.ports import Runtime
from minibroker.scenarios.staging.broker_events import letter
from minibroker.scenarios.staging.clients import StageClients
from minibroker.scenarios.staging.scenario import TOPIC, Setup
from minibroker.scenarios.staging.stage import EXPECTED_WITHIN_SECONDS, Acks, SentBatch, Stage, StepListener


class ClientStage(Stage):
    def __init__(self, setup: Setup, rule: TruncationRule, listener: StepListener, harness: ClusterHarness) -> None:
        super().__init__(setup, rule, listener)
        self.harness = harness
        self._clients = StageClients(setup, self.note, self._servers, self._runtime)

    def _runtime(self) -> Runtime:
        return self.harness.runtime

    @abstractmethod
    def _servers(self) -> list[str]:
        """The bootstrap servers of a new client, without paused brokers."""

    def number(self, broker: str) -> int:
        return self.setup.brokers.index(broker) + 1

    @property
    def acknowledged(self) -> list[tuple[int, int]]:
        """(offset, checksum) of records acknowledged with acks=all."""
        return self._clients.acknowledged

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # ------------------------------------------------------------------------------------------------------ opening
    async def _create_topic(self) -> None:
        assignment = {0: [self.number(broker) for broker in self.setup.replicas]}
        topic = NewTopic(name=TOPIC, assignment=assignment, configs=self.setup.configs)
        async with AdminClient(bootstrap_servers=self._servers(), runtime=self._runtime()) as admin:
            for result in (await admin.create_topics([topic])).values():
                if isinstance(result, MinibrokerError):
                    raise result

    async def _open_producers(self) -> None:
        for acks in ("all", 1):
            await self._clients.open_producer(acks)

    # -------------------------------------------------------------------------------------------------------- verbs
    async def produce(self, *values: str, acks: Acks = "all", quietly: bool = False) -> SentBatch:
        return await self._clients.produce(values, acks, quietly)

    async def new_producer(self, acks: Acks) -> None:
        await self._clients.open_producer(acks)

    async def settled(self, sending: SentBatch, within_seconds: float = EXPECTED_WITHIN_SECONDS) -> SentBatch:
        return await self._clients.settled(sending, within_seconds)

    async def read(self) -> list[str]:
        return await self._clients.read()

    # ------------------------------------------------------------------------------------------------------- faults
    async def hold(self, source: str, target: str) -> None:
        await self.harness.block(self.number(source), self.number(target))

    async def release(self, source: str, target: str) -> None:
        await self.harness.unblock(self.number(source), self.number(target))

    async def kill(self, *brokers: str) -> None:
        await asyncio.gather(*(self.harness.kill(self.number(broker)) for broker in brokers))

    async def cut_power(self, *brokers: str) -> None:
        await asyncio.gather(*(self.harness.power_loss(self.number(broker)) for broker in brokers))

    async def start(self, *brokers: str) -> None:
        await asyncio.gather(*(self.harness.start(self.number(broker)) for broker in brokers))

    async def pause(self, broker: str) -> None:
        await self.harness.pause(self.number(broker))

    async def resume(self, broker: str) -> None:
        await self.harness.resume(self.number(broker))

    async def expire_session(self, broker: str) -> None:
        await self.harness.expire_session(self.number(broker))

    async def stop_zookeeper(self) -> None:
        await self.harness.stop_zookeeper()

    async def start_zookeeper(self) -> None:
        await self.harness.start_zookeeper()


def settings_of(setup: Setup, rule: TruncationRule) -> dict[str, str]:
    """Settings of every broker of a variant; the setup's own override the others."""
    return {
        "auto.leader.rebalance.enable": "false",
        "replica.truncation.rule": rule.value,
        "min.insync.replicas": str(setup.min_insync_replicas),
        **setup.settings,
    }


def in_words(state: PartitionState) -> str:
    """ZooKeeper's state as a slide shows it."""
    leader = "none" if state.leader < 0 else letter(state.leader)
    return f"leader {leader}, epoch {state.leader_epoch}, ISR {' '.join(map(letter, sorted(state.isr)))}"
