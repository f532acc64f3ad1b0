"""No partition waits for a long poll that was sent before it could be read: the poll leaves it out, so its records do
not end the poll."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import MetadataRequest
from minibroker.runtime.ports import Runtime
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import fill

POLL_MS = 30_000
SECONDS_MAX = 0.5
"""Some round trips, and the pause before the next metadata."""
QUIET, OTHER, OF_ANOTHER_LEADER = TopicPartition("six", 0), TopicPartition("six", 3), TopicPartition("six", 1)
RECORDS = 10

Step = Callable[[FakeCluster, Consumer], Awaitable[None]]


async def _seek(cluster: FakeCluster, consumer: Consumer) -> None:
    consumer.seek(QUIET, 0)


async def _seek_to_beginning(cluster: FakeCluster, consumer: Consumer) -> None:
    await consumer.seek_to_beginning(QUIET)


async def _resume(cluster: FakeCluster, consumer: Consumer) -> None:
    consumer.resume(OTHER)


async def _assign_another(cluster: FakeCluster, consumer: Consumer) -> None:
    consumer.assign([QUIET, OTHER])


async def _assign_another_at_an_offset(cluster: FakeCluster, consumer: Consumer) -> None:
    consumer.assign([QUIET, OTHER])
    consumer.seek(OTHER, 0)


async def _assign_anew(cluster: FakeCluster, consumer: Consumer) -> None:
    consumer.assign([])
    consumer.assign([QUIET])


def _elect_the_leader_of_quiet(cluster: FakeCluster) -> int:
    """It holds the consumer's poll for another partition. Returns the former leader."""
    moved = cluster.partitions[OF_ANOTHER_LEADER]
    former = moved.leader
    assert former is not None
    moved.elect(cluster.partitions[QUIET].leader)
    fill(cluster, RECORDS, topic="six", index=OF_ANOTHER_LEADER.partition, wakes=False)
    return former


async def _elect(cluster: FakeCluster, consumer: Consumer) -> None:
    cluster.brokers[_elect_the_leader_of_quiet(cluster)].answer_waiting()


async def _fail(cluster: FakeCluster, consumer: Consumer) -> None:
    """Only metadata names the new leader."""
    cluster.kill(_elect_the_leader_of_quiet(cluster))


async def _elect_without_metadata(cluster: FakeCluster, consumer: Consumer) -> None:
    """The refusal of the former leader names the new one."""
    cluster.intercept = lambda broker, request: isinstance(request.body, MetadataRequest) or None
    await _elect(cluster, consumer)


async def _make_again(cluster: FakeCluster, consumer: Consumer) -> None:
    cluster.make_again("six")
    for index in (QUIET.partition, OTHER.partition):
        fill(cluster, RECORDS, topic="six", index=index)


STEPS: dict[str, tuple[list[TopicPartition], Step]] = {
    "a seek": ([QUIET], _seek),
    "a seek to the beginning": ([QUIET], _seek_to_beginning),
    "the end of a pause": ([QUIET, OTHER], _resume),
    "one partition more": ([QUIET], _assign_another),
    "one partition more, at an offset": ([QUIET], _assign_another_at_an_offset),
    "the same partition again": ([QUIET], _assign_anew),
    "a new leader": ([QUIET, OF_ANOTHER_LEADER], _elect),
    "a new leader, at an offset": ([QUIET, OF_ANOTHER_LEADER], _elect),
    "a new leader instead of one that failed": ([QUIET, OF_ANOTHER_LEADER], _fail),
    "a new leader instead of one that failed, at an offset": ([QUIET, OF_ANOTHER_LEADER], _fail),
    "a new leader that only a refusal names": ([QUIET, OF_ANOTHER_LEADER], _elect_without_metadata),
    "a new leader that only a refusal names, at an offset": ([QUIET, OF_ANOTHER_LEADER], _elect_without_metadata),
    "another topic of the same name": ([QUIET, OTHER], _make_again),
}


def polling(cluster: FakeCluster, runtime: Runtime) -> Consumer:
    return Consumer(
        bootstrap_servers=cluster.bootstrap,
        auto_offset_reset="earliest",
        fetch_max_wait_ms=POLL_MS,
        runtime=runtime,
    )


@pytest.mark.parametrize("name", STEPS)
def test_records_that_may_be_read_now_wait_for_no_poll_from_before(cluster: FakeCluster, name: str) -> None:
    cluster.add_topic("six", 6)
    assert cluster.partitions[QUIET].leader == cluster.partitions[OTHER].leader
    assert cluster.partitions[QUIET].leader != cluster.partitions[OF_ANOTHER_LEADER].leader
    for partition in (QUIET, OTHER):
        fill(cluster, RECORDS, topic="six", index=partition.partition)
    assigned, step = STEPS[name]

    async def main(runtime: Runtime) -> float:
        async with polling(cluster, runtime) as consumer:
            consumer.assign(assigned)
            if OTHER in assigned and name == "the end of a pause":
                consumer.pause(OTHER)
            if OF_ANOTHER_LEADER in assigned and "at an offset" in name:
                consumer.seek(OF_ANOTHER_LEADER, 0)  # whose epoch is not known, so no new leader is asked about it
            while await consumer.getmany(timeout_ms=1_000):
                pass
            began = asyncio.get_running_loop().time()
            await step(cluster, consumer)
            assert await consumer.getone(timeout_ms=2 * POLL_MS)
            return asyncio.get_running_loop().time() - began

    assert cluster.run(main) < SECONDS_MAX


async def _batches(consumer: Consumer) -> list[int]:
    return [batch.base_offset for batch in await consumer.getmany_batches(timeout_ms=POLL_MS)]


async def _of_another_partition_then_of_all(consumer: Consumer) -> list[int]:
    assert await consumer.getmany(OTHER, timeout_ms=0) == {}
    return [record.offset for record in (await consumer.getmany(timeout_ms=POLL_MS))[QUIET]]


@pytest.mark.parametrize("read_on", [_batches, _of_another_partition_then_of_all])
def test_the_rest_of_a_batch_that_is_fetched_again_waits_for_no_poll_from_before(
    cluster: FakeCluster, read_on: Callable[[Consumer], Awaitable[list[int]]]
) -> None:
    """Decoded records that another kind of call did not return are dropped, and fetched from the position on."""
    cluster.add_topic("six", 6)
    fill(cluster, RECORDS, topic="six", index=QUIET.partition)

    async def main(runtime: Runtime) -> float:
        async with polling(cluster, runtime) as consumer:
            consumer.assign([QUIET, OTHER])
            assert (await consumer.getone(timeout_ms=1_000)).offset == 0
            await asyncio.sleep(1)  # the poll for the records behind that batch is on its way
            began = asyncio.get_running_loop().time()
            assert (await read_on(consumer))[0] == 1
            return asyncio.get_running_loop().time() - began

    assert cluster.run(main) < SECONDS_MAX
