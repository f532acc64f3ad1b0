"""What the stages of simulated and of real brokers share, because clients and ZooKeeper's data are the same there.

Owns: broker ids, settings and topic of an act, and the verbs that involve only the client. Leaves to others: what the
brokers run on.
"""

import asyncio
from abc import abstractmethod
from collections.abc import Callable

from minibroker.broker.replication.state import TruncationRule
from minibroker.client.admin import AdminClient
from minibroker.client.descriptions import NewTopic
from minibroker.client.errors import MinibrokerError
from minibroker.protocol.znodes import PartitionState
from minibroker.runtime.ports import Runtime
from minibroker.scenarios.staging.broker_events import letter
from minibroker.scenarios.staging.clients import StageClients
from minibroker.scenarios.staging.scenario import TOPIC, Cast
from minibroker.scenarios.staging.stage import EXPECTED_WITHIN_SECONDS, Acks, SentBatch, Stage, StepListener


class ClientStage(Stage):
    """`runtime`: the ports of its clients (None: the real ones)."""

    def __init__(
        self, cast: Cast, rule: TruncationRule, listener: StepListener, runtime: Callable[[], Runtime | None]
    ) -> None:
        super().__init__(cast, rule, listener)
        self._runtime = runtime
        self._clients = StageClients(cast, self.note, self._servers, runtime)

    @abstractmethod
    def _servers(self) -> list[str]:
        """The bootstrap servers of a new client, without paused brokers."""

    def number(self, broker: str) -> int:
        return self.cast.brokers.index(broker) + 1

    @property
    def acknowledged(self) -> list[tuple[int, int]]:
        """(offset, checksum) of records acknowledged with acks=all."""
        return self._clients.acknowledged

    async def wait(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # ------------------------------------------------------------------------------------------------------ opening
    async def _create_topic(self) -> None:
        assignment = {0: [self.number(broker) for broker in self.cast.replicas]}
        topic = NewTopic(name=TOPIC, assignment=assignment, configs=self.cast.configs)
        async with AdminClient(self._servers(), runtime=self._runtime()) as admin:
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


def settings_of(cast: Cast, rule: TruncationRule) -> dict[str, str]:
    """Settings of every broker of an act; the cast's own override the others."""
    return {
        "auto.leader.rebalance.enable": "false",
        "replica.truncation.rule": rule.value,
        "min.insync.replicas": str(cast.min_insync_replicas),
        **cast.settings,
    }


def in_words(state: PartitionState) -> str:
    """ZooKeeper's state as a slide shows it."""
    leader = "none" if state.leader < 0 else letter(state.leader)
    return f"leader {leader}, epoch {state.leader_epoch}, ISR {' '.join(map(letter, sorted(state.isr)))}"
