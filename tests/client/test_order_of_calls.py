"""Records of a partition are in the log in the order of their `send` calls, even if calls had to wait."""

import asyncio

import pytest

from minibroker.client.producer.producer import Producer
from tests.broker.requests import TOPIC, ClusterClient, in_cluster

CALLS = 200
VALUE_BYTES = 300


async def _send_all(producer: Producer, pause_seconds: float, many: bool = False) -> list[int | None]:
    """Offsets in the order of the calls, which overlap; `many`: every second one is a `send_many` of a small record,
    which would find room where the one before it has to wait."""

    async def send(value: bytes, by_many: bool) -> int | None:
        if not by_many:
            return (await producer.send_and_wait(TOPIC, value, partition=0)).offset
        deliveries = await producer.send_many(TOPIC, [value], partition=0)
        return (await deliveries[0]).offset

    async with producer:
        calls = []
        for number in range(CALLS):
            by_many = many and number % 2 == 1
            value = (b"%d" % number).ljust(1 if by_many else VALUE_BYTES)
            calls.append(asyncio.create_task(send(value, by_many)))
            await asyncio.sleep(pause_seconds)
        return list(await asyncio.gather(*calls))


@pytest.mark.parametrize("pause_seconds", [0.0, 0.00002, 0.0001])
def test_no_call_overtakes_those_that_wait_for_the_topic(pause_seconds: float) -> None:
    async def run(client: ClusterClient) -> None:
        ports = client.cluster.client_runtime()
        producer = Producer(bootstrap_servers=client.cluster.bootstrap_servers, runtime=ports)
        assert await _send_all(producer, pause_seconds) == list(range(CALLS))

    in_cluster(run)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("pause_seconds", [0.0, 0.0001, 0.0007])
def test_no_call_overtakes_those_that_wait_for_memory(pause_seconds: float, many: bool) -> None:
    async def run(client: ClusterClient) -> None:
        ports = client.cluster.client_runtime()
        producer = Producer(
            bootstrap_servers=client.cluster.bootstrap_servers, batch_size=1_024, buffer_memory=3_000, runtime=ports
        )
        assert await _send_all(producer, pause_seconds, many) == list(range(CALLS))

    in_cluster(run)
