"""What a broker that lags says of a deleted topic misleads no client of the next topic of that name for long."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from minibroker import Consumer, MinibrokerError, NewTopic, Producer, TopicPartition
from minibroker.harness.simulated import SimulatedHarness
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.world.message_holds import MessageHold, requests
from minibroker.testing import cluster, run

TOPIC = "orders"
LAG_S = 1.0
"""The controller takes a broker that does not take its requests for much longer than this for dead."""


@asynccontextmanager
async def made_again_while_one_lags(
    seed: int, *apis: ApiKey, lagging_leads: bool
) -> AsyncIterator[tuple[SimulatedHarness, int, int, MessageHold]]:
    """The cluster, its controller, the broker that lags, and what holds the controller's requests to it back. The
    deleted topic had leader epoch 4 and one replica on the third broker; the new one is on the lagging broker, or on
    the controller."""
    async with cluster(brokers=3, seed=seed) as c, c.admin() as admin:
        assert isinstance(c, SimulatedHarness)
        controller = await c.controller()
        assert controller is not None
        first, lagging = (broker for broker in c.broker_ids if broker != controller)
        await admin.create_topic("other", partitions=3, replication_factor=3)
        await admin.create_topics([NewTopic(name=TOPIC, assignment={0: [first]})])
        for _ in range(2):
            await c.restart(first)
            await c.wait_in_sync()
        hold = c.world.network.hold(f"broker-{controller}", f"broker-{lagging}", requests(*apis))
        with contextlib.suppress(MinibrokerError):
            await admin.delete_topic(TOPIC, timeout_ms=300)
        again = NewTopic(name=TOPIC, assignment={0: [lagging if lagging_leads else controller]})
        with contextlib.suppress(MinibrokerError):
            await admin.create_topics([again], timeout_ms=300)
        yield c, controller, lagging, hold


def address(c: SimulatedHarness, broker_id: int) -> str:
    return c.bootstrap_servers.split(",")[broker_id - 1]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_producer_that_began_on_the_new_topic_survives_a_lagging_broker(seed: int) -> None:
    """It knows the new id from its start, then asks the broker that lags, and takes the new id for a former one for
    ever. Another producer writes meanwhile."""

    async def story() -> None:
        lagging = made_again_while_one_lags(seed, ApiKey.UPDATE_METADATA, lagging_leads=False)
        async with lagging as (c, up, _, hold):  # noqa: SIM117
            async with Producer(
                bootstrap_servers=address(c, up), linger_ms=0, delivery_timeout_ms=30_000, metadata_max_age_ms=100
            ) as producer:
                await producer.send_and_wait(TOPIC, b"first")
                for partition in range(3):  # connects to every broker
                    await producer.send("other", b"-", partition=partition)
                await asyncio.sleep(LAG_S)
                hold.release()
                await asyncio.sleep(10)
                async with c.producer() as another:
                    await another.send_and_wait(TOPIC, b"another")
                await producer.send_and_wait(TOPIC, b"second")

    run(story())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hint_of_a_lagging_broker_does_not_mislead_a_producer_for_ever(seed: int) -> None:
    """The new topic's leader has not heard of it yet, and names that of the deleted one, whose epoch is higher."""

    async def story() -> None:
        apis = (ApiKey.UPDATE_METADATA, ApiKey.LEADER_AND_ISR)
        async with made_again_while_one_lags(seed, *apis, lagging_leads=True) as (c, up, _, hold):  # noqa: SIM117
            async with Producer(bootstrap_servers=address(c, up), linger_ms=0, delivery_timeout_ms=30_000) as producer:
                delivery = await producer.send(TOPIC, b"first")
                await asyncio.sleep(LAG_S)
                hold.release()
                await asyncio.sleep(5)
                async with c.producer() as another:
                    await another.send_and_wait(TOPIC, b"another")
                await delivery

    run(story())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_hint_of_a_lagging_broker_does_not_mislead_a_consumer_for_ever(seed: int) -> None:
    async def story() -> None:
        apis = (ApiKey.UPDATE_METADATA, ApiKey.LEADER_AND_ISR)
        async with made_again_while_one_lags(seed, *apis, lagging_leads=True) as (c, up, _, hold):  # noqa: SIM117
            async with Consumer(bootstrap_servers=address(c, up), auto_offset_reset="earliest") as consumer:
                consumer.assign([TopicPartition(TOPIC, 0)])
                await asyncio.sleep(LAG_S)
                hold.release()
                await asyncio.sleep(5)
                async with c.producer() as another:
                    await another.send_and_wait(TOPIC, b"another")
                assert (await consumer.getone(timeout_ms=50_000)).value == b"another"

    run(story())
