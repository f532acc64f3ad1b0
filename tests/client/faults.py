"""Faults between a client and the fake brokers, one line per test."""

from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
    Response,
)
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster


def numbered(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def refusal(request: IncomingRequest, code: ErrorCode) -> Response:
    """Refuse every partition of a produce request."""
    body = request.body
    assert isinstance(body, ProduceRequest)
    return ProduceResponse(
        responses=[
            ProduceTopicResponse(
                name=topic.name,
                partition_responses=[
                    ProducePartitionResponse(index=data.index, error_code=code) for data in topic.partition_data
                ],
            )
            for topic in body.topic_data
        ]
    )


def refuse_always(cluster: FakeCluster, code: ErrorCode) -> None:
    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        return refusal(request, code) if isinstance(request.body, ProduceRequest) else None

    cluster.intercept = intercept


def on_produce(cluster: FakeCluster, *faults: bool | ErrorCode | None) -> None:
    """Faults for the first produce requests, one after the other; the rest is handled as usual."""
    left = list(faults)

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        if not isinstance(request.body, ProduceRequest) or not left:
            return None
        fault = left.pop(0)
        return refusal(request, fault) if isinstance(fault, ErrorCode) else fault

    cluster.intercept = intercept
