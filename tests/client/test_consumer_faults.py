"""The consumer through truncation, elections, silence and damage, in simulated time."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.client.consumer.consumer_errors import UNREACHABLE_AFTER_MS
from minibroker.client.errors import (
    CallTimedOut,
    ClientClosed,
    CorruptRecords,
    InvalidCall,
    LogTruncated,
    UnknownTopicOrPartition,
)
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.record_batch import build_batch
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    OffsetForLeaderEpochRequest,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import CLIENT, FakeCluster
from tests.client.reading import T0, Take, earliest, fill, numbered, take_batches, take_many


# ------------------------------------------------------------------------------------------------------------- trouble
@pytest.mark.invariant("I22")
def test_a_truncation_is_reported_with_the_divergent_offset(cluster: FakeCluster) -> None:
    fill(cluster, 100)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            for _ in range(100):
                await consumer.getone(timeout_ms=1_000)
            cluster.partition("t").truncate_to(70)
            cluster.partition("t").elect(2)
            fill(cluster, 40)
            for _ in range(2):
                with pytest.raises(LogTruncated, match=r"read up to 100, but it differs from offset 70") as caught:
                    await consumer.getone(timeout_ms=10_000)
            assert caught.value.divergent_offset == 70
            assert consumer.connection_state(T0).state == "halted"
            consumer.seek(T0, 70)
            record = await consumer.getone(timeout_ms=2_000)
            assert (record.offset, record.leader_epoch) == (70, 1)

    cluster.run(main)


def test_a_batch_that_never_comes_whole_is_damage_and_not_asked_for_in_ever_larger_pieces(
    cluster: FakeCluster,
) -> None:
    part = FetchPartitionResponse(partition_index=0, records=memoryview(build_batch([(None, b"v" * 100, 0, ())]))[:50])
    answer, asked = FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[part])]), list[int]()

    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, FetchRequest):
            return None
        asked.append(request.body.topics[0].partitions[0].partition_max_bytes)
        return answer

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, max_partition_fetch_bytes=48 << 20) as consumer:
            cluster.intercept = intercept
            with pytest.raises(CorruptRecords, match="no batch"):
                await consumer.getone(timeout_ms=20_000)

    cluster.run(main)
    assert {*asked[1:]} <= {48 << 20, 96 << 20}


@pytest.mark.invariant("I22")
@pytest.mark.parametrize("begins_at", ["an offset", "the earliest"])
def test_a_truncation_below_records_that_are_to_be_fetched_again_is_reported(
    cluster: FakeCluster, begins_at: str
) -> None:
    """A pause drops what was fetched and not returned: the position keeps the epoch of the last record returned."""
    fill(cluster, 20)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            if begins_at == "an offset":
                consumer.seek(T0, 0)
            for _ in range(15):
                await consumer.getone(timeout_ms=1_000)
            consumer.pause(T0)
            cluster.partition("t").truncate_to(10)
            cluster.partition("t").elect(2)
            fill(cluster, 20)
            await asyncio.sleep(1)
            consumer.resume(T0)
            with pytest.raises(LogTruncated, match=r"read up to 15, but it differs from offset 10"):
                await consumer.getone(timeout_ms=10_000)

    cluster.run(main)


@pytest.mark.invariant("I22")
def test_on_request_a_truncation_is_followed_and_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, 100)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, on_truncation="reset") as consumer:
            for _ in range(100):
                await consumer.getone(timeout_ms=1_000)
            cluster.partition("t").truncate_to(70)
            cluster.partition("t").elect(2)
            fill(cluster, 40)
            assert (await consumer.getone(timeout_ms=10_000)).offset == 70

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        cluster.run(main)
    (line,) = [each.message for each in caplog.records]
    assert "read up to 100, but it differs from offset 70" in line


@pytest.mark.invariant("I22")
@pytest.mark.parametrize("on_truncation", ["raise", "reset"])
def test_a_truncation_within_the_batch_that_is_being_returned_skips_no_record(
    cluster: FakeCluster, on_truncation: str
) -> None:
    """Five of its records were returned, and the new leader has eight: 5 to 7 were skipped, or an error advised to."""
    fill(cluster, 10)

    async def main(runtime: Runtime) -> list[tuple[int, int]]:
        async with earliest(cluster, runtime, on_truncation=on_truncation) as consumer:
            for _ in range(5):
                await consumer.getone(timeout_ms=1_000)
            partition = cluster.partition("t")
            partition.truncate_to(0)
            fill(cluster, 8, wakes=False)
            partition.elect(2)
            partition.epoch_ends[0] = 8
            fill(cluster, 3)
            consumer._cluster.request_refresh()
            await asyncio.sleep(1)
            read = [await consumer.getone(timeout_ms=3_000) for _ in range(6)]
            return [(record.offset, record.leader_epoch) for record in read]

    assert cluster.run(main) == [(5, 0), (6, 0), (7, 0), (8, 1), (9, 1), (10, 1)]


def test_a_clean_election_is_validated_without_an_error(cluster: FakeCluster) -> None:
    fill(cluster, 50)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            for _ in range(50):
                await consumer.getone(timeout_ms=1_000)
            cluster.kill(1)
            cluster.partition("t").elect(2)
            fill(cluster, 50)
            for offset in range(50, 100):
                assert (await consumer.getone(timeout_ms=10_000)).offset == offset
        assert cluster.asked(OffsetForLeaderEpochRequest) == 1

    cluster.run(main)


def seconds_from_election_to_record(cluster: FakeCluster, trouble: Callable[[], None], lasts_s: float = 0.0) -> float:
    """A consumer has read all; there is trouble with the leader, another one is elected and gets a record."""
    fill(cluster, 10)

    async def main(runtime: Runtime) -> float:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime) as consumer:
            for _ in range(10):
                await consumer.getone(timeout_ms=1_000)
            trouble()
            await asyncio.sleep(lasts_s)
            cluster.partition("t").elect(2)
            fill(cluster, 1)
            start = loop.time()
            await consumer.getone(timeout_ms=60_000)
            return loop.time() - start

    return cluster.run(main)


def test_a_paused_leader_that_was_replaced_is_not_waited_for(cluster: FakeCluster) -> None:
    assert seconds_from_election_to_record(cluster, lambda: cluster.world.pause("broker1")) < 6


def test_reads_go_on_soon_after_the_election_although_the_unreachable_leader_stays_registered(
    cluster: FakeCluster,
) -> None:
    """The first metadata after the loss still name it: each attempt to connect in vain must ask again."""
    network = cluster.world.network
    assert seconds_from_election_to_record(cluster, lambda: network.reject(CLIENT, "broker1"), lasts_s=5) < 3


def test_a_call_without_records_names_the_first_problem_of_any_partition(cluster: FakeCluster) -> None:
    """One partition is at its end, and the leader of another one refuses."""
    cluster.add_topic("t", 2)
    refuse_fetches(cluster, 1)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            with pytest.raises(CallTimedOut, match=r"no record came for 3000 ms; .*CORRUPT_MESSAGE from broker 2"):
                await consumer.getone(timeout_ms=3_000)
            cluster.intercept = lambda broker, request: None
            await asyncio.sleep(2)
            with pytest.raises(CallTimedOut, match=r"no record came for 3000 ms$"):
                await consumer.getone(timeout_ms=3_000)

    cluster.run(main)


def test_no_broker_is_distinguished_from_no_data(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            for broker in cluster.brokers:
                cluster.kill(broker)
            assert await consumer.getmany(timeout_ms=2_000) == {}
            state = consumer.connection_state(T0)
            assert state.state == "connecting"
            assert not state.healthy
            assert state.error is not None
            assert state.last_answer_ms_ago is not None
            assert state.last_answer_ms_ago > 1_000

    cluster.run(main)


def test_iterating_ends_with_an_error_when_no_broker_answers_for_a_minute(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            for broker in cluster.brokers:
                cluster.kill(broker)
            start = loop.time()
            with pytest.raises(CallTimedOut, match="no leader of any assigned partition answered"):
                async for _ in consumer:
                    pass
            assert loop.time() - start < UNREACHABLE_AFTER_MS / 1000 + 5
            for broker in cluster.brokers:
                cluster.start_broker(broker)
            fill(cluster, 1)
            assert (await consumer.getone(timeout_ms=10_000)).offset == 0

    cluster.run(main)


def refuse_fetches(cluster: FakeCluster, partition: int) -> None:
    """Every fetch from this partition is answered as if its only copy were damaged."""

    def refuse(broker: int, request: IncomingRequest) -> Response | None:
        body = request.body
        if not isinstance(body, FetchRequest) or not body.topics or partition not in _indexes(body):
            return None
        answer = cluster.brokers[broker].fetch(body).responses[0]
        corrupt = FetchPartitionResponse(partition_index=partition, error_code=int(ErrorCode.CORRUPT_MESSAGE))
        return FetchResponse(
            responses=[
                FetchTopicResponse(
                    topic="t",
                    partitions=[corrupt if each.partition_index == partition else each for each in answer.partitions],
                )
            ]
        )

    cluster.intercept = refuse


def _indexes(body: FetchRequest) -> list[int]:
    return [each.partition for each in body.topics[0].partitions]


def test_iterating_ends_with_an_error_when_a_leader_refuses_one_partition_for_a_minute(cluster: FakeCluster) -> None:
    cluster.add_topic("t", 2)
    fill(cluster, 10)
    refuse_fetches(cluster, 0)

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with earliest(cluster, runtime) as consumer:
            start = loop.time()
            for _ in range(2):  # iterating again continues to wait
                with pytest.raises(CallTimedOut, match="t-0 gave nothing but errors at offset 0") as caught:
                    async for _ in consumer:
                        pass
                assert "log repair" in str(caught.value)
                assert "CORRUPT_MESSAGE from broker" in str(caught.value)
            assert 2 * UNREACHABLE_AFTER_MS / 1000 <= loop.time() - start < 2 * UNREACHABLE_AFTER_MS / 1000 + 5
            state = consumer.connection_state(T0)
            assert (state.state, state.healthy) == ("refused", False)
            cluster.intercept = lambda broker, request: None
            assert (await consumer.getone(timeout_ms=10_000)).offset == 0
            assert consumer.connection_state(T0).healthy

    cluster.run(main)


def test_an_idle_topic_is_waited_for_as_long_as_brokers_answer(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            asyncio.get_running_loop().call_later(300, fill, cluster, 1)
            async for record in consumer:
                assert record.offset == 0
                break

    cluster.run(main)


def damage_one_answer(cluster: FakeCluster, at: int | None = None) -> None:
    """A byte of the first records fetched, by default one in the middle."""
    damage = [True]

    def flip(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, FetchRequest) or not damage:
            return None
        damage.clear()
        answer = cluster.brokers[broker].fetch(request.body).responses[0].partitions[0]
        records = bytearray(answer.records)
        records[len(records) // 2 if at is None else at] ^= 0x40
        broken = FetchPartitionResponse(partition_index=0, high_watermark=30, records=memoryview(bytes(records)))
        return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[broken])])

    cluster.intercept = flip


def test_where_the_first_header_is_damaged_the_error_comes_at_once_and_no_more_bytes_are_asked_for(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Only a batch that is cut off by the limit of a fetch needs a larger one."""
    fill(cluster, 10)
    damage_one_answer(cluster, at=16)  # the magic byte

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert (await consumer.getone(timeout_ms=5_000)).offset == 0

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        cluster.run(main)
    assert ["t-0" in each.message and "magic" in each.message for each in caplog.records] == [True]
    asked = [body for _, body in cluster.requests[FetchRequest] if isinstance(body, FetchRequest)]
    limits = [each.partition_max_bytes for body in asked for topic in body.topics for each in topic.partitions]
    assert len(limits) >= 2
    assert len(set(limits)) == 1


