"""What people expect from a client besides sending and reading: callbacks, metrics, paused, stop, logs."""

import asyncio
import logging
from typing import Literal

import pytest

from minibroker.client.errors import BrokerError
from minibroker.client.producer.deliveries import Delivery
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import numbered, on_produce, refuse_always
from tests.client.reading import T0, earliest, fill


def test_headers_may_be_a_dict(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"v", headers={"source": b"doc", "empty": None})
            await (await producer.send_many("t", [b"w"], headers={"source": b"doc"}))
            await producer.send_and_wait("t", b"x", headers={})
        async with earliest(cluster, runtime) as consumer:
            found = [dict((await consumer.getone()).headers) for _ in range(3)]
            assert found == [{"source": b"doc", "empty": None}, {"source": b"doc"}, {}]

    cluster.run(main)


def test_a_callback_is_called_with_its_delivery_once_the_outcome_is_known(cluster: FakeCluster) -> None:
    seen: list[Delivery] = []

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            deliveries = [await producer.send("t", value) for value in numbered(3)]
            for delivery in deliveries:
                delivery.add_done_callback(seen.append)
            assert not seen
            await producer.flush()
            assert [each.result().offset for each in seen] == [0, 1, 2]
            deliveries[0].add_done_callback(seen.append)
            assert len(seen) == 3, "never within the call"
            await asyncio.sleep(0)
            assert seen[-1] is deliveries[0]

    cluster.run(main)


def test_a_callback_that_looks_at_a_failure_makes_it_seen(cluster: FakeCluster) -> None:
    errors: list[BrokerError] = []

    def note(delivery: Delivery) -> None:
        try:
            delivery.result()
        except BrokerError as error:
            errors.append(error)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            refuse_always(cluster, ErrorCode.INVALID_RECORD)
            (await producer.send("t", b"v")).add_done_callback(note)

    cluster.run(main)  # close() does not raise UndeliveredRecords
    assert [error.code for error in errors] == [ErrorCode.INVALID_RECORD]


