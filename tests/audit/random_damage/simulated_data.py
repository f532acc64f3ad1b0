"""Data of a random simulated cluster, written to a real directory as a launcher leaves it after a stop.

Owns: one short run of a whole cluster under faults within the promise, its end (a clean stop, a kill, a power cut of
one), and the files: the disks, `cluster-state.json` with the witnesses, the list of acknowledged records.
"""

import asyncio
import contextlib
import random
from pathlib import Path

import msgspec

from minibroker.audit.reading.discovery import BOOT_ID_FILE
from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.files import checkpoints
from minibroker.protocol.files.acked_list import AckedListWriter, record_checksum
from minibroker.protocol.files.cluster_state import (
    CLUSTER_STATE,
    VERSION,
    ClusterState,
    PartitionSnapshot,
    format_cluster_state,
)
from minibroker.protocol.files.meta_properties import format_meta_properties, parse_meta_properties
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.znodes import (
    BROKER_TOPICS,
    CLUSTER_ID,
    ClusterId,
    PartitionState,
    TopicAssignment,
    topic_path,
)
from minibroker.simulation.checks.disks.witnessed import newest_note
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.exported_disks import files_below
from minibroker.simulation.world.world import PROVISIONED_DIRECTORY
from tests.audit.planted_cluster import put

BROKERS = (1, 2, 3)
TOPIC = "lines"
LOG_DIRECTORY = f"{PROVISIONED_DIRECTORY}/log"
SECONDS_MAX = 300
IN_SYNC_SECONDS = 60
ENDS = ("stopped", "stopped", "one after the other", "killed", "killed", "one without power")

Files = dict[str, bytes]