def test_damaged_records_are_raised_and_fetched_again(cluster: FakeCluster) -> None:
    fill(cluster, 30)
    damage_one_answer(cluster)

    async def main(runtime: Runtime) -> None:
        seen = []
        async with earliest(cluster, runtime) as consumer:
            with pytest.raises(CorruptRecords, match="t-0"):
                while True:
                    seen.append((await consumer.getone(timeout_ms=2_000)).value)
            while len(seen) < 30:
                seen.append((await consumer.getone(timeout_ms=2_000)).value)
        assert seen == numbered(0, 30)

    cluster.run(main)


def test_a_long_poll_for_later_records_does_not_hold_up_those_that_are_fetched_again(cluster: FakeCluster) -> None:
    fill(cluster, 30)
    damage_one_answer(cluster)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, fetch_max_wait_ms=30_000) as consumer:
            assert await take_many(consumer) == numbered(0, 10)
            await asyncio.sleep(1)  # records behind the damage are asked for by now
            with pytest.raises(CorruptRecords):
                await consumer.getone(timeout_ms=2_000)
            assert (await consumer.getone(timeout_ms=2_000)).offset == 10

    cluster.run(main)


@pytest.mark.parametrize("take", [take_many, take_batches])
def test_records_before_the_damage_are_returned(cluster: FakeCluster, take: Take) -> None:
    fill(cluster, 30)
    damage_one_answer(cluster)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            seen = await take(consumer)
            assert seen == numbered(0, 10), "the second of three batches is damaged"
            with pytest.raises(CorruptRecords, match="t-0"):
                await take(consumer)
            assert await take(consumer) == numbered(10, 30)

    cluster.run(main)


