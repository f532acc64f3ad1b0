"""Errors that pass by themselves, of an election, a start or a full disk, end no call and halt no consumer.

The codes are written out: the code under test has a set of its own, and a test that takes that set for granted loses
the case with the code.
"""

import asyncio

import pytest

from minibroker.client.admin import AdminClient
from minibroker.client.consumer.consumer import Consumer
from minibroker.client.producer.producer import Producer
from minibroker.protocol.errors import ErrorCode
from minibroker.protocol.wire.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    ProduceRequest,
    Request,
    Response,
)
from minibroker.runtime.ports import Runtime
from minibroker.runtime.server.incoming_request import IncomingRequest
from tests.client.fake_cluster import FakeCluster
from tests.client.faults import refusal
from tests.client.reading import T0, fill

REFUSALS = 2
OF_EVERY_LEADER = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.KAFKA_STORAGE_ERROR,
)
OF_READS = (
    *OF_EVERY_LEADER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.CORRUPT_MESSAGE,
)
OF_WRITES = (*OF_EVERY_LEADER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)


def answer(request: IncomingRequest, code: ErrorCode) -> Response:
    """Every partition is refused with this code."""
    match request.body:
        case ProduceRequest():
            return refusal(request, code)
        case ListOffsetsRequest(topics=topics):
            return ListOffsetsResponse(
                topics=[
                    ListOffsetsTopicResponse(
                        name=topic.name,
                        partitions=[
                            ListOffsetsPartitionResponse(partition_index=each.partition_index, error_code=code)
                            for each in topic.partitions
                        ],
                    )
                    for topic in topics
                ]
            )
        case FetchRequest(topics=topics):
            return FetchResponse(
                responses=[
                    FetchTopicResponse(
                        topic=topic.topic,
                        partitions=[
                            FetchPartitionResponse(partition_index=each.partition, error_code=code)
                            for each in topic.partitions
                        ],
                    )
                    for topic in topics
                ]
            )
    raise AssertionError(request.body)


def refuse(cluster: FakeCluster, kind: type[Request], code: ErrorCode) -> None:
    """The first requests of that kind."""
    left = [code] * REFUSALS

    def intercept(broker: int, request: IncomingRequest) -> Response | bool | None:
        return answer(request, left.pop()) if isinstance(request.body, kind) and left else None

    cluster.intercept = intercept


@pytest.mark.parametrize("kind", [ListOffsetsRequest, FetchRequest])
@pytest.mark.parametrize("code", OF_READS)
def test_a_consumer_gets_over_it(cluster: FakeCluster, kind: type[Request], code: ErrorCode) -> None:
    refuse(cluster, kind, code)

    async def main(runtime: Runtime) -> None:
        async with Consumer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, auto_offset_reset="earliest", fetch_max_wait_ms=50
        ) as consumer:
            fill(cluster, 1)
            consumer.assign([T0])
            assert (await consumer.getone(timeout_ms=20_000)).offset == 0

    cluster.run(main)


@pytest.mark.parametrize("code", OF_READS)
def test_a_look_up_gets_over_it(cluster: FakeCluster, code: ErrorCode) -> None:
    refuse(cluster, ListOffsetsRequest, code)

    async def main(runtime: Runtime) -> None:
        async with AdminClient(bootstrap_servers=cluster.bootstrap, runtime=runtime) as admin:
            async with asyncio.timeout(20):
                assert (await admin.list_offsets({T0: -1}))[T0].offset == 0

    cluster.run(main)


@pytest.mark.parametrize("idempotent", [True, False])
@pytest.mark.parametrize("code", OF_WRITES)
def test_a_producer_gets_over_it(cluster: FakeCluster, code: ErrorCode, idempotent: bool) -> None:
    refuse(cluster, ProduceRequest, code)

    async def main(runtime: Runtime) -> None:
        async with Producer(
            bootstrap_servers=cluster.bootstrap, runtime=runtime, enable_idempotence=idempotent
        ) as producer:
            assert (await producer.send_and_wait("t", b"value")).offset == 0

    cluster.run(main)
