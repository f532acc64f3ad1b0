"""The reader of `consume`: it stops at the ends, and gives up on a partition without answers, in simulated time."""

import asyncio

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import CallTimedOut
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    Response,
)
from minibroker.records.record_reader import RecordReader
from minibroker.records.starting_point import parse_start
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import fill

TIMEOUT_MS = 8_000


@pytest.fixture
def cluster() -> FakeCluster:
    fake = FakeCluster(SimulatedWorld(seed=1))
    fake.add_topic("t", 2)
    return fake


def damage(cluster: FakeCluster) -> None:
    """Damage the only copy of partition 0 where reading begins: its leader answers each fetch with an error."""

    def refuse(broker: int, request: IncomingRequest) -> Response | None:
        body = request.body
        asked = body.topics[0].partitions if isinstance(body, FetchRequest) and body.topics else []
        if not any(each.partition == 0 for each in asked):
            return None
        corrupt = FetchPartitionResponse(partition_index=0, error_code=int(ErrorCode.CORRUPT_MESSAGE))
        return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[corrupt])])

    cluster.intercept = refuse


def read(cluster: FakeCluster, *, until_end: bool, columns: bool) -> tuple[int, float, str]:
    """Returns the number of records, the seconds, and the message of giving up."""

    async def main(runtime: Runtime) -> tuple[int, float, str]:
        loop, count = asyncio.get_running_loop(), 0
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none", runtime=runtime) as consumer:
            reader = RecordReader(consumer, "t", (), parse_start("beginning"), TIMEOUT_MS)
            await reader.start()
            began = loop.time()
            with pytest.raises(CallTimedOut) as caught:
                if columns:
                    async for batches in reader.batches(until_end):
                        count += sum(map(len, batches))
                else:
                    async for records in reader.records(until_end):
                        count += len(records)
            return count, loop.time() - began, str(caught.value)

    return cluster.run(main)


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("until_end", [False, True])
def test_a_damaged_range_ends_the_reading_within_the_time_limit(
    cluster: FakeCluster, *, until_end: bool, columns: bool
) -> None:
    fill(cluster, 30)
    fill(cluster, 20, index=1)
    damage(cluster)
    count, seconds, message = read(cluster, until_end=until_end, columns=columns)
    assert count == 20, "the other partition"
    assert TIMEOUT_MS / 1000 <= seconds < TIMEOUT_MS / 1000 + 2
    assert message.startswith("t-0 gave only errors for 8 s; last error: CORRUPT_MESSAGE from broker 1 for t-0")
    assert "damaged at offset 0" in message
    assert "start the brokers that hold a copy" in message


def test_a_silent_partition_ends_the_reading_although_another_one_answers(cluster: FakeCluster) -> None:
    fill(cluster, 10)
    fill(cluster, 10, index=1)

    def fall_silent(broker: int, request: IncomingRequest) -> bool | None:
        return True if broker == 1 and isinstance(request.body, FetchRequest) else None

    cluster.intercept = fall_silent
    count, seconds, message = read(cluster, until_end=True, columns=True)
    assert count == 10
    assert seconds < 60
    assert "t-0" in message