class SimulatedData:
    """One seed. After `play` the data is below `root`."""

    def __init__(self, seed: int, root: Path) -> None:
        self.root = root
        self.chooser = random.Random(f"{seed}/random damage")
        self.partitions = [TopicPartition(TOPIC, n) for n in range(self.chooser.choice((1, 1, 2, 3)))]
        self.cluster = SimulatedCluster(seed, len(BROKERS), settings=self._settings())
        self.acked: dict[TopicPartition, dict[int, int]] = {partition: {} for partition in self.partitions}
        """Checksum of the record by offset."""
        self.without_power: set[int] = set()
        """Brokers that lost power and were not started since."""
        self.older: dict[int, Files] = {}
        """A backup of each broker's directory, made during the run."""
        self.state = ClusterState(partitions={})
        self.end = ""
        """How the cluster was stopped."""

    def _settings(self) -> dict[str, str]:
        choose = self.chooser.choice
        settings = {
            "log.segment.bytes": choose(("2048", "4096", "1048576")),
            "log.index.interval.bytes": "256",
            "replica.high.watermark.checkpoint.interval.ms": choose(("500", "5000")),
            "log.flush.offset.checkpoint.interval.ms": choose(("1000", "60000")),
            "replica.lag.time.max.ms": "1000",
            "witness.interval.ms": choose(("1000", "30000")),
        }
        if self.chooser.random() < 0.2:
            settings |= {"log.retention.bytes": "8192", "log.retention.check.interval.ms": "500"}
        return settings

    def play(self) -> None:
        self.cluster.world.run(self._play(), seconds_max=SECONDS_MAX)

    # ---------------------------------------------------------------------------------------------------- the run
    async def _play(self) -> None:
        cluster, runtime = self.cluster, self.cluster.client_runtime()
        cluster.start_all()
        await cluster.until_ready()
        async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=runtime) as admin:
            await admin.create_topic(TOPIC, partitions=len(self.partitions), replication_factor=3)
        enough = asyncio.Event()
        working = [asyncio.create_task(self._produce(idempotent, enough)) for idempotent in (True, False)]
        for number in range(self.chooser.randrange(1, 4)):
            await asyncio.sleep(self.chooser.uniform(0.5, 2))
            if number == 0:
                self.older = {broker: self.files(broker) for broker in BROKERS}
            await self._fault(self.chooser.choice(BROKERS))
        await asyncio.sleep(self.chooser.uniform(0.2, 1.5))
        await self._end(enough, working)
        self._write()

    async def _produce(self, idempotent: bool, enough: asyncio.Event) -> None:
        runtime = self.cluster.client_runtime()
        number = 0
        async with Producer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            enable_idempotence=idempotent,
            linger_ms=self.chooser.choice((0, 20)),
            delivery_timeout_ms=4_000,
            request_timeout_ms=1_000,
            runtime=runtime,
        ) as producer:
            sends: set[asyncio.Task[None]] = set()
            while not enough.is_set():
                number += 1
                value = b"%d-%d" % (idempotent, number) + b"." * self.chooser.randrange(100)
                task = asyncio.create_task(self._send(producer, self.chooser.choice(self.partitions), value))
                sends.add(task)
                task.add_done_callback(sends.discard)
                await asyncio.sleep(self.chooser.uniform(0, 0.06))
            await asyncio.gather(*sorted(sends, key=hash))

    async def _send(self, producer: Producer, partition: TopicPartition, value: bytes) -> None:
        with contextlib.suppress(MinibrokerError):
            sent = await producer.send_and_wait(partition.topic, value, key=b"k", partition=partition.partition)
            if sent.offset is not None:
                self.acked[partition][sent.offset] = record_checksum(sent.timestamp_ms, b"k", value, ())

    async def _fault(self, broker: int) -> None:
        """A fault of one broker, while all were in sync; then it comes back."""
        await self._until_in_sync()
        match self.chooser.randrange(4):
            case 0:
                self.cluster.kill(broker)
            case 1:
                self.cluster.power_loss(broker)
            case 2:
                await self._stop(broker)
            case _:
                return
        await asyncio.sleep(self.chooser.uniform(0.1, 3))
        self.cluster.start(broker)

    async def _until_in_sync(self) -> None:
        cluster = self.cluster

        def are_in_sync() -> bool:
            return len(cluster.alive()) == len(BROKERS) and all(
                len(cluster.in_sync_replicas(*partition)) == len(BROKERS) for partition in self.partitions
            )

        await cluster.until(are_in_sync, IN_SYNC_SECONDS, "a full ISR")

    async def _stop(self, *brokers: int) -> None:
        for broker in brokers:
            self.cluster.stop(broker)
        await self.cluster.until(lambda: not set(brokers) & set(self.cluster.alive()), 60, f"a stop of {brokers}")

    async def _end(self, enough: asyncio.Event, working: list[asyncio.Task[None]]) -> None:
        """In sync or with one broker down, under load or not, in one of the ways in which clusters end."""
        self.end = self.chooser.choice(
            ("stopped", "stopped", "one after the other", "killed", "killed", "one without power")
        )
        absent = self.chooser.choice(BROKERS) if self.chooser.random() < 0.25 else None
        await self._until_in_sync()
        if absent is not None:
            self.cluster.kill(absent)
            await asyncio.sleep(self.chooser.uniform(0, 3))
            self.end += ", one away"
        under_load = self.chooser.random() < 0.4
        if not under_load:
            enough.set()
            await asyncio.gather(*working)
        before = self._isr()
        directories = self._directories()
        rest = [broker for broker in BROKERS if broker != absent]
        self.chooser.shuffle(rest)
        if self.end.startswith("stopped"):
            await self._stop(*rest)
        elif self.end.startswith("one after"):
            for broker in rest:
                await self._stop(broker)
        else:
            for broker in rest:
                if broker == rest[0] and absent is None and self.end.startswith("one without"):
                    self.cluster.power_loss(broker)
                    self.without_power.add(broker)
                else:
                    self.cluster.kill(broker)
        if under_load:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
        self.state = self._state(before, directories)

    # ---------------------------------------------------------------------------------------------- recorded state
    def _partition_states(self) -> dict[TopicPartition, PartitionState]:
        found = {partition: self.cluster.partition_state(partition) for partition in self.partitions}
        return {partition: state for partition, state in found.items() if state is not None}

    def _isr(self) -> dict[TopicPartition, tuple[int, ...]]:
        return {partition: tuple(state.isr) for partition, state in self._partition_states().items()}

    def _directories(self) -> dict[str, str | None]:
        return {
            str(broker): parse_meta_properties(self.files(broker)[checkpoints.META_PROPERTIES]).directory_id
            for broker in BROKERS
        }

    def _state(self, before: dict[TopicPartition, tuple[int, ...]], directories: dict[str, str | None]) -> ClusterState:
        """As `minibroker.local_cluster.cluster_snapshot` joins it."""
        nodes = self.cluster.world.zookeeper.tree.nodes
        assignment = TopicAssignment.decode(nodes[topic_path(TOPIC)].data)
        assert topic_path(TOPIC).startswith(BROKER_TOPICS)
        partitions = {
            str(partition): PartitionSnapshot(
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=tuple(state.isr),
                isr_before=before[partition],
                replicas=assignment.replicas()[partition.partition],
                topic_id=assignment.topic_id,
            )
            for partition, state in self._partition_states().items()
        }
        notes = {str(each): newest_note(self.cluster, each, assignment.topic_id) for each in self.partitions}
        return ClusterState(
            version=VERSION,
            taken_at=1.0,
            cluster_id=ClusterId.decode(nodes[CLUSTER_ID].data).id,
            brokers=directories,
            partitions=partitions,
            witnesses={name: note for name, note in notes.items() if note is not None},
        )

    # ------------------------------------------------------------------------------------------------------- files
    def files(self, broker: int) -> Files:
        """The present files of its disk."""
        storage = self.cluster.world.machine(f"broker-{broker}").storage
        return dict(files_below(storage, LOG_DIRECTORY))

    def _write(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        for broker in BROKERS:
            self.write_broker(broker, self.files(broker))
        put(self.root / CLUSTER_STATE, format_cluster_state(self.state))
        parts: list[bytes] = []
        topic_id = next(iter(self.state.partitions.values())).topic_id
        writer = AckedListWriter(parts.append, {TOPIC: topic_id or ""})
        for partition, records in self.acked.items():
            writer.add(*partition, sorted(records.items()))
        writer.finish()
        put(self.acked_file, b"".join(parts))

    @property
    def acked_file(self) -> Path:
        return self.root / "acked.list"

    def log_directory(self, broker: int) -> Path:
        return self.root / f"broker-{broker}"

    def write_broker(self, broker: int, files: Files) -> None:
        """As the disk of a running machine, or of one rebooted since (`without_power`)."""
        boot_id = Path(BOOT_ID_FILE).read_text(encoding="ascii").strip()
        for name, content in files.items():
            if name == checkpoints.META_PROPERTIES:
                meta = parse_meta_properties(content)
                boot = "former" if broker in self.without_power else boot_id
                content = format_meta_properties(msgspec.structs.replace(meta, boot_id=boot))
            file = self.log_directory(broker) / name
            file.parent.mkdir(parents=True, exist_ok=True)
            put(file, content)
