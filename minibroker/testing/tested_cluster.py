"""What a test may do to a cluster, and ask of it: the same calls for simulated brokers and for real processes.

Owns: the vocabulary, and what can be said in it once for both kinds. A broker is a number from 1 on; `CLIENTS` are all
clients together, the test's own included.
"""

import asyncio
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minibroker.audit.report import AuditReport
from minibroker.audit.run import LOCAL, run_audit
from minibroker.client.admin import AdminClient
from minibroker.client.consumer import Consumer
from minibroker.client.deliveries import RecordMetadata
from minibroker.client.producer import Producer
from minibroker.protocol.acked_list import AckedListWriter, record_checksum
from minibroker.protocol.record_batch import Header
from minibroker.runtime.ports import Runtime

CLIENTS: Literal["clients"] = "clients"
ZOOKEEPER: Literal["zookeeper"] = "zookeeper"
Party = int | Literal["clients", "zookeeper"]
"""An end of the network: a broker, the clients, or ZooKeeper."""

WAIT_SECONDS = 30.0
CHECKPOINT_MS = 500
CHECKPOINTED_SECONDS = 1.2
"""The audit judges up to the high watermark on disk, which is written twice a second here."""

SETTINGS = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",  # nothing moves unless the test moves it
    "replica.high.watermark.checkpoint.interval.ms": str(CHECKPOINT_MS),
    "replica.lag.time.max.ms": "10000",
    "zookeeper.session.timeout.ms": "3000",
}
"""Of the brokers, unless the test gives others: a dead broker is noticed after 3 s, not Kafka's 18."""


class Acknowledged(NamedTuple):
    """A record that a producer was told is safe."""

    metadata: RecordMetadata
    """What `send_and_wait` returned."""
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()