def test_paused_names_what_is_paused(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert consumer.paused() == []
            consumer.pause(T0)
            assert consumer.paused() == [T0]
            consumer.resume(T0)
            assert consumer.paused() == []

    cluster.run(main)


def test_stop_closes(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        await producer.start()
        delivery = await producer.send("t", b"v")
        await producer.stop()
        assert delivery.result().offset == 0
        consumer = earliest(cluster, runtime)
        await consumer.start()
        await consumer.stop()

    cluster.run(main)


def test_a_producer_counts(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime)
        assert producer.metrics().records_acknowledged == 0
        async with producer:
            on_produce(cluster, ErrorCode.NOT_ENOUGH_REPLICAS)
            await (await producer.send_many("t", numbered(5)))
            metrics = producer.metrics()
            assert (metrics.records_acknowledged, metrics.batches_acknowledged, metrics.attempts_refused) == (5, 1, 1)
            assert (metrics.records_failed, metrics.requests_in_flight, metrics.buffered_bytes) == (0, 0, 0)
            await producer.send("t", b"waits")
            assert producer.metrics().buffered_bytes > 0
            assert metrics.buffered_bytes == 0, "what was returned does not change"

    cluster.run(main)


def test_a_consumer_counts_and_knows_its_lag(cluster: FakeCluster) -> None:
    fill(cluster, 40)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime) as consumer:
            assert consumer.metrics().lag == {T0: None}
            for _ in range(15):
                await consumer.getone()
            metrics = consumer.metrics()
            assert (metrics.records_read, metrics.lag) == (20, {T0: 25})
            assert metrics.bytes_read > 0 and metrics.fetches_answered > 0 and not metrics.fetches_failed

    cluster.run(main)


def test_many_new_leaders_are_one_line(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that leads a thousand partitions fails: each client would log a thousand lines."""
    cluster.add_topic("wide", 9)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=500, runtime=runtime) as producer:
            for partition in range(9):
                await producer.send_and_wait("wide", b"v", partition=partition)
            for partition in range(9):
                cluster.partition("wide", partition).elect(2)
            await asyncio.sleep(2)

    with caplog.at_level(logging.INFO, "minibroker.client"):
        cluster.run(main)
    [line] = [each.message for each in caplog.records if "is led by" in each.message]
    assert "wide-0 is led by broker 2 now (epoch 1), wide-1" in line
    assert line.endswith(", and 4 more partitions have new leaders")


def test_changes_are_logged_with_the_clients_name(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, client_id="100 % me", runtime=runtime) as producer:
            await producer.send_and_wait("t", b"v")
            on_produce(cluster, ErrorCode.NOT_ENOUGH_REPLICAS, False)
            cluster.partition("t").elect(2)
            await producer.send_and_wait("t", b"v")

    with caplog.at_level(logging.DEBUG, "minibroker.client"):
        cluster.run(main)
    ours = [each for each in caplog.records if each.name == "minibroker.client"]
    assert all(each.message.startswith("100 % me: ") for each in ours)
    at = {level: [each.message for each in ours if each.levelname == level] for level in ("INFO", "DEBUG")}
    for expected in ("started, with brokers", "connected to", "writes as producer", "t-0 is led by broker 2", "closed"):
        assert any(expected in message for message in at["INFO"]), expected
    assert any("attempt 1 for t-0: NOT_ENOUGH_REPLICAS from broker 1" in message for message in at["DEBUG"])


def refuse_once(cluster: FakeCluster, kind: type[Request], answer: Response | Literal[False]) -> None:
    """Answer the first request of this kind so (False: its connection is lost)."""
    left: list[Response | Literal[False]] = [answer]

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        return left.pop() if left and isinstance(request.body, kind) else None

    cluster.intercept = intercept


def refused_fetch() -> Response:
    partition = FetchPartitionResponse(partition_index=0, error_code=ErrorCode.CORRUPT_MESSAGE)
    return FetchResponse(responses=[FetchTopicResponse(topic="t", partitions=[partition])])


TRIED_AGAIN: dict[str, tuple[type[Request], Response | Literal[False], str]] = {
    "a lost produce request": (ProduceRequest, False, "attempt 1 for t-0 was lost: broker 1: "),
    "a refused producer id": (
        InitProducerIdRequest,
        InitProducerIdResponse(error_code=ErrorCode.UNKNOWN_PRODUCER_ID),
        "a producer id is asked for again: UNKNOWN_PRODUCER_ID",
    ),
    "a refused fetch": (FetchRequest, refused_fetch(), "a fetch was refused: CORRUPT_MESSAGE from broker 1 for t-0"),
    "a lost fetch": (FetchRequest, False, "fetches again from broker 1, after failure 1: broker 1: "),
}


@pytest.mark.parametrize("case", TRIED_AGAIN)
def test_what_is_tried_again_is_logged_with_the_reason(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    kind, answer, line = TRIED_AGAIN[case]

    async def main(runtime: Runtime) -> None:
        refuse_once(cluster, kind, answer)
        async with Producer(bootstrap_servers=cluster.bootstrap, client_id="me", runtime=runtime) as producer:
            await producer.send_and_wait("t", b"v")
        async with earliest(cluster, runtime, client_id="me") as consumer:
            assert (await consumer.getone(timeout_ms=5_000)).value == b"v"

    with caplog.at_level(logging.DEBUG, "minibroker.client"):
        cluster.run(main)
    assert [each.message for each in caplog.records if each.message.startswith(f"me: {line}")]


def test_metadata_that_did_not_come_are_logged_with_the_reason(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, metadata_max_age_ms=100, runtime=runtime):
            for broker in cluster.brokers:
                cluster.kill(broker)
            await asyncio.sleep(1)

    with caplog.at_level(logging.DEBUG, "minibroker.client"):
        cluster.run(main)
    assert "metadata is asked for again: no broker answered" in caplog.text


def test_a_consumer_logs_the_new_leader_of_a_partition(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    fill(cluster, 10)

    async def main(runtime: Runtime) -> None:
        async with earliest(cluster, runtime, metadata_max_age_ms=200) as consumer:
            await consumer.getmany(timeout_ms=1_000)
            cluster.partition("t").elect(2)
            await asyncio.sleep(1)

    with caplog.at_level(logging.INFO, "minibroker.client"):
        cluster.run(main)
    assert caplog.text.count("t-0 is led by broker 2 now (epoch 1)") == 1
