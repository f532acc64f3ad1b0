"""A producer whose name a later process has: it ends, and says so. Without a name it goes on under another id."""

import asyncio
import logging
from contextlib import nullcontext
from typing import Any

import pytest

from minibroker.client.errors import BrokerError, CallTimedOut, InvalidCall, MinibrokerError, ProducerFenced
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import numbered, on_produce, refusal, refuse_always


def named(cluster: FakeCluster, runtime: Runtime, **settings: Any) -> Producer:
    return Producer(bootstrap_servers=cluster.bootstrap, producer_name="orders", runtime=runtime, **settings)


def test_each_start_takes_the_next_epoch_before_it_returns(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        for epoch in range(3):
            async with named(cluster, runtime) as producer:
                assert cluster.producer_names == {"orders": (1001, epoch)}
                await producer.send_and_wait("t", b"%d" % epoch)

    cluster.run(main)
    assert cluster.partition("t").values() == [b"0", b"1", b"2"]


def test_the_older_process_ends_once_the_later_one_has_written(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime) as older, named(cluster, runtime) as later:
            await older.send_and_wait("t", b"before the later one writes here")
            await later.send_and_wait("t", b"from here on")
            with pytest.raises(ProducerFenced, match="INVALID_PRODUCER_EPOCH from broker"):
                await older.send_and_wait("t", b"too late")
            for call in (older.send("t", b"x"), older.send_many("t", [b"x"]), older.flush()):
                with pytest.raises(ProducerFenced, match="a later process has started as producer 'orders'"):
                    await call
            await later.send_and_wait("t", b"and on")

    with caplog.at_level(logging.WARNING, "minibroker.client"):
        cluster.run(main)
    assert cluster.partition("t").values() == [b"before the later one writes here", b"from here on", b"and on"]
    [line] = [each.message for each in caplog.records]
    assert "ended: INVALID_PRODUCER_EPOCH from broker" in line, "once, however many records wait"


def test_all_records_that_wait_get_the_error(cluster: FakeCluster) -> None:
    cluster.add_topic("other", 3)

    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime, linger_ms=10_000) as older:
            waiting = [await older.send("other", value, partition=1) for value in numbered(3)]
            refuse_always(cluster, ErrorCode.INVALID_PRODUCER_EPOCH)
            fenced = await older.send("t", b"x" * 131_000)
            await older.send("t", b"y" * 131_000)  # the batch before it is full
            for delivery in (fenced, *waiting):
                with pytest.raises(ProducerFenced) as raised:
                    await delivery
                assert raised.value.maybe_written is False

    with pytest.raises(Exception, match="1 record could not be delivered"):
        cluster.run(main)
    assert cluster.partition("other", 1).values() == []


def test_a_record_in_doubt_stays_in_doubt(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime) as older:
            on_produce(cluster, False, ErrorCode.INVALID_PRODUCER_EPOCH)
            with pytest.raises(ProducerFenced) as raised:
                await older.send_and_wait("t", b"the answer is lost")
            assert raised.value.maybe_written

    cluster.run(main)


def test_another_partitions_record_in_doubt_stays_in_doubt(cluster: FakeCluster) -> None:
    """It waits for its next attempt when the producer ends."""
    cluster.add_topic("other", 3)

    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime, retry_backoff_ms=5_000, retry_backoff_max_ms=5_000) as older:
            on_produce(cluster, False)
            doubtful = await older.send("other", b"the answer is lost", partition=1)
            await asyncio.sleep(1)
            refuse_always(cluster, ErrorCode.INVALID_PRODUCER_EPOCH)
            with pytest.raises(ProducerFenced):
                await older.send_and_wait("t", b"refused")
            with pytest.raises(ProducerFenced) as raised:
                await doubtful
            assert raised.value.maybe_written

    cluster.run(main)


def test_a_producer_that_needs_its_next_epoch_learns_that_it_is_fenced(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime) as older:
            await older.send_and_wait("t", b"first")
            cluster.producer_names["orders"] = (1001, 1)
            on_produce(cluster, ErrorCode.UNKNOWN_PRODUCER_ID)
            with pytest.raises(ProducerFenced, match="a later process has started as producer 'orders'"):
                await older.send_and_wait("t", b"forgotten")

    cluster.run(main)


def test_a_running_process_keeps_its_name_under_its_next_epoch(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime) as producer:
            await producer.send_and_wait("t", b"first")
            on_produce(cluster, ErrorCode.UNKNOWN_PRODUCER_ID)
            await producer.send_and_wait("t", b"second")
        assert cluster.producer_names == {"orders": (1001, 1)}

    cluster.run(main)
    assert cluster.partition("t").values() == [b"first", b"second"]