class TestedCluster(ABC):
    """Made by `cluster(..)`. Times are seconds of the loop the test runs in: virtual ones in a simulation."""

    __test__ = False  # pytest: it is no test, whatever its name begins with

    broker_ids: tuple[int, ...]

    # ------------------------------------------------------------------------------------------------------ clients
    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """For `Producer`, `Consumer` and `AdminClient`, also those that your service makes by itself."""

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """The clients' doors. Clients take them by themselves as long as the cluster is open."""

    def producer(self, **settings: Any) -> Producer:
        """A producer of this cluster: `async with c.producer(acks="all") as producer`."""
        return Producer(self.bootstrap_servers, **settings)

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A consumer of this cluster that begins at the earliest record, unless told otherwise."""
        return Consumer(
            *topics, **{"bootstrap_servers": self.bootstrap_servers, "auto_offset_reset": "earliest"} | settings
        )

    def admin(self, **settings: Any) -> AdminClient:
        """An administration client of this cluster."""
        return AdminClient(self.bootstrap_servers, **settings)

    async def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create it (replication factor: 3, or the number of brokers if fewer); all replicas are in sync at the end."""
        factor = replication_factor or min(3, len(self.broker_ids))
        async with self.admin() as admin:
            await admin.create_topic(topic, partitions=partitions, replication_factor=factor, configs=configs)
        await self.wait_in_sync(topic)

    # ---------------------------------------------------------------------------------------------------- questions
    @abstractmethod
    async def leader(self, topic: str, partition: int = 0) -> int | None:
        """The broker that leads; None while there is none."""

    @abstractmethod
    async def controller(self) -> int | None:
        """The broker that holds elections and approves changes of the ISR; None while there is none."""

    @abstractmethod
    async def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ISR as the cluster knows it, sorted; empty while there is no leader."""

    @abstractmethod
    async def under_replicated(self, topic: str | None = None) -> list[str]:
        """Partitions without a leader or with replicas that are not in sync, a sentence each."""

    async def wait_for_leader(
        self, topic: str, partition: int = 0, *, other_than: int | None = None, timeout_s: float = WAIT_SECONDS
    ) -> int:
        """The leader as soon as there is one. Raises AssertionError when the time is over."""
        async with self._deadline(timeout_s, lambda: f"{topic}-{partition} has no new leader"):
            while (found := await self.leader(topic, partition)) is None or found == other_than:  # noqa: ASYNC110
                await asyncio.sleep(self._poll_seconds)
        return found

    async def wait_in_sync(self, topic: str | None = None, timeout_s: float = WAIT_SECONDS) -> None:
        """Until every replica (of this topic) is in sync again. Raises AssertionError saying which are not."""
        missing: list[str] = ["not asked yet"]
        async with self._deadline(timeout_s, lambda: "; ".join(missing)):
            while missing := await self.under_replicated(topic):  # noqa: ASYNC110
                await asyncio.sleep(self._poll_seconds)

    # ------------------------------------------------------------------------------------------------------ brokers
    @abstractmethod
    async def kill(self, broker_id: int) -> None:
        """SIGKILL: what it wrote stays, nothing is handed over."""

    @abstractmethod
    async def power_loss(self, broker_id: int) -> None:
        """Its machine is off: what it wrote and did not sync is lost."""

    @abstractmethod
    async def stop(self, broker_id: int) -> None:
        """A clean stop: it hands its leaderships over."""

    @abstractmethod
    async def start(self, broker_id: int) -> None:
        """Start a broker that is down, over its old files."""

    @abstractmethod
    async def pause(self, broker_id: int) -> None:
        """SIGSTOP: it hangs, its connections stay open."""

    @abstractmethod
    async def resume(self, broker_id: int) -> None:
        """SIGCONT."""

    @abstractmethod
    def is_running(self, broker_id: int) -> bool:
        """Started and not ended; a paused one runs."""

    async def restart(self, broker_id: int) -> None:
        """Start it; if it runs, stop it cleanly before."""
        if self.is_running(broker_id):
            await self.stop(broker_id)
        await self.start(broker_id)

    async def kill_leader(self, topic: str, partition: int = 0) -> int:
        """Kill the broker that leads the partition, and return its number. Waits for a leader if there is none."""
        leader = await self.wait_for_leader(topic, partition)
        await self.kill(leader)
        return leader

    # ------------------------------------------------------------------------------------------ network, ZooKeeper
    @abstractmethod
    async def partition(self, some: Party | Sequence[Party], others: Party | Sequence[Party]) -> None:
        """Nothing gets through between these and those, either way, until `heal`."""

    @abstractmethod
    async def heal(self) -> None:
        """The network is whole again."""

    async def isolate(self, broker_id: int, *, zookeeper: bool = False) -> None:
        """Cut a broker off from all others and the clients; with `zookeeper` from ZooKeeper, too."""
        others: list[Party] = [other for other in self.broker_ids if other != broker_id]
        await self.partition(broker_id, [*others, CLIENTS, *([ZOOKEEPER] if zookeeper else [])])

    @abstractmethod
    async def zookeeper_down(self) -> None:
        """ZooKeeper ends; what it knows stays on its disk."""

    @abstractmethod
    async def zookeeper_up(self) -> None:
        """And is there again."""

    # -------------------------------------------------------------------------------------------------------- audit
    async def audit(
        self, acknowledged: Iterable[tuple[RecordMetadata, bytes | None] | Acknowledged] = ()
    ) -> AuditReport:
        """Compare the files of all brokers, byte for byte, as `minibroker audit` does; `.success` is the verdict.

        `acknowledged`: what producers were told is safe (with acks=all), as pairs of what `send_and_wait` returned and
        the value, or as `Acknowledged` where a record has a key or headers; each must be in its place as it was sent.
        Where a broker did not say at which offset a record is (RecordMetadata.offset is None), it is not looked for.
        """
        await asyncio.sleep(CHECKPOINTED_SECONDS)
        with tempfile.TemporaryDirectory(prefix="minibroker-audit-") as name:
            promised = Path(name) / "acknowledged.tsv"
            is_any = _write_promised(promised, [Acknowledged(*each) for each in acknowledged])
            directory = await self._files_for_audit(Path(name))
            return run_audit([str(directory)], engine=LOCAL, acked=str(promised) if is_any else None)

    @abstractmethod
    async def _files_for_audit(self, scratch: Path) -> Path:
        """A directory with every broker's files and the last known leaders."""

    @abstractmethod
    def describe(self) -> list[str]:
        """How things stand, for the report of a failure."""

    def explain(self, error: BaseException | None) -> None:
        """Add how things stand to what ends the test."""
        if error is not None:
            for line in self.describe():
                error.add_note(line)

    # -------------------------------------------------------------------------------------------------------- waits
    @property
    @abstractmethod
    def _poll_seconds(self) -> float: ...

    @staticmethod
    def _deadline(seconds: float, what: Callable[[], str]) -> "_Deadline":
        return _Deadline(seconds, what)


def _write_promised(file: Path, acknowledged: Iterable[Acknowledged]) -> bool:
    """The list for the audit; whether there is anything in it."""
    known = [(metadata.offset, each) for each in acknowledged if (metadata := each.metadata).offset is not None]
    with file.open("wb") as content:
        promised = AckedListWriter(content.write, {})
        for offset, (metadata, value, key, headers) in known:
            checksum = record_checksum(metadata.timestamp_ms, key, value, headers)
            promised.add(metadata.topic, metadata.partition, [(offset, checksum)])
        promised.finish()
    return bool(known)


class _Deadline:
    """`asyncio.timeout` whose error says what did not come."""

    def __init__(self, seconds: float, what: Callable[[], str]) -> None:
        self._seconds = seconds
        self._what = what
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise AssertionError(f"after {self._seconds:g} s: {self._what()}") from None


def parties(given: Party | Sequence[Party]) -> tuple[Party, ...]:
    """One party or several, as several."""
    return (given,) if isinstance(given, int | str) else tuple(given)
