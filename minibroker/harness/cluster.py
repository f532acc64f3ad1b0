"""What a test, a scenario or a bench may do to a cluster, and ask it: the same verbs on every back end.

Owns: the interface, what the back ends share, and whether a verb fits: public verbs check, then call `_kill` and so on
of the back end. Leaves to others: how a verb is done. A broker is a number, beginning with 1; `CLIENTS` are all clients
together, including the test's own. A verb that does not fit raises Misuse, with the cure, and changes nothing; one that
a back end cannot do raises UnsupportedByBackend.
"""

import asyncio
import tempfile
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minibroker.audit.reports.report import AuditReport
from minibroker.audit.run import LOCAL, run_audit
from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.deliveries import RecordMetadata
from minibroker.client.producer.producer import Producer
from minibroker.harness.hardware import Hardware
from minibroker.harness.hardware import Party as Party
from minibroker.harness.hardware import UnsupportedByBackend as UnsupportedByBackend
from minibroker.harness.leftovers import end_tasks
from minibroker.observation.event_stream import BrokerEvent
from minibroker.protocol.files.acked_list import AckedListWriter, record_checksum
from minibroker.protocol.record_batch import Header
from minibroker.runtime.ports import Runtime

CLIENTS: Literal["clients"] = "clients"
ZOOKEEPER: Literal["zookeeper"] = "zookeeper"
Link = tuple[Party, Party]
"""Source and target, two parties of which one is a broker."""
Condition = Literal["running", "paused", "down"]
"""Of a broker."""

WAIT_SECONDS = 30.0
CHECKPOINT_MS = 500
CHECKPOINTED_SECONDS = 1.2
"""The audit compares up to the high watermark on disk, which is written twice per second here."""

SETTINGS = {
    "auto.create.topics.enable": "false",
    "auto.leader.rebalance.enable": "false",  # nothing moves unless the test moves it
    "replica.high.watermark.checkpoint.interval.ms": str(CHECKPOINT_MS),
    "replica.lag.time.max.ms": "10000",
    "zookeeper.session.timeout.ms": "3000",
}
"""Of the brokers, unless the test gives others. Sessions last 3 s, not Kafka's 18 s, so that failures show soon."""


class Acknowledged(NamedTuple):
    """A record that was acknowledged to a producer."""

    metadata: RecordMetadata
    """The result of `send_and_wait`."""
    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()


class Misuse(AssertionError):
    """The verb does not fit the cluster: there is no such party, or it is in another condition. Names the cure."""


