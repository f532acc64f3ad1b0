"""A simulated cluster under one fault after the other, with producers that go on, and a full read at the end."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from minibroker.client.admin import AdminClient
from minibroker.client.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster

TOPIC = "t"
PARTITIONS = (0, 1)
HEALED_WITHIN_SECONDS = 60
"""Of virtual time, after each fault: everybody is in the ISR again."""

Position = tuple[int, int | None]


class FaultyRun:
    """One run: `faults` are drawn from the names of the methods below that take a broker and a duration."""

    def __init__(self, seed: int, faults: list[str], count: int) -> None:
        self.cluster = SimulatedCluster(seed)
        self.world = self.cluster.world
        self.acked: dict[Position, bytes | None] = {}
        self.read: dict[Position, bytes | None] = {}
        self.history: list[str] = []
        self._random = self.world.random("faults")
        self._faults = faults
        self._count = count
        self._producing = True

    def run(self) -> None:
        """To the end; raises what the run did not survive."""
        logging.disable(logging.WARNING)
        try:
            self.world.run(self._live(), seconds_max=1_000)
        finally:
            logging.disable(logging.NOTSET)

    async def _live(self) -> None:
        self.cluster.start_all()
        await self.cluster.until_ready()
        doors, servers = self.cluster.client_runtime(), self.cluster.bootstrap_servers
        async with AdminClient(bootstrap_servers=servers, runtime=doors) as admin:
            await admin.create_topic(TOPIC, partitions=len(PARTITIONS), replication_factor=3)
        producers = [asyncio.ensure_future(self._produce(partition)) for partition in PARTITIONS]
        for _ in range(self._count):
            await asyncio.sleep(self._random.uniform(0.5, 2))
            await self._break_and_heal()
        self._producing = False
        await asyncio.gather(*producers)
        await self._until_healed()
        await self._consume()

    async def _produce(self, partition: int) -> None:
        doors, servers = self.cluster.client_runtime(), self.cluster.bootstrap_servers
        number = 0
        async with Producer(bootstrap_servers=servers, acks="all", linger_ms=1, runtime=doors) as producer:
            while self._producing:
                value = b"%d-%d" % (partition, number)
                number += 1
                try:
                    metadata = await producer.send_and_wait(TOPIC, value, partition=partition)
                    self.acked[metadata.partition, metadata.offset] = value
                except MinibrokerError as error:
                    self.history.append(f"{self.world.loop.elapsed:.3f} not acked: {error}")
                await asyncio.sleep(self._random.uniform(0.01, 0.1))

    async def _consume(self) -> None:
        doors, servers = self.cluster.client_runtime(), self.cluster.bootstrap_servers
        partitions = [TopicPartition(TOPIC, partition) for partition in PARTITIONS]
        async with Consumer(bootstrap_servers=servers, auto_offset_reset="earliest", runtime=doors) as consumer:
            consumer.assign(partitions)
            async with asyncio.timeout(HEALED_WITHIN_SECONDS):
                while not self.acked.keys() <= self.read.keys():
                    for records in (await consumer.getmany(timeout_ms=500)).values():
                        self.read.update({(record.partition, record.offset): record.value for record in records})

    async def _break_and_heal(self) -> None:
        fault = self._random.choice(self._faults)
        broker_id = self._random.choice(self.cluster.broker_ids)
        duration = self._random.choice([0.1, 1, 2.5, 4, 6])
        self.history.append(f"{self.world.loop.elapsed:.3f} {fault} of broker {broker_id} for {duration} s")
        perform: Callable[[int, float], Awaitable[None]] = getattr(self, fault)
        await perform(broker_id, duration)
        await self._until_healed()

    async def _until_healed(self) -> None:
        def is_whole() -> bool:
            return all(
                self.cluster.in_sync_replicas(TOPIC, partition) == self.cluster.broker_ids for partition in PARTITIONS
            )

        await self.cluster.until(is_whole, HEALED_WITHIN_SECONDS, f"a full ISR after {self.history[-3:]}")

    # -------------------------------------------------------------------------------------------------- faults
    async def kill(self, broker_id: int, duration: float) -> None:
        self.cluster.kill(broker_id)
        await asyncio.sleep(duration)
        self.cluster.start(broker_id)

    async def power_loss(self, broker_id: int, duration: float) -> None:
        self.cluster.power_loss(broker_id)
        await asyncio.sleep(duration)
        self.cluster.start(broker_id)

    async def clean_stop(self, broker_id: int, duration: float) -> None:
        self.cluster.stop(broker_id)
        await self.cluster.until(lambda: broker_id not in self.cluster.alive(), 60, "the end of a clean stop")
        await asyncio.sleep(duration)
        self.cluster.start(broker_id)

    async def pause(self, broker_id: int, duration: float) -> None:
        self.world.pause(f"broker-{broker_id}")
        await asyncio.sleep(duration)
        self.world.resume(f"broker-{broker_id}")

    async def isolation(self, broker_id: int, duration: float) -> None:
        """From the other brokers, the clients and ZooKeeper."""
        self.world.zookeeper.cut(f"broker-{broker_id}")
        await self.network_cut(broker_id, duration)
        self.world.zookeeper.heal()

    async def network_cut(self, broker_id: int, duration: float) -> None:
        self.world.network.isolate(f"broker-{broker_id}")
        await asyncio.sleep(duration)
        self.world.network.heal_all()

    async def connection_reset(self, broker_id: int, duration: float) -> None:
        for other in ("client", *(f"broker-{other}" for other in self.cluster.broker_ids)):
            self.world.network.reset_connections(f"broker-{broker_id}", other)

    async def zookeeper_cut(self, broker_id: int, duration: float) -> None:
        self.world.zookeeper.cut(f"broker-{broker_id}")
        await asyncio.sleep(duration)
        self.world.zookeeper.heal()

    async def zookeeper_outage(self, broker_id: int, duration: float) -> None:
        self.world.zookeeper.stop()
        await asyncio.sleep(duration)
        self.world.zookeeper.start()

    async def session_expiry(self, broker_id: int, duration: float) -> None:
        for session_id in self.world.zookeeper.sessions_of(f"broker-{broker_id}"):
            self.world.zookeeper.expire_session(session_id)

    async def lost_reply(self, broker_id: int, duration: float) -> None:
        self.world.zookeeper.lose_next_reply(f"broker-{broker_id}")


FAULTS = [
    "kill",
    "power_loss",
    "clean_stop",
    "pause",
    "isolation",
    "network_cut",
    "connection_reset",
    "zookeeper_cut",
    "zookeeper_outage",
    "session_expiry",
    "lost_reply",
]
