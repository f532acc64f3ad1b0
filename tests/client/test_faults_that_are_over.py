"""A consumer's state names what keeps records from coming, and nothing that is over."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from minibroker.client.consumer.consumer import Consumer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.ids import TopicPartition
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    MetadataRequest,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.reading import T0, earliest, fill

T1 = TopicPartition("t", 1)
Fault = Callable[[FakeCluster], None]


def all_brokers_are_gone(cluster: FakeCluster) -> None:
    for broker in cluster.brokers:
        cluster.kill(broker)


def no_fetch_is_answered(cluster: FakeCluster) -> None:
    cluster.intercept = lambda broker, request: isinstance(request.body, FetchRequest) or None


def answered(cluster: FakeCluster, answer: Response) -> None:
    cluster.intercept = lambda broker, request: answer if isinstance(request.body, FetchRequest) else None


def of_partition(**answer: Any) -> FetchResponse:
    partition = FetchPartitionResponse(partition_index=T0.partition, **answer)
    return FetchResponse(responses=[FetchTopicResponse(topic=T0.topic, partitions=[partition])])


def fetches_are_refused_as_a_whole(cluster: FakeCluster) -> None:
    answered(cluster, Response(error_code=ErrorCode.REQUEST_TIMED_OUT))


def the_partition_is_left_out(cluster: FakeCluster) -> None:
    answered(cluster, FetchResponse())


def the_partition_is_refused(cluster: FakeCluster) -> None:
    answered(cluster, of_partition(error_code=ErrorCode.KAFKA_STORAGE_ERROR))


def its_records_are_damaged(cluster: FakeCluster) -> None:
    answered(cluster, of_partition(records=bytes(100)))


FAULTS = (
    all_brokers_are_gone,
    no_fetch_is_answered,
    fetches_are_refused_as_a_whole,
    the_partition_is_left_out,
    the_partition_is_refused,
    its_records_are_damaged,
)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_state_tells_an_error_as_long_as_it_lasts(cluster: FakeCluster, fault: Fault) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, request_timeout_ms=2_000) as consumer:
            await works(cluster, consumer)
            fault(cluster)
            for _ in range(200):
                await asyncio.sleep(0.05)
                if consumer.connection_state(T0).error is not None:
                    break
            else:
                pytest.fail("its state told nothing of it")
            cluster.intercept = lambda broker, request: None
            if fault is all_brokers_are_gone:
                for broker in cluster.brokers:
                    cluster.start_broker(broker)
            await works(cluster, consumer)

    cluster.run(main)


@pytest.mark.parametrize("fault", FAULTS[2:])
def test_each_fetch_that_failed_is_counted_once(cluster: FakeCluster, fault: Fault) -> None:
    asked = 0

    async def main(runtime: Runtime) -> None:
        nonlocal asked
        fault(cluster)
        answer_by_fault = cluster.intercept

        def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
            nonlocal asked
            asked += isinstance(request.body, FetchRequest)
            return answer_by_fault(broker, request)

        cluster.intercept = intercept
        async with earliest(cluster, runtime, request_timeout_ms=2_000) as consumer:
            await asyncio.sleep(5)
            in_flight = asked - consumer.metrics().fetches_failed
            assert asked >= 3 and in_flight in (0, 1)

    cluster.run(main)


@pytest.mark.parametrize("fault", FAULTS[1:])
def test_an_error_is_over_with_the_first_records(cluster: FakeCluster, fault: Fault) -> None:
    """They fill the buffer, so that no other answer comes. Each fetch that failed was counted."""

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, request_timeout_ms=2_000, max_partition_fetch_bytes=500) as consumer:
            fault(cluster)
            await asyncio.sleep(5)
            assert consumer.connection_state(T0).error is not None
            assert consumer.metrics().fetches_failed >= 1
            fill(cluster, 100)
            cluster.intercept = lambda broker, request: None
            await asyncio.sleep(5)
            assert consumer.connection_state(T0).error is None

    cluster.run(main)


@pytest.mark.parametrize("fault", [the_partition_is_left_out, the_partition_is_refused, its_records_are_damaged])
def test_a_partition_without_a_good_answer_is_asked_for_again_with_longer_and_longer_pauses(
    cluster: FakeCluster, fault: Fault
) -> None:
    """Its state tells for how long it has lasted."""

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, fetch_max_wait_ms=50) as consumer:
            await works(cluster, consumer)
            fault(cluster)
            await asyncio.sleep(10)
            state = consumer.connection_state(T0)
            assert state.state == "refused"
            assert state.refused_for_ms == pytest.approx(10_000, abs=200)
            assert cluster.asked(FetchRequest) < 25, "with pauses of up to a second"

    cluster.run(main)


@pytest.mark.parametrize("fault", FAULTS)
def test_another_broker_is_asked_who_leads_during_each_fault(cluster: FakeCluster, fault: Fault) -> None:
    """The partition may have a leader by now that works."""

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, request_timeout_ms=2_000) as consumer:
            await works(cluster, consumer)
            asked = cluster.asked(MetadataRequest)
            fault(cluster)
            await asyncio.sleep(5)
            if fault is all_brokers_are_gone:
                for broker in cluster.brokers:
                    cluster.start_broker(broker)
                await asyncio.sleep(2)
            assert cluster.asked(MetadataRequest) > asked

    cluster.run(main)


@pytest.mark.parametrize("fault", [all_brokers_are_gone, no_fetch_is_answered, fetches_are_refused_as_a_whole])
def test_an_error_of_a_leader_is_told_of_a_partition_that_is_not_fetched(cluster: FakeCluster, fault: Fault) -> None:
    """Its user would resume it, and wait."""
    cluster.add_topic("t", 2)
    for partition in (T0, T1):
        cluster.partition(*partition).elect(1)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, request_timeout_ms=2_000) as consumer:
            await works(cluster, consumer)
            consumer.pause(T1)
            await asyncio.sleep(1)
            assert consumer.connection_state(T1).error is None
            fault(cluster)
            await asyncio.sleep(5)
            state = consumer.connection_state(T1)
            assert (state.state, state.error is None) == ("paused", False)

    cluster.run(main)


@pytest.mark.parametrize("seeks", [False, True])
def test_metadata_is_asked_for_until_a_partition_has_a_leader_again(cluster: FakeCluster, seeks: bool) -> None:
    """Also of a position that no leader is asked about, because its epoch is not known."""

    async def main(runtime: Runtime) -> float:
        async with earliest(cluster, runtime) as consumer:
            await works(cluster, consumer)
            if seeks:
                consumer.seek(T0, 1)
            cluster.partition("t").elect(None)
            cluster.brokers[1].wake_fetches()
            await asyncio.sleep(20)
            assert consumer.connection_state(T0).state == "no-leader"
            cluster.partition("t").elect(2)
            began = asyncio.get_running_loop().time()
            await works(cluster, consumer)
            return asyncio.get_running_loop().time() - began

    assert cluster.run(main) < 2


async def works(cluster: FakeCluster, consumer: Consumer) -> None:
    fill(cluster, 1)
    await consumer.getone(timeout_ms=20_000)
    state = consumer.connection_state(T0)
    assert (state.state, state.error, state.refused_for_ms) == ("fetching", None, None)
