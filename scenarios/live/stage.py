"""A stage of real processes: ZooKeeper, brokers, files, sockets, with proxies in between that can hold traffic.

Owns: how the verbs are done on this machine, and the contents of the table: each broker's description of its replica
(by a request that no hold affects), and its files. At the end every process is killed by its process id. All listening
sockets are on the loopback interface.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from minibroker.broker.replication.state import TruncationRule
from minibroker.client.default_runtime import runtime_or_default
from minibroker.harness.processes import ProcessHarness
from minibroker.local_cluster.cluster_file import ClusterFailed
from minibroker.local_cluster.local_cluster import CLIENT_ID
from minibroker.observation.broker_queries import BrokerQueries, NoAnswer
from minibroker.protocol.wire.messages import DescribeReplicaStateResponse, ReplicaStateDescription
from minibroker.protocol.znodes import PartitionState, partition_state_path
from minibroker.runtime.ports import Coordination, CoordinationError, CoordinationUnavailable
from minibroker.scenarios.live.event_log import BrokerEventLog
from minibroker.scenarios.live.files import read_files
from minibroker.scenarios.staging.broker_events import letter
from minibroker.scenarios.staging.client_stage import ClientStage, in_words, settings_of
from minibroker.scenarios.staging.clients import PARTITION
from minibroker.scenarios.staging.rows import Expected, ReplicaRow
from minibroker.scenarios.staging.scenario import TOPIC, Setup
from minibroker.scenarios.staging.stage import EXPECTED_WITHIN_SECONDS, StepListener

ANSWER_SECONDS = 1.0
ASKED_TIMES = 2
"""A second request tells a slow broker from one that is still starting."""
CHECKPOINT_MS = 500
CHECKPOINTED_SECONDS = 1.2
"""Two rounds of writing high watermarks."""
OBSERVER_SESSION_MS = 10_000
SESSION_MS = 3_000
ELECTED_WITHIN_SECONDS = 20.0
RECONNECTED_WITHIN_SECONDS = 10.0
"""The observer's session timeout: it reconnects every second or so, less often on a busy machine."""
PATIENCE_SECONDS = 8.0
"""Where a simulated run waits for half a minute to make its point, twice the session timeout or lag limit is enough."""


