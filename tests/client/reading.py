"""Logs to read, and a consumer to read them with."""

from collections.abc import Awaitable, Callable

from minibroker.client.consumer.consumer import Consumer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster

T0 = TopicPartition("t", 0)


def fill(
    cluster: FakeCluster, count: int, *, topic: str = "t", index: int = 0, batch: int = 10, wakes: bool = True
) -> None:
    """Records 000000, 000001, .. in batches; timestamps in seconds. `wakes`: all fetches that wait are answered."""
    partition = cluster.partition(topic, index)
    start = partition.end_offset
    for first in range(start, start + count, batch):
        numbers = range(first, min(first + batch, start + count))
        partition.append(bytes(build_batch([(b"k", b"%06d" % n, n * 1_000, (("h", b"1"),)) for n in numbers])))
    if wakes:
        cluster.brokers[1].wake_fetches()


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%06d" % number for number in range(start, end)]


Take = Callable[[Consumer], Awaitable[list[bytes | None]]]


async def take_many(consumer: Consumer) -> list[bytes | None]:
    """The values of one `getmany`."""
    found = await consumer.getmany(timeout_ms=2_000)
    return [record.value for records in found.values() for record in records]


async def take_batches(consumer: Consumer) -> list[bytes | None]:
    """The values of one `getmany_batches`."""
    return [value for batch in await consumer.getmany_batches(timeout_ms=2_000) for value in batch.values]


def earliest(cluster: FakeCluster, runtime: Runtime, **settings: object) -> Consumer:
    settings.setdefault("auto_offset_reset", "earliest")
    return Consumer("t", bootstrap_servers=cluster.bootstrap, runtime=runtime, **settings)  # type: ignore[arg-type]
