"""What waits is quiet: while a standing fault lasts, no program of ours runs on and on.

Each scene ends in a state that cannot pass by itself. A timer that is set again at once, or an event that wakes its
waiter for ever, shows as thousands of callbacks of the loop per second there. The swarm judges the cluster without
clients and faults (I36); this is about the others. It does not see what happens in one single callback.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import ApiKey
from minibroker.simulation.cluster import SimulatedCluster
from minibroker.simulation.world.message_holds import responses

TOPIC = "t"
BROKERS = (1, 2, 3)
SETTLED_SECONDS, SECONDS = 8.0, 10.0
"""Elections, shorter and shorter pauses, and first logs are over after the one; callbacks are counted for the other."""
STANDING_MS = 120_000

Scene = Callable[["Waits"], Coroutine[Any, Any, None]]
SCENES: dict[str, tuple[Scene, int]] = {}


class Waits:
    """A cluster with one topic, and the clients that wait for it."""

    def __init__(self) -> None:
        self.cluster = SimulatedCluster(7, brokers=len(BROKERS), settings={"replica.lag.time.max.ms": "2000"})
        self._clients: list[Any] = []
        self._waiting: list[asyncio.Task[Any]] = []

    async def begin(self) -> None:
        self.cluster.start_all()
        await self.cluster.until_ready()
        async with self.admin() as admin:
            await admin.create_topic(TOPIC, partitions=6, replication_factor=3, configs={"min.insync.replicas": "2"})
        async with self.producer() as producer:
            for number in range(12):
                await producer.send_and_wait(TOPIC, b"x", partition=number % 6)

    def admin(self) -> AdminClient:
        return AdminClient(bootstrap_servers=self.cluster.bootstrap_servers, runtime=self.cluster.client_runtime())

    def producer(self) -> Producer:
        return Producer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            runtime=self.cluster.client_runtime(),
            request_timeout_ms=STANDING_MS,
            delivery_timeout_ms=2 * STANDING_MS,
        )

    def consumer(self) -> Consumer:
        return Consumer(TOPIC, bootstrap_servers=self.cluster.bootstrap_servers, runtime=self.cluster.client_runtime())

    async def opened(self, client: Any) -> Any:
        """It is closed when the scene is over."""
        await client.__aenter__()
        self._clients.append(client)
        return client

    def wait_for(self, call: Coroutine[Any, Any, Any]) -> None:
        """The call has no end in this scene."""

        async def standing() -> None:
            try:
                await call
            except MinibrokerError as error:
                pytest.fail(f"does not wait: {error}")

        self._waiting.append(asyncio.create_task(standing()))

    async def rate(self, scene: Scene) -> float:
        """Callbacks per second."""
        await self.begin()
        await scene(self)
        await asyncio.sleep(SETTLED_SECONDS)
        loop = self.cluster.world.loop
        before = loop.callbacks_run
        await asyncio.sleep(SECONDS)
        rate = (loop.callbacks_run - before) / SECONDS
        ended = [task for task in self._waiting if task.done()]
        for task in ended:
            task.result()
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        return rate


def scene(rate_max: int) -> Callable[[Scene], Scene]:
    """The limit is some 1.4 times what was measured: a pause that does not grow any more doubles it."""

    def register(case: Scene) -> Scene:
        SCENES[case.__name__] = case, rate_max
        return case

    return register


@scene(250)
async def nothing_happens(waits: Waits) -> None:
    pass


@scene(400)
async def consumers_have_nothing_to_read(waits: Waits) -> None:
    for _ in range(3):
        consumer = await waits.opened(waits.consumer())
        await consumer.getmany(timeout_ms=1_000)
        waits.wait_for(consumer.getone())


@scene(300)
async def a_leader_does_not_answer(waits: Waits) -> None:
    producer = await waits.opened(waits.producer())
    waits.cluster.world.network.isolate("broker-1")
    for index in range(6):
        waits.wait_for(producer.send_and_wait(TOPIC, b"y", partition=index))


@scene(250)
async def acknowledgements_do_not_arrive(waits: Waits) -> None:
    producer = await waits.opened(waits.producer())
    waits.cluster.world.network.hold(None, None, responses(ApiKey.PRODUCE))
    for index in range(6):
        waits.wait_for(producer.send_and_wait(TOPIC, b"y", partition=index))


@scene(150)
async def all_brokers_are_dead(waits: Waits) -> None:
    producer, consumer = await waits.opened(waits.producer()), await waits.opened(waits.consumer())
    for broker_id in BROKERS:
        waits.cluster.kill(broker_id)
    waits.wait_for(producer.send_and_wait(TOPIC, b"y"))
    waits.wait_for(consumer.getone())


@scene(120)
async def too_few_replicas_are_in_sync(waits: Waits) -> None:
    producer = await waits.opened(waits.producer())
    waits.cluster.kill(1)
    waits.cluster.kill(2)
    for index in range(6):
        waits.wait_for(producer.send_and_wait(TOPIC, b"y", partition=index))


@scene(350)
async def zookeeper_is_dead(waits: Waits) -> None:
    producer, consumer = await waits.opened(waits.producer()), await waits.opened(waits.consumer())
    waits.cluster.world.zookeeper.stop()
    await asyncio.sleep(5)
    waits.wait_for(producer.send_and_wait(TOPIC, b"y"))
    waits.wait_for(consumer.getone())


@scene(200)
async def a_topic_waits_to_be_deleted(waits: Waits) -> None:
    consumer = await waits.opened(waits.consumer())
    waits.cluster.kill(3)
    async with waits.admin() as admin:
        await admin.delete_topics([TOPIC], timeout_ms=1_000)
    waits.wait_for(consumer.getone())


@scene(300)
async def a_broker_is_cut_off_from_the_others(waits: Waits) -> None:
    for other in ("broker-2", "broker-3"):
        waits.cluster.world.network.partition("broker-1", other)


@scene(280)
async def the_disk_of_a_broker_is_full(waits: Waits) -> None:
    producer = await waits.opened(waits.producer())
    waits.cluster.world.machine("broker-1").storage.fill()
    for index in range(6):
        waits.wait_for(producer.send_and_wait(TOPIC, b"y" * 500, partition=index))


@scene(340)
async def a_deleted_topic_is_read(waits: Waits) -> None:
    consumer = await waits.opened(waits.consumer())
    async with waits.admin() as admin:
        await admin.delete_topics([TOPIC])
    waits.wait_for(consumer.getone())


@pytest.mark.invariant("I36")
@pytest.mark.parametrize("name", list(SCENES))
def test_a_wait_is_quiet(name: str) -> None:
    case, rate_max = SCENES[name]
    waits = Waits()
    rate = waits.cluster.world.run(waits.rate(case), seconds_max=300)
    assert rate <= rate_max
