"""Records of a partition stand in the log in the order of their `send` calls, also of calls that had to wait."""

import asyncio

import pytest

from minibroker.client.producer import Producer
from tests.broker.requests import TOPIC, Asked, in_cluster

CALLS = 200
VALUE_BYTES = 300


async def _send_all(producer: Producer, pause_seconds: float) -> list[int | None]:
    """Offsets in the order of the calls, which overlap."""
    async with producer:
        calls = []
        for number in range(CALLS):
            value = (b"%d" % number).ljust(VALUE_BYTES)
            calls.append(asyncio.create_task(producer.send_and_wait(TOPIC, value, partition=0)))
            await asyncio.sleep(pause_seconds)
        return [found.offset for found in await asyncio.gather(*calls)]


@pytest.mark.parametrize("pause_seconds", [0.0, 0.00002, 0.0001])
def test_no_call_overtakes_those_that_wait_for_the_topic(pause_seconds: float) -> None:
    async def run(asked: Asked) -> None:
        doors = asked.cluster.client_runtime()
        producer = Producer(asked.cluster.bootstrap_servers, runtime=doors)
        assert await _send_all(producer, pause_seconds) == list(range(CALLS))

    in_cluster(run)


@pytest.mark.parametrize("pause_seconds", [0.0, 0.0001, 0.0007])
def test_no_call_overtakes_those_that_wait_for_memory(pause_seconds: float) -> None:
    async def run(asked: Asked) -> None:
        doors = asked.cluster.client_runtime()
        producer = Producer(asked.cluster.bootstrap_servers, batch_size=1_024, buffer_memory=3_000, runtime=doors)
        assert await _send_all(producer, pause_seconds) == list(range(CALLS))

    in_cluster(run)
