"""Nothing grows with what clients did and ended: no object of ours, and no container in one, by any name.

The same things are done again and again on one simulated cluster: clients come and go, segments are rolled and deleted,
topics are made and deleted, connections break. Between two counts whatever was ended must be gone. What may grow has a
reason in MAY_GROW. A broker that runs for months does each of these a million times.
"""

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.protocol.ids import TopicPartition
from minibroker.simulation.cluster import SimulatedCluster

OURS = tuple(f"minibroker.{folder}." for folder in ("broker", "client", "controller", "protocol", "runtime"))
EVENTS = "minibroker.protocol.events."
"""Kept for `minibroker events`, as many as `RecentEvents` holds."""
SETTINGS = {
    "log.segment.bytes": "4096",
    "log.retention.bytes": "4096",
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "1000",
    "replica.lag.time.max.ms": "4000",
    "witness.interval.ms": "1000",
    "log.tail.cache.bytes": "16384",  # full after the first round
}
CONTAINERS = (dict, list, set, deque)
WARM_UP, ROUNDS = 3, 9
GROWTH_MAX = ROUNDS - 1
"""What is kept of each round is there ROUNDS times at the end. Late connections of long-lived clients are fewer."""
RECORDS = 30
SETTLED_SECONDS = 5.0
"""Deleted files are removed, positions are answered, and idle connections are noticed by then."""
KEPT = TopicPartition("kept", 0)

MAY_GROW = {
    "ErasedReplicas._erased": "REPLICAS_MAX",
    "LogTail._bases": "COMPACT_AFTER: the places of what the cache has dropped",
    "LogTail._batches": "COMPACT_AFTER",
    "MetadataCache._former_ids": "FORMER_IDS_MAX",
    "MetadataImage._deleted_topic_ids": "DELETED_TOPICS_REMEMBERED",
    "ProducerState": "PRODUCERS_MAX",
    "ProducerStates._states": "PRODUCERS_MAX",
    "RecentEvents._kept": "EVENTS_KEPT",
    "TopicPartition": "REPLICAS_MAX, of ErasedReplicas",
}
"""`Class` or `Class.attribute`, and the limit that holds it, far beyond these rounds."""

A_CLIENTS_TOPICS = frozenset(
    {
        *("CachedPartition", "CachedTopic", "CachedTopic.partitions", "Cluster._topics", "MetadataCache.topics"),
        *("PartitionQueue", "ProducerTopic", "ProducerTopic.every_queue", "ProducerTopic.queues", "Sender._queues"),
        *("Producer._topics", "Producer._topics_without_serializer", "ProducerMetadata._topics"),
    }
)
"""A client keeps each topic that it ever used, up to TOPICS_MAX, because it asks for all of them at once."""


def counted() -> Counter[str]:
    """How many objects of each of our classes there are, and what their containers hold together."""
    gc.collect()
    found: Counter[str] = Counter()
    for each in gc.get_objects():
        kind = type(each)
        module = str(kind.__module__)  # in some extensions it is no text
        if module.startswith(OURS) and not module.startswith(EVENTS):
            found[kind.__qualname__] += 1
            for name, value in _attributes(each):
                if isinstance(value, CONTAINERS):
                    found[f"{kind.__qualname__}.{name}"] += _size(value)
    return found


def _size(container: Any) -> int:
    """Also of the containers that it holds."""
    held = container.values() if isinstance(container, dict) else container
    return len(container) + sum(len(each) for each in held if isinstance(each, CONTAINERS))


def _attributes(each: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(each).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if name.startswith("__") else name
            if name not in ("__dict__", "__weakref__") and hasattr(each, mangled):
                yield name, getattr(each, mangled)
    yield from getattr(each, "__dict__", {}).items()


class LongLived(NamedTuple):
    """Clients that stay for all rounds."""

    producer: Producer
    consumer: Consumer
    admin: AdminClient

    async def work(self, brief: str) -> None:
        """Some of each, also with a topic that is deleted later."""
        written = await self.producer.send_and_wait(KEPT.topic, b"one more", partition=0)
        await self.producer.send_and_wait(brief, b"brief", partition=0)
        self.consumer.assign([KEPT, (brief, 0)])
        self.consumer.seek(KEPT, written.offset or 0)
        assert await self.consumer.getmany(timeout_ms=2_000)
        self.consumer.assign([KEPT])
        await self.admin.describe_topics([brief])
        await self.admin.list_offsets({TopicPartition(brief, 0): 0})


async def one_round(cluster: SimulatedCluster, number: int, long_lived: LongLived) -> None:
    servers, ports, brief = cluster.bootstrap_servers, cluster.client_runtime(), f"brief-{number}"
    async with Producer(bootstrap_servers=servers, runtime=ports) as producer:
        for _ in range(RECORDS):
            await producer.send_and_wait(KEPT.topic, b"v" * 400, partition=0)
    async with Producer(bootstrap_servers=servers, runtime=ports, producer_name="named") as producer:
        await producer.send_and_wait(KEPT.topic, b"named", partition=0)
    async with Consumer(bootstrap_servers=servers, runtime=ports) as consumer:
        consumer.assign([KEPT])
        await consumer.seek_to_end()
        assert not await consumer.getmany(timeout_ms=300)  # its fetch waits at the broker
    async with AdminClient(bootstrap_servers=servers, runtime=ports) as admin:
        await admin.create_topic(brief, partitions=2, replication_factor=3)
        async with Producer(bootstrap_servers=servers, runtime=ports) as producer:
            await producer.send_and_wait(brief, b"brief", partition=number % 2)
        await long_lived.work(brief)
        await admin.describe_replica_state()
        await admin.delete_topic(brief)
    for one in cluster.broker_ids:
        for other in cluster.broker_ids:
            if one < other:
                cluster.world.network.reset_connections(f"broker-{one}", f"broker-{other}")
    await asyncio.sleep(SETTLED_SECONDS)


async def growth(cluster: SimulatedCluster) -> dict[str, tuple[int, int]]:
    """What grew from the end of the warm-up on."""
    cluster.start_all()
    await cluster.until_ready()
    async with AdminClient(bootstrap_servers=cluster.bootstrap_servers, runtime=cluster.client_runtime()) as admin:
        await admin.create_topic(KEPT.topic, partitions=1, replication_factor=3)
    servers, ports = cluster.bootstrap_servers, cluster.client_runtime()
    async with (
        Producer(bootstrap_servers=servers, runtime=ports) as producer,
        Consumer(bootstrap_servers=servers, runtime=ports) as consumer,
        AdminClient(bootstrap_servers=servers, runtime=ports) as admin,
    ):
        long_lived = LongLived(producer, consumer, admin)
        for number in range(WARM_UP):
            await one_round(cluster, number, long_lived)
        before = counted()
        for number in range(WARM_UP, WARM_UP + ROUNDS):
            await one_round(cluster, number, long_lived)
        after = counted()
    return {name: (before[name], after[name]) for name in sorted(after) if after[name] - before[name] > GROWTH_MAX}


def test_nothing_grows_with_what_has_ended() -> None:
    cluster = SimulatedCluster(1, settings=SETTINGS)
    grown = cluster.world.run(growth(cluster), seconds_max=300)
    assert {name: sizes for name, sizes in grown.items() if name not in {*MAY_GROW, *A_CLIENTS_TOPICS}} == {}
