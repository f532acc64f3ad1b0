"""A producer without a name whose request for an id is refused: what it asks for then, and what its user is told."""

import pytest

from minibroker.client.errors import DeliveryTimedOut, MinibrokerError
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import refusal


def test_a_record_that_waited_in_vain_for_an_id_is_told_the_refusal(cluster: FakeCluster) -> None:
    cluster.intercept = lambda broker, request: (
        InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, error_message="as the test wants")
        if isinstance(request.body, InitProducerIdRequest)
        else None
    )

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, delivery_timeout_ms=2_000, request_timeout_ms=1_000, runtime=runtime
        ) as producer:
            with pytest.raises(DeliveryTimedOut, match=r"INVALID_REQUEST from broker.*as the test wants"):
                await producer.send_and_wait("t", b"x")

    cluster.run(main)
    assert cluster.partition("t").values() == []


def test_a_refusal_that_is_over_is_no_reason_any_more(cluster: FakeCluster) -> None:
    refused: list[int] = []

    def refuse_twice(broker: int, request: IncomingRequest) -> Response | None:
        if not isinstance(request.body, InitProducerIdRequest) or len(refused) == 2:
            return None
        refused.append(broker)
        return InitProducerIdResponse(error_code=ErrorCode.REQUEST_TIMED_OUT)

    cluster.intercept = refuse_twice

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"x")
            assert len(refused) == 2
            assert producer._sender._identity.error is None

    cluster.run(main)


def test_a_producer_whose_next_epoch_is_refused_for_good_takes_a_new_id(cluster: FakeCluster) -> None:
    """Else it would ask for that epoch until it is closed, and write nothing more."""
    is_forgotten = [True]

    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        if isinstance(request.body, InitProducerIdRequest) and request.body.producer_id >= 0:
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_PRODUCER_EPOCH)
        if isinstance(request.body, ProduceRequest) and cluster.partition("t").batches and is_forgotten:
            is_forgotten.clear()
            return refusal(request, ErrorCode.UNKNOWN_PRODUCER_ID)
        return None

    cluster.intercept = intercept

    async def main(runtime: Runtime) -> None:
        async with Producer(bootstrap_servers=cluster.bootstrap, runtime=runtime) as producer:
            await producer.send_and_wait("t", b"first")
            await producer.send_and_wait("t", b"second")

    cluster.run(main)
    first, second = cluster.partition("t").headers()
    assert second.producer_id != first.producer_id
    assert second.producer_epoch == 0


@pytest.mark.parametrize("name", [None, "payments"])
@pytest.mark.parametrize(("producer_id", "epoch"), [(-1, -1), (5, -1), (5, -5)])
def test_an_answer_that_grants_nothing_is_a_refusal(
    cluster: FakeCluster, name: str | None, producer_id: int, epoch: int
) -> None:
    """Without a pause a broken broker was asked a thousand times per second, and no broker takes a batch of such an
    epoch."""
    granted = InitProducerIdResponse(producer_id=producer_id, producer_epoch=epoch)
    asked: list[Request] = []

    def intercept(broker: int, request: IncomingRequest) -> Response | None:
        if isinstance(request.body, ProduceRequest):
            raise AssertionError("nothing is sent without an identity")
        if not isinstance(request.body, InitProducerIdRequest):
            return None
        asked.append(request.body)
        return granted

    cluster.intercept = intercept

    async def main(runtime: Runtime) -> None:
        with pytest.raises(MinibrokerError, match="granted no producer id"):
            async with Producer(
                bootstrap_servers=cluster.bootstrap,
                delivery_timeout_ms=2_000,
                request_timeout_ms=1_000,
                producer_name=name,
                runtime=runtime,
            ) as producer:
                await producer.send_and_wait("t", b"x")

    cluster.run(main)
    assert 0 < len(asked) < 20
