"""Producer and consumer through kills, pauses, elections and lost answers: one scenario with many seeds."""

import asyncio
import random

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import FetchRequest, FetchResponse, ProduceRequest, Response
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import refusal

PARTITIONS = 3
STORM_SECONDS = 20
RECORDS = 3_000
SEEDS = [0, 1, 2, 3, 4, 5, 180]
"""180: an election before anything was written looked like a truncation to a consumer that had read nothing."""


class Storm:
    """Random faults for some seconds, drawn from one seed."""

    def __init__(self, cluster: FakeCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.blowing = True
        cluster.intercept = self.intercept

    def intercept(self, broker: int, request: IncomingRequest) -> Response | bool | None:
        if not self.blowing or not isinstance(request.body, ProduceRequest | FetchRequest):
            return None
        draw = self.random.random()
        if draw < 0.03:
            return False
        if draw < 0.08 and isinstance(request.body, ProduceRequest):
            return refusal(request, self.random.choice([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.KAFKA_STORAGE_ERROR]))
        if draw < 0.05:
            return FetchResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        return None

    async def blow(self) -> None:
        world, cluster = self.cluster.world, self.cluster
        loop = asyncio.get_running_loop()
        end = loop.time() + STORM_SECONDS
        while loop.time() < end:
            await asyncio.sleep(self.random.uniform(0.2, 1.5))
            victim = self.random.choice(list(cluster.brokers))
            name = f"broker{victim}"
            kind = self.random.choice(["kill", "pause", "elect"])
            if kind == "elect":
                self.random.choice(list(cluster.partitions.values())).elect(self._living())
                continue
            if kind == "kill":
                cluster.kill(victim)
            else:
                world.pause(name)
            await asyncio.sleep(self.random.uniform(0.1, 4))
            for partition in cluster.partitions.values():
                if partition.leader == victim:
                    partition.elect(self._living(but=victim))
            await asyncio.sleep(self.random.uniform(0, 1))
            if kind == "kill":
                cluster.start_broker(victim)
            else:
                world.resume(name)
        self.blowing = False

    def _living(self, but: int | None = None) -> int:
        running = [b for b in self.cluster.brokers if b != but and self.cluster.world.is_alive(f"broker{b}")]
        return self.random.choice(running)


async def write(cluster: FakeCluster, runtime: Runtime) -> dict[bytes, tuple[int, int]]:
    """Records `partition:number` at a steady pace; where each one was acknowledged."""
    acked: dict[bytes, tuple[int, int]] = {}
    async with Producer(
        bootstrap_servers=cluster.bootstrap, batch_size=1_024, linger_ms=2, runtime=runtime
    ) as producer:
        deliveries = []
        for number in range(RECORDS):
            partition = number % PARTITIONS
            value = b"%d:%06d" % (partition, number)
            deliveries.append((value, await producer.send("p", value, partition=partition)))
            if number % 10 == 0:
                await asyncio.sleep(STORM_SECONDS / RECORDS * 10)
        for value, delivery in deliveries:
            metadata = await delivery
            assert metadata.offset is not None
            acked[value] = (metadata.partition, metadata.offset)
    return acked


async def read(cluster: FakeCluster, runtime: Runtime) -> dict[tuple[int, int], bytes | None]:
    """All records, read by a consumer during the whole run."""
    seen: dict[tuple[int, int], bytes | None] = {}
    expected = dict.fromkeys(range(PARTITIONS), 0)
    async with Consumer("p", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest", runtime=runtime) as c:
        while len(seen) < RECORDS:
            try:
                records = await c.getmany(timeout_ms=1_000)
            except MinibrokerError as error:
                assert error.retriable
                continue
            for batch in records.values():
                for record in batch:
                    assert record.offset == expected[record.partition], "offsets must be read one by one"
                    expected[record.partition] += 1
                    seen[(record.partition, record.offset)] = record.value
    return seen


def run_storm(seed: int) -> tuple[FakeCluster, dict[bytes, tuple[int, int]], dict[tuple[int, int], bytes | None]]:
    cluster = FakeCluster(SimulatedWorld(seed=seed))
    cluster.add_topic("p", PARTITIONS)
    storm = Storm(cluster, seed)

    async def main(
        runtime: Runtime,
    ) -> tuple[dict[bytes, tuple[int, int]], dict[tuple[int, int], bytes | None]]:
        reading = asyncio.create_task(read(cluster, runtime))
        acked = await write(cluster, runtime)
        return acked, await reading

    async def everything() -> tuple[dict[bytes, tuple[int, int]], dict[tuple[int, int], bytes | None]]:
        cluster.start()
        await asyncio.sleep(0.01)
        client = cluster.world.spawn("client", main(cluster.world.runtime("client")))
        await storm.blow()
        return await client

    acked, seen = cluster.world.run(everything(), 600)
    return cluster, acked, seen


@pytest.mark.invariant("I21", "I22", "I23", "I25")
@pytest.mark.parametrize("seed", SEEDS)
def test_every_record_arrives_once_and_in_order_and_is_read_where_it_was_acknowledged(seed: int) -> None:
    cluster, acked, seen = run_storm(seed)
    for index in range(PARTITIONS):
        values = cluster.partition("p", index).values()
        assert values == sorted(value for value in acked if value.startswith(b"%d:" % index))
    assert {place: value for value, place in acked.items()} == seen


def test_the_same_seed_gives_the_same_run() -> None:
    hashes = [run_storm(3)[0].world.trace_hash for _ in range(2)]
    assert hashes[0] == hashes[1]
