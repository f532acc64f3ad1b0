"""When a producer sends: how long a record waits for others, and what it does not wait for."""

import asyncio
from typing import Literal

import pytest

from minibroker.client.errors import DeliveryTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.protocol.wire.messages import ProduceRequest
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import numbered, on_produce


async def _seconds_of_one(producer: Producer) -> float:
    """Time until a record is acknowledged."""
    start = asyncio.get_running_loop().time()
    await producer.send_and_wait("t", b"x")
    return asyncio.get_running_loop().time() - start


def test_a_lone_record_waits_for_linger_and_no_longer(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> float:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=200, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"warm up")
            return await _seconds_of_one(producer)

    assert 0.2 <= cluster.run(main) < 0.21


def test_a_record_that_is_sent_as_a_flush_ends_waits_for_linger_and_no_longer(cluster: FakeCluster) -> None:
    """Its batch is opened while batches need not wait, and the flush has ended before it is sent. Nothing was to send
    it then: it waited for four seconds, until the producer looked why."""

    async def main(runtime: Runtime) -> float:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=200, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"warm up")
            delivery = await producer.send("t", b"a")
            flushing = asyncio.create_task(producer.flush())
            await delivery
            seconds = await _seconds_of_one(producer)
            await flushing
            return seconds

    assert 0.2 <= cluster.run(main) < 0.21


def test_without_linger_a_lone_record_is_sent_at_once(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> float:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"warm up")
            return await _seconds_of_one(producer)

    assert cluster.run(main) < 0.01


def test_without_linger_a_record_is_sent_in_the_call_and_a_later_burst_together(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> int:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"warm up")
            before = cluster.asked(ProduceRequest)
            deliveries = [producer.try_send("t", b"first")]
            assert [queue.in_flight for queue in producer._accumulator.active_queues()] == [1]
            deliveries += [producer.try_send("t", value) for value in numbered(20)]
            for delivery in deliveries:
                assert delivery is not None
                await delivery
            return cluster.asked(ProduceRequest) - before

    assert cluster.run(main) == 2


@pytest.mark.parametrize("acks", [0, "all"])
def test_without_linger_no_record_waits_for_an_answer_or_a_later_record(
    cluster: FakeCluster, acks: Literal[0, "all"]
) -> None:
    """Neither the only one of a call, nor one behind a request that is not answered."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, acks=acks, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"warm up")
            await asyncio.sleep(0.01)
            cluster.intercept = lambda broker, request: isinstance(request.body, ProduceRequest) or None
            before = cluster.asked(ProduceRequest)
            for number in range(3):
                await producer.send("t", b"x")
                await asyncio.sleep(0.01)
                assert cluster.asked(ProduceRequest) == before + number + 1
            cluster.intercept = lambda broker, request: None

    cluster.run(main)


def test_without_linger_an_unanswered_record_expires_in_time(cluster: FakeCluster) -> None:
    """Also when its timeouts are shorter than the time after which an answer counts as slow."""

    async def main(runtime: Runtime) -> float:
        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            linger_ms=0,
            delivery_timeout_ms=300,
            request_timeout_ms=200,
            runtime=runtime,
        ) as producer:
            await producer.send_and_wait("t", b"warm up")
            on_produce(cluster, *[True] * 50)
            start = asyncio.get_running_loop().time()
            with pytest.raises(DeliveryTimedOut):
                await producer.send_and_wait("t", b"x")
            return asyncio.get_running_loop().time() - start

    assert 0.29 <= cluster.run(main) < 0.35


def test_records_sent_without_a_pause_share_a_batch(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, linger_ms=0, runtime=runtime) as producer:
            await asyncio.gather(*(producer.send_and_wait("t", value) for value in numbered(100)))

    cluster.run(main)
    assert len(cluster.partition("t").batches) <= 2


@pytest.mark.parametrize("acks", ["all", 1, 0])
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_full_batches_wait_for_no_answer_while_another_request_may_be_in_flight(
    cluster: FakeCluster, limit: int, acks: Literal["all", 1, 0]
) -> None:
    """Also when they have become full together: a request does not hold them all."""
    cluster.add_topic("many", 18)
    ours = [index for index in range(18) if cluster.partition("many", index).leader == 1]

    async def main(runtime: Runtime) -> int:
        async with Producer(
            bootstrap_servers=cluster.bootstrap,
            linger_ms=50,
            acks=acks,
            max_request_size=2_048,
            max_in_flight_requests_per_connection=limit,
            runtime=runtime,
        ) as producer:
            await asyncio.gather(*(producer.send_and_wait("many", b"warm up", partition=index) for index in ours))
            await asyncio.sleep(0.01)  # with acks=0 that was only sent
            cluster.intercept = lambda broker, request: isinstance(request.body, ProduceRequest) or None
            before = cluster.asked(ProduceRequest)
            for index in ours:
                await producer.send("many", b"x" * 1_500, partition=index)
            await asyncio.sleep(0.07)
            cluster.intercept = lambda broker, request: None
            return cluster.asked(ProduceRequest) - before

    assert cluster.run(main) == (len(ours) if acks == 0 else limit)


@pytest.mark.parametrize("idempotent", [True, False])
def test_what_waits_for_the_answer_of_a_former_leader_goes_to_the_next_one_at_once(
    cluster: FakeCluster, idempotent: bool
) -> None:
    """It has written the batch before, and answers when the next leader is known. Nothing more was sent to that one
    until the producer looked for answers that are late."""
    held: list[IncomingRequest] = []

    def hold(broker: int, request: IncomingRequest) -> bool | None:
        if not isinstance(request.body, ProduceRequest) or broker != 1:
            return None
        held.append(request)
        return True

    cluster.intercept = hold

    async def main(runtime: Runtime) -> float:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, enable_idempotence=idempotent, runtime=runtime
        ) as producer:
            deliveries = [await producer.send("t", b"a")]
            await asyncio.sleep(0.1)
            deliveries.append(await producer.send("t", b"b"))
            (request,) = held
            assert isinstance(request.body, ProduceRequest)
            answer = cluster.brokers[1].produce(request.body)
            cluster.partition("t").elect(2)
            producer._cluster.request_refresh()
            await asyncio.sleep(0.1)
            start = asyncio.get_running_loop().time()
            request.respond(answer)
            for delivery in deliveries:
                await delivery
            return asyncio.get_running_loop().time() - start

    assert cluster.run(main) < 0.01
    assert cluster.partition("t").values() == [b"a", b"b"]
