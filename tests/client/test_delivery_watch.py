"""The log says why records are not acknowledged; in simulated time."""

import asyncio
import logging

import msgspec
import pytest

from minibroker.client.consumer.partition_watch import LOG_AFTER_MS
from minibroker.client.errors import DeliveryTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    InitProducerIdRequest,
    MetadataRequest,
    MetadataResponse,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster


def refuse(broker: int, request: IncomingRequest) -> Response | None:
    if not isinstance(request.body, ProduceRequest):
        return None
    refusal = ProducePartitionResponse(index=0, error_code=int(ErrorCode.NOT_ENOUGH_REPLICAS))
    return ProduceResponse(responses=[ProduceTopicResponse(name="t", partition_responses=[refusal])])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Without the client's name in front."""
    logged = [each for each in caplog.records if each.levelno >= logging.WARNING]
    return [each.getMessage().removeprefix(f"{vars(each)['client_id']}: ") for each in logged]


@pytest.mark.parametrize("is_led", [True, False])
def test_repeated_refusals_of_a_record_are_logged_less_and_less_often(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, *, is_led: bool
) -> None:
    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, delivery_timeout_ms=50_000)
        async with producer:
            await producer.send_and_wait("t", b"well")
            if is_led:
                cluster.intercept = refuse
            else:
                cluster.partition("t").elect(None)
            delivery = await producer.send("t", b"refused")
            await asyncio.sleep(LOG_AFTER_MS / 1000 - 1)
            assert warnings(caplog) == []
            with pytest.raises(DeliveryTimedOut):
                await delivery

    cluster.run(main)
    message, *again = warnings(caplog)
    assert message.startswith("records for t-0 not acknowledged for ")
    assert len(again) == 3, "after 8, 16 and 32 s"
    error = "NOT_ENOUGH_REPLICAS from broker 1 for t-0" if is_led else "LEADER_NOT_AVAILABLE for t-0"
    assert f"still trying: {error}" in message


def test_a_problem_after_one_that_is_over_is_logged_as_early_as_the_first(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """It was kept quiet for as long as a further message about the former one would have been."""

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"well")
            for _ in range(2):
                cluster.intercept = refuse
                delivery = await producer.send("t", b"refused")
                await asyncio.sleep(20)
                cluster.intercept = lambda broker, request: None
                await delivery
                await asyncio.sleep(2)

    cluster.run(main)
    waited = [int(text.split(" s,")[0].split()[-1]) for text in warnings(caplog)]
    assert len(waited) == 2 * 3, "each time after 3 or 4 s, and twice as long each time"
    assert max(waited[0], waited[3]) <= LOG_AFTER_MS / 1000 + 1


@pytest.mark.parametrize("is_led", [True, False])
def test_brokers_without_zookeeper_are_named_as_the_cause(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture, *, is_led: bool
) -> None:
    """A record that waits for its producer id was not logged at all, and at its deadline the error hid the cause."""

    def lose_zookeeper(broker: int, request: IncomingRequest) -> Response | bool | None:
        if isinstance(request.body, MetadataRequest):
            answer = cluster.brokers[broker].metadata(request.body)
            assert isinstance(answer, MetadataResponse)
            return msgspec.structs.replace(answer, fenced=True)
        return True if isinstance(request.body, InitProducerIdRequest | ProduceRequest) else None

    async def main(runtime: Runtime) -> DeliveryTimedOut:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, delivery_timeout_ms=10_000)
        async with producer:
            cluster.intercept = lose_zookeeper
            if not is_led:
                cluster.partition("t").elect(None)
            with pytest.raises(DeliveryTimedOut) as caught:
                await producer.send_and_wait("t", b"refused")
            return caught.value

    error = cluster.run(main)
    cause = "LEADER_NOT_AVAILABLE for t-0 "
    for text in (*warnings(caplog), str(error)):
        assert cause in text
        assert text.count("last error") <= 1
        assert (
            "9092 has lost ZooKeeper (start ZooKeeper, or repair the network to it) [no replica may lead now;" in text
        )
    assert [text.split(" s,")[0].split()[-1] for text in warnings(caplog)] == ["3", "6"]


def test_a_record_whose_attempts_were_lost_says_so(cluster: FakeCluster) -> None:
    async def main(runtime: Runtime) -> None:
        producer = Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, delivery_timeout_ms=3_000)
        async with producer:
            cluster.intercept = lambda broker, request: False if isinstance(request.body, ProduceRequest) else None
            with pytest.raises(DeliveryTimedOut, match=r"connection to .* was lost"):
                await producer.send_and_wait("t", b"lost")

    cluster.run(main)


def test_a_producer_id_that_is_not_granted_is_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.intercept = lambda broker, request: isinstance(request.body, InitProducerIdRequest) or None

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, delivery_timeout_ms=5_000
        ) as producer:
            with pytest.raises(DeliveryTimedOut, match="no broker has granted the producer its id yet"):
                await producer.send_and_wait("t", b"x")

    cluster.run(main)
    (message,) = warnings(caplog)
    assert "no broker has granted the producer its id yet" in message


def test_records_that_are_only_collected_are_not_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, linger_ms=20_000) as producer:
            await (await producer.send("t", b"late"))

    cluster.run(main)
    assert warnings(caplog) == []
