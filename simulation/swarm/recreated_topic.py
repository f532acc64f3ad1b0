"""A topic that is deleted and made again, with the records of its latest incarnation under promise.

Owns: its incarnations: the first lasts long enough for retention to raise the log start, each later one is short. The
records acknowledged in the latest one must be there, now and at the end. Leaves to others: to end brokers
(`whole_cluster`).
"""

import asyncio
import contextlib
import random

from minibroker.client.admin import AdminClient
from minibroker.client.errors import MinibrokerError, UnknownTopicOrPartition
from minibroker.client.producer.producer import Producer
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.swarm.faults.fault_injector import RECREATED, FaultInjector
from minibroker.simulation.swarm.history import History
from minibroker.simulation.swarm.workload import Workload

FIRST_RECORDS = 60
LATER_RECORDS = 8
VALUE_BYTES = 400
RETENTION_SECONDS = 2.0
CHECKPOINTED_SECONDS = 1.0
"""By then a log start is on the disk."""
ANSWER_MS = 4_000
READ_SECONDS = 15
SMALL = {"segment.bytes": "4096", "retention.bytes": "4096"}


class RecreatedTopic:
    """Of one run."""

    def __init__(self, injector: FaultInjector, rng: random.Random) -> None:
        self._injector = injector
        self._random = rng
        self._number = 0
        self._may_exist = False
        """A request of unknown outcome may have made it, or may not have deleted it."""
        self._has_lived = False
        """Whether its first life, with retention, has begun."""
        self._cluster = injector.cluster
        self._runtime = injector.cluster.client_runtime()

    def leader(self) -> int | None:
        return self._cluster.leader(RECREATED.topic)

    async def recreate(self) -> bool:
        """Delete the topic and make it again; whether the new one has acknowledged records."""
        try:
            async with self._admin() as admin, self._producer() as producer:
                if self._may_exist:
                    await self._end(admin)
                if not self._has_lived:
                    await self._live_first(admin, producer)
                await self._create(admin, {"segment.bytes": "4096"})
                await self._write(producer, LATER_RECORDS, is_promised=True)
        except MinibrokerError as error:
            self._injector.workload.note_error("reborn", error)
        return bool(self._injector.workload.recreated)

    def _admin(self) -> AdminClient:
        return AdminClient(bootstrap_servers=self._cluster.bootstrap_servers, runtime=self._runtime)

    def _producer(self) -> Producer:
        return Producer(
            bootstrap_servers=self._cluster.bootstrap_servers, delivery_timeout_ms=ANSWER_MS, runtime=self._runtime
        )

    async def _create(self, admin: AdminClient, configs: dict[str, str]) -> None:
        replicas = min(3, len(self._cluster.broker_ids))
        self._may_exist = True
        await admin.create_topic(
            RECREATED.topic, partitions=1, replication_factor=replicas, configs=configs, timeout_ms=ANSWER_MS
        )

    async def _live_first(self, admin: AdminClient, producer: Producer) -> None:
        """Keep the topic until retention has deleted its first records; then delete it. A broker that is down meanwhile
        copies its part at once, so its segments end at other offsets: a log start then lies inside of one of them."""
        await self._create(admin, SMALL)
        self._has_lived = True
        await self._write(producer, FIRST_RECORDS // 4, is_promised=False)
        self._injector.bounce(self._random.choice(self._cluster.broker_ids))
        await self._write(producer, FIRST_RECORDS, is_promised=False)
        await self._injector.wait(self._has_risen, RETENTION_SECONDS)
        await asyncio.sleep(CHECKPOINTED_SECONDS)
        await self._end(admin)

    def _has_risen(self) -> bool:
        replicas = [self._injector.replica(b, RECREATED) for b in self._cluster.alive()]
        return bool(replicas) and all(replica is not None and replica.log.log_start_offset > 0 for replica in replicas)

    async def _end(self, admin: AdminClient) -> None:
        """Delete the topic; from here on its records are under no promise. An earlier request may have deleted it."""
        self._injector.workload.recreated.clear()
        self._injector.note("life ends", RECREATED)
        with contextlib.suppress(UnknownTopicOrPartition):
            await admin.delete_topic(RECREATED.topic, timeout_ms=ANSWER_MS)
        self._may_exist = False

    async def _write(self, producer: Producer, records: int, is_promised: bool) -> None:
        for _ in range(records):
            self._number += 1
            value = b"life-%d-" % self._number
            try:
                found = await producer.send_and_wait(RECREATED.topic, value.ljust(VALUE_BYTES, b"."), partition=0)
            except MinibrokerError as error:
                self._injector.workload.note_error("reborn", error)
                return
            if is_promised and found.offset is not None:
                self._injector.workload.recreated[found.offset] = value.ljust(VALUE_BYTES, b".")


async def compare_recreated_topic(cluster: SimulatedCluster, workload: Workload, history: History) -> None:
    """I21 of the recreated topic: each record acknowledged in its latest incarnation is there, at its offset."""
    expected, held = dict(workload.recreated), dict[int, bytes]()
    if not expected:
        return
    try:
        async with asyncio.timeout(READ_SECONDS), workload.consumer() as consumer:
            consumer.assign([RECREATED])
            while not expected.keys() <= held.keys():
                for record in (await consumer.getmany(timeout_ms=1000)).get(RECREATED, ()):
                    held[record.offset] = record.value or b""
    except TimeoutError:
        history.note_error("reader of the reborn topic", TimeoutError())
    except MinibrokerError as error:
        history.note_error("reader of the reborn topic", error)
    for offset, value in sorted(expected.items()):
        if held.get(offset) != value:
            facts = (f"{value!r:.60} was acknowledged in its latest incarnation", f"{held.get(offset)!r:.60} is held")
            history.find("I21", f"offset {offset} lost its record", RECREATED, *facts)
