"""The log says why records are not acknowledged; in simulated time."""

import asyncio
import logging

import pytest

from minibroker.client.consumer.partition_watch import LOG_AFTER_MS
from minibroker.client.errors import DeliveryTimedOut
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
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
def test_repeated_refusals_of_a_record_are_logged_once_a_minute(
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
    (message,) = warnings(caplog)
    assert message.startswith("records for t-0 not acknowledged for ")
    error = "NOT_ENOUGH_REPLICAS from broker 1 for t-0" if is_led else "LEADER_NOT_AVAILABLE for t-0"
    assert f"still trying: {error}" in message


def test_records_that_are_only_collected_are_not_logged(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime, linger_ms=20_000) as producer:
            await (await producer.send("t", b"late"))

    cluster.run(main)
    assert warnings(caplog) == []
