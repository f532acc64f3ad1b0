"""Tasks that share a producer, with less memory than they want: each gets the outcome of its own records."""

import asyncio
import random
from typing import Any

import pytest

from minibroker.client.producer.deliveries import Delivery
from minibroker.client.producer.producer import Producer
from minibroker.runtime.ports import Runtime
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster

SEEDS = 12


@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_delivery_of_a_shared_producer_names_the_offset_of_its_record(seed: int) -> None:
    """Tasks wait for memory in turn, so their records stand between those of one call, in one batch as well."""
    cluster, rng = FakeCluster(SimulatedWorld(seed)), random.Random(seed)
    cluster.add_topic("many", 3)
    cluster.world.network.latency.extra_mean = 0.005
    promised: list[tuple[bytes, Delivery]] = []

    async def task(producer: Producer, number: int) -> None:
        for call in range(12):
            partition = rng.randrange(3)
            lengths = rng.choices((20, 200, 1_500, 4_000), (4, 2, 2, 1), k=rng.choice((1, 1, 2, 8)))
            values = [b"%d-%d-%d" % (number, call, place) + b"." * length for place, length in enumerate(lengths)]
            if len(values) == 1:
                promised.append((values[0], await producer.send("many", values[0], partition=partition)))
            else:
                deliveries = await producer.send_many("many", values, partition=partition)
                promised.extend(zip(values, deliveries, strict=True))
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.002)))

    async def main(runtime: Runtime) -> None:
        limits: dict[str, Any] = {"batch_size": 32_768, "buffer_memory": rng.choice((8_192, 16_384, 24_576))}
        limits |= {"max_in_flight_requests_per_connection": rng.choice((1, 1, 5))}
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, **limits) as producer:
            await asyncio.gather(*(task(producer, number) for number in range(8)))

    cluster.run(main)
    logs = [cluster.partition("many", index).values() for index in range(3)]
    for value, delivery in promised:
        written = delivery.result()
        assert logs[written.partition][written.offset or 0] == value
    assert len(promised) == sum(map(len, logs))