class ClusterHarness(Hardware):
    """A running cluster. Times are seconds of the caller's event loop: virtual ones in a simulation."""

    broker_ids: tuple[int, ...]
    seed: int | None = None
    """Repeats a simulated run; None in real time."""

    # ------------------------------------------------------------------------------------------------------ clients
    @property
    @abstractmethod
    def bootstrap_servers(self) -> str:
        """For `Producer`, `Consumer` and `AdminClient`, including those that your service creates."""

    @property
    @abstractmethod
    def runtime(self) -> Runtime:
        """The clients' runtime. While the cluster is open, clients use it by default."""

    def producer(self, **settings: Any) -> Producer:
        """A producer of this cluster: `async with c.producer(acks="all") as producer`."""
        return Producer(bootstrap_servers=self.bootstrap_servers, **settings)

    def consumer(self, *topics: str, **settings: Any) -> Consumer:
        """A consumer of this cluster. By default it begins at the earliest record."""
        return Consumer(
            *topics, **{"bootstrap_servers": self.bootstrap_servers, "auto_offset_reset": "earliest"} | settings
        )

    def admin(self, **settings: Any) -> AdminClient:
        """An administration client of this cluster."""
        return AdminClient(bootstrap_servers=self.bootstrap_servers, **settings)

    async def create_topic(
        self,
        topic: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create it (replication factor: 3, or the number of brokers if fewer), and wait until all replicas are in
        sync."""
        factor = replication_factor or min(3, len(self.broker_ids))
        async with self.admin() as admin:
            await admin.create_topic(topic, partitions=partitions, replication_factor=factor, configs=configs)
        await self.wait_in_sync(topic)

    @asynccontextmanager
    async def running(self, service: Coroutine[Any, Any, Any]) -> AsyncIterator["asyncio.Task[Any]"]:
        """Run a service during the block: `async with c.running(order_service(..)):`. Leaving the block cancels it. If
        it dies, the block is cancelled, and the error that it died of is raised."""
        block = asyncio.current_task()
        assert block is not None
        ended_block = False

        def end_block(task: "asyncio.Task[Any]") -> None:
            nonlocal ended_block
            if not task.cancelled() and task.exception() is not None:
                ended_block = block.cancel()

        task = asyncio.create_task(service)
        task.add_done_callback(end_block)
        try:
            yield task
        except asyncio.CancelledError:
            if not ended_block or block.uncancel():
                raise
        finally:
            task.remove_done_callback(end_block)
            task.cancel()
            await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    # ---------------------------------------------------------------------------------------------------- questions
    @abstractmethod
    async def leader(self, topic: str, partition: int = 0) -> int | None:
        """The leader; None while there is none."""

    @abstractmethod
    async def controller(self) -> int | None:
        """The broker that holds elections and approves changes of the ISR; None while there is none."""

    @abstractmethod
    async def in_sync_replicas(self, topic: str, partition: int = 0) -> tuple[int, ...]:
        """The ISR as the cluster knows it, sorted; empty while there is no leader."""

    @abstractmethod
    async def under_replicated(self, topic: str | None = None) -> list[str]:
        """Partitions without a leader or with replicas that are not in sync, one sentence each."""

    @abstractmethod
    async def _partitions_of(self, topic: str) -> Collection[int] | None:
        """The numbers of its partitions; none if there is no such topic, None if no broker answers."""

    async def wait_for_leader(
        self, topic: str, partition: int = 0, *, other_than: int | None = None, timeout_s: float = WAIT_SECONDS
    ) -> int:
        """Wait for a leader and return it. Raises AssertionError at the timeout: there is no such topic, though a
        service under test might have created it meanwhile, or no such partition, or no such leader."""
        why = "not asked yet"
        async with NamedTimeout(timeout_s, lambda: why):
            while (found := await self.leader(topic, partition)) is None or found == other_than:
                why = await self._why_no_leader(topic, partition, found)
                await asyncio.sleep(self._poll_seconds)
        return found

    async def _why_no_leader(self, topic: str, partition: int, found: int | None) -> str:
        partitions = await self._partitions_of(topic)
        if partitions is None:
            return f"no broker answers, so no leader of {topic}-{partition} is known"
        if not partitions:
            return f'there is no topic {topic!r}: `await c.create_topic("{topic}")` creates it'
        if partition not in partitions:
            return f"there is no {topic}-{partition}: the topic has partitions {sorted(partitions)}"
        return f"{topic}-{partition} has no leader" if found is None else f"{topic}-{partition} is still led by {found}"

    async def wait_in_sync(self, topic: str | None = None, timeout_s: float = WAIT_SECONDS) -> None:
        """Wait until every replica (of this topic) is in sync. Raises AssertionError naming those that are not."""
        missing: list[str] = ["not asked yet"]
        async with NamedTimeout(timeout_s, lambda: "; ".join(missing)):
            while missing := await self.under_replicated(topic):  # noqa: ASYNC110
                await asyncio.sleep(self._poll_seconds)

    # ------------------------------------------------------------------------------------------------------ brokers
    async def kill(self, broker_id: int) -> None:
        """SIGKILL: what it wrote stays, and it hands nothing over."""
        await self._require_up(broker_id)
        await self._kill(broker_id)

    async def power_loss(self, broker_id: int) -> None:
        """Turn its machine off: what it wrote but did not sync is lost."""
        await self._require_up(broker_id)
        await self._power_loss(broker_id)

    async def stop(self, broker_id: int) -> None:
        """A clean stop: it hands its leaderships over. A paused broker is resumed first."""
        await self.resume(broker_id)
        await self._stop(broker_id)

    async def start(self, broker_id: int) -> None:
        """Start a broker that is down, over its old files."""
        match await self._condition(self._known(broker_id)):
            case "running":
                raise Misuse(f"broker {broker_id} is already running: `await c.restart({broker_id})` restarts it")
            case "paused":
                raise Misuse(f"broker {broker_id} is paused: `await c.resume({broker_id})` lets it run on")
        await self._start(broker_id)

    async def pause(self, broker_id: int) -> None:
        """SIGSTOP: it hangs, and its connections stay open. A paused broker stays so."""
        if await self._require_up(broker_id) == "running":
            await self._pause(broker_id)

    async def resume(self, broker_id: int) -> None:
        """SIGCONT. A broker that is not paused runs on."""
        if await self._require_up(broker_id) == "paused":
            await self._resume(broker_id)

    def is_running(self, broker_id: int) -> bool:
        """Has it started and not ended? A paused broker counts as running."""
        return self._is_running(self._known(broker_id))

    async def restart(self, broker_id: int) -> None:
        """Start it; if it runs or is paused, stop it cleanly first."""
        if await self._condition(self._known(broker_id)) != "down":
            await self.stop(broker_id)
        await self.start(broker_id)

    async def kill_leader(self, topic: str, partition: int = 0) -> int:
        """Kill the broker that leads the partition, and return its number. Waits for a leader if there is none."""
        leader = await self.wait_for_leader(topic, partition)
        await self.kill(leader)
        return leader

    # ------------------------------------------------------------------------------------------ network, ZooKeeper
    async def block(self, source: Party, target: Party) -> None:
        """Block what `source` sends to `target`: it waits, as if TCP kept sending it again, and nothing is lost.

        Simulated brokers and containers lose both directions between a broker and ZooKeeper, or the clients, at once.
        """
        await self._block([self._link(source, target)])

    async def unblock(self, source: Party, target: Party) -> None:
        """Undo `block`: what waited arrives. An open link stays so."""
        await self._unblock(*self._link(source, target))

    async def partition(self, some: Party | Sequence[Party], others: Party | Sequence[Party]) -> None:
        """Block both directions between `some` and `others` until `heal`."""
        pairs = [(one, other) for one in parties(some) for other in parties(others)]
        await self._block([self._link(*ends) for pair in pairs for ends in (pair, pair[::-1])])

    @abstractmethod
    async def heal(self) -> None:
        """Unblock the whole network."""

    async def isolate(self, broker_id: int, *, zookeeper: bool = False) -> None:
        """Cut a broker off from all others and the clients; with `zookeeper` also from ZooKeeper."""
        others: list[Party] = [other for other in self.broker_ids if other != broker_id]
        await self.partition(broker_id, [*others, CLIENTS, *([ZOOKEEPER] if zookeeper else [])])

    async def expire_session(self, broker_id: int) -> None:
        """Let the broker's ZooKeeper session expire while the broker runs on; it learns of that as usual. A broker that
        was killed loses the session that it left behind."""
        self._known(broker_id)
        if not await self._zookeeper_runs():
            raise Misuse("ZooKeeper is stopped, so no session expires: `await c.start_zookeeper()` starts it")
        await self._expire_session(broker_id)

    async def stop_zookeeper(self) -> None:
        """Stop ZooKeeper; its data stays on its disk."""
        if not await self._zookeeper_runs():
            raise Misuse("ZooKeeper is stopped already: `await c.start_zookeeper()` starts it")
        await self._stop_zookeeper()

    async def start_zookeeper(self) -> None:
        """Start ZooKeeper again."""
        if await self._zookeeper_runs():
            raise Misuse("ZooKeeper is already running: `await c.stop_zookeeper()` stops it")
        await self._start_zookeeper()

    # ------------------------------------------------------------------------------- what fits, for the verbs above
    def _known(self, broker_id: int) -> int:
        if broker_id not in self.broker_ids:
            raise Misuse(f"there is no broker {broker_id!r}: `c.broker_ids` is {list(self.broker_ids)}")
        return broker_id

    async def _require_up(self, broker_id: int) -> Condition:
        """Running or paused."""
        condition = await self._condition(self._known(broker_id))
        if condition == "down":
            raise Misuse(f"broker {broker_id} does not run: `await c.start({broker_id})` starts it")
        return condition

    async def _require_down(self, broker_id: int) -> None:
        if await self._condition(self._known(broker_id)) != "down":
            raise Misuse(f"broker {broker_id} runs: `await c.kill({broker_id})` ends it")

    def _link(self, source: Party, target: Party) -> Link:
        for party in (source, target):
            if isinstance(party, str) and party not in (CLIENTS, ZOOKEEPER):
                raise Misuse(f"there is no party {party!r}: name a broker of `c.broker_ids`, 'clients' or 'zookeeper'")
            if not isinstance(party, str):
                self._known(party)
        if source == target or (isinstance(source, str) and isinstance(target, str)):
            raise Misuse(f"no link of a broker leads from {source!r} to {target!r}: name a broker and another party")
        return source, target

    # ------------------------------------------------------------------------------------- how each back end does it
    @abstractmethod
    async def _condition(self, broker_id: int) -> Condition: ...

    @abstractmethod
    def _is_running(self, broker_id: int) -> bool: ...

    @abstractmethod
    async def _kill(self, broker_id: int) -> None: ...

    @abstractmethod
    async def _power_loss(self, broker_id: int) -> None: ...

    @abstractmethod
    async def _stop(self, broker_id: int) -> None: ...

    @abstractmethod
    async def _start(self, broker_id: int) -> None: ...

    @abstractmethod
    async def _pause(self, broker_id: int) -> None: ...

    @abstractmethod
    async def _resume(self, broker_id: int) -> None: ...

    @abstractmethod
    async def _block(self, links: Sequence[Link]) -> None: ...

    @abstractmethod
    async def _unblock(self, source: Party, target: Party) -> None: ...

    @abstractmethod
    async def _expire_session(self, broker_id: int) -> None: ...

    @abstractmethod
    async def _zookeeper_runs(self) -> bool: ...

    @abstractmethod
    async def _stop_zookeeper(self) -> None: ...

    @abstractmethod
    async def _start_zookeeper(self) -> None: ...

    # ------------------------------------------------------------------------------------------------------- events
    @abstractmethod
    async def reported_events(self) -> list[BrokerEvent]:
        """What the brokers have reported since the cluster opened, oldest first (docs/EVENTS.md). Processes and
        containers must log as JSON (`log_format`), and a simulation must have been told to keep them."""

    def take_bugs(self) -> list[str]:
        """The bugs of ours that brokers have met, a sentence each; they do not fail the block any more. Only simulated
        ones tell them: a process or container that meets one ends."""
        return []

    # -------------------------------------------------------------------------------------------------------- audit
    async def audit(
        self,
        acknowledged: Iterable[tuple[RecordMetadata, bytes | None] | Acknowledged] = (),
        *,
        engine: str = LOCAL,
        output: Path | None = None,
        files: Path | None = None,
    ) -> AuditReport:
        """Compare the files of all brokers byte for byte, as `minibroker audit` does; `.success` is the verdict.

        `acknowledged`: the records acknowledged with acks=all, as pairs of the result of `send_and_wait` and the value,
        or as `Acknowledged` if a record has a key or headers. Each must be unchanged at its offset. A record without a
        known offset (RecordMetadata.offset is None) is not looked for. `engine`: local or spark; `output`: a directory
        for the audit's own report; `files`: one that keeps what is audited, if a back end has to copy it.
        """
        await asyncio.sleep(CHECKPOINTED_SECONDS)
        with tempfile.TemporaryDirectory(prefix="minibroker-audit-") as name:
            scratch = files or Path(name)
            scratch.mkdir(parents=True, exist_ok=True)
            promised = Path(name) / "acknowledged.tsv"
            is_any = _write_promised(promised, [Acknowledged(*each) for each in acknowledged])
            directory = await self._files_for_audit(scratch)
            return run_audit(
                [str(directory)],
                engine=engine,
                acked=str(promised) if is_any else None,
                output=None if output is None else str(output),
            )

    async def note_state(self) -> None:
        """Keep leaders and in-sync replicas for an audit, before all brokers are stopped. Simulated ones need no note:
        their ZooKeeper is asked."""

    @abstractmethod
    async def _files_for_audit(self, scratch: Path) -> Path:
        """A directory with every broker's files and the last known leaders."""

    @abstractmethod
    def describe(self) -> list[str]:
        """The state of the cluster, for the report of a failure."""

    def explain(self, error: BaseException | None) -> None:
        """Add the state of the cluster to the exception that ends the test."""
        if error is not None:
            for line in self.describe():
                error.add_note(line)

    def note_tasks(self) -> None:
        """Called when the cluster opens: these tasks are not the test's."""
        self._former_tasks = asyncio.all_tasks()

    async def end_leftovers(self) -> None:
        """Called before the cluster ends: cancel the test's tasks that still run, and name them in one warning. The
        service's tasks end first, because they close their clients."""
        await end_tasks(self.leftovers())

    def leftovers(self) -> "list[asyncio.Task[Any]]":
        """The test's tasks that still run, by name."""
        found = [task for task in asyncio.all_tasks() - self._former_tasks if self._is_the_tests(task)]
        return sorted(found, key=lambda task: task.get_name())

    def _is_the_tests(self, task: "asyncio.Task[Any]") -> bool:
        return task is not asyncio.current_task()

    # -------------------------------------------------------------------------------------------------------- waits
    @property
    @abstractmethod
    def _poll_seconds(self) -> float: ...


def _write_promised(file: Path, acknowledged: Iterable[Acknowledged]) -> bool:
    """Write the list for the audit; returns whether it has any record."""
    known = [(metadata.offset, each) for each in acknowledged if (metadata := each.metadata).offset is not None]
    with file.open("wb") as content:
        promised = AckedListWriter(content.write, {})
        for offset, (metadata, value, key, headers) in known:
            checksum = record_checksum(metadata.timestamp_ms, key, value, headers)
            promised.add(metadata.topic, metadata.partition, [(offset, checksum)])
        promised.finish()
    return bool(known)


class NamedTimeout:
    """`asyncio.timeout` that raises AssertionError, which names what did not happen."""

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
    """One party or several, as a tuple."""
    return (given,) if isinstance(given, int | str) else tuple(given)
