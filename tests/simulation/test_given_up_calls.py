"""Nothing stays of a call that its caller gave up: no entry, task or charge in the client, nor in a broker.

Long-lived clients begin every kind of call and cancel it: soon, or while it waits for its answer. This is done while
all is well, while the brokers are silent, and while ZooKeeper is. Each leaves one entry if a clean-up was forgotten,
so that a program with timeouts, or a broker with such clients, grows for ever and stops at one of its limits.

It does not see what a cancelled call does to another caller's (`tests/client`).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster
from tests.simulation.test_kept_objects import MAY_GROW, counted

KEPT = TopicPartition("kept", 0)
WARM_UP, ROUNDS = 2, 6
GROWTH_MAX = ROUNDS - 1
GIVEN_UP_AFTER = (0.0, 0.002, 0.5)
"""Seconds: at once, while the request is on its way, and while it waits."""
SILENCE_SECONDS = 0.6
SETTLED_SECONDS = 6.0
TIMEOUT_MS = 300
"""Of requests that the controller gives up by itself."""
CLIENT = "client"
CHANGES = {"retention.ms": "1000000"}

Call = Callable[[], Coroutine[Any, Any, object]]


def calls(producer: Producer, consumer: Consumer, admin: AdminClient) -> dict[str, Call]:
    """Of each kind."""
    return {
        "send_and_wait": lambda: producer.send_and_wait(KEPT.topic, b"x", partition=0),
        "send_many": lambda: producer.send_many(KEPT.topic, [b"x"] * 10),
        "flush": producer.flush,
        "getone": consumer.getone,
        "getmany": consumer.getmany,
        "position": lambda: consumer.position(KEPT),
        "seek_to_end": consumer.seek_to_end,
        "partitions_for": lambda: consumer.partitions_for(KEPT.topic),
        "create_topic": lambda: admin.create_topic("made", partitions=1, timeout_ms=TIMEOUT_MS),
        "delete_topic": lambda: admin.delete_topic("made", timeout_ms=TIMEOUT_MS),
        "describe_topics": lambda: admin.describe_topics([KEPT.topic]),
        "describe_cluster": admin.describe_cluster,
        "describe_replica_state": admin.describe_replica_state,
        "list_offsets": lambda: admin.list_offsets({KEPT: 0}),
        "describe_configs": lambda: admin.describe_configs(topic=KEPT.topic),
        "alter_configs": lambda: admin.alter_configs(CHANGES, topic=KEPT.topic, timeout_ms=TIMEOUT_MS),
        "list_producer_names": admin.list_producer_names,
    }


async def give_up(wanted: dict[str, Call], seconds: float) -> None:
    tasks = [asyncio.ensure_future(call()) for call in wanted.values()]
    await asyncio.sleep(seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def one_round(cluster: SimulatedCluster, wanted: dict[str, Call]) -> None:
    network, zookeeper = cluster.world.network, cluster.world.zookeeper
    for seconds in GIVEN_UP_AFTER:
        await give_up(wanted, seconds)
        for broker_id in cluster.broker_ids:
            network.partition(CLIENT, f"broker-{broker_id}")
        await give_up(wanted, seconds)
        await asyncio.sleep(SILENCE_SECONDS)
        for broker_id in cluster.broker_ids:
            network.heal(CLIENT, f"broker-{broker_id}")
            network.heal(f"broker-{broker_id}", CLIENT)
        hold = zookeeper.hold(match=lambda request: request.kind == "write")
        await give_up(wanted, seconds)
        await asyncio.sleep(SILENCE_SECONDS)
        hold.release()
    await asyncio.sleep(SETTLED_SECONDS)


async def growth(cluster: SimulatedCluster) -> dict[str, tuple[int, int]]:
    """What grew from the end of the warm-up on."""
    cluster.start_all()
    await cluster.until_ready()
    servers, ports = cluster.bootstrap_servers, cluster.client_runtime()
    async with (
        AdminClient(bootstrap_servers=servers, runtime=ports) as admin,
        Producer(bootstrap_servers=servers, runtime=ports) as producer,
        Consumer(bootstrap_servers=servers, runtime=ports) as consumer,
    ):
        await admin.create_topic(KEPT.topic, partitions=1, replication_factor=3)
        consumer.assign([KEPT])
        wanted = calls(producer, consumer, admin)
        for _ in range(WARM_UP):
            await one_round(cluster, wanted)
        before = counted()
        for _ in range(ROUNDS):
            await one_round(cluster, wanted)
        after = counted()
    return {name: (before[name], after[name]) for name in sorted(after) if after[name] - before[name] > GROWTH_MAX}


def test_nothing_stays_of_calls_that_were_given_up() -> None:
    cluster = SimulatedCluster(1, settings={"log.tail.cache.bytes": "4096"})
    grown = cluster.world.run(growth(cluster), seconds_max=400)
    assert {name: sizes for name, sizes in grown.items() if name not in MAY_GROW} == {}
