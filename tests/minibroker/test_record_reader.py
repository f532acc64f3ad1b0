"""The reader of `consume`: it stops at the ends, and gives up on a partition without answers, in simulated time."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minibroker.client.consumer.connection_state import ConnectionState
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.errors import CallTimedOut, InvalidCall
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    Response,
)
from minibroker.records.record_reader import POLL_MS, RecordReader
from minibroker.records.starting_point import parse_range, parse_start
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from minibroker.simulation.world.world import SimulatedWorld
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import fill
from tests.undecodable import undecodable

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
            reader = RecordReader(consumer, ["t"], (), parse_start("beginning"), TIMEOUT_MS, until_end=until_end)
            await reader.start()
            began = loop.time()
            with pytest.raises(CallTimedOut) as caught:
                if columns:
                    async for batches in reader.batches():
                        count += sum(map(len, batches))
                else:
                    async for records in reader.records():
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


@pytest.mark.parametrize("columns", [False, True])
def test_an_undecodable_batch_at_the_end_is_skipped_and_ends_the_reading(
    cluster: FakeCluster, *, columns: bool
) -> None:
    """Once it was waited for for ever."""
    fill(cluster, 20)
    cluster.partition("t").append(bytes(undecodable(build_batch([(None, b"x", 0, ())] * 10))))

    async def main(runtime: Runtime) -> int:
        count = 0
        async with Consumer(
            bootstrap_servers=cluster.bootstrap, auto_offset_reset="none", on_undecodable="skip", runtime=runtime
        ) as consumer:
            reader = RecordReader(consumer, ["t"], (), parse_start("beginning"), TIMEOUT_MS, until_end=True)
            await reader.start()
            async with asyncio.timeout(60):
                if columns:
                    async for batches in reader.batches():
                        count += sum(map(len, batches))
                else:
                    async for records in reader.records():
                        count += len(records)
        return count

    assert cluster.run(main) == 20


def test_only_a_silence_without_a_break_ends_the_reading() -> None:
    """A command that runs for days sees many elections: their pauses do not add up."""
    world, partition = SimulatedWorld(seed=1), TopicPartition("t", 0)
    silent, healthy = (ConnectionState(each, 1, 0, None, None, None) for each in ("connecting", "fetching"))
    state = silent
    consumer = SimpleNamespace(connection_state=lambda _: state)
    reader = RecordReader(cast(Any, consumer), ["t"], (), parse_start("beginning"), TIMEOUT_MS)

    async def look(seconds: float) -> None:
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + seconds
        while loop.time() < ends_at:
            reader._check_silence([partition])
            await asyncio.sleep(POLL_MS / 1000)

    async def main() -> None:
        nonlocal state
        for _ in range(3):
            state = silent
            await look(0.75 * TIMEOUT_MS / 1000)
            state = healthy
            await look(1)
        state = silent
        with pytest.raises(CallTimedOut):
            await look(2 * TIMEOUT_MS / 1000)

    world.run(main())


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


def read_range(cluster: FakeCluster, text: str, *, columns: bool, until_end: bool = False) -> list[bytes | None]:
    async def main(runtime: Runtime) -> list[bytes | None]:
        values: list[bytes | None] = []
        async with Consumer(bootstrap_servers=cluster.bootstrap, auto_offset_reset="none", runtime=runtime) as consumer:
            begin, end = parse_range(text)
            reader = RecordReader(consumer, ["t", "u"], (), begin, TIMEOUT_MS, end=end, until_end=until_end)
            await reader.start()
            if columns:
                async for batches in reader.batches():
                    assert all(len(batch) for batch in batches)
                    values += [value for batch in batches for value in batch.values]
            else:
                async for records in reader.records():
                    values += [record.value for record in records]
        return values

    return cluster.run(main)


@pytest.fixture
def two_topics() -> FakeCluster:
    """t-0 has 30 records in batches of ten, u-0 has 5."""
    fake = FakeCluster(SimulatedWorld(seed=1))
    fake.add_topic("t", 1)
    fake.add_topic("u", 1)
    fill(fake, 30)
    fill(fake, 5, topic="u")
    return fake


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize(
    ("text", "of_t", "of_u"),
    [("3:17", (3, 17), (3, 5)), (":2", (0, 2), (0, 2)), ("-4:", (26, 30), (1, 5)), ("@3000:@5000", (3, 5), (3, 5))],
)
def test_a_range_of_several_topics_is_read_to_its_end_and_no_further(
    two_topics: FakeCluster, text: str, of_t: tuple[int, int], of_u: tuple[int, int], *, columns: bool
) -> None:
    expected = [b"%06d" % number for first, last in (of_t, of_u) for number in range(first, last)]
    assert sorted(value or b"" for value in read_range(two_topics, text, columns=columns)) == sorted(expected)


@pytest.mark.parametrize(
    ("text", "until_end", "message"),
    [
        ("9999", True, "t-0 has no offset 9999 yet: it ends at 30; begin there, or with -o end"),
        ("20", False, "u-0 has no offset 20 yet: it ends at 5"),
        ("3", True, "t-0 begins at offset 10, because older records were deleted"),
    ],
)
def test_an_offset_that_a_log_does_not_have_is_refused(
    two_topics: FakeCluster, text: str, message: str, *, until_end: bool
) -> None:
    """Once `-o 9999 -e` was silent, and without -e the error named an option that does not exist."""
    two_topics.partition("t").trim_before(10)
    with pytest.raises(InvalidCall, match=message):
        read_range(two_topics, text, columns=True, until_end=until_end)


def test_until_the_end_it_is_enough_if_one_partition_has_the_offset(two_topics: FakeCluster) -> None:
    assert len(read_range(two_topics, "20", columns=True, until_end=True)) == 10