class LiveStage(ClientStage):
    """Real processes. `opened` starts everything, and ends it."""

    settle_seconds = 0.15
    poll_seconds = 0.05

    def __init__(
        self,
        setup: Setup,
        rule: TruncationRule,
        listener: StepListener,
        directory: Path,
        report: Callable[[str], None],
        pause: Callable[[], None] | None = None,
    ) -> None:
        settings = {
            "replica.high.watermark.checkpoint.interval.ms": str(CHECKPOINT_MS),
            "replica.lag.time.max.ms": "30000",
            **settings_of(setup, rule),
        }
        self.processes = ProcessHarness(len(setup.brokers), settings, directory=directory, log_format="json")
        super().__init__(setup, rule, listener, self.processes)
        self.cluster = self.processes.local
        self._report = report
        self._pause_after_step = pause
        self._queries = BrokerQueries(CLIENT_ID)
        self._observer: Coordination | None = None
        self._event_logs = {
            broker: BrokerEventLog(self.cluster.process_log(self.number(broker))) for broker in setup.brokers
        }
        self._last_states: dict[str, ReplicaStateDescription] = {}
        """The last description of each broker, shown while it is paused."""
        self._began = 0.0

    # --------------------------------------------------------------------------------------------- before and after
    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """As on every stage: brokers run, the first replica leads an empty topic, producers are connected."""
        with self.processes.ownership:
            try:
                self._report("starting ZooKeeper and brokers")
                await self.processes.up(first=self.number(self.setup.controller or self.setup.brokers[-1]))
                await self._open_observer()
                await self._create_topic()
                await self._until_led()
                await self._open_producers()
                self._began = asyncio.get_running_loop().time()
                yield
            finally:
                self._report("stopping everything")
                await self.processes.ownership.finish(self._end())

    async def _end(self) -> None:
        await self._clients.stop_waiting()
        if self._observer is not None:
            await self._observer.close()
        await self._queries.close()
        for broker_id in tuple(self.cluster.broker_ids):
            with contextlib.suppress(ClusterFailed):
                await self.cluster.kill(broker_id)
        with contextlib.suppress(ClusterFailed):
            await self.cluster.zookeeper.kill()
        await self.processes.close_surroundings()

    async def _open_observer(self) -> None:
        self._observer = runtime_or_default(None).open_coordination(
            self.cluster.record.zookeeper.connect, OBSERVER_SESSION_MS
        )
        await self._observer.start()

    async def _until_led(self) -> None:
        async with asyncio.timeout(ELECTED_WITHIN_SECONDS):
            while not all(row.leader_epoch == 0 for row in await self.look()):  # noqa: ASYNC110
                await asyncio.sleep(self.poll_seconds)

    def _servers(self) -> list[str]:
        """Addresses of brokers that are not paused, through their proxies."""
        awake = [b for b in self.cluster.broker_ids if self.cluster.process_state(b) == "running"]
        return [self.processes.client_server(broker_id) for broker_id in awake]

    async def zookeeper_state(self) -> PartitionState:
        """Leader, epoch and ISR as ZooKeeper has them. Raises CoordinationError."""
        assert self._observer is not None
        return PartitionState.decode((await self._observer.get(partition_state_path(PARTITION)))[0])

    async def state_at_the_end(self) -> PartitionState:
        """As `zookeeper_state`, but waits for an observer that is still reconnecting to ZooKeeper after an outage.

        Raises CoordinationError if it does not reconnect.
        """
        deadline = asyncio.get_running_loop().time() + RECONNECTED_WITHIN_SECONDS
        while True:
            try:
                return await self.zookeeper_state()
            except CoordinationUnavailable:
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(self.poll_seconds)

    # ------------------------------------------------------------------------------------------------------ looking
    async def step(self, sentence: str, within_seconds: float = EXPECTED_WITHIN_SECONDS, **rows: Expected) -> None:
        self._report(f"step {len(self.steps) + 1}, after {self.now():.1f} s")
        await super().step(sentence, within_seconds, **rows)
        if self._pause_after_step is not None:
            await asyncio.to_thread(self._pause_after_step)  # the holds go on forwarding meanwhile

    def now(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def patience(self, seconds: float) -> float:
        return min(seconds, PATIENCE_SECONDS)

    async def checkpointed(self) -> None:
        await asyncio.sleep(CHECKPOINTED_SECONDS)

    async def reference(self) -> str:
        if not self.cluster.zookeeper.is_running():
            return ""
        try:
            state = await self.zookeeper_state()
        except CoordinationError:
            return ""
        return in_words(state)

    async def look(self) -> list[ReplicaRow]:
        for broker, event_log in self._event_logs.items():
            for line in event_log.new_phrases():
                self.note(f"{broker}: {line}")
        brokers = sorted(self.setup.replicas)
        return list(await asyncio.gather(*(self._row(broker) for broker in brokers)))

    async def _row(self, broker: str) -> ReplicaRow:
        files = read_files(self.cluster.log_directory(self.number(broker)), PARTITION)
        state = self.cluster.process_state(self.number(broker))
        answer = await self._ask(broker) if state == "running" else None
        said = None if answer is None else _replica(answer)
        if said is not None:
            self._last_states[broker] = said
        elif state == "paused":
            said = self._last_states.get(broker)
        if said is None:
            role = "starting" if state == "running" else "dead"
            return ReplicaRow(broker=broker, role=role, **files.as_row())
        role = "no leader" if said.role == "none" else said.role
        if state == "paused":
            role += ", paused"
        if answer is not None and answer.fenced and said.role == "leader":
            role += ", fenced"
        return ReplicaRow(
            broker=broker,
            role=role,
            leader_epoch=said.leader_epoch,
            log_start_offset=said.log_start_offset,
            log_end_offset=said.log_end_offset,
            high_watermark=said.high_watermark,
            remote_ends={
                letter(each.replica_id): None if each.log_end_offset < 0 else each.log_end_offset
                for each in sorted(said.remotes, key=lambda remote: remote.replica_id)
            },
            isr="".join(map(letter, sorted(said.in_sync_replicas))),
            pending_isr=""
            if said.isr_state == "committed"
            else "".join(map(letter, sorted(said.maximal_in_sync_replicas))),
            epoch_file=tuple((entry.epoch, entry.start_offset) for entry in said.epoch_history),
            records=files.records,
        )

    async def _ask(self, broker: str) -> DescribeReplicaStateResponse | None:
        server = self.cluster.server(self.number(broker))
        for _ in range(ASKED_TIMES):
            (answer,) = await self._queries.replica_states([server], [TOPIC], ANSWER_SECONDS)
            if not isinstance(answer, NoAnswer):
                return answer
        return None

    async def pause(self, broker: str) -> None:
        await self._row(broker)  # its last description
        await super().pause(broker)


def _replica(answer: DescribeReplicaStateResponse) -> ReplicaStateDescription | None:
    return next((replica for topic in answer.topics for replica in topic.partitions), None)