def test_a_start_names_the_newest_identity_once_it_was_told(cluster: FakeCluster) -> None:
    """And itself, by a token that no other process has."""
    requests: list[InitProducerIdRequest] = []
    told = [(1001, 4), (1001, 5)]
    forgotten = [ErrorCode.UNKNOWN_PRODUCER_ID]

    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        if isinstance(request.body, ProduceRequest) and forgotten:
            return refusal(request, forgotten.pop())
        if isinstance(request.body, InitProducerIdRequest):
            requests.append(request.body)
            if told:
                newest_id, newest_epoch = told.pop(0)
                return InitProducerIdResponse(newest_id=newest_id, newest_epoch=newest_epoch)
        return None

    cluster.intercept = intercept

    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime) as producer:
            await producer.send_and_wait("t", b"under the next epoch")
        async with named(cluster, runtime):
            pass

    cluster.run(main)
    assert [(request.newest_id, request.newest_epoch) for request in requests[:3]] == [(-1, -1), (1001, 4), (1001, 5)]
    first, *others, last = [request.process_token for request in requests]
    assert len(others) == 3, "the last of them asks for the next epoch"
    assert set(others) == {first} != {last}
    assert len(first) == 32


def answer_init(cluster: FakeCluster, code: ErrorCode) -> None:
    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        if isinstance(request.body, InitProducerIdRequest):
            return InitProducerIdResponse(error_code=code, error_message="as the test wants")
        assert not isinstance(request.body, ProduceRequest)
        return None

    cluster.intercept = intercept


def test_a_start_that_gets_no_epoch_fails(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        tasks = len(asyncio.all_tasks())
        answer_init(cluster, ErrorCode.INVALID_REQUEST)
        with pytest.raises(BrokerError, match="INVALID_REQUEST from broker"):
            await named(cluster, runtime).start()
        answer_init(cluster, ErrorCode.REQUEST_TIMED_OUT)
        with pytest.raises(CallTimedOut, match="no producer id was granted within 3000 ms"):
            await named(cluster, runtime, request_timeout_ms=3_000).start()
        assert len(asyncio.all_tasks()) == tasks

    cluster.run(main)


@pytest.mark.parametrize(
    "settings", [{"producer_name": "a b"}, {"producer_name": ""}, {"producer_name": "o", "acks": 1}]
)
def test_wrong_names_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall, match="producer_name"):
        Producer(**settings)


@pytest.mark.parametrize("code", [ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_SERVER_ERROR])
def test_a_refused_request_for_the_next_epoch_does_not_become_a_start(cluster: FakeCluster, code: ErrorCode) -> None:
    """A start would take the name back from the later process."""

    async def main(runtime: Runtime) -> None:
        async with named(cluster, runtime) as older, named(cluster, runtime) as later:
            await later.send_and_wait("t", b"later")
            unknown = ProducePartitionResponse(index=0, error_code=ErrorCode.UNKNOWN_PRODUCER_ID)
            topic = ProduceTopicResponse(name="t", partition_responses=[unknown])
            refused = InitProducerIdResponse(error_code=code, error_message="as the test wants")
            answers: list[Response] = [ProduceResponse(responses=[topic]), refused]
            cluster.intercept = lambda broker, request: (
                answers.pop(0) if answers and isinstance(request.body, ProduceRequest | InitProducerIdRequest) else None
            )
            with pytest.raises(ProducerFenced):
                await older.send_and_wait("t", b"forgotten")
            assert not answers
            assert cluster.producer_names == {"orders": (1001, 1)}
            await later.send_and_wait("t", b"and on")

    cluster.run(main)
    assert cluster.partition("t").values() == [b"later", b"and on"]


def test_calls_that_wait_for_memory_end_with_the_producer(cluster: FakeCluster) -> None:
    topics = ["t", "a", "b", "c"]
    for topic in topics[1:]:
        cluster.add_topic(topic, 1)

    async def main(runtime: Runtime) -> None:
        loop = asyncio.get_running_loop()
        async with named(cluster, runtime, buffer_memory=131_072, max_block_ms=60_000) as older:
            for topic in topics:
                await older.send_and_wait(topic, b"first")
            refuse_always(cluster, ErrorCode.INVALID_PRODUCER_EPOCH)
            fenced = await older.send("t", b"x" * 130_000)
            calls = [asyncio.ensure_future(older.send(topic, b"x" * 100_000)) for topic in topics[1:]]
            before = loop.time()
            with pytest.raises(ProducerFenced):
                await fenced
            for call in calls:
                with pytest.raises(ProducerFenced):
                    await call
            assert loop.time() - before < 1

    cluster.run(main)


def test_the_fresh_identity_of_a_fenced_producer_has_next_epochs_as_any_other(cluster: FakeCluster) -> None:
    """Under yet another id, what is still on its way would not be fenced, and land behind newer records."""
    on_produce(cluster, None, ErrorCode.INVALID_PRODUCER_EPOCH, None, ErrorCode.INVALID_RECORD)

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            for is_refused in (False, True, False, True, False):
                with pytest.raises(MinibrokerError) if is_refused else nullcontext():
                    await producer.send_and_wait("t", b"x")

    cluster.run(main)
    first, second, third = cluster.partition("t").headers()
    assert second.producer_id != first.producer_id
    assert (third.producer_id, third.producer_epoch) == (second.producer_id, second.producer_epoch + 1)