@pytest.mark.parametrize("take", [take_many, take_batches])
def test_a_cancelled_call_loses_no_record(cluster: FakeCluster, take: Take) -> None:
    fill(cluster, 30)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            seen: list[bytes | None] = []
            for iterations in range(20):
                taking = asyncio.ensure_future(take(consumer))
                for _ in range(iterations):
                    await asyncio.sleep(0)
                taking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    seen += await taking
                await asyncio.sleep(0.1)
        assert seen == numbered(0, 30)

    cluster.run(main)


def test_an_unknown_topic_is_an_error_at_start(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        with pytest.raises(UnknownTopicOrPartition, match="'nosuch'"):
            async with Consumer("nosuch", bootstrap_servers=cluster.bootstrap, runtime=runtime):
                pass

    cluster.run(main)


def test_closing_ends_an_iteration(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        consumer = earliest(cluster, runtime)
        await consumer.start()
        asyncio.get_running_loop().call_later(1, lambda: asyncio.ensure_future(consumer.close()))
        async for _ in consumer:
            pass
        with pytest.raises(ClientClosed):
            await consumer.getone()

    cluster.run(main)


def test_invalid_parameters_are_refused() -> None:
    wrongs: tuple[dict[str, Any], ...] = (
        {"auto_offset_reset": "first"},
        {"on_truncation": "ignore"},
        {"fetch_max_wait_ms": -1},
        {"max_poll_records": 0},
        {"bootstrap_servers": []},
    )
    for wrong in wrongs:
        with pytest.raises(InvalidCall):
            Consumer("t", **wrong)
